"""Alerts: what is firing, rules, silences and the history of alerts."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ariane.console.alerts.alert_rules import METRICS, AlertCondition, AlertMetric, AlertRule, Severity
from ariane.console.alerts.alert_service import find, new_id
from ariane.console.alerts.alert_texts import condition_text
from ariane.console.alerts.evaluation import AlertState, AlertTransition
from ariane.console.alerts.silences import AlertSilence
from ariane.console.areas.confirmation import DeletionForm, check_confirmed
from ariane.console.limits.access import current_access
from ariane.console.services import ConsoleServices
from ariane.console.texts.translation import gettext_noop
from ariane.console.web.paging import ListQuery, Page, paginate, sort_keys
from ariane.console.web.view_model import ChangeForm, ChangeResult, View
from ariane.errors import NotFound


class _AlertRow(View):
    """What an alert is about."""

    rule: str
    severity: Severity
    """How urgent it is."""
    subject: str
    """Group, topic, broker or name server; table or source of the pipeline."""
    subject_kind: str
    """`group`, `topic`, `broker`, `server`, `table` or `source`."""
    condition: str
    """When the rule is an alert."""
    unit: str
    """Unit of the value."""


class FiringAlertRow(_AlertRow):
    """A firing alert."""

    rule_id: str
    value: float | None
    """Last known value; null: unknown."""
    since_ms: int
    """Time from which the condition holds."""
    fired_ms: int
    """Time from which it is an alert."""
    is_silent: bool
    """Whether a silence suppresses its notifications."""


class SilenceRow(View):
    """A silence."""

    id: str
    rule_id: str
    """Rule whose alerts are silent; empty: all."""
    rule: str
    pattern: str
    """Subjects that are silent."""
    until_ms: int
    """Its end."""
    reason: str
    """Why."""
    created_by: str
    """Account that created it."""


class AlertsView(View):
    """Firing alerts and silences."""

    as_of_ms: int | None
    """Time of the evaluated values; null: the rules were not evaluated yet."""
    alerts: Page[FiringAlertRow]
    """Firing alerts, the most urgent first."""
    pending: int
    """Alerts of visible subjects whose condition does not hold for long enough yet."""
    omitted: int
    """Alerts that were not begun because too many exist."""
    error: str
    """Why the rules cannot be evaluated; empty if they can."""
    rule_count: int
    """Number of enabled rules."""
    silences: list[SilenceRow] | None
    """Silences that have not ended; null: closed to the account, which is limited to some topics and groups."""


class AlertRuleRow(View):
    """A rule."""

    id: str
    name: str
    metric: AlertMetric
    """What it watches."""
    condition: AlertCondition
    """When it is an alert."""
    pattern: str
    """Subjects that it watches."""
    exclude: str
    """Subjects that it does not watch."""
    threshold: float
    """Limit in the unit of the metric."""
    hold_s: int
    """Seconds for which the condition must hold; for `grows` the time in which the growth is measured."""
    severity: Severity
    """How urgent its alerts are."""
    is_enabled: bool
    """Whether it is evaluated."""
    text: str
    """The condition in words."""
    subject_kind: str
    """`group`, `topic`, `broker`, `server`, `table` or `source`."""
    firing: int
    """Number of its firing alerts."""


class AlertRulesView(View):
    """All rules."""

    rules: list[AlertRuleRow]
    """The rules, in the order in which they were created."""


class AlertHistoryRow(_AlertRow):
    """The begin or the end of an alert."""

    time_ms: int
    """When."""
    is_firing: bool
    """Whether it began."""
    value: float | None
    """Last known value while it was firing."""
    lasted_ms: int | None
    """How long it fired; null at its begin."""
    reason: str
    """Why it ended, if not by its value."""


class AlertHistoryView(View):
    """The newest begins and ends of alerts."""

    history: Page[AlertHistoryRow]
    """Newest first."""


class AlertRuleForm(ChangeForm):
    """A rule to create or replace."""

    name: str
    """Name for people."""
    metric: AlertMetric
    """What is watched."""
    condition: AlertCondition
    """`above`, `below`, `grows` (dead letters, discarded records, retries) or `unknown`."""
    pattern: str = "*"
    """Subjects that are watched: a name in which * and ? are wildcards."""
    exclude: str = ""
    """Subjects that are not watched."""
    threshold: float = 0.0
    """Limit in the unit of the metric."""
    hold_s: int = 60
    """Seconds for which the condition must hold; for `grows` the time in which the growth is measured."""
    severity: Severity = Severity.WARNING
    """How urgent its alerts are."""
    is_enabled: bool = True
    """Whether it is evaluated."""


class SilenceForm(ChangeForm):
    """A silence to create."""

    rule_id: str = ""
    """Only alerts of this rule; empty: of all rules."""
    pattern: str = "*"
    """Subjects: a name in which * and ? are wildcards."""
    minutes: int
    """Length in minutes, at most 30 days."""
    reason: str = ""
    """Why, for colleagues."""


class CloseAlertForm(ChangeForm):
    """A firing alert to end by hand."""

    rule_id: str
    subject: str
    """Its group, topic, broker, name server, table or source."""


# Texts of templates that are chosen by a value.
SEVERITY_TEXTS = (gettext_noop("info"), gettext_noop("warning"), gettext_noop("critical"))
REASON_TEXTS = (
    gettext_noop("it does not exist any more"),
    gettext_noop("its rule was changed"),
    gettext_noop("it was closed"),
)
CONDITION_TEXTS = {
    AlertCondition.ABOVE: gettext_noop("above the threshold"),
    AlertCondition.BELOW: gettext_noop("below the threshold"),
    AlertCondition.GROWS: gettext_noop("grows by more than the threshold"),
    AlertCondition.UNKNOWN: gettext_noop("unknown value"),
}

ALERT_COLUMNS = sort_keys(
    "rule", "subject", "value", since="since_ms", severity=lambda row: (row.severity.rank, row.fired_ms)
)
HISTORY_COLUMNS = sort_keys("rule", "subject", time="time_ms")


def alert_list(services: ConsoleServices, query: ListQuery) -> AlertsView:
    """Return the firing alerts, the most urgent first."""
    alerts = services.alerts
    rows = [_firing_row(services, state) for state in alerts.firing() if _is_visible(state)]
    return AlertsView.of(
        alerts,
        alerts=paginate(rows, query, name=_searched_text, columns=ALERT_COLUMNS, sort="severity", is_descending=True),
        pending=sum(map(_is_visible, alerts.pending())),
        rule_count=sum(rule.is_enabled for rule in alerts.settings.rules),
        silences=None if current_access().is_limited else _silences(services),
    )


def alert_rules(services: ConsoleServices) -> AlertRulesView:
    """Return all rules."""
    firing = Counter(state.rule.id for state in services.alerts.firing())
    rows = [_rule_row(rule, firing[rule.id]) for rule in services.alerts.settings.rules]
    return AlertRulesView(rules=rows)


def alert_rule(services: ConsoleServices, rule_id: str) -> AlertRuleRow:
    """Return a rule."""
    rule = find(services.alerts.settings.rules, "alert rule", rule_id)
    return _rule_row(rule, sum(state.rule.id == rule_id for state in services.alerts.firing()))


def alert_history(services: ConsoleServices, query: ListQuery) -> AlertHistoryView:
    """Return the newest begins and ends of alerts."""
    rows = [_history_row(transition) for transition in services.alerts.history() if _is_visible(transition.state)]
    page = paginate(rows, query, name=_searched_text, columns=HISTORY_COLUMNS, sort="time", is_descending=True)
    return AlertHistoryView(history=page)


def save_rule(services: ConsoleServices, form: AlertRuleForm, *, rule_id: str = "") -> ChangeResult:
    """Create a rule, or replace the one with this id."""
    if rule_id:
        find(services.alerts.settings.rules, "alert rule", rule_id)
    services.alerts.save_rule(AlertRule(id=rule_id or new_id(), **form.model_dump()))
    return ChangeResult(notice=f"{'changed' if rule_id else 'created'} alert rule {form.name}")


def delete_rule(services: ConsoleServices, rule_id: str, form: DeletionForm) -> ChangeResult:
    """Delete a rule; its alerts end."""
    rule = find(services.alerts.settings.rules, "alert rule", rule_id)
    check_confirmed(form, rule.name)
    services.alerts.delete_rule(rule_id)
    return ChangeResult(notice=f"deleted alert rule {rule.name}")


def add_silence(services: ConsoleServices, form: SilenceForm, *, account: str) -> ChangeResult:
    """Suppress notifications for some time."""
    if form.rule_id:
        find(services.alerts.settings.rules, "alert rule", form.rule_id)
    now_ms = services.clock.now_ms()
    silence = AlertSilence(
        id=new_id(), rule_id=form.rule_id, pattern=form.pattern, until_ms=now_ms + 60_000 * form.minutes,
        reason=form.reason, created_by=account, created_ms=now_ms,
    )  # fmt: skip
    services.alerts.save_silence(silence)
    return ChangeResult(notice=f"silenced alerts of {form.pattern} for {form.minutes} min")


def end_silence(services: ConsoleServices, silence_id: str) -> ChangeResult:
    """End a silence now."""
    silence = services.alerts.end_silence(silence_id)
    return ChangeResult(notice=f"ended the silence of {silence.pattern}")


def close_alert(services: ConsoleServices, form: CloseAlertForm) -> ChangeResult:
    """End an alert by hand; it begins again if its condition holds.

    Raises:
        NotFound: no such alert is firing.
    """
    firing = (state for state in services.alerts.firing() if _is_visible(state))
    if (form.rule_id, form.subject) not in {state.key for state in firing}:
        raise NotFound("firing alert", form.subject)
    state = services.alerts.close_alert(form.rule_id, form.subject)
    return ChangeResult(notice=f"closed alert {state.rule.name} of {state.subject}")


def _searched_text(row: _AlertRow) -> str:
    return f"{row.subject} {row.rule}"


def _is_visible(state: AlertState) -> bool:
    """Return whether the sender of the request sees the subject of an alert."""
    access, kind = current_access(), METRICS[state.rule.metric].subject
    if kind == "group":
        return access.sees_group(state.subject)
    if kind == "topic":
        return access.sees_topic(state.subject)
    return kind in ("broker", "server") or not access.is_limited


def _firing_row(services: ConsoleServices, state: AlertState) -> FiringAlertRow:
    return FiringAlertRow.of(
        state,
        rule_id=state.rule.id,
        **_subject(state),
        fired_ms=state.fired_ms or state.since_ms,
        is_silent=services.alerts.is_silent(state),
    )


def _subject(state: AlertState) -> dict[str, Any]:
    """Return the members of a row that say what an alert is about."""
    rule, definition = state.rule, METRICS[state.rule.metric]
    return {
        "rule": rule.name, "severity": rule.severity, "subject": state.subject, "subject_kind": definition.subject,
        "condition": condition_text(rule), "unit": definition.unit,
    }  # fmt: skip


def _rule_row(rule: AlertRule, firing: int) -> AlertRuleRow:
    return AlertRuleRow.of(
        rule, text=condition_text(rule), subject_kind=METRICS[rule.metric].subject, firing=firing
    )  # fmt: skip


def _history_row(transition: AlertTransition) -> AlertHistoryRow:
    state = transition.state
    fired_ms = state.fired_ms if state.fired_ms is not None else state.since_ms
    lasted_ms = None if transition.is_firing else transition.time_ms - fired_ms
    return AlertHistoryRow.of(transition, state, **_subject(state), lasted_ms=lasted_ms)


def _silences(services: ConsoleServices) -> list[SilenceRow]:
    now_ms = services.clock.now_ms()
    names = {rule.id: rule.name for rule in services.alerts.settings.rules}
    return [
        SilenceRow.of(silence, rule=names.get(silence.rule_id, silence.rule_id))
        for silence in services.alerts.settings.silences
        if silence.until_ms > now_ms
    ]
