"""Encrypted connections of clients: what is verified, and what is reported."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from ariane.client.instance.settings import ClientSettings
from ariane.errors import ConfigError, ConnectionLost
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.tls import tls_context
from ariane.protocol import command as commands
from ariane.protocol.command import RESPONSE
from ariane.protocol.frame import FrameReader


@asynccontextmanager
async def echo_server(certificate: tuple[Path, Path], client_authority: Path | None = None) -> AsyncIterator[str]:
    """Run an encrypted server that responds to each request with its body."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    if client_authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_authority)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        try:
            while data := await reader.read(65536):
                for frame in frames.feed(data):
                    request = commands.decode(frame)
                    response = commands.encode(0, opaque=request.opaque, flag=RESPONSE, body=bytes(request.body))
                    writer.writelines(response)
        except ConnectionError:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def ask(settings: ClientSettings, certificate: tuple[Path, Path], authority: Path | None = None) -> bytes:
    async def play() -> bytes:
        async with echo_server(certificate, authority) as addr, ConnectionPool(tls=tls_context(settings)) as pool:
            return bytes((await pool.request(addr, 105, body=b"x" * 300_000, timeout_ms=20_000)).body)

    return asyncio.run(play())


def test_a_trusted_server_is_asked(certificate: tuple[Path, Path]) -> None:
    for verify in ("true", "ca"):
        settings = ClientSettings(use_tls=True, tls_verify=verify, tls_ca_file=str(certificate[0]))  # type: ignore[arg-type]
        assert len(ask(settings, certificate)) == 300_000
    assert len(ask(ClientSettings(use_tls=True, tls_verify="false"), certificate)) == 300_000


def test_a_client_certificate_is_shown(certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    known = ClientSettings(use_tls=True, tls_ca_file=cert, tls_cert_file=cert, tls_key_file=key)
    assert len(ask(known, certificate, certificate[0])) == 300_000
    with pytest.raises(ConnectionLost):
        ask(ClientSettings(use_tls=True, tls_ca_file=cert), certificate, certificate[0])


def test_the_key_of_a_client_certificate_may_have_a_password(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert = certificate[0]
    encrypted, password = tmp_path / "encrypted.pem", tmp_path / "password"
    private = serialization.load_pem_private_key(certificate[1].read_bytes(), None)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    encrypted.write_bytes(private.private_bytes(pem, pkcs8, serialization.BestAvailableEncryption(b"open sesame")))

    def shown(text: str | None) -> bytes:
        if text is not None:
            password.write_text(text)
        files = {"tls_ca_file": cert, "tls_cert_file": cert, "tls_key_file": encrypted}
        if text is not None:
            files["tls_key_password_file"] = password
        return ask(ClientSettings(use_tls=True, **files), certificate, certificate[0])  # type: ignore[arg-type]

    assert len(shown("open sesame\n")) == 300_000
    for wrong in ("open", None):
        with pytest.raises(ConfigError, match="tls_cert_file = .*whose password is in tls_key_password_file") as error:
            shown(wrong)
        assert "sesame" not in str(error.value)
    password.write_bytes(b"\xff")
    bad = ClientSettings(use_tls=True, tls_verify="false", tls_cert_file=cert, tls_key_password_file=password)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tls_key_password_file = .*expected a text file") as error:
        tls_context(bad)
    assert "0xff" not in str(error.value)
    with pytest.raises(ConfigError, match="tls_cert_file = .*longer than 1024 bytes"):
        shown("x" * 2000)
    password.unlink()
    missing = ClientSettings(use_tls=True, tls_cert_file=cert, tls_key_password_file=str(password))  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match="tls_key_password_file = .*expected a text file with the password of the key"
    ):
        tls_context(missing)


def test_an_untrusted_server_is_reported_with_what_to_check(certificate: tuple[Path, Path]) -> None:
    said = "TLS: .*certificate verify failed.*check use_tls, tls_ca_file and tls_verify"
    with pytest.raises(ConnectionLost, match=said):
        ask(ClientSettings(use_tls=True), certificate)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tls_ca_file": "x"}, "tls_ca_file = 'x': has no effect without use_tls:"),
        ({"tls_verify": "ca"}, "tls_verify = 'ca': has no effect without use_tls"),
        ({"use_tls": True, "tls_verify": "no"}, "expected 'true', 'ca' or 'false'"),
        ({"use_tls": True, "tls_key_file": "x"}, "has no effect without tls_cert_file"),
        ({"use_tls": True, "tls_key_password_file": "x"}, "has no effect without tls_cert_file"),
        ({"use_tls": True, "tls_verify": "false", "tls_ca_file": "x"}, "has no effect with tls_verify = false"),
        ({"use_tls": "yes"}, "expected bool"),
        (
            {"use_tls": True, "tls_ca_file": "/nowhere.pem"},
            "tls_ca_file = '/nowhere.pem': cannot be used on this machine",
        ),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tls_context(ClientSettings(**options))  # type: ignore[arg-type]
