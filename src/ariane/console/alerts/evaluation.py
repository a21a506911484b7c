"""Evaluates alert rules. Pure: rules × readings × states → states and transitions.

    condition:   holds ──(hold_s)──→ firing ──── does not hold ──→ resolved
    unknown:     changes nothing, except for rules with the condition `unknown`

A subject that no longer exists resolves its alert, if all servers responded. A broker that is not listed any more does not: it
may be the one that failed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ariane.console.alerts.alert_rules import AlertCondition, AlertMetric, AlertRule
from ariane.console.alerts.readings import MetricReading, SnapshotReadings

STATES_MAX = 10_000  # alerts that are pending or firing
# One that is not listed any more may have failed.
SERVER_METRICS = (
    AlertMetric.BROKER,
    AlertMetric.REPLICATION_DELAY,
    AlertMetric.BROKER_SET_MASTER,
    AlertMetric.BROKER_SET_BEHIND,
)
CHANGES_MAX = 100  # changes of a growing value that are remembered within the time of its rule

AlertKey = tuple[str, str]
"""Id of the rule, and subject."""


class AlertState(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """An alert that is pending or firing.

    Attributes:
        rule: The rule, as it was when the state began: a changed rule begins again.
        subject: Group, topic, broker, server, table or source.
        since_ms: Time from which the condition holds.
        fired_ms: Time from which it is an alert; None: the condition did not hold for long enough yet.
        value: The last known value.
        is_notified: Whether a notification of it was sent or did not have to be sent.
    """

    rule: AlertRule
    subject: str
    since_ms: int
    fired_ms: int | None = None
    value: float | None = None
    is_notified: bool = False

    @property
    def key(self) -> AlertKey:
        """Identifies the alert."""
        return self.rule.id, self.subject


class AlertTransition(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The begin or the end of an alert. `state` is that of the firing alert; `reason` says why it ended, if not by its value."""

    time_ms: int
    is_firing: bool
    state: AlertState
    reason: str = ""


class ValueChange(msgspec.Struct, frozen=True, array_like=True):
    """A value that differs from the one before."""

    time_ms: int
    value: float


class AlertStates(NamedTuple):
    """What evaluation remembers between snapshots.

    Attributes:
        alerts: Pending and firing alerts.
        growth: Changes of the values that rules with the condition `grows` watch.
    """

    alerts: Mapping[AlertKey, AlertState] = {}
    growth: Mapping[AlertKey, tuple[ValueChange, ...]] = {}


class Evaluation(NamedTuple):
    """Result of an evaluation. `omitted` counts subjects that were not evaluated because there are STATES_MAX states."""

    states: AlertStates
    transitions: list[AlertTransition]
    omitted: int


def evaluate(rules: Iterable[AlertRule], readings: SnapshotReadings, states: AlertStates, now_ms: int) -> Evaluation:
    """Return the states after a snapshot, and the alerts that began or ended."""
    enabled = {rule.id: rule for rule in rules if rule.is_enabled}
    alerts: dict[AlertKey, AlertState] = {}
    growth: dict[AlertKey, tuple[ValueChange, ...]] = {}
    transitions = _ended_rules(enabled, states, now_ms)
    by_rule = _by_rule(enabled, states)
    count, growth_count = sum(map(len, by_rule.values())), len(states.growth)  # over all rules
    omitted = 0
    for rule in enabled.values():
        values = readings.values.get(rule.metric, {})
        earlier = by_rule[rule.id]
        for subject, reading in values.items():
            if not rule.matches(subject):
                continue
            key = (rule.id, subject)
            holds, changes = _holds(rule, reading, states.growth.get(key, ()), now_ms)
            previous = earlier.pop(key, None)
            next_state = _next_state(rule, subject, reading, holds, previous, now_ms)
            is_new_growth = bool(changes) and key not in states.growth
            fits = not is_new_growth or growth_count < STATES_MAX
            if changes and fits:
                growth[key] = changes
                growth_count += is_new_growth
            if not fits or (next_state is not None and previous is None and count >= STATES_MAX):
                omitted += 1
                if previous is not None:
                    alerts[key] = previous
                continue
            count += (next_state is not None) - (previous is not None)
            transitions += _transition(previous, next_state, now_ms)
            if next_state is not None:
                alerts[key] = next_state
        for key, state in earlier.items():  # no reading: unknown, or it does not exist any more
            is_unknown = not readings.is_complete or rule.metric not in readings.values
            if is_unknown or rule.metric in SERVER_METRICS:
                alerts[key] = state
                continue
            count -= 1
            if state.fired_ms is not None:
                transitions.append(_resolved(state, now_ms, "it does not exist any more"))
    return Evaluation(AlertStates(alerts, growth), transitions, omitted)


