"""Requests of a member to the others: fence, ends of logs, consent to go on. Members that do not answer in time are omitted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

import msgspec

from ariane.errors import ArianeError
from ariane.failover.leader_record import InSyncMember
from ariane.failover.member_state import MemberEnd
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.failover import MemberAction, MemberAnswer, MemberRequest

log = logging.getLogger("ariane.broker.failover.member_requests")


class MemberRequests:
    """Sends requests to the other members of one set."""

    def __init__(self, peers: ConnectionPool, name: str, addresses: Mapping[str, str], timeout_s: float) -> None:
        self._peers = peers
        self._name = name  # of this member
        self._addresses = addresses  # by name, this member included
        self._timeout_s = timeout_s  # for connection and answer

    async def fence(self, epoch: int) -> int:
        """Have all members store `epoch`; return the highest epoch that one of them has."""
        answers = await self._ask_each(self._addresses, "fence", epoch)
        return max([epoch, *(answer.promised for answer in answers)])

    async def ends(self, members: Collection[InSyncMember], epoch: int) -> list[MemberEnd]:
        """Return the ends of the logs of other members."""
        answers = await self._ask_each({member.name for member in members}, "end", epoch)
        return [to_member_end(answer) for answer in answers]

    async def ask_failsafe(self, members: Collection[str], epoch: int) -> frozenset[str]:
        """Return which of `members` agree that this one goes on without the coordination service."""
        answers = await self._ask_each(members, "failsafe", epoch)
        return frozenset(answer.member for answer in answers if answer.agrees)

    async def _ask_each(self, names: Collection[str], action: MemberAction, epoch: int) -> list[MemberAnswer]:
        others = [name for name in names if name != self._name and name in self._addresses]
        answers = await asyncio.gather(*(self._ask(name, action, epoch) for name in others))
        return [answer for answer in answers if answer is not None]

    async def _ask(self, name: str, action: MemberAction, epoch: int) -> MemberAnswer | None:
        request = MemberRequest(action, self._name, epoch)
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._peers.request_ok(
                    self._addresses[name], RequestCode.MEMBER_REQUEST, request, timeout_ms=self._timeout_s * 1000
                )
            answer = msgspec.json.decode(response.body, type=MemberAnswer)
        except (ArianeError, TimeoutError, msgspec.DecodeError) as error:
            log.info(
                "Member %s did not answer %s: %s", name, action, str(error) or f"no answer within {self._timeout_s:g} s"
            )
            return None
        if answer.member != name:
            log.error(
                "failoverMembers: %s is the address of %s, and not of %s", self._addresses[name], answer.member, name
            )
            return None
        return answer


def to_member_end(answer: MemberAnswer) -> MemberEnd:
    """Return a member's end as candidates compare them."""
    return MemberEnd(
        answer.last_epoch, answer.end, answer.member, may_lead=not answer.refusal, has_room=answer.has_room
    )
