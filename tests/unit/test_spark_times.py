"""The first entry at a time found by a broker's nearest one, entry sizes, and the lag in a progress report. No socket."""

from __future__ import annotations

import bisect
import json
import random
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from ariane.errors import ArianeError, RequestTimeout
from ariane.model import host
from ariane.model.message import MessageQueue
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records import record
from ariane.spark.read import offset_ranges, progress, queue_bounds
from ariane.spark.read.pull_client import BlockingCluster, PulledRecords
from ariane.spark.read.source_options import parse

QUEUE, OTHER = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
HOST = host.pack("10.0.0.1", 10911)


class Stored(BlockingCluster):
    """Brokers whose queues hold entries with the given store times; they answer searches as Java does: with any entry of
    equal times, else with the nearer neighbour."""

    def __init__(self, times: dict[MessageQueue, list[int]], first: int = 0, body: bytes = b"x") -> None:
        super().__init__(parse({"namesrv": "h:1", "topic": "T", "retries": "1"}), sleep=lambda _: None)
        self.times, self.first, self.body = times, first, body
        self.pulled = 0
        self.random = random.Random(7)
        self.faults: list[ArianeError] = []
        self.behind: list[int] = []  # what a slave holds of each queue that answers the next pulls

    def ends(self) -> queue_bounds.QueueBounds:  # type: ignore[override]
        lasts = {queue: self.first + len(times) for queue, times in self.times.items()}
        return queue_bounds.QueueBounds(dict.fromkeys(self.times, self.first), lasts)

    def search_offsets(self, times: Any) -> Any:
        return {queue: self.first + self._nearest(self.times[queue], ms) for queue, ms in times.items()}

    def _nearest(self, stored: list[int], ms: int) -> int:
        low, high = bisect.bisect_left(stored, ms), bisect.bisect_right(stored, ms)
        if low < high:
            return self.random.randrange(low, high)
        if low == len(stored):
            return low - 1
        return low - 1 if low and ms - stored[low - 1] <= stored[low] - ms else low

    def pull_each(self, offsets: Any, max_messages: int) -> Any:
        if self.faults:
            return dict.fromkeys(offsets, self.faults.pop())
        self.pulled += 1
        if self.behind:
            end = self.first + self.behind.pop()
            return {
                queue: self._of_a_slave(self.times[queue], offset, max_messages, end)
                for queue, offset in offsets.items()
            }
        return {queue: self._pulled(self.times[queue], offset, max_messages) for queue, offset in offsets.items()}

    def _pulled(self, stored: list[int], offset: int, most: int) -> PulledRecords:
        available = stored[offset - self.first :][:most]
        body = b"".join(
            record.encode(
                b"T", self.body, b"", queue_id=0, queue_offset=offset + n, offset=0, born_ms=1, born_host=HOST,
                store_ms=ms, store_host=HOST,
            )
            for n, ms in enumerate(available)
        )  # fmt: skip
        return PulledRecords(ResponseCode.SUCCESS, body, offset + len(available), self.first, self.first + len(stored))

    def _of_a_slave(self, stored: list[int], offset: int, most: int, end: int) -> PulledRecords:
        if offset >= end:
            return PulledRecords(ResponseCode.PULL_NOT_FOUND, b"", end, self.first, end, from_master=False)
        result = self._pulled(stored[: end - self.first], offset, most)
        return result._replace(from_master=False)


@pytest.mark.parametrize("first", [0, 40])
def test_the_first_entry_at_a_time_is_found_among_equal_times_and_gaps(first: int) -> None:
    chance = random.Random(3)
    for _ in range(150):
        stored = sorted(chance.choices(range(100, 160), k=chance.randrange(60)))
        for ms in (0, 100, 101, chance.randrange(90, 170), 159, 160, 500):
            cluster = Stored({QUEUE: stored, OTHER: [130] * 30}, first)
            result = queue_bounds.find_offsets_by_time(cluster, {QUEUE: ms, OTHER: ms}, cluster.ends())
            assert result[QUEUE] == first + bisect.bisect_left(stored, ms), (stored, ms)
            assert result[OTHER] == first + (0 if ms <= 130 else 30)


