"""Settings of TLS: where they come from, what they mean, and what is reported about files."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ariane.broker.config.broker_config import BROKER_SETTINGS, BrokerConfig
from ariane.cli.main import app
from ariane.errors import ConfigError
from ariane.nameserver.config import NAME_SERVER_SETTINGS
from ariane.net.listening.server_tls import CertificateFiles, ServerTlsOptions, client_context, server_context
from ariane.settings.tls_properties import with_tls_file
from tls_files import TestAuthority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("authority"))


def broker(**properties: str) -> BrokerConfig:
    return BROKER_SETTINGS.parse({"brokerName": "b", **properties})[0]


def test_the_defaults_are_those_of_java() -> None:
    options = BrokerConfig().server_tls()
    assert (options.mode, options.is_test, options.client_auth) == ("permissive", True, "none")
    assert BrokerConfig().client_tls() is None


def test_the_test_certificate_is_for_servers_without_files() -> None:
    def is_test(**properties: str) -> bool:
        return broker(**properties).server_tls().is_test

    assert not is_test(**{"tls.server.certPath": "c"})
    assert not is_test(**{"tls.server.keyPath": "k"})
    assert not is_test(**{"tls.test.mode.enable": "false"})
    assert is_test(**{"tls.server.certPath": "c", "tls.test.mode.enable": "true"})


def test_a_typing_error_in_the_mode_does_not_open_the_port() -> None:
    with pytest.raises(ConfigError, match="tls.server.mode = 'enforced': expected disabled or permissive or enforcing"):
        broker(**{"tls.server.mode": "enforced"})


@pytest.mark.parametrize(
    ("properties", "is_encrypted"),
    [
        ({}, False),
        ({"useTLS": "true"}, True),
        ({"tls.enable": "true"}, True),
        ({"tls.server.mode": "enforcing"}, True),
        ({"tls.server.mode": "enforcing", "tls.enable": "false"}, False),
    ],
)
def test_a_brokers_own_connections(properties: dict[str, str], is_encrypted: bool) -> None:
    assert (broker(**properties).client_tls() is not None) == is_encrypted


def test_the_file_replaces_all_keys_but_the_switches(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(
        "tls.server.mode = disabled\ntls.enable=true\ntls.server.certPath = /c.pem\ntls.server.keyPath: /k.pem\n"
    )
    given = {"tls.config.file": str(file), "tls.server.mode": "enforcing", "tls.server.certPath": "/other.pem"}
    merged = with_tls_file(given)
    assert merged["tls.server.mode"] == "enforcing" and "tls.enable" not in merged
    assert (merged["tls.server.certPath"], merged["tls.server.keyPath"]) == ("/c.pem", "/k.pem")
    assert with_tls_file({"tls.config.file": str(tmp_path / "none")}) == {"tls.config.file": str(tmp_path / "none")}
    with pytest.raises(ConfigError, match="tls.config.file.*cannot read the file"):
        with_tls_file({"tls.config.file": str(tmp_path)})


def test_a_password_is_never_shown_and_survives_changes() -> None:
    config = broker(**{"tls.server.keyPassword": "planted", "tls.client.keyPassword": "planted"})
    assert "planted" not in str(BROKER_SETTINGS.texts(config))
    changed, texts = BROKER_SETTINGS.change(config, {"traceOn": "false"})
    assert changed.tls_server_key_password == changed.tls_client_key_password == "planted"
    assert texts == {"traceOn": "false"}
    with pytest.raises(ConfigError, match="cannot be changed while the broker runs"):
        BROKER_SETTINGS.change(config, {"tls.server.keyPassword": "other"})


def test_a_name_server_has_no_own_connections() -> None:
    _, remarks = NAME_SERVER_SETTINGS.parse({"tls.enable": "true", "tls.client.trustCertPath": "x"})
    assert remarks == ["tls.enable, tls.client.trustCertPath have no effect: the name server opens no connections"]


def test_the_command_line_has_javas_system_properties(tmp_path: Path) -> None:
    arguments = ["namesrv", "-Dtls.server.mode=enforcing", "-D", "tls.config.file=none", "-p"]
    result = CliRunner().invoke(app, arguments)
    assert "tls.server.mode=enforcing\n" in result.stdout and "keyPassword" not in result.stdout
    wrong = CliRunner().invoke(app, ["broker", "-D", "tls.server.mode"])
    assert wrong.exit_code == 2 or isinstance(wrong.exception, ConfigError)


# --- files ---


def convert(source: str, target: Path, *arguments: str) -> str:
    subprocess.run(["openssl", *arguments, "-in", source, "-out", str(target)], check=True, capture_output=True)
    return str(target)


def server(files: CertificateFiles, **more: object) -> ServerTlsOptions:
    return ServerTlsOptions(is_test=False, files=files, **more)  # type: ignore[arg-type]


def test_keys_with_a_password(authority: TestAuthority, tmp_path: Path) -> None:
    files = authority.files("encrypted")
    encrypted = convert(files.key, tmp_path / "k", "pkcs8", "-topk8", "-v2", "aes-256-cbc", "-passout", "pass:secret")
    server_context(server(files._replace(key=encrypted, key_password="secret")))
    with pytest.raises(
        ConfigError, match=f"tls.server.keyPassword: required, because the key {encrypted} is encrypted"
    ):
        server_context(server(files._replace(key=encrypted)))
    with pytest.raises(ConfigError, match="is not decrypted by tls.server.keyPassword") as caught:
        server_context(server(files._replace(key=encrypted, key_password="wrong")))
    assert "wrong" not in str(caught.value)


def test_binary_files_are_refused_with_the_command_that_converts_them(authority: TestAuthority, tmp_path: Path) -> None:
    files = authority.files("binary")
    key = convert(files.key, tmp_path / "key.der", "pkcs8", "-topk8", "-nocrypt", "-outform", "DER")
    cert = convert(files.cert, tmp_path / "cert.der", "x509", "-outform", "DER")
    with pytest.raises(
        ConfigError, match="tls.server.keyPath.*openssl pkcs8 -inform DER -nocrypt -topk8 -in"
    ) as caught:
        server_context(server(files._replace(key=key)))
    command = str(caught.value).rpartition("convert it: ")[2]
    subprocess.run(command.split(), check=True, capture_output=True)
    server_context(server(files._replace(key=f"{key}.pem")))
    with pytest.raises(ConfigError, match="tls.server.certPath.*openssl x509 -inform DER -in"):
        server_context(server(files._replace(cert=cert)))


def test_files_that_do_not_fit_are_named(authority: TestAuthority, tmp_path: Path) -> None:
    files, other = authority.files("one"), authority.files("other")
    with pytest.raises(ConfigError, match="tls.server.keyPath = '.*other.key': is not the key of .*one.pem"):
        server_context(server(files._replace(key=other.key)))
    with pytest.raises(ConfigError, match="tls.server.certPath = '/none': cannot be read \\(No such file"):
        server_context(server(files._replace(cert="/none")))
    with pytest.raises(ConfigError, match="tls.server.certPath = '': required unless tls.test.mode.enable = true"):
        server_context(server(CertificateFiles("tls.server", key=files.key)))
    with pytest.raises(ConfigError, match="tls.server.need.client.auth = 'require': needs tls.server.authClient"):
        server_context(server(files, client_auth="require"))
    empty = tmp_path / "empty.pem"
    empty.write_text("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    with pytest.raises(ConfigError, match="tls.server.trustCertPath"):
        server_context(server(files._replace(trust=str(empty)), client_auth="require", verifies_clients=True))
    with pytest.raises(ConfigError, match="tls.client.keyPath = '.*other.key': is not the key"):
        client_context(files._replace(prefix="tls.client", key=other.key), verifies=True)


def test_tls_1_2_is_the_oldest_version(authority: TestAuthority) -> None:
    context, _, _ = server_context(server(authority.files("versions")))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION


def test_encrypted_replication_needs_a_certificate() -> None:
    with pytest.raises(ConfigError, match="haTls = 'true': needs tls.server.mode = permissive or enforcing"):
        broker(**{"haTls": "true", "tls.server.mode": "disabled"})


@pytest.mark.parametrize(
    ("keys", "is_encrypted"),
    [
        ({}, False),
        ({"tls.enable": "true"}, True),
        ({"tls.server.mode": "enforcing"}, True),
        ({"tls.server.mode": "enforcing", "haTls": "false"}, False),
        ({"tls.server.mode": "enforcing", "tls.enable": "false"}, False),
        ({"tls.enable": "false", "haTls": "true"}, True),
    ],
)
def test_a_slave_encrypts_replication_as_its_requests_unless_it_is_set(
    keys: dict[str, str], is_encrypted: bool
) -> None:
    assert (broker(**keys).replication_context() is not None) is is_encrypted
