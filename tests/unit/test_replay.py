"""Replay of messages: selection, destination, rate, and a result file from which an interrupted replay resumes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ariane.cli.options.rate_options import parse_rate
from ariane.client.instance.send_types import SendResult, SendStatus
from ariane.cluster.messages.replay import (
    DROPPED_PROPERTIES,
    OriginalMessage,
    RecordId,
    ReplayOutcome,
    ReplayPace,
    ReplayResult,
    build_message,
    replay,
)
from ariane.errors import ConfigError, ConnectionLost, MessageRefused, StoreError
from ariane.model.message import Message, MessageQueue
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.reports.replay import replay_source
from ariane.reports.replay.replay_result import ResultFile
from ariane.reports.replay.replay_source import ReplayFilter
from ariane.tables import ARCHIVE, table_store
from ariane.tables.table_format import CURRENT, DataFile, TableVersion
from ariane.testing.clock import FakeClock

DEAD = {
    "KEYS": "order-1 order-2", "TAGS": "new", "UNIQ_KEY": "U1", "WAIT": "true", "DELAY": "0", "RETRY_TOPIC": "orders",
    "ORIGIN_MESSAGE_ID": "OFF", "REAL_TOPIC": "%RETRY%G", "REAL_QID": "0", "MAX_RECONSUME_TIMES": "16", "CLUSTER": "c",
    "__STARTDELIVERTIME": "1", "TIMER_DELIVER_MS": "1", "TRAN_MSG": "true", "PGROUP": "P", "__transactionId__": "T",
    "REPLAYED_FROM": "earlier", "color": "red", "__SHARDINGKEY": "k", "empty": "",
}  # fmt: skip


def original(number: int = 0, topic: str = "%DLQ%G", sys_flag: int = 0, **own: str) -> OriginalMessage:
    properties = own or {"RETRY_TOPIC": "orders", "KEYS": f"order-{number}"}
    return OriginalMessage(RecordId(topic, "broker-a", 0, number), f"U{number}", properties, b"body", 7, sys_flag)


class FakeTarget:
    """Accepts messages; rejects or loses configured ones."""

    def __init__(self, prefix: str = "N") -> None:
        self.sent: list[Message] = []
        self.away = False
        self.refused: set[str] = set()
        self._prefix = prefix
        self._made = 0

    def make_id(self) -> str:
        self._made += 1
        return f"{self._prefix}{self._made}"

    async def topic_fault(self, topic: str) -> str | None:
        return "no such topic" if topic == "missing" else None

    async def send(self, message: Message, order_key: str | None) -> SendResult:
        if self.away:
            raise ConnectionLost("10.0.0.1:1", "refused")
        if message.message_id in self.refused:
            raise MessageRefused("too large")
        self.sent.append(message)
        return SendResult(
            status=SendStatus.SEND_OK, message_id=message.message_id, offset_message_id="OFF",
            queue=MessageQueue(message.topic, "broker-a", 1), queue_offset=len(self.sent), transaction_id=None, region="",
            trace_on=True,
        )  # fmt: skip


async def listed(*some: OriginalMessage) -> AsyncIterator[OriginalMessage]:
    for item in some:
        yield item


def run(target: FakeTarget, path: Path, *some: OriginalMessage, rate: float = 20.0, **other: Any) -> ReplayResult:
    clock = FakeClock(is_auto=True)
    with ResultFile(path) as journal:
        pace = ReplayPace(rate, clock)
        return asyncio.run(replay(listed(*some), target, journal, pace=pace, clock=clock, **other))


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- what is sent ---


def test_application_properties_are_retained_and_broker_properties_removed() -> None:
    message = build_message(original(3, **DEAD), None, "NEW")
    assert (message.topic, message.tags, message.keys, message.flag) == ("orders", "new", ("order-1", "order-2"), 7)
    assert (message.message_id, message.delay_level, message.deliver_at_ms) == ("NEW", 0, 0)
    assert message.properties == {
        "color": "red", "__SHARDINGKEY": "k", "REPLAYED_FROM": "%DLQ%G/broker-a/0/3/U3",
    }  # fmt: skip
    assert set(DEAD) - DROPPED_PROPERTIES == {"color", "__SHARDINGKEY", "empty"}


def test_an_unknown_destination_must_be_specified() -> None:
    with pytest.raises(MessageRefused, match="no RETRY_TOPIC"):
        build_message(original(0, color="red"), None, "")
    with pytest.raises(MessageRefused, match="stored in orders"):
        build_message(original(0, topic="orders"), None, "")
    assert build_message(original(0, topic="orders"), "again", "").topic == "again"
    with pytest.raises(MessageRefused, match="cannot be decompressed"):
        build_message(original(0, sys_flag=1), "T", "")


# --- the journal ---


class HeldJournal:
    """A journal whose writes wait until a test releases them."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.released = threading.Event()
        self.outcomes: list[ReplayOutcome] = []

    def is_sent(self, place: RecordId) -> bool:
        return False

    def message_id_of(self, place: RecordId) -> str | None:
        return None

    def write(self, outcomes: list[ReplayOutcome]) -> None:
        self.begun.set()
        assert self.released.wait(60)
        self.outcomes += outcomes


