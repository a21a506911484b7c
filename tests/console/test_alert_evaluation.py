"""Evaluation of alert rules: pure, with readings made here and with rows of live snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

import tables_on_disk
from ariane.clock import ms_of
from ariane.cluster.servers.broker_sets import BrokerSet, SetMember
from ariane.console.alerts import evaluation as module
from ariane.console.alerts.alert_rules import (
    DEFAULT_RULES,
    AlertCondition,
    AlertMetric,
    AlertRule,
    Severity,
    check_rule,
)
from ariane.console.alerts.alert_texts import alert_text, condition_text
from ariane.console.alerts.evaluation import AlertStates, AlertTransition, evaluate
from ariane.console.alerts.pipeline_readings import PIPELINE_METRICS, read_pipeline
from ariane.console.alerts.readings import MetricReading, SnapshotReadings, read_snapshot
from ariane.console.alerts.silences import AlertSilence, check_silence, due_notifications
from ariane.console.live.live_snapshot import BrokerRow, GroupRow, LiveSnapshot, NameServerRow, TopicRow
from ariane.errors import ConfigError
from ariane.reports.tables.pipeline_status import SourceStatus, write_status
from ariane.tables import TRACE_REJECTS

LAG = AlertRule(
    id="lag", name="High lag", metric=AlertMetric.GROUP_LAG, condition=AlertCondition.ABOVE, threshold=100, hold_s=60
)
UNKNOWN, MINIMUM_50, MINIMUM_500 = MetricReading(None), MetricReading(50, True), MetricReading(500, True)


def changed(rule: AlertRule, **changes: object) -> AlertRule:
    return msgspec.structs.replace(rule, **changes)


class Run:
    """Evaluates one rule after another snapshot, and lists the transitions as (second, subject, begin or end)."""

    def __init__(self, *rules: AlertRule) -> None:
        self.rules = rules
        self.states = AlertStates()
        self.log: list[tuple[int, str, bool]] = []
        self.last: list[AlertTransition] = []

    def at(
        self, second: int, values: Mapping[str, float | MetricReading | None], *, metric: AlertMetric = AlertMetric.GROUP_LAG,
        is_complete: bool = True,
    ) -> None:  # fmt: skip
        readings = {
            name: value if isinstance(value, MetricReading) else MetricReading(value) for name, value in values.items()
        }
        snapshot = SnapshotReadings(1000 * second, is_complete, {metric: readings})
        result = evaluate(self.rules, snapshot, self.states, 1000 * second)
        self.states, self.last = result.states, result.transitions
        self.log += [(second, transition.state.subject, transition.is_firing) for transition in result.transitions]


def test_a_condition_must_hold_for_its_time() -> None:
    run = Run(LAG)
    for second, lag in ((0, 101), (30, 100), (40, 101), (99, 500), (100, 101), (130, 100), (140, 99)):
        run.at(second, {"billing": lag})
    assert run.log == [(100, "billing", True), (130, "billing", False)]


def test_each_subject_has_its_own_alert() -> None:
    run = Run(changed(LAG, hold_s=0, pattern="b*", exclude="b-test*"))
    run.at(0, {"billing": 500, "books": 1, "b-test-1": 500, "orders": 500})
    run.at(10, {"billing": 500, "books": 500, "b-test-1": 500, "orders": 500})
    assert run.log == [(0, "billing", True), (10, "books", True)]


def test_patterns_distinguish_case() -> None:
    run = Run(changed(LAG, hold_s=0, pattern="Billing"))
    run.at(0, {"billing": 500, "Billing": 500})
    assert run.log == [(0, "Billing", True)]


def test_an_unknown_value_neither_fires_nor_resolves() -> None:
    run = Run(LAG)
    run.at(0, {"billing": 500})
    run.at(60, {"billing": UNKNOWN})
    assert run.log == []
    run.at(70, {"billing": 500})
    run.at(80, {"billing": UNKNOWN})
    run.at(90, {}, is_complete=False)
    assert run.log == [(70, "billing", True)]
    run.at(100, {"billing": 0})
    assert run.log[-1] == (100, "billing", False)


def test_a_minimum_proves_only_that_a_limit_is_exceeded() -> None:
    run = Run(changed(LAG, hold_s=0))
    run.at(0, {"billing": MINIMUM_50})
    assert run.log == []
    run.at(10, {"billing": MINIMUM_500})
    run.at(20, {"billing": MINIMUM_50})
    assert run.log == [(10, "billing", True)]
    below = Run(changed(LAG, hold_s=0, condition=AlertCondition.BELOW))
    below.at(0, {"billing": MINIMUM_50})
    assert below.log == []
    below.at(10, {"billing": 50})
    below.at(20, {"billing": MINIMUM_500})
    assert below.log == [(10, "billing", True), (20, "billing", False)]


def test_unknown_rules_fire_for_unknown_and_partial_values() -> None:
    run = Run(changed(LAG, condition=AlertCondition.UNKNOWN, hold_s=30))
    run.at(0, {"billing": UNKNOWN, "books": MINIMUM_50, "orders": 0})
    run.at(30, {"billing": UNKNOWN, "books": MINIMUM_50, "orders": 0})
    run.at(40, {"billing": 0, "books": MINIMUM_50, "orders": 0})
    assert run.log == [(30, "billing", True), (30, "books", True), (40, "billing", False)]


def test_growth_is_measured_within_its_time() -> None:
    rule = changed(LAG, metric=AlertMetric.DEAD_LETTERS, condition=AlertCondition.GROWS, threshold=2, hold_s=100)
    run = Run(rule)
    for second, count in ((0, 10), (50, 12), (100, 13), (149, 13), (150, 13), (200, 13)):
        run.at(second, {"billing": count}, metric=AlertMetric.DEAD_LETTERS)
    assert run.log == [(100, "billing", True), (150, "billing", False)], "12 − 10 left the time at 150 s"
    run.at(300, {"billing": UNKNOWN}, metric=AlertMetric.DEAD_LETTERS)
    run.at(310, {"billing": 5}, metric=AlertMetric.DEAD_LETTERS)
    run.at(320, {"billing": 9}, metric=AlertMetric.DEAD_LETTERS)
    assert run.log[-1] == (320, "billing", True), "expired messages do not hide new ones"


def test_the_first_value_is_no_growth() -> None:
    rule = changed(LAG, metric=AlertMetric.DEAD_LETTERS, condition=AlertCondition.GROWS, threshold=0, hold_s=100)
    run = Run(rule)
    run.at(0, {"billing": 1_000_000}, metric=AlertMetric.DEAD_LETTERS)
    assert run.log == []


def test_remembered_changes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHANGES_MAX", 10)
    rule = changed(LAG, metric=AlertMetric.DEAD_LETTERS, condition=AlertCondition.GROWS, threshold=150, hold_s=1_000)
    run = Run(rule)
    for second in range(200):
        run.at(second, {"billing": second}, metric=AlertMetric.DEAD_LETTERS)
    assert len(run.states.growth["lag", "billing"]) == 10
    assert run.log == [(151, "billing", True)], "the sum of the growth stays exact"


def test_a_deleted_group_ends_its_alert_only_if_all_servers_responded() -> None:
    run = Run(changed(LAG, hold_s=0))
    run.at(0, {"billing": 500})
    run.at(10, {}, is_complete=False)
    assert run.log == [(0, "billing", True)]
    run.at(20, {})
    assert run.log[-1] == (20, "billing", False)
    assert run.last[0].reason == "it does not exist any more"


def test_a_broker_that_is_not_listed_any_more_stays_an_alert() -> None:
    run = Run(changed(LAG, metric=AlertMetric.BROKER, condition=AlertCondition.UNKNOWN, hold_s=0))
    run.at(0, {"broker-a:0": None}, metric=AlertMetric.BROKER)
    run.at(10, {}, metric=AlertMetric.BROKER)
    run.at(20, {"broker-a:0": 1}, metric=AlertMetric.BROKER)
    assert run.log == [(0, "broker-a:0", True), (20, "broker-a:0", False)]


@pytest.mark.parametrize("change", ["changed", "disabled", "deleted"])
def test_a_changed_rule_ends_its_alerts(change: str) -> None:
    rule = changed(LAG, hold_s=0)
    run = Run(rule)
    run.at(0, {"billing": 500})
    run.rules = {
        "changed": (changed(rule, threshold=1_000),), "disabled": (changed(rule, is_enabled=False),), "deleted": (),
    }[change]  # fmt: skip
    run.at(10, {"billing": 500})
    run.at(20, {"billing": 500})
    assert run.log == [(0, "billing", True), (10, "billing", False)]
    assert run.last == []


def test_the_number_of_alerts_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STATES_MAX", 3)
    rules = [changed(LAG, hold_s=0)]
    values = {AlertMetric.GROUP_LAG: {f"g{number}": MetricReading(500) for number in range(5)}}
    first = evaluate(rules, SnapshotReadings(0, True, values), AlertStates(), 0)
    assert (len(first.states.alerts), len(first.transitions), first.omitted) == (3, 3, 2)
    second = evaluate(rules, SnapshotReadings(1, True, values), first.states, 1)
    assert (len(second.states.alerts), second.transitions, second.omitted) == (3, [], 2)


def test_the_bound_is_that_of_all_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STATES_MAX", 3)
    rules = [changed(LAG, hold_s=0, id=name) for name in ("first", "second")]
    values = {AlertMetric.GROUP_LAG: {f"g{number}": MetricReading(500) for number in range(2)}}
    first = evaluate(rules, SnapshotReadings(0, True, values), AlertStates(), 0)
    assert (len(first.states.alerts), first.omitted) == (3, 1)
    values = {AlertMetric.GROUP_LAG: {"g0": MetricReading(0), "g1": MetricReading(500)}}
    second = evaluate(rules, SnapshotReadings(1, True, values), first.states, 1)
    assert (sorted(second.states.alerts), second.omitted) == ([("first", "g1"), ("second", "g1")], 0)
    gone = evaluate(rules, SnapshotReadings(2, True, {AlertMetric.GROUP_LAG: {}}), second.states, 2)
    assert (gone.states.alerts, len(gone.transitions)) == ({}, 2)


def test_the_values_of_growing_rules_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STATES_MAX", 3)
    rules = [changed(LAG, metric=AlertMetric.DEAD_LETTERS, condition=AlertCondition.GROWS, threshold=0)]
    states = AlertStates()
    for ms, names in ((0, "cde"), (1, "abcde")):
        values = {AlertMetric.DEAD_LETTERS: {name: MetricReading(1 + ms) for name in names}}
        result = evaluate(rules, SnapshotReadings(ms, True, values), states, ms)
        states = result.states
    assert sorted(subject for _, subject in states.growth) == ["c", "d", "e"], "those that are watched already"
    assert (len(states.alerts), result.omitted) == (3, 2)


# --- silences ---


def silence(**values: object) -> AlertSilence:
    defaults: dict[str, object] = {"id": "s", "rule_id": "", "pattern": "*", "until_ms": 100_000}
    return AlertSilence(**{**defaults, **values})  # type: ignore[arg-type]


def test_a_silence_delays_the_notification_to_its_end() -> None:
    run = Run(changed(LAG, hold_s=0))
    run.at(0, {"billing": 500, "orders": 500})
    due, alerts = due_notifications(run.states.alerts, run.last, [silence(pattern="bil*")], 0)
    assert [transition.state.subject for transition in due] == ["orders"]
    due, alerts = due_notifications(alerts, [], [silence(pattern="bil*")], 99_999)
    assert due == []
    due, alerts = due_notifications(alerts, [], [silence(pattern="bil*")], 100_000)
    assert [(transition.state.subject, transition.time_ms) for transition in due] == [("billing", 0)]
    assert due_notifications(alerts, [], [], 100_001)[0] == [], "once"


def test_the_end_of_a_silent_alert_is_not_notified() -> None:
    run = Run(changed(LAG, hold_s=0))
    run.at(0, {"billing": 500})
    run.at(10, {"billing": 0})
    assert due_notifications(run.states.alerts, run.last, [], 10_000)[0] == []


def test_silences_of_a_rule() -> None:
    run = Run(changed(LAG, hold_s=0), changed(LAG, id="other", hold_s=0))
    run.at(0, {"billing": 500})
    due, _ = due_notifications(run.states.alerts, run.last, [silence(rule_id="other")], 0)
    assert [transition.state.rule.id for transition in due] == ["lag"]


@pytest.mark.parametrize(
    "values", [{"until_ms": 0}, {"until_ms": 31 * 86_400_000}, {"pattern": ""}, {"reason": "x" * 201}]
)
def test_invalid_silences(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        check_silence(silence(**values), 0)


# --- rules ---


def test_default_rules_are_valid() -> None:
    for rule in DEFAULT_RULES:
        check_rule(rule)
    assert len({rule.id for rule in DEFAULT_RULES}) == len(DEFAULT_RULES)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"name": ""}, "name"),
        ({"metric": AlertMetric.BROKER}, "condition"),
        ({"condition": AlertCondition.GROWS}, "condition"),
        ({"pattern": ""}, "pattern"),
        ({"threshold": float("nan")}, "threshold"),
        ({"threshold": -1}, "threshold"),
        ({"hold_s": 86_401}, "holdS"),
        ({"metric": AlertMetric.DEAD_LETTERS, "condition": AlertCondition.GROWS, "hold_s": 0}, "holdS"),
    ],
)
def test_invalid_rules(changes: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_rule(changed(LAG, **changes))
    assert raised.value.key == key


def test_texts() -> None:
    assert condition_text(LAG) == "Lag of a consumer group above 100 messages for 60 s"
    run = Run(changed(LAG, hold_s=0, severity=Severity.CRITICAL))
    run.at(0, {"billing": 12_345})
    expected = "[CRITICAL] High lag: group billing (Lag of a consumer group above 100 messages, now 12,345 messages)"
    assert alert_text(run.last[0]) == expected


# --- readings ---


def test_readings_of_a_snapshot() -> None:
    snapshot = LiveSnapshot(
        as_of_ms=5,
        base_as_of_ms=5,
        brokers=(
            BrokerRow(cluster="c", broker="a", broker_id=0, addr="h:1", is_up=True, disk_ratio=0.5, certificate_days=12),
            BrokerRow(
                cluster="c", broker="a", broker_id=1, addr="h:2", is_up=True, disk_ratio=-1.0, replication_delay_ms=1_500,
                replication_delay_is_minimum=True,
            ),
            BrokerRow(cluster="c", broker="b", broker_id=0, addr="h:3", is_up=False),
        ),
        name_servers=(NameServerRow("ns:1", True, certificate_days=-1), NameServerRow("ns:2", True)),
        topics=(TopicRow(topic="orders", kind="normal", tps_in=1.5), TopicRow(topic="%RETRY%g", kind="retry")),
        groups=(
            GroupRow(group="empty", lag=0, dead_letters=0),
            GroupRow(group="late", lag=7, lag_is_partial=True, oldest_age_ms=2_500),
            GroupRow(group="odd", lag=7),
            GroupRow(group="wide", model="broadcasting", tps=3.0, tps_is_partial=True),
            GroupRow(group="TOOLS", is_system=True, lag=1),
        ),
    )  # fmt: skip
    readings = read_snapshot(snapshot)
    values = readings.values
    assert (readings.as_of_ms, readings.is_complete) == (5, True)
    assert values[AlertMetric.GROUP_LAG] == {"empty": (0, False), "late": (7, True), "odd": (7, False)}
    assert values[AlertMetric.GROUP_AGE] == {"empty": (0.0, False), "late": (2.5, True), "odd": (None, False)}
    assert values[AlertMetric.GROUP_TPS]["wide"] == (3.0, True)
    assert "TOOLS" not in values[AlertMetric.GROUP_TPS]
    assert values[AlertMetric.TOPIC_TPS] == {"orders": (1.5, False)}
    assert values[AlertMetric.BROKER] == {"a:0": (1.0, False), "a:1": (1.0, False), "b:0": (None, False)}
    assert values[AlertMetric.BROKER_DISK] == {"a:0": (50.0, False), "a:1": (None, False), "b:0": (None, False)}
    assert values[AlertMetric.CERTIFICATE_DAYS] == {"a:0": (12, False), "ns:1": (-1, False)}
    assert values[AlertMetric.REPLICATION_DELAY] == {"a:1": (1.5, True)}
    assert not read_snapshot(msgspec.structs.replace(snapshot, unavailable=("b",))).is_complete
    assert not read_snapshot(msgspec.structs.replace(snapshot, base_as_of_ms=None)).is_complete


def test_readings_of_broker_sets() -> None:
    m1, m2 = SetMember("m1", "h:1", "MASTER", 3, 9, ""), SetMember("m2", "h:2", "RECONCILING", 2, 5, "late")
    sets = {
        "a": BrokerSet("a", (m1, m2), ("m1",)),
        "b": BrokerSet("b", (m1, m2), ("m1",)),
        "c": BrokerSet("c", (m2,), ("m2",)),
    }
    rows = (BrokerRow(cluster="c", broker="b", broker_id=2, addr="h:3", is_up=False),)
    values = read_snapshot(LiveSnapshot(as_of_ms=5, brokers=rows, broker_sets=sets)).values
    assert values[AlertMetric.BROKER_SET_MASTER] == {"a": (1.0, False), "b": (1.0, False), "c": (None, False)}
    assert values[AlertMetric.BROKER_SET_BEHIND] == {"a": (1, False), "b": (1, True), "c": (None, False)}


def test_a_broker_set_that_is_not_listed_any_more_keeps_its_alert() -> None:
    metric = AlertMetric.BROKER_SET_MASTER
    run = Run(changed(LAG, metric=metric, condition=AlertCondition.UNKNOWN, hold_s=30))
    for second, values in ((0, {"a": 1}), (10, {"a": None}), (40, {"a": None}), (50, {}), (60, {"a": 1})):
        run.at(second, values, metric=metric)
    assert run.log == [(40, "a", True), (60, "a", False)]


# --- pipeline ---


def test_values_of_the_pipeline(tmp_path: Path) -> None:
    at = datetime(2026, 11, 21, 10, tzinfo=UTC)
    now_ms = ms_of(at) + 90_000
    row = {TRACE_REJECTS.time_column: at}
    tables_on_disk.put(tmp_path, TRACE_REJECTS, [row, row], as_of_ms=ms_of(at), applied={"traces 1": 3})
    for name, unavailable in (("traces", None), ("samples", "b:1 does not respond")):
        status = SourceStatus(name, now_ms, 3, 10, None, unavailable, retries=4)
        write_status(tmp_path, status)
    values = read_pipeline(tmp_path, now_ms)
    assert values.keys() == PIPELINE_METRICS
    assert values == {
        AlertMetric.PIPELINE_TABLE_AGE: {"trace_rejects": MetricReading(90)},
        AlertMetric.PIPELINE_SOURCE: {"traces": MetricReading(1), "samples": UNKNOWN},
        AlertMetric.PIPELINE_REJECTED: {"traces": MetricReading(2)},
        AlertMetric.PIPELINE_RETRIES: {"traces": MetricReading(4), "samples": MetricReading(4)},
    }


def test_tables_that_cannot_be_read_neither_begin_nor_end_an_alert() -> None:
    run = Run(changed(LAG, hold_s=0, metric=AlertMetric.PIPELINE_TABLE_AGE))
    run.at(0, {"journeys": 500}, metric=AlertMetric.PIPELINE_TABLE_AGE)
    run.at(10, {}, metric=AlertMetric.BROKER)
    run.at(20, {}, metric=AlertMetric.PIPELINE_TABLE_AGE)
    assert run.log == [(0, "journeys", True), (20, "journeys", False)]
