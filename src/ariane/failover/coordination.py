"""The interface of coordination services: one record per broker set, and a lease on it.

A lease decides which member may try to serve. It does not exclude others: a member that lost it may not have noticed yet, so that
every durable effect also carries its epoch (docs/failover.md).

    snapshot = await service.read()                                 linearizable
    result = await service.acquire(snapshot, record)                while the lease is free and the record unchanged
    result = await service.renew(result.snapshot)                   a new lease replaces the one that was read
    result = await service.swap(result.snapshot, smaller_set)       only under the lease, and from the version that was read

A lease lives at least for the service's `ttl_s` from when it was granted. Its holder counts from before it sent the request.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import msgspec

from ariane.failover.leader_record import LeaderRecord


class RecordSnapshot(msgspec.Struct, frozen=True):
    """What the service stored at one instant."""

    record: LeaderRecord | None  # None: never created
    version: str  # of the record; opaque, compared for equality only
    lease: str  # identifies the current lease; empty while it is free


class WriteOutcome(Enum):
    """The result of a write."""

    DONE = "done"
    REFUSED = "refused"  # not applied, and never will be
    UNKNOWN = "unknown"  # not applied, applied, or applied later


class WriteResult(msgspec.Struct, frozen=True):
    """The outcome of a write, and the state after it. A refused write has the state that refused it, if it was received."""

    outcome: WriteOutcome
    snapshot: RecordSnapshot | None = None


UNKNOWN_RESULT = WriteResult(WriteOutcome.UNKNOWN)


class Coordination(Protocol):
    """A coordination service, for one broker set. Each call ends within a time limit of its own. Writes do not raise for a
    service that does not answer: their outcome is unknown."""

    async def read(self) -> RecordSnapshot:
        """Return the current state, never a stale one.

        Raises:
            CoordinationUnavailable: no endpoint answered.
            InvalidLeaderRecord: the record cannot be read.
        """
        ...

    async def create(self, record: LeaderRecord) -> WriteResult:
        """Store the first record of a broker set, without a lease. Refused if one exists."""
        ...

    async def acquire(self, expected: RecordSnapshot, record: LeaderRecord) -> WriteResult:
        """Store `record` with a new lease. Refused unless the lease is free and the record is still `expected`."""
        ...

    async def renew(self, expected: RecordSnapshot) -> WriteResult:
        """Replace the lease `expected.lease` by a new one. Refused if it ended, or if another one replaced it."""
        ...

    async def swap(self, expected: RecordSnapshot, record: LeaderRecord) -> WriteResult:
        """Store `record`. Refused unless the record is still `expected` and its lease did not end since."""
        ...

    async def release(self, expected: RecordSnapshot, record: LeaderRecord) -> WriteResult:
        """Store `record` and end the lease. Refused as `swap`."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
