"""Queues in memory, for searches through topics without a broker."""

from __future__ import annotations

from collections.abc import Sequence

from ariane.cluster.connection import BrokerServer
from ariane.cluster.messages.queue_reading import (
    ALL_TAGS,
    FOUND,
    NO_NEW_MSG,
    QueuePage,
    QueueReadOperations,
    QueueServer,
)
from ariane.errors import RequestTimeout
from ariane.model.message import TAGS, MessageQueue
from ariane.protocol.records import properties
from ariane.protocol.records.record import Record

HOST = bytes([10, 0, 0, 1, 0, 0, 42, 159])


def stored(queue_id: int, offset: int, store_ms: int, body: bytes, tag: str) -> Record:
    return Record(
        topic="orders", body=body, properties=properties.encode({TAGS: tag} if tag else {}), queue_id=queue_id,
        queue_offset=offset, offset=queue_id * 1_000_000 + offset, born_ms=store_ms, born_host=HOST, store_ms=store_ms,
        store_host=HOST, reconsume_times=0, flag=0, sys_flag=0, size=100, body_crc=0, prepared_offset=0,
    )  # fmt: skip


class Queues:
    """Queues in memory; `offset_at` answers like an Apache broker: the nearest message on either side."""

    def __init__(self, *queues: Sequence[tuple[int, bytes, str]], broken: str = "") -> None:
        self.records = [
            [stored(number, offset, *item) for offset, item in enumerate(queue)] for number, queue in enumerate(queues)
        ]
        self.broken = broken
        self.pulls = 0

    async def locate_queues(self, topic: str) -> list[QueueServer]:
        names = [f"broker-{'ab'[number % 2]}" for number in range(len(self.records))]
        return [
            QueueServer(MessageQueue(topic, name, number), BrokerServer("c", name, 0, f"{name}:1"))
            for number, name in enumerate(names)
        ]

    def _queue(self, at: QueueServer) -> list[Record]:
        if at.server.broker == self.broken:
            raise RequestTimeout(at.server.addr, 1000)
        return self.records[at.queue.queue_id]

    exact_time_bounds = QueueReadOperations.exact_time_bounds
    _first_since = QueueReadOperations._first_since

    async def queue_bounds(self, at: QueueServer) -> tuple[int, int]:
        return 0, len(self._queue(at))

    async def offset_at(self, at: QueueServer, time_ms: int) -> int:
        times = [one.store_ms for one in self._queue(at)]
        if time_ms in times:
            equal = [offset for offset, ms in enumerate(times) if ms == time_ms]
            return equal[len(equal) // 2]  # a binary search ends at any of them
        before = sum(ms < time_ms for ms in times) - 1
        if before < 0 or before + 1 == len(times):
            return max(before, 0)
        return before if time_ms - times[before] <= times[before + 1] - time_ms else before + 1

    async def pull(self, at: QueueServer, offset: int, *, count: int, tags: str = ALL_TAGS) -> QueuePage:
        self.pulls += 1
        queue = self._queue(at)
        records = queue[offset : offset + count]
        matching = [one for one in records if tags == ALL_TAGS or one.property_map().get(TAGS) == tags]
        return QueuePage(FOUND if matching else NO_NEW_MSG, offset + len(records), 0, len(queue), matching)
