"""Changes of topics and their views, with a name server and two brokers in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_cluster import FIRST, NOW_MS, SECOND, ScriptedCluster, services

from ariane.console.areas.overview.producers import ProducerQuery, producer_list
from ariane.console.areas.topics import topic_changes, topic_details
from ariane.console.areas.topics.topic_changes import ChangeTopicForm, CreateTopicForm, DeleteTopicForm, OrderConfigForm
from ariane.console.live.live_snapshot import LiveSnapshot, TopicRow
from ariane.console.web.paging import ListQuery
from ariane.errors import ConfigError, NotFound, RouteNotFound, ServerUnavailable, UsageError
from ariane.model.topic import TopicConfig
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.brokers import ProducerInfo


def config(topic: str = "orders", **values: Any) -> TopicConfig:
    return TopicConfig(topic_name=topic, **{"read_queue_nums": 4, "write_queue_nums": 4} | values)


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster(first={"orders": config()}, second={"orders": config(write_queue_nums=2, perm=4)})


@pytest.fixture
def run(cluster: ScriptedCluster, tmp_path: Path) -> Callable[..., Any]:
    snapshot = LiveSnapshot(as_of_ms=NOW_MS, topic_index={"orders": TopicRow(topic="orders", kind="normal")})
    parts = services(cluster, snapshot, tmp_path)

    def run_area(area: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        return asyncio.run(area(parts, *arguments))

    return run_area


Run = Callable[..., Any]


# --- create ---


def test_a_topic_is_created_on_all_brokers_or_on_selected_ones(cluster: ScriptedCluster, run: Run) -> None:
    result = run(topic_changes.create_topic, CreateTopicForm(topic="mails"))
    assert result.notice == "created topic mails with 8 queues on broker-a, broker-b"
    assert cluster.topics[SECOND]["mails"].read_queue_nums == 8
    run(topic_changes.create_topic, CreateTopicForm(topic="logs", brokers=("broker-b",), queues=2, permission="write"))
    single = run(topic_changes.create_topic, CreateTopicForm(topic="single", brokers=("broker-b",), queues=1))
    assert single.notice == "created topic single with 1 queue on broker-b"
    assert "logs" not in cluster.topics[FIRST]
    assert (cluster.topics[SECOND]["logs"].write_queue_nums, cluster.topics[SECOND]["logs"].perm) == (2, 2)


def test_an_ordered_topic_gets_an_order_configuration(cluster: ScriptedCluster, run: Run) -> None:
    run(topic_changes.create_topic, CreateTopicForm(topic="ledger", queues=3, write_queues=2, is_ordered=True))
    assert cluster.orders == {"ledger": "broker-a:2;broker-b:2"}


def test_a_dry_run_of_a_new_topic_changes_nothing(cluster: ScriptedCluster, run: Run) -> None:
    result = run(topic_changes.create_topic, CreateTopicForm(topic="mails", is_ordered=True, is_dry_run=True))
    assert result.is_dry_run
    assert result.changes == [
        "create or change topic mails on a:1",
        "create or change topic mails on b:1",
        "set ORDER_TOPIC_CONFIG/mails on ns:1",
    ]
    assert cluster.changes == []


def test_an_existing_topic_an_unknown_broker_and_a_bad_name_are_refused(cluster: ScriptedCluster, run: Run) -> None:
    with pytest.raises(ConfigError, match="exists on broker-a, broker-b"):
        run(topic_changes.create_topic, CreateTopicForm(topic="orders"))
    with pytest.raises(NotFound, match="no broker broker-x; expected one of: broker-a, broker-b"):
        run(topic_changes.create_topic, CreateTopicForm(topic="mails", brokers=("broker-x",)))
    with pytest.raises(ConfigError, match="characters other than"):
        run(topic_changes.create_topic, CreateTopicForm(topic="<script>"))
    assert cluster.changes == []


# --- change ---


def test_differing_settings_are_marked(run: Run) -> None:
    view = run(topic_details.topic_configuration, "orders")
    assert view.differing == ["permission", "write_queues"]
    assert [(row.broker, row.permission) for row in view.brokers] == [("broker-a", "read-write"), ("broker-b", "read")]


def test_a_change_keeps_other_settings_and_omits_brokers_that_have_it(cluster: ScriptedCluster, run: Run) -> None:
    form = ChangeTopicForm(permission="read-write", read_queues=None)
    plan = run(topic_changes.change_topic, "orders", form.model_copy(update={"is_dry_run": True}))
    assert [(row.before.broker, row.before.permission, row.after.permission, row.changed) for row in plan.brokers] == [
        ("broker-b", "read", "read-write", ["permission"])
    ]
    assert cluster.changes == []
    result = run(topic_changes.change_topic, "orders", form)
    assert result.notice == "changed topic orders on broker-b"
    assert (cluster.topics[SECOND]["orders"].perm, cluster.topics[SECOND]["orders"].write_queue_nums) == (6, 2)
    again = run(topic_changes.change_topic, "orders", form)
    assert again.notice == "nothing to change: topic orders has these settings already"


def test_a_change_needs_the_present_settings_of_all_its_brokers(cluster: ScriptedCluster, run: Run) -> None:
    cluster.down.add(SECOND)
    with pytest.raises(ServerUnavailable, match="nothing was changed, because the present configuration is unknown"):
        run(topic_changes.change_topic, "orders", ChangeTopicForm(write_queues=1))
    assert cluster.changes == []
    run(topic_changes.change_topic, "orders", ChangeTopicForm(write_queues=1, brokers=("broker-a",)))
    assert cluster.topics[FIRST]["orders"].write_queue_nums == 1


def test_a_change_without_settings_or_with_a_foreign_broker_is_refused(cluster: ScriptedCluster, run: Run) -> None:
    with pytest.raises(UsageError, match="specify at least one"):
        run(topic_changes.change_topic, "orders", ChangeTopicForm(permission=""))
    del cluster.topics[SECOND]["orders"]
    with pytest.raises(NotFound, match="on broker broker-b; expected one of: broker-a"):
        run(topic_changes.change_topic, "orders", ChangeTopicForm(write_queues=1, brokers=("broker-a", "broker-b")))


# --- delete, order ---


def test_a_deletion_needs_the_typed_name(cluster: ScriptedCluster, run: Run) -> None:
    cluster.orders["orders"] = "broker-a:4"
    for confirm in ("", "Orders", "orders "):
        with pytest.raises(UsageError, match="nothing was deleted"):
            run(topic_changes.delete_topic, "orders", DeleteTopicForm.model_construct(confirm=confirm))
    plan = run(topic_changes.delete_topic, "orders", DeleteTopicForm(is_dry_run=True))
    assert plan.changes[-1] == "delete ORDER_TOPIC_CONFIG/orders on ns:1"
    assert cluster.changes == []
    run(topic_changes.delete_topic, "orders", DeleteTopicForm(confirm="orders"))
    assert [code for _, code, _ in cluster.changes] == [
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.DELETE_KV_CONFIG,
    ]
    with pytest.raises(RouteNotFound):
        run(topic_changes.delete_topic, "orders", DeleteTopicForm(confirm="orders"))


def test_an_order_configuration_is_checked_set_and_deleted(cluster: ScriptedCluster, run: Run) -> None:
    for text, fault in (
        ("broker-a", "expected BROKER:QUEUES"),
        ("broker-a:0", "expected"),
        ("other:4", "not on this broker"),
    ):
        with pytest.raises(UsageError, match=fault):
            run(topic_changes.change_order, "orders", OrderConfigForm(configuration=text))
    run(topic_changes.change_order, "orders", OrderConfigForm(configuration=" broker-a:4 ; broker-b:2; "))
    assert cluster.orders == {"orders": "broker-a:4;broker-b:2"}
    plan = run(topic_changes.change_order, "orders", OrderConfigForm(is_dry_run=True))
    assert (plan.notice, plan.is_dry_run) == ("would delete the order configuration of topic orders", True)
    assert run(topic_changes.change_order, "orders", OrderConfigForm()).notice.startswith("deleted the order")
    assert cluster.orders == {}


# --- reads with a broker that does not respond ---


def test_totals_are_unknown_while_a_broker_does_not_respond(cluster: ScriptedCluster, run: Run) -> None:
    cluster.groups = {FIRST: ("billing",), SECOND: ("mail",)}
    view = run(topic_details.topic_status, "orders")
    assert (view.messages, view.queues, view.stored_tps, view.stored_day) == (70, 6, 3.0, 180)
    assert (view.groups, view.is_complete, view.last_message_ms, view.kind) == (
        ["billing", "mail"],
        True,
        NOW_MS,
        "normal",
    )
    cluster.down.add(SECOND)
    view = run(topic_details.topic_status, "orders")
    assert (view.messages, view.stored_tps, view.last_message_ms, view.is_complete) == (None, None, None, False)
    assert view.queues == 6, "name servers know the queues"
    assert view.unavailable == ["Broker broker-b b:1 did not respond: connection to b:1: refused"]


def test_forms_offer_brokers_and_groups_of_a_topic(cluster: ScriptedCluster, run: Run) -> None:
    cluster.groups = {FIRST: ("billing",), SECOND: ("mail",)}
    view = run(topic_details.topic_form, "orders")
    assert (view.kind, view.brokers, view.groups) == ("normal", ["broker-a", "broker-b"], ["billing", "mail"])
    cluster.down.add(SECOND)
    view = run(topic_details.topic_form, "orders")
    assert view.groups == ["billing"]
    assert view.unavailable == ["Broker broker-b b:1 did not respond: connection to b:1: refused"]
    with pytest.raises(RouteNotFound):
        run(topic_details.topic_form, "missing")


def test_a_broker_without_the_topic_does_not_make_its_totals_unknown(cluster: ScriptedCluster, run: Run) -> None:
    del cluster.topics[SECOND]["orders"]
    cluster.down.add(SECOND)
    view = run(topic_details.topic_queues, "orders", ListQuery(sort="messages", order="desc", size=2))
    assert (view.messages, view.unavailable, view.queues.total) == (60, [], 4)
    assert [row.queue_id for row in view.queues.items] == [3, 2]
    assert (
        run(topic_details.topic_queues, "orders", ListQuery(sort="lastMessage")).queues.items[-1].last_message_ms
        is None
    )


def test_only_groups_of_the_page_are_asked_about(cluster: ScriptedCluster, run: Run) -> None:
    cluster.groups = {FIRST: tuple(f"group-{number}" for number in range(30)), SECOND: ()}
    view = run(topic_details.topic_consumers, "orders", ListQuery(page=2, size=25))
    assert (view.consumers.total, len(view.consumers.items)) == (30, 5)
    assert view.consumers.items[0].consume_tps == 5.0
    with pytest.raises(UsageError, match="expected one of: group"):
        run(topic_details.topic_consumers, "orders", ListQuery(sort="lag"))


def test_a_producer_of_two_brokers_is_one_row(cluster: ScriptedCluster, run: Run) -> None:
    client = ProducerInfo("10.0.0.9@1", "JAVA", NOW_MS, "/10.0.0.9:4711", 401)
    cluster.producers = {FIRST: {"shop": (client,)}, SECOND: {"shop": (client,), "mail": (client,)}}
    view = run(producer_list, ProducerQuery())
    rows = [(row.group, row.addr, row.version, row.brokers) for row in view.producers.items]
    assert rows == [
        ("mail", "10.0.0.9:4711", "V4_9_4", ["broker-b"]),
        ("shop", "10.0.0.9:4711", "V4_9_4", ["broker-a", "broker-b"]),
    ]
    cluster.producers[SECOND] = None
    view = run(producer_list, ProducerQuery(group="shop"))
    assert (view.producers.total, len(view.unavailable)) == (1, 1)
