"""Assigned and revoked queues, and the requests for them, against scripted brokers."""

from __future__ import annotations

import asyncio
import json

import pytest
from client_script import Script, instance, name_server, route

from ariane.client.delivery.orderly_delivery import OrderlyDelivery
from ariane.client.instance.settings import ConsumerSettings
from ariane.client.lite_pull_consumer import LitePullConsumer
from ariane.client.membership import rebalancer
from ariane.client.push_consumer import PushConsumer
from ariane.errors import ConfigError, ConnectionLost
from ariane.model.message import MessageQueue
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.testing.clock import FakeClock

ME = "me"


class Cluster:
    """One broker `a` with topic T of four queues, and a group with `members`."""

    def __init__(self) -> None:
        self.topics = {"T": route("a", queues=4), "%RETRY%g": route("a", queues=1)}
        self.members: list[str] = []
        self.stored: dict[str, int] = {}
        self.held_by_others: set[int] = set()
        self.peers = Script(
            {
                RequestCode.GET_ROUTEINFO_BY_TOPIC: name_server(self.topics),
                RequestCode.HEART_BEAT: self.heartbeat,
                RequestCode.UNREGISTER_CLIENT: lambda asked: Command(0),
                RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.list_members,
                RequestCode.QUERY_CONSUMER_OFFSET: self.query,
                RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
                RequestCode.LOCK_BATCH_MQ: self.lock,
                RequestCode.UNLOCK_BATCH_MQ: lambda asked: Command(0),
                RequestCode.PULL_MESSAGE: self.pull,
            }
        )
        self.instance = instance(self.peers, FakeClock(is_auto=True))
        self.instance.client_id = ME

    def heartbeat(self, asked) -> Command:
        if ME not in self.members:
            self.members.append(ME)
        return Command(0)

    def list_members(self, asked) -> Command:
        if not self.members:
            return Command(1, remark="no consumer")
        return Command(0, body=json.dumps({"consumerIdList": self.members}).encode())

    def query(self, asked) -> Command:
        offset = self.stored.get(asked.fields["queueId"])
        return Command(22) if offset is None else Command(0, fields={"offset": str(offset)})

    def update(self, asked) -> Command:
        self.stored[asked.fields["queueId"]] = int(asked.fields["commitOffset"])
        return Command(0)

    def lock(self, asked) -> Command:
        queues = json.loads(asked.body)["mqSet"]
        result = [queue for queue in queues if queue["queueId"] not in self.held_by_others]
        return Command(0, body=json.dumps({"lockOKMQSet": result}).encode())

    def pull(self, asked) -> Command:
        numbers = {"suggestWhichBrokerId": 0, "nextBeginOffset": int(asked.fields["queueOffset"]), "minOffset": 0}
        # 19 at the same offset; the fetch loop gives way to others between two pulls through the script's own await
        return Command(19, fields={name: str(value) for name, value in (numbers | {"maxOffset": 0}).items()})

    def give_way(self) -> None:
        """Let other tasks run before every response."""
        request = self.peers.request

        async def yielding(*args, **kwargs):
            await asyncio.sleep(0)
            return await request(*args, **kwargs)

        self.peers.request = yielding

    def play(self, act, **more):
        self.give_way()

        async def run():
            consumer = PushConsumer(self.instance, "g", {"T": "*"}, print, start="first", **more)
            async with asyncio.timeout(5), consumer:
                await act(consumer)

        asyncio.run(run())


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0)


def ids(consumer, topic="T") -> list[int]:
    return [queue.queue_id for queue in consumer.queues if queue.topic == topic]


def test_a_single_member_reads_all_queues_and_the_retry_topic():
    cluster = Cluster()

    async def act(consumer):
        await until(lambda: len(consumer.queues) == 5)
        assert ids(consumer) == [0, 1, 2, 3]
        assert MessageQueue("%RETRY%g", "a", 0) in consumer.queues

    cluster.play(act)
    (remaining,) = cluster.peers.of(RequestCode.UNREGISTER_CLIENT)
    assert remaining.fields == {"clientID": ME, "consumerGroup": "g"}


