"""Runs the alerts of a console: evaluates the rules on each new snapshot, stores states, and notifies channels.

run(): live.snapshot() every EVALUATION_SECONDS, while a rule is enabled ┐
       PipelineReader.read(), if a rule watches the pipeline             ┴→ evaluate → files, history, ChannelDelivery
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

import msgspec

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.console.alerts.alert_files import HISTORY_MAX, AlertFiles
from ariane.console.alerts.alert_rules import RULES_MAX, AlertRule, check_rule
from ariane.console.alerts.channels import (
    ALERTS_PER_MESSAGE_MAX,
    CHANNELS_MAX,
    AlertChannel,
    Notification,
    check_channel,
)
from ariane.console.alerts.delivery import ChannelDelivery, ChannelStatus, Notifier
from ariane.console.alerts.evaluation import AlertState, AlertStates, AlertTransition, evaluate
from ariane.console.alerts.pipeline_readings import PIPELINE_METRICS, PipelineReader, Readings
from ariane.console.alerts.readings import read_snapshot
from ariane.console.alerts.silences import SILENCES_MAX, AlertSilence, check_silence, due_notifications
from ariane.console.live.live_cluster import SnapshotSource
from ariane.console.live.live_snapshot import LiveSnapshot
from ariane.errors import ArianeError, ConfigError, NotFound
from ariane.tables.table_home import Home

log = logging.getLogger("ariane.console.alerts")

EVALUATION_SECONDS = 10.0


class _Identified(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=_Identified)


class AlertService:
    """The alerts of one console.

    Args:
        cluster: Name of the cluster in notifications.
        tables_dir: Home of the pipeline's tables; None: rules of the pipeline have no subjects.
        notifier: Sends notifications; replaced by tests.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        live: SnapshotSource,
        cluster: str,
        tables_dir: Home | None = None,
        clock: Clock = SYSTEM_CLOCK,
        notifier: Notifier | None = None,
    ) -> None:
        self._files = AlertFiles(data_dir)  # all that survives a restart
        self._live = live
        self._cluster = cluster
        self._pipeline = PipelineReader(tables_dir, clock)
        self._clock = clock
        self._notifier = notifier or Notifier()
        self.settings = self._files.read_settings()  # rules, channels and silences
        self._states, history = self._files.read_state()  # what evaluation remembers
        self._history: deque[AlertTransition] = deque(history, maxlen=HISTORY_MAX)  # the newest is the last
        self._deliveries: dict[str, ChannelDelivery] = {}  # by id of the channel
        self._task: asyncio.Task[None] | None = None  # evaluates
        self.as_of_ms: int | None = (
            None  # time of the snapshot that was evaluated last; None before the first evaluation
        )
        self.omitted = 0  # alerts that were not begun at the last evaluation, because there are too many
        self.error = ""  # why the last evaluation failed; empty if it did not
        self._update_deliveries()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        async with AsyncExitStack() as stack:
            for delivery in self._deliveries.values():
                stack.push_async_callback(delivery.close)

    # --- what pages show ---

    def firing(self) -> list[AlertState]:
        """Return the firing alerts: the most urgent first, then the newest."""
        alerts = [state for state in self._states.alerts.values() if state.fired_ms is not None]
        alerts.sort(key=lambda state: (state.fired_ms or 0, state.subject), reverse=True)
        return sorted(alerts, key=lambda state: state.rule.severity.rank, reverse=True)

    def pending(self) -> list[AlertState]:
        """Return the alerts that hold, but not yet for long enough."""
        return [state for state in self._states.alerts.values() if state.fired_ms is None]

    def history(self) -> list[AlertTransition]:
        """Return the begins and ends of alerts, the newest first."""
        return list(reversed(self._history))

    def is_silent(self, state: AlertState) -> bool:
        """Return whether an alert sends no notification now."""
        now_ms = self._clock.now_ms()
        return any(silence.covers(state, now_ms) for silence in self.settings.silences)

    def channel_status(self, channel_id: str) -> ChannelStatus:
        """Return the deliveries and failures of a channel."""
        delivery = self._deliveries.get(channel_id)
        return delivery.status if delivery else ChannelStatus()

    # --- changes ---

    def save_rule(self, rule: AlertRule) -> None:
        """Create a rule, or replace the one with its id.

        Raises:
            ConfigError: a value is invalid, or there are too many rules.
        """
        check_rule(rule)
        self._store(rules=_saved(self.settings.rules, rule, "rules", RULES_MAX))

    def delete_rule(self, rule_id: str) -> AlertRule:
        """Delete a rule and return it. Its alerts end at the next evaluation.

        Raises:
            NotFound: there is no such rule.
        """
        rule, rest = _without(self.settings.rules, "alert rule", rule_id)
        self._store(rules=rest)
        return rule

    def save_channel(self, channel: AlertChannel) -> None:
        """Create a channel, or replace the one with its id.

        Raises:
            ConfigError: a value is invalid, or there are too many channels.
        """
        check_channel(channel)
        self._store(channels=_saved(self.settings.channels, channel, "channels", CHANNELS_MAX))

    async def delete_channel(self, channel_id: str) -> AlertChannel:
        """Delete a channel and return it. Its waiting notifications are not sent.

        Raises:
            NotFound: there is no such channel.
        """
        channel, rest = _without(self.settings.channels, "channel", channel_id)
        self._store(channels=rest)
        if (delivery := self._deliveries.pop(channel_id, None)) is not None:
            await delivery.close()
        return channel

    async def test_channel(self, channel_id: str) -> AlertChannel:
        """Send a test notification at once, without retries, and return the channel.

        Raises:
            NotFound: there is no such channel.
            DeliveryFailed: it was not accepted.
        """
        channel = find(self.settings.channels, "channel", channel_id)
        await self._notifier.send(channel, Notification(cluster=self._cluster, transitions=(), is_test=True))
        return channel

    def save_silence(self, silence: AlertSilence) -> None:
        """Create a silence. Those that have ended are removed.

        Raises:
            ConfigError: a value is invalid, or there are too many silences.
        """
        now_ms = self._clock.now_ms()
        check_silence(silence, now_ms)
        current = tuple(other for other in self.settings.silences if other.until_ms > now_ms)
        self._store(silences=_saved(current, silence, "silences", SILENCES_MAX))

    def end_silence(self, silence_id: str) -> AlertSilence:
        """End a silence now and return it. Its firing alerts are notified at the next evaluation.

        Raises:
            NotFound: there is no such silence.
        """
        silence, rest = _without(self.settings.silences, "silence", silence_id)
        self._store(silences=rest)
        return silence

    def close_alert(self, rule_id: str, subject: str) -> AlertState:
        """End an alert by hand, such as that of a broker that was removed. It begins again if its condition holds.

        Raises:
            NotFound: no such alert is firing.
        """
        alerts = dict(self._states.alerts)
        state = alerts.pop((rule_id, subject), None)
        if state is None or state.fired_ms is None:
            raise NotFound("firing alert", subject)
        transition = AlertTransition(time_ms=self._clock.now_ms(), is_firing=False, state=state, reason="it was closed")
        self._states = self._states._replace(alerts=alerts)
        self._publish([transition])
        return state

    def _store(self, **changes: object) -> None:
        settings = msgspec.structs.replace(self.settings, **changes)
        self._files.write_settings(settings)
        self.settings = settings
        self._update_deliveries()

    def _update_deliveries(self) -> None:
        for channel in self.settings.channels:
            if (delivery := self._deliveries.get(channel.id)) is not None:
                delivery.channel = channel
            else:
                self._deliveries[channel.id] = ChannelDelivery(channel, notifier=self._notifier, clock=self._clock)

    # --- evaluation ---

    def evaluate(self, snapshot: LiveSnapshot, pipeline: Readings | None = None) -> list[AlertTransition]:
        """Evaluate the rules on a snapshot, store the result, notify channels; return the alerts that began or ended."""
        readings, now_ms = read_snapshot(snapshot), self._clock.now_ms()
        readings = readings._replace(values={**readings.values, **(pipeline or {})})
        result = evaluate(self.settings.rules, readings, self._states, now_ms)
        before, self.omitted, self.as_of_ms = self._states, result.omitted, readings.as_of_ms
        self._states = result.states
        self._publish(result.transitions, before)
        return result.transitions

    def _publish(self, transitions: Sequence[AlertTransition], before: AlertStates | None = None) -> None:
        """Notify channels, and store states and history if they differ from `before`."""
        due, alerts = due_notifications(
            self._states.alerts, transitions, self.settings.silences, self._clock.now_ms()
        )  # fmt: skip
        self._states = self._states._replace(alerts=alerts)
        self._history.extend(transitions)
        try:
            # Stored before it is sent: after a crash in between an alert is not notified twice.
            if transitions or due or before is None or _differ(before, self._states):
                self._files.write_state(self._states, self._history)
        finally:
            # Also if the disk is full: this may be the alert that reports it.
            for delivery in self._deliveries.values():
                wanted = [transition for transition in due if delivery.channel.wants(transition)]
                if wanted:
                    delivery.enqueue(_notification(self._cluster, wanted))

    async def _run(self) -> None:
        while True:
            error = ""
            try:
                if self._states.alerts or any(rule.is_enabled for rule in self.settings.rules):
                    snapshot = await self._live.snapshot()
                    # An old snapshot again says nothing new: its values must not count as lasting.
                    if snapshot.as_of_ms and snapshot.as_of_ms != self.as_of_ms:
                        pipeline, error = await self._read_pipeline()
                        self.evaluate(snapshot, pipeline)
                self._report(error)
            except (ArianeError, OSError) as failure:
                self._report(str(failure))
            except Exception as failure:
                log.error("Cannot evaluate the alert rules", exc_info=failure)
                self.error = f"unexpected {type(failure).__name__}; the console's log has the details"
            await self._clock.sleep(EVALUATION_SECONDS)

    async def _read_pipeline(self) -> tuple[Readings, str]:
        """Return the values of the pipeline, and why they cannot be read: other rules are evaluated without them."""
        if not any(rule.is_enabled and rule.metric in PIPELINE_METRICS for rule in self.settings.rules):
            return {}, ""
        try:
            return await self._pipeline.read(), ""
        except (ArianeError, OSError) as error:
            return {}, str(error)

    def _report(self, reason: str) -> None:
        if reason not in ("", self.error):  # not every ten seconds
            log.warning("Cannot evaluate the alert rules: %s", reason)
        self.error = reason


