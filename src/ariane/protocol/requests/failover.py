"""Requests between the members of a broker set with failover: MEMBER_REQUEST (14002, of Ariane)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

_Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
MemberAction = Literal["fence", "end", "failsafe", "handover", "acceptloss"]


class MemberRequest(msgspec.Struct, frozen=True, rename="camel"):
    """What a member asks another one to do."""

    action: MemberAction
    """fence: store the epoch; end: report the end of the log; failsafe: agree that the sender goes on without the coordination
    service; handover: give the lease up for `member`; acceptloss: lead with the log that `member`, the receiver, has."""
    member: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.\-]{0,127}$")]
    """The sender; of a handover the successor, or empty; of acceptloss the receiver."""
    epoch: _Count
    """Of the sender; of acceptloss that of the record which the operator saw."""


class MemberAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The body of the response."""

    member: str
    """Who answers."""
    promised: _Count
    """Highest epoch that it has stored."""
    last_epoch: _Count
    """Epoch of the last record of its log."""
    end: _Count
    """End of its log."""
    refusal: str
    """Why it may not be promoted; empty if it may."""
    agrees: bool = False
    """Whether the sender may go on (failsafe), or its request was started (handover, acceptloss)."""
    has_room: bool = True
    """Whether its disk takes messages."""
