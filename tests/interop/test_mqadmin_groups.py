"""`mqadmin` on consumer groups and offsets: Java's tool and ours on the same cluster, and every change by its effect.

Differences that are wanted, and therefore not compared:

| command | Java's tool | ours |
|---|---|---|
| consumerProgress | rate of one server without decimals in the list | sum over masters and slaves, two decimals |
| consumerProgress, resetOffsetByTime | 0 for a queue without a committed offset | `unknown` where the group would not start at 0 |
| consumerConnection, consumerStatus | one broker's clients | those of all masters |
| cloneGroupOffset | offsets of all topics | offsets of the topic that is named |
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from interop_servers import produce
from mqadmin_differential import (
    CLUSTERS,
    Comparison,
    Mask,
    ServerAddresses,
    run_both,
    run_java,
    run_json,
    run_ours,
    start_cluster,
)

from ariane.testing import java

SENT = 12
RATE = Mask(r"Consume TPS: [0-9.]+", "the rate of a minute moves between two calls")
NUMBER = Mask(r"(?m)^\d{4}", "Java numbers the clients in the order of a hash table")
MOVING = Mask(r"lastUpdateTimestamp=\d+", "time of the last heartbeat")
READS = (
    "consumerProgress -g G",
    "consumerProgress -g G -s true",
    "consumerConnection -g G",
    "getConsumerConfig -g G",
    "producer -b {broker}",
    "producerConnection -g CLIENT_INNER_PRODUCER -t T",
    "brokerConsumeStats -b {broker}",
    "brokerConsumeStats -b {broker} -l 1 -t 20000",
    "brokerConsumeStats -b {broker} -o true",
    "consumerProgress",
    "consumerStatus -g G -i {client}",
    "consumerStatus -g G",
)


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerAddresses]:
    with start_cluster(request.param, tmp_path_factory.mktemp(request.param)) as servers:
        produce(servers.namesrv, SENT)
        with java.start("ariane.peers.Consume", [servers.namesrv, "T", "G", "*", "0", "600"]) as consumer:
            events = consumer.events(time.monotonic() + 60)
            assert len([next(events) for _ in range(SENT)]) == SENT
            wait_for_lag(servers.namesrv, "G", 0)  # its client commits every five seconds
            yield servers


def wait_for_lag(namesrv: str, group: str, lag: int) -> None:
    deadline = time.monotonic() + 60
    while run_json(namesrv, f"consumerProgress -g {group}")["lag"] != lag:
        assert time.monotonic() < deadline, run_ours(namesrv, f"consumerProgress -g {group}")
        time.sleep(0.2)


@pytest.fixture(scope="module")
def reads(cluster: ServerAddresses, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Comparison]:
    """The outputs of all reading commands, with Java's lines in one JVM."""
    (client,) = run_json(cluster.namesrv, "consumerConnection -g G")["clients"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("states"))  # consumerStatus writes files
        lines = [line.format(broker=cluster.broker, client=client["clientId"]) for line in READS]
        return dict(zip(READS, run_both(cluster.namesrv, *lines), strict=True))


@pytest.mark.parametrize("line", ["consumerProgress -g G", "consumerProgress -g G -s true"])
def test_lag_is_printed_alike(reads: dict[str, Comparison], line: str) -> None:
    reads[line].assert_equal((RATE,))


def test_clients_and_configurations_are_printed_alike(reads: dict[str, Comparison]) -> None:
    reads["consumerConnection -g G"].assert_equal(in_any_order=True)
    reads["getConsumerConfig -g G"].assert_equal()


def test_statistics_of_a_broker_are_printed_alike(reads: dict[str, Comparison]) -> None:
    for options in ("", " -l 1 -t 20000", " -o true"):
        reads[f"brokerConsumeStats -b {{broker}}{options}"].assert_equal(in_any_order=True)


def test_groups_are_listed_alike_except_for_the_decimals_of_the_rate(reads: dict[str, Comparison]) -> None:
    theirs, ours = reads["consumerProgress"].fields("PUSH")
    (java_row,), (our_row,) = theirs, ours
    rate = our_row.pop(5)
    assert int(java_row.pop(5)) <= float(rate) + 1 and re.fullmatch(r"\d+\.\d\d", rate)
    assert our_row == java_row == ["G", "1", "V4_9_4", "PUSH", "CLUSTERING", "0"]


def test_the_state_of_a_client_is_printed_alike(reads: dict[str, Comparison]) -> None:
    masks = (
        Mask(r"\d{17}", "times of the client's last steps"),
        Mask(r"(?m)^\w+ +\d+\.\d\d.*$|^%RETRY%G +\d+\.\d\d.*$", "rates of the client"),
    )
    reads["consumerStatus -g G -i {client}"].assert_equal(masks, in_any_order=True)
    listed = reads["consumerStatus -g G"]
    listed.assert_equal((Mask(r"\d{13}/", "directory named by the time"),))
    (row,) = listed.fields("V4_9_4")[1]
    assert row[1] in row[3]


