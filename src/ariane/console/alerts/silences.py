"""Silences: alerts that send no notification until a time. Pure.

A firing alert whose silence ends is notified then; the end of an alert only if its begin was.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ariane.console.alerts.evaluation import AlertKey, AlertState, AlertTransition
from ariane.errors import ConfigError

SILENCES_MAX = 200
SILENCE_DAYS_MAX = 30
REASON_CHARACTERS_MAX = 200


class AlertSilence(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Alerts without notifications.

    Attributes:
        id: Random text that identifies it.
        rule_id: Only alerts of this rule; empty: of any.
        pattern: Subjects: a name in which * and ? are wildcards.
        until_ms: End.
        reason: Why, for colleagues.
        created_by: Account that created it.
        created_ms: When.
    """

    id: str
    rule_id: str
    pattern: str
    until_ms: int
    reason: str = ""
    created_by: str = ""
    created_ms: int = 0

    def covers(self, state: AlertState, now_ms: int) -> bool:
        """Return whether an alert is silent."""
        return (
            now_ms < self.until_ms
            and self.rule_id in ("", state.rule.id)
            and fnmatch.fnmatchcase(state.subject, self.pattern)
        )


def check_silence(silence: AlertSilence, now_ms: int) -> None:
    """Check the values of a silence.

    Raises:
        ConfigError: a value is invalid.
    """
    if not 0 < silence.until_ms - now_ms <= SILENCE_DAYS_MAX * 86_400_000:
        raise ConfigError(
            "minutes", (silence.until_ms - now_ms) // 60_000, f"expected 1 minute to {SILENCE_DAYS_MAX} days"
        )
    if not silence.pattern or len(silence.pattern) > 255:
        raise ConfigError("pattern", silence.pattern[:255], "expected 1 to 255 characters, for example * or orders-*")
    if len(silence.reason) > REASON_CHARACTERS_MAX:
        raise ConfigError("reason", None, f"expected at most {REASON_CHARACTERS_MAX} characters")


def due_notifications(
    alerts: Mapping[AlertKey, AlertState],
    transitions: Iterable[AlertTransition],
    silences: Sequence[AlertSilence],
    now_ms: int,
) -> tuple[list[AlertTransition], dict[AlertKey, AlertState]]:
    """Return the transitions to send, and the alerts with `is_notified` of those that are sent."""
    due = [transition for transition in transitions if not transition.is_firing and transition.state.is_notified]
    updated = dict(alerts)
    for key, state in alerts.items():
        if state.fired_ms is None or state.is_notified:
            continue
        if any(silence.covers(state, now_ms) for silence in silences):
            continue
        updated[key] = notified = msgspec.structs.replace(state, is_notified=True)
        due.append(AlertTransition(time_ms=state.fired_ms, is_firing=True, state=notified))
    return due, updated
