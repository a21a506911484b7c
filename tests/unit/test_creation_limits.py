"""Limits of topics, groups, queues and subscriptions: of a broker, and of the client whose request creates them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.state.creation_limits import CreationLimits
from ariane.broker.state.group_members import GroupMembers, Member
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import ReplyError
from ariane.model.topic import SubscriptionGroupConfig, TopicConfig
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.net.limits.quotas import Quotas
from ariane.net.replies import make_peer
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests.admin import SubscriptionGroupTable
from ariane.protocol.requests.clients import ConsumerData, SubscriptionData
from ariane.protocol.requests.routing import TopicTable

CREATE = Command(RequestCode.UPDATE_AND_CREATE_TOPIC)
SEND = Command(RequestCode.SEND_MESSAGE_V2)


class RefusedRequests:
    """A RefusalRecorder that remembers codes and reasons."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, str]] = []

    def refused(self, command: Command, peer: Peer, reason: str) -> None:
        self.requests.append((command.code, reason))

    def refused_connection(self, peer: Peer, reason: str) -> None:
        raise AssertionError("no connection is refused here")


class Broker:
    """The registries, and one client at each of some addresses."""

    def __init__(self, **limits: int) -> None:
        self.now_ms = 0.0
        config = BrokerConfig(broker_name="broker-a", **limits)  # type: ignore[arg-type]
        self.quotas = Quotas()
        self.limits = CreationLimits(config, self.quotas, lambda: self.now_ms)
        self.topics = TopicRegistry(TopicTable(), config, lambda: 0, limits=self.limits)
        self.audit = RefusedRequests()
        self.limits.audit = self.audit
        self.groups = GroupRegistry(SubscriptionGroupTable(), auto_create=True, now_ms=lambda: 0, limits=self.limits)
        for number in (1, 2):
            self.quotas.open(number, f"10.0.0.{number}")

    def serve(self, number: int, work: Callable[[], object], *, late: bool = False, command: Command = CREATE) -> None:
        """Do something in a request of a client."""

        def handler(command: Command, peer: Peer) -> HandlerResult:
            work()
            return Reply()

        async def late_handler(command: Command, peer: Peer) -> Reply:
            await asyncio.sleep(0)
            work()
            return Reply()

        served = self.limits.with_clients({command.code: late_handler if late else handler})[command.code]

        async def run() -> None:
            handled = served(command, make_peer(number, (f"10.0.0.{number}", 1)))
            if handled is not None and not isinstance(handled, Reply):
                await asyncio.ensure_future(handled)

        asyncio.run(run())


@pytest.mark.parametrize("late", [False, True])
def test_topics_are_charged_to_the_address_whose_request_creates_them(late: bool) -> None:
    broker = Broker()
    broker.quotas.set_limits({"addressTopicsPerHour": 2})
    for number in range(2):
        broker.serve(1, lambda name=f"T{number}": broker.topics.put(TopicConfig(topic_name=name)), late=late)  # type: ignore[misc]
    with pytest.raises(
        ReplyError, match=r"\[QUOTA\]addressTopicsPerHour: address 10.0.0.1 has 2 topics created in an hour, 2"
    ):
        broker.serve(1, lambda: broker.topics.put(TopicConfig(topic_name="T3")), late=late)
    assert broker.quotas.exceeded["addressTopicsPerHour"] == 1
    broker.serve(1, lambda: broker.topics.put(TopicConfig(topic_name="T1", perm=4)), late=late)  # exists
    broker.serve(1, lambda: broker.topics.get_or_create_internal("%RETRY%g", 1), late=late)  # of a consumer
    broker.serve(2, lambda: broker.topics.put(TopicConfig(topic_name="T3")), late=late)
    broker.topics.put(TopicConfig(topic_name="T4"))  # by the broker itself
    broker.now_ms = 1_800_000
    broker.serve(1, lambda: broker.topics.put(TopicConfig(topic_name="T5")), late=late)


@pytest.mark.parametrize("late", [False, True])
def test_the_audit_log_has_what_limits_refuse_unless_it_has_the_failed_change(late: bool) -> None:
    broker = Broker(server_topics_max=0, server_groups_max=0)
    for command in (SEND, CREATE):
        with pytest.raises(ReplyError):
            broker.serve(1, lambda: broker.topics.put(TopicConfig(topic_name="T")), late=late, command=command)
    ((code, reason),) = broker.audit.requests
    assert code == SEND.code
    assert reason.startswith("[QUOTA]serverTopicsMax")

    def fail() -> None:
        raise ReplyError(1, "no such topic")

    with pytest.raises(ReplyError):
        broker.serve(1, fail, late=late, command=SEND)
    assert len(broker.audit.requests) == 1


