"""Trace dispatcher: records of events, batches within their limits, and counted drops."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest
from client_script import QUEUE, message

from ariane.client.instance.hooks import ConsumeFinished, ConsumeReturn, ConsumeStarted, SendEvent
from ariane.client.instance.send_types import PreparedMessage
from ariane.client.instance.settings import ProducerSettings, TraceSettings
from ariane.client.sending import send_codec
from ariane.client.tracing import trace_dispatcher as client_trace
from ariane.client.tracing.trace_dispatcher import TraceDispatcher
from ariane.client.tracing.trace_records import events_of_consume, events_of_recall, events_of_send
from ariane.errors import ConfigError, ConnectionLost, ReplyError
from ariane.model.message import Message, MessageQueue
from ariane.protocol import trace_codec
from ariane.protocol.command import Command
from ariane.protocol.trace_batches import TraceEntry, next_batch
from ariane.testing.clock import FakeClock

TOPIC = "RMQ_SYS_TRACE_TOPIC"
SETTINGS = ProducerSettings()


def sent(out, *, code: int = 0, offset_ids: str = "OFF", topic_trace_on: str = "true") -> SendEvent:
    answer = Command(
        code,
        remark="no",
        fields={"msgId": offset_ids, "queueId": "0", "queueOffset": "0", "TRACE_ON": topic_trace_on, "MSG_REGION": "R"},
    )
    result = refusal = None
    try:
        result = send_codec.parse_result(out, answer, QUEUE, "a:1")
    except ReplyError as error:
        refusal = error
    return SendEvent(
        group="g", prepared=out, queue=QUEUE, broker_addr="a:1", started_ms=5, cost_ms=7, result=result, refusal=refusal
    )


def one(topic: str = "T", **more) -> PreparedMessage:
    return send_codec.prepare(Message(topic=topic, body=b"xyz", tags="A", keys=["k1", "k2"], **more), "ID", SETTINGS)


def test_a_stored_message_has_a_successful_pub_record():
    (record,) = events_of_send(sent(one()), TOPIC)
    assert trace_codec.encode(record) == (
        "\x01".join(["Pub", "5", "R", "g", "T", "ID", "A", "k1 k2", "a:1", "3", "7", "0", "OFF", "true"]) + "\x02"
    )


def test_a_rejected_message_has_a_failed_pub_record():
    (record,) = events_of_send(sent(one(), code=13), TOPIC)
    fields = trace_codec.encode(record).rstrip("\x02").split("\x01")
    assert (fields[5], fields[13]) == ("ID", "false")


def test_a_late_flush_is_traced_as_a_failure():
    (record,) = events_of_send(sent(one(), code=10), TOPIC)
    assert record.success is False


def test_a_delayed_message_is_traced_with_its_message_type():
    (record,) = events_of_send(sent(one(delay_level=2)), TOPIC)
    assert trace_codec.encode(record).split("\x01")[11] == "3"


def test_each_message_of_a_batch_has_its_own_record():
    ids = iter(["ID0", "ID1"])
    out = send_codec.prepare_batch(
        [Message(topic="T", body=b"a", keys=["k0"]), Message(topic="T", body=b"bc")], lambda: next(ids), SETTINGS
    )
    records = events_of_send(sent(out, offset_ids="OFF0,OFF1"), TOPIC)
    assert [(r.message_id, r.offset_message_id, r.body_length, r.keys) for r in records] == [
        ("ID0", "OFF0", 1, "k0"),
        ("ID1", "OFF1", 2, ""),
    ]


def test_trace_messages_and_sends_with_tracing_disabled_by_the_broker_have_no_record():
    assert events_of_send(sent(one(topic=TOPIC)), TOPIC) == []
    assert events_of_send(sent(one(), topic_trace_on="false"), TOPIC) == []


@pytest.mark.parametrize(("success", "text"), [(True, "true"), (False, "false")])
def test_a_recall_has_a_record_with_its_result(success, text):
    (record,) = events_of_recall(sent(one(delay=60)).result, "g", 9, success, TOPIC)
    assert trace_codec.encode(record) == "\x01".join(["Recall", "9", "R", "g", "T", "ID", text]) + "\x02"


def test_a_recall_has_no_record_if_its_send_had_none():
    assert events_of_recall(sent(one(delay=60), topic_trace_on="false").result, "g", 9, True, TOPIC) == []
    traced = msgspec.structs.replace(sent(one(delay=60)).result, queue=MessageQueue(TOPIC, "a", 0))
    assert events_of_recall(traced, "g", 9, True, TOPIC) == []


def consuming(*messages) -> ConsumeStarted:
    return ConsumeStarted(group="g", queue=QUEUE, messages=messages, request_id="REQ", started_ms=5)


def test_a_listener_call_has_records_before_and_after():
    messages = [message(0, properties={"KEYS": "k1 k2"}, reconsume_times=2), message(1, properties={"MSG_REGION": "R"})]
    before = consuming(*messages)
    texts = [trace_codec.encode(record) for record in events_of_consume(before)]
    assert texts[0] == "\x01".join(["SubBefore", "5", "R", "g", "REQ", "ID0", "2", "k1 k2"]) + "\x02"
    assert texts[1] == "\x01".join(["SubBefore", "5", "R", "g", "REQ", "ID1", "0", "null"]) + "\x02"
    after = ConsumeFinished(started=before, outcome=ConsumeReturn.EXCEPTION, ended_ms=9, cost_ms=8)
    texts = [trace_codec.encode(record) for record in events_of_consume(after)]
    assert texts[0] == "\x01".join(["SubAfter", "REQ", "ID0", "4", "false", "k1 k2", "2", "9", "g"]) + "\x02"


def test_a_message_with_tracing_disabled_has_no_record():
    before = consuming(message(0, properties={"TRACE_ON": "false"}), message(1))
    assert [record.message_id for record in events_of_consume(before)] == ["ID1"]


def entries(count: int, *, text: int = 10, key: str = "k{}") -> list[TraceEntry]:
    results = []
    for number in range(count):
        name = key.format(number)
        results.append(TraceEntry(b"t" * text, name, 1))
    return results


def test_a_batch_is_bounded_by_its_body_size():
    assert next_batch(entries(10), 35, 1000).records == 3
    assert next_batch(entries(10), 5, 1000).records == 1  # at least one, however large


def test_a_batch_is_bounded_by_its_distinct_keys():
    assert next_batch(entries(10), 1000, 9).records == 3
    same = next_batch(entries(10, key="same"), 1000, 9)
    assert (same.records, same.keys) == (10, ("same",))


def test_keys_that_do_not_fit_are_dropped_and_counted():
    entry = TraceEntry(b"t", "id key-1 key-2", 1)
    batch = next_batch([entry], 1000, 9)
    assert (batch.records, batch.keys, batch.dropped_keys) == (1, ("id", "key-1"), 1)


class Play:
    """A tracer whose `send` is a script: exceptions in `answers` are raised, then all is well."""

    def __init__(self, *answers: Exception, **settings) -> None:
        self.rest = list(answers)
        self.messages: list[Message] = []
        self.clock = FakeClock(is_auto=True)
        self.settings = TraceSettings(**({"flush_interval": 0.5} | settings))

    async def send(self, sent_message: Message) -> None:
        await asyncio.sleep(0)
        if self.rest:
            raise self.rest.pop(0)
        self.messages.append(sent_message)

    def run(self, act) -> TraceDispatcher:
        async def play():
            tracer = TraceDispatcher(self.send, self.settings, self.clock)
            async with asyncio.timeout(5), tracer:
                await act(tracer)
            return tracer

        return asyncio.run(play())

    @property
    def records(self) -> int:
        return sum(sent_message.body.count(b"\x02") for sent_message in self.messages)


def records(count: int) -> list:
    return [record for number in range(count) for record in events_of_consume(consuming(message(number)))]


def test_closing_sends_pending_records():
    play = Play()

    async def act(tracer):
        assert tracer.record(records(7)) is None

    tracer = play.run(act)
    assert (tracer.sent, tracer.failed, tracer.dropped) == (7, 0, 0)
    assert play.records == 7
    assert set(play.messages[0].keys) == {f"ID{number}" for number in range(7)}
    assert play.messages[0].topic == TOPIC


def test_many_records_are_split_into_messages_within_the_limits():
    play = Play(body_max=1024, keys_max=256)

    async def act(tracer):
        tracer.record(records(100))

    assert play.run(act).sent == 100
    assert play.records == 100
    assert all(len(sent_message.body) <= 1024 for sent_message in play.messages)
    assert all(len(" ".join(sent_message.keys)) <= 256 for sent_message in play.messages)


def test_a_full_batch_is_sent_immediately():
    play = Play(body_max=1024)

    async def act(tracer):
        tracer.record(records(100))
        while tracer.sent < 80:
            await asyncio.sleep(0)

    play.run(act)


def test_a_full_queue_is_sent_immediately():
    play = Play(queue_max=10, when_full="block")

    async def act(tracer):
        for _ in range(10):
            if (waiting := tracer.record(records(3))) is not None:
                await waiting
        while tracer.sent < 20:
            await asyncio.sleep(0)

    tracer = play.run(act)
    assert (tracer.sent, tracer.dropped, play.records) == (30, 0, 30)


@pytest.mark.parametrize("queue_max", [1, 10, 100, 1000])
@pytest.mark.parametrize("when_full", ["drop", "block", "spill"])
def test_sends_are_recorded_in_groups_that_the_queue_has_room_for(tmp_path, queue_max, when_full):
    """Whatever the groups, each send has its record or is counted, and no more than `queue_max` wait."""
    more = {"spill_dir": str(tmp_path)} if when_full == "spill" else {}
    play = Play(queue_max=queue_max, when_full=when_full, **more)
    result = sent(one()).result

    async def send_some(tracer):
        for _ in range(50):
            tracer.sends.append((one(), "a:1", 5, 1.0, 7, 1.002, result))
            if len(tracer.sends) >= tracer.sends_max and (waiting := tracer.take_sends()) is not None:
                await waiting
            assert tracer._pending + len(tracer.sends) <= queue_max
            await asyncio.sleep(0)

    async def act(tracer):
        await asyncio.gather(*(send_some(tracer) for _ in range(5)))

    tracer = play.run(act)
    assert tracer.sent + tracer.dropped == 250
    assert play.records == tracer.sent
    assert (tracer.failed, tracer.spilled) == (0, 0)
    assert tracer.dropped == 0 or when_full == "drop"
    assert tracer.dropped == 0 or queue_max < 250


def test_a_full_queue_counts_dropped_records_and_warns_once_a_minute(caplog):
    play = Play(queue_max=10)

    async def act(tracer):
        for number in range(20):
            assert tracer.record(records(1)) is None
            if number == 15:
                play.clock.advance_ms(61_000)

    with caplog.at_level(logging.WARNING):
        tracer = play.run(act)
    assert (tracer.sent, tracer.dropped) == (10, 10)
    assert [record.message for record in caplog.records] == [
        "Trace queue full: 1 records dropped so far",
        "Trace queue full: 7 records dropped so far",
    ]


def test_a_full_queue_blocks_if_configured():
    play = Play(queue_max=10, when_full="block", body_max=1024)

    async def act(tracer):
        for _ in range(10):
            waiting = tracer.record(records(5))
            if waiting is not None:
                await waiting

    tracer = play.run(act)
    assert (tracer.sent, tracer.dropped, play.records) == (50, 0, 50)


def test_a_failed_batch_is_sent_again():
    play = Play(ConnectionLost("a:1", "reset"), ReplyError(1, "busy"))

    async def act(tracer):
        tracer.record(records(3))

    tracer = play.run(act)
    assert (tracer.sent, tracer.failed, play.records) == (3, 0, 3)
    assert play.clock.elapsed_ms == 1000  # retry_delay, twice


def test_a_batch_that_cannot_be_sent_is_counted_and_the_next_one_is_sent():
    play = Play(*[ConnectionLost("a:1", "reset")] * 4)

    async def act(tracer):
        tracer.record(records(3))
        tracer._is_closing = True  # due immediately
        tracer._due.set()
        while tracer.failed < 3:
            await asyncio.sleep(0)
        tracer.record(records(2))

    tracer = play.run(act)
    assert (tracer.sent, tracer.failed) == (2, 3)


def test_records_not_sent_before_closing_are_counted(caplog):
    play = Play(close_timeout=0.001)

    async def never(sent_message):
        await asyncio.Event().wait()

    play.send = never

    async def act(tracer):
        tracer.record(records(3))

    tracer = play.run(act)
    assert (tracer.sent, tracer.failed) == (0, 3)
    assert "3 trace records are lost" in caplog.text


@pytest.mark.parametrize(("given", "expected"), [(False, None), (True, TraceSettings())])
def test_the_trace_argument_is_converted_to_trace_settings(given, expected):
    assert client_trace.trace_settings(given) == expected
    own = TraceSettings(topic="mine")
    assert client_trace.trace_settings(own) is own


# --- spill -------------------------------------------------------------------------------------------------------------


def spilling(tmp_path, **settings) -> dict:
    return {"when_full": "spill", "spill_dir": str(tmp_path), "queue_max": 10} | settings


def test_records_without_room_wait_in_a_file_and_are_sent(tmp_path):
    play = Play(**spilling(tmp_path))

    async def act(tracer):
        assert tracer.record(records(100)) is None
        assert tracer.spilled == 90

    tracer = play.run(act)
    assert (tracer.sent, tracer.dropped, tracer.failed, tracer.spilled) == (100, 0, 0, 0)
    assert play.records == 100
    assert list(tmp_path.iterdir()) == []


def test_records_that_no_broker_accepts_are_sent_by_the_next_process(tmp_path, caplog):
    refused = [ConnectionLost("a:1", "refused")] * 10_000
    first = Play(*refused, **spilling(tmp_path, close_timeout=0.05))

    async def act(tracer):
        tracer.record(records(30))

    tracer = first.run(act)
    assert (tracer.sent, tracer.dropped, tracer.failed, tracer.spilled) == (0, 0, 0, 30)
    assert "30 trace records wait in" in caplog.text
    second = Play(**spilling(tmp_path))

    async def nothing(tracer):
        assert tracer.spilled == 30

    tracer = second.run(nothing)
    assert (tracer.sent, tracer.spilled, second.records) == (30, 0, 30)


def test_a_full_file_drops_and_counts(tmp_path):
    play = Play(**spilling(tmp_path, spill_bytes_max=1024 * 1024))

    async def act(tracer):
        tracer.record(records(20_000))

    tracer = play.run(act)
    assert tracer.dropped > 0
    assert (tracer.sent + tracer.dropped, tracer.failed) == (20_000, 0)
    assert play.records == tracer.sent


def test_a_disk_that_cannot_be_written_drops_and_counts(tmp_path, monkeypatch, caplog):
    play = Play(**spilling(tmp_path))

    async def act(tracer):
        monkeypatch.setattr(tracer._overflow, "append", raising_no_space)
        tracer.record(records(15))

    tracer = play.run(act)
    assert (tracer.sent, tracer.dropped, tracer.failed) == (10, 5, 0)
    assert "Trace records cannot be written to" in caplog.text


def raising_no_space(entries):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    "settings", [{"when_full": "spill"}, {"spill_dir": "/tmp/x"}, {"when_full": "block", "spill_dir": "x"}]
)
def test_spill_and_its_directory_are_given_together(settings):
    with pytest.raises(ConfigError, match="spill_dir"):
        TraceSettings(**settings)
