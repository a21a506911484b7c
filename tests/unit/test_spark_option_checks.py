"""Options without effect, or with a misleading one, are rejected. No socket, no Spark session."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from ariane.errors import ArianeError, ConfigError, MessageRefused
from ariane.model.message import MessageQueue
from ariane.spark.option_parsing import camel_case
from ariane.spark.read import progress, pull_client
from ariane.spark.read import source_options as source
from ariane.spark.read.batch import BatchReader
from ariane.spark.read.micro_batches import StreamReader
from ariane.spark.read.offset_ranges import DataLoss
from ariane.spark.read.pull_client import BlockingCluster, OffsetBounds
from ariane.spark.read.source_options import SourceOptions
from ariane.spark.store import store_options as store
from ariane.spark.store.commit_log import StoredLog
from ariane.spark.store.micro_batches import StoreStreamReader
from ariane.spark.store.source import StoreReader
from ariane.spark.store.store_options import StoreOptions
from ariane.spark.write import message_encoder
from ariane.spark.write import sink_options as sink
from ariane.spark.write.partitioner import Partitioner
from ariane.spark.write.sink import batch_writer
from ariane.spark.write.sink_options import SinkOptions
from ariane.spark.write.stream_sink import stream_writer

NEEDED = {"namesrv": "h:9876", "topic": "T"}
NOW_MS = 1_800_000_000_000


def fault(parse: Any, needed: dict[str, str], **given: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse({**needed, **given})
    return str(caught.value)


def of_source(**given: str) -> str:
    return fault(lambda options: source.parse(options, NOW_MS), NEEDED, **given)


@pytest.mark.parametrize(
    ("parse", "kind"), [(source.parse, SourceOptions), (sink.parse, SinkOptions), (store.parse, StoreOptions)]
)
def test_every_option_rejects_an_empty_text(parse: Any, kind: Any) -> None:
    needed = {"path": "/store"} if kind is StoreOptions else NEEDED
    for name in map(camel_case, kind.__struct_fields__):
        others = {key: value for key, value in needed.items() if key != name}
        for empty in ("", " "):
            assert fault(parse, others, **{name: empty}).startswith(f"{name} = '': is empty"), name


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ("A && B", "&& is not supported, as a message has only one tag: expected *, a tag, or tags separated by ||"),
        ("A | B", "'A | B' is not a tag"),
        ("A || *", "'*' is not a tag"),
        ("A*", "'A*' is not a tag"),
        ("A or B", "'A or B' is not a tag"),
        ("||", "contains an empty tag"),
        ("A ||", "contains an empty tag"),
        ("a > 5 AND b IS NOT NULL", "for SQL, use .where()"),
    ],
)
def test_a_tag_expression_that_would_match_nothing_is_rejected(tags: str, said: str) -> None:
    assert said in of_source(tags=tags)
    assert said in of_source(subExpression=tags)


def test_tag_expressions_of_rocketmq_are_accepted() -> None:
    for tags in ("*", "A", "A || B", "a-b_c||%d||ü"):
        assert source.parse({**NEEDED, "tags": tags}).tags == tags


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keys": ","}, "keys = ',': expected values separated by ','"),
        ({"keys": "a b"}, "keys = 'a b': expected keys without white space"),
        ({"namesrv": ";"}, "namesrv = ';': expected values separated by ';'"),
        ({"namesrv": "h:²"}, "'h:²': expected host:port"),
        ({"namesrv": "h:" + "9" * 5000}, "expected host:port"),
        ({"startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({"startingOffsets": "{}"}, "contains no queue"),
        ({"startingOffsets": '{"T":{}}'}, "contains no queue"),
        ({"endingOffsets": '{"T":{"a":{}}}'}, "contains no queue"),
        ({"endingTimestamp": "{}"}, "contains no queue"),
        ({"startingOffsets": '{"T":{"a":{"0":1,"0":2}}}'}, "contains '0' 2 times"),
        ({"startingTimestamp": '{"T":{"a":{"0":"0"}},"T":{"a":{"1":"0"}}}'}, "contains 'T' 2 times"),
        ({"endingOffsets": '{"T":{"a":{"0":-2}}}'}, "a queue that ends at its earliest offset is empty"),
        ({"startingOffsets": '{"T":{"a":{"0":5}}}', "endingOffsets": '{"T":{"a":{"0":4}}}'}, "before startingOffsets, 5"),
        ({"startingTimestamp": "2026-01-02", "endingTimestamp": "2026-01-01"}, "before startingTimestamp, 1767312000000"),
        (
            {"startingTimestamp": '{"T":{"a":{"0":"2026-01-02"}}}', "endingTimestamp": "2026-01-01"},
            "T queue 0 of a: is before startingTimestamp",
        ),
        ({"startingTimestamp": "1700000000000000"}, "divide µs by 1,000, ns by 1,000,000"),
        ({"endingTimestamp": '{"T":{"a":{"0":1700000000000000000}}}'}, "divide µs by 1,000, ns by 1,000,000"),
        ({"startingTimestamp": str(NOW_MS + 3_600_000)}, "2027-01-15T09:00:00+00:00': is in the future"),
        ({"startingTimestamp": f'{{"T":{{"a":{{"0":{NOW_MS + 3_600_000}}}}}}}'}, "is in the future"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "expected at most maxOffsetsPerTrigger, 8"),
        ({"maxTriggerDelay": "1h"}, "has no effect without minOffsetsPerTrigger"),
        ({"maxBytesPerTrigger": "999999999999999g"}, "expected a number of bytes"),
        ({"securityToken": "t"}, "securityToken = '': has no effect without accessKey"),
        ({"tlsVerify": "false"}, "has no effect without useTls"),
        ({"useTls": "true", "tlsVerify": "false", "tlsCaFile": "ca.pem"}, "has no effect with tlsVerify = false"),
    ],
)  # fmt: skip
def test_source_options_without_effect_are_rejected(given: dict[str, str], said: str) -> None:
    assert said in of_source(**given)


def test_a_start_of_now_is_accepted_despite_clock_differences() -> None:
    assert source.parse({**NEEDED, "startingTimestamp": str(NOW_MS + 1000)}, NOW_MS).starting_timestamp
    assert source.parse({**NEEDED, "endingTimestamp": str(NOW_MS + 10**9)}, NOW_MS).ending_timestamp


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxOffsetsPerTrigger", "5"), ("maxBytesPerTrigger", "1k"), ("minOffsetsPerTrigger", "5"), ("commitOffsets", "true"),
    ],
)  # fmt: skip
def test_stream_options_are_rejected_in_a_batch(name: str, value: str) -> None:
    options = source.parse({**NEEDED, "groupId": "g", name: value})
    with pytest.raises(ConfigError, match=rf"{name} = '{value}|{name} = '1024|readStream"):
        BatchReader(options, ["body"])
    StreamReader(options, ["body"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("endingOffsets", '{"T":{"a":{"0":5}}}'), ("endingTimestamp", "2026-01-01"), ("pushDownPredicate", "true")],
)
def test_batch_options_are_rejected_in_a_stream(name: str, value: str) -> None:
    options = source.parse({**NEEDED, name: value})
    with pytest.raises(ConfigError, match=f"{name} = .*spark.read"):
        StreamReader(options, ["body"])
    BatchReader(options, ["body"])


# --- what queues hold ---

A, B = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)


class Servers(BlockingCluster):
    def __init__(self) -> None:
        super().__init__(source.parse({**NEEDED, "retries": "0"}), sleep=lambda _: None)
        self.from_master = True

    def topics(self) -> list[str]:
        return ["T"]

    def brokers(self) -> Any:
        from ariane.protocol.requests.routing import ClusterInfo

        return ClusterInfo({}, {})

    def queues(self, *topics: str) -> list[MessageQueue]:
        return [queue for queue in (A, B) if queue.topic in topics]

    def queue_bounds(self, queues: Any) -> Any:
        return {queue: OffsetBounds(10, 100, self.from_master) for queue in queues}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    fake_servers = Servers()
    monkeypatch.setattr(pull_client, "shared_cluster", lambda options: fake_servers)
    yield fake_servers


def planned(**given: str) -> list[tuple[int, int]]:
    parts = BatchReader(source.parse({**NEEDED, **given}), ["body"]).partitions()
    return [(part.offset_range.start, part.offset_range.end) for part in parts]


def at(offset: int) -> str:
    return f'{{"T":{{"a":{{"0":{offset}}}}}}}'


@pytest.mark.parametrize(
    ("given", "said", "left"),
    [
        ({"startingOffsets": at(101)}, "startingOffsets 101 is beyond its end 100", [(10, 100)]),
        ({"startingOffsets": at(9)}, "startingOffsets 9 is before its first offset 10", [(9, 100), (10, 100)]),
        ({"endingOffsets": at(101)}, "endingOffsets 101 is beyond its end 100", [(10, 101), (10, 100)]),
        ({"endingOffsets": at(9)}, "endingOffsets 9 is before its first offset 10", [(10, 100)]),
    ],
)
def test_offsets_outside_their_queue_are_a_data_loss(
    servers: Servers, caplog: pytest.LogCaptureFixture, given: dict[str, str], said: str, left: list[tuple[int, int]]
) -> None:
    with pytest.raises(DataLoss, match=f"T queue 0 of a holds offsets 10 to 99: {said}; set failOnDataLoss to false"):
        planned(**given)
    with caplog.at_level(logging.WARNING, "ariane.spark"):
        assert planned(**given, failOnDataLoss="false") == left
    assert said in caplog.text
    servers.from_master = False
    with pytest.raises(DataLoss, match="read from slaves"):
        planned(**given)


def test_offsets_at_the_bounds_are_read(servers: Servers) -> None:
    assert planned(startingOffsets=at(100), endingOffsets=at(100)) == [(10, 100)]
    assert planned(startingOffsets=at(10), endingOffsets=at(10)) == [(10, 100)]
    assert planned(startingOffsets="latest") == []


def test_a_batch_that_ends_before_it_starts_is_rejected(servers: Servers) -> None:
    with pytest.raises(ConfigError, match="endingOffsets = 50: T queue 0 of a: ends before its start, 100"):
        planned(startingOffsets="latest", endingOffsets=at(50))
    with pytest.raises(ConfigError, match="endingOffsets = 50: T queue 0 of a: ends before its start, 100"):
        planned(startingOffsets=at(-1), endingOffsets=at(50))


def test_a_batch_rejects_queues_that_do_not_exist(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="startingOffsets = 'T queue 7 of a': no such queue; the topic has a 0, b 0"):
        planned(startingOffsets='{"T":{"a":{"7":1}}}')
    options = {"namesrv": "h:1", "topicsPattern": "T.*", "startingTimestamp": '{"T9":{"a":{"0":"2026-01-01"}}}'}
    with pytest.raises(ConfigError, match="startingTimestamp = 'T9': no such topic"):
        BatchReader(source.parse(options), ["body"]).partitions()
    assert BatchReader(source.parse({"namesrv": "h:1", "topicsPattern": "U.*"}), ["body"]).partitions() == []
    assert "topicsPattern 'U.*' matches no topic" in caplog.text


# --- store files ---


@pytest.mark.parametrize(
    ("name", "value"), [("maxBytesPerTrigger", "65536"), ("startingPosition", "latest"), ("failOnDataLoss", "false")]
)
def test_stream_options_of_store_files_are_rejected_in_a_batch(name: str, value: str) -> None:
    options = store.parse({"path": "/store", name: value})
    with pytest.raises(ConfigError, match=f"{name} = .*only for spark.readStream"):
        StoreReader(options, ["body"])
    StoreStreamReader(options, ["body"])


def test_a_starting_position_outside_the_log_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    log = StoredLog("/store/commitlog", 1024, (1024, 2048), 2500)
    monkeypatch.setattr("ariane.spark.store.commit_log.find_log", lambda *_: log)
    monkeypatch.setattr("ariane.spark.store.micro_batches._align_offset", lambda _, place: place)

    def initial(**given: str) -> int:
        return StoreStreamReader(store.parse({"path": "/store", **given}), ["body"]).initialOffset()["to"]

    with pytest.raises(ConfigError, match="startingPosition = 2501: is beyond the end: the log holds 1024 to 2500"):
        initial(startingPosition="2501")
    with pytest.raises(ConfigError, match="startingPosition = 0: was removed: the log holds 1024 to 2500"):
        initial(startingPosition="0")
    assert initial(startingPosition="0", failOnDataLoss="false") == 1024
    assert [initial(startingPosition=text) for text in ("2500", "1024", "latest", "earliest")] == [
        2500,
        1024,
        2500,
        1024,
    ]
    assert "topic = ',': expected values separated by ','" in fault(store.parse, {"path": "/store"}, topic=",")


# --- the sink ---

BODY = StructType([StructField("body", BinaryType())])


def test_options_that_the_sink_does_not_support_are_rejected() -> None:
    for writer in (batch_writer, stream_writer):
        with pytest.raises(ConfigError, match=r"path = 'orders': not supported by the sink: use .option\(\"topic\""):
            writer({**NEEDED, "path": "orders"}, BODY, False)
    for name in ("checkpointLocation", "queryName"):
        with pytest.raises(ConfigError, match=rf"{name} = '/c': only for streams"):
            batch_writer({**NEEDED, name: "/c"}, BODY, False)
        stream_writer({**NEEDED, name: "/c"}, BODY, False)
    assert "expected at most maxMessageSize, 1000" in fault(
        sink.parse, NEEDED, batchBytes="1001", maxMessageSize="1000"
    )
    assert sink.parse({**NEEDED, "maxMessageSize": "1000"}).batch_bytes > 1000
    assert "did you mean compressionThreshold?" in fault(sink.parse, NEEDED, compresionThreshold="5")


def test_a_row_with_broker_and_without_queue_id_is_rejected() -> None:
    columns = {"body": pa.array([b"x"]), "queue_id": pa.array([None], pa.int32()), "broker": pa.array(["a"])}
    batch = pa.record_batch(list(columns.values()), list(columns))
    options = sink.parse(NEEDED)
    called = message_encoder.row_ids("run", 0, 0, NOW_MS)
    rows = message_encoder.encode(batch, called, 0, options)
    with pytest.raises(MessageRefused, match="row run/0/0/0: broker is set without queue_id"):
        list(Partitioner(options, called, 0, lambda _: [A, B]).requests(batch, rows))


def test_a_delivery_time_in_the_wrong_unit_is_rejected() -> None:
    seconds_as_ms = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=1_800_000_000)
    columns = {"body": pa.array([b"x"]), "deliver_at": pa.array([seconds_as_ms], pa.timestamp("us", "UTC"))}
    batch = pa.record_batch(list(columns.values()), list(columns))
    with pytest.raises(MessageRefused, match="deliver_at is before 1970-04-26"):
        message_encoder.encode(batch, message_encoder.row_ids("run", 0, 0, NOW_MS), 0, sink.parse(NEEDED))


# --- functions ---


class Frame:
    columns = ("topic", "broker", "queue_id", "queue_offset", "properties")

    def __init__(self, is_streaming: bool) -> None:
        self.isStreaming = is_streaming


@pytest.mark.parametrize(("is_streaming", "within"), [(False, "1 hour"), (True, ""), (True, " ")])
def test_within_is_required_for_streams_and_rejected_for_batches(is_streaming: bool, within: str) -> None:
    from ariane.spark import drop_duplicates

    with pytest.raises(ConfigError, match="within = "):
        drop_duplicates(Frame(is_streaming), within)  # type: ignore[arg-type]


def test_no_progress_means_no_lag_and_other_values_are_rejected() -> None:
    assert progress.lags(None) == {}
    for other in ("nothing", "[1]", 5):
        with pytest.raises(ArianeError, match="progress = .*expected query.lastProgress"):
            progress.lags(other)  # type: ignore[arg-type]
