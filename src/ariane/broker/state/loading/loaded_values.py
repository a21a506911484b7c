"""Reads the documents of config/ by the rules for requests: what a client may not send is not loaded either.

    offsets    as UPDATE_CONSUMER_OFFSET         locks     as LOCK_BATCH_MQ
    topics     as in REGISTER_BROKER             filters   as SubscriptionData, with the names of a heartbeat
    groups     as SubscriptionGroupConfig        deletions, delay offsets   numbers of 64 bits, not negative

A start drops the entries that break a rule, one by one, and serves the others. The file is retained as
`<name>.invalid-<time of its last change>`, the last RETAINED_MAX of each document.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from ariane.broker.state.consumer_filters import FilterTable
from ariane.broker.state.pop_table import PopDocument, PopQueueEntry
from ariane.broker.state.queue_locks import LockTable
from ariane.broker.state.saved import json_documents
from ariane.errors import ProtocolError
from ariane.model.topic import TopicDeletion
from ariane.protocol.requests import rules
from ariane.protocol.requests.admin import ConsumerOffsetTable, DelayOffsetTable, SubscriptionGroupTable
from ariane.protocol.requests.clients import LockBatch, WireQueue
from ariane.protocol.requests.messaging import UpdateConsumerOffset
from ariane.protocol.requests.pop import RequestModes
from ariane.protocol.requests.routing import MasterTopicTable, TopicTable
from ariane.store.disk.files import Disk, read_whole, write_atomic, write_error

log = logging.getLogger("ariane.broker.state")

RETAINED_MAX = 5  # files of one document with dropped entries; the oldest is removed
EXAMPLES_MAX = 3  # dropped entries in one log line

T = TypeVar("T", bound=msgspec.Struct)
V = TypeVar("V")

_QUEUE = rules.RANGES["UpdateConsumerOffset.queue_id"]
_OFFSET = rules.RANGES["UpdateConsumerOffset.commit_offset"]


class DeletedTopics(msgspec.Struct, frozen=True, rename="camel"):
    """The document deletedTopics.json, which 4.9.4 does not have."""

    deleted_topics: dict[str, TopicDeletion] = {}


class ValidDocument(NamedTuple, Generic[T]):
    """A document without its invalid entries, the checksum of its file (None if there is none), and the number of these entries."""

    document: T
    crc: int | None
    dropped: int


class Dropped(NamedTuple):
    """An entry that breaks a rule."""

    entry: str
    fault: str


Check = Callable[[Any], Iterator[Dropped]]
"""Removes the invalid entries from a document, and yields them."""


def read(disk: Disk, directory: str, name: str, kind: type[T], *, is_expendable: bool = False) -> ValidDocument[T]:
    """Return a document without the entries that break a rule. [json_documents.read]

    Raises:
        StoreError: the document cannot be read, or a file with invalid entries cannot be retained.
    """
    document, crc = json_documents.read(disk, directory, name, kind, is_expendable=is_expendable)
    dropped = drop_invalid(document)
    if dropped:
        text = "Dropped %d invalid entries of %s/%s, %s retains them: %s"
        retained = _retain(disk, directory, name)
        log.error(text, len(dropped), directory, name, retained, examples(dropped), extra={"notice": True})
    return ValidDocument(document, crc, len(dropped))


def drop_invalid(document: msgspec.Struct) -> list[Dropped]:
    """Remove the entries that break a rule from a document, or from a table of the master on a slave. Return them."""
    return list(_CHECKS[type(document)](document))


def examples(dropped: Sequence[Dropped]) -> str:
    """Return the first dropped entries for a log line."""
    shown = "; ".join(f"{entry}: {fault}" for entry, fault in dropped[:EXAMPLES_MAX])
    return f"{shown}; …" if len(dropped) > EXAMPLES_MAX else shown


def _retain(disk: Disk, directory: str, name: str) -> str:
    """Copy a document before it is written again. Return the path of the copy."""
    path = f"{directory}/{name}"
    source = path if disk.size(path) is not None else f"{path}.bak"
    changed = datetime.fromtimestamp((disk.modified_ms(source) or 0) / 1000, UTC)
    prefix = f"{name}.invalid-"
    copy = f"{directory}/{prefix}{changed:%Y%m%dT%H%M%S}"
    try:
        write_atomic(disk, copy, read_whole(disk, source) or b"")
        for older in [other for other in disk.listdir(directory) if other.startswith(prefix)][:-RETAINED_MAX]:
            disk.remove(f"{directory}/{older}")
    except OSError as error:
        raise write_error(error, copy) from error
    return copy


def _drop(table: dict[Any, V], check: Callable[[Any, V], object]) -> Iterator[Dropped]:
    """Remove the entries of a table for which `check` raises ProtocolError."""
    for key, value in list(table.items()):
        try:
            check(key, value)
        except ProtocolError as error:
            del table[key]
            yield Dropped(rules.shown(str(key)), str(error))


def _check_topics(document: TopicTable) -> Iterator[Dropped]:
    yield from _drop(
        document.topic_config_table, lambda name, topic: rules.check(TopicTable(topic_config_table={name: topic}))
    )


def _check_groups(document: SubscriptionGroupTable) -> Iterator[Dropped]:
    def check(name: str, group: msgspec.Struct) -> None:
        rules.GROUP.check("subscriptionGroupTable", name)
        rules.check(group)

    yield from _drop(document.subscription_group_table, check)
    for name, group in document.subscription_group_table.items():
        if group.group_retry_policy and (fault := group.group_retry_policy.fault):  # the group is served without it
            document.subscription_group_table[name] = msgspec.structs.replace(group, group_retry_policy=msgspec.UNSET)
            yield Dropped(f"groupRetryPolicy of {rules.shown(name)}", fault)


def _check_offsets(document: ConsumerOffsetTable) -> Iterator[Dropped]:
    def check_names(key: str, queues: object) -> None:
        topic, _, group = key.partition("@")
        rules.check(UpdateConsumerOffset(group, topic, 0, 0))

    yield from _drop(document.offset_table, check_names)
    for key, queues in document.offset_table.items():
        topic, _, group = key.partition("@")

        def check_numbers(queue_id: int, offset: int, topic: str = topic, group: str = group) -> None:
            # The common case costs two comparisons: a broker may have millions of offsets.
            if not (_QUEUE[0] <= queue_id <= _QUEUE[1] and _OFFSET[0] <= offset <= _OFFSET[1]):
                rules.check(UpdateConsumerOffset(group, topic, queue_id, offset))

        for entry, fault in _drop(queues, check_numbers):
            yield Dropped(f"{rules.shown(key)} queue {entry}", fault)


def _check_delays(document: DelayOffsetTable) -> Iterator[Dropped]:
    yield from _drop(document.offset_table, _check_offset)


def _check_offset(key: object, offset: int) -> None:
    if not _OFFSET[0] <= offset <= _OFFSET[1]:
        raise ProtocolError(f"Invalid offset {offset}: expected {_OFFSET[0]} to {_OFFSET[1]}")


def _check_filters(document: FilterTable) -> Iterator[Dropped]:
    for topic in document.filter_data_by_topic.values():
        yield from _drop(topic.group_filter_data, lambda group, data: rules.check(data))


def _check_locks(document: LockTable) -> Iterator[Dropped]:
    for group, clients in document.lock_table.items():

        def check(client_id: str, queues: tuple[WireQueue, ...], group: str = group) -> None:
            rules.check(LockBatch(client_id, group, queues))

        yield from _drop(clients, check)


def _check_deletions(document: DeletedTopics) -> Iterator[Dropped]:
    def check(topic: str, deletion: TopicDeletion) -> None:
        rules.TOPIC.check("deletedTopics", topic)
        _check_offset(topic, deletion.below)
        _check_offset(topic, deletion.store_ms)

    yield from _drop(document.deleted_topics, check)


def _check_pop(document: PopDocument) -> Iterator[Dropped]:
    for group, topics in document.groups.items():
        for topic, queues in topics.items():

            def check(queue_id: int, queue: PopQueueEntry, group: str = group, topic: str = topic) -> None:
                offsets = [offset for offset, *_ in queue.taken]
                rules.check(UpdateConsumerOffset(group, topic, queue_id, queue.next))
                if any(later <= earlier for earlier, later in pairwise([-1, *offsets, queue.next])):
                    raise ProtocolError(f"Offsets below {queue.next} are expected in ascending order")

            yield from _drop(queues, check)


def _check_modes(document: RequestModes) -> Iterator[Dropped]:
    for modes in document.message_request_mode_map.values():
        yield from _drop(modes, lambda group, mode: rules.check(mode))


_CHECKS: Mapping[type, Check] = {
    DeletedTopics: _check_deletions,
    TopicTable: _check_topics,
    MasterTopicTable: _check_topics,
    SubscriptionGroupTable: _check_groups,
    ConsumerOffsetTable: _check_offsets,
    DelayOffsetTable: _check_delays,
    FilterTable: _check_filters,
    LockTable: _check_locks,
    PopDocument: _check_pop,
    RequestModes: _check_modes,
}
