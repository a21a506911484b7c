"""Metrics of a cluster snapshot: names and labels of Apache's exporter, sums, and values that are unknown."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from ariane.cluster.lag import LagSum
from ariane.metrics import runtime_metrics
from ariane.metrics.cluster_metrics import CLUSTER_METRICS, EXPORTER_METRICS
from ariane.metrics.families import read
from ariane.metrics.polling.pauses import Pauses
from ariane.metrics.polling.scraped_cluster import (
    ClientRates,
    ConnectedClient,
    GroupState,
    MinuteRate,
    ScrapedBroker,
    ScrapedCluster,
    compute_progress,
    find_unknown_starts,
)
from ariane.protocol.requests.callbacks import ConsumeStatus

RECORDED = Path(__file__).resolve().parents[1] / "data" / "metrics" / "exporter-java-4.9.4.prom"

CLIENT = ConnectedClient("10.0.0.9:5000", "10.0.0.9@1")
RUNTIME = {
    "brokerVersionDesc": "V4_9_4", "bootTimestamp": "77", "brokerVersion": "401", "commitLogMaxOffset": "900",
    "putTps": "2.5 6.25 ", "getTransferedTps": "1.0 2.0 3.0", "earliestMessageTimeStamp": "-1",
    "putMessageDistributeTime": "[<=0ms]:533 [0~10ms]:11 [500ms~1s]:2 [10s~]:0 ",
    "commitLogDirCapacity": "Total : 252.0 GiB, Free : 512 B.", "remainHowManyDataToFlush": "1.5 KiB",
    "scheduleMessageOffset_3": "10,25", "commitLogDiskRatio": "0.29",
}  # fmt: skip
MASTER = ScrapedBroker(
    cluster="c",
    name="a",
    broker_id=0,
    addr="a:1",
    is_up=True,
    runtime=RUNTIME,
    topics={
        "T": ((0, 0, 100), (1, 3, 50)),
        "%RETRY%G": ((0, 0, 4),),
        "%DLQ%G": ((0, 0, 2),),
        "empty": ((0, 0, 0),),
    },
    offsets={("T", "G"): {0: 90, 1: 50}, ("%RETRY%G", "G"): {0: 4}, ("gone", "G"): {0: 1}, ("%DLQ%G", "G"): {0: 0}},
    producers={"P": 2},
    rates={
        ("TOPIC_PUT_NUMS", "T"): MinuteRate(60, 1.2345),
        ("GROUP_GET_NUMS", "T@G"): MinuteRate(30, 0.5),
        ("SNDBCK_PUT_NUMS", "T@G"): MinuteRate(7, 0.1),
        ("BROKER_PUT_NUMS", "c"): MinuteRate(60, 1.0),
    },
    ages_ms={("T", "G"): 4100},
)
GROUPS = {"G": GroupState((CLIENT,), False, frozenset({"T", "%RETRY%G"}))}


def cluster(
    *brokers: ScrapedBroker, groups: Mapping[str, GroupState] | None = None, statuses: tuple[ClientRates, ...] = ()
) -> ScrapedCluster:
    progress = asyncio.run(compute_progress(brokers, groups or {}, Pauses()))
    return ScrapedCluster(brokers=brokers, groups=groups or {}, statuses=statuses, progress=progress)


SNAPSHOT = cluster(MASTER, groups=GROUPS, statuses=(ClientRates(CLIENT, "G", "T", ConsumeStatus(consume_ok_tps=2.5)),))


def values(snapshot: ScrapedCluster, name: str) -> dict[tuple[str, ...], object]:
    return next(dict(samples) for metric, samples in read(EXPORTER_METRICS, snapshot) if metric.name == name)


def recorded_labels() -> dict[str, tuple[str, ...]]:
    results = {}
    for line in RECORDED.read_text().splitlines():
        name, _, rest = line.partition("{")
        results[name] = tuple(re.findall(r'(\w+)="', rest))
    return results


def test_names_and_labels_are_those_of_the_recorded_scrape() -> None:
    declared = {metric.name: metric.labels for metric in CLUSTER_METRICS}
    recorded = recorded_labels()
    assert len(recorded) > 80
    assert {name: declared.get(name) for name in recorded} == recorded


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rocketmq_producer_tps", {("c", "a", "T"): 1.23}),
        ("rocketmq_producer_offset", {("c", "a", "T"): 150, ("c", "a", "empty"): 0}),
        ("rocketmq_topic_retry_offset", {("c", "a", "%RETRY%G"): 4}),
        ("rocketmq_topic_dlq_offset", {("c", "a", "G"): 2}),
        ("rocketmq_producer_count", {("c", "a", "P"): 2}),
        ("rocketmq_group_diff", {("G", "T", "1", "1"): 10}),
        ("rocketmq_group_retrydiff", {("G", "%RETRY%G", "1", "1"): 0}),
        ("rocketmq_group_count", {("10.0.0.9:5000", "10.0.0.9@1", "G"): 1}),
        ("rocketmq_consumer_tps", {("c", "a", "T", "G"): 0.5}),
        ("rocketmq_consumer_message_size", {}),
        ("rocketmq_consumer_offset", {("c", "a", "T", "G"): 140, ("c", "a", "%RETRY%G", "G"): 4}),
        ("rocketmq_send_back_nums", {("c", "a", "T", "G"): 7}),
        (
            "rocketmq_group_get_latency_by_storetime",
            {("c", "a", "T", "G"): 4100, ("c", "a", "%RETRY%G", "G"): 0},
        ),
        ("rocketmq_client_consume_ok_msg_tps", {("10.0.0.9:5000", "10.0.0.9@1", "G", "T"): 2.5}),
        ("rocketmq_broker_tps", {("c", "a:1", "a"): 1.0}),
        ("rocketmq_broker_qps", {}),
        ("ariane_topic_stored_messages", {
            ("c", "a", "T"): 147, ("c", "a", "%RETRY%G"): 4, ("c", "a", "%DLQ%G"): 2, ("c", "a", "empty"): 0,
        }),
        ("ariane_group_queue_lag_messages", {
            ("c", "a", "T", "G", "0"): 10, ("c", "a", "T", "G", "1"): 0, ("c", "a", "%RETRY%G", "G", "0"): 0,
        }),
        ("ariane_delay_level_pending_messages", {("c", "a", "3"): 15}),
        ("ariane_broker_up", {("c", "a", "0", "a:1"): 1}),
    ],
)  # fmt: skip
def test_values_of_a_master(name: str, expected: dict[tuple[str, ...], object]) -> None:
    assert values(SNAPSHOT, name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("put_tps10", 2.5), ("put_tps60", 6.25), ("put_tps600", None), ("gettransfered_tps600", 3.0),
        ("earliest_message_timestamp", None), ("pmdt_0ms", 533), ("pmdt_500to1s", 2), ("pmdt_10stomore", 0),
        ("pmdt_1to2s", None), ("commitlogdir_capacity_total", 252 * 2**30), ("commitlogdir_capacity_free", 512),
        ("remain_howmanydata_toflush", 1536), ("commitlog_disk_ratio", 0.29), ("put_latency_99", None),
    ],
)  # fmt: skip
def test_texts_of_the_runtime_information(name: str, expected: float | None) -> None:
    labels = ("c", "a:1", "", "V4_9_4", "77", "401")
    result = values(SNAPSHOT, runtime_metrics.PREFIX + name)
    assert result == ({} if expected is None else {labels: expected})


def test_a_lag_without_a_committed_offset_is_unknown() -> None:
    broker = msgspec.structs.replace(MASTER, offsets={("T", "G"): {0: 90}, ("empty", "G"): {}}, ages_ms={})
    snapshot = cluster(broker, groups={"G": GroupState()})
    assert values(snapshot, "rocketmq_group_diff") == {("G", "T", "0", "1"): 60, ("G", "empty", "0", "1"): 0}
    assert values(snapshot, "ariane_group_lag_messages") == {("c", "a", "empty", "G"): 0}
    assert values(snapshot, "ariane_group_queue_lag_messages") == {
        ("c", "a", "T", "G", "0"): 10,
        ("c", "a", "empty", "G", "0"): 0,
    }
    assert values(snapshot, "rocketmq_group_get_latency_by_storetime") == {("c", "a", "empty", "G"): 0}


def test_a_group_about_which_no_broker_responded_has_no_clients_and_no_lag_with_a_client_count() -> None:
    snapshot = cluster(MASTER, groups={})
    assert values(snapshot, "rocketmq_group_diff") == {}
    assert values(snapshot, "rocketmq_group_count") == {}
    assert values(snapshot, "ariane_group_lag_messages")["c", "a", "T", "G"] == 10


def test_offsets_of_a_topic_that_an_online_group_left_are_ignored() -> None:
    groups = {"G": GroupState((CLIENT,), False, frozenset({"%RETRY%G", "empty"}))}
    snapshot = cluster(MASTER, groups=groups)
    assert {labels[1] for labels in values(snapshot, "rocketmq_group_diff")} == {"empty"}
    assert {labels[2] for labels in values(snapshot, "rocketmq_consumer_offset")} == {"%RETRY%G", "empty"}


def test_a_broadcasting_group_has_no_lag() -> None:
    groups = {"G": GroupState((CLIENT,), True, frozenset({"T"}))}
    snapshot = cluster(MASTER, groups=groups)
    assert values(snapshot, "rocketmq_group_diff") == {}
    assert values(snapshot, "rocketmq_group_get_latency_by_storetime") == {}
    assert values(snapshot, "rocketmq_group_count") == {("10.0.0.9:5000", "10.0.0.9@1", "G"): 1}


def down(topics: frozenset[str] | None) -> ScrapedBroker:
    return ScrapedBroker(cluster="c", name="b", broker_id=0, addr="b:1", is_up=False, expected_topics=topics)


def test_a_broker_that_does_not_respond_has_no_values() -> None:
    snapshot = cluster(MASTER, down(frozenset({"other"})), groups=GROUPS)
    assert values(snapshot, "ariane_broker_up") == {("c", "a", "0", "a:1"): 1, ("c", "b", "0", "b:1"): 0}
    labels = {
        item for metric, samples in read(CLUSTER_METRICS, snapshot) for item, _ in samples if "broker" in metric.labels
    }
    assert labels
    assert all("b" not in item for item in labels)
    assert values(snapshot, "rocketmq_group_diff") == {("G", "T", "1", "1"): 10}


@pytest.mark.parametrize("topics", [frozenset({"T"}), None])
def test_a_sum_without_a_part_is_unknown(topics: frozenset[str] | None) -> None:
    snapshot = cluster(MASTER, down(topics), groups=GROUPS)
    assert ("G", "T", "1", "1") not in values(snapshot, "rocketmq_group_diff")
    assert values(snapshot, "ariane_group_lag_messages")["c", "a", "T", "G"] == 10


def test_lags_are_summed_over_brokers() -> None:
    other = msgspec.structs.replace(MASTER, name="b", addr="b:1")
    snapshot = cluster(MASTER, other, groups=GROUPS)
    assert values(snapshot, "rocketmq_group_diff") == {("G", "T", "1", "1"): 20}


def test_the_distance_of_a_slave() -> None:
    slave = ScrapedBroker(
        cluster="c", name="a", broker_id=1, addr="s:1", is_up=True, runtime={"commitLogMaxOffset": "850"}
    )
    assert values(cluster(MASTER, slave), "rocketmq_broker_commitlog_diff") == {("c", "s:1", "a"): 50}
    unknown = msgspec.structs.replace(slave, runtime={})
    assert values(cluster(MASTER, unknown), "rocketmq_broker_commitlog_diff") == {}
    assert values(cluster(slave), "rocketmq_broker_commitlog_diff") == {}


def test_the_lag_of_a_broadcasting_group_is_unknown() -> None:
    """Its clients store the offsets, although the broker says where a group without any starts."""
    master = msgspec.structs.replace(MASTER, offsets={}, starts={"T": frozenset({0})})
    clustering = cluster(master, groups={"G": GroupState((CLIENT,), False, frozenset({"T"}))})
    broadcasting = cluster(master, groups={"G": GroupState((CLIENT,), True, frozenset({"T"}))})
    assert [(one.topic, one.lag) for one in clustering.progress] == [("T", LagSum(100, True))]
    assert [(one.topic, one.lag) for one in broadcasting.progress] == [("T", LagSum(None, True))]
    assert find_unknown_starts(master, [("T", "G")], broadcasting.groups) == {}
