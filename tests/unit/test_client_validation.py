"""Arguments and settings are validated by constructors, and errors state the fix."""

from __future__ import annotations

import dataclasses
import functools
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from ariane import blocking
from ariane.client.consumer import Consumer
from ariane.client.duplicates.idempotent import Idempotent
from ariane.client.instance import settings, validation
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.lite_pull_consumer import LitePullConsumer
from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer
from ariane.client.transaction_producer import TransactionProducer
from ariane.errors import ClientClosed, ConfigError
from ariane.model.message import Message


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        (settings.ProducerSettings, "retries", -1),
        (settings.ProducerSettings, "send_timeout", 0),
        (settings.ProducerSettings, "send_timeout", True),
        (settings.ProducerSettings, "create_topic_key", "a b"),
        (settings.ConsumerSettings, "pull_batch", 1025),
        (settings.ConsumerSettings, "message_model", "both"),
        (settings.ConsumerSettings, "pull_timeout", 15),
        (settings.TraceSettings, "when_full", "wait"),
        (settings.TraceSettings, "flush_interval", 0.501),
        (settings.TraceSettings, "keys_max", 32_767),
        (settings.ClientSettings, "heartbeat_interval", 120),
    ],
)
def test_an_invalid_setting_is_rejected_with_its_name(kind, key, value):
    with pytest.raises(ConfigError) as caught:
        kind(**{key: value})
    assert caught.value.key == key


@pytest.mark.parametrize("given", [90, 90.0, timedelta(minutes=1.5)])
def test_a_duration_is_a_number_of_seconds_or_a_timedelta(given):
    limits = settings.ConsumerSettings(pull_timeout=given)
    assert (limits.pull_timeout, type(limits.pull_timeout)) == (90, float)
    assert limits == settings.ConsumerSettings(pull_timeout=90)
    assert dataclasses.replace(limits, pull_batch=8).pull_timeout == 90


@pytest.mark.parametrize("wrong", ["5", None, True, float("nan"), timedelta(days=5), -1, 30_000])
def test_another_duration_is_rejected_with_its_range(wrong):
    with pytest.raises(ConfigError, match=r"(from 0.01 s to 600 s|number of seconds or a timedelta)"):
        settings.ClientSettings(request_timeout=wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (datetime(2026, 5, 4), "it has no time zone"),
        (
            1_700_000_000_000,
            "expected a datetime with a time zone, not int: datetime.fromtimestamp(1700000000000 / 1000, UTC)",
        ),
        ("tomorrow", "expected a datetime with a time zone, not str"),
        (datetime(1900, 1, 1, tzinfo=UTC), "is not negative"),
    ],
)
def test_an_instant_has_a_time_zone(wrong, said):
    with pytest.raises(ConfigError) as caught:
        validation.instant_ms("at", wrong)
    assert said in str(caught.value)


def test_an_instant_in_any_time_zone_is_ms_since_the_epoch():
    at = datetime(2026, 5, 4, 12, 0, 0, 250_000, tzinfo=timezone(timedelta(hours=2)))
    assert validation.instant_ms("at", at) == 1_777_888_800_250
    assert validation.start(at) == 1_777_888_800_250


def test_credentials_of_another_type_are_rejected_without_printing_the_key():
    with pytest.raises(ConfigError, match="credentials") as caught:
        settings.ClientSettings(credentials=("access", "s3cret"))
    assert "s3cret" not in str(caught.value)
    assert "tuple" in str(caught.value)


