"""`mqadmin` on topics: Java's tool and ours on the same cluster, field by field, and every change by its effect."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from interop_servers import consume, produce
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

SENT = 12
READS = {
    "list": "topicList",
    "groups": "topicList -c",
    "route": "topicRoute -t T",
    "table": "topicRoute -t T -l",
    "status": "topicStatus -t T",
    "empty": "topicStatus -t Empty",
    "clusters": "topicClusterList -t T",
    "order": "updateOrderConf -t Ordered -m get",
    "assigned": "allocateMQ -t T -i 10.0.0.2,10.0.0.1,10.0.0.3",
    "entries": "queryCq -t T -q 1 -i 0 -c 2",
    "traffic": "statsAll",
    "topic traffic": "statsAll -t T",
    "matched": "queryCq -t T -q 1 -i 0 -c 3 -g G",
}


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerAddresses]:
    """A cluster with SENT messages in T, read by group G, an empty topic, and an ordered topic."""
    with start_cluster(request.param, tmp_path_factory.mktemp(request.param)) as servers:
        produce(servers.namesrv, SENT, "tags=A,B")
        assert len(consume(servers.namesrv, "G", "A||C", SENT // 2)) == SENT // 2
        for line in (
            "updateTopic -c DefaultCluster -t Empty -r 2 -w 2",
            "updateOrderConf -t Ordered -m put -v broker-a:3",
        ):
            assert run_ours(servers.namesrv, line).status == 0
        yield servers


@pytest.fixture(scope="module")
def reads(cluster: ServerAddresses) -> dict[str, Comparison]:
    return dict(zip(READS, run_both(cluster.namesrv, *READS.values()), strict=True))


@pytest.mark.parametrize("name", ["list", "route", "table", "status", "empty", "clusters", "order", "entries"])
def test_both_tools_print_the_same(reads: dict[str, Comparison], name: str) -> None:
    # Java lists topics in the order of a hash table.
    reads[name].assert_equal(in_any_order=name == "list")


def test_a_matching_group_prints_its_subscription(reads: dict[str, Comparison]) -> None:
    reads["matched"].assert_equal()


def test_topics_are_listed_with_their_groups(reads: dict[str, Comparison], cluster: ServerAddresses) -> None:
    """Java's header is narrower than its rows; ours is as wide."""
    theirs, ours = reads["groups"].java.splitlines(), reads["groups"].ours.splitlines()
    assert sorted(ours[1:]) == sorted(theirs[1:])
    assert theirs[0].split() == ours[0].split()
    assert len(theirs[0]) < len(theirs[1]) == len(ours[0]) == len(ours[1])
    assert {"cluster": "DefaultCluster", "topic": "T", "groups": ["G"]} in run_json(cluster.namesrv, "topicList -c")


@pytest.mark.parametrize("name", ["traffic", "topic traffic"])
def test_traffic_is_printed_alike(reads: dict[str, Comparison], name: str) -> None:
    """Java reports unknown lag as 0: of a group that has committed no offset in a queue. G has committed one in each."""
    # The brokers take a sample every ten seconds, also between the two tools.
    masks = (Mask(r" +\d+\.\d\d", "rate"), Mask(r"(?m) +\d+ +(\d+|NO_CONSUMER)$", "count of the last minutes"))
    reads[name].assert_equal(masks, in_any_order=True)
    assert "T  " in reads[name].ours


def test_queues_are_assigned_as_consumers_assign_them(reads: dict[str, Comparison]) -> None:
    """Java distributes queues in the order of a hash table; consumers, of either implementation, sort them first."""
    theirs, ours = (json.loads(text)["result"] for text in (reads["assigned"].java, reads["assigned"].ours))

    def ids(result: dict[str, list[dict[str, Any]]]) -> list[int]:
        return [queue["queueId"] for queues in result.values() for queue in queues]

    assert {ip: len(queues) for ip, queues in theirs.items()} == {ip: len(queues) for ip, queues in ours.items()}
    assert sorted(ids(theirs)) == ids(ours) == [0, 1, 2, 3]
    assert {frozenset(queue) for queues in ours.values() for queue in queues} == {
        frozenset(queue) for queues in theirs.values() for queue in queues
    }


def test_json_has_the_values(cluster: ServerAddresses) -> None:
    queues = run_json(cluster.namesrv, "topicStatus -t T")
    assert sum(queue["maxOffset"] - queue["minOffset"] for queue in queues) == SENT
    assert all(queue["storedMs"] > 1_600_000_000_000 for queue in queues)
    assert [queue["storedMs"] for queue in run_json(cluster.namesrv, "topicStatus -t Empty")] == [None, None]
    assert run_json(cluster.namesrv, "topicRoute -t T")["queueDatas"][0]["readQueueNums"] == 4


def test_topics_are_created_changed_and_deleted_alike(cluster: ServerAddresses) -> None:
    lines = (
        f"updateTopic -b {cluster.broker} -t {{}} -r 3 -w 2 -p 6 -o true",
        "updateTopic -c DefaultCluster -t {} -r 5 -w 5 -u true -s true -o true",
        f"updateTopicPerm -b {cluster.broker} -t {{}} -p 4",
        f"updateTopicPerm -b {cluster.broker} -t {{}} -p 4",
        "updateTopicPerm -c DefaultCluster -t {} -p 6",
        "topicRoute -t {}",
        "updateOrderConf -t {} -m get",
        "updateOrderConf -t {} -m put -v broker-a:2",
        "updateOrderConf -t {} -m delete",
        "deleteTopic -t {} -c DefaultCluster",
    )
    theirs = run_java(cluster.namesrv, *(line.format("ByTool") for line in lines))
    for line, text in zip(lines, theirs, strict=True):
        ours = run_ours(cluster.namesrv, line.format("ByUs"))
        assert (ours.status, ours.error) == (0, ""), line
        # Java prints a stack trace to stderr before its result if a topic has no order configuration yet.
        expected = re.sub(r"(?s)^org\.apache\.rocketmq.*?\n(?=set broker|$)", "", text).replace("ByTool", "ByUs")
        assert ours.output == expected, line
    assert "ByUs" not in run_json(cluster.namesrv, "topicList")
    gone = run_ours(cluster.namesrv, "topicRoute -t ByUs")
    assert gone.status == 1
    assert "no route for topic ByUs" in gone.error


def test_failures_have_a_reason_and_an_exit_status(cluster: ServerAddresses) -> None:
    cases = {
        "updateTopic -c Nowhere -t T": "no cluster Nowhere; expected one of: DefaultCluster",
        f"updateTopic -b {cluster.broker} -t a/b": "'a/b'",
        "updateTopicPerm -b 127.0.0.1:1 -t T -p 4": f"expected one of: {cluster.broker}",
        "topicStatus -t Missing": "Missing",
        "topicClusterList -t Missing": "Missing",
        "updateOrderConf -t T -m get": "no name server has an order configuration of this topic",
        "queryCq -t T -q 99 -i 0": "99",
    }
    for line, reason in cases.items():
        ours = run_ours(cluster.namesrv, line)
        assert ours.status in (1, 2), line
        assert reason in ours.error, (line, ours)


def test_a_dry_run_changes_nothing(cluster: ServerAddresses) -> None:
    ours = run_ours(cluster.namesrv, "deleteTopic -t T -c DefaultCluster --dry-run")
    assert ours.output == (
        f"would delete topic T on {cluster.broker}\nwould delete the route of topic T on {cluster.namesrv}\n"
    )
    assert run_json(cluster.namesrv, "topicClusterList -t T") == ["DefaultCluster"]
