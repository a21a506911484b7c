"""Runs a benchmark: prepares the topic, starts the client processes in the right order, ends them and sums up.

    topic (created if missing) ─ offsets of the group ─→ receivers ready, all queues assigned ─→ senders ─→ receivers have all
    ─→ reports ─→ BenchResult

What was acknowledged and did not arrive counts as failed, like every send that failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from ariane.bench.bench_plan import BenchMode, BenchPlan, Role, SendMethod
from ariane.bench.environment import BrokerFacts, HostFacts, describe_broker, describe_host
from ariane.bench.measurements import Throughput, WorkerReport, combine, unique_received
from ariane.bench.worker_processes import WorkerFailed, WorkerPool, WorkerProcess, start_load, stop_load
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.pull_consumer import PullConsumer
from ariane.cluster.topics.topic_admin import TopicOperations
from ariane.errors import ConfigError, RouteNotFound, ServerUnavailable
from ariane.model.message import MessageQueue
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.messaging import UpdateConsumerOffset

QUEUES = 8  # of a topic that is created
ROUTE_S = 10.0  # until the name servers have the route of a new topic
ASSIGN_S = 60.0  # until all queues are assigned; brokers notify members, and a rebalance happens every 20 s
STALL_S = 10.0  # without progress: what has not arrived by then is missing
POLL_S = 0.1


class TopicState(NamedTuple):
    """The topic before the benchmark."""

    bounds: dict[MessageQueue, tuple[int, int]]  # first offset and end of each queue
    is_created: bool  # whether the benchmark created it

    @property
    def messages(self) -> int:
        """Return the number of messages that the topic stores."""
        return sum(end - first for first, end in self.bounds.values())

    @property
    def end(self) -> int:
        """Return the sum of the ends of all queues."""
        return sum(end for _, end in self.bounds.values())


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a benchmark."""

    plan: BenchPlan  # what was measured. The secret key is not part of it
    host: HostFacts  # the machine of the clients
    brokers: tuple[BrokerFacts, ...]  # the masters of the topic
    queues: int  # number of queues of the topic
    is_topic_created: bool  # whether the benchmark created the topic
    throughputs: tuple[Throughput, ...]  # measurements by role
    missing: int = 0  # messages that were acknowledged, written or stored before, and did not arrive
    worker_errors: tuple[str, ...] = ()  # clients without measurements, with the reason
    is_interrupted: bool = False  # whether the benchmark was ended early

    @property
    def failed(self) -> int:
        return self.missing + sum(throughput.errors.count for throughput in self.throughputs)

    @property
    def is_successful(self) -> bool:
        """Return whether every message was sent and arrived, and every client reported."""
        return not self.failed and not self.worker_errors


class BenchProgress(NamedTuple):
    """State of a running benchmark."""

    sent: int | None  # messages sent or requests answered so far; None if nothing is sent
    received: int | None  # messages received so far; None if nothing is
    failed: int  # failures so far
    total: int  # messages to send, or to receive if nothing is sent


OnProgress = Callable[[BenchProgress], None]