def test_name_servers_are_split_and_checked():
    for given in ("a:1; b:2 ;", ["a:1", "b:2"], ("a:1;b:2",), [" a:1 ", "b:2;"]):
        assert validation.name_servers(given) == ("a:1", "b:2")
    assert validation.name_servers("[::1]:9876") == ("[::1]:9876",)


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ("", "no address given"),
        (" ; ", "no address given"),
        ([], "no address given"),
        ("a", "'a' has no port; name servers listen on 9876 by default: a:9876"),
        ("http://a:1", "'http://a:1' is a URL: give host:port"),
        ("a:1;b:", "'b:' has no port; name servers listen on 9876 by default: b:9876"),
        ("a:0", "has the port '0'; choose one from 1 to 65535"),
        ("a:70000", "has the port '70000'"),
        ("a:²", "has the port '²'"),
        ("a:" + "9" * 5_000, "choose one from 1 to 65535"),
        (":9876", "has no host"),
        ("a:1,b:2", "join several addresses by ';'"),
        (["a:1", 5], "5 is int, expected a text"),
        (5, "expected a text or a list of texts, not int"),
        (b"a:1", "not bytes"),
        ({"a:1": 1}, "not dict"),
    ],
)
def test_invalid_name_servers_are_reported_with_the_fix(wrong, fix):
    for construct in (
        lambda: Producer(wrong, "g"),
        lambda: TransactionProducer(wrong, "g", check=print),
        lambda: PushConsumer(wrong, "g", {"T": "*"}, print),
        lambda: LitePullConsumer(wrong, "g"),
        lambda: ClientInstance(wrong),
    ):
        with pytest.raises(ConfigError, match=re.escape(fix)) as caught:
            construct()
        assert (caught.value.key, caught.value.value) == ("namesrv", wrong)


@pytest.mark.parametrize("group", ["", "DEFAULT_PRODUCER", "DEFAULT_CONSUMER", "a b", "x" * 256])
def test_reserved_and_invalid_group_names_are_rejected(group):
    with pytest.raises(ConfigError):
        Producer("a:1", group)


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": "middle"},
        {"subscriptions": {"a b": "*"}},
        {"subscriptions": {"T": " || "}},
        {"subscriptions": None},
        {"subscriptions": {}},
        {"subscriptions": ""},
        {"subscriptions": "T || U"},
        {"subscriptions": []},
        {"subscriptions": ["T", ""]},
        {"subscriptions": [["T"]]},
        {"subscriptions": b"T"},
        {"subscriptions": 5},
        {"subscriptions": {"T": ["a", "b"]}},
        {"subscriptions": {5: "*"}},
        {"start": 1_700_000_000},
        {"start": -1},
        {"start": 1.5},
        {"listener": None},
        {"namesrv": None},
        {"group": None},
        {"settings": settings.ProducerSettings()},
        {"client": settings.ConsumerSettings()},
        {"orderly": "yes"},
        {"strategy": lambda me: []},
        {"hooks": print},
        {"hooks": [lambda: None]},
        {"trace": "on"},
    ],
)
def test_invalid_consumer_arguments_are_rejected_by_the_constructor(wrong):
    good = {"group": "g", "namesrv": "a:1", "subscriptions": {"T": "*"}, "listener": print}
    with pytest.raises(ConfigError):
        PushConsumer(**(good | wrong))


@pytest.mark.parametrize("topics", ["T", ["T"], ("T",), {"T"}, ["T", "T"]])
@pytest.mark.parametrize(
    "create",
    [
        lambda topics: Consumer("a:1", "g", topics),
        lambda topics: LitePullConsumer("a:1", "g", topics),
        lambda topics: PushConsumer("a:1", "g", topics, print),
        lambda topics: blocking.Consumer("a:1", "g", topics)._client,
        lambda topics: blocking.LitePullConsumer("a:1", "g", topics)._client,
        lambda topics: blocking.PushConsumer("a:1", "g", topics, print)._client,
    ],
)
def test_topics_without_an_expression_mean_all_of_their_messages(create, topics):
    subscriptions = create(topics)._subscriptions
    assert subscriptions["T"].sub_string == "*"
    assert subscriptions.keys() - {"%RETRY%g"} == {"T"}


class Listener:
    def method(self, messages):
        pass

    def bare(self):
        pass

    async def __call__(self, messages):
        pass


class WrongListener:
    def __call__(self):
        pass


def plain(messages):
    pass


async def coroutine(messages):
    pass


def several(messages, context):
    pass


def nothing():
    pass


def generator(messages):
    yield


async def async_generator(messages):
    yield


def with_database(listener):
    """Decorate a listener: the decorator gives it one more argument than the client does."""

    @functools.wraps(listener)
    def call(*args):
        return listener(*args, "database")

    return call


class Collected:
    """A listener that is a generator."""

    def __init__(self, func):
        self.func = func

    def __call__(self, messages):
        return list(self.func(messages))


class Unresolved:
    """A listener whose annotations cannot be evaluated, as Python 3.14 does it for its signature."""

    @property
    def __signature__(self):
        raise NameError("ReceivedMessage")

    def __call__(self, messages):
        pass


