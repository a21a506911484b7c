"""A range of a queue to rows, for all responses of brokers: nothing is skipped silently. No socket."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from ariane.errors import ArianeError, ConnectionLost, ProtocolError, ReplyError
from ariane.model import host
from ariane.model.message import COMPRESSED, MessageQueue
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records import compression, properties, record
from ariane.spark.read import read_task
from ariane.spark.read.offset_ranges import DataLoss, OffsetRange
from ariane.spark.read.pull_client import BlockingCluster, PulledRecords
from ariane.spark.read.source_options import parse
from ariane.spark.records import bodies

QUEUE = MessageQueue("T", "broker-a", 3)
HOST, V6 = host.pack("10.0.0.1", 10911), host.pack("2001:db8::1", 10911)
FOUND, NOTHING = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
PASSED, MOVED = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED


def records(*numbers: int, tag: Callable[[int], str] = lambda _: "a", sys_flag: int = 0) -> bytes:
    return b"".join(
        record.encode(
            b"T",
            b"%d" % number,
            properties.encode({"TAGS": tag(number)}).encode(),
            queue_id=3,
            queue_offset=number,
            offset=number,
            born_ms=1,
            born_host=HOST,
            store_ms=1,
            store_host=HOST,
            sys_flag=sys_flag,
        )
        for number in numbers
    )


class Script(BlockingCluster):
    """Answers `pull` by offset, the last of a list repeatedly; it never waits, and counts the waits."""

    def __init__(self, options: Any, answers: dict[int, Any]) -> None:
        self.waits = 0
        self.asked: list[list[int]] = []
        self.forgotten: list[str] = []
        super().__init__(options, sleep=self._waited)
        self._answers = {
            position: list(item) if isinstance(item, list) else [item] for position, item in answers.items()
        }

    def pull(self, queue: MessageQueue, offsets: Sequence[int], tags: str = "*") -> list[PulledRecords]:
        self.asked.append(list(offsets))
        answers = [self._answer(position) for position in offsets]
        if isinstance(answers[0], Exception):
            raise answers[0]
        return list(itertools.takewhile(lambda one: isinstance(one, PulledRecords), answers))

    def forget_routes(self, *topics: str) -> None:
        self.forgotten += topics

    def _answer(self, offset: int) -> Any:
        remaining = self._answers[offset]
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    def _waited(self, _: float) -> None:
        self.waits += 1


def read(start: int, end: int, answers: dict[int, Any], **options: str) -> list[int]:
    return reading_of(start, end, answers, **options)[0]


def reading_of(start: int, end: int, answers: dict[int, Any], **options: str) -> tuple[list[int], Script]:
    parsed = parse({"namesrv": "h:1", "topic": "T", "retries": "2", **options})
    cluster = Script(parsed, answers)
    batches = read_task.read_range(cluster, OffsetRange(QUEUE, start, end), parsed, ["queue_offset"])
    return [offset for batch in batches for offset in batch["queue_offset"].to_pylist()], cluster


def test_responses_are_joined_and_cut_at_the_end() -> None:
    answers = {
        5: PulledRecords(FOUND, records(5, 6), 7, 0, 12),
        7: PulledRecords(FOUND, records(7, 8, 9, 10), 11, 0, 12),
    }
    assert read(5, 9, answers) == [5, 6, 7, 8]


@pytest.mark.parametrize(("topics", "body"), [("T", b"5"), ("A,T", b"5"), ("A", None)])
def test_bodies_are_read_of_selected_topics(topics: str, body: bytes | None) -> None:
    options = parse({"namesrv": "h:1", "topicsPattern": ".*", "topicsWithBody": topics})
    cluster = Script(options, {5: PulledRecords(FOUND, records(5), 6, 0, 6)})
    columns = ["queue_offset", "body", "body_length", "tags"]
    (batch,) = read_task.read_range(cluster, OffsetRange(QUEUE, 5, 6), options, columns)
    assert batch.to_pylist() == [{"queue_offset": 5, "body": body, "body_length": 1, "tags": "a"}]


def test_a_range_larger_than_a_batch_gives_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_task, "BATCH_ROWS", 2)
    answers = {position: PulledRecords(FOUND, records(position), position + 1, 0, 5) for position in range(5)}
    assert read(0, 5, answers) == [0, 1, 2, 3, 4]


def of_two(start: int, end: int) -> dict[int, Any]:
    """Answers of two messages."""
    return {
        position: PulledRecords(FOUND, records(position, position + 1), position + 2, 0, end)
        for position in range(start, end, 2)
    }


def test_pulls_are_sent_ahead_while_responses_have_equal_length() -> None:
    offsets, cluster = reading_of(0, 100, of_two(0, 100))
    assert offsets == list(range(100))
    assert [len(pulled) for pulled in cluster.asked] == [1, 1, 1, 1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 8, 4]
    assert [position for pulled in cluster.asked for position in pulled] == list(range(0, 100, 2)), (
        "none is asked for twice"
    )
    assert max(max(pulled) for pulled in cluster.asked) < 100, "nothing beyond the range is asked for"


def test_a_shorter_response_stops_sending_ahead() -> None:
    answers = of_two(0, 40) | {20: PulledRecords(FOUND, records(20), 21, 0, 40)}
    answers |= {position: PulledRecords(FOUND, records(position), position + 1, 0, 40) for position in range(21, 40)}
    offsets, cluster = reading_of(0, 40, answers)
    assert offsets == list(range(40))
    guessed = next(number for number, pulled in enumerate(cluster.asked) if 22 in pulled)
    assert cluster.asked[guessed + 1] == [21]


class LimitedBytes(Script):
    """Answers with as many messages as are requested and fit into a response; their sizes differ."""

    def pull(self, queue: MessageQueue, offsets: Sequence[int], tags: str = "*") -> list[PulledRecords]:
        self.asked.append(list(offsets))
        stops = [*offsets[1:], 1000]
        ends = [min(stop, start + 10 + start % 3) for start, stop in zip(offsets, stops, strict=True)]
        numbers = [range(start, end) for start, end in zip(offsets, ends, strict=True)]
        return [PulledRecords(FOUND, records(*part), part.stop, 0, 1000) for part in numbers]


def test_pulls_are_sent_ahead_although_the_sizes_of_messages_differ() -> None:
    parsed = parse({"namesrv": "h:1", "topic": "T"})
    cluster = LimitedBytes(parsed, {})
    batches = read_task.read_range(cluster, OffsetRange(QUEUE, 0, 1000), parsed, ["queue_offset"])
    assert [offset for batch in batches for offset in batch["queue_offset"].to_pylist()] == list(range(1000))
    assert max(map(len, cluster.asked)) == read_task.PULLS_IN_FLIGHT_MAX
    pulls = [offset for pulled in cluster.asked for offset in pulled]
    assert len(pulls) == len(set(pulls)) < 120, "none is asked for twice"


@pytest.mark.parametrize(
    "odd",
    [
        PulledRecords(NOTHING, b"", 14, 0, 40, False),  # a slave that is behind, for once
        PulledRecords(FOUND, records(12, 13), 12, 0, 40),  # it goes nowhere
        PulledRecords(FOUND, records(12, 13), 10, 0, 40),
        ConnectionLost("h:1", "refused"),
        ReplyError(ResponseCode.SYSTEM_BUSY, "busy", "h:1"),
    ],
)
def test_an_unexpected_response_to_a_predicted_pull_is_requested_again(odd: Any) -> None:
    answers = of_two(0, 40)
    offsets, cluster = reading_of(0, 40, answers | {12: [odd, answers[12]]})
    assert offsets == list(range(40))
    assert cluster.waits == 0
    assert [12 in pulled for pulled in cluster.asked].count(True) == 2


def test_entries_of_other_tags_are_skipped_without_repeated_pulls() -> None:
    answers: dict[int, Any] = {
        position: PulledRecords(PASSED, b"", position + 800, 0, 80_000) for position in range(0, 80_000, 800)
    }
    answers[40_000] = PulledRecords(FOUND, records(40_100), 40_800, 0, 80_000)
    offsets, cluster = reading_of(0, 80_000, answers, tags="a")
    assert offsets == [40_100]
    assert sum(map(len, cluster.asked)) == 100


def test_entries_that_do_not_ascend_are_rejected() -> None:
    with pytest.raises(ProtocolError, match="do not ascend"):
        read(0, 4, {0: PulledRecords(FOUND, records(0, 1), 2, 0, 4), 2: PulledRecords(FOUND, records(1, 2), 4, 0, 4)})


def test_a_loss_seen_by_a_predicted_pull_is_reported() -> None:
    answers = of_two(0, 40) | {12: PulledRecords(MOVED, b"", 20, 20, 40)}
    with pytest.raises(DataLoss, match="12 to 19 are gone"):
        read(0, 40, answers)
    assert read(0, 40, answers, failOnDataLoss="false") == [*range(12), *range(20, 40)]


GONE = {
    "deleted before": (
        {0: PulledRecords(MOVED, b"", 4, 4, 6), 4: PulledRecords(FOUND, records(4, 5), 6, 4, 6)},
        "0 to 3",
        [4, 5],
    ),
    "no end any more": (
        {0: PulledRecords(FOUND, records(0, 1), 2, 0, 2), 2: PulledRecords(NOTHING, b"", 2, 0, 2)},
        "2 to 5",
        [0, 1],
    ),
    "beyond the end": ({0: PulledRecords(MOVED, b"", 0, 0, 0)}, "0 to 5", []),
    "all deleted": ({0: PulledRecords(MOVED, b"", 9, 9, 12)}, "0 to 5", []),
    "passed over while being deleted": (
        {0: PulledRecords(PASSED, b"", 3, 0, 6, removed=True), 3: PulledRecords(FOUND, records(3, 4, 5), 6, 0, 6)},
        "0 to 2",
        [3, 4, 5],
    ),
    "passed over without a filter": (
        {0: PulledRecords(PASSED, b"", 3, 0, 6), 3: PulledRecords(FOUND, records(3, 4, 5), 6, 0, 6)},
        "0 to 2",
        [3, 4, 5],
    ),
    "a hole in the queue's files": (
        {0: PulledRecords(NOTHING, b"", 4, 0, 6), 4: PulledRecords(FOUND, records(4, 5), 6, 0, 6)},
        "0 to 3",
        [4, 5],
    ),
    "a gap in an answer": ({0: PulledRecords(FOUND, records(0, 1, 4, 5), 6, 0, 6)}, "2 to 3", [0, 1, 4, 5]),
    "an answer that begins late": ({0: PulledRecords(FOUND, records(2, 3, 4, 5), 6, 0, 6)}, "0 to 1", [2, 3, 4, 5]),
    "an answer that ends early": ({0: PulledRecords(FOUND, records(0, 1), 6, 0, 6)}, "2 to 5", [0, 1]),
    "on a slave, deleted": (
        {0: PulledRecords(PASSED, b"", 0, 4, 6, False), 4: PulledRecords(FOUND, records(4, 5), 6, 4, 6, False)},
        "0 to 3",
        [4, 5],
    ),
}


@pytest.mark.parametrize("case", GONE)
def test_lost_entries_fail_the_task_or_are_skipped(case: str, caplog: pytest.LogCaptureFixture) -> None:
    answers, gone, rest = GONE[case]
    with pytest.raises(DataLoss, match=f"T queue 3 of broker-a, offsets 0 to 5: {gone} are gone.*failOnDataLoss"):
        read(0, 6, answers)
    with caplog.at_level(logging.WARNING, "ariane.spark"):
        assert read(0, 6, answers, failOnDataLoss="false") == rest
    assert f"{gone} are gone" in caplog.text


@pytest.mark.parametrize("keep", ["true", "false"])
@pytest.mark.parametrize(
    "old",
    [PulledRecords(NOTHING, b"", 2, 0, 2), PulledRecords(MOVED, b"", 4, 4, 4), PulledRecords(MOVED, b"", 0, 0, 0)],
)
def test_a_loss_reported_by_a_replaced_master_is_checked_with_a_fresh_route(old: PulledRecords, keep: str) -> None:
    answers = {
        0: PulledRecords(FOUND, records(0, 1), 2, 0, 2),
        2: [old, PulledRecords(FOUND, records(2, 3, 4, 5), 6, 0, 6)],
    }
    offsets, cluster = reading_of(0, 6, answers, failOnDataLoss=keep)
    assert offsets == list(range(6))
    assert cluster.forgotten == ["T"]


def test_each_loss_is_confirmed_by_a_second_pull() -> None:
    answers = {
        0: PulledRecords(MOVED, b"", 2, 2, 8),
        2: PulledRecords(FOUND, records(2, 3), 4, 2, 8),
        4: PulledRecords(NOTHING, b"", 6, 2, 8),
        6: PulledRecords(FOUND, records(6, 7), 8, 2, 8),
    }
    offsets, cluster = reading_of(0, 8, answers, failOnDataLoss="false")
    assert offsets == [2, 3, 6, 7]
    assert [pulled[0] for pulled in cluster.asked] == [0, 0, 2, 4, 4, 6]
    assert cluster.waits == 0


def test_a_gap_beyond_the_range_is_not_a_loss() -> None:
    assert read(0, 2, {0: PulledRecords(FOUND, records(0, 1, 5), 6, 0, 6)}) == [0, 1]


def test_other_tags_are_skipped_even_with_equal_hash_codes() -> None:
    answers = {
        0: PulledRecords(PASSED, b"", 800, 0, 1000),
        # "Aa" and "BB" have the same hash: a broker that was asked for one sends both
        800: PulledRecords(FOUND, records(801, 803, tag=lambda n: "Aa" if n == 801 else "BB"), 1000, 0, 1000),
    }
    assert read(0, 1000, answers, tags="Aa") == [801]
    assert read(0, 1000, answers, tags="BB || Aa") == [801, 803]


def test_with_tags_deleted_entries_are_still_a_loss() -> None:
    with pytest.raises(DataLoss, match="0 to 3 are gone"):
        read(0, 6, {0: PulledRecords(PASSED, b"", 4, 0, 6, removed=True)}, tags="a")


@pytest.mark.parametrize("tags", ["*", "a"])
@pytest.mark.parametrize(
    "behind", [PulledRecords(PASSED, b"", 2, 0, 2, False), PulledRecords(NOTHING, b"", 2, 0, 2, False)]
)
def test_a_lagging_slave_is_retried(tags: str, behind: PulledRecords) -> None:
    rest = PulledRecords(FOUND, records(2, 3), 4, 0, 4, False)
    offsets, cluster = reading_of(2, 4, {2: [behind, behind, rest]}, tags=tags)
    assert offsets == [2, 3]
    assert cluster.waits == 2


@pytest.mark.parametrize("code", [FOUND, PASSED])
def test_a_response_without_progress_is_retried_a_limited_number_of_times(code: int) -> None:
    body = records(1) if code == FOUND else b""
    with pytest.raises(ArianeError, match=r"offsets 1 to 2: broker-a does not have offset 1 yet.*tried 3 times"):
        read(1, 3, {1: PulledRecords(code, body, 1, 0, 3)}, tags="a")


def test_transient_errors_are_retried_and_permanent_ones_are_not() -> None:
    busy = ReplyError(ResponseCode.SYSTEM_BUSY, "busy", "h:2")
    offsets, cluster = reading_of(0, 1, {0: [busy, PulledRecords(FOUND, records(0), 1, 0, 1)]})
    assert (offsets, cluster.waits) == ([0], 1)
    with pytest.raises(
        ArianeError, match=r"T queue 3 of broker-a, offsets 0 to 0: h:2 answered code 2: busy \(tried 3"
    ):
        read(0, 1, {0: busy})
    with pytest.raises(ArianeError, match="offsets 0 to 0: h:2 answered code 16") as caught:
        read(0, 1, {0: ReplyError(ResponseCode.NO_PERMISSION, "no", "h:2")})
    assert "tried" not in str(caught.value)


def test_a_corrupt_body_names_broker_queue_and_offset() -> None:
    parsed = parse({"namesrv": "h:1", "topic": "T"})
    cluster = Script(parsed, {4: PulledRecords(FOUND, records(4, sys_flag=COMPRESSED), 5, 0, 5)})
    with pytest.raises(ProtocolError, match="T queue 3 of broker-a, .*offset 4: the body compressed with zlib ends"):
        list(read_task.read_range(cluster, OffsetRange(QUEUE, 4, 5), parsed, ["body"]))


@pytest.mark.parametrize("born", [HOST, V6])
def test_bodies_that_expand_beyond_a_batch_are_split_into_several(monkeypatch: pytest.MonkeyPatch, born: bytes) -> None:
    monkeypatch.setattr(bodies, "EXPANDED_BYTES_MAX", 1000)
    created = [b"%d" % number * size for number, size in enumerate([400, 1, 400, 900, 100, 1000])]
    data = b"".join(
        record.encode(
            b"T",
            compression.compress(body)[0],
            b"",
            queue_id=3,
            queue_offset=number,
            offset=number,
            born_ms=1,
            born_host=born,
            store_ms=1,
            store_host=HOST,
            sys_flag=compression.ZLIB_FLAGS,
        )
        for number, body in enumerate(created)
    )
    parsed = parse({"namesrv": "h:1", "topic": "T"})
    cluster = Script(parsed, {0: PulledRecords(FOUND, data, 6, 0, 6)})
    result = [
        batch["body"].to_pylist() for batch in read_task.read_range(cluster, OffsetRange(QUEUE, 0, 6), parsed, ["body"])
    ]
    assert [body for some in result for body in some] == created
    assert max(sum(map(len, some)) for some in result) <= 1000
    offsets = list(read_task.read_range(cluster, OffsetRange(QUEUE, 0, 6), parsed, ["queue_offset"]))
    assert len(offsets) == 1, "bodies that nobody wants cost nothing"