class BenchRun:
    """One run of a benchmark, which `stop` ends early."""

    def __init__(
        self,
        plan: BenchPlan,
        *,
        queues: int | None,
        on_progress: OnProgress,
        on_note: Callable[[str], None],
        stop: asyncio.Event,
    ) -> None:
        self._plan = plan  # in mode consume, replaced by one with the number of stored messages if these are fewer
        self._queues = queues  # that the topic must have; None: any, and QUEUES for a new one
        self._on_progress = on_progress  # called a few times per second
        self._on_note = on_note  # called with facts that the user should see, for example that a topic was created
        self._stop = stop
        self._pool = WorkerPool()  # the client processes
        self._missing = 0  # messages that were acknowledged or written and did not arrive

    async def run(self) -> BenchResult:
        """Run the benchmark.

        Raises:
            ConfigError: the topic has another number of queues.
            ArianeError: a server is unavailable, or a client could not start.
        """
        plan, host = self._plan, describe_host()
        async with (
            ClientInstance(plan.namesrv, plan.client_settings()) as instance,
            TopicOperations(plan.namesrv, peers=instance.peers) as cluster,
            PullConsumer(instance) as reader,
        ):
            topic = await self._prepare_topic(cluster, reader)
            names = {queue.broker for queue in topic.bounds}
            servers = [server for server in await cluster.select_brokers() if server.broker in names]
            brokers = await asyncio.gather(*(describe_broker(cluster, server) for server in servers))
            self._limit_to_stored(topic)
            if plan.mode is not BenchMode.SEND:
                await self._commit_start(instance, topic)
            async with self._pool:
                await self._pool.start(self._plan.workers())
                await self._run_load(reader, topic)
        return self._result(host, tuple(brokers), topic)

    # --- before ---

    async def _prepare_topic(self, cluster: TopicOperations, reader: PullConsumer) -> TopicState:
        """Create the topic if it is missing. Return its state."""
        plan, is_created = self._plan, False
        try:
            queues = await reader.queues_of(plan.topic)
        except RouteNotFound:
            if plan.mode is BenchMode.CONSUME:
                raise
            count = self._queues or QUEUES
            await cluster.create_topic(plan.topic, queues=count)
            queues, is_created = await _wait_for_queues(reader, plan.topic), True
            self._on_note(f"created topic {plan.topic} with {count} queues per broker")
        brokers = {queue.broker for queue in queues}
        counts = {broker: sum(queue.broker == broker for queue in queues) for broker in brokers}
        if self._queues is not None and set(counts.values()) != {self._queues}:
            existing = ", ".join(f"{count} on {broker}" for broker, count in sorted(counts.items()))
            fix = f"topic {plan.topic} has {existing}; omit --queues, or choose another --topic"
            raise ConfigError("--queues", self._queues, fix)
        bounds = await asyncio.gather(*map(reader.bounds, queues))
        return TopicState(dict(zip(queues, bounds, strict=True)), is_created)

    def _limit_to_stored(self, topic: TopicState) -> None:
        """In mode consume, reduce the number of messages to what the topic stores."""
        plan = self._plan
        if plan.mode is not BenchMode.CONSUME or topic.messages >= plan.messages:
            return
        if not topic.messages:
            raise ConfigError("--topic", plan.topic, "stores no messages; fill it with `ariane bench send` first")
        self._on_note(f"topic {plan.topic} stores only {topic.messages:,} messages")
        warm_up = min(plan.warm_up, topic.messages - 1)
        self._plan = msgspec.structs.replace(plan, messages=topic.messages, warm_up=warm_up)

    async def _commit_start(self, instance: ClientInstance, topic: TopicState) -> None:
        """Let the group start at the first message (mode consume), or after the last one."""
        for queue, (first, end) in topic.bounds.items():
            offset = first if self._plan.mode is BenchMode.CONSUME else end
            address = instance.routes.master_address(queue.broker)
            if address is None:
                raise ServerUnavailable(f"broker {queue.broker} has no master, which stores the offsets of groups")
            header = UpdateConsumerOffset(self._plan.group, queue.topic, queue.queue_id, offset)
            await instance.peers.request_ok(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    # --- load ---

    async def _run_load(self, reader: PullConsumer, topic: TopicState) -> None:
        senders = self._pool.of_roles(Role.SEND, Role.REQUEST)
        receivers = self._pool.of_roles(Role.CONSUME, Role.REPLY)
        if receivers:
            await self._wait_assigned(receivers, len(topic.bounds))
            await start_load(receivers)
        await start_load(senders)
        while senders and not self._is_over(senders):
            await self._wait()
        if self._stop.is_set():
            await stop_load(senders)
        while not all(process.has_ended for process in senders):
            await self._wait()
        if self._plan.mode in (BenchMode.BOTH, BenchMode.CONSUME):
            await self._wait_received(receivers, senders)
        elif self._plan.method is SendMethod.ONE_WAY and self._plan.mode is BenchMode.SEND:
            await self._wait_stored(reader, topic)
        await stop_load(receivers)
        while not all(process.has_ended for process in receivers):
            await self._wait()

    async def _wait_assigned(self, receivers: list[WorkerProcess], queues: int) -> None:
        """Wait until the members have joined and share the queues: a rebalance during the load would be measured."""
        deadline_s = time.monotonic() + ASSIGN_S
        while not _is_shared([process.state.queues for process in receivers], queues) and not self._stop.is_set():
            if failed := [process for process in receivers if process.error is not None]:
                raise WorkerFailed(f"{failed[0]}: {failed[0].error}")
            if time.monotonic() > deadline_s:
                raise WorkerFailed(f"the consumers were not assigned all {queues} queues within {ASSIGN_S:.0f} s")
            await self._pool.wait_change()

    async def _wait_received(self, receivers: list[WorkerProcess], senders: list[WorkerProcess]) -> None:
        """Wait until everything has arrived, or nothing arrives for STALL_S."""
        expected = _completed(senders) if senders else self._plan.messages
        received, changed_s = -1, time.monotonic()
        while not self._is_over(receivers) and _completed(receivers) < expected:
            if _completed(receivers) != received:
                received, changed_s = _completed(receivers), time.monotonic()
            elif time.monotonic() - changed_s > STALL_S:
                break
            await self._wait()

    async def _wait_stored(self, reader: PullConsumer, topic: TopicState) -> None:
        """Wait until the brokers have stored all one-way messages: nothing else reveals a loss."""
        written = _completed(self._pool.of_roles(Role.SEND))
        stored, changed_s = -1, time.monotonic()
        while True:
            end = sum([(await reader.bounds(queue))[1] for queue in topic.bounds])
            if end - topic.end != stored:
                stored, changed_s = end - topic.end, time.monotonic()
            if stored >= written or time.monotonic() - changed_s > STALL_S or self._stop.is_set():
                break
            await asyncio.sleep(POLL_S)
        self._missing = max(0, written - stored)

    def _is_over(self, processes: list[WorkerProcess]) -> bool:
        return self._stop.is_set() or all(process.has_ended for process in processes)

    async def _wait(self) -> None:
        await self._pool.wait_change()
        senders = self._pool.of_roles(Role.SEND, Role.REQUEST)
        consumers = self._pool.of_roles(Role.CONSUME)
        self._on_progress(
            BenchProgress(
                sent=_completed(senders) if senders else None,
                received=_completed(consumers) if consumers else None,
                failed=sum(process.state.failed for process in self._pool.processes),
                total=self._plan.messages,
            )
        )

    # --- after ---

    def _result(self, host: HostFacts, brokers: tuple[BrokerFacts, ...], topic: TopicState) -> BenchResult:
        reports: dict[Role, list[WorkerReport]] = {}
        for process in self._pool.processes:
            if process.report is not None:
                reports.setdefault(process.work.role, []).append(process.report)
        errors = [f"{process}: {process.error}" for process in self._pool.processes if process.error is not None]
        missing = self._missing
        if not self._stop.is_set() and Role.CONSUME in reports:
            if self._plan.mode is BenchMode.BOTH:
                acknowledged = sum(report.completed for report in reports.get(Role.SEND, []))
                missing = max(0, acknowledged - unique_received(reports[Role.CONSUME]))
            else:
                missing = max(0, self._plan.messages - sum(report.completed for report in reports[Role.CONSUME]))
        order = (Role.SEND, Role.REQUEST, Role.CONSUME, Role.REPLY)
        return BenchResult(
            plan=msgspec.structs.replace(self._plan, secret_key=""),
            host=host,
            brokers=brokers,
            queues=len(topic.bounds),
            is_topic_created=topic.is_created,
            throughputs=tuple(combine(reports[role]) for role in order if role in reports),
            missing=missing,
            worker_errors=tuple(errors),
            is_interrupted=self._stop.is_set(),
        )


def _is_shared(assigned: Sequence[int], queues: int) -> bool:
    return sum(assigned) == queues and min(assigned) >= queues // len(assigned)


def _completed(processes: list[WorkerProcess]) -> int:
    return sum(process.state.completed for process in processes)


async def _wait_for_queues(reader: PullConsumer, topic: str) -> list[MessageQueue]:
    """Return the queues of a new topic as soon as a name server has its route."""
    deadline_s = time.monotonic() + ROUTE_S
    while True:
        try:
            return await reader.queues_of(topic)
        except RouteNotFound:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(POLL_S)
