"""Settings of TLS: Java's system properties, as keys of a server's file. [TlsSystemConfig]"""

from __future__ import annotations

import ssl
from typing import Annotated, Literal

from msgspec import field

from ariane.net.listening.server_tls import CertificateFiles, ClientAuth, ServerTlsOptions, TlsMode, client_context
from ariane.settings.definitions import SYSTEM_PROPERTY, Concealed, DefaultText
from ariane.settings.limits import TrafficLimits
from ariane.settings.tls_properties import CONFIG_FILE, CONFIG_FILE_KEY

Switch = Literal["auto", "true", "false"]


class ServerTlsSettings(TrafficLimits, frozen=True, kw_only=True, rename="camel"):
    """TLS."""

    tls_server_mode: Annotated[TlsMode, SYSTEM_PROPERTY] = field(default="permissive", name="tls.server.mode")
    """Plain and encrypted connections on one port (`permissive`), encrypted ones only (`enforcing`), or plain ones only."""
    tls_config_file: Annotated[str, SYSTEM_PROPERTY] = field(default=CONFIG_FILE, name=CONFIG_FILE_KEY)
    """File with `tls.` keys, which replace those of this file and of the command line, except the mode and `tls.enable`."""
    tls_test_mode_enable: Annotated[Switch, SYSTEM_PROPERTY, DefaultText("`true` without certPath")] = field(
        default="auto", name="tls.test.mode.enable"
    )
    """Present a self-signed certificate, created at the first encrypted connection, and trust every server."""
    tls_server_need_client_auth: Annotated[ClientAuth, SYSTEM_PROPERTY] = field(
        default="none", name="tls.server.need.client.auth"
    )
    """Whether clients present a certificate."""
    tls_server_key_path: Annotated[str, SYSTEM_PROPERTY] = field(default="", name="tls.server.keyPath")
    """PEM file of the private key (PKCS#8). A change of this file, or of the next two, is in force at once."""
    tls_server_cert_path: Annotated[str, SYSTEM_PROPERTY] = field(default="", name="tls.server.certPath")
    """PEM file of the certificate and its chain."""
    tls_server_trust_cert_path: Annotated[str, SYSTEM_PROPERTY] = field(default="", name="tls.server.trustCertPath")
    """PEM file of the authorities of clients; empty: those of this machine."""
    tls_server_key_password: Annotated[str, SYSTEM_PROPERTY, Concealed()] = field(
        default="", name="tls.server.keyPassword"
    )
    """Password of the private key. No request or command prints it."""
    tls_server_auth_client: Annotated[bool, SYSTEM_PROPERTY] = field(default=False, name="tls.server.authClient")
    """Verify the certificates of clients."""

    def server_tls(self) -> ServerTlsOptions:
        """Return the TLS of the server's ports."""
        files = CertificateFiles(
            "tls.server",
            self.tls_server_cert_path,
            self.tls_server_key_path,
            self.tls_server_key_password,
            self.tls_server_trust_cert_path,
        )
        is_test = self.tls_test_mode_enable
        return ServerTlsOptions(
            mode=self.tls_server_mode,
            # Java presents the test certificate even if files are set, unless the test mode is switched off.
            is_test=not (files.cert or files.key) if is_test == "auto" else is_test == "true",
            files=files,
            client_auth=self.tls_server_need_client_auth,
            verifies_clients=self.tls_server_auth_client,
        )


class ClientTlsSettings(ServerTlsSettings, frozen=True, kw_only=True, rename="camel"):
    """TLS to other servers."""

    use_tls: bool = field(default=False, name="useTLS")
    """Encrypt the server's own connections: to name servers, to the master of a slave, or to the brokers of a proxy."""
    tls_enable: Annotated[Switch, SYSTEM_PROPERTY, DefaultText("`true` if tls.server.mode is enforcing")] = field(
        default="auto", name="tls.enable"
    )
    """The same."""
    tls_client_auth_server: Annotated[bool, SYSTEM_PROPERTY] = field(default=False, name="tls.client.authServer")
    """Verify the certificates of these servers, without their host names."""
    tls_client_trust_cert_path: Annotated[str, SYSTEM_PROPERTY] = field(default="", name="tls.client.trustCertPath")
    """PEM file of their authorities; empty: those of this machine."""
    tls_client_cert_path: Annotated[str, SYSTEM_PROPERTY] = field(default="", name="tls.client.certPath")
    """PEM file of the certificate that they are shown."""
    tls_client_key_path: Annotated[str, SYSTEM_PROPERTY] = field(default="", name="tls.client.keyPath")
    """PEM file of its private key (PKCS#8)."""
    tls_client_key_password: Annotated[str, SYSTEM_PROPERTY, Concealed()] = field(
        default="", name="tls.client.keyPassword"
    )
    """Password of that key. No request or command prints it."""

    @property
    def encrypts_requests(self) -> bool:
        """Whether the server's own connections are encrypted."""
        is_default = self.tls_enable == "auto" and self.tls_server_mode == "enforcing"
        return self.use_tls or self.tls_enable == "true" or is_default

    def client_tls(self) -> ssl.SSLContext | None:
        """Return the context of the server's own connections; None: they are plain.

        Raises:
            ConfigError: a file cannot be used.
        """
        return self.client_context() if self.encrypts_requests else None

    def client_context(self) -> ssl.SSLContext:
        """Return the context of connections that are encrypted in any case.

        Raises:
            ConfigError: a file cannot be used.
        """
        files = CertificateFiles(
            "tls.client",
            self.tls_client_cert_path,
            self.tls_client_key_path,
            self.tls_client_key_password,
            self.tls_client_trust_cert_path,
        )
        return client_context(files, verifies=self.tls_client_auth_server and self.tls_test_mode_enable != "true")
