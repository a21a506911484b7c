"""A broker as a member of a set with failover, for the life of one Broker object: its role and epoch do not change.

    feed, following   ──► `Membership` ──► observations of the agent
    each answer       ◄── `may_answer`: only while the lease is held

A Broker without a membership has the role that is configured, as in Java.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

import msgspec

from ariane.broker.replication.member_identity import MemberIdentity
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.errors import ProtocolError
from ariane.failover import decisions
from ariane.failover.agent import BootClock, FailoverAgent
from ariane.failover.leader_record import InSyncMember, LeaderRecord
from ariane.failover.member_state import NEVER, EpochNamed, Reconciled, SetWanted, SwapRecord
from ariane.net.connection import Peer, Reply
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.failover import MemberAnswer, MemberRequest
from ariane.store.log.epochs import EpochHistory
from ariane.store.message_store import MessageStore

log = logging.getLogger("ariane.broker.replication.membership")

HA_PORT_OFFSET = 1  # [lifecycle.ports]


class Supervisor(Protocol):
    """Opens Broker objects, one after the other. [FailoverBroker]"""

    @property
    def has_room(self) -> bool:
        """Return whether the disk takes messages."""
        ...

    async def accept_fence(self, epoch: int) -> None:
        """Store the epoch of a candidate durably, as far as the record has it."""
        ...

    def on_diverged(self, common: int) -> None:
        """Cut the log at `common`, up to where it is that of the leader."""
        ...

    def on_disjoint(self, common: int, start: int) -> None:
        """Put the log aside, and begin with an empty one."""
        ...

    def hand_over(self, successor: str) -> None:
        """Give the lease up for `successor`."""
        ...

    def accept_loss(self) -> None:
        """Lead with the log that this member has, without the others of the stored set."""
        ...


class Membership:
    """What the parts of one Broker object may do in its set, and where they report."""

    def __init__(
        self,
        *,
        identity: MemberIdentity,
        epoch: int,
        agent: FailoverAgent,
        supervisor: Supervisor,
        addresses: Mapping[str, str],
        clock: BootClock,
    ) -> None:
        self.identity = identity
        self.epoch = epoch  # that this broker leads; 0: it follows
        self.is_switching = False  # closed for another role: it stays registered
        self.is_registering = False  # the name servers learn of this leader
        self.parting_until = NEVER  # its last answers, which end held pulls
        self._agent = agent
        self._supervisor = supervisor
        self._addresses = addresses  # of all members, by name
        self._clock = clock
        self.offsets: ConsumerOffsets | None = None  # of a leader: counts refused commits
        self.epochs: EpochHistory | None = None  # of the open log
        self._store: MessageStore | None = None

    @property
    def me(self) -> InSyncMember:
        return self.identity.member

    @property
    def repairs_loss(self) -> bool:
        """Return whether a start may repair a log from which complete records are missing: the set does not rely on it."""
        return self.identity.is_unproven and not self.epoch

    def attach(self, epochs: EpochHistory, store: MessageStore) -> None:
        """Note the log, which has been opened."""
        self.epochs, self._store = epochs, store

    # --- of a leader ---

    def may_answer(self) -> bool:
        """Return whether an answer may be written now."""
        return self._agent.may_answer(self.epoch) or self._clock.boottime() < self.parting_until

    def record(self) -> LeaderRecord:
        """Return the record as it was received last."""
        snapshot = self._agent.state.snapshot
        assert snapshot is not None
        assert snapshot.record is not None
        return snapshot.record

    @property
    def is_swapping(self) -> bool:
        """Return whether the outcome of a swap is open."""
        return isinstance(self._agent.state.open_write, SwapRecord)

    def swap(self, members: frozenset[InSyncMember]) -> None:
        """Ask for another in-sync set; `is_swapping` says whether its swap has begun."""
        self._agent.observe(SetWanted(tuple(sorted(members))))

    # --- of a follower ---

    def holder_addr(self) -> str:
        """Return the address of the member that leads; "" if it is not known, or this one."""
        snapshot = self._agent.state.snapshot
        record = snapshot.record if snapshot else None
        if record is None or record.holder in ("", self.me.name):
            return ""
        if record.holder not in self._addresses:
            log.error(
                "failoverMembers lacks %s, which the record names as the holder: nothing is followed", record.holder
            )
        return self._addresses.get(record.holder, "")

    def check_epoch(self, epoch: int) -> None:
        """Check the epoch of a leader before it is promised.

        Raises:
            ProtocolError: the record has not been read with this epoch: the leader may be of another set.
        """
        if epoch > (epoch_read := self._agent.state.epoch):
            self.observe_epoch(epoch)
            raise ProtocolError(f"the leader names epoch {epoch}, and the record as it was read last has {epoch_read}")

    def on_accepted(self, epoch: int) -> None:
        """Note that this log is a prefix of the log of the leader of `epoch`."""
        self._agent.observe(Reconciled(epoch))

    def on_diverged(self, common: int) -> None:
        """Note that this log has records after `common` that are not in the leader's."""
        self._supervisor.on_diverged(common)

    def on_disjoint(self, common: int, start: int) -> None:
        """Note that this log or the leader's begins at `start`, after `common`, where their common records end."""
        self._supervisor.on_disjoint(common, start)

    # --- of both ---

    def observe_epoch(self, epoch: int) -> None:
        """Note that a member names `epoch`."""
        self._agent.observe(EpochNamed(epoch))

    def lists(self, member: str) -> bool:
        """Return whether failoverMembers has this name."""
        return member in self._addresses

    async def answer(self, command: Command, peer: Peer) -> Reply:
        """Handle MEMBER_REQUEST."""
        request = decode_header(command, MemberRequest)
        agrees, refusal = False, None
        match request.action:
            case "fence":
                if self.lists(request.member):
                    await self._supervisor.accept_fence(request.epoch)
                else:
                    log.warning("Not storing epoch %d of %s: failoverMembers lacks it", request.epoch, request.member)
            case "failsafe":
                agrees = self._agent.answer_failsafe(request.member, request.epoch)
            case "handover":
                agrees = self.epoch > 0 and self.may_answer() and self._may_succeed(request.member)
                if agrees:
                    self._supervisor.hand_over(request.member)
            case "acceptloss":
                refusal = self._loss_refusal(request)
                agrees = not refusal
                if agrees:
                    self._supervisor.accept_loss()
            case "end":
                pass
        answer = self.answer_of()
        refusal = answer.refusal if refusal is None else refusal
        return Reply(body=msgspec.json.encode(msgspec.structs.replace(answer, agrees=agrees, refusal=refusal)))

    def _loss_refusal(self, request: MemberRequest) -> str:
        """Return why this member does not lead with a loss."""
        state = self._agent.state
        if request.member != self.me.name:
            return f"it is {self.me.name}, and not {request.member}"
        if request.epoch != state.epoch:
            return f"the record has epoch {state.epoch}, and not {request.epoch} any more: look again"
        return decisions.refusal(state, self._clock.boottime(), accepts_loss=True)

    def _may_succeed(self, name: str) -> bool:
        """Return whether a successor is in the set of the record; "" means any of them."""
        return any(name in ("", member.name) for member in self.record().in_sync)

    def answer_of(self) -> MemberAnswer:
        """Return what this member reports about its log."""
        assert self.epochs is not None
        assert self._store is not None
        return MemberAnswer(
            member=self.me.name,
            promised=self.epochs.promised,
            last_epoch=self.epochs.last_number,
            end=self._store.commit_log_max,
            refusal=decisions.refusal(self._agent.state, self._clock.boottime()),
            has_room=self._supervisor.has_room,
        )

    def describe(self) -> dict[str, str]:
        """Return the keys of GET_BROKER_RUNTIME_INFO about failover."""
        state, now = self._agent.state, self._clock.boottime()
        record = state.snapshot.record if state.snapshot else None
        return {
            "failoverMember": self.me.name,
            "failoverRole": state.role.name,
            "failoverEpoch": str(state.epoch),
            "failoverLogEpoch": str(self.epochs.last_number if self.epochs else 0),
            "failoverHolder": record.holder if record else "",
            "failoverSet": ",".join(member.name for member in record.in_sync) if record else "",
            "failoverSetVersion": str(record.set_version) if record else "",
            "failoverRefusal": "" if self.epoch else decisions.refusal(state, now),
            "failoverHasRoom": str(self._supervisor.has_room).lower(),
            "failoverOffsetsRefused": str(self.offsets.refused if self.offsets else 0),
            "failoverOffsetsBackward": str(self.offsets.backward if self.offsets else 0),
            "failoverLeaseSeconds": f"{max(0.0, state.deadline - now):.1f}" if self.epoch else "",
        }


def refuse_member_request(command: Command, peer: Peer) -> Reply:
    """Handle MEMBER_REQUEST at a broker without failover."""
    return Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="failoverEndpoints is not set at this broker")


def ha_addr(addr: str) -> str:
    """Return the replication address of the broker at `addr`."""
    ip, _, port = addr.rpartition(":")
    return f"{ip}:{int(port) + HA_PORT_OFFSET}"
