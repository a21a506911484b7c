"""Every key of 4.9.4 is a setting, without effect for a reason, or refused: none is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from ariane.broker import config as broker_config
from ariane.broker import config_keys
from ariane.broker.dynamic_config import changed
from ariane.errors import ConfigError
from ariane.nameserver import config as nameserver_config
from ariane.protocol.setting_keys import Unsupported

FILE = Path(__file__).parent.parent / "data" / "config-keys-4.9.4.tsv"
MACHINE = "(machine)"
BROKER_CLASSES = {"BrokerConfig", "MessageStoreConfig", "NettyServerConfig", "NettyClientConfig"}
NAMESERVER_CLASSES = {"NamesrvConfig", "NettyServerConfig"}
SET_BY_STARTUP = {"listenPort"}  # the start-up classes replace NettyServerConfig's 8888


class Key(NamedTuple):
    java_class: str
    name: str
    kind: str
    default: str


def keys(classes: set[str]) -> list[Key]:
    rows = [Key(*line.split("\t")) for line in FILE.read_text().splitlines()]
    return [row for row in rows if row.java_class in classes]


def defaults(classes: set[str]) -> dict[str, str]:
    return {key.name: key.default for key in keys(classes) if key.default != MACHINE}


SERVERS = {
    "broker": (BROKER_CLASSES, broker_config, config_keys.WITHOUT_EFFECT, config_keys.UNSUPPORTED),
    "nameserver": (
        NAMESERVER_CLASSES,
        nameserver_config,
        nameserver_config.WITHOUT_EFFECT,
        nameserver_config.UNSUPPORTED,
    ),
}


def settings_of(server: str) -> dict[str, str]:
    if server == "broker":
        return broker_config.texts(broker_config.BrokerConfig())
    return nameserver_config.texts(nameserver_config.NameServerConfig())


@pytest.mark.parametrize("server", SERVERS)
def test_every_key_of_java_is_in_exactly_one_table(server: str) -> None:
    classes, _, without_effect, unsupported = SERVERS[server]
    settings = settings_of(server)
    for key in keys(classes):
        tables = [name for name, table in (("setting", settings), ("without effect", without_effect),
                  ("unsupported", unsupported)) if key.name in table]  # fmt: skip
        assert len(tables) == 1, (key.name, tables)


@pytest.mark.parametrize("server", SERVERS)
def test_settings_have_the_defaults_of_java(server: str) -> None:
    classes, _, _, _ = SERVERS[server]
    settings = settings_of(server)
    different = {
        key.name: (settings[key.name], key.default)
        for key in keys(classes)
        if key.name in settings and key.default not in (MACHINE, settings[key.name]) and key.name not in SET_BY_STARTUP
    }
    assert different == {}


@pytest.mark.parametrize("server", SERVERS)
def test_a_file_with_all_of_javas_defaults_is_accepted(server: str) -> None:
    classes, module, _, _ = SERVERS[server]
    properties = {key: text for key, text in defaults(classes).items() if text}
    _, remarks = module.parse(properties)
    assert not [remark for remark in remarks if "nknown" in remark]


def refused_values(table: Mapping[str, Unsupported]) -> list[tuple[str, str]]:
    return [(key, "true" if entry.java_default == "false" else "/somewhere") for key, entry in table.items()]


@pytest.mark.parametrize(("key", "value"), refused_values(config_keys.UNSUPPORTED))
def test_a_broker_refuses_what_would_change_what_it_stores_or_serves(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key) as caught:
        broker_config.parse({"brokerName": "b", "namesrvAddr": "", key: value})
    assert len(str(caught.value)) > len(key) + 40, "the message says what to do"
    with pytest.raises(ConfigError, match=key):
        changed(broker_config.BrokerConfig(), {key: value})


def test_dledger_is_refused_with_its_other_keys() -> None:
    properties = {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "g",
        "dLegerPeers": "n0-h:40911",
        "dLegerSelfId": "n0",
    }
    with pytest.raises(ConfigError, match="enableDLegerCommitLog"):
        broker_config.parse(properties)
    without = {**properties, "enableDLegerCommitLog": "false"}
    assert "enableDLegerCommitLog" in broker_config.parse(without)[1][0]


def test_an_address_server_is_only_needed_without_name_servers() -> None:
    key = "fetchNamesrvAddrByAddressServer"
    _, remarks = broker_config.parse({key: "true", "namesrvAddr": "h:9876"})
    assert remarks[0].startswith(f"{key} has no effect: namesrvAddr")


def test_a_name_server_refuses_cluster_test() -> None:
    with pytest.raises(ConfigError, match="clusterTest"):
        nameserver_config.parse({"clusterTest": "TRUE"})


@pytest.mark.parametrize("path", ["/a/commitlog,/b/commitlog", "/a/commitlog:/b/commitlog"])
def test_several_commit_log_directories_are_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="one directory"):
        broker_config.parse({"storePathCommitLog": path})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("storePathCommitlog", "storePathCommitLog"),
        ("storePathRotDir", "storePathRootDir"),
        ("enableDLedgerCommitLog", "enableDLegerCommitLog"),
        ("flushDisktype", "flushDiskType"),
    ],
)
def test_a_typing_error_is_reported_with_the_key_that_was_meant(key: str, meant: str) -> None:
    _, remarks = broker_config.parse({"brokerName": "b", key: "x"})
    assert remarks == [f"Unknown key '{key}' has no effect. Did you mean '{meant}'?"]
    with pytest.raises(ConfigError, match=f"Did you mean '{meant}'"):
        changed(broker_config.BrokerConfig(), {key: "x"})


def test_a_key_that_resembles_none_is_reported_without_a_guess() -> None:
    assert nameserver_config.parse({"zzz": "1"})[1] == ["Unknown key 'zzz' has no effect."]


def test_keys_without_effect_are_grouped_by_reason() -> None:
    _, remarks = broker_config.parse({"sendMessageThreadPoolNums": "4", "pullMessageThreadPoolNums": "8"})
    assert len(remarks) == 1
    assert remarks[0].startswith("sendMessageThreadPoolNums, pullMessageThreadPoolNums have no effect: ")


def test_options_of_the_command_line_come_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=b\nlistenPort=1\nfetchNamesrvAddrByAddressServer=true\n")
    config, _ = broker_config.load(path, {"listenPort": "2", "namesrvAddr": "h:9876"})
    assert (config.listen_port, config.namesrv_addr) == (2, "h:9876")
    with pytest.raises(ConfigError, match="listenPort"):
        broker_config.load(path, {"listenPort": "70000", "namesrvAddr": "h:9876"})


@pytest.mark.parametrize("module", [broker_config, nameserver_config])
def test_a_file_that_is_not_utf_8_is_refused(module: object, tmp_path: Path) -> None:
    path = tmp_path / "server.conf"
    path.write_bytes(b"brokerName=\xff\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        module.load(path)  # type: ignore[attr-defined]
