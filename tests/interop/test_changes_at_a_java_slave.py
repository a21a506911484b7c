"""Commands that change something, at an Apache master with a slave: the slave rejects some of the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from interop_servers import produce
from test_java_replication import JAVA_SMALL
from typer.testing import CliRunner

from ariane.cli import main as ariane_command
from ariane.cli.mqadmin import main as mqadmin
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.testing import java

REFUSED = "Can't modify topic or subscription group from slave broker"


class JavaPair(NamedTuple):
    """Addresses of a Java name server, and of a master and its slave."""

    namesrv: str
    master: str
    slave: str


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPair]:
    home = tmp_path_factory.mktemp("pair")
    slave_is = {**JAVA_SMALL, "brokerRole": "SLAVE", "brokerId": "1"}
    with (
        java.name_server(home / "ns") as ns,
        java.broker(home / "master", ns.addr, properties={**JAVA_SMALL, "brokerRole": "ASYNC_MASTER"}) as master,
        java.broker(home / "slave", ns.addr, properties=slave_is) as slave,
    ):
        yield JavaPair(ns.addr, master.addr, slave.addr)
        master.process.kill()
        slave.process.kill()


def run(pair: JavaPair, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return exit status, output and errors of an mqadmin command."""
    status = mqadmin.main([*arguments, "-n", pair.namesrv])
    return status, *capsys.readouterr()


async def until_slave_lacks(slave: str, topic: str) -> None:
    async with ConnectionPool() as peers:
        while topic.encode() in (await peers.request_ok(slave, RequestCode.GET_ALL_TOPIC_CONFIG)).body:
            await asyncio.sleep(0.5)


def test_a_topic_is_deleted_although_the_slave_refuses(pair: JavaPair, capsys: pytest.CaptureFixture[str]) -> None:
    produce(pair.namesrv, 1, topic="Doomed")
    status, output, errors = run(pair, capsys, "deleteTopic", "-c", "DefaultCluster", "-t", "Doomed")
    assert (status, "delete topic [Doomed] from NameServer success." in output) == (0, True), errors
    assert f"{pair.slave} did not delete topic Doomed: " in errors and REFUSED in errors
    assert "no route for topic Doomed" in run(pair, capsys, "topicRoute", "-t", "Doomed")[2]
    asyncio.run(asyncio.wait_for(until_slave_lacks(pair.slave, "Doomed"), 60))

    produce(pair.namesrv, 1, topic="Doomed2")
    result = CliRunner().invoke(ariane_command.app, ["topic", "delete", "Doomed2", "--namesrv", pair.namesrv])
    assert (result.exit_code, "deleted topic Doomed2" in result.output) == (0, True), result.output


@pytest.mark.parametrize(
    "command",
    [
        "updateTopic -c DefaultCluster -t Changed",
        "updateTopicPerm -c DefaultCluster -t Changed -p 4",
        "updateSubGroup -c DefaultCluster -g Changed",
        "deleteSubGroup -c DefaultCluster -g Changed -r true",
        "updateBrokerConfig -c DefaultCluster -k fileReservedTime -v 71",
        "cleanExpiredCQ -c DefaultCluster",
        "deleteExpiredCommitLog -c DefaultCluster",
        "cleanUnusedTopic -c DefaultCluster",
        "wipeWritePerm -b broker-a",
        "addWritePerm -b broker-a",
        "updateKvConfig -s S -k K -v V",
        "deleteKvConfig -s S -k K",
        "updateOrderConf -t Changed -v broker-a:4 -m put",
        "deleteTopic -c DefaultCluster -t Changed",
    ],
)
def test_changes_of_a_cluster_succeed_with_a_slave(
    pair: JavaPair, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    status, _, errors = run(pair, capsys, *command.split())
    assert status == 0, errors


def test_a_change_of_a_slave_that_is_named_fails(pair: JavaPair, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = run(pair, capsys, "updateTopic", "-b", pair.slave, "-t", "AtSlave")
    assert (status, REFUSED in errors) == (1, True)