def _by_rule(rules: Mapping[str, AlertRule], states: AlertStates) -> dict[str, dict[AlertKey, AlertState]]:
    """Return the states of each rule, without those of an earlier form of it."""
    by_rule: dict[str, dict[AlertKey, AlertState]] = {rule_id: {} for rule_id in rules}
    for key, state in states.alerts.items():
        if rules.get(key[0]) == state.rule:
            by_rule[key[0]][key] = state
    return by_rule


def _ended_rules(rules: Mapping[str, AlertRule], states: AlertStates, now_ms: int) -> list[AlertTransition]:
    """Return the ends of alerts whose rule was changed, disabled or deleted."""
    return [
        _resolved(state, now_ms, "its rule was changed")
        for state in states.alerts.values()
        if state.fired_ms is not None and rules.get(state.rule.id) != state.rule
    ]


def _holds(
    rule: AlertRule, reading: MetricReading, changes: Sequence[ValueChange], now_ms: int
) -> tuple[bool | None, tuple[ValueChange, ...]]:
    """Return whether the condition holds, None if that is unknown; and the changes to remember for GROWS."""
    value = reading.value
    if rule.condition is AlertCondition.UNKNOWN:
        return reading.is_unknown, ()
    if rule.condition is AlertCondition.GROWS:
        if value is None or reading.is_minimum:
            return None, tuple(changes)
        remembered = _remember(changes, value, now_ms, now_ms - 1000 * rule.hold_s)
        return _growth(remembered) > rule.threshold, remembered
    if value is None:
        return None, ()
    if rule.condition is AlertCondition.ABOVE:
        # A minimum above the limit is certain; one below it says nothing.
        return (True if value > rule.threshold else None if reading.is_minimum else False), ()
    return (False if value >= rule.threshold else None if reading.is_minimum else True), ()


def _remember(changes: Sequence[ValueChange], value: float, now_ms: int, begin_ms: int) -> tuple[ValueChange, ...]:
    """Return the changes since `begin_ms`, after the value that was valid then."""
    if not changes or changes[-1].value != value:
        changes = (*changes, ValueChange(now_ms, value))
    first = 0
    while first + 1 < len(changes) and changes[first + 1].time_ms <= begin_ms:
        first += 1
    kept = changes[first:]
    if len(kept) > CHANGES_MAX:
        # Steps in the middle are joined: the sum of a rising value stays the same.
        kept = (kept[0], *kept[len(kept) - CHANGES_MAX + 1 :])
    return tuple(kept)


def _growth(changes: Sequence[ValueChange]) -> float:
    """Return the sum of the increases: a value that fell in between, because messages expired, did not shrink its growth."""
    return sum(max(0.0, following.value - earlier.value) for earlier, following in itertools.pairwise(changes))


def _next_state(
    rule: AlertRule, subject: str, reading: MetricReading, holds: bool | None, state: AlertState | None, now_ms: int
) -> AlertState | None:
    if holds is None:
        return state
    if not holds:
        return None
    if state is None:
        state = AlertState(rule=rule, subject=subject, since_ms=now_ms)
    # The growth was measured over `hold_s`: it does not have to hold for that time once more.
    wait_ms = 0 if rule.condition is AlertCondition.GROWS else 1000 * rule.hold_s
    fired_ms = state.fired_ms
    if fired_ms is None and now_ms - state.since_ms >= wait_ms:
        fired_ms = now_ms
    value = reading.value if reading.value is not None else state.value
    return msgspec.structs.replace(state, fired_ms=fired_ms, value=value)


def _transition(earlier: AlertState | None, state: AlertState | None, now_ms: int) -> list[AlertTransition]:
    was_firing = earlier is not None and earlier.fired_ms is not None
    is_firing = state is not None and state.fired_ms is not None
    if is_firing and not was_firing and state is not None:
        return [AlertTransition(time_ms=now_ms, is_firing=True, state=state)]
    if was_firing and not is_firing and earlier is not None:
        return [_resolved(earlier, now_ms)]
    return []


def _resolved(state: AlertState, now_ms: int, reason: str = "") -> AlertTransition:
    return AlertTransition(time_ms=now_ms, is_firing=False, state=state, reason=reason)
