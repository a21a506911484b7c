"""A Java store with its commit log outside the root, opened with Java's own broker.conf and returned without loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from interop_servers import produce, pull_all

from ariane.broker.config import broker_config
from ariane.broker.config.broker_config import BrokerConfig
from ariane.errors import StoreError
from ariane.testing import LocalCluster, java

COUNT = 40
JAVA_SMALL = {"mappedFileSizeCommitLog": str(1 << 16), "mappedFileSizeConsumeQueue": "2000"}


def identities(messages: list[dict[str, Any]]) -> set[tuple[object, ...]]:
    return {(message["msgId"], message["queueId"], message["queueOffset"], message["key"]) for message in messages}


def by_java(home: Path) -> tuple[set[tuple[object, ...]], set[tuple[object, ...]]]:
    """Return the messages that a Java broker reads before and after it receives COUNT messages."""
    properties = {**JAVA_SMALL, "storePathCommitLog": str(home / "fast" / "log")}
    with java.name_server(home / "ns") as names, java.broker(home, names.addr, properties=properties):
        before = identities(pull_all(names.addr, "T")) if (home / "sent").exists() else set()
        produce(names.addr, COUNT, "size=3000", "keys=java")
        (home / "sent").touch()
        return before, identities(pull_all(names.addr, "T"))


def own_settings(home: Path) -> dict[str, Any]:
    """Return the settings of the Java broker's broker.conf, by field of BrokerConfig."""
    config, remarks = broker_config.BROKER_SETTINGS.load(home / "conf" / "server.conf")
    assert not [remark for remark in remarks if "nknown" in remark]
    return {
        field.name: getattr(config, field.name)
        for field in msgspec.structs.fields(BrokerConfig)
        if field.name not in ("listen_port", "namesrv_addr", "store_path_root_dir")
    }


@pytest.mark.long("tests/interop/test_store_directory.py::test_a_store_opened_by_java_then_ours_then_java")
def test_an_external_log_opened_by_java_then_ours_then_java(tmp_path: Path) -> None:
    _, first = by_java(tmp_path)
    assert len(first) == COUNT
    with LocalCluster(tmp_path, **own_settings(tmp_path)) as servers:
        namesrv = servers.namesrv
        assert identities(pull_all(namesrv, "T")) == first
        produce(namesrv, COUNT, "size=3000", "keys=ours")
        second = identities(pull_all(namesrv, "T"))
    assert len(second) == 2 * COUNT
    assert not any((tmp_path / "store" / "commitlog").glob("*"))
    before, third = by_java(tmp_path)
    assert before == second
    assert len(third) == 3 * COUNT


@pytest.mark.long("tests/unit/test_store_start.py::test_a_missing_log_prevents_the_start_and_changes_no_queue")
def test_a_start_without_the_log_leaves_the_store_unchanged(tmp_path: Path) -> None:
    _, first = by_java(tmp_path)
    without = {**own_settings(tmp_path), "store_path_commit_log": ""}
    with pytest.raises(StoreError, match="--accept-empty-log"), LocalCluster(tmp_path, **without):
        pass
    before, _ = by_java(tmp_path)
    assert before == first