def test_many_equal_times_need_few_pulls() -> None:
    stored = [1000] * 20_000 + [1001] * 20_000
    cluster = Stored({QUEUE: stored})
    assert queue_bounds.find_offsets_by_time(cluster, {QUEUE: 1001}, cluster.ends()) == {QUEUE: 20_000}
    assert cluster.pulled <= 24


def test_an_unavailable_broker_is_retried() -> None:
    cluster = Stored({QUEUE: [1, 2, 3]})
    cluster.faults = [RequestTimeout("h:2", 5)]
    assert queue_bounds.find_offsets_by_time(cluster, {QUEUE: 2}, cluster.ends()) == {QUEUE: 1}
    cluster.faults = [RequestTimeout("h:2", 5)] * 2
    with pytest.raises(ArianeError, match="offsets by time of T: no response from h:2.*tried 2 times"):
        queue_bounds.find_offsets_by_time(cluster, {QUEUE: 2}, cluster.ends())


@pytest.mark.parametrize("first", [0, 40])
def test_a_lagging_slave_does_not_end_the_search(first: int) -> None:
    cluster = Stored({QUEUE: list(range(100, 160))}, first)
    cluster.behind = [3]
    assert queue_bounds.find_offsets_by_time(cluster, {QUEUE: 130}, cluster.ends()) == {QUEUE: first + 30}
    cluster.behind = [3, 3]
    with pytest.raises(ArianeError, match=f"a does not have offset {first + 28} yet .it holds {first} to {first + 2}"):
        queue_bounds.find_offsets_by_time(cluster, {QUEUE: 130}, cluster.ends())
    cluster.behind = [50, 50]
    assert queue_bounds.find_offsets_by_time(cluster, {QUEUE: 130}, cluster.ends()) == {QUEUE: first + 30}, (
        "what it holds is believed"
    )


def test_entry_sizes_are_estimated_from_a_few_entries() -> None:
    size = len(record.encode(b"T", b"y" * 500, b"", queue_id=0, queue_offset=0, offset=0, born_ms=1, born_host=HOST,
                             store_ms=1, store_host=HOST))  # fmt: skip
    sizes_by_queue = {MessageQueue("T", "a", number): [1] * 20 for number in range(600)}
    cluster = Stored(sizes_by_queue, body=b"y" * 500)
    result = queue_bounds.estimate_entry_sizes(cluster, dict.fromkeys(sizes_by_queue, 3))
    assert result == dict.fromkeys(sizes_by_queue, size)


def progressed(reached: dict[MessageQueue, int], there: dict[MessageQueue, int]) -> dict[str, Any]:
    end = {"from": {}, "to": offset_ranges.positions_to_json(reached)}
    return {
        "sources": [
            {"description": "other", "endOffset": {"logOffset": 3}, "latestOffset": 5},
            {"endOffset": end, "latestOffset": json.dumps({"latest": offset_ranges.positions_to_json(there)})},
        ]
    }


def test_the_lag_of_a_query_is_none_where_unknown() -> None:
    reported = progressed({QUEUE: 5, OTHER: 9}, {QUEUE: 12})
    assert progress.lags(reported) == {"T": {"a": {"0": 7}, "b": {"0": None}}}
    assert progress.lags(json.dumps(reported)) == progress.lags(reported)
    assert progress.total_lag(progress.lags(reported)) is None
    assert progress.total_lag(progress.lags(progressed({QUEUE: 5}, {QUEUE: 12}))) == 7
    files = {"endOffset": {"from": 0, "to": 4096}, "latestOffset": None}
    assert progress.lags({"sources": [files]}) == {}, "store files have places in a log"
    sources = [
        item["sources"][1] for item in (progressed({QUEUE: 10}, {QUEUE: 100}), progressed({QUEUE: 90}, {QUEUE: 100}))
    ]
    for order in (sources, sources[::-1]):
        assert progress.total_lag(progress.lags({"sources": order})) == 90
        assert progress.processed_positions({"sources": order}) == {QUEUE: 10}
    assert progress.lags({"sources": [{"endOffset": None}]}) == {}
