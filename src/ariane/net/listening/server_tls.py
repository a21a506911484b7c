"""TLS of servers: the context of new connections, from files that may be replaced while the server runs. [TlsHelper]

    files of tls.server.* ─→ load ─→ SSLContext ─→ new connections
             └─ changed ─→ reload_if_changed ─→ another SSLContext; a file that cannot be used keeps the former one

A replacement is a new context, not new files in the former one: OpenSSL replaces certificate and key one after the other, and would
serve half of a pair if the second cannot be read. Established connections keep theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from ariane.errors import ArianeError, ConfigError
from ariane.net.listening import certificates
from ariane.net.listening.certificates import KeyPair, Validity
from ariane.net.tasks import BackgroundTasks

log = logging.getLogger("ariane.net.tls")

TlsMode = Literal["disabled", "permissive", "enforcing"]
ClientAuth = Literal["none", "optional", "require"]

WATCH_INTERVAL_S = 1.0
TO_PEM = {"certPath": "openssl x509 -inform DER", "keyPath": "openssl pkcs8 -inform DER -nocrypt -topk8"}


class CertificateFiles(NamedTuple):
    """Certificate, key and authorities of one side, in PEM. Paths are empty if they are not set."""

    prefix: str
    """Of the keys in messages: `tls.server` or `tls.client`."""
    cert: str = ""
    key: str = ""
    key_password: str = ""
    trust: str = ""

    def __repr__(self) -> str:
        return f"CertificateFiles({self.prefix!r}, {self.cert!r}, {self.key!r}, ..., {self.trust!r})"


class ServerTlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """TLS of the ports of a server."""

    mode: TlsMode = "permissive"
    is_test: bool = True
    """Present a self-signed certificate, created at the first encrypted connection, instead of the files."""
    files: CertificateFiles = CertificateFiles("tls.server")
    client_auth: ClientAuth = "none"
    verifies_clients: bool = False
    """Whether certificates of clients must be issued by an authority of `files.trust`, or of this machine."""


class ServerTls:
    """The TLS of a server's ports.

    Args:
        options: Mode and files.
        now: The wall clock, in UTC.
        protocols: Names that clients may select by ALPN, which gRPC requires.
    """

    def __init__(
        self,
        options: ServerTlsOptions,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        *,
        protocols: Sequence[str] = (),
    ) -> None:
        self.mode = options.mode
        self._options = options
        self._now = now
        self._protocols = protocols
        self._context: ssl.SSLContext | None = None  # None until `load`, or the first connection of the test mode
        self._creating: asyncio.Future[None] | None = None  # creation of the test certificate
        self._pair: KeyPair | None = None  # in the context
        self.on_reloaded: Callable[[], None] | None = None  # called when files were replaced
        self.validity: Validity | None = None  # of the certificate; None without one, or with that of the test mode
        self._loaded: _Versions = ()  # of the files in the context
        self._seen: _Versions = ()  # of the files at the last check

    @property
    def has_files(self) -> bool:
        """Whether encrypted connections need files, which may be replaced."""
        return self.mode != "disabled" and not self._options.is_test

    def load(self) -> None:
        """Read the files. The test certificate is not created before a client needs it.

        Raises:
            ConfigError: a file cannot be used; names the key and the fix.
        """
        if self.has_files:
            self._read()
            assert self.validity is not None
            if fault := self.validity.fault(self._now()):
                text = "The certificate %s %s: clients that verify it refuse to connect; replace the file"
                log.warning(text, self._options.files.cert, fault, extra={"notice": True})

    async def context(self) -> ssl.SSLContext:
        """Return the context of a new connection."""
        if self._context is None:
            if self._creating is None:  # concurrent connections share one
                self._creating = asyncio.ensure_future(asyncio.to_thread(self._create_test_context))
            try:
                await asyncio.shield(self._creating)
            finally:
                if self._creating is not None and self._creating.done():
                    self._creating = None
        assert self._context is not None
        return self._context

    async def key_pair(self) -> KeyPair:
        """Return certificate and key of new connections, for TLS that is not Python's.

        Raises:
            ConfigError: the key cannot be decrypted.
        """
        await self.context()
        pair, password = self._pair, self._options.files.key_password
        assert pair is not None
        if self.has_files and b"ENCRYPTED" in pair.key:
            try:
                return pair._replace(key=certificates.decrypted_key(pair.key, password))
            except ValueError as error:
                raise ConfigError("tls.server.keyPassword", None, f"does not decrypt the key ({error})") from None
        return pair

    async def reload_if_changed(self) -> None:
        """Read the files again if they differ from those in use and did not change since the last call."""
        versions = await asyncio.to_thread(self._versions)
        is_stable, self._seen = versions == self._seen, versions
        if not is_stable or versions == self._loaded:
            return
        self._loaded = versions  # a file that cannot be used is reported once
        try:
            await asyncio.to_thread(self._read, must_be_valid=True)
        except (OSError, ArianeError) as error:
            text = "Keeping the former certificate for new connections: %s"
            log.error(text, error, extra={"notice": True})
        else:
            assert self.validity is not None
            log.info(
                "New connections use the certificate %s, valid until %s", self._options.files.cert, self.validity.ends
            )
            if self.on_reloaded is not None:
                self.on_reloaded()

    async def reload(self) -> None:
        """Read the files again, at once. If they cannot be used, the former certificate stays in use, and the log says why."""
        if self.has_files:
            self._loaded = ()
            self._seen = await asyncio.to_thread(self._versions)
            await self.reload_if_changed()

    def days_left(self) -> float | None:
        """Return the days until the certificate expires, negative if it has; None without files."""
        return None if self.validity is None else self.validity.days_left(self._now())

    def _read(self, *, must_be_valid: bool = False) -> None:
        versions = self._versions()
        context, pair, validity = server_context(self._options)
        self._select_protocol(context)
        if must_be_valid and (fault := validity.fault(self._now())):
            raise ConfigError("tls.server.certPath", self._options.files.cert, f"{fault}; replace the file")
        self._context, self._pair, self.validity = context, pair, validity
        self._loaded = self._seen = versions

    def _versions(self) -> _Versions:
        files = self._options.files
        return tuple(map(_version, (files.cert, files.key, files.trust)))

    def _create_test_context(self) -> None:
        pair = certificates.self_signed(self._now())
        context = _new_context()
        with tempfile.NamedTemporaryFile() as file:  # readable by this user only; ssl reads files
            file.write(pair.certificate + pair.key)
            file.flush()
            context.load_cert_chain(file.name)
        self._select_protocol(context)
        log.info("Encrypted connections use a self-signed certificate (tls.test.mode.enable); clients cannot verify it")
        self._context, self._pair = context, pair

    def _select_protocol(self, context: ssl.SSLContext) -> None:
        if self._protocols:
            context.set_alpn_protocols(list(self._protocols))


_Versions = Sequence[tuple[int, int, int] | None]


@contextlib.asynccontextmanager
async def watched_tls(
    options: ServerTlsOptions | None, *, protocols: Sequence[str] = ()
) -> AsyncIterator[ServerTls | None]:
    """Yield the TLS of a server, with its files loaded and watched; None without options.

    Raises:
        ConfigError: a file cannot be used.
    """
    if options is None:
        yield None
        return
    tls, tasks = ServerTls(options, protocols=protocols), BackgroundTasks("TLS")
    tls.load()
    if tls.has_files:
        tasks.repeat(WATCH_INTERVAL_S, tls.reload_if_changed, "reload changed certificates")
    try:
        yield tls
    finally:
        await tasks.close()


def _version(path: str) -> tuple[int, int, int] | None:
    """Return what changes when a file is replaced; None if there is none."""
    try:
        status = Path(path).stat() if path else None
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino) if status is not None else None


def server_context(options: ServerTlsOptions) -> tuple[ssl.SSLContext, KeyPair, Validity]:
    """Return the context of a server with files, their contents, and the validity of the certificate.

    Raises:
        ConfigError: a file cannot be used, or the options contradict each other.
    """
    files = options.files
    if not files.cert:
        fix = "required unless tls.test.mode.enable = true: set the PEM file of the certificate, or tls.server.mode = disabled"
        raise ConfigError("tls.server.certPath", files.cert, fix)
    context = _new_context()
    pair = load_chain(context, files)
    try:
        validity = certificates.summarize(pair.certificate).validity
    except ValueError as error:
        raise ConfigError("tls.server.certPath", files.cert, f"is not a certificate: {error}") from None
    if options.verifies_clients and options.client_auth != "none":
        load_authorities(context, files, ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = ssl.CERT_REQUIRED if options.client_auth == "require" else ssl.CERT_OPTIONAL
    elif options.client_auth == "require":
        # Java accepts any certificate then, which proves nothing.
        fix = "needs tls.server.authClient = true, and the authorities of clients in tls.server.trustCertPath"
        raise ConfigError("tls.server.need.client.auth", options.client_auth, fix)
    return context, pair, validity


def client_context(files: CertificateFiles, *, verifies: bool) -> ssl.SSLContext:
    """Return the context of a server's own connections to others. Host names are not checked, as in Java."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE
    if verifies:
        load_authorities(context, files, ssl.Purpose.SERVER_AUTH)
    if files.cert:
        load_chain(context, files)
    return context


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # of TLS 1.2: a client could repeat the expensive part of the handshake
    return context


