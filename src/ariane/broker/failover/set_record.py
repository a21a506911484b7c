"""Changes of a set's record that an operator decides, and no member: its first one."""

from __future__ import annotations

import asyncio
import logging

from ariane.broker.failover.waiting import RETRY_S
from ariane.failover.coordination import Coordination, WriteOutcome
from ariane.failover.leader_record import LeaderRecord

log = logging.getLogger("ariane.broker.failover.set_record")


async def create_set(service: Coordination, record: LeaderRecord) -> None:
    """Store the first record, unless there is one; wait for the coordination service."""
    while (result := await service.create(record)).outcome is WriteOutcome.UNKNOWN:
        log.warning("The coordination service did not answer: the broker set cannot be created yet")
        await asyncio.sleep(RETRY_S)
    log.info("The record of the broker set: %s", result.outcome.value)
