"""Files of the alerts in the data directory.

alert_rules.json    rules, channels and silences; with the secrets of channels, so mode 0600
alert_state.json    pending and firing alerts, growing values, history: alerts survive a restart without new notifications
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ariane.console.alerts.alert_rules import DEFAULT_RULES, AlertRule
from ariane.console.alerts.channels import AlertChannel
from ariane.console.alerts.evaluation import AlertKey, AlertState, AlertStates, AlertTransition, ValueChange
from ariane.console.alerts.silences import AlertSilence
from ariane.console.security.accounts.private_files import read_document, write_document

HISTORY_MAX = 1_000


class AlertSettings(msgspec.Struct, frozen=True):
    """The content of alert_rules.json."""

    rules: tuple[AlertRule, ...] = DEFAULT_RULES
    channels: tuple[AlertChannel, ...] = ()
    silences: tuple[AlertSilence, ...] = ()


class GrowingValue(msgspec.Struct, frozen=True, rename="camel"):
    """Changes of a value that a rule with the condition `grows` watches."""

    rule_id: str
    subject: str
    changes: tuple[ValueChange, ...]


class AlertStateFile(msgspec.Struct, frozen=True):
    """The content of alert_state.json."""

    alerts: tuple[AlertState, ...] = ()
    growth: tuple[GrowingValue, ...] = ()
    history: tuple[AlertTransition, ...] = ()


class AlertFiles:
    """Reads and writes both files."""

    def __init__(self, data_dir: Path) -> None:
        self._settings = data_dir / "alert_rules.json"
        self._state = data_dir / "alert_state.json"

    def read_settings(self) -> AlertSettings:
        """Return the rules, channels and silences; the default rules before the first change."""
        return read_document(self._settings, AlertSettings) or AlertSettings()

    def write_settings(self, settings: AlertSettings) -> None:
        """Store the rules, channels and silences."""
        write_document(self._settings, settings)

    def read_state(self) -> tuple[AlertStates, tuple[AlertTransition, ...]]:
        """Return what evaluation remembers, and the history."""
        document = read_document(self._state, AlertStateFile) or AlertStateFile()
        alerts: dict[AlertKey, AlertState] = {state.key: state for state in document.alerts}
        growth = {(value.rule_id, value.subject): value.changes for value in document.growth}
        return AlertStates(alerts, growth), document.history

    def write_state(self, states: AlertStates, history: Sequence[AlertTransition]) -> None:
        """Store what evaluation remembers, and the history. Values that never changed from 0 are not worth a line."""
        growth = tuple(
            GrowingValue(rule_id, subject, changes)
            for (rule_id, subject), changes in states.growth.items()
            if any(change.value for change in changes)
        )
        write_document(self._state, AlertStateFile(tuple(states.alerts.values()), growth, tuple(history)))
