"""Changes of a broker's state as its members receive them: entries of the change log, committed offsets, and snapshots.

    [[number, change], …]     one frame; the numbers of a leader ascend by one, those of a snapshot's parts are that of its end

A snapshot replaces the tables of a member: parts, then `SnapshotEnd`. It has each change up to its number; offsets may be newer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from ariane.broker.lifecycle.persistent_state import PersistentState
from ariane.broker.state.pop_table import PopChange, PopQueueEntry
from ariane.broker.state.saved.change_records import (
    GroupDeleted,
    GroupPut,
    OffsetsPut,
    QueuesLocked,
    QueuesUnlocked,
    RequestModePut,
    TopicDeleted,
    TopicPut,
)
from ariane.errors import ProtocolError
from ariane.model.topic import DataVersion, SubscriptionGroupConfig, TopicConfig, TopicDeletion
from ariane.protocol.requests.clients import WireQueue
from ariane.protocol.requests.pop import RequestMode

PART_ENTRIES = 2_000  # topics, groups, or pairs of topic and group of a part: at most a megabyte
PART_QUEUES = 20_000  # committed offsets of a part, and of one change: 5 ms to encode

T = TypeVar("T")
Offsets = dict[str, dict[int, int]]
"""`topic@group` → queue id → offset."""


class OffsetsCommitted(msgspec.Struct, frozen=True, tag="committed"):
    """The newest offsets that consumers committed since the last such change."""

    offsets: Offsets


class SnapshotPart(msgspec.Struct, frozen=True, tag="snapshot", omit_defaults=True):
    """A part of all tables."""

    is_first: bool = False
    """What was received of an earlier snapshot does not count."""
    topics: tuple[TopicConfig, ...] = ()
    groups: tuple[SubscriptionGroupConfig, ...] = ()
    offsets: Offsets = {}
    locks: dict[str, dict[str, tuple[WireQueue, ...]]] = {}
    """Group → client id → queues."""
    deletions: dict[str, TopicDeletion] = {}
    pop: dict[str, dict[str, dict[int, PopQueueEntry]]] = {}
    """Group → topic → queue id → what was taken."""
    modes: tuple[RequestMode, ...] = ()


class SnapshotEnd(msgspec.Struct, frozen=True, tag="snapshotEnd"):
    """The end of a snapshot: the versions of the tables."""

    topics: DataVersion
    groups: DataVersion


StateChange = (
    TopicPut
    | TopicDeleted
    | GroupPut
    | GroupDeleted
    | OffsetsPut
    | QueuesLocked
    | QueuesUnlocked
    | PopChange
    | RequestModePut
    | OffsetsCommitted
    | SnapshotPart
    | SnapshotEnd
)


class NumberedChange(msgspec.Struct, frozen=True, array_like=True):
    """A change and its number."""

    number: int
    change: StateChange


_DECODER = msgspec.json.Decoder(list[NumberedChange])


def encode(number: int, change: StateChange) -> bytes:
    """Return the JSON of a change."""
    return msgspec.json.encode(NumberedChange(number, change))


def join(changes: Iterable[bytes]) -> bytes:
    """Return the content of a frame with these encoded changes."""
    return b"[" + b",".join(changes) + b"]"


def decode(data: bytes) -> list[NumberedChange]:
    """Return the changes of a frame.

    Raises:
        ProtocolError: they are malformed.
    """
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"Invalid changes on a replication stream: {error}") from None


def snapshot(state: PersistentState) -> Iterator[StateChange]:
    """Return the changes that make other tables equal to these.

    The tables are copied now. Offsets are read with their part, so that large tables are encoded in slices: they may be newer.
    """
    topics, groups, offsets = state.topics.table(), state.groups.table(), state.offsets.view().offset_table
    locks, deletions = state.locks.table().lock_table, state.deletions.to_table()
    pop, modes = state.pop.document().groups, state.request_modes.modes()

    def parts() -> Iterator[StateChange]:
        yield SnapshotPart(is_first=True)
        for some_deletions in _slices(deletions.items()):
            yield SnapshotPart(deletions=dict(some_deletions))
        for some_topics in _slices(topics.topic_config_table.values()):
            yield SnapshotPart(topics=some_topics)
        for some_groups in _slices(groups.subscription_group_table.values()):
            yield SnapshotPart(groups=some_groups)
        for group, owners in locks.items():
            for client_id, queues in owners.items():
                for some_queues in _slices(queues):
                    yield SnapshotPart(locks={group: {client_id: some_queues}})
        for some_modes in _slices(modes):
            yield SnapshotPart(modes=some_modes)
        for group, topics_taken in pop.items():
            for topic, taken in topics_taken.items():
                for queue_id, entry in taken.items():
                    yield SnapshotPart(pop={group: {topic: {queue_id: entry}}})
        for some_offsets in slice_offsets(offsets):
            yield SnapshotPart(offsets=some_offsets)
        yield SnapshotEnd(topics.data_version, groups.data_version)

    return parts()


def slice_offsets(offsets: Mapping[str, Mapping[int, int]]) -> Iterator[Offsets]:
    """Yield copies of the offsets in slices of at most about PART_QUEUES queues and PART_ENTRIES pairs."""
    part: Offsets = {}
    count = 0
    for pair, queues in offsets.items():
        part[pair] = dict(queues)
        count += len(queues)
        if count >= PART_QUEUES or len(part) >= PART_ENTRIES:
            yield part
            part, count = {}, 0
    if part:
        yield part


def _slices(entries: Iterable[T]) -> Iterator[tuple[T, ...]]:
    remaining = iter(entries)
    while some := tuple(itertools.islice(remaining, PART_ENTRIES)):
        yield some