GOOD_LISTENERS = [
    plain, coroutine, print, lambda messages, more=1: None, lambda *messages: None, lambda *a, **k: None, Listener(),
    Listener().method, functools.partial(several, context=1), functools.partial(coroutine), [].append, Idempotent(plain),
    with_database(several), functools.partial(with_database(several)), Collected(generator), Unresolved(),
]  # fmt: skip
WRONG_LISTENERS = [
    several, nothing, generator, async_generator, WrongListener(), Listener().bare, Listener.method, lambda a, b: None,
    lambda *, messages: None, functools.partial(plain, 1), functools.partial(generator), "plain", None, 5,
]  # fmt: skip


@pytest.mark.parametrize("listener", GOOD_LISTENERS)
def test_any_callable_of_one_argument_is_a_listener(listener):
    PushConsumer("a:1", "g", {"T": "*"}, listener)


@pytest.mark.parametrize("listener", WRONG_LISTENERS)
def test_a_listener_with_a_wrong_signature_is_rejected(listener):
    with pytest.raises(ConfigError) as caught:
        PushConsumer("a:1", "g", {"T": "*"}, listener)
    assert (caught.value.key, caught.value.value) == ("listener", listener)
    with pytest.raises(ConfigError, match="listener"):
        Idempotent(listener)


def test_the_error_about_a_listener_shows_the_expected_and_the_actual_signature():
    text = (
        r"expected a function of 1 argument: \(messages\); it is called with 1, and takes several\(messages, context\)"
    )
    with pytest.raises(ConfigError, match=text):
        PushConsumer("a:1", "g", {"T": "*"}, several)


@pytest.mark.parametrize(
    "wrong",
    [
        {"check": lambda: None}, {"check": None}, {"checks_at_once": 0}, {"checks_at_once": 1.5}, {"end_hooks": [several]},
        {"hooks": [nothing]}, {"settings": 5}, {"trace": 1}, {"group": 7}, {"client": settings.ClientSettings, "trace": False},
    ],
)  # fmt: skip
def test_invalid_producer_arguments_are_rejected_by_the_constructor(wrong):
    key = next(iter(wrong))
    good = {"group": "g", "namesrv": "a:1", "check": lambda message: None}
    with pytest.raises(ConfigError) as caught:
        TransactionProducer(**(good | wrong))
    assert caught.value.key == key


def test_connection_settings_are_rejected_together_with_a_shared_instance():
    with pytest.raises(ConfigError, match="client"):
        Producer(ClientInstance("a:1"), "g", client=settings.ClientSettings())


def test_a_lite_pull_consumer_rejects_empty_subscriptions():
    with pytest.raises(ConfigError, match="no topic, so no message would ever arrive"):
        LitePullConsumer("a:1", "g", {})
    LitePullConsumer("a:1", "g")  # queues will be assigned


def test_a_client_raises_outside_of_async_with():
    with pytest.raises(ClientClosed):
        Producer("a:1", "g").send(Message(topic="T", body=b"x")).send(None)
    with pytest.raises(ClientClosed):
        _ = PushConsumer("a:1", "g", {"T": "*"}, print).queues


@pytest.mark.parametrize("path", ["home/ca.pem", Path("home/ca.pem")], ids=["str", "Path"])
def test_paths_in_settings_are_texts_or_paths(path):
    assert settings.ConsumerSettings(offsets_dir=path).offsets_dir == "home/ca.pem"
    assert settings.ConsumerSettings(offsets_dir=path) == settings.ConsumerSettings(offsets_dir="home/ca.pem")
    assert settings.ConsumerSettings().offsets_dir == ""


@pytest.mark.parametrize("path", [b"home", 5, None, Path], ids=["bytes", "int", "None", "class"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(ConfigError, match="offsets_dir.*expected a path"):
        settings.ConsumerSettings(offsets_dir=path)


def test_milliseconds_in_place_of_seconds_are_refused():
    """3000 and 5000 are the values of Java's clients."""
    with pytest.raises(
        ConfigError, match=r"send_timeout = 3000: choose seconds, or a timedelta, from 0.001 s to 600 s"
    ):
        settings.ProducerSettings(send_timeout=3000)
    assert validation.TIMEOUT_MAX_S < 3_000
    assert validation.POLL_MAX_S < 5_000
