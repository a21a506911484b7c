"""One process with 200 consumer groups and 1,000 queues for an hour of virtual time: does anything grow?

    python benches/many_groups.py [--groups 200] [--topics 100] [--queues 10] [--minutes 60] [--no-memory] [--out FILE]

Name server, broker and clients are the real ones on a simulated network and disk (`ariane.testing.virtual`); an hour takes
several minutes. Every topic is read by `groups / topics` groups of one client instance, every tenth group in order, and receives a
message every MESSAGE_S seconds. The table has a row for each sixth of the time:

  tasks, timers           of the event loop, servers included
  connections             of the client instance
  objects                 tracked by the garbage collector, of classes of asyncio and of Ariane's clients and connections
  client KiB              allocated by the code of Ariane's clients, connections and protocol and not freed
  CPU ms                  of the process per virtual second, servers and (unless --no-memory) tracing included

Exit status 1 if a message was not consumed exactly once by each group, an offset was not committed, a task was left after the
close, or if one of the first five grew by more than GROWTH_MAX between the first and the last row.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import itertools
import json
import logging
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from ariane.client.consuming.offset_store import OffsetStore
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer
from ariane.model.message import Message, MessageQueue, ReceivedMessage
from ariane.model.topic import AUTO_CREATE_TOPIC, PERM_READ, PERM_WRITE
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import CreateTopic
from ariane.testing.virtual.virtual_cluster import VirtualCluster, virtual_cluster
from ariane.testing.virtual.virtual_time import VirtualProcess

BROKER = "10.0.0.2:10911"
MESSAGE_S = 15.0  # between two messages of a topic
CONSUME_S = 10.0  # until the last messages are consumed
CLOSED_S = 60.0  # until closed connections and their timers are gone
GROWTH_MAX = 0.01  # of tasks and objects between the first and the last row


class Sample(NamedTuple):
    """What the process holds at one moment."""

    minute: float
    tasks: int
    timers: int
    connections: int
    objects: int
    client_kib: float  # 0 without tracing
    cpu_ms: float


class ManyGroups:
    """Groups that read all topics of a virtual cluster, and what they consumed."""

    def __init__(self, world: VirtualCluster, groups: int, topics: int, queues: int) -> None:
        self.world = world
        self.groups = {f"group-{number}": f"topic-{number % topics}" for number in range(groups)}  # group → its topic
        self.topics = [f"topic-{number}" for number in range(topics)]
        self.queues = queues  # of each topic
        self.consumed: Counter[tuple[str, int]] = Counter()  # (group, number of the message) → how often
        self.sent: dict[int, str] = {}  # number of the message → topic
        self.samples: list[Sample] = []
        self._cpu_s, self._at_s = time.process_time(), 0.0  # of the process, and virtual time, at the last sample

    async def run(self, minutes: Sequence[float]) -> list[str]:
        """Consume until the last of `minutes`, with a sample at each; return what is wrong."""
        faults: list[str] = []
        process = self.world.process("shop")
        await self.world.start()
        tasks_before = set(asyncio.all_tasks())
        await process.start(self._serve(process, minutes, faults))
        await asyncio.sleep(CLOSED_S)
        left = set(asyncio.all_tasks()) - tasks_before
        return faults + [f"left-over task: {task.get_name()}" for task in left]

    async def _serve(self, process: VirtualProcess, minutes: Sequence[float], faults: list[str]) -> None:
        async with self.world.instance(process) as instance, Producer(instance, "shop") as producer:
            for topic in self.topics:
                header = CreateTopic(topic, AUTO_CREATE_TOPIC, self.queues, self.queues, PERM_READ | PERM_WRITE)
                await instance.peers.request_ok(BROKER, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            async with AsyncExitStack() as members:
                consumers = [self._consumer(instance, number) for number in range(len(self.groups))]
                for consumer in consumers:
                    await members.enter_async_context(consumer)
                sending = asyncio.ensure_future(self._send(producer))
                for minute in minutes:
                    await asyncio.sleep(minute * 60 - self.world.loop.time())
                    self.samples.append(self._sample(minute, instance))
                sending.cancel()
                await asyncio.wait([sending])
                await asyncio.sleep(CONSUME_S)
                assigned = {consumer.group: consumer.queues for consumer in consumers}
            faults += self._unassigned(assigned) + self._lost_or_repeated() + await self._uncommitted(instance)

    def _consumer(self, instance: ClientInstance, number: int) -> PushConsumer:
        group = f"group-{number}"

        async def consume(messages: Sequence[ReceivedMessage]) -> None:
            self.consumed.update((group, int(message.body)) for message in messages)

        topic = self.groups[group]
        return PushConsumer(instance, group, {topic: "*"}, consume, orderly=number % 10 == 0, start="first")

    async def _send(self, producer: Producer) -> None:
        for number in itertools.count():
            topic = self.topics[number % len(self.topics)]
            await producer.send(Message(topic=topic, body=b"%d" % number))
            self.sent[number] = topic
            await asyncio.sleep(MESSAGE_S / len(self.topics))

    def _sample(self, minute: float, instance: ClientInstance) -> Sample:
        gc.collect()
        cpu_s, at_s = time.process_time(), self.world.loop.time()
        cpu_ms = (cpu_s - self._cpu_s) / (at_s - self._at_s) * 1000
        connections, timers = len(instance.peers._connections), len(self.world.loop._later)
        objects = sum(_is_client_object(item) for item in gc.get_objects())
        tasks = len(asyncio.all_tasks())
        sample = Sample(minute, tasks, timers, connections, objects, _client_bytes() / 1024, cpu_ms)
        self._cpu_s, self._at_s = time.process_time(), at_s
        return sample

    def _unassigned(self, assigned: dict[str, list[MessageQueue]]) -> list[str]:
        counts = {group: sum(queue.topic == topic for queue in assigned[group]) for group, topic in self.groups.items()}
        return [
            f"{group} had {count} of {self.queues} queues" for group, count in counts.items() if count != self.queues
        ]

    def _lost_or_repeated(self) -> list[str]:
        readers: dict[str, list[str]] = {}
        for group, topic in self.groups.items():
            readers.setdefault(topic, []).append(group)
        expected = Counter((group, number) for number, topic in self.sent.items() for group in readers[topic])
        differences = {item: self.consumed[item] for item in expected | self.consumed if self.consumed[item] != 1}
        return [f"{group} consumed message {number} {count} times" for (group, number), count in differences.items()]

    async def _uncommitted(self, instance: ClientInstance) -> list[str]:
        faults = []
        for group, topic in self.groups.items():
            offsets = OffsetStore(instance.peers, instance.routes, group, timeout_ms=3_000)
            for queue in await instance.routes.subscribe_queues(topic):
                _, end = await offsets.bounds(queue)
                committed = await offsets.committed(queue)
                if (committed or 0) != end:
                    faults.append(f"{group} committed {committed} of {end} in {queue}")
        return faults


def _is_client_object(item: object) -> bool:
    module = type(item).__module__
    return isinstance(module, str) and module.startswith(("ariane.client", "ariane.net", "asyncio", "_asyncio"))


def _client_bytes() -> int:
    """Return the bytes that the clients allocated; 0 without tracing."""
    if not tracemalloc.is_tracing():
        return 0
    files = [tracemalloc.Filter(True, f"*/ariane/{package}/*") for package in ("client", "net", "protocol")]
    statistics = tracemalloc.take_snapshot().filter_traces(files).statistics("filename")
    return sum(statistic.size for statistic in statistics)


def growth(samples: Sequence[Sample]) -> list[str]:
    """Return what grew between the first and the last sample by more than GROWTH_MAX."""
    first, last = samples[0], samples[-1]
    return [
        f"{name} grew from {getattr(first, name)} to {getattr(last, name)}"
        for name in ("tasks", "timers", "connections", "objects", "client_kib")
        if getattr(last, name) > getattr(first, name) * (1 + GROWTH_MAX)
    ]


def table(samples: Sequence[Sample]) -> str:
    """Return the samples as a table."""
    lines = [f"| {' | '.join(Sample._fields)} |", "|---" * len(Sample._fields) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(f'{value:,.6g}' for value in sample)} |" for sample in samples)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=200, help="number of consumer groups")
    parser.add_argument("--topics", type=int, default=100, help="number of topics, at most one per group")
    parser.add_argument("--queues", type=int, default=10, help="queues of each topic")
    parser.add_argument(
        "--minutes", type=float, default=60, help="virtual minutes; the first sample is at a sixth of them"
    )
    parser.add_argument("--no-memory", action="store_true", help="do not trace allocations, which takes CPU time")
    parser.add_argument("--profile", type=Path, help="write a profile of the run to this file")
    parser.add_argument("--out", type=Path, help="write the result to this file")
    args = parser.parse_args()
    logging.getLogger("ariane").setLevel(logging.ERROR)
    minutes = [args.minutes * sixth / 6 for sixth in range(1, 7)]
    if not args.no_memory:
        tracemalloc.start(1)
    profiler = cProfile.Profile() if args.profile else None
    with virtual_cluster() as world:
        groups = ManyGroups(world, args.groups, args.topics, args.queues)
        faults = profiler.runcall(world.run, groups.run(minutes)) if profiler else world.run(groups.run(minutes))
    if profiler:
        profiler.dump_stats(args.profile)
    faults += growth(groups.samples)
    print(table(groups.samples))
    print(f"\n{len(groups.sent)} messages, {groups.consumed.total()} consumed, {time.process_time():.0f} s of CPU time")
    for fault in faults:
        print(fault, file=sys.stderr)
    if args.out:
        result = {
            "samples": [sample._asdict() for sample in groups.samples],
            "messages": len(groups.sent),
            "faults": faults,
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