def test_a_held_request_does_not_retain_its_body() -> None:
    """16,384 pulls of a connection may be held, each sent with a body of 16 MiB that no pull needs."""

    async def hold() -> Reply:
        await asyncio.sleep(0)
        return Reply()

    async def run() -> None:
        served = Broker().limits.with_clients({RequestCode.PULL_MESSAGE: lambda command, peer: hold()})
        body = bytes(1000)
        unused = sys.getrefcount(body)
        handled = served[RequestCode.PULL_MESSAGE](
            Command(RequestCode.PULL_MESSAGE, body=body), make_peer(1, ("10.0.0.1", 1))
        )
        assert sys.getrefcount(body) == unused
        assert isinstance(handled, Awaitable)
        assert await handled == Reply()

    asyncio.run(run())


def test_a_refused_topic_is_not_charged() -> None:
    broker = Broker()
    broker.quotas.set_limits({"addressTopicsPerHour": 2, "addressQueuesPerHour": 10})
    with pytest.raises(ReplyError, match="addressQueuesPerHour"):
        broker.serve(1, lambda: broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=12)))
    for name in ("T", "U"):
        broker.serve(
            1, lambda name=name: broker.topics.put(TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4))
        )  # type: ignore[misc]
    with pytest.raises(ReplyError, match="addressQueuesPerHour"):
        broker.serve(1, lambda: broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=7, write_queue_nums=4)))


def test_groups_are_charged_to_accounts() -> None:
    broker = Broker()
    broker.quotas.set_limits({"accountGroupsPerHour": 1})
    for number in (1, 2):
        broker.quotas.identify(number, "consumer")
    broker.serve(1, lambda: broker.groups.get_or_create("g1"))
    with pytest.raises(ReplyError, match=r"accountGroupsPerHour: account consumer has 1 groups"):
        broker.serve(2, lambda: broker.groups.get_or_create("g2"))


def test_a_broker_has_at_most_the_topics_groups_and_queues_of_its_configuration() -> None:
    broker = Broker()
    count = len(broker.topics.names())
    broker.limits.set(BrokerConfig(server_topics_max=count + 1, server_groups_max=len(broker.groups) + 1))
    broker.topics.put(TopicConfig(topic_name="T"))
    with pytest.raises(ReplyError, match=r"\[QUOTA\]serverTopicsMax: topic U not created"):
        broker.topics.put(TopicConfig(topic_name="U"))
    broker.topics.delete("T")
    broker.groups.put(SubscriptionGroupConfig(group_name="g1"))
    with pytest.raises(ReplyError, match=r"\[QUOTA\]serverGroupsMax"):
        broker.groups.put(SubscriptionGroupConfig(group_name="g2"))
    broker.limits.set(BrokerConfig(server_queues_max=broker.topics.queue_count + 4))
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
    with pytest.raises(ReplyError, match=r"\[QUOTA\]serverQueuesMax"):
        broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=5, write_queue_nums=4))
    broker.topics.delete("T")
    broker.topics.put(TopicConfig(topic_name="U", read_queue_nums=1, write_queue_nums=4))
    states = {state.key: state for state in broker.limits.states({"topics": 1, "groups": 2, "queues": 3})}
    assert states["serverQueuesMax"].used == 3
    assert states["serverQueuesMax"].exceeded == states["serverTopicsMax"].exceeded == 1


def test_subscriptions_are_those_of_all_consumers_on_a_connection() -> None:
    members = GroupMembers()

    def beat(group: str, topics: int) -> None:
        subscriptions = tuple(SubscriptionData(topic=f"T{number}") for number in range(topics))
        members.heartbeat_consumer(ConsumerData(group_name=group, subscription_data_set=subscriptions), member)

    member = Member("c", 1, "10.0.0.1:1", "JAVA", 401, 0.0)
    beat("g1", 2)
    beat("g2", 3)
    assert members.subscription_count(1) == 5
    assert members.subscription_count(1, "g2") == 3
    beat("g2", 1)
    members.heartbeat_producer("p", member)
    assert members.subscription_count(1) == 3
    members.remove_consumer("g1", 1)
    assert members.subscription_count(1) == 1
    members.remove_peer(1)
    assert members.subscription_count(1) == 0
    quotas = Quotas()
    quotas.set_limits({"addressSubscriptionsMax": 5})
    quotas.open(1, "10.0.0.1")
    quotas.open(2, "10.0.0.1")
    quotas.set_subscriptions(1, 4)
    assert quotas.admit(2, {"subscriptions": 1}, 0.0) is None
    refusal = quotas.admit(2, {"subscriptions": 2}, 0.0)
    assert refusal is not None
    assert refusal.remark == "[QUOTA]addressSubscriptionsMax: address 10.0.0.1 has 4 subscriptions, 5 are allowed"
