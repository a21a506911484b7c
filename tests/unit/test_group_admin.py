"""Operations on consumer groups and their offsets, against scripted name servers and brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ariane.cluster.admin import Admin
from ariane.cluster.groups.consumer_status import find_blocked, find_inconsistent, is_settled, queue_owners
from ariane.cluster.groups.group_lag import GroupLag, QueueLag
from ariane.cluster.groups.offset_admin import LATEST, OffsetTarget, QueueReset
from ariane.errors import ConnectionLost, NotFound, PartialFailure, ReplyError, ServerUnavailable
from ariane.model.message import MessageQueue
from ariane.model.topic import SubscriptionGroupConfig
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.admin import ClientConnection, ConsumerConnection, SubscriptionGroupTable
from ariane.protocol.requests.callbacks import ConsumeStatus, ProcessQueueInfo, RunningInfo, reset_body
from ariane.protocol.requests.clients import SubscriptionData, WireQueue
from ariane.protocol.requests.routing import TopicList
from ariane.protocol.requests.stats import ConsumeStats, ConsumeTimeSpans, GetConsumeStats, GroupOffset, QueueTimeSpan
from ariane.protocol.versions import HIGHER, release_number, version_name
from scripted_peers import MASTER, NAMES, OTHER, SLAVE, Script, ScriptedPeers


def run(
    script: Script, work: Callable[[Admin], Awaitable[Any]], *, is_dry_run: bool = False
) -> tuple[Any, ScriptedPeers]:
    async def main() -> tuple[Any, ScriptedPeers]:
        peers = ScriptedPeers(script)
        async with Admin(NAMES, peers=peers, is_dry_run=is_dry_run) as admin:
            return await work(admin), peers

    return asyncio.run(main())


def stats(broker: str, tps: float, *entries: GroupOffset) -> ConsumeStats:
    return ConsumeStats(tps, {WireQueue(broker, number, "T"): entry for number, entry in enumerate(entries)})


def client(name: str, version: int = 401) -> ClientConnection:
    return ClientConnection("1.2.3.4:5", name, "PYTHON", version)


def connection(*names: str) -> ConsumerConnection:
    subscriptions = {"T": SubscriptionData(topic="T")}
    return ConsumerConnection(
        tuple(map(client, names)), "CONSUME_FROM_LAST_OFFSET", "CONSUME_PASSIVELY", "CLUSTERING", subscriptions
    )


OFFLINE = ReplyError(ResponseCode.CONSUMER_NOT_ONLINE, "not online")
NO_CLIENTS = {(addr, RequestCode.GET_CONSUMER_CONNECTION_LIST): OFFLINE for addr in (MASTER, OTHER)}


def of_committed_topics(answer: ConsumeStats) -> Callable[[GetConsumeStats], ConsumeStats]:
    """Answer a request for all topics, or for T; the retry topic has no messages."""
    return lambda header: answer if header.topic in (None, "", "T") else ConsumeStats(0.0, {})


LAG = {
    **NO_CLIENTS,
    (MASTER, RequestCode.GET_CONSUME_STATS): of_committed_topics(stats("broker-a", 0.0, GroupOffset(10, 4, 7_000))),
    (SLAVE, RequestCode.GET_CONSUME_STATS): of_committed_topics(stats("broker-a", 1.25, GroupOffset(9, 4, 7_000))),
    (OTHER, RequestCode.GET_CONSUME_STATS): of_committed_topics(stats("broker-b", 0.5, GroupOffset(8, 8, 9_000))),
}


def test_rates_of_masters_and_slaves_are_added_and_offsets_are_those_of_masters() -> None:
    lag, _ = run(LAG, lambda admin: admin.group_lag("G"))
    assert lag.consume_tps == 1.75
    assert lag.total == 6
    assert [(queue.broker, queue.broker_offset) for queue in lag.queues] == [("broker-a", 10), ("broker-b", 8)]


def test_a_slave_without_a_response_makes_the_rate_unknown_and_not_the_lag() -> None:
    script = {**LAG, (SLAVE, RequestCode.GET_CONSUME_STATS): ConnectionLost(SLAVE, "refused")}
    lag, _ = run(script, lambda admin: admin.group_lag("G"))
    assert (lag.total, lag.consume_tps) == (6, None)
    assert [(missing.broker, missing.addr) for missing in lag.unavailable] == [("broker-a", SLAVE)]


def test_a_master_without_a_response_makes_rate_and_lag_unknown() -> None:
    script = {**LAG, (OTHER, RequestCode.GET_CONSUME_STATS): ConnectionLost(OTHER, "refused")}
    lag, _ = run(script, lambda admin: admin.group_lag("G"))
    assert (lag.total, lag.consume_tps, len(lag.queues)) == (None, None, 1)


def test_ages_are_asked_of_lagging_queues_and_deleted_messages_have_none() -> None:
    def span(broker: str, delay_ms: int) -> ConsumeTimeSpans:
        return ConsumeTimeSpans((QueueTimeSpan(0, "", delay_ms, 0, "", WireQueue(broker, 0, "T"), 0, ""),))

    queues = tuple(QueueLag("T", broker, 0, 9, 4, None) for broker in ("broker-a", "broker-b"))
    lag = GroupLag("G", (*queues, QueueLag("T2", "broker-a", 0, 4, 4, None)), 0.0, True, ())
    script = {
        (MASTER, RequestCode.QUERY_CONSUME_TIME_SPAN): span("broker-a", 1_500),
        # Java's broker: now minus the store time -1 of a deleted message
        (OTHER, RequestCode.QUERY_CONSUME_TIME_SPAN): span("broker-b", 1_795_000_000_001),
    }
    ages, peers = run(script, lambda admin: admin.unconsumed_ages(lag))
    assert ages.by_queue == {queues[0].queue: 1_500, queues[1].queue: None}
    requested = [header.topic for _, header in peers.changes(RequestCode.QUERY_CONSUME_TIME_SPAN)]
    assert requested == ["T", "T"]


def test_a_reset_without_clients_commits_each_queue() -> None:
    script = {**LAG, **NO_CLIENTS}
    for addr in (MASTER, OTHER):
        script |= {(addr, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP): 2, (addr, RequestCode.UPDATE_CONSUMER_OFFSET): b""}
    result, peers = run(script, lambda admin: admin.reset_offsets("G", "T", OffsetTarget(5_000)))
    assert result.online == frozenset()
    assert result.queues == (QueueReset("broker-a", 0, 10, 4, 2, 2), QueueReset("broker-b", 0, 8, 8, 2, 2))
    commits = peers.changes(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert [(addr, header.commit_offset) for addr, header in commits] == [(MASTER, 2), (OTHER, 2)]


def test_an_unforced_reset_only_moves_backwards() -> None:
    script = {**LAG, **NO_CLIENTS}
    for addr in (MASTER, OTHER):
        script |= {(addr, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP): 6, (addr, RequestCode.UPDATE_CONSUMER_OFFSET): b""}
    result, peers = run(script, lambda admin: admin.reset_offsets("G", "T", OffsetTarget(5_000), is_forced=False))
    assert [(queue.consumer_offset, queue.new_offset) for queue in result.queues] == [(4, 4), (8, 6)]
    assert [addr for addr, _ in peers.changes(RequestCode.UPDATE_CONSUMER_OFFSET)] == [OTHER]


def test_a_reset_of_an_online_group_goes_through_its_clients() -> None:
    new = {MessageQueue("T", "broker-a", 0): 10}
    script = {
        **LAG,
        (MASTER, RequestCode.GET_CONSUMER_CONNECTION_LIST): connection("c1"),
        (OTHER, RequestCode.GET_CONSUMER_CONNECTION_LIST): OFFLINE,
        (MASTER, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET): reset_body(new),
        (OTHER, RequestCode.UPDATE_CONSUMER_OFFSET): b"",
    }
    for addr in (MASTER, OTHER):
        script |= {(addr, RequestCode.GET_MIN_OFFSET): 0, (addr, RequestCode.GET_MAX_OFFSET): 12}
    result, peers = run(script, lambda admin: admin.reset_offsets("G", "T", OffsetTarget(LATEST)))
    # The broker's answer counts, not the plan: the group may have gone on in between.
    assert [(queue.broker, queue.new_offset) for queue in result.queues] == [("broker-a", 10), ("broker-b", 12)]
    assert result.online == {"broker-a"}
    assert [addr for addr, _ in peers.changes(RequestCode.UPDATE_CONSUMER_OFFSET)] == [OTHER]


def test_a_reset_falls_back_if_the_last_client_leaves_in_between() -> None:
    script = {
        **LAG,
        (MASTER, RequestCode.GET_CONSUMER_CONNECTION_LIST): connection("c1"),
        (OTHER, RequestCode.GET_CONSUMER_CONNECTION_LIST): OFFLINE,
        (MASTER, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET): OFFLINE,
    }
    for addr in (MASTER, OTHER):
        script |= {(addr, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP): 1, (addr, RequestCode.UPDATE_CONSUMER_OFFSET): b""}
    _, peers = run(script, lambda admin: admin.reset_offsets("G", "T", OffsetTarget(5_000)))
    assert [addr for addr, _ in peers.changes(RequestCode.UPDATE_CONSUMER_OFFSET)] == [MASTER, OTHER]


def test_a_dry_run_plans_and_sends_nothing() -> None:
    script = {
        **LAG,
        (MASTER, RequestCode.GET_CONSUMER_CONNECTION_LIST): connection("c1"),
        (OTHER, RequestCode.GET_CONSUMER_CONNECTION_LIST): OFFLINE,
    }
    for addr in (MASTER, OTHER):
        script[addr, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = 1
    changes: list[str] = []

    async def work(admin: Admin) -> Any:
        result = await admin.reset_offsets("G", "T", OffsetTarget(5_000))
        changes.extend(f"{change.addr} {change.summary}" for change in admin.changes)
        return result

    result, peers = run(script, work, is_dry_run=True)
    assert [queue.new_offset for queue in result.queues] == [1, 1]
    assert changes == [
        f"{MASTER} reset T of G through its connected clients",
        f"{OTHER} move G to offset 1 in queue 0 of T",
    ]
    assert peers.changes(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET) == []


def test_a_reset_to_an_offset_is_refused_while_clients_would_commit_over_it() -> None:
    script = {**LAG, **{(addr, RequestCode.GET_CONSUMER_CONNECTION_LIST): connection("c1") for addr in (MASTER, OTHER)}}
    for addr in (MASTER, OTHER):
        script |= {(addr, RequestCode.GET_MIN_OFFSET): 0, (addr, RequestCode.GET_MAX_OFFSET): 12}
    with pytest.raises(ServerUnavailable, match="connected clients on broker-a, broker-b"):
        run(script, lambda admin: admin.reset_offsets("G", "T", OffsetTarget(offset=3)))


def test_a_reset_to_an_offset_stays_within_the_queue() -> None:
    script = {**LAG, **NO_CLIENTS}
    for addr, bounds in ((MASTER, (5, 9)), (OTHER, (0, 2))):
        script |= {(addr, RequestCode.GET_MIN_OFFSET): bounds[0], (addr, RequestCode.GET_MAX_OFFSET): bounds[1]}
        script[addr, RequestCode.UPDATE_CONSUMER_OFFSET] = b""
    result, _ = run(script, lambda admin: admin.reset_offsets("G", "T", OffsetTarget(offset=3)))
    assert [queue.new_offset for queue in result.queues] == [5, 2]


def test_nothing_is_reset_while_a_broker_does_not_respond() -> None:
    script = {**LAG, **NO_CLIENTS, (OTHER, RequestCode.GET_CONSUME_STATS): ConnectionLost(OTHER, "refused")}
    with pytest.raises(ServerUnavailable, match=r"nothing was changed.*broker-b b:1"):
        run(script, lambda admin: admin.reset_offsets("G", "T", OffsetTarget(5_000)))


def test_a_reset_that_fails_on_one_broker_names_both_outcomes() -> None:
    script = {**LAG, **NO_CLIENTS}
    for addr in (MASTER, OTHER):
        script |= {(addr, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP): 2, (addr, RequestCode.UPDATE_CONSUMER_OFFSET): b""}
    script[OTHER, RequestCode.UPDATE_CONSUMER_OFFSET] = ReplyError(1, "not now")
    with pytest.raises(PartialFailure) as failure:
        run(script, lambda admin: admin.reset_offsets("G", "T", OffsetTarget(5_000)))
    assert [what for what, _ in failure.value.failed] == [f"reset T of G on {OTHER}"]
    assert failure.value.succeeded == (f"move G to offset 2 in queue 0 of T on {MASTER}",)


def test_clients_of_several_brokers_are_listed_once() -> None:
    script = {
        (MASTER, RequestCode.GET_CONSUMER_CONNECTION_LIST): connection("c2", "c1"),
        (OTHER, RequestCode.GET_CONSUMER_CONNECTION_LIST): connection("c1", "c3"),
    }
    result, _ = run(script, lambda admin: admin.connected_consumers("G"))
    assert [item.client_id for item in result.connections] == ["c1", "c2", "c3"]
    assert {name: server.addr for name, server in result.servers.items()} == {"c1": MASTER, "c2": MASTER, "c3": OTHER}
    with pytest.raises(NotFound, match="no connected client of consumer group G"):
        run(NO_CLIENTS, lambda admin: admin.connected_consumers("G"))


def test_unknown_groups_get_similar_names() -> None:
    table = SubscriptionGroupTable(subscription_group_table={"billing": SubscriptionGroupConfig(group_name="billing")})
    script = {
        (MASTER, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG): table,
        (OTHER, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG): SubscriptionGroupTable(),
        (NAMES, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER): TopicList(None, ("%RETRY%old", "T")),
    }
    with pytest.raises(NotFound, match="no consumer group biling; expected one of: billing"):
        run(script, lambda admin: admin.check_group("biling"))
    groups, _ = run(script, lambda admin: admin.list_groups())
    assert groups.names == ("billing", "old")


def state_script(*bodies: RunningInfo) -> Script:
    names = [f"c{number}" for number in range(1, len(bodies) + 1)]
    infos = dict(zip(names, bodies, strict=True))
    return {
        (MASTER, RequestCode.GET_CONSUMER_CONNECTION_LIST): connection(*names),
        (OTHER, RequestCode.GET_CONSUMER_CONNECTION_LIST): OFFLINE,
        (MASTER, RequestCode.GET_CONSUMER_RUNNING_INFO): lambda header: infos[header.client_id],
    }


def info(expression: str, queue_id: int, *, orderly: bool = False, kind: str = "TAG", **queue: Any) -> RunningInfo:
    return RunningInfo(
        None,
        {WireQueue("broker-a", queue_id, "T"): ProcessQueueInfo(**queue)},
        {
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": str(orderly).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": "1000",
        },
        {"T": ConsumeStatus(consume_ok_tps=1.5)},
        (SubscriptionData(topic="T", sub_string=expression, expression_type=kind), SubscriptionData(topic="%RETRY%G")),
    )


def test_states_of_clients_tell_owners_and_differing_subscriptions() -> None:
    result, _ = run(state_script(info("A", 0), info("B", 1)), lambda admin: admin.consumer_states("G"))
    assert queue_owners(result.states) == {MessageQueue("T", "broker-a", number): f"c{number + 1}" for number in (0, 1)}
    (topic,) = find_inconsistent("G", result.states)
    assert topic == ("T", {"c1": "A", "c2": "B"})
    assert is_settled(result.states, 122_000) and not is_settled(result.states, 120_000)


def test_the_order_and_the_spaces_of_tags_do_not_make_a_subscription_differ() -> None:
    result, _ = run(state_script(info("x || y", 0), info("y||x", 1)), lambda admin: admin.consumer_states("G"))
    assert find_inconsistent("G", result.states) == []


def test_the_same_text_as_tags_and_as_sql_differs() -> None:
    result, _ = run(state_script(info("a", 0), info("a", 1, kind="SQL92")), lambda admin: admin.consumer_states("G"))
    assert find_inconsistent("G", result.states) == [("T", {"c1": "a", "c2": "a"})]


def test_a_client_that_does_not_respond_is_named() -> None:
    script = state_script(info("A", 0))
    script[MASTER, RequestCode.GET_CONSUMER_RUNNING_INFO] = ReplyError(1, "the client is busy")
    result, _ = run(script, lambda admin: admin.consumer_states("G"))
    assert result.states == {}
    assert "client c1" in result.unavailable[0].broker and "busy" in result.unavailable[0].reason


@pytest.mark.parametrize(
    ("orderly", "queue", "expected"),
    [
        (False, {"cached_msg_count": 1, "last_consume_timestamp": 1_000}, ("not consuming", 99_000)),
        (False, {"cached_msg_count": 0, "last_consume_timestamp": 1_000}, None),
        (False, {"cached_msg_count": 1, "last_consume_timestamp": 90_000}, None),
        (False, {"cached_msg_count": 1, "last_consume_timestamp": 0}, ("not consuming", None)),
        (True, {"locked": False, "last_lock_timestamp": 0}, ("not locked", None)),
        (True, {"locked": False, "last_lock_timestamp": 2_000}, ("not locked", 98_000)),
        (True, {"locked": True, "droped": True, "try_unlock_times": 2}, ("not unlocked", None)),
        (True, {"locked": True, "droped": True}, None),
    ],
)
def test_blocked_queues(orderly: bool, queue: dict[str, Any], expected: tuple[str, int | None] | None) -> None:
    result, _ = run(state_script(info("*", 0, orderly=orderly, **queue)), lambda admin: admin.consumer_states("G"))
    blocked = find_blocked(result.states["c1"], 100_000)
    assert [(item.reason, item.since_ms) for item in blocked] == ([expected] if expected else [])


def test_versions_have_the_names_of_java() -> None:
    names = ("V3_0_0_SNAPSHOT", "V3_0_0_BETA5", "V3_0_0_BETA6_SNAPSHOT", "V3_0_0_FINAL")
    assert [version_name(number) for number in (0, 6, 7, 15)] == list(names)
    assert version_name(401) == "V4_9_4"
    assert (version_name(611), version_name(612), version_name(-1)) == ("V5_9_9", HIGHER, HIGHER)
    assert [release_number(text) for text in ("4.9.4", "v5.0.0", "5.3.3", "5", "")] == [401, 413, 479, None, None]


def test_the_lag_of_a_broadcasting_group_is_unknown() -> None:
    """Its clients store the offsets: the broker would answer 0, the start of a group without any."""
    broadcasting = ConsumerConnection(
        (client("a"),),
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_PASSIVELY",
        "BROADCASTING",
        {"T": SubscriptionData(topic="T")},
    )
    never_committed = stats("broker-a", 1.0, GroupOffset(10, 0, 0))
    script = LAG | {
        (MASTER, RequestCode.GET_CONSUME_STATS): lambda header: (
            never_committed if header.topic else ConsumeStats(0.0, {})
        ),
        (OTHER, RequestCode.GET_CONSUME_STATS): ConsumeStats(0.0, {}),
        (MASTER, RequestCode.GET_CONSUMER_CONNECTION_LIST): broadcasting,
        (MASTER, RequestCode.QUERY_CONSUMER_OFFSET): 0,
    }
    lag, _ = run(script, lambda admin: admin.group_lag("G"))
    assert [(queue.topic, queue.lag) for queue in lag.queues] == [("T", None)]
    assert lag.total is None
