"""A server reachable from the network without access control logs one warning at its start."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from ariane.broker import broker as broker_module
from ariane.broker.broker import Broker
from ariane.nameserver import server as name_server_module
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.testing.cluster_servers import broker_config


def notices(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if getattr(record, "notice", False)]


async def started(path: Path, **settings: object) -> None:
    names = NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(path / "kvConfig.json"))
    async with NameServer(names):
        pass
    async with Broker(broker_config(path / "store", "", **settings)):
        pass


def test_servers_on_loopback_log_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        asyncio.run(started(tmp_path))
    assert notices(caplog) == []


def test_servers_open_to_the_network_log_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "is_loopback", lambda address: False)
    monkeypatch.setattr(name_server_module, "is_loopback", lambda address: False)
    with caplog.at_level(logging.WARNING):
        asyncio.run(started(tmp_path))
    name_server, broker = notices(caplog)
    assert "delete topics" in name_server and "namesrv.conf" in name_server
    assert "delete topics" in broker and "aclEnable=true" in broker
    assert "\n" not in name_server + broker


def test_access_control_does_not_cover_the_replication_port(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "is_loopback", lambda address: False)
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "plain_acl.yml").write_text("accounts:\n- accessKey: rocketmq2\n  secretKey: 12345678\n  admin: true\n")
    with caplog.at_level(logging.WARNING):
        asyncio.run(started(tmp_path, acl_enable=True, rocketmq_home=str(tmp_path)))
    (broker,) = notices(caplog)
    assert broker.startswith("Replication port") and "read all messages" in broker
