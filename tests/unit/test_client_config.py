"""Settings are checked when they are made, and say what to change."""

from __future__ import annotations

import pytest

from ariane.client import config
from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer
from ariane.errors import ClientClosed, ConfigError
from ariane.model.message import Message


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        (config.ProducerSettings, "retries", -1),
        (config.ProducerSettings, "send_timeout_ms", 0),
        (config.ProducerSettings, "send_timeout_ms", True),
        (config.ProducerSettings, "create_topic_key", "a b"),
        (config.ConsumerSettings, "pull_batch", 1025),
        (config.ConsumerSettings, "message_model", "both"),
        (config.ConsumerSettings, "pull_timeout_ms", 15_000),
        (config.TraceSettings, "when_full", "wait"),
        (config.TraceSettings, "flush_ms", 501),
        (config.TraceSettings, "keys_max", 32_767),
        (config.ClientSettings, "heartbeat_ms", 120_000),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(kind, key, value):
    with pytest.raises(ConfigError) as caught:
        kind(**{key: value})
    assert caught.value.key == key


def test_name_servers_are_split_and_checked():
    assert config.name_servers("a:1; b:2 ;") == ("a:1", "b:2")
    for wrong in ("", "a", "a:1,b:2", "a:0"):
        with pytest.raises(ConfigError):
            config.name_servers(wrong)


@pytest.mark.parametrize("group", ["", "DEFAULT_PRODUCER", "DEFAULT_CONSUMER", "a b", "x" * 256])
def test_groups_that_nobody_may_use(group):
    with pytest.raises(ConfigError):
        Producer(group, "a:1")


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": "middle"},
        {"subscriptions": {"a b": "*"}},
        {"subscriptions": {"T": " || "}},
        {"listener": None},
        {"namesrv": None},
    ],
)
def test_a_consumer_that_cannot_work_is_refused_when_it_is_made(wrong):
    good = {"group": "g", "namesrv": "a:1", "subscriptions": {"T": "*"}, "listener": print}
    with pytest.raises(ConfigError):
        PushConsumer(**(good | wrong))


def test_use_outside_of_async_with_is_an_error():
    with pytest.raises(ClientClosed):
        Producer("g", "a:1").send(Message(topic="T", body=b"x")).send(None)
    with pytest.raises(ClientClosed):
        _ = PushConsumer("g", "a:1", {}, print).queues
