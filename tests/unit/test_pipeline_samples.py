"""The messages of the samples topic become rows of four tables; no content of a message raises an error."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")

import pyarrow as pa

import collected_samples
from ariane.metrics_collector.sample import TopicQueueRanges, encode_messages
from ariane.pipeline.tables import samples
from ariane.tables import SAMPLES_BROKERS, SAMPLES_COUNTERS, SAMPLES_QUEUES, SAMPLES_REJECTS
from ariane.tables.arrow_types import arrow_schema
from ariane.tables.time_buckets import bucket_of_time
from collected_samples import T0_MS, at, ends, group, messages, messages_of, ms, sample, state

TABLES = (SAMPLES_BROKERS, SAMPLES_QUEUES, SAMPLES_COUNTERS, SAMPLES_REJECTS)
GOOD = json.loads(encode_messages(state(5, 70, 100)[0])[0])
NO_ENTRY = "an entry has no name, no topic or no time within the round"
WRONG_TYPE = "a member has the wrong type"
NO_SAMPLE = "not a JSON sample"
BUCKET = bucket_of_time(T0_MS)


def decoded(decoded_messages: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each table, after a check of the schema."""
    tables = samples.decode(decoded_messages)
    for table in TABLES:
        assert tables[table.name].schema.equals(arrow_schema(table).append(pa.field("bucket", pa.string())))
        tables[table.name].validate(full=True)
    return {name: table.to_pylist() for name, table in tables.items()}


def changed(**other: object) -> bytes:
    return json.dumps(GOOD | other).encode()


def without(name: str) -> bytes:
    return json.dumps({key: value for key, value in GOOD.items() if key != name}).encode()


def counts(rows: dict[str, list[dict[str, Any]]]) -> list[int]:
    return [len(rows[table.name]) for table in TABLES]


def test_a_sample_becomes_rows_of_three_tables() -> None:
    tables = decoded(messages_of(state(5, 70, 100, age=4100, master=1.5, slave=2.5)))
    rows = tables[SAMPLES_QUEUES.name]
    facts = [
        (row["consumer_group"], row["min_offset"], row["max_offset"], row["committed_offset"], row["oldest_age_ms"])
        for row in rows
    ]
    assert facts == [(None, 0, 100, None, None), ("G", 0, 100, 70, 4100)]
    times = {(row["sampled_at"], row["bounds_at"], row["stored_at"], row["queue_id"], row["bucket"]) for row in rows}
    assert times == {(at(5), at(5), at(30), 0, BUCKET)}
    (master, slave) = tables[SAMPLES_BROKERS.name]
    assert (master["put_total"], master["get_total"], master["log_max"], master["error"]) == (10, 20, 900, None)
    assert (master["skipped_ages"], master["dropped_samples"], master["failed_requests"]) == (0, 0, [])
    assert (master["booted_at"], slave["broker_id"], slave["bucket"]) == (at(-5), 1, BUCKET)
    counters = [(row["broker_id"], row["total"], row["tps"]) for row in tables[SAMPLES_COUNTERS.name]]
    assert counters == [(0, 90, 1.5), (1, 150, 2.5)]
    assert tables[SAMPLES_REJECTS.name] == []


def test_a_sample_of_many_topics_spans_messages_and_has_one_broker_row() -> None:
    topics = tuple(TopicQueueRanges(f"T{number}", ms(1), ((0, 0, number),)) for number in range(1100))
    split = messages_of([sample(1, topics=topics)])
    assert split.num_rows == 3
    tables = decoded(split)
    assert counts(tables) == [1, 1100, 0, 0]
    assert {row["topic"]: row["max_offset"] for row in tables[SAMPLES_QUEUES.name]} == {
        topic.topic: topic.queues[0][2] for topic in topics
    }


