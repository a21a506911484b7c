"""Every configuration key of 4.9.4 is supported, without effect for a stated reason, or rejected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from ariane.broker.config import config_keys
from ariane.broker.config.broker_config import BROKER_SETTINGS, BrokerConfig
from ariane.errors import ConfigError
from ariane.nameserver.config import NAME_SERVER_SETTINGS, NameServerConfig
from ariane.settings.schema import SettingsSchema
from ariane.settings.unknown_keys import Unsupported

FILE = Path(__file__).parent.parent / "data" / "config-keys-4.9.4.tsv"
MACHINE = "(machine)"
BROKER_CLASSES = {"BrokerConfig", "MessageStoreConfig", "NettyServerConfig", "NettyClientConfig"}
NAMESERVER_CLASSES = {"NamesrvConfig", "NettyServerConfig"}
SET_BY_STARTUP = {"listenPort"}  # the start-up classes replace NettyServerConfig's 8888
RAISED = {"maxTransferCountOnMessageInMemory"}  # only for pulls that request more than Java's 32


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


SERVERS: dict[str, tuple[set[str], SettingsSchema]] = {
    "broker": (BROKER_CLASSES, BROKER_SETTINGS),
    "nameserver": (NAMESERVER_CLASSES, NAME_SERVER_SETTINGS),
}


def default_texts(server: str) -> dict[str, str]:
    if server == "broker":
        return BROKER_SETTINGS.texts(BrokerConfig())
    return NAME_SERVER_SETTINGS.texts(NameServerConfig())


@pytest.mark.parametrize("server", SERVERS)
def test_every_key_of_java_is_in_exactly_one_table(server: str) -> None:
    classes, schema = SERVERS[server]
    for key in keys(classes):
        tables = [name for name, table in (("setting", schema.settings), ("without effect", schema.without_effect),
                  ("unsupported", schema.unsupported)) if key.name in table]  # fmt: skip
        assert len(tables) == 1, (key.name, tables)


@pytest.mark.parametrize("server", SERVERS)
def test_settings_have_the_defaults_of_java(server: str) -> None:
    classes, _ = SERVERS[server]
    settings = default_texts(server)
    different = {
        key.name: (settings[key.name], key.default)
        for key in keys(classes)
        if key.name in settings
        and key.default not in (MACHINE, settings[key.name])
        and key.name not in SET_BY_STARTUP | RAISED
    }
    assert different == {}


@pytest.mark.parametrize("server", SERVERS)
def test_a_file_with_all_of_javas_defaults_is_accepted(server: str) -> None:
    classes, schema = SERVERS[server]
    properties = {key: text for key, text in defaults(classes).items() if text}
    _, remarks = schema.parse(properties)
    assert not [remark for remark in remarks if "nknown" in remark]


def refused_values(table: Mapping[str, Unsupported]) -> list[tuple[str, str]]:
    return [(key, "true" if entry.java_default == "false" else "/somewhere") for key, entry in table.items()]


@pytest.mark.parametrize(("key", "value"), refused_values(config_keys.UNSUPPORTED))
def test_a_broker_rejects_unsupported_values(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key) as caught:
        BROKER_SETTINGS.parse({"brokerName": "b", "namesrvAddr": "", key: value})
    assert len(str(caught.value)) > len(key) + 40, "the message says what to do"
    with pytest.raises(ConfigError, match=key):
        BROKER_SETTINGS.change(BrokerConfig(), {key: value})


def test_dledger_is_rejected_and_its_other_keys_have_no_effect() -> None:
    properties = {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "g",
        "dLegerPeers": "n0-h:40911",
        "dLegerSelfId": "n0",
    }
    with pytest.raises(ConfigError, match="enableDLegerCommitLog"):
        BROKER_SETTINGS.parse(properties)
    without = {**properties, "enableDLegerCommitLog": "false"}
    assert "enableDLegerCommitLog" in BROKER_SETTINGS.parse(without)[1][0]


def test_the_address_server_is_ignored_if_name_servers_are_set() -> None:
    key = "fetchNamesrvAddrByAddressServer"
    _, remarks = BROKER_SETTINGS.parse({key: "true", "namesrvAddr": "h:9876"})
    assert remarks[0].startswith(f"{key} has no effect: namesrvAddr")


def test_a_name_server_rejects_cluster_test() -> None:
    with pytest.raises(ConfigError, match="clusterTest"):
        NAME_SERVER_SETTINGS.parse({"clusterTest": "TRUE"})


@pytest.mark.parametrize("path", ["/a/commitlog,/b/commitlog", "/a/commitlog:/b/commitlog"])
def test_several_commit_log_directories_are_rejected(path: str) -> None:
    with pytest.raises(ConfigError, match="one directory"):
        BROKER_SETTINGS.parse({"storePathCommitLog": path})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("storePathCommitlog", "storePathCommitLog"),
        ("storePathRotDir", "storePathRootDir"),
        ("enableDLedgerCommitLog", "enableDLegerCommitLog"),
        ("flushDisktype", "flushDiskType"),
    ],
)
def test_a_typing_error_is_reported_with_the_most_similar_key(key: str, meant: str) -> None:
    _, remarks = BROKER_SETTINGS.parse({"brokerName": "b", key: "x"})
    assert remarks == [f"Unknown key '{key}' has no effect. Did you mean '{meant}'?"]
    with pytest.raises(ConfigError, match=f"Did you mean '{meant}'"):
        BROKER_SETTINGS.change(BrokerConfig(), {key: "x"})


def test_a_key_unlike_all_others_is_reported_without_a_suggestion() -> None:
    assert NAME_SERVER_SETTINGS.parse({"zzz": "1"})[1] == ["Unknown key 'zzz' has no effect."]


def test_keys_without_effect_are_grouped_by_reason() -> None:
    _, remarks = BROKER_SETTINGS.parse({"sendMessageThreadPoolNums": "4", "pullMessageThreadPoolNums": "8"})
    assert len(remarks) == 1
    assert remarks[0].startswith("sendMessageThreadPoolNums, pullMessageThreadPoolNums have no effect: ")


def test_command_line_options_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=b\nlistenPort=1\nfetchNamesrvAddrByAddressServer=true\n")
    config, _ = BROKER_SETTINGS.load(path, {"listenPort": "2", "namesrvAddr": "h:9876"})
    assert (config.listen_port, config.namesrv_addr) == (2, "h:9876")
    with pytest.raises(ConfigError, match="listenPort"):
        BROKER_SETTINGS.load(path, {"listenPort": "70000", "namesrvAddr": "h:9876"})


@pytest.mark.parametrize("server", SERVERS)
def test_a_file_that_is_not_utf_8_is_rejected(server: str, tmp_path: Path) -> None:
    path = tmp_path / "server.conf"
    path.write_bytes(b"brokerName=\xff\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        SERVERS[server][1].load(path)
