"""The in-sync set: which members need a record before it counts as replicated. Without socket, task or clock.

    log end, reports of members ─► `update` ─► begin_swap ─► compare-and-swap of the record ─► on_stored, on_refused, or unknown
                                       │          │
    required = the stored set, members that join, and each set whose swap may still be applied
    confirmed = least end of the required members; never falls. confirmed_changes: the same for changes of the broker's state

The set decides which members may lead later, so that each of them needs every confirmed record, at every instant:
a member leaves the stored set before records are confirmed without it, and records are confirmed with a new member before it is in
the stored set. Without failover no record exists: each swap succeeds at once.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

from ariane.failover.leader_record import InSyncMember

UNKNOWN_END = -1  # of a member that has not reported to this leader, or has no snapshot of its state yet
ALL_CHANGES = 1 << 62  # of a member that takes no changes: nothing waits for it
SAMPLES_PER_LAG = 16  # how exactly the end of the log `lag_s` ago is remembered


class InSyncRules(NamedTuple):
    """When members leave the set and return."""

    lag_s: float = 1.5
    """A member leaves that lacks what the leader had this time ago. Below the 3 s after which sends time out."""
    return_s: float = 5.0
    """A member that was behind returns when it has not been behind for this time."""
    least: int = 1
    """Members behind stay in a set that would be smaller than this: it would confirm nothing, and only its few members could lead.
    While fewer members have all messages, sends are refused, and one that was behind returns at once."""
    leaves_at_disconnect: bool = False
    """Whether a member leaves at once when its connection ends. Otherwise it stays while it has everything."""


class _Samples:
    """Values of the leader and when it had them, oldest first; the first one is about `lag_s` old."""

    def __init__(self, lag_s: float, value: int, now_s: float) -> None:
        self._lag_s = lag_s
        self._samples: deque[tuple[float, int]] = deque([(now_s, value)])

    def add(self, value: int, now_s: float) -> None:
        if now_s - self._samples[-1][0] < self._lag_s / SAMPLES_PER_LAG:
            self._samples[-1] = self._samples[-1][0], value
        else:
            self._samples.append((now_s, value))
        self.forget(now_s)

    def forget(self, now_s: float) -> None:
        samples, oldest_s = self._samples, now_s - self._lag_s
        while len(samples) > 1 and samples[1][0] <= oldest_s:
            samples.popleft()

    def is_behind(self, value: int, now_s: float) -> bool:
        """Return whether a member with this value lacks what the leader had `lag_s` ago.

        A comparison with the leader's value of now would drop busy members, a limit of bytes would drop all of them at a burst.
        """
        sampled_s, former = self._samples[0]
        return now_s - sampled_s >= self._lag_s and value < former


class InSyncSet:
    """The members of one leader's epoch. Times are seconds of any monotonic clock."""

    def __init__(
        self,
        own: InSyncMember,
        stored: Iterable[InSyncMember],
        rules: InSyncRules,
        *,
        log_end: int,
        now_s: float,
        version: int = 0,
    ) -> None:
        """Begin an epoch.

        Args:
            own: The leader, which is always required.
            stored: The set in the record, the leader included.
            log_end: End of the leader's log: members need it before they are admitted, and readers wait for it.
            version: Of the set in the record; grows by one with each swap.
        """
        self.confirmed = 0  # every required member has the log up to here
        self.confirmed_changes = 0  # every required member has applied the changes up to this number
        self.stored = frozenset(stored) | {own}  # the set in the record, as far as it is known
        self.version = version
        self.required = self.stored
        self._own = own
        self._rules = rules
        self._epoch_start = log_end
        # Swaps that may be applied, each with the version that it replaces, and how often it was attempted without a refusal.
        self._open: Counter[tuple[frozenset[InSyncMember], int]] = Counter()
        self._ends: dict[InSyncMember, int] = {own: log_end}  # as acknowledged; those of disconnected members stay
        self._connected: set[InSyncMember] = set()
        self._joining: set[InSyncMember] = set()  # required, and swapped in once they have what is confirmed
        self._behind_s: dict[InSyncMember, float] = {}  # when a member outside of the set was behind last
        self._late: frozenset[InSyncMember] = frozenset()  # members of the stored set that should leave
        self._applied: dict[InSyncMember, int] = {own: 0}  # numbers of the last changes, as acknowledged
        self._log_samples = _Samples(rules.lag_s, log_end, now_s)
        self._change_samples = _Samples(rules.lag_s, 0, now_s)

    # --- events ---

    def on_append(self, end: int, now_s: float) -> None:
        """Take the leader's end: of the flushed log in SYNC_FLUSH."""
        self._ends[self._own] = end
        self._log_samples.add(end, now_s)
        self._confirm()

    def on_change(self, number: int, now_s: float) -> None:
        """Take the number of the leader's last change."""
        self._applied[self._own] = number
        self._change_samples.add(number, now_s)
        self._confirm_changes()

    def on_report(self, member: InSyncMember, end: int, changes: int = ALL_CHANGES) -> None:
        """Take the acknowledged end of a connected member, whose log is a prefix of the leader's, and its last change."""
        self._connected.add(member)
        if end > self._ends.get(member, UNKNOWN_END):
            self._ends[member] = end
            self._confirm()
        if changes > self._applied.get(member, UNKNOWN_END):
            self._applied[member] = changes
            self._confirm_changes()

    def on_disconnect(self, member: InSyncMember) -> None:
        """Note that a member is not connected any more."""
        self._connected.discard(member)
        self._joining.discard(member)
        self._require()

    def end_of(self, member: InSyncMember) -> int | None:
        """Return the acknowledged end of a member; None if it is unknown."""
        return self._ends.get(member)

    # --- changes of the set ---

    @property
    def least_size(self) -> int:
        """Number of members of the smallest set that may be stored now, the leader included."""
        return min(len(members) for members in (self.stored, *self._open_sets()))

    @property
    def complete_size(self) -> int:
        """Number of members that have all messages, the leader included: those that should leave do not count."""
        return min(len(members - self._late) for members in (self.stored, *self._open_sets()))

    @property
    def replicated(self) -> int | None:
        """End of the log that all required members other than the leader have; None without such members. It may fall."""
        ends = [self._ends.get(member, UNKNOWN_END) for member in self.required if member != self._own]
        return min(ends) if ends else None

    def update(self, now_s: float) -> frozenset[InSyncMember] | None:
        """Let members join; return the set to swap in, None if the stored one is right. Call it several times per `lag_s`."""
        self._log_samples.forget(now_s)
        self._change_samples.forget(now_s)
        self._late = frozenset(member for member in self.stored if self._should_leave(member, now_s))
        members = set(self.stored - self._late)
        for member in self._connected - self.stored:
            if self._is_behind(member, now_s):
                self._behind_s[member] = now_s
                self._joining.discard(member)
            elif self._may_return(member, now_s) and self._has_epoch_start(member):
                # Under load a member never has what a leader alone confirms: confirmation waits for it from now on.
                self._joining.add(member)
                if self._may_enter(member):
                    members.add(member)
        self._require()
        if len(members) < self._rules.least:
            names = {member.name for member in members}
            members |= {member for member in self._late if member.name not in names}
        wanted = frozenset(members)
        return None if wanted == self.stored and not self._open else wanted

    def begin_swap(self, members: frozenset[InSyncMember]) -> None:
        """Require the members of a set from now on, as its swap for the stored one may be applied at any time.

        Raises:
            ValueError: a new member lacks confirmed records.
        """
        for member in members - self.required:
            if not self._may_enter(member):
                raise ValueError(
                    f"{member.name} lacks confirmed records: it has {self._ends.get(member)} of {self.confirmed}"
                )
        self._open[members, self.version] += 1
        self._require()

    def on_stored(self, members: frozenset[InSyncMember], version: int) -> None:
        """Take the set of the record, of a swap or a read. A swap that replaces an earlier version is never applied any more."""
        if version < self.version:
            return  # a late answer
        self.stored, self.version = members | {self._own}, version
        self._open = Counter({swap: count for swap, count in self._open.items() if swap[1] >= version})
        self._require()

    def on_refused(self, members: frozenset[InSyncMember]) -> None:
        """Take the refusal of one swap: it was not applied, and never will be. Earlier ones without an answer may be."""
        swap = members, self.version
        self._open[swap] -= 1
        self._open = +self._open
        self._require()

    # --- rules ---

    def _should_leave(self, member: InSyncMember, now_s: float) -> bool:
        if member == self._own:
            return False
        is_replaced = any(other.name == member.name and other != member for other in self._connected)
        is_gone = self._rules.leaves_at_disconnect and member not in self._connected
        return self._is_behind(member, now_s) or is_replaced or is_gone

    def _may_return(self, member: InSyncMember, now_s: float) -> bool:
        is_short = self.complete_size < self._rules.least
        return is_short or now_s - self._behind_s.get(member, -math.inf) >= self._rules.return_s

    def _may_enter(self, member: InSyncMember) -> bool:
        is_complete = self._ends.get(member, UNKNOWN_END) >= self.confirmed
        return (
            is_complete
            and self._has_epoch_start(member)
            and self._applied.get(member, UNKNOWN_END) >= self.confirmed_changes
        )

    def _has_epoch_start(self, member: InSyncMember) -> bool:
        has_snapshot = self._applied.get(member, UNKNOWN_END) != UNKNOWN_END
        return member in self._connected and has_snapshot and self._ends[member] >= self._epoch_start

    def _is_behind(self, member: InSyncMember, now_s: float) -> bool:
        applied = self._applied.get(member, UNKNOWN_END)
        if applied == UNKNOWN_END and member not in self.stored:
            applied = ALL_CHANGES  # it waits for its first snapshot: it does not join, and is not late
        return self._log_samples.is_behind(
            self._ends.get(member, UNKNOWN_END), now_s
        ) or self._change_samples.is_behind(applied, now_s)

    def _open_sets(self) -> list[frozenset[InSyncMember]]:
        return [members for members, _ in self._open]

    def _require(self) -> None:
        self._joining -= self.stored
        self.required = self.stored.union(self._joining, *self._open_sets())
        members = self.required | self._connected
        self._ends = {member: end for member, end in self._ends.items() if member in members}
        self._applied = {member: number for member, number in self._applied.items() if member in members}
        self._behind_s = {member: time_s for member, time_s in self._behind_s.items() if member in self._connected}
        self._confirm()
        self._confirm_changes()

    def _confirm(self) -> None:
        self.confirmed = max(self.confirmed, min(self._ends.get(member, UNKNOWN_END) for member in self.required))

    def _confirm_changes(self) -> None:
        least = min(self._applied.get(member, UNKNOWN_END) for member in self.required)
        self.confirmed_changes = max(self.confirmed_changes, least)
