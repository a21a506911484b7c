"""mqadmin 4.9.4 manages our broker, and Java clients with accounts work with it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from interop_servers import consume, produce

from ariane.testing import LocalCluster, java

ACCOUNTS = """
accounts:
- {accessKey: administrator, secretKey: an-admin-secret, admin: true}
- accessKey: user-of-T
  secretKey: a-user-secret
  topicPerms: [T=PUB|SUB]
  groupPerms: [G=SUB]
"""
USER = "account=user-of-T:a-user-secret"


def mqadmin(namesrv: str, home: Path | None = None) -> Callable[..., str]:
    return lambda *args: "\n".join(java.run(java.ADMIN, [*args, "-n", namesrv], home=home))


def test_mqadmin_reads_and_changes_settings(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv, addr = servers.namesrv, servers.broker.addr
        admin = mqadmin(namesrv)
        assert re.search(r"^traceOn\s+=\s+true", admin("getBrokerConfig", "-b", addr), re.MULTILINE)
        assert "success" in admin("updateBrokerConfig", "-b", addr, "-k", "traceOn", "-v", "false")
        assert re.search(r"^traceOn\s+=\s+false", admin("getBrokerConfig", "-b", addr), re.MULTILINE)
        refused = admin("updateBrokerConfig", "-b", addr, "-k", "listenPort", "-v", "1")
        assert "cannot be changed while the broker runs" in refused
        assert "success" in admin("updateBrokerConfig", "-b", addr, "-k", "brokerPermission", "-v", "4")
        route = admin("topicRoute", "-t", "TBW102")
        assert '"perm":4' in route


def test_mqadmin_lists_and_cleans_queues_and_lists_their_consumers(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv, addr = servers.namesrv, servers.broker.addr
        admin = mqadmin(namesrv)
        sent = produce(namesrv, 8)
        consume(namesrv, "G", "*", 8)
        queue = str(sent[0]["queueId"])
        shown = admin("queryCq", "-t", "T", "-q", queue, "-i", "0", "-c", "5", "-b", addr)
        assert shown.count("physicOffset") == sum(str(item["queueId"]) == queue for item in sent)
        beyond = admin("queryCq", "-t", "T", "-q", queue, "-i", "100", "-c", "5", "-b", addr)
        assert "Exception" not in beyond
        assert "success" in admin("cleanExpiredCQ", "-b", addr)
        assert "success" in admin("cleanUnusedTopic", "-b", addr)
        assert "T" in admin("topicList").splitlines()
        lines = [line.split() for line in admin("topicList", "-c").splitlines()]
        assert ["DefaultCluster", "T", "G"] in lines


def test_mqadmin_lists_producers(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv, addr = servers.namesrv, servers.broker.addr
        produce(namesrv, 1)
        with java.start("ariane.peers.Consume", [namesrv, "T", "G", "*", "0", "60"]) as consumer:
            next(consumer.events(time.monotonic() + 60))
            shown = mqadmin(namesrv)("producer", "-b", addr)
        assert "CLIENT_INNER_PRODUCER" in shown
        assert "language=JAVA, version=401" in shown  # 401 is the ordinal of V4_9_4


def test_java_clients_work_with_an_account(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    with LocalCluster(tmp_path, acl_enable=True, rocketmq_home=str(tmp_path)) as servers:
        namesrv = servers.namesrv
        sent = produce(namesrv, 6, USER) + produce(namesrv, 4, USER, "batch=2")
        result = consume(namesrv, "G", "*", 10, USER)
        assert {item["msgId"] for item in result} == {item["msgId"] for item in sent}
        with pytest.raises(RuntimeError, match="No accessKey is configured"):
            produce(namesrv, 1)
        with pytest.raises(RuntimeError, match="Check signature failed"):
            produce(namesrv, 1, "account=user-of-T:another-secret")
        with pytest.raises(RuntimeError, match="No default permission for topic:Other"):
            produce(namesrv, 1, USER, topic="Other")


@pytest.mark.long(
    "tests/interop/test_mqadmin_acl.py::test_accounts_are_created_printed_and_deleted_alike",
    "tests/interop/test_java_administration.py::test_java_clients_work_with_an_account",
)
def test_mqadmin_manages_accounts(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    tool = tmp_path / "tool"
    (tool / "conf").mkdir(parents=True)
    (tool / "conf" / "tools.yml").write_text("accessKey: administrator\nsecretKey: an-admin-secret\n")
    with LocalCluster(tmp_path, acl_enable=True, rocketmq_home=str(tmp_path)) as servers:
        namesrv, addr = servers.namesrv, servers.broker.addr
        admin = mqadmin(namesrv, tool)
        created = admin(
            "updateAclConfig",
            "-b",
            addr,
            "-a",
            "new-account",
            "-s",
            "new-secret",
            "-m",
            "false",
            "-t",
            "T=PUB",
            "-g",
            "H=SUB",
        )
        assert "success" in created
        produce(namesrv, 1, "account=new-account:new-secret")
        shown = admin("getAclConfig", "-b", addr)
        assert "new-account" in shown
        assert "T=PUB" in shown
        assert "broker-a" in admin("clusterAclConfigVersion", "-b", addr)
        assert "success" in admin("updateGlobalWhiteAddr", "-b", addr, "-g", "10.9.8.7")
        assert "success" in admin("deleteAclConfig", "-b", addr, "-a", "new-account")
        with pytest.raises(RuntimeError, match="No acl config"):
            produce(namesrv, 1, "account=new-account:new-secret")
        assert "No accessKey is configured" in mqadmin(namesrv)("getBrokerConfig", "-b", addr)