def new_id() -> str:
    """Return an id for a rule, channel or silence."""
    return secrets.token_hex(6)


def find(items: Sequence[Item], kind: str, item_id: str) -> Item:
    """Return the item with an id.

    Raises:
        NotFound: there is none.
    """
    for item in items:
        if item.id == item_id:
            return item
    raise NotFound(kind, item_id)


def _without(items: Sequence[Item], kind: str, item_id: str) -> tuple[Item, tuple[Item, ...]]:
    """Return the item with an id, and the others. Raise NotFound if there is none."""
    return find(items, kind, item_id), tuple(item for item in items if item.id != item_id)


def _saved(items: Sequence[Item], item: Item, key: str, limit: int) -> tuple[Item, ...]:
    """Return the items with `item` in place of the one with its id, or after all others."""
    is_known = any(other.id == item.id for other in items)
    if not is_known and len(items) >= limit:
        raise ConfigError(key, len(items), f"expected at most {limit}; delete one that is not needed")
    return tuple(item if other.id == item.id else other for other in items) + (() if is_known else (item,))


def _differ(before: AlertStates, after: AlertStates) -> bool:
    """Return whether states differ in more than their last values, which are read again after a restart."""

    def key(state: AlertState) -> tuple[object, ...]:
        return state.since_ms, state.fired_ms, state.is_notified, state.rule

    if before.growth != after.growth or before.alerts.keys() != after.alerts.keys():
        return True
    return any(key(before.alerts[name]) != key(state) for name, state in after.alerts.items())


def _notification(cluster: str, transitions: list[AlertTransition]) -> Notification:
    omitted = max(0, len(transitions) - ALERTS_PER_MESSAGE_MAX)
    return Notification(cluster=cluster, transitions=transitions[:ALERTS_PER_MESSAGE_MAX], omitted=omitted)
