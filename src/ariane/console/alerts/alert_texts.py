"""Texts of notifications: for people (e-mail, chat) and for programs (JSON of web hooks)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ariane.console.alerts.alert_rules import METRICS, AlertCondition, AlertRule
from ariane.console.alerts.channels import Notification
from ariane.console.alerts.evaluation import AlertTransition
from ariane.console.texts.text_format import unit
from ariane.console.texts.translation import gettext as _


def condition_text(rule: AlertRule) -> str:
    """Return when a rule is an alert, in the reader's language: "Lag of a consumer group above 1,000 messages for 60 s"."""
    definition = METRICS[rule.metric]
    label, hold = _(definition.label), f"{rule.hold_s:,}"
    limit = f"{rule.threshold:,.10g} {unit(definition.unit, rule.threshold)}".strip()
    if rule.condition is AlertCondition.GROWS:
        return _("%(metric)s grow by more than %(limit)s in %(seconds)s s", metric=label, limit=limit, seconds=hold)
    if rule.condition is AlertCondition.UNKNOWN:
        text = _("%(metric)s unknown", metric=label)
    elif rule.condition is AlertCondition.ABOVE:
        text = _("%(metric)s above %(limit)s", metric=label, limit=limit)
    else:
        text = _("%(metric)s below %(limit)s", metric=label, limit=limit)
    return _("%(condition)s for %(seconds)s s", condition=text, seconds=hold) if rule.hold_s else text


def alert_text(transition: AlertTransition) -> str:
    """Return one line about an alert."""
    state, rule = transition.state, transition.state.rule
    definition = METRICS[rule.metric]
    status = rule.severity.upper() if transition.is_firing else "RESOLVED"
    value = ""
    if transition.is_firing and rule.condition is not AlertCondition.UNKNOWN and state.value is not None:
        value = f", now {state.value:,.10g} {unit(definition.unit, state.value)}".rstrip()
    reason = f", {transition.reason}" if transition.reason else ""
    return f"[{status}] {rule.name}: {definition.subject} {state.subject} ({condition_text(rule)}{value}{reason})"


def summary(notification: Notification) -> str:
    """Return the subject of a message."""
    if notification.is_test:
        return f"Test of the alerts of {notification.cluster}"
    firing = sum(transition.is_firing for transition in notification.transitions)
    ended = len(notification.transitions) - firing
    if len(notification.transitions) == 1:
        transition = notification.transitions[0]
        status = transition.state.rule.severity if transition.is_firing else "resolved"
        return f"[{status}] {transition.state.rule.name}: {transition.state.subject} ({notification.cluster})"
    parts = [f"{count} {what}" for count, what in ((firing, "firing"), (ended, "resolved")) if count]
    return f"Alerts of {notification.cluster}: {', '.join(parts)}"


def message_text(notification: Notification) -> str:
    """Return the text of a message for people."""
    if notification.is_test:
        return f"This is a test of the console of {notification.cluster}. No alert is firing because of it."
    lines = [f"{_time(transition.time_ms)}  {alert_text(transition)}" for transition in notification.transitions]
    if notification.omitted:
        lines.append(
            f"{notification.omitted} more {'alert' if notification.omitted == 1 else 'alerts'}; the console lists all of them."
        )
    return "\n".join(lines)


def payload(notification: Notification) -> dict[str, Any]:
    """Return the JSON document of a web hook. `text` is what chat programs show."""
    return {
        "version": 1,
        "text": "\n".join([summary(notification), message_text(notification)]),
        "cluster": notification.cluster,
        "isTest": notification.is_test,
        "omitted": notification.omitted,
        "alerts": [_alert(transition) for transition in notification.transitions],
    }


def _alert(transition: AlertTransition) -> dict[str, Any]:
    state, rule = transition.state, transition.state.rule
    return {
        "status": "firing" if transition.is_firing else "resolved",
        "rule": rule.name,
        "ruleId": rule.id,
        "severity": rule.severity.value,
        "metric": rule.metric.value,
        "condition": rule.condition.value,
        "threshold": None if rule.condition is AlertCondition.UNKNOWN else rule.threshold,
        "unit": METRICS[rule.metric].unit,
        "subject": state.subject,
        "value": state.value,
        "sinceMs": state.since_ms,
        "timeMs": transition.time_ms,
        "reason": transition.reason,
        "text": alert_text(transition),
    }


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
