"""Clients, offsets and configuration of consumer groups through the REST API, against scripted brokers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ariane.console.app import create_app
from ariane.console.live.live_history import LiveHistory, Rates, group_key
from ariane.console.live.live_snapshot import BrokerShare, GroupRow, LiveSnapshot
from ariane.console.services import ConsoleServices
from ariane.console.settings import ConsoleSettings
from ariane.errors import ConnectionLost, ReplyError
from ariane.model.topic import SubscriptionGroupConfig
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.admin import ClientConnection, ConsumerConnection, SubscriptionGroupTable
from ariane.protocol.requests.callbacks import ConsumeStatus, ProcessQueueInfo, RunningInfo
from ariane.protocol.requests.clients import SubscriptionData, WireQueue
from ariane.protocol.requests.routing import TopicList, TopicRoute
from ariane.protocol.requests.stats import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeStats,
    ConsumeTimeSpans,
    GetConsumeStats,
    GroupOffset,
    QueueTimeSpan,
)
from scripted_peers import MASTER, NAMES, OTHER, ROUTE, SLAVE, Script, ScriptedPeers

NOT_POLLED = LiveSnapshot(as_of_ms=0)
OFFLINE = ReplyError(ResponseCode.CONSUMER_NOT_ONLINE, "not online")
CONFIG = SubscriptionGroupConfig(group_name="G")
GROUPS: Script = {
    (NAMES, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER): TopicList(None, ("T", "%RETRY%G")),
    (MASTER, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG): SubscriptionGroupTable(
        subscription_group_table={"G": CONFIG}
    ),
    (OTHER, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG): SubscriptionGroupTable(
        subscription_group_table={"G": SubscriptionGroupConfig(group_name="G", retry_max_times=3)}
    ),
    (MASTER, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP): b"",
    (OTHER, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP): b"",
}


def consume_stats(header: GetConsumeStats, tps: float, broker: str, offset: GroupOffset) -> ConsumeStats:
    """Return the statistics of topic T, the only one for which the group has offsets."""
    if header.topic not in (None, "T"):
        return ConsumeStats()
    return ConsumeStats(tps, {WireQueue(broker, 0, "T"): offset})


NO_CLIENTS: Script = {(addr, RequestCode.GET_CONSUMER_CONNECTION_LIST): OFFLINE for addr in (MASTER, OTHER)}
LAG: Script = {
    (MASTER, RequestCode.GET_CONSUME_STATS): lambda header: consume_stats(
        header, 0.0, "broker-a", GroupOffset(10, 4, 7_000)
    ),
    (SLAVE, RequestCode.GET_CONSUME_STATS): ConsumeStats(1.25, {}),
    (OTHER, RequestCode.GET_CONSUME_STATS): lambda header: consume_stats(
        header, 0.5, "broker-b", GroupOffset(8, 8, 9_000)
    ),
}


class FixedSnapshots:
    """A poll of the cluster that always returns the same snapshot."""

    def __init__(self, snapshot: LiveSnapshot) -> None:
        self._snapshot = snapshot

    async def snapshot(self, wait_s: float = 0) -> LiveSnapshot:
        return self._snapshot


class ScriptedConsole:
    """A console whose cluster answers from a script."""

    def __init__(self, client: TestClient, peers: ScriptedPeers) -> None:
        self.client = client
        self.peers = peers

    def get(self, path: str, status: int = 200, **query: Any) -> Any:
        response = self.client.get(f"/api/v1{path}", params=query)
        assert response.status_code == status, response.text
        return response.json()

    def post(self, path: str, body: dict[str, Any], status: int = 200) -> Any:
        response = self.client.post(f"/api/v1{path}", json=body)
        assert response.status_code == status, response.text
        return response.json()

    def saved(self) -> list[tuple[str, SubscriptionGroupConfig]]:
        """Return the configurations that were sent to brokers."""
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        return [
            (addr, fastjson.decode(body, SubscriptionGroupConfig))
            for (addr, sent, _), body in zip(self.peers.sent, self.peers.bodies, strict=True)
            if sent == code
        ]


@contextmanager
def scripted_console(home: Path, script: Script, live: LiveSnapshot = NOT_POLLED) -> Iterator[ScriptedConsole]:
    peers = ScriptedPeers(script)

    @asynccontextmanager
    async def services() -> AsyncIterator[ConsoleServices]:
        settings = ConsoleSettings(namesrv=NAMES, data_dir=home)
        yield ConsoleServices(settings=settings, peers=peers, live=FixedSnapshots(live))

    with TestClient(create_app(services()), base_url="http://127.0.0.1") as client:
        yield ScriptedConsole(client, peers)


# --- list ---


def group_row(group: str, **values: Any) -> GroupRow:
    usual = {"lag": 10, "oldest_age_ms": 5_000, "tps": 2.0, "clients": 1, "topics": ("T",), "dead_letters": 0}
    return GroupRow(group=group, **(usual | values))


SHARES = (BrokerShare("broker-a", 0, 0.0), BrokerShare("broker-a", 1, 2.5))
ROWS = (
    group_row("CID_RMQ_SYS_TRANS", is_system=True),
    group_row("billing", tps=2.5, shares=SHARES, lag=90_000),
    group_row("broken", clients=None, tps=None, lag=None, oldest_age_ms=None, dead_letters=None),
    group_row("offline", clients=0, tps=0.0, lag=5, dead_letters=7),
)


def snapshot(*rows: GroupRow, history: LiveHistory | None = None) -> LiveSnapshot:
    return LiveSnapshot(
        as_of_ms=1, base_as_of_ms=1, rates_as_of_ms=2, groups=rows, history=history or LiveHistory(),
        unavailable=("Broker broker-b b:1 did not respond: refused",),
    )  # fmt: skip


def listed(console: ScriptedConsole, **query: Any) -> list[str]:
    return [row["group"] for row in console.get("/groups", **query)["groups"]["items"]]


def test_groups_are_searched_filtered_and_sorted(tmp_path: Path) -> None:
    with scripted_console(tmp_path, {}, snapshot(*ROWS)) as console:
        assert listed(console) == ["billing", "broken", "offline"]
        assert len(listed(console, system=True)) == 4
        assert listed(console, q="LIN") == ["billing", "offline"]
        # Unknown is the last in both directions: it is neither small nor large.
        assert listed(console, sort="lag", order="desc") == ["billing", "offline", "broken"]
        assert listed(console, sort="lag") == ["offline", "billing", "broken"]
        assert listed(console, sort="tps", order="desc", page=2, size=1) == ["offline"]
        for only, expected in (
            ("online", ["billing"]), ("offline", ["offline"]), ("lagging", ["billing", "offline"]), ("deadLetters", ["offline"]),
            ("unknown", ["broken"]),
        ):  # fmt: skip
            assert listed(console, only=only) == expected
        assert "expected one of" in console.get("/groups", 422, sort="colour")["error"]


def test_a_group_whose_reads_a_slave_serves_shows_its_rate(tmp_path: Path) -> None:
    with scripted_console(tmp_path, {}, snapshot(*ROWS)) as console:
        view = console.get("/groups", q="billing")
        page = console.client.get("/groups").text
    (row,) = view["groups"]["items"]
    assert (row["tps"], row["slavesTps"], row["state"]) == (2.5, 2.5, "online")
    assert "slaves 2.50" in page and "broker-b b:1" in page
    # The unknown group shows no zero.
    assert re.search(r"broken</a>.*?badge-unknown", page, re.S)


def test_the_forecast_uses_the_observed_lags(tmp_path: Path) -> None:
    history = LiveHistory()
    for number in range(21):
        history.record(number * 15_000, {group_key("billing"): Rates(None, 2.5, 120_000 - 1_500 * number, 2.5)})
    with scripted_console(tmp_path, {}, snapshot(*ROWS, history=history)) as console:
        rows = {row["group"]: row["forecast"] for row in console.get("/groups")["groups"]["items"]}
    # 100 messages per second, with the least width of a range.
    billing = rows["billing"]
    assert (billing["state"], round(billing["earliestS"]), round(billing["latestS"])) == ("draining", 783, 1_059)
    assert rows["broken"]["state"] == "unknown"


def test_before_the_first_poll_the_list_says_so(tmp_path: Path) -> None:
    with scripted_console(tmp_path, {}) as console:
        assert console.get("/groups")["isLoaded"] is False
        assert "Collecting data" in console.client.get("/groups").text


# --- progress and deliveries ---

COUNTED: Script = {
    (addr, RequestCode.VIEW_BROKER_STATS_DATA): BrokerStatsData(
        BrokerStatsItem(), BrokerStatsItem(0.0, 9_999, tps), BrokerStatsItem(0.0, 9, tps)
    )
    for addr, tps in ((MASTER, 0.0), (SLAVE, 1.25), (OTHER, 0.0))
}


def test_progress_shows_offsets_ages_and_owners_of_queues(tmp_path: Path) -> None:
    script = {**clients(info(subscription("*"))), **LAG}
    script[MASTER, RequestCode.QUERY_CONSUME_TIME_SPAN] = ConsumeTimeSpans(
        (QueueTimeSpan(0, "", 1_500, 0, "", WireQueue("broker-a", 0, "T"), 0, ""),)
    )
    with scripted_console(tmp_path, script) as console:
        view = console.get("/groups/G")
        found = console.get("/groups/G", q="broker-b")["queues"]
        page = console.client.get("/groups/G").text
    assert (view["lag"], view["tps"], view["oldestAgeMs"], view["clients"]) == (6, 1.75, 1_500, 1)
    first, second = view["queues"]["items"]
    assert (first["brokerOffset"], first["committedOffset"], first["lag"], first["owner"]) == (10, 4, 6, "c1")
    assert (second["lag"], second["oldestAgeMs"], second["owner"]) == (0, None, None)
    assert first["blocked"] == view["blocked"][0]["reason"] == "not consuming"
    assert found["total"] == 1
    assert "no client" in page and "Blocked queues: 1" in page


def test_a_master_without_a_response_makes_the_lag_unknown_and_not_smaller(tmp_path: Path) -> None:
    script = {**GROUPS, **NO_CLIENTS, **LAG, (OTHER, RequestCode.GET_CONSUME_STATS): ConnectionLost(OTHER, "refused")}
    script[MASTER, RequestCode.QUERY_CONSUME_TIME_SPAN] = ConsumeTimeSpans(())
    with scripted_console(tmp_path, script) as console:
        view = console.get("/groups/G")
        page = console.client.get("/groups/G").text
    assert (view["lag"], view["knownLag"], view["tps"], view["forecast"]["state"]) == (None, 6, None, "unknown")
    assert len(view["unavailable"]) == 1 and "≥" in page


def test_deliveries_say_that_a_slave_serves_the_reads(tmp_path: Path) -> None:
    history = LiveHistory()
    history.record(15_000, {group_key("G"): Rates(None, 1.25, 6, 1.25)})
    history.record(30_000, {group_key("G"): Rates(None, None, None, None)})
    with scripted_console(tmp_path, {**GROUPS, **NO_CLIENTS, **LAG, **COUNTED}, snapshot(history=history)) as console:
        view = console.get("/groups/G/traffic")
        page = console.client.get("/groups/G/traffic").text
    assert (view["servedBy"], view["tps"], view["mastersTps"], view["slavesTps"]) == ("slaves", 1.25, 0, 1.25)
    assert [(row["role"], row["tps"], row["share"]) for row in view["servers"]] == [
        ("master", 0, 0), ("slave", 1.25, 1), ("master", 0, 0),
    ]  # fmt: skip
    assert [(point["tps"], point["slavesTps"], point["lag"]) for point in view["history"]] == [
        (1.25, 1.25, 6),
        (None, None, None),
    ]
    assert "Slaves serve all reads of this group" in page


def test_deliveries_are_unknown_while_a_slave_does_not_respond(tmp_path: Path) -> None:
    script = {
        **GROUPS,
        **NO_CLIENTS,
        **LAG,
        **COUNTED,
        (SLAVE, RequestCode.VIEW_BROKER_STATS_DATA): ConnectionLost(SLAVE, "refused"),
    }
    with scripted_console(tmp_path, script) as console:
        view = console.get("/groups/G/traffic")
    assert (view["servedBy"], view["tps"], view["mastersTps"], view["slavesTps"]) == ("unknown", None, 0, None)
    assert [row["share"] for row in view["servers"]] == [None, None, None]


# --- clients ---


def connected(*names: str) -> ConsumerConnection:
    return ConsumerConnection(
        tuple(ClientConnection(f"10.0.0.{number}:5", name, "JAVA", 401) for number, name in enumerate(names)),
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        {"T": SubscriptionData(topic="T")},
    )


def info(*subscriptions: SubscriptionData, model: str = "CLUSTERING", **queue: Any) -> RunningInfo:
    return RunningInfo(
        "main: running",
        {WireQueue("broker-a", 0, "T"): ProcessQueueInfo(cached_msg_count=7, **queue)},
        {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY", "PROP_CONSUMER_START_TIMESTAMP": "1000", "messageModel": model},
        {"T": ConsumeStatus(consume_ok_tps=1.5, consume_failed_tps=0.25)},
        (*subscriptions, SubscriptionData(topic="%RETRY%G")),
    )


def clients(*infos: RunningInfo) -> Script:
    by_name = {f"c{number}": body for number, body in enumerate(infos, 1)}
    return {
        **GROUPS,
        (MASTER, RequestCode.GET_CONSUMER_CONNECTION_LIST): connected(*by_name),
        (OTHER, RequestCode.GET_CONSUMER_CONNECTION_LIST): OFFLINE,
        (MASTER, RequestCode.GET_CONSUMER_RUNNING_INFO): lambda header: by_name[header.client_id],
    }


def subscription(expression: str, kind: str = "TAG", topic: str = "T") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, expression_type=kind)


def test_clients_are_listed_with_what_they_report(tmp_path: Path) -> None:
    with scripted_console(tmp_path, clients(info(subscription("*")))) as console:
        view = console.get("/groups/G/clients")
    (row,) = view["clients"]
    assert (row["clientId"], row["addr"], row["language"], row["version"]) == ("c1", "10.0.0.0:5", "JAVA", "V4_9_4")
    assert (row["queues"], row["cached"], row["okTps"], row["failedTps"], row["startedMs"]) == (1, 7, 1.5, 0.25, 1000)
    assert [(item["topic"], item["isConsistent"]) for item in view["subscriptions"]] == [("T", True)]


def test_subscriptions_that_differ_are_marked_with_what_differs(tmp_path: Path) -> None:
    script = clients(
        info(subscription("a || b")),
        info(subscription("b||a")),
        info(subscription("a", "SQL92")),
        info(model="BROADCASTING"),
    )
    with scripted_console(tmp_path, script) as console:
        view = console.get("/groups/G/clients")
    (row,) = view["subscriptions"]
    assert not row["isConsistent"]
    assert (row["notSubscribed"], row["expressions"], row["hasDifferentKinds"]) == (1, 2, True)
    # The order of tags has no meaning: c1 and c2 have the usual subscription.
    assert [(cell["clientId"], cell["differs"]) for cell in row["clients"]] == [
        ("c1", False), ("c2", False), ("c3", True), ("c4", True),
    ]  # fmt: skip
    (difference,) = view["differences"]
    assert difference["setting"] == "messageModel" and difference["values"]["c4"] == "BROADCASTING"


@pytest.mark.parametrize("started", ["²", "9" * 4301, "0", "soon"])
def test_a_client_that_reports_no_readable_start_has_an_unknown_one(tmp_path: Path, started: str) -> None:
    body = info(subscription("*"))
    body.properties["PROP_CONSUMER_START_TIMESTAMP"] = started
    with scripted_console(tmp_path, clients(body)) as console:
        assert console.get("/groups/G/clients")["clients"][0]["startedMs"] is None


def test_each_client_that_does_not_respond_is_named_with_its_broker(tmp_path: Path) -> None:
    script = clients(info(subscription("*")), info(subscription("*")))
    script[MASTER, RequestCode.GET_CONSUMER_RUNNING_INFO] = ReplyError(1, "the client is busy")
    with scripted_console(tmp_path, script) as console:
        texts = console.get("/groups/G/clients")["unavailable"]
    assert [text.split(" did not respond")[0] for text in texts] == [
        f"Client {name} through broker-a {MASTER}" for name in ("c1", "c2")
    ]


def test_a_client_that_does_not_respond_is_listed_as_unknown(tmp_path: Path) -> None:
    script = clients(info(subscription("*")))
    script[MASTER, RequestCode.GET_CONSUMER_RUNNING_INFO] = ReplyError(1, "the client is busy")
    with scripted_console(tmp_path, script) as console:
        view = console.get("/groups/G/clients")
    (row,) = view["clients"]
    assert (row["isResponding"], row["queues"], row["okTps"]) == (False, None, None)
    assert "busy" in view["unavailable"][0]


def test_the_state_of_a_client_has_its_stacks_only_on_request(tmp_path: Path) -> None:
    with scripted_console(tmp_path, clients(info(subscription("*")))) as console:
        view = console.get("/groups/G/clients/c1", stacks=True)
        console.get("/groups/G/clients/c1")
        requests = [header.jstack_enable for _, code, header in console.peers.sent if code == 307]
        unknown = console.get("/groups/G/clients/c9", status=404)
    assert (view["stacks"], view["queues"][0]["cached"], view["statistics"][0]["okTps"]) == ("main: running", 7, 1.5)
    # Cached messages and no call of the listener for a minute.
    assert view["blocked"][0]["reason"] == "not consuming"
    assert requests == [True, False]
    assert "c1" in unknown["error"]


def test_a_group_without_clients_has_none_and_an_unknown_group_is_an_error(tmp_path: Path) -> None:
    with scripted_console(tmp_path, {**GROUPS, **NO_CLIENTS}) as console:
        assert console.get("/groups/G/clients")["clients"] == []
        assert "expected one of: G" in console.get("/groups/g/clients", status=404)["error"]


# --- offsets ---


def test_a_reset_shows_its_plan_before_it_changes_anything(tmp_path: Path) -> None:
    script = {**GROUPS, **NO_CLIENTS, **LAG}
    for addr in (MASTER, OTHER):
        script |= {(addr, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP): 6, (addr, RequestCode.UPDATE_CONSUMER_OFFSET): b""}
    with scripted_console(tmp_path, script) as console:
        form = {"topic": "T", "to": "time", "time": "1h", "isDryRun": True}
        (plan,) = console.post("/groups/G/offsets/reset", form)["groups"]
        assert console.peers.changes(RequestCode.UPDATE_CONSUMER_OFFSET) == []
        assert [(queue["before"], queue["after"], queue["messages"]) for queue in plan["queues"]] == [
            (4, 6, -2),
            (8, 6, 2),
        ]
        console.post("/groups/G/offsets/reset", {**form, "isDryRun": False})
        commits = console.peers.changes(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert "no consumer group g" in console.post("/groups/g/offsets/reset", form, status=404)["error"]
    assert [addr for addr, _ in commits] == [MASTER, OTHER]


def test_offsets_are_copied_to_another_group(tmp_path: Path) -> None:
    script = {**GROUPS, **NO_CLIENTS, **LAG}
    script |= {(addr, RequestCode.UPDATE_CONSUMER_OFFSET): b"" for addr in (MASTER, OTHER)}
    with scripted_console(tmp_path, script) as console:
        plan = console.post("/groups/G/offsets/clone", {"destination": "H", "isDryRun": True})
        assert console.peers.changes(RequestCode.UPDATE_CONSUMER_OFFSET) == []
        result = console.post("/groups/G/offsets/clone", {"destination": "H"})
        commits = console.peers.changes(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert "itself" in console.post("/groups/G/offsets/clone", {"destination": "G"}, status=422)["error"]
        assert "characters" in console.post("/groups/G/offsets/clone", {"destination": "a b"}, status=422)["error"]
    assert plan["offsets"] == result["offsets"]
    assert plan["notice"].startswith("would copy 2 offsets") and result["notice"].startswith("copied 2 offsets")
    assert [(header.consumer_group, header.commit_offset) for _, header in commits] == [("H", 4), ("H", 8)]  # type: ignore[union-attr]


def test_offsets_of_several_topics_are_copied_together_or_not_at_all(tmp_path: Path) -> None:
    def route(header: Any) -> TopicRoute | ReplyError:
        return ROUTE if header.topic in routed else ReplyError(ResponseCode.TOPIC_NOT_EXIST, "no route")

    script = {**GROUPS, **NO_CLIENTS, **LAG, (NAMES, RequestCode.GET_ROUTEINFO_BY_TOPIC): route}
    offsets = {WireQueue("broker-a", 0, topic): GroupOffset(10, 4, 7_000) for topic in ("T", "U")}
    script[MASTER, RequestCode.GET_CONSUME_STATS] = lambda header: ConsumeStats(
        0.0, {queue: offset for queue, offset in offsets.items() if header.topic in (None, "", queue.topic)}
    )
    script[OTHER, RequestCode.GET_CONSUME_STATS] = ConsumeStats(0.0, {})
    script[MASTER, RequestCode.UPDATE_CONSUMER_OFFSET] = b""
    with scripted_console(tmp_path, script) as console:
        routed = {"T"}
        console.post("/groups/G/offsets/clone", {"destination": "H"}, status=404)
        assert console.peers.changes(RequestCode.UPDATE_CONSUMER_OFFSET) == []
        routed = {"T", "U"}
        result = console.post("/groups/G/offsets/clone", {"destination": "H"})
        assert [row["topic"] for row in result["offsets"]] == ["T", "U"]
        console.peers.script[MASTER, RequestCode.UPDATE_CONSUMER_OFFSET] = lambda header: (
            b"" if header.topic == "T" else ReplyError(1, "busy")
        )
        error = console.post("/groups/G/offsets/clone", {"destination": "H"}, status=502)["error"]
        only_one = console.post("/groups/G/offsets/clone", {"destination": "H", "topic": "T"})
    # What was changed already is part of the message.
    assert "1 of 2 changes failed" in error and "done: move H to offset 4 in queue 0 of T" in error
    assert only_one["notice"] == "copied 1 offset of G to H"


@pytest.mark.parametrize("groups", [["a@b"], ["G", "a@b"]])
def test_a_reset_needs_valid_names_of_groups(tmp_path: Path, groups: list[str]) -> None:
    script = {**GROUPS, **NO_CLIENTS, **LAG}
    for addr in (MASTER, OTHER):
        script |= {(addr, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP): 6, (addr, RequestCode.UPDATE_CONSUMER_OFFSET): b""}
    with scripted_console(tmp_path, script) as console:
        form = {"groups": groups, "to": "time", "time": "1h"}
        error = console.post("/topics/T/reset-offsets", form, status=422)["error"]
        assert console.peers.changes(RequestCode.UPDATE_CONSUMER_OFFSET) == []
    assert "a@b" in error and "no group was moved" in error


# --- configuration ---


def test_settings_that_differ_between_brokers_are_marked(tmp_path: Path) -> None:
    with scripted_console(tmp_path, GROUPS) as console:
        view = console.get("/groups/G/configuration")
    assert view["brokers"] == ["broker-a", "broker-b"] and view["isSuspended"] is False
    assert [(row["name"], row["values"]) for row in view["settings"] if row["differs"]] == [("retryMaxTimes", [16, 3])]


def test_a_change_keeps_the_other_settings_of_each_broker(tmp_path: Path) -> None:
    with scripted_console(tmp_path, GROUPS) as console:
        dry = console.post("/groups/G/configuration", {"retryQueueNums": 4, "isDryRun": True})
        assert console.saved() == [] and dry["isDryRun"] and len(dry["changes"]) == 2
        console.post("/groups/G/configuration", {"retryQueueNums": "4", "consumeEnable": ""})
        saved = console.saved()
        assert "nothing to change" in console.post("/groups/G/configuration", {}, status=422)["error"]
        assert (
            "broker-z"
            in console.post("/groups/G/configuration", {"brokerId": 1, "brokers": ["broker-z"]}, status=404)["error"]
        )
    assert [(addr, config.retry_queue_nums, config.retry_max_times) for addr, config in saved] == [
        (MASTER, 4, 16),
        (OTHER, 4, 3),
    ]


def test_a_broker_that_rejects_new_settings_does_not_stop_the_others(tmp_path: Path) -> None:
    script = {**GROUPS, (MASTER, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP): ReplyError(1, "disk full")}
    with scripted_console(tmp_path, script) as console:
        error = console.post("/groups/G/configuration", {"retryQueueNums": 4}, status=502)["error"]
        assert [addr for addr, _ in console.saved()] == [MASTER, OTHER]
    assert "1 of 2 changes failed" in error and "disk full" in error
    assert f"done: save consumer group G on {OTHER}" in error


def test_consumption_is_suspended_and_resumed(tmp_path: Path) -> None:
    with scripted_console(tmp_path, GROUPS) as console:
        assert console.post("/groups/G/suspension", {"isSuspended": True})["notice"] == "suspended G"
        assert console.post("/groups/G/suspension", {"isSuspended": False})["notice"] == "resumed G"
        assert [config.consume_enable for _, config in console.saved()] == [False, False, True, True]


def test_nothing_is_changed_while_a_broker_does_not_respond(tmp_path: Path) -> None:
    script = {**GROUPS, (OTHER, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG): ConnectionLost(OTHER, "refused")}
    with scripted_console(tmp_path, script) as console:
        error = console.post("/groups/G/configuration", {"retryMaxTimes": 1}, status=502)["error"]
        assert console.saved() == []
    assert error.startswith("nothing was changed") and OTHER in error


def test_a_group_is_created_once(tmp_path: Path) -> None:
    with scripted_console(tmp_path, GROUPS) as console:
        console.post("/groups", {"group": "H", "retryMaxTimes": 2, "brokers": ["broker-b"]})
        assert console.saved() == [(OTHER, SubscriptionGroupConfig(group_name="H", retry_max_times=2))]
        assert "exists on broker-a, broker-b" in console.post("/groups", {"group": "G"}, status=409)["error"]
        assert "characters" in console.post("/groups", {"group": "a/b"}, status=422)["error"]


@pytest.mark.parametrize("confirm", ["", "g", "G "])
def test_a_deletion_needs_the_typed_name(tmp_path: Path, confirm: str) -> None:
    script = {**GROUPS, **{(addr, RequestCode.DELETE_SUBSCRIPTIONGROUP): b"" for addr in (MASTER, OTHER)}}
    with scripted_console(tmp_path, script) as console:
        # White space at the ends is not a difference that anybody sees.
        expected = 200 if confirm.strip() == "G" else 422
        console.post("/groups/G/delete", {"confirm": confirm}, status=expected)
        deleted = console.peers.changes(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    assert [addr for addr, _ in deleted] == ([MASTER, OTHER] if expected == 200 else [])


def test_a_deletion_is_planned_without_a_confirmation(tmp_path: Path) -> None:
    with scripted_console(tmp_path, GROUPS) as console:
        plan = console.post("/groups/G/delete", {"isDryRun": True, "withTopics": True})
        assert console.peers.changes(RequestCode.DELETE_SUBSCRIPTIONGROUP) == []
    assert any("%DLQ%G" in change for change in plan["changes"])