def test_the_event_loop_runs_while_outcomes_are_stored_and_a_cancelled_replay_stores_them() -> None:
    journal, target = HeldJournal(), FakeTarget()

    async def cancel() -> None:
        pace = ReplayPace(20.0, FakeClock(is_auto=True))
        task = asyncio.create_task(replay(listed(original(0)), target, journal, pace=pace))
        while not journal.begun.is_set():
            await asyncio.sleep(0)  # a write on the event loop would wait for the release below
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        journal.released.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert [one.state for one in journal.outcomes] == ["sending"]
    assert target.sent == []


# --- how fast ---


def test_the_rate_limit_applies_and_lost_time_is_not_caught_up(tmp_path: Path) -> None:
    clock = FakeClock(is_auto=True)

    async def passed() -> list[float]:
        times = []
        pace = ReplayPace(100, clock)
        assert pace.chunk_size == 10
        for number in range(4):
            await pace.wait(10)
            times.append(round(clock.elapsed_ms / 1000, 3))
            if number == 1:
                clock.advance(5)  # a broker was slow
        return times

    assert asyncio.run(passed()) == [0.0, 0.1, 5.1, 5.2]
    assert ReplayPace(0.5).chunk_size == 1
    assert ReplayPace(1e9).chunk_size == 64


def test_rate_options_are_parsed() -> None:
    assert [parse_rate(text) for text in ("500/s", "20", "30/m", "0.5/s")] == [500, 20, 0.5, 0.5]
    for text in ("0", "fast", "-1/s", "5/h", "inf"):
        with pytest.raises(ConfigError, match="500/s"):
            parse_rate(text)