def test_rows_are_stored_in_the_bucket_of_their_own_time() -> None:
    sampled = sample(-1, topics=(ends(1, (0, 0, 9)),), counters=(collected_samples.got(-1, 1.0),))
    tables = decoded(messages([*encode_messages(sampled), b"?"], stored=at(700)))
    before, after = bucket_of_time(T0_MS - 600_000), bucket_of_time(T0_MS + 600_000)
    assert [tables[table.name][0]["bucket"] for table in TABLES] == [before, BUCKET, before, after]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"nonsense", NO_SAMPLE),
        (b"", NO_SAMPLE),
        (None, NO_SAMPLE),
        (b"[1]", NO_SAMPLE),
        (b"\xff\xfe", NO_SAMPLE),
        (changed() + b" trailing", NO_SAMPLE),
        (b"[" * 100_000, NO_SAMPLE),
        (b'{"schema":2,"other":' + b"[" * 100_000, NO_SAMPLE),
        (changed(schema="2"), NO_SAMPLE),
        (b"{}", "schema is missing"),
        (changed(schema=None, at_ms="soon"), "schema is missing"),
        (changed(schema=7), "schema 7, this pipeline supports 2; upgrade it"),
        (changed(schema=7, at_ms="soon"), "schema 7, this pipeline supports 2; upgrade it"),
        (changed(at_ms="soon"), WRONG_TYPE),
        (changed(at_ms=1.5), WRONG_TYPE),
        (changed(at_ms=2**63), WRONG_TYPE),
        (changed().replace(b'"requests": 9', b'"requests": ' + b"9" * 5000), WRONG_TYPE),
        (changed(broker=5), WRONG_TYPE),
        (changed(topics=[None]), WRONG_TYPE),
        (changed(broker="b" * 301), WRONG_TYPE),
        (changed().replace(b'"tps": 0.0', b'"tps": 1e999'), WRONG_TYPE),
        (changed().replace(b'"tps": 0.0', b'"tps": NaN'), NO_SAMPLE),
        (changed(broker=None, cluster=5), WRONG_TYPE),
        (without("broker"), "lacks broker"),
        (changed(collector=None, broker_id=None, at_ms=0), "lacks collector, broker_id"),
        (changed(at_ms=T0_MS - 2 * 86_400_000), "the collector's clock is 172830000 ms off the broker's clock"),
        (changed(at_ms=-(2**63)), f"the collector's clock is {2**63 + ms(30)} ms off the broker's clock"),
        (changed(topics=[{"topic": "T", "queues": [[0, 0, 9]]}]), NO_ENTRY),
        (changed(topics=[{"topic": "T", "at_ms": GOOD["at_ms"] - 1}]), NO_ENTRY),
        (changed(topics=[{"topic": "T", "at_ms": GOOD["at_ms"] + 3_600_001}]), NO_ENTRY),
        (changed(groups=[{"topic": "T", "at_ms": ms(5), "queues": []}]), NO_ENTRY),
        (changed(counters=[{"name": "N", "at_ms": ms(5)}]), NO_ENTRY),
        (changed(topics=[{"topic": "T", "at_ms": ms(5), "queues": [[]] * 100_001}]), "more than 100000 queues"),
    ],
)
def test_an_invalid_sample_is_rejected_with_a_reason(body: bytes | None, reason: str) -> None:
    tables = decoded(messages([changed(), body]))
    assert counts(tables) == [1, 2, 1, 1]
    (reject,) = tables[SAMPLES_REJECTS.name]
    text = None if body is None else body.decode(errors="replace")[:1000]
    assert reject == {
        "body": text, "reason": reason, "broker": "keeper", "queue_id": 0, "queue_offset": 1, "stored_at": at(30), "bucket": BUCKET,
    }  # fmt: skip


def test_unknown_values_are_null() -> None:
    minimal = {"schema": 2, "collector": "c", "at_ms": ms(5), "broker": "b", "broker_id": 0, "later": {"member": [1]}}
    lists = {
        "topics": [
            {"topic": "T", "at_ms": ms(5), "queues": [[], [1], [2**31, 0], [3, 1, 2, 9]]},
            {"topic": "T", "at_ms": ms(5), "queues": None},
        ],
        "groups": [{"group": "G", "topic": "T", "at_ms": ms(5), "bounds_at_ms": 2**62, "queues": [[4, None, 1], [5]]}],
        "runtime": {"boot_ms": 10**15, "put_total": None},
    }
    tables = decoded(messages([json.dumps(minimal).encode(), json.dumps(minimal | lists).encode()]))
    assert counts(tables) == [2, 6, 0, 0]
    for row in tables[SAMPLES_BROKERS.name]:
        known = {name for name, value in row.items() if value is not None}
        assert known == {"collector", "sampled_at", "stored_at", "broker", "broker_id", "bucket"}
    names = ("queue_id", "min_offset", "max_offset", "committed_offset", "bounds_at")
    assert [tuple(row[name] for name in names) for row in tables[SAMPLES_QUEUES.name]] == [
        (None, None, None, None, at(5)),
        (1, None, None, None, at(5)),
        (None, 0, None, None, at(5)),
        (3, 1, 2, None, at(5)),
        (4, 1, None, None, None),
        (5, None, None, None, None),
    ]


def test_an_invalid_character_of_a_name_is_replaced() -> None:
    tables = decoded(messages([changed(cluster="X").replace(b'"X"', b'"\xff"')]))
    assert tables[SAMPLES_BROKERS.name][0]["cluster"] == "\ufffd"


def test_chunks_and_their_absence_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = messages_of(
        [*state(5, 70, 100), sample(6, groups=(group(6, *((number, 1, 2, 3, 4) for number in range(9))),))]
    )
    whole = decoded(rows)
    assert counts(whole) == [2, 11, 1, 0]
    monkeypatch.setattr(samples, "CHUNK_ROWS", 2)
    assert decoded(pa.concat_tables([rows.slice(0, 1), rows.slice(1, 0), rows.slice(1)])) == whole
    for empty in (rows.slice(0, 0), rows.schema.empty_table(), pa.Table.from_batches([], rows.schema)):
        assert counts(decoded(empty)) == [0, 0, 0, 0]


def test_each_message_becomes_a_broker_or_a_reject_whatever_its_content() -> None:
    rng = random.Random(1)
    values: tuple[object, ...] = (
        None,
        -1,
        1.5,
        2**31,
        2**63 - 1,
        2**63,
        "x",
        "\0",
        True,
        [],
        {},
        [None],
        [[]],
        [[1, "2"]],
        [{}],
    )
    bodies = [changed(**{rng.choice(list(GOOD)): rng.choice(values) for _ in range(2)}) for _ in range(300)]
    for _ in range(300):
        damaged = bytearray(changed())
        for _ in range(3):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        bodies.append(bytes(damaged))
    tables = decoded(messages(bodies))
    continued = sum(json.loads(body)["part"] not in (None, 0) for body in bodies[:300])
    assert (
        len(bodies) - continued <= len(tables[SAMPLES_BROKERS.name]) + len(tables[SAMPLES_REJECTS.name]) <= len(bodies)
    )