def test_heartbeats_carry_the_subscriptions():
    cluster = Cluster()

    async def act(consumer):
        await consumer.subscribe("T", "Aa || B")
        data = json.loads(cluster.peers.of(RequestCode.HEART_BEAT)[-1].body)
        (group,) = data["consumerDataSet"]
        assert data["clientID"] == ME
        assert group["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
        by_topic = {item["topic"]: item for item in group["subscriptionDataSet"]}
        assert sorted(by_topic["T"]["codeSet"]) == [66, 2112]
        assert sorted(by_topic["T"]["tagsSet"]) == ["Aa", "B"]
        assert by_topic["%RETRY%g"]["subString"] == "*"

    cluster.play(act)


def test_a_second_member_is_assigned_half_of_the_queues_and_offsets_are_committed():
    cluster = Cluster()
    cluster.stored = dict.fromkeys("0123", 7)

    async def act(consumer):
        await until(lambda: len(consumer.queues) == 5)
        cluster.members.append("you")
        consumer._membership.on_members_changed()
        await until(lambda: ids(consumer) == [0, 1])
        cluster.members.remove("you")
        consumer._membership.on_members_changed()
        await until(lambda: ids(consumer) == [0, 1, 2, 3])

    cluster.play(act)


def test_a_broker_that_lost_this_member_gets_a_heartbeat_and_no_queue_is_revoked():
    cluster = Cluster()

    async def act(consumer):
        await until(lambda: len(consumer.queues) == 5)
        cluster.members[:] = ["you"]
        beats = len(cluster.peers.of(RequestCode.HEART_BEAT))
        cluster.peers.answers[RequestCode.HEART_BEAT] = lambda asked: Command(0)  # it does not learn
        consumer._membership.on_members_changed()
        await until(lambda: len(cluster.peers.of(RequestCode.HEART_BEAT)) > beats)
        assert len(consumer.queues) == 5

    cluster.play(act)


def test_a_queue_without_a_start_offset_is_not_assigned():
    cluster = Cluster()
    cluster.peers.answers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda asked: (
        Command(1, remark="trouble") if asked.fields["queueId"] == "2" else cluster.query(asked)
    )

    async def act(consumer):
        await until(lambda: ids(consumer) == [0, 1, 3])

    cluster.play(act)


def test_2708_a_failed_read_of_an_offset_moves_no_offset():
    """apache/rocketmq#2708: an unstable network at a rebalance lets a client commit -1, and consume whole queues again."""
    cluster = Cluster()
    cluster.stored = {str(queue): 7 for queue in range(4)}
    failures = [Command(1, remark="trouble"), Command(14, remark="not confirmed yet"), ConnectionLost("a:1", "reset")]

    def query(asked) -> Command:
        if asked.fields["queueId"] == "2" and failures:
            failure = failures.pop()
            if isinstance(failure, Exception):
                raise failure
            return failure
        return cluster.query(asked)

    def pulled() -> set[str]:
        pulls = cluster.peers.of(RequestCode.PULL_MESSAGE)
        return {pull.fields["queueOffset"] for pull in pulls if pull.fields["queueId"] == "2"}

    cluster.peers.answers[RequestCode.QUERY_CONSUMER_OFFSET] = query

    async def act(consumer):
        await until(lambda: ids(consumer) == [0, 1, 3])
        while failures:
            consumer._membership.on_members_changed()
            await asyncio.sleep(0)
        consumer._membership.on_members_changed()
        await until(lambda: ids(consumer) == [0, 1, 2, 3])
        await until(pulled)

    cluster.play(act)
    assert (pulled(), cluster.stored["2"]) == ({"7"}, 7)


def test_an_orderly_member_starts_only_queues_that_it_locked():
    cluster = Cluster()
    cluster.held_by_others = {1, 3}

    async def act(consumer):
        await until(lambda: ids(consumer) == [0, 2])
        cluster.held_by_others.clear()
        consumer._membership.on_members_changed()
        await until(lambda: ids(consumer) == [0, 1, 2, 3])

    cluster.play(act, orderly=True)
    unlocked = [load["queueId"] for load in json.loads(cluster.peers.of(RequestCode.UNLOCK_BATCH_MQ)[-1].body)["mqSet"]]
    assert sorted(unlocked) == [0, 0, 1, 2, 3]  # with the retry topic's


def test_a_queue_whose_lock_was_lost_is_assigned_again():
    cluster = Cluster()

    async def act(consumer):
        await until(lambda: len(consumer.queues) == 5)
        cluster.held_by_others = {0}
        await consumer._membership.rebalancer._renew_locks()
        await until(lambda: ids(consumer) == [1, 2, 3])

    cluster.play(act, orderly=True)


def test_offsets_are_committed_at_close():
    cluster = Cluster()

    async def act(consumer):
        await until(lambda: len(consumer.queues) == 5)

    def pull(asked):
        answer = cluster.pull(asked)
        if asked.fields["topic"] == "T":
            answer.fields["nextBeginOffset"] = "12"
        return answer

    cluster.peers.answers[RequestCode.PULL_MESSAGE] = pull

    async def act_and_pull(consumer):
        await act(consumer)
        await until(lambda: len({request.fields["queueId"] for request in cluster.peers.of(RequestCode.PULL_MESSAGE)
                                 if request.fields["queueOffset"] == "12"}) == 4)  # fmt: skip

    cluster.play(act_and_pull)
    assert {number: cluster.stored[number] for number in "123"} == {"1": 12, "2": 12, "3": 12}


def test_queues_of_an_unsubscribed_topic_are_revoked():
    cluster = Cluster()

    async def act(consumer):
        await until(lambda: len(consumer.queues) == 5)
        await consumer.unsubscribe("T")
        await until(lambda: ids(consumer) == [])
        assert len(consumer.queues) == 1

    cluster.play(act)


def test_a_topic_that_appears_later_is_found():
    cluster = Cluster()
    result = cluster.topics.pop("T")

    async def act(consumer):
        await until(lambda: len(consumer.queues) == 1)
        cluster.topics["T"] = result
        consumer._membership.on_members_changed()
        await until(lambda: len(consumer.queues) == 5)

    cluster.play(act)


def test_a_retry_topic_that_appears_soon_is_found_before_the_next_rebalance(monkeypatch):
    """The first heartbeat creates it, and brokers register it a moment later."""
    monkeypatch.setattr(rebalancer, "MISSING_S", 0.001)
    cluster = Cluster()
    result = cluster.topics.pop("%RETRY%g")

    async def act(consumer):
        await until(lambda: len(consumer.queues) == 4)
        cluster.topics["%RETRY%g"] = result
        await until(lambda: len(consumer.queues) == 5)

    cluster.play(act, settings=ConsumerSettings(rebalance_interval=600))


def test_a_retry_topic_that_does_not_appear_is_not_looked_up_forever(monkeypatch):
    monkeypatch.setattr(rebalancer, "MISSING_S", 0.001)
    cluster = Cluster()
    del cluster.topics["%RETRY%g"]

    def look_ups():
        return sum(
            request.fields["topic"] == "%RETRY%g" for request in cluster.peers.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        )

    async def act(consumer):
        await until(lambda: look_ups() > rebalancer.RETRY_TOPIC_LOOKUPS)
        await asyncio.sleep(0.05)  # for the last of them
        count = look_ups()
        await asyncio.sleep(0.05)
        assert look_ups() == count

    cluster.play(act, settings=ConsumerSettings(rebalance_interval=600))


@pytest.mark.parametrize(
    ("topic", "level"), [("T", "WARNING"), ("%RETRY%g", "DEBUG"), ("%DLQ%other", "INFO")], ids=["user", "retry", "dead"]
)
def test_a_missing_topic_is_logged_once_by_what_creates_it(topic, level, caplog):
    caplog.set_level("DEBUG", logger="ariane.client")
    cluster = Cluster()
    cluster.topics.pop(topic, None)

    async def act(consumer):
        await consumer.subscribe(topic)
        await until(lambda: "cannot read topic" in caplog.text)

    cluster.play(act)
    (record,) = [record for record in caplog.records if "cannot read topic" in record.getMessage()]
    assert record.levelname == level
    assert record.getMessage().startswith(f"Group g cannot read topic {topic} yet: no such topic on name server ")


def test_two_consumers_of_one_group_need_two_instances():
    cluster = Cluster()

    async def act(consumer):
        with pytest.raises(ConfigError, match="already"):
            async with PushConsumer(cluster.instance, "g", {"T": "*"}, print):
                pass

    cluster.play(act, settings=ConsumerSettings())


def test_a_lock_is_valid_from_its_request_not_from_the_response():
    cluster = Cluster()
    granted = cluster.lock

    def answered_late(asked) -> Command:
        cluster.instance.clock.advance_ms(40_000)  # the process stood still: the broker's 60 s are nearly over
        return granted(asked)

    cluster.peers.answers[RequestCode.LOCK_BATCH_MQ] = answered_late

    async def act(consumer):
        await until(lambda: len(consumer.queues) == 5)
        now = cluster.instance.clock.monotonic()
        assert not any(process_queue.is_locked(now) for process_queue in consumer._membership.rebalancer.process_queues)

    cluster.play(act, orderly=True)


def locked_now(cluster) -> list[int]:
    """Which queues of T the last renewal asked for."""
    queues = json.loads(cluster.peers.of(RequestCode.LOCK_BATCH_MQ)[-1].body)["mqSet"]
    return sorted(item["queueId"] for item in queues if item["topic"] == "T")


def test_the_lock_of_a_revoked_queue_is_renewed_while_the_listener_runs(monkeypatch):
    cluster = Cluster()
    at_work = asyncio.Event()

    async def end(self, process_queue):
        process_queue.revoke()
        await at_work.wait()
        process_queue.drop()

    monkeypatch.setattr(OrderlyDelivery, "on_revoked", end)

    async def act(consumer):
        await until(lambda: len(consumer.queues) == 5)
        cluster.members.append("you")
        consumer._membership.on_members_changed()
        await until(lambda: ids(consumer) == [0, 1])
        await consumer._membership.rebalancer._renew_locks()
        assert locked_now(cluster) == [0, 1, 2, 3]
        at_work.set()
        await until(lambda: len(cluster.peers.of(RequestCode.UNLOCK_BATCH_MQ)) == 2)
        await consumer._membership.rebalancer._renew_locks()
        assert locked_now(cluster) == [0, 1]

    cluster.play(act, orderly=True)


def test_no_offset_is_committed_without_the_lock():
    cluster = Cluster()

    async def act(consumer):
        await until(lambda: len(consumer.queues) == 5)
        allocation = consumer._membership.rebalancer
        queue = MessageQueue("T", "a", 0)
        assert queue in allocation.committable
        allocation._context.offsets.update(queue, 7)
        cluster.instance.clock.advance_ms(31_000)
        assert allocation.committable == []
        cluster.members.append("you")
        cluster.members.sort(reverse=True)
        await allocation._renew_locks()  # detects the loss and assigns the queues again
        await until(lambda: not allocation._revoking)

    cluster.play(act, orderly=True)
    assert "7" not in map(str, cluster.stored.values())


def test_a_queue_that_a_thread_still_works_on_is_not_unlocked():
    cluster = Cluster()

    async def act(consumer):
        await until(lambda: len(consumer.queues) == 5)
        first = consumer._membership.rebalancer.process_queues[1]
        assert first.queue.topic == "T"
        first.is_abandoned = True

    cluster.play(act, orderly=True)
    unlocked = json.loads(cluster.peers.of(RequestCode.UNLOCK_BATCH_MQ)[-1].body)["mqSet"]
    assert sorted(item["queueId"] for item in unlocked if item["topic"] == "T") == [1, 2, 3]


def test_queues_of_a_lite_pull_consumer_remain_assigned_when_it_is_reopened():
    cluster = Cluster()
    cluster.give_way()

    async def run():
        consumer = LitePullConsumer(cluster.instance, "g", start="first")
        async with asyncio.timeout(5):
            async with consumer:
                await consumer.assign([MessageQueue("T", "a", 1)])
                await until(lambda: ids(consumer) == [1])
            async with consumer:
                await until(lambda: ids(consumer) == [1])

    asyncio.run(run())
