"""Namespaces: names on the wire and back, in headers, bodies and requests of brokers."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from client_script import Script, instance, message, name_server, route
from hypothesis import given
from hypothesis import strategies as st

from ariane.client import Producer, PushConsumer
from ariane.client.consuming.assignment_strategy import average, consistent_hash, on_wire
from ariane.client.delivery.send_back import copy_to_retry
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.namespace import Namespace
from ariane.client.instance.namespaced_pool import _unwrapping
from ariane.client.instance.route_cache import RouteCache
from ariane.client.instance.send_types import Redelivery
from ariane.client.instance.settings import ClientSettings, ProducerSettings
from ariane.client.sending.send_codec import prepare
from ariane.client.sending.sender import MessageSender
from ariane.errors import ConfigError, MessageRefused, RouteNotFound
from ariane.model.message import Message, MessageQueue
from ariane.net.connection import Peer, Reply
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.clients import (
    CheckClient,
    ConsumerData,
    HeartbeatData,
    LockBatch,
    LockBatchResponse,
    ProducerData,
    SubscriptionData,
    UnregisterClient,
    WireQueue,
)
from ariane.protocol.requests.messaging import SendMessageResponse

NS = Namespace("ns")
OUTSIDE = ["RMQ_SYS_TRACE_TOPIC", "TBW102", "rmq_sys_x", "CID_RMQ_SYS_TRANS", "TOOLS_CONSUMER", "CLIENT_INNER_PRODUCER"]
NAMES = st.text(st.sampled_from("ab%|_-9"), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("orders", "ns%orders"),
        ("%RETRY%stock", "%RETRY%ns%stock"),
        ("%DLQ%stock", "%DLQ%ns%stock"),
        ("a%b", "ns%a%b"),
        ("nsx", "ns%nsx"),
        ("%RETRY%CID_RMQ_SYS_TRANS", "%RETRY%CID_RMQ_SYS_TRANS"),
        *((name, name) for name in OUTSIDE),
    ],
)
def test_names_on_the_wire(name: str, wire: str) -> None:
    assert NS.wrap(name) == wire
    assert NS.wrap(wire) == wire
    assert NS.unwrap(wire) == name


@pytest.mark.parametrize(
    "name", ["orders", "other%orders", "%RETRY%other%stock", "", "%RETRY%", "ns", "ns%", "ns%TBW102"]
)
def test_names_outside_of_the_namespace_are_not_unwrapped(name: str) -> None:
    assert NS.unwrap(name) == name


@given(NAMES)
def test_unwrapping_reverses_wrapping(name: str) -> None:
    wire = NS.wrap(name)
    assert NS.wrap(wire) == wire
    assert NS.unwrap(wire) == name or name.removeprefix("%RETRY%").removeprefix("%DLQ%").startswith("ns%")
    assert NS.wrap(NS.unwrap(name)) in (name, wire)


@given(NAMES)
def test_an_empty_namespace_leaves_names_as_they_are(name: str) -> None:
    none = Namespace("")
    assert not none
    assert (none.wrap(name), none.unwrap(name), none.check_sent_topic(name)) == (name, name, name)


def test_excluded_names_have_no_namespace() -> None:
    namespace = Namespace("ns")
    assert namespace.check_sent_topic("traces") == "ns%traces"
    namespace.exclude("traces")
    assert (namespace.wrap("traces"), namespace.check_sent_topic("traces")) == ("traces", "traces")


@pytest.mark.parametrize("name", ["a%b", "a b", "ä", "rmq_sys_", "CID_RMQ_SYS_1", "n" * 101])
def test_invalid_namespaces_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="namespace"):
        ClientSettings(namespace=name)


def test_names_that_are_too_long_with_the_namespace_are_refused() -> None:
    client = ClientSettings(namespace="n" * 100)
    with pytest.raises(ConfigError, match=r"at most 255 are allowed; with its namespace n+, this is n+%g"):
        Producer("ns:1", "g" * 155, client=client)
    with pytest.raises(ConfigError, match="at most 127 are allowed; with its namespace"):
        PushConsumer("ns:1", "g", {"t" * 27: "*"}, lambda messages: None, client=client)
    with pytest.raises(MessageRefused, match="the topic has 128 characters, at most 127"):
        Namespace("n" * 100).check_sent_topic("t" * 27)
    assert len(Namespace("n" * 100).check_sent_topic("t" * 26)) == 127


def test_bodies_have_the_names_on_the_wire() -> None:
    subscription = SubscriptionData(topic="orders", sub_string="a || b", tags_set=frozenset({"a", "b"}))
    retry = SubscriptionData(topic="%RETRY%stock")
    group = ConsumerData(group_name="stock", subscription_data_set=(subscription, retry))
    beat = NS.to_wire(HeartbeatData("id", (group,), (ProducerData("shop"), ProducerData("CLIENT_INNER_PRODUCER"))))
    (sent,) = beat.consumers
    assert (sent.group_name, [data.topic for data in sent.subscription_data_set]) == (
        "ns%stock",
        ["ns%orders", "%RETRY%ns%stock"],
    )
    assert sent.subscription_data_set[0].tags_set == {"a", "b"}
    assert [producer.group_name for producer in beat.producers] == ["ns%shop", "CLIENT_INNER_PRODUCER"]
    assert NS.from_wire(beat) == HeartbeatData(
        "id", (group,), (ProducerData("shop"), ProducerData("CLIENT_INNER_PRODUCER"))
    )
    locks = LockBatch("id", "stock", (WireQueue("b", 1, "orders"),))
    assert NS.to_wire(locks) == LockBatch("id", "ns%stock", (WireQueue("b", 1, "ns%orders"),))
    held = LockBatchResponse((WireQueue("b", 1, "ns%orders"),))
    assert NS.from_wire(held).locked[0].queue() == MessageQueue("orders", "b", 1)
    check = NS.to_wire(CheckClient("id", "stock", subscription))
    assert (check.group, check.subscription_data and check.subscription_data.topic) == ("ns%stock", "ns%orders")
    assert NS.to_wire(UnregisterClient("id", None, "stock")) == UnregisterClient("id", None, "ns%stock")
    assert NS.to_wire(None) is None


def test_a_send_has_the_names_on_the_wire_and_the_instance_id() -> None:
    header = SendMessageResponse(message_id="7F000001000026B80000000000000000", queue_id=0, queue_offset=7)
    script = Script(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: name_server({"orders": route("a")}),
            RequestCode.SEND_MESSAGE_V2: lambda asked: Command(0, fields=encode_header(header)),
        }
    )
    client = instance(script)
    client.namespace = Namespace("ns")
    settings = ProducerSettings()
    sender = MessageSender(client, "shop", settings)
    result = asyncio.run(sender.send(prepare(Message(topic="orders", body=b"x"), "ID", settings)))
    (asked,) = script.of(RequestCode.SEND_MESSAGE_V2)
    assert (asked.fields["a"], asked.fields["b"], asked.fields["c"]) == ("ns%shop", "ns%orders", "TBW102")
    assert properties.decode(asked.fields["i"]) == {"UNIQ_KEY": "ID", "WAIT": "true", "INSTANCE_ID": "ns"}
    assert result.queue.topic == "orders"


def test_questions_about_a_topic_have_its_name_on_the_wire() -> None:
    script = Script(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: name_server({"orders": route("a")}),
            RequestCode.RECALL_MESSAGE: lambda asked: Command(3, remark="no timers"),
        }
    )
    client = instance(script)
    client.namespace = Namespace("ns")
    sender = MessageSender(client, "shop", ProducerSettings())
    delayed = prepare(Message(topic="orders", body=b"x", delay=5), "ID", ProducerSettings())
    with pytest.raises(MessageRefused, match="delivery time"):
        asyncio.run(sender.send(delayed))
    (asked,) = script.of(RequestCode.RECALL_MESSAGE)
    assert (asked.fields["topic"], asked.fields["producerGroup"]) == ("ns%orders", "ns%shop")
    client._routes = RouteCache(script, ("ns:1",), timeout_ms=1, rng=Random(1), namespace=client.namespace)
    with pytest.raises(RouteNotFound, match=r"topic other: .* ariane topic create ns%other$"):
        asyncio.run(sender.publish_queues("other"))


def test_properties_of_sends() -> None:
    traced = {"a": "_INNER_TRACE_PRODUCER-g-PRODUCE-0", "b": "RMQ_SYS_TRACE_TOPIC", "c": "TBW102", "i": "WAIT\x01true"}
    before = dict(traced)
    NS.wrap_send(traced)
    assert traced == before
    repeated = {"a": "CLIENT_INNER_PRODUCER", "b": "%RETRY%stock", "c": "TBW102", "i": "INSTANCE_ID\x01other"}
    NS.wrap_send(repeated)
    assert (repeated["b"], repeated["i"]) == ("%RETRY%ns%stock", "INSTANCE_ID\x01other")
    full = {"a": "g", "b": "orders", "c": "TBW102", "i": "x\x01" + "y" * 32_760}
    with pytest.raises(MessageRefused, match="with the namespace ns, at most 32767"):
        NS.wrap_send(full)


def test_a_copy_for_the_retry_topic_names_the_original_topic_on_the_wire() -> None:
    copy = copy_to_retry(message(1), "stock", Redelivery(1, 16), ProducerSettings(), NS)
    assert copy.topic == "%RETRY%stock"  # wrapped with the request
    assert properties.decode(copy.properties)["RETRY_TOPIC"] == "ns%T"


def test_requests_of_brokers_have_the_names_of_the_application() -> None:
    seen: list[Command] = []

    def handler(command: Command, peer: Peer) -> Reply:
        seen.append(command)
        return Reply()

    request = Command(
        220, 7, 2, "r", {"topic": "ns%orders", "group": "ns%stock", "consumerGroup": "ns%stock", "x": "ns%x"}, b"body"
    )
    _unwrapping(handler, NS)(request, Peer(1, "127.0.0.1", 1, b""))
    (command,) = seen
    assert command.fields == {"topic": "orders", "group": "stock", "consumerGroup": "stock", "x": "ns%x"}
    assert (command.code, command.opaque, command.flag, command.remark, command.body) == (220, 7, 2, "r", b"body")


def test_consistent_hashing_uses_the_names_on_the_wire() -> None:
    members = ["a", "b", "c"]
    queues = [MessageQueue("orders", "b", number) for number in range(64)]
    wrapped = [NS.wrap_queue(queue) for queue in queues]
    strategy = on_wire(consistent_hash, NS.wrap)
    assert [NS.wrap_queue(queue) for queue in strategy("a", members, queues)] == consistent_hash("a", members, wrapped)
    assert strategy("a", members, queues) != consistent_hash("a", members, queues)
    assert on_wire(average, NS.wrap) is average


@pytest.mark.parametrize(
    ("namesrv", "settings", "namespace"),
    [
        ("ns:1", None, ""),
        ("ns:1", ClientSettings(namespace="ns"), "ns"),
        ("http://MQ_INST_17_Bc.mq.example:8080", None, "MQ_INST_17_Bc"),
        ("MQ_INST_17_Bc.mq.example:8080", None, "MQ_INST_17_Bc"),
        ("MQ_INST_17_Bc.mq.example:8080", ClientSettings(namespace="ns"), "ns"),
        ("MQ_INST_17.mq.example:8080", None, ""),
        ("xMQ_INST_17_Bc.mq.example:8080", None, ""),
    ],
)
def test_the_namespace_of_an_instance(namesrv: str, settings: ClientSettings | None, namespace: str) -> None:
    instance = ClientInstance(namesrv, settings)
    assert instance.namespace.name == namespace
    assert instance.name_servers == (namesrv.removeprefix("http://"),)
