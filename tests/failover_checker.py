"""The checker of failover simulations: judges what members wrote and answered, without the code that it checks.

Invariants, by their numbers in docs/failover.md: acknowledged records stay (1), one record per position (2), confirmed ends never
fall (3), one holder per epoch and epochs never fall (6), members of the stored set have everything confirmed (7) and cut nothing
confirmed (11), one member answers at a time (13), the stored set has minInSyncReplicas members (14). `failover_world` checks that a
master serves again in time (12).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ariane.failover.leader_record import InSyncMember, LeaderRecord

LogEntry = tuple[int, str]  # epoch and value


class InvariantBroken(AssertionError):
    """A run broke an invariant; the message begins with its number."""


class FailoverChecker:
    """Collects what happened. `logs` returns the log of each member by its incarnation, also of those that are stopped."""

    def __init__(
        self, logs: Callable[[], Mapping[InSyncMember, Sequence[LogEntry]]], *, least_members: int = 1
    ) -> None:
        self.logs = logs
        self.least_members = least_members  # minInSyncReplicas
        self.confirmed: list[LogEntry] = []  # what some master confirmed, by position
        self.acknowledged: dict[int, str] = {}
        self.holders: dict[int, str] = {}  # of epochs
        self.record: LeaderRecord | None = None
        self.answered_epoch = 0
        self.shown_end = 0  # highest confirmed end that a reader got
        self.stored_epochs: dict[str, int] = {}
        self.reads = 0

    def on_confirmed(self, name: str, log: Sequence[LogEntry], end: int) -> None:
        """A master confirmed its log up to `end`."""
        known = min(end, len(self.confirmed))
        if log[:known] != self.confirmed[:known]:
            position = next(at for at in range(known) if log[at] != self.confirmed[at])
            raise InvariantBroken(f"2: {name} confirms {log[position]} at {position}, was {self.confirmed[position]}")
        if end > known:
            self.confirmed.extend(log[known:end])
            self._check_set("confirmed end moved")

    def on_acknowledged(self, name: str, epoch: int, position: int, value: str) -> None:
        """A send was answered with success."""
        if position >= len(self.confirmed) or self.confirmed[position][1] != value:
            raise InvariantBroken(f"1: {name} acknowledges {value} at {position}, which is not confirmed")
        self.acknowledged[position] = value
        self.on_answer(name, epoch)
        self._check_set(f"{value} was acknowledged")

    def on_answer(self, name: str, epoch: int) -> None:
        """A master answered."""
        if epoch < self.answered_epoch:
            raise InvariantBroken(f"13: {name} answers in epoch {epoch} after an answer of epoch {self.answered_epoch}")
        self.answered_epoch = epoch
        self.reads += 1

    def on_read(self, name: str, epoch: int, end: int) -> None:
        """A reader got the confirmed end of a master."""
        if end < self.shown_end:
            raise InvariantBroken(f"3: {name} shows the end {end} in epoch {epoch} after {self.shown_end}")
        self.shown_end = end
        self.on_answer(name, epoch)

    def on_promoted(self, name: str, epoch: int, log: Sequence[LogEntry]) -> None:
        """A member is ready to serve an epoch."""
        if epoch < max(self.holders, default=0):
            return  # it was paused, and its lease ended: another member led since, and this one must not answer (13)
        if self.holders.setdefault(epoch, name) != name:
            raise InvariantBroken(f"6: {name} and {self.holders[epoch]} hold epoch {epoch}")
        for position, value in self.acknowledged.items():
            if position >= len(log) or log[position][1] != value:
                raise InvariantBroken(f"1: {name} leads epoch {epoch} without {value} at {position}")
        if len(log) < len(self.confirmed) or list(log[: len(self.confirmed)]) != self.confirmed:
            raise InvariantBroken(f"3: {name} leads epoch {epoch} without a confirmed record")

    def on_epoch_stored(self, name: str, epoch: int) -> None:
        """A member stored an epoch."""
        if epoch < self.stored_epochs.get(name, 0):
            raise InvariantBroken(f"6: {name} stores epoch {epoch} after {self.stored_epochs[name]}")
        self.stored_epochs[name] = epoch

    def on_written(self, record: LeaderRecord) -> None:
        """The service stored a record."""
        if self.record is not None and record.epoch < self.record.epoch:
            raise InvariantBroken(f"6: the record's epoch falls from {self.record.epoch} to {record.epoch}")
        if len(record.in_sync) < self.least_members:
            raise InvariantBroken(f"14: the set has {len(record.in_sync)} members, expected {self.least_members}")
        self.record = record
        self._check_set("the record changed")

    def on_cut(self, member: InSyncMember, log: Sequence[LogEntry], end: int) -> None:
        """A member cuts its log at `end`."""
        assert self.record is not None
        if member not in self.record.in_sync:
            return  # its set is over: it follows the former master, and what others confirm since does not rely on its log
        for position in range(end, min(len(log), len(self.confirmed))):
            if log[position] == self.confirmed[position]:
                raise InvariantBroken(f"11: {member.name} cuts the confirmed record at {position}")

    def _check_set(self, event: str) -> None:
        assert self.record is not None
        logs = self.logs()
        end = len(self.confirmed)
        for member in self.record.in_sync:
            log = logs.get(member)  # None: another incarnation, which may not be promoted
            if log is not None and (len(log) < end or (end and log[end - 1] != self.confirmed[end - 1])):
                raise InvariantBroken(f"7: {member.name} is in the set without everything confirmed ({event})")