def load_authorities(context: ssl.SSLContext, files: CertificateFiles, purpose: ssl.Purpose) -> None:
    """Load the authorities that certificates of peers are verified with; those of this machine without a file."""
    if not files.trust:
        context.load_default_certs(purpose)
        return
    key = f"{files.prefix}.trustCertPath"
    _read_pem(key, files.trust)
    try:
        context.load_verify_locations(files.trust)
    except ssl.SSLError as error:
        raise ConfigError(key, files.trust, f"contains no certificate ({_reason(error)}); expected PEM") from None


def load_chain(context: ssl.SSLContext, files: CertificateFiles) -> KeyPair:
    """Load certificate and key, and return the contents of their files.

    Raises:
        ConfigError: names the file and the fix.
    """
    cert_key, key_key = f"{files.prefix}.certPath", f"{files.prefix}.keyPath"
    certificate = _read_pem(cert_key, files.cert)
    key_file = files.key or files.cert
    key = _read_pem(key_key, files.key) if files.key else certificate
    is_encrypted = b"ENCRYPTED" in key
    if is_encrypted and not files.key_password:
        raise ConfigError(f"{files.prefix}.keyPassword", None, f"required, because the key {key_file} is encrypted")
    try:
        # With a password, because ssl would prompt for one on the terminal.
        context.load_cert_chain(files.cert, files.key or None, password=lambda: files.key_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            fix = f"is not the key of {files.cert}; set the key that the certificate was issued for"
        elif is_encrypted:
            fix = f"is not decrypted by {files.prefix}.keyPassword ({_reason(error)}); correct the password"
        else:
            fix = (
                f"cannot be used with {files.cert} ({_reason(error)}); expected a certificate and its PKCS#8 key in PEM"
            )
        raise ConfigError(key_key, key_file, fix) from None
    return KeyPair(certificate, key)


def _read_pem(key: str, path: str) -> bytes:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            key, path, f"cannot be read ({error.strerror}); correct the path or the permissions"
        ) from None
    if b"-----BEGIN" not in data:
        command = TO_PEM.get(key.rpartition(".")[2], TO_PEM["certPath"])
        fix = f"expected PEM, and this is not (DER?); convert it: {command} -in {path} -out {path}.pem"
        raise ConfigError(key, path, fix)
    return data


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
