"""The collector at a Java 4.9.4 master and slave: every request succeeds, a backlog served by the slave is visible."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from ariane.client.instance.settings import ConsumerSettings
from ariane.client.lite_pull_consumer import LitePullConsumer
from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer
from ariane.clock import SYSTEM_CLOCK
from ariane.metrics_collector import publisher
from ariane.metrics_collector.sample import GroupProgress, Sample, StatsCounter
from ariane.model.message import Message, ReceivedMessage
from ariane.model.topic import SAMPLES_TOPIC
from ariane.testing import java

COUNT = 4000
READ_FROM_SLAVE = {
    "slaveReadEnable": "true",
    "accessMessageInMemoryMaxRatio": "0",
    "mappedFileSizeCommitLog": "16777216",
}


def progress(sample: Sample) -> GroupProgress | None:
    return next((group for group in sample.groups if (group.topic, group.group) == ("T", "G")), None)


def counter(sample: Sample, name: str) -> StatsCounter | None:
    return next((item for item in sample.counters if (item.topic, item.name) == ("T", name)), None)


async def slow(messages: Sequence[ReceivedMessage]) -> None:
    await asyncio.sleep(0.05)


@pytest.mark.long(
    "tests/integration/test_collect.py::test_with_once_each_run_publishes_one_round",
    "tests/interop/test_java_statistics.py::test_both_brokers_return_the_same_structure",
)
def test_a_java_master_and_slave_are_sampled(tmp_path: Path) -> None:
    rounds: list[dict[int, Sample]] = []

    async def run(namesrv: str) -> None:
        async with Producer(namesrv, "P") as producer:
            for _ in range(COUNT // 100):
                await asyncio.gather(*(producer.send(Message(topic="T", body=b"x" * 50)) for _ in range(100)))
        began_ms = SYSTEM_CLOCK.now_ms()
        await asyncio.sleep(8)  # the slave has copied log and topics
        stop = asyncio.Event()

        def look(done: publisher.PollingRound) -> None:
            rounds.append({sample.broker_id: sample for sample in done.samples})
            by_slave = counter(rounds[-1][1], "GROUP_GET_SIZE")
            if by_slave is not None and by_slave.sum and len(rounds) > 8:
                stop.set()

        settings = ConsumerSettings(concurrency=2, cached_max=32)
        async with PushConsumer(namesrv, "G", {"T": "*"}, slow, start="first", settings=settings):
            await asyncio.wait_for(
                publisher.run_collector(namesrv, publisher.CollectorOptions(interval_s=2), on_round=look, stop=stop), 90
            )
        assert all(set(round) == {0, 1} for round in rounds)
        reported = [sample for round in rounds for sample in round.values()]
        assert {(sample.error, sample.failed_requests) for sample in reported} == {(None, ())}

        steps = [round for each in rounds if (round := progress(each[0])) is not None]
        # The first rounds may come before the group has committed an offset in each queue.
        complete = [step for step in steps if len(step.queues) == len(steps[-1].queues)]
        lags = [sum(last - done for _, done, _, last, _ in step.queues if last is not None) for step in complete]
        assert lags == sorted(lags, reverse=True)
        assert 0 < lags[-1] < lags[0] <= COUNT
        ages = [age for *_, age in steps[-1].queues]
        longest_ms = SYSTEM_CLOCK.now_ms() - began_ms + 10_000
        assert all(age is not None and 5_000 < age < longest_ms for age in ages), ages

        last = rounds[-1]
        master_counter, its = counter(last[0], "GROUP_GET_NUMS"), counter(last[1], "GROUP_GET_NUMS")
        assert master_counter is not None and its is not None
        assert its.sum > master_counter.sum  # the first pull of each queue goes to the master
        assert its.tps > 0
        stored = counter(last[0], "TOPIC_PUT_NUMS")
        assert stored is not None and stored.sum > 0
        for sample in last.values():
            runtime = sample.runtime
            assert runtime is not None and None not in msgspec.structs.astuple(runtime)
            assert runtime.get_total is not None and runtime.get_total > 0

        published = await samples_of(namesrv, len(reported))
        assert sorted((round.round, round.broker_id) for round in published) == sorted(
            (round.round, round.broker_id) for round in reported
        )

    with java.name_server(tmp_path / "ns") as name_server:
        slave = {**READ_FROM_SLAVE, "brokerRole": "SLAVE", "brokerId": "1"}
        with (
            java.broker(tmp_path / "master", name_server.addr, properties=READ_FROM_SLAVE),
            java.broker(tmp_path / "slave", name_server.addr, properties=slave),
        ):
            asyncio.run(asyncio.wait_for(run(name_server.addr), 200))


async def samples_of(namesrv: str, count: int) -> list[Sample]:
    """Return the contents of the sample topic."""
    results: list[Sample] = []
    async with LitePullConsumer(namesrv, "R", {SAMPLES_TOPIC: "*"}, start="first") as consumer, asyncio.timeout(30):
        while len(results) < count:
            results += [msgspec.json.decode(message.body, type=Sample) for message in await consumer.poll(timeout=1.0)]
    return results