# --- the result ---


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_second_run_sends_only_what_was_not_sent(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"result{suffix}"
    target = FakeTarget()
    target.refused = {"N2"}
    three = [original(number) for number in range(3)]
    assert run(target, path, *three) == ReplayResult(2, 1, 0, 0)
    assert not path.with_name(f"{path.name}.journal").exists()
    repeated = FakeTarget("M")
    assert run(repeated, path, *three, original(3)) == ReplayResult(2, 0, 0, 2)
    assert [message.message_id for message in repeated.sent] == ["N2", "M1"], "what may have been sent keeps its id"
    assert run(repeated, path, *three, original(3)) == ReplayResult(0, 0, 0, 4)


def test_each_message_is_one_row(tmp_path: Path) -> None:
    path = tmp_path / "result.jsonl"
    target = FakeTarget()
    target.refused = {"N2"}
    run(target, path, original(0), original(1))
    ok, failed = results(path)
    assert (ok["source_message_id"], ok["state"], ok["topic"], ok["message_id"]) == ("U0", "ok", "orders", "N1")
    assert (ok["broker"], ok["queue_id"], ok["queue_offset"], ok["error"]) == ("broker-a", 1, 1, None)
    assert (failed["source_queue_offset"], failed["state"], failed["error"]) == (1, "failed", "too large")


def test_unavailable_servers_end_the_replay_and_unsent_messages_are_in_the_result(tmp_path: Path) -> None:
    path = tmp_path / "result.jsonl"
    target = FakeTarget()
    target.away = True
    four = [original(number) for number in range(4)]
    done = run(target, path, *four)
    assert (done.ok, done.failed, done.unsent) == (0, 2, 2)
    assert done.stop_reason is not None
    assert "10.0.0.1:1" in done.stop_reason
    assert [row["state"] for row in results(path)] == ["failed", "failed", "unsent", "unsent"]
    target.away = False
    assert run(target, path, *four) == ReplayResult(4, 0, 0, 0)
    assert [row["state"] for row in results(path)] == ["ok"] * 4


def test_a_replay_can_be_stopped(tmp_path: Path) -> None:
    stop = asyncio.Event()
    done = run(
        FakeTarget(),
        tmp_path / "r.jsonl",
        *(original(n) for n in range(5)),
        stop=stop,
        on_progress=lambda _: stop.set(),
    )
    assert done == ReplayResult(2, 0, 3, 0, "stopped")


def test_a_killed_replay_resumes_and_in_flight_messages_retain_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "result.jsonl"

    def line(number: int, state: str) -> str:
        values = {
            "source_topic": "%DLQ%G", "source_broker": "broker-a", "source_queue_id": 0, "source_queue_offset": number,
            "source_message_id": f"U{number}", "state": state, "at_ms": number, "message_id": f"K{number}",
        }  # fmt: skip
        return json.dumps(values)

    lines = [line(0, "sending"), line(1, "sending"), line(0, "ok"), line(1, "ok")[:20]]
    path.with_name("result.jsonl.journal").write_text("\n".join(lines))
    target = FakeTarget()
    assert run(target, path, original(0), original(1), original(2)) == ReplayResult(2, 0, 0, 1)
    assert [message.message_id for message in target.sent] == ["K1", "N1"]
    assert [(row["message_id"], row["state"]) for row in results(path)] == [("K0", "ok"), ("K1", "ok"), ("N1", "ok")]


def test_a_result_file_must_be_writable_and_used_by_one_replay(tmp_path: Path) -> None:
    with (
        ResultFile(tmp_path / "r.jsonl"),
        pytest.raises(ConfigError, match="another replay"),
        ResultFile(tmp_path / "r.jsonl"),
    ):
        pass
    with pytest.raises(ConfigError, match="ends in"):
        ResultFile(tmp_path / "r.csv")
    with pytest.raises(ConfigError, match="not writable"), ResultFile(tmp_path / "no" / "r.jsonl"):
        pass
    (tmp_path / "other.jsonl").write_text("no json\n")
    with pytest.raises(StoreError, match="not a valid replay result"), ResultFile(tmp_path / "other.jsonl"):
        pass


def test_a_missing_topic_is_reported(tmp_path: Path) -> None:
    target = FakeTarget()
    with pytest.raises(ConfigError, match="no such topic"):
        run(target, tmp_path / "r.jsonl", original(0), topic="missing")
    done = run(target, tmp_path / "r.jsonl", original(0, RETRY_TOPIC="missing"), original(1))
    assert done == ReplayResult(1, 1, 0, 0)
    assert [row["error"] for row in results(tmp_path / "r.jsonl")] == ["missing: no such topic", None]


def test_messages_with_one_sharding_key_are_sent_sequentially(tmp_path: Path) -> None:
    class Slow(FakeTarget):
        async def send(self, message: Message, order_key: str | None) -> SendResult:
            assert order_key == message.properties.get("__SHARDINGKEY")
            for _ in range(3 if message.properties["n"] == "0" else 1):
                await asyncio.sleep(0)
            return await super().send(message, order_key)

    own = [{"RETRY_TOPIC": "orders", "__SHARDINGKEY": key, "n": str(n)} for n, key in enumerate(("a", "a", "b"))]
    target = Slow()
    run(target, tmp_path / "r.jsonl", *(original(n, **item) for n, item in enumerate(own)), rate=1000.0)
    assert [message.properties["n"] for message in target.sent] == ["2", "0", "1"]


def test_a_failed_message_blocks_later_ones_with_the_same_sharding_key(tmp_path: Path) -> None:
    target = FakeTarget()
    target.refused = {"N1"}
    keys = ("a", "b", "a", "b", "a")
    own = [{"RETRY_TOPIC": "orders", "__SHARDINGKEY": key, "n": str(n)} for n, key in enumerate(keys)]
    all_of_them = [original(n, **item) for n, item in enumerate(own)]
    assert run(target, tmp_path / "r.jsonl", *all_of_them) == ReplayResult(2, 3, 0, 0)
    assert "an earlier message of key a was not sent" in str(results(tmp_path / "r.jsonl")[2]["error"])
    target.refused = set()
    assert run(target, tmp_path / "r.jsonl", *all_of_them) == ReplayResult(3, 0, 0, 2)
    assert [message.properties["n"] for message in target.sent] == ["1", "3", "0", "2", "4"]


# --- which messages ---


def archive(home: Path) -> Path:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")
    import pyarrow.parquet as pq

    time = pa.timestamp("us", "UTC")
    types = {"STRING": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64(), "TIMESTAMP": time, "BINARY": pa.binary()}
    schema = pa.schema([(c.name, types.get(c.type, pa.map_(pa.string(), pa.string()))) for c in ARCHIVE.columns])
    files = []
    for topic in ("orders", "%DLQ%G"):
        rows = [
            dict.fromkeys(ARCHIVE.column_names)
            | {
                "topic": topic, "broker": "broker-a", "queue_id": 0, "queue_offset": n, "message_id": f"{topic}-{n}",
                "keys": f"k{n} all", "properties": [("color", "red" if n % 2 else "blue")], "body": b"x" * n, "flag": n,
                "sys_flag": 1, "store_timestamp": datetime.fromtimestamp(n, UTC),
            }
            for n in range(3, -1, -1)
        ]  # fmt: skip
        name = f"{len(files)}.parquet"
        (home / ARCHIVE.name).mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema), home / ARCHIVE.name / name)
        files.append(DataFile(name, f"1970-01-01.{topic}", 4, 1, 1, 0, 3000))
    (home / ARCHIVE.name / CURRENT).write_bytes(msgspec.json.encode(TableVersion(1, 1, 8, 3000, tuple(files))))
    return home


