"""How a member gives its lease up in order: for a successor, a stop, or a full disk; and how it takes one with an accepted loss.

refuse sends ─► answer all others: the whole set has them then ─► release the lease
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Protocol

from ariane.broker.broker import Broker
from ariane.broker.failover.waiting import poll
from ariane.errors import StoreError
from ariane.failover.agent import FailoverAgent
from ariane.failover.leader_record import InSyncMember
from ariane.failover.member_state import LEADING, HandOver, LossAccepted, MemberEnd, StopRequested
from ariane.net.tasks import BackgroundTasks

log = logging.getLogger("ariane.broker.failover.hand_over")

HAND_OVER_S = 2.0  # for the last records of a master before a planned switch
STOP_S = 5.0  # for the release of the lease at a stop, and for the request in flight before a lease is acquired


class RoleHolder(Protocol):
    """The member whose lease it is. [FailoverBroker]"""

    @property
    def open_broker(self) -> Broker | None:
        """Return the Broker of the current role; None while the next one is opened."""
        ...

    @property
    def is_leader(self) -> bool:
        """Return whether this member may answer as the master of the set."""
        ...

    @property
    def has_room(self) -> bool:
        """Return whether the disk takes messages."""
        ...

    async def ends(self, members: Collection[InSyncMember]) -> tuple[MemberEnd, ...]:
        """Return the ends of the logs of reachable members, its own included."""
        ...


class LeaseHandOver:
    """Changes of the holder that a person, a stop or a disk causes, and not the agent."""

    def __init__(self, member: RoleHolder, agent: FailoverAgent, tasks: BackgroundTasks) -> None:
        self._member = member
        self._agent = agent
        self._tasks = tasks

    def start(self, successor: str) -> None:
        """Begin to release the lease for `successor`; empty: any other member."""
        self._tasks.start(self.run(successor), "hand the lease over")

    async def run(self, successor: str) -> None:
        """Release the lease for `successor`, and follow it."""
        broker, refusal = self._member.open_broker, await self.drain(successor or "another broker")
        self._agent.observe(HandOver(successor))
        if broker is not None and self._agent.state.role in LEADING and broker.services.store.refusal is refusal:
            broker.services.store.refusal = None  # its deadline passed meanwhile: it leads on after the next renewal

    async def leave_full_disk(self) -> None:
        """Hand the lease over if the disk of this master is full, and another member in sync has room."""
        snapshot = self._agent.state.snapshot
        if self._member.has_room or not self._member.is_leader or snapshot is None or snapshot.record is None:
            return
        names = {member.name for member in snapshot.record.in_sync} - {self._agent.state.me.name}
        ends = await self._member.ends(snapshot.record.in_sync)
        others = [end for end in ends if end.name in names and end.may_lead and end.has_room]
        if others and self._member.is_leader:
            successor = max(others).name
            log.error("The disk is nearly full: handing the lease over to %s", successor, extra={"notice": True})
            await self.run(successor)

    async def drain(self, successor: str) -> StoreError:
        """Refuse sends, which go to another broker, and answer all others: the whole set has them then. Return the refusal."""
        broker, refusal = (
            self._member.open_broker,
            StoreError(f"{successor} becomes the master of this set: send again"),
        )
        if broker is not None and self._member.is_leader:
            store, feed = broker.services.store, broker.services.feed
            store.refusal = store.refusal or refusal
            await poll(lambda: feed.acknowledged_offset >= store.commit_log_max, HAND_OVER_S)
        return refusal

    async def release_at_stop(self) -> None:
        """Release the lease before the stop, so that another member need not wait for its end."""
        was_leading = self._agent.state.role in LEADING
        await self.drain("another broker")
        self._agent.observe(StopRequested())
        if was_leading:
            await poll(lambda: not self._holds_lease(), STOP_S)

    def accept_loss(self) -> None:
        """Begin to lead with the log that this member has, as the only member of the set."""
        self._tasks.start(self._accept_loss(), "lead with a loss that the operator accepted")

    async def _accept_loss(self) -> None:
        log.warning(
            "The operator accepts the loss of what other members have: %s leads with its own log",
            self._agent.state.me.name,
            extra={"notice": True},
        )
        await poll(lambda: self._agent.state.busy_since is None, STOP_S)
        self._agent.observe(LossAccepted())

    def _holds_lease(self) -> bool:
        snapshot = self._agent.state.snapshot
        record = snapshot.record if snapshot and snapshot.lease else None
        return record is not None and record.holder == self._agent.state.me.name
