"""Plain sends of the native transport: stored and refused as `SendCalls` does, whatever is in a message."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the extra grpc is not installed")

import grpc.aio

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.model.topic import PERM_READ, TRACE_TOPIC, TopicConfig
from ariane.model.trace_event import PublishEvent, TraceEvent
from ariane.protocol import trace_codec
from ariane.protocol.records import record
from ariane.protocol.records.record import Record
from ariane.proxy import api
from ariane.proxy.calls.plain_sends import PlainSendCalls
from ariane.proxy.conversion.grpc_statuses import StatusCode
from ariane.store.message_store import MessageStore
from grpc_transports import NEEDS_NATIVE

pytestmark = NEEDS_NATIVE

TEST_BEGINS_MS = int(time.time() * 1000) - 1
BORN = {"seconds": 1_700_000_000, "nanos": 123_999_999}
SYSTEM: dict[str, Any] = {"message_id": "01AB", "message_type": 1, "born_timestamp": BORN, "born_host": "host"}

MESSAGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tag and keys": {"system": {"tag": "A", "keys": ["k1", "k2"]}},
    "properties": {"user_properties": {"b": "1", "a": "2", "empty": ""}},
    "trace": {"system": {"trace_context": "00-1-2-01"}},
    "fraction of a second": {"system": {"born_timestamp": {"seconds": 5, "nanos": 999_999}}},
    "no born time": {"system": {"born_timestamp": None}},
    "negative time": {"system": {"born_timestamp": {"seconds": -5}}},
    "no born host": {"system": {"born_host": ""}},
    "text": {"user_properties": {"é": "日本"}, "system": {"tag": "ü", "keys": ["ñ"]}},
    "group": {"system": {"message_group": "g", "message_type": 2}},
    "type without its field": {"system": {"message_type": 2}},
    "no type": {"system": {"message_type": 0}},
    "delayed": {"system": {"delivery_timestamp": {"seconds": 1_700_000_100}, "message_type": 3}},
    "half message": {"system": {"message_type": 4}},
    "digest": {"system": {"body_digest": {"type": 2, "checksum": "x"}, "body_encoding": 1}},
    "gzip that is not": {"system": {"body_encoding": 2}},
    "no body": {"body": b""},
    "no id": {"system": {"message_id": ""}},
    "blank id": {"system": {"message_id": " "}},
    "separator in the id": {"system": {"message_id": "a\x01b"}},
    "tag with a bar": {"system": {"tag": "a|b"}},
    "blank tag": {"system": {"tag": " "}},
    "empty tag": {"system": {"tag": ""}},
    "control in a key": {"system": {"keys": ["a\x02"]}},
    "blank key": {"system": {"keys": ["a", " "]}},
    "reserved": {"user_properties": {"UNIQ_KEY": "x"}},
    "reserved prefix": {"user_properties": {"TIMER_X": "x"}},
    "cluster": {"user_properties": {"CLUSTER": "x"}},
    "wait": {"user_properties": {"WAIT": "false"}},
    "control in a name": {"user_properties": {"a\x01": "x"}},
    "control in a value": {"user_properties": {"a": "x\x9f"}},
    "no name": {"user_properties": {"": "x"}},
    "128 properties": {"user_properties": {str(n): "v" for n in range(128)}},
    "129 properties": {"user_properties": {str(n): "v" for n in range(129)}},
    "long properties": {"user_properties": {"a": "v" * 16_383}},
    "too long properties": {"user_properties": {"a": "v" * 16_384}},
    "no topic": {"topic": {"name": ""}},
    "unknown topic": {"topic": {"name": "Nope"}},
    "illegal topic": {"topic": {"name": "a b"}},
    "system topic": {"topic": {"name": "TBW102"}},
    "topic of another type": {"topic": {"name": "Fifo"}},
    "topic that cannot be written": {"topic": {"name": "ReadOnly"}},
    "namespace": {"topic": {"resource_namespace": "n", "name": "T"}},
}


def request(message: dict[str, Any]) -> Any:
    system = {name: value for name, value in {**SYSTEM, **message.get("system", {})}.items() if value is not None}
    values = {"topic": {"name": "T"}, "body": b"body", **message, "system_properties": system}
    values.pop("system", None)
    return api.SendMessageRequest(messages=[values])


def described(item: Record) -> Any:
    """Return what a stored message consists of, except for where and when."""
    properties = item.property_map()
    if int(properties.get("BORN_TIMESTAMP") or 0) > TEST_BEGINS_MS:
        properties["BORN_TIMESTAMP"] = "now"
    born_ms = "now" if item.born_ms > TEST_BEGINS_MS else item.born_ms
    return (
        item.topic,
        item.body,
        properties,
        born_ms,
        item.born_host[:4],
        item.flag,
        item.sys_flag,
        item.reconsume_times,
    )


def traced(event: TraceEvent) -> Any:
    """Return what a trace record consists of, except for where and when."""
    assert isinstance(event, PublishEvent)
    names = (event.group, event.topic, event.message_id, event.tags, event.keys, event.region)
    return *names, event.body_length, event.message_type, bool(event.offset_message_id), event.success


def stored_from(store: MessageStore, position: int) -> list[Record]:
    """Return the records of the log from a position on."""
    items = []
    while (data := store.read_record(position)) is not None:
        items.append(record.decode(data))
        position += len(data)
    return items


def answered(reply: Any) -> Any:
    entries = [(entry.status.code, entry.status.message, entry.message_id, entry.offset) for entry in reply.entries]
    return reply.status.code, reply.status.message, entries


async def outcomes(path: Path, transport: str) -> dict[str, Any]:
    """Return the reply to each send, what it has stored, and its trace records."""
    settings: dict[str, Any] = {"listen_port": 0, "grpc_server_enable": True, "grpc_server_port": 0, "namesrv_addr": ""}
    settings |= {"grpc_transport": transport}
    config = BrokerConfig(**settings, store_path_root_dir=str(path))
    found = {}
    async with Broker(config) as broker:
        topics, store = broker.services.state.topics, broker.services.store
        topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
        topics.put(TopicConfig(topic_name="ReadOnly", perm=PERM_READ))
        topics.put(TopicConfig(topic_name="Fifo", attributes={"message.type": "FIFO"}))
        assert broker.proxy is not None
        async with grpc.aio.insecure_channel(f"127.0.0.1:{broker.proxy.port}") as channel:
            send = channel.unary_unary(
                f"/{api.SERVICE}/SendMessage", lambda m: m.SerializeToString(), api.SendMessageResponse.FromString
            )
            for name, message in MESSAGES.items():
                start = store.commit_log_max
                reply = await send(request(message), metadata=[("x-mq-client-id", "c")], timeout=20)
                await broker.services.traces.flush()
                items = stored_from(store, start)
                messages = [described(item) for item in items if item.topic != TRACE_TOPIC]
                records = [trace_codec.decode(item.body)[0] for item in items if item.topic == TRACE_TOPIC]
                found[name] = answered(reply), messages, [traced(event) for events in records for event in events]
    return found


def test_sends_of_a_turn_are_those_of_single_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together: list[int] = []
    serve = PlainSendCalls.serve

    def noted(self: PlainSendCalls, sends: Any, *arguments: Any) -> Any:
        runs, alone = serve(self, sends, *arguments)
        together.append(len(sends) - len(alone))
        return runs, alone

    monkeypatch.setattr(PlainSendCalls, "serve", noted)
    native = asyncio.run(outcomes(tmp_path / "native", "native"))
    assert sum(together) > 10
    single = asyncio.run(outcomes(tmp_path / "single", "aio"))
    for name in MESSAGES:
        assert native[name] == single[name], name
    (reply, _, records) = single["plain"]
    assert reply[0] == StatusCode.OK and len(records) == 1
    assert len({outcome[0][0] for outcome in single.values()}) > 8  # other statuses


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_sends_that_arrive_together_are_stored_once_each(tmp_path: Path, flush: Any) -> None:
    async def run() -> None:
        settings: dict[str, Any] = {"listen_port": 0, "grpc_server_enable": True, "grpc_server_port": 0}
        settings |= {"namesrv_addr": "", "grpc_transport": "native", "flush_disk_type": flush}
        async with Broker(BrokerConfig(**settings, store_path_root_dir=str(tmp_path))) as broker:
            for topic in ("T", "U"):
                broker.services.state.topics.put(TopicConfig(topic_name=topic))
            assert broker.proxy is not None
            async with grpc.aio.insecure_channel(f"127.0.0.1:{broker.proxy.port}") as channel:
                send = channel.unary_unary(
                    f"/{api.SERVICE}/SendMessage", lambda m: m.SerializeToString(), api.SendMessageResponse.FromString
                )
                sent = {f"{number:04X}": "TU"[number % 2] for number in range(300)}
                replies = await asyncio.gather(
                    *(
                        send(
                            request({"topic": {"name": topic}, "system": {"message_id": key}}),
                            metadata=[("x-mq-client-id", f"client-{int(key, 16) % 3}")],
                            timeout=60,
                        )
                        for key, topic in sent.items()
                    )
                )
            answers = {reply.entries[0].message_id: (reply.status.code, reply.entries[0].offset) for reply in replies}
            await broker.services.traces.flush()
            items = [item for item in stored_from(broker.services.store, 0) if item.topic != TRACE_TOPIC]
            stored = {item.property_map()["UNIQ_KEY"]: (item.topic, item.queue_offset) for item in items}
            assert len(items) == len(sent)
            assert {key: topic for key, (topic, _) in stored.items()} == sent
            assert answers == {key: (StatusCode.OK, offset) for key, (_, offset) in stored.items()}

    asyncio.run(run())