def test_producers_are_printed_alike(reads: dict[str, Comparison]) -> None:
    # Every Java consumer has a producer of its own for messages that it sends back.
    assert "producer group (CLIENT_INNER_PRODUCER) instance : clientId=" in reads["producer -b {broker}"].ours
    reads["producer -b {broker}"].assert_equal((MOVING,), in_any_order=True)
    reads["producerConnection -g CLIENT_INNER_PRODUCER -t T"].assert_equal((NUMBER,), in_any_order=True)


def test_a_group_is_created_changed_and_deleted(cluster: ServerAddresses) -> None:
    namesrv = cluster.namesrv
    created, again = run_both(
        namesrv,
        f"updateSubGroup -b {cluster.broker} -g New -r 3 -q 2 -d true",
        "updateSubGroup -c DefaultCluster -g New -s false -m true -a false -i 1 -w 2",
    )
    created.assert_equal()
    again.assert_equal()
    (shown,) = run_both(namesrv, "getConsumerConfig -g New")
    shown.assert_equal()
    assert "consumeEnable                           =  false" in shown.java
    planned = run_ours(namesrv, "deleteSubGroup -c DefaultCluster -g New --dry-run")
    assert planned.output.startswith(f"would delete consumer group New on {cluster.broker}\n")
    deleted = run_ours(namesrv, "deleteSubGroup -c DefaultCluster -g New")
    assert deleted.output.startswith(
        f"delete subscription group [New] from broker [{cluster.broker}] in cluster [DefaultCluster] success.\n"
        "delete topic [%RETRY%New] from cluster [DefaultCluster] success.\n"
    )
    assert run_java(namesrv, "getConsumerConfig -g New") == [""]
    assert "no consumer group New" in run_ours(namesrv, "getConsumerConfig -g New").error


def offsets_of(namesrv: str, group: str, name: str) -> dict[str, str]:
    """Return an offset of each queue of T. They differ: Java's producer starts at another queue when it reads a route again."""
    queues = run_json(namesrv, f"consumerProgress -g {group}")["queues"]
    return {str(queue["queueId"]): str(queue[name]) for queue in queues if queue["topic"] == "T"}


def test_offsets_of_a_group_without_clients_are_moved_alike(cluster: ServerAddresses) -> None:
    namesrv = cluster.namesrv
    ends = offsets_of(namesrv, "G", "brokerOffset")
    assert run_ours(namesrv, "updateSubGroup -c DefaultCluster -g Idle").status == 0
    planned = run_ours(namesrv, "skipAccumulatedMessage -g Idle -t T --dry-run")
    assert f"would move Idle to offset {ends['0']} in queue 0 of T" in planned.output
    # Java's tool fails for a group without committed offsets.
    assert run_ours(namesrv, "skipAccumulatedMessage -g Idle -t T").status == 0
    skipped, reset, back = run_both(
        namesrv,
        "skipAccumulatedMessage -g Idle -t T",
        "resetOffsetByTime -g Idle -t T -s 0",
        "resetOffsetByTime -g Idle -t T -s now -f false",
    )
    # Java's line ran first: our table shows the offsets that it left, so that only the planned offsets are compared.
    for comparison, offsets in ((skipped, ends), (reset, dict.fromkeys(ends, "0")), (back, dict.fromkeys(ends, "0"))):
        theirs, ours = comparison.fields("broker-a ")
        assert {row[1]: row[-1] for row in ours} == {row[1]: row[-1] for row in theirs} == offsets, comparison
        assert comparison.ours.splitlines()[:2] == comparison.java.splitlines()[:2] or "skip" in comparison.line
    assert run_json(namesrv, "consumerProgress -g Idle")["lag"] == SENT


def test_offsets_are_cloned(cluster: ServerAddresses) -> None:
    (cloned,) = run_both(cluster.namesrv, "cloneGroupOffset -s G -d Copy -t T")
    cloned.assert_equal()
    assert run_ours(cluster.namesrv, "cloneGroupOffset -s G -d Copied -t T").status == 0
    ends = offsets_of(cluster.namesrv, "G", "brokerOffset")
    assert offsets_of(cluster.namesrv, "Copied", "consumerOffset") == ends


def test_an_online_group_is_moved_through_its_client(cluster: ServerAddresses) -> None:
    namesrv = cluster.namesrv
    planned = run_ours(namesrv, "resetOffsetByTime -g G -t T -s 0 --dry-run")
    assert planned.output.splitlines()[-1] == f"would reset T of G through its connected clients on {cluster.broker}"
    assert run_json(namesrv, "consumerProgress -g G")["lag"] == 0
    theirs = run_java(namesrv, "resetOffsetByTime -g G -t T -s 0")[0]
    wait_for_lag(namesrv, "G", 0)  # the client has consumed everything again, and committed it
    ours = run_ours(namesrv, "resetOffsetByTime -g G -t T -s 0")
    assert (ours.status, ours.error) == (0, "")
    assert sorted(ours.output.splitlines()) == sorted(theirs.splitlines())
    wait_for_lag(namesrv, "G", 0)
