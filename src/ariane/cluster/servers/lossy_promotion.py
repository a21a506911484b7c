"""Promotion of a member that may lack acknowledged messages, when no member in sync of a broker set may lead. (docs/failover.md)

plan_lossy_promotion ─► LossyPromotion: where the log of each member ends ─► promote_with_loss
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.cluster.connection import BrokerUnavailable, Change
from ariane.cluster.servers.broker_sets import BrokerSetOperations, MasterSwitch, SetMember
from ariane.errors import NotFound, ServerUnavailable, UsageError
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.failover import MemberAnswer, MemberRequest


class MemberLog(NamedTuple):
    """The log of a member."""

    member: str
    epoch: int
    """Epoch of its last record."""
    end: int
    """Its end in bytes."""
    lost: int | None
    """Bytes at its end that the new master lacks: they are cut off, and put aside in that member's store. None: it has messages
    of a later epoch, and only the members can compare where the logs fork."""


class LossyPromotion(NamedTuple):
    """What the promotion of a member may lose."""

    broker: str
    member: SetMember
    logs: tuple[MemberLog, ...]
    """Of the members that responded, the promoted one first."""
    unavailable: tuple[BrokerUnavailable, ...]
    """Members whose logs are unknown."""


class LossyPromotionOperations(BrokerSetOperations):
    """Operations on broker sets without a member that may lead."""

    async def plan_lossy_promotion(self, broker: str, member: str) -> LossyPromotion:
        """Return what the promotion of `member` may lose. Nothing is changed.

        Raises:
            NotFound: no such broker is registered, or its set has no such member.
            UsageError: a member of the set serves as its master.
        """
        brokers, unavailable = await self.fetch_broker_set(broker)
        members = {item.name: item for item in brokers.members}
        if member not in members:
            raise NotFound("member", member, sorted(members))
        if brokers.master is not None:
            fix = f"{brokers.master.name} is the master of {broker}: promote without this option, nothing is lost then"
            raise UsageError("--accept-loss", member, fix)
        epochs = {}
        for item in brokers.members:
            table = (await self.fetch_runtime(item.addr)).table
            epochs[item.name] = int(table.get("failoverLogEpoch", 0))
        chosen = members[member]
        others = [item for item in brokers.members if item != chosen]
        logs = [MemberLog(member, epochs[member], chosen.log_end, 0)]
        for item in sorted(others, key=lambda other: (epochs[other.name], other.log_end), reverse=True):
            ahead = epochs[item.name] - epochs[member]
            # The master of a later epoch had everything that was acknowledged in the earlier ones.
            lost = None if ahead > 0 else max(0, item.log_end - chosen.log_end) if ahead == 0 else 0
            logs.append(MemberLog(item.name, epochs[item.name], item.log_end, lost))
        return LossyPromotion(broker, chosen, tuple(logs), unavailable)

    async def promote_with_loss(self, plan: LossyPromotion, *, clock: Clock = SYSTEM_CLOCK) -> MasterSwitch | None:
        """Let a member lead with the log that it has, as the only member of the set.

        Returns:
            The switch, without a former master; None in a dry run.

        Raises:
            ServerUnavailable: the member refuses, or did not become the master in time.
        """
        member = plan.member
        summary = (
            f"let {member.name} lead {plan.broker} with its log up to {member.log_end}, and lose what only others have"
        )
        request = MemberRequest("acceptloss", member.name, member.epoch)
        executed = await self.execute(Change(member.addr, summary, RequestCode.MEMBER_REQUEST, request))
        if self.is_dry_run:
            return None
        response = executed[0].response
        answer = None if response is None else msgspec.json.decode(response.body, type=MemberAnswer)
        if answer is None or not answer.agrees:
            reason = "it did not answer" if answer is None else answer.refusal
            raise ServerUnavailable(f"{member.name} does not lead {plan.broker}: {reason}")
        return await self.wait_for_master(plan.broker, member.epoch, "", clock)