def chosen(home: Path, **wanted: Any) -> list[OriginalMessage]:
    async def work() -> list[OriginalMessage]:
        return [message async for message in replay_source.archived_messages(home, ReplayFilter(**wanted))]

    return asyncio.run(work())


def test_messages_of_an_archive_are_selected(tmp_path: Path) -> None:
    home = archive(tmp_path)

    def offsets(**wanted: Any) -> list[int]:
        return [item.record_id.queue_offset for item in chosen(home, topic="orders", **wanted)]

    assert offsets() == [0, 1, 2, 3]
    assert offsets(since_ms=1000, until_ms=3000) == [1, 2]
    assert offsets(key="k2") == [2]
    assert offsets(where="properties['color'] = 'red' AND flag > 1 -- the odd ones") == [3]
    assert [item.record_id.topic for item in chosen(home, key="k1")] == ["%DLQ%G", "orders"]
    item = chosen(home, key="k3", topic="orders")[0]
    assert item == OriginalMessage(RecordId("orders", "broker-a", 0, 3), "orders-3", {"color": "red"}, b"xxx", 3, 0)


@pytest.mark.parametrize(
    "where",
    ["flag = 1); COPY (SELECT 1) TO 'stolen.csv'; SELECT (1", "colour = 1", "flag =", "1); DROP VIEW archive; --"],
)
def test_a_where_option_accepts_conditions_only(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="--where"):
        chosen(archive(tmp_path), where=where)
    assert not (tmp_path / "stolen.csv").exists()


def test_a_missing_archive_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="ariane archive run"):
        chosen(tmp_path)


def test_an_outcome_is_identified_by_its_record_id() -> None:
    row = ReplayOutcome(
        source_topic="T", source_broker="b", source_queue_id=1, source_queue_offset=2, source_message_id="U", state="ok",
        at_ms=1,
    )  # fmt: skip
    assert row.record_id == RecordId("T", "b", 1, 2)


@pytest.mark.parametrize("code", [ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY])
def test_messages_removed_by_a_broker_during_the_replay_are_an_error(code: ResponseCode) -> None:
    class Peers:
        async def request(self, addr: str, request: object, pull: object) -> Command:
            reported = {"suggestWhichBrokerId": "0", "nextBeginOffset": "7", "minOffset": "7", "maxOffset": "9"}
            return Command(code, fields=reported)

    async def work() -> None:
        async for _ in replay_source._pages(Peers(), "10.0.0.1:10911", "T", 3, 2, 9):  # type: ignore[arg-type]
            pass

    with pytest.raises(
        StoreError, match="queue 3 of T at 2: removed by 10.0.0.1:10911 meanwhile, which continues at 7"
    ):
        asyncio.run(work())


def test_duplicates_in_an_archive_are_sent_once(tmp_path: Path) -> None:
    home = archive(tmp_path)
    now = table_store.read_version(home, ARCHIVE)
    assert now is not None
    (home / ARCHIVE.name / "again.parquet").write_bytes((home / ARCHIVE.name / now.files[0].path).read_bytes())
    repeated = msgspec.structs.replace(now.files[0], path="again.parquet")
    twice = msgspec.structs.replace(now, files=(*now.files, repeated))
    (home / ARCHIVE.name / CURRENT).write_bytes(msgspec.json.encode(twice))
    assert [item.record_id.queue_offset for item in chosen(home, topic="orders")] == [0, 1, 2, 3]
