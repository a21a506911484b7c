"""Which servers start although other machines reach them, what the refusals say, and where the open ones listen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ariane.access import public_ports
from ariane.access.public_ports import Gap
from ariane.broker.config.broker_config import BROKER_SETTINGS, BrokerConfig
from ariane.broker.lifecycle.ports import check_gaps, find_gaps
from ariane.cli.options import shared_options
from ariane.cli.options.metrics_options import MetricsOptions
from ariane.cli.servers.process.public_http import ANYONE, OWN_METRICS, http_port, metrics_port
from ariane.errors import ConfigError
from ariane.nameserver.config import NameServerConfig
from ariane.net import interfaces
from ariane.net.listening.server_tls import ServerTlsOptions

PUBLIC = {"bind_address": "0.0.0.0"}
FILES = {"tls_server_cert_path": "c.pem", "tls_server_key_path": "c.key"}
ACL = {"acl_enable": True, "rocketmq_home": "home"}
ENFORCING = {"tls_server_mode": "enforcing", **FILES}
CERTIFIED = {
    "tls_server_need_client_auth": "require", "tls_server_auth_client": True, "tls_server_trust_cert_path": "ca.pem",
}  # fmt: skip
REPLICATION = {"ha_tls": "true", "ha_acl_enable": True}
SAFE = {**PUBLIC, **ACL, **ENFORCING, **REPLICATION}


def gaps(**settings: Any) -> dict[str, bool]:
    """Return the gaps of a broker: their names, and whether they stop its start."""
    return {gap.name: gap.is_refused for gap in find_gaps(BrokerConfig(**settings).validate())}


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({}, []),
        ({"broker_ip1": "127.0.0.1"}, []),
        ({"bind_address": "localhost"}, []),
        (PUBLIC, ["access", "encryption", "replication"]),
        ({"bind_address": "10.1.2.3"}, ["access", "encryption", "replication"]),
        ({"bind_address": "::"}, ["access", "encryption", "replication"]),
        ({"broker_ip1": "10.1.2.3"}, ["access", "encryption", "replication"]),
        ({**PUBLIC, **ACL}, ["encryption", "replication"]),
        ({**PUBLIC, **ACL, **FILES}, ["replication"]),
        ({**PUBLIC, **ACL, **FILES, **REPLICATION}, []),
        ({**PUBLIC, **ACL, **FILES, "tls_test_mode_enable": "true"}, ["encryption", "replication"]),
        ({**PUBLIC, **ACL, "tls_server_mode": "enforcing", **REPLICATION}, []),
        ({**PUBLIC, **ACL, **FILES, "tls_server_mode": "disabled"}, ["encryption", "replication"]),
        ({**PUBLIC, **ACL, **ENFORCING, "ha_acl_enable": True}, ["replication"]),
        ({**PUBLIC, **ACL, **ENFORCING, "ha_tls": "true"}, ["replication"]),
        ({**PUBLIC, **ENFORCING}, ["access", "replication"]),
        ({**PUBLIC, **ENFORCING, **CERTIFIED, "ha_tls": "true"}, []),
        ({**PUBLIC, **FILES, **CERTIFIED, "ha_tls": "true"}, ["access"]),
        ({**PUBLIC, **ENFORCING, **CERTIFIED, "tls_server_trust_cert_path": ""}, ["access", "replication"]),
        (SAFE, []),
    ],
)
def test_public_ports_need_access_control_and_encryption(settings: dict[str, Any], refused: list[str]) -> None:
    assert [name for name, is_refused in gaps(**settings).items() if is_refused] == refused


@pytest.mark.parametrize(
    ("settings", "warnings"),
    [
        ({**PUBLIC, **ACL, **FILES, **REPLICATION}, ["plain connections"]),
        ({**PUBLIC, **ACL, "tls_server_mode": "enforcing", **REPLICATION}, ["certificate"]),
        (SAFE, []),
        ({**SAFE, "metrics_port": 9464}, ["metrics"]),
        ({**SAFE, **CERTIFIED, "metrics_port": 9464}, []),
    ],
)
def test_what_remains_open_is_a_warning(settings: dict[str, Any], warnings: list[str]) -> None:
    assert gaps(**settings) == dict.fromkeys(warnings, False)


def test_a_refusal_names_what_is_missing_and_the_fixes_in_80_columns() -> None:
    config = BrokerConfig(**PUBLIC).validate()
    found = find_gaps(config)
    with pytest.raises(ConfigError) as caught:
        check_gaps(config, found)
    lines = f"Error: {caught.value}".splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(lines)
    for word in ("'0.0.0.0'", "aclEnable=true", "tls.server.mode=enforcing", "bindAddress=127.0.0.1", "insecure=true"):
        assert word in text
    insecure = BrokerConfig(**PUBLIC, insecure=True).validate()
    check_gaps(insecure, found)


def test_a_name_server_needs_access_control_and_encryption() -> None:
    access = Gap("access", "problem", "fix")
    assert public_ports.find_gaps("127.0.0.1", None, has_accounts=False, access=access) == ()
    tls = NameServerConfig(bind_address="10.1.2.3").server_tls()
    assert [gap.name for gap in public_ports.find_gaps("10.1.2.3", tls, has_accounts=False, access=access)] == [
        "access",
        "encryption",
    ]


@pytest.mark.parametrize(
    ("text", "options", "defaults", "address"),
    [
        ("", {}, {}, "127.0.0.1"),
        ("brokerIP1=10.1.2.3\n", {}, {}, "0.0.0.0"),
        ("brokerIP1=127.0.0.1\n", {}, {}, "127.0.0.1"),
        ("brokerIP1=10.1.2.3\nbindAddress=127.0.0.1\n", {}, {}, "127.0.0.1"),
        ("bindAddress=\n", {}, {}, "127.0.0.1"),
        ("", {}, {"bindAddress": "0.0.0.0"}, "0.0.0.0"),
        ("bindAddress=10.1.2.3\n", {}, {"bindAddress": "0.0.0.0"}, "10.1.2.3"),
    ],
)
def test_servers_listen_on_loopback_unless_an_address_is_configured(
    text: str, options: dict[str, str], defaults: dict[str, str], address: str, tmp_path: Path
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(text)
    config, _ = BROKER_SETTINGS.load(file, options, defaults)
    assert config.bind_address == address


@pytest.mark.parametrize(
    ("bound", "registered"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("10.1.2.3", "10.1.2.3"), ("0.0.0.0", "10.9.9.9")],
)
def test_a_broker_registers_the_address_at_which_it_listens(
    bound: str, registered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interfaces, "local_ip", lambda: "10.9.9.9")
    assert interfaces.reachable_ip(bound) == registered


ACCESS = {"exporter": ANYONE, "collector": OWN_METRICS, "pipeline": OWN_METRICS}
CERTIFICATE = ServerTlsOptions(mode="enforcing", is_test=False)


@pytest.mark.parametrize(
    ("server", "tls", "is_refused"),
    [
        ("console", None, True),
        ("console", CERTIFICATE, False),
        ("exporter", CERTIFICATE, True),
        ("exporter", None, True),
        ("collector", None, True),
        ("pipeline", None, True),
    ],
)
def test_public_http_servers_need_certificates(
    server: str,
    tls: ServerTlsOptions | None,
    is_refused: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_options, "http_tls_options", lambda definitions: tls)

    def check(address: str, *, insecure: bool = False) -> None:
        http_port(server, address, 0, None, insecure=insecure, access=ACCESS.get(server))

    check("127.0.0.1")
    if is_refused:
        with pytest.raises(ConfigError, match="bind = '0.0.0.0': other machines reach") as caught:
            check("0.0.0.0")
        assert max(map(len, f"Error: {caught.value}".splitlines())) <= 80
        check("0.0.0.0", insecure=True)
        assert capsys.readouterr().err.startswith(f"The {server} is open to other machines: ")
    else:
        check("0.0.0.0")
        assert capsys.readouterr().err == ""


def test_metrics_of_a_program_are_served_encrypted_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["tls.server.certPath=c.pem", "tls.server.keyPath=c.key"]
    port = metrics_port("collector", MetricsOptions(metrics_port=9464, bind="0.0.0.0", definitions=keys))
    assert port and port.tls and (port.tls.mode, [gap.name for gap in port.gaps]) == ("enforcing", ["metrics"])
    assert capsys.readouterr().err == "The collector is open to other machines: anyone can read the metrics\n"
    keys += ["tls.server.need.client.auth=require", "tls.server.authClient=true", "tls.server.trustCertPath=ca.pem"]
    port = metrics_port("collector", MetricsOptions(metrics_port=9464, bind="0.0.0.0", definitions=keys))
    assert port and port.gaps == ()
    assert metrics_port("collector", MetricsOptions()) is None
