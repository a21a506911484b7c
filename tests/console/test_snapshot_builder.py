"""Rows of lists: sums over masters and slaves, and what remains unknown while a server does not respond."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec
import pytest

from ariane.console.live.live_history import Rates, broker_key, cluster_key, group_key
from ariane.console.live.live_snapshot import BrokerShare, GroupRow, TopicRow
from ariane.console.live.replication_delay import ReplicationObserver
from ariane.console.live.snapshot_builder import (
    broker_rows,
    broker_sets,
    group_rows,
    history_values,
    topic_rows,
    totals,
)
from ariane.metrics.polling.pauses import Pauses
from ariane.metrics.polling.scraped_cluster import (
    ConnectedClient,
    GroupState,
    MinuteRate,
    ScrapedBroker,
    ScrapedCluster,
    compute_progress,
)
from ariane.model.topic import TopicConfig

RUNTIME = {
    "brokerVersionDesc": "V4_9_4", "bootTimestamp": "77", "commitLogMinOffset": "100", "commitLogMaxOffset": "900",
    "msgPutTotalTodayNow": "50", "msgPutTotalTodayMorning": "10", "msgGetTotalTodayNow": "9", "msgGetTotalTodayMorning": "2",
    "putTps": "2.5 1 1", "getTransferedTps": "1.5 1 1", "commitLogDiskRatio": "0.25",
}  # fmt: skip
OFFSETS = {("orders", "shop"): {0: 90, 1: 50}, ("%RETRY%shop", "shop"): {0: 1}}
TOPICS = {"orders": ((0, 0, 100), (1, 3, 50)), "%RETRY%shop": ((0, 0, 2),), "%DLQ%shop": ((0, 4, 7),)}
MASTER = ScrapedBroker(
    cluster="c", name="a", broker_id=0, addr="a:1", is_up=True, runtime=RUNTIME, topics=TOPICS,
    topic_configs={name: TopicConfig(topic_name=name, read_queue_nums=2, write_queue_nums=1) for name in TOPICS},
    group_names=frozenset({"shop", "idle"}), offsets=OFFSETS, has_rates=True,
    rates={
        ("TOPIC_PUT_NUMS", "orders"): MinuteRate(600, 10.0), ("TOPIC_PUT_SIZE", "orders"): MinuteRate(6000, 100.0),
        ("GROUP_GET_NUMS", "orders@shop"): MinuteRate(15, 0.25), ("GROUP_GET_NUMS", "%RETRY%shop@shop"): MinuteRate(6, 0.1),
    },
    ages_ms={("orders", "shop"): 4100},
)  # fmt: skip
SLAVE = ScrapedBroker(
    cluster="c", name="a", broker_id=1, addr="a:2", is_up=True, runtime=RUNTIME | {"commitLogMaxOffset": "700"},
    has_rates=True, rates={("GROUP_GET_NUMS", "orders@shop"): MinuteRate(420, 7.0)},
)  # fmt: skip
CLIENTS = (
    ConnectedClient("h:1", "one", "JAVA", 401),
    ConnectedClient("h:2", "one", "JAVA", 401),
    ConnectedClient("h:3", "two", "PYTHON", 401),
)
GROUPS = {
    "shop": GroupState(CLIENTS, False, frozenset({"orders", "%RETRY%shop"}), "CONSUME_PASSIVELY"),
    "idle": GroupState(),
}


def rows(
    brokers: Iterable[ScrapedBroker], groups: Mapping[str, GroupState] = GROUPS
) -> tuple[dict[str, TopicRow], dict[str, GroupRow]]:
    servers = tuple(brokers)
    progress = asyncio.run(compute_progress(servers, groups, Pauses()))
    cluster = ScrapedCluster(brokers=servers, groups=groups, progress=progress)
    topics = {row.topic: row for row in topic_rows(cluster)}
    return topics, {row.group: row for row in group_rows(cluster, topics)}


def silent(broker: ScrapedBroker, *, is_seen: bool = True) -> ScrapedBroker:
    return ScrapedBroker(
        cluster=broker.cluster, name=broker.name, broker_id=broker.broker_id, addr=broker.addr, is_up=False, reason="gone",
        expected_topics=frozenset(broker.topics) if is_seen else None,
        expected_groups=broker.group_names if is_seen else None,
    )  # fmt: skip


def second_master() -> ScrapedBroker:
    return msgspec.structs.replace(MASTER, name="b", addr="b:1")


def test_a_group_receives_the_sum_of_master_and_slave_with_decimals() -> None:
    _, groups = rows([MASTER, SLAVE])
    shop = groups["shop"]
    assert shop.tps is not None
    assert round(shop.tps, 9) == 7.35
    assert shop.shares == (BrokerShare("a", 0, 0.35), BrokerShare("a", 1, 7.0))
    assert not shop.tps_is_partial


def test_a_slave_that_serves_all_reads_is_not_shown_as_a_rate_of_zero() -> None:
    _, groups = rows([msgspec.structs.replace(MASTER, rates={}), SLAVE])
    assert groups["shop"].shares == (BrokerShare("a", 0, 0.0), BrokerShare("a", 1, 7.0))
    assert groups["shop"].tps == 7.0


def test_a_silent_slave_makes_the_rate_partial_and_not_the_lag() -> None:
    _, groups = rows([MASTER, silent(SLAVE)])
    shop = groups["shop"]
    assert shop.shares[1] == BrokerShare("a", 1, None)
    assert (shop.tps, shop.tps_is_partial, shop.lag, shop.lag_is_partial) == (0.35, True, 11, False)


def test_figures_of_a_group() -> None:
    _, groups = rows([MASTER, SLAVE])
    shop, idle = groups["shop"], groups["idle"]
    assert (shop.topics, shop.lag, shop.oldest_age_ms, shop.dead_letters) == (("orders",), 11, 4100, 3)
    assert (shop.clients, shop.consume_type, shop.model) == (2, "push", "clustering")
    assert (shop.versions, shop.languages) == (("V4_9_4",), ("JAVA", "PYTHON"))
    assert (idle.clients, idle.lag, idle.tps, idle.dead_letters, idle.model) == (0, None, 0.0, 0, None)


def test_figures_of_a_topic() -> None:
    topics, _ = rows([MASTER, SLAVE, second_master()])
    orders = topics["orders"]
    assert (orders.queues, orders.read_queues, orders.write_queues, orders.messages) == (4, 4, 2, 294)
    assert (orders.tps_in, orders.bytes_in, orders.groups, orders.brokers) == (20.0, 200.0, ("shop",), ("a", "b"))
    assert [topics[name].kind for name in sorted(topics)] == ["dlq", "retry", "normal"]
    assert topics["%RETRY%shop"].tps_in is None


def test_topics_and_groups_of_a_silent_master_stay_and_are_unknown() -> None:
    topics, groups = rows([silent(MASTER)], {})
    orders, shop = topics["orders"], groups["shop"]
    assert (orders.queues, orders.messages, orders.tps_in, orders.is_partial) == (None, None, None, True)
    assert orders.missing == orders.tps_missing == tuple(orders.brokers)
    assert (shop.lag, shop.lag_is_partial, shop.tps, shop.tps_is_partial) == (None, True, None, True)
    assert (shop.clients, shop.dead_letters, shop.dead_letters_is_partial) == (None, None, True)


def test_one_of_two_masters_that_is_silent_makes_its_rows_partial() -> None:
    topics, groups = rows([MASTER, silent(second_master())])
    assert (topics["orders"].messages, topics["orders"].is_partial) == (147, True)
    assert topics["orders"].missing == topics["orders"].tps_missing == ("b",)
    assert (groups["shop"].lag, groups["shop"].lag_is_partial) == (11, True)
    assert groups["idle"].clients is None  # its clients may be connected to the other master


def test_a_master_that_never_responded_may_have_any_group() -> None:
    topics, groups = rows([MASTER, silent(second_master(), is_seen=False)])
    assert topics["orders"].is_partial
    assert groups["shop"].lag_is_partial


def test_rates_that_were_not_requested_yet_are_unknown() -> None:
    topics, groups = rows([msgspec.structs.replace(MASTER, has_rates=False, rates={})], {})
    assert (topics["orders"].tps_in, topics["orders"].messages) == (None, 147)
    assert (groups["shop"].tps, groups["shop"].clients, groups["shop"].lag) == (None, None, 11)


def test_a_rejected_statistic_is_unknown() -> None:
    lost = frozenset({("GROUP_GET_NUMS", "orders@shop"), ("TOPIC_PUT_NUMS", "orders")})
    topics, groups = rows([msgspec.structs.replace(MASTER, rates={}, lost_rates=lost)])
    assert (topics["orders"].tps_in, topics["orders"].tps_is_partial) == (None, True)
    assert groups["shop"].tps is None


def test_a_queue_without_an_offset_makes_the_lag_partial() -> None:
    _, groups = rows([msgspec.structs.replace(MASTER, offsets={("orders", "shop"): {0: 90}})])
    assert (groups["shop"].lag, groups["shop"].lag_is_partial) == (10, True)


def test_totals_count_stored_messages_once_and_skip_unknown_ones() -> None:
    brokers = broker_rows([MASTER, SLAVE], ReplicationObserver(), 1_000)
    _, groups = rows([MASTER, SLAVE])
    sums = totals(brokers, list(groups.values()))
    assert (sums.tps_in, sums.tps_out, sums.lag, sums.tps_is_partial) == (2.5, 3.0, 11, False)
    partial = totals(broker_rows([MASTER, silent(SLAVE)], ReplicationObserver(), 1_000), list(groups.values()))
    assert (partial.tps_out, partial.tps_is_partial, partial.lag_is_partial) == (1.5, True, False)


def test_figures_of_a_broker_are_unknown_while_it_is_silent() -> None:
    up, down = broker_rows([MASTER, silent(SLAVE)], ReplicationObserver(), 1_000)
    assert (up.put_today, up.got_today, up.tps_in, up.disk_ratio, up.log_end) == (40, 7, 2.5, 0.25, 900)
    assert (down.is_up, down.reason, down.tps_in, down.put_today, down.log_end) == (False, "gone", None, None, None)
    assert down.replication_lag_bytes is None


def member(broker: ScrapedBroker, **failover: str) -> ScrapedBroker:
    values = {f"failover{key}": value for key, value in failover.items()}
    return msgspec.structs.replace(broker, runtime={**broker.runtime, **values})


def test_members_of_a_broker_set_are_those_that_respond() -> None:
    master = member(MASTER, Member="m1", Role="MASTER", Epoch="7", Set="m1,m2")
    follower = member(SLAVE, Member="m2", Role="FOLLOWER", Epoch="7", Set="m1,m2,m3", Refusal="")
    late = member(
        msgspec.structs.replace(SLAVE, broker_id=2, addr="a:3"), Member="m3", Role="RECONCILING", Refusal="late"
    )
    (brokers,) = broker_sets([master, follower, late, second_master()]).values()
    assert (brokers.master and brokers.master.name, brokers.in_sync) == ("m1", ("m1", "m2"))
    assert [(item.name, brokers.lag(item), item.refusal) for item in brokers.members] == [
        ("m1", 0, ""), ("m2", 200, ""), ("m3", 200, "late"),
    ]  # fmt: skip
    alone = broker_sets([silent(master), follower])["a"]
    assert (alone.master, [item.name for item in alone.members]) == (None, ["m2"])


@pytest.mark.parametrize("invalid", [{"Epoch": "x", "Member": "m1"}, {"Epoch": "1"}])
def test_a_broker_set_with_invalid_values_is_not_shown(invalid: dict[str, str]) -> None:
    assert broker_sets([member(MASTER, Role="MASTER", **invalid)]) == {}


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "9" * 400])
def test_figures_that_are_no_finite_numbers_are_unknown(text: str) -> None:
    keys = ("commitLogMinOffset", "commitLogMaxOffset", "dispatchBehindBytes", "commitLogDiskRatio")
    runtime = RUNTIME | dict.fromkeys(keys, text) | {"putTps": f"{text} 1 1", "getTransferedTps": f"{text} 1 1"}
    (row,) = broker_rows([msgspec.structs.replace(MASTER, runtime=runtime)], ReplicationObserver(), 1_000)
    assert (row.log_start, row.log_end, row.dispatch_behind_bytes, row.disk_ratio) == (None,) * 4
    assert (row.tps_in, row.tps_out, row.put_today) == (None, None, 40)


def test_a_partial_sum_is_a_gap_in_the_history() -> None:
    brokers = broker_rows([MASTER, silent(SLAVE)], ReplicationObserver(), 1_000)
    _, groups = rows([MASTER, silent(SLAVE)])
    values = history_values(brokers, groups.values(), totals(brokers, list(groups.values())))
    assert values[cluster_key()] == Rates(None, None, 11)
    assert values[broker_key("a", 0)] == Rates(2.5, 1.5, None)
    assert values[group_key("shop")] == Rates(None, None, 11)
