"""A client process of a benchmark: `python -m ariane.bench.worker`, started by `worker_processes`.

standard input    a WorkerPlan as a line of JSON, then the lines `start` and `stop`; its end means that the parent has ended
standard output   WorkerEvents as lines of JSON: the client is ready; progress, every PROGRESS_S; the report, or an error
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable

import msgspec

from ariane.bench.bench_plan import Role, WorkerPlan
from ariane.bench.measurements import WorkerReport
from ariane.bench.receive_load import ConsumeLoad, ReplyLoad
from ariane.bench.send_load import SendLoad
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.settings import ConsumerSettings, ProducerSettings
from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer
from ariane.errors import ArianeError
from ariane.model.message import MessageQueue

PROGRESS_S = 0.2
PLAN_BYTES_MAX = 1024 * 1024
START, STOP = "start", "stop"
CONSUME_BATCH = 32  # messages per call of the listener: as many as a pull returns
REPLIES_IN_FLIGHT = 256
MESSAGE_MAX = 8 * 1024 * 1024  # of a body or batch; brokers apply a limit of their own
UNCOMPRESSED = 2**31 - 1  # compress_from: random bytes do not shrink, and compressing them takes time


class WorkerEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line that a worker prints."""

    completed: int = 0  # messages so far, warm-up included
    failed: int = 0  # failures so far
    queues: int = 0  # queues that are assigned to this consumer
    is_ready: bool = False  # whether the clients are open
    report: WorkerReport | None = None  # the measurements; the last line
    error: str | None = None  # why this client could not work; the last line


class Commands:
    """What the parent process requested."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.stopped = asyncio.Event()

    async def follow(self, lines: asyncio.StreamReader) -> None:
        """Read commands until the parent closes the pipe."""
        while line := (await lines.readline()).decode().strip():
            if line == START:
                self.started.set()
            else:
                break
        # Both: a worker that waits for the start ends, too.
        self.stopped.set()
        self.started.set()


class Load:
    """The load of a worker: how to run it, and what to report meanwhile."""

    def __init__(self, report: WorkerReport) -> None:
        self.report = report
        self.sender: SendLoad | None = None
        self.listener: ConsumeLoad | None = None
        self.consumer: PushConsumer | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Work until everything is sent, consumers until `stop` is set, and complete the report."""
        await (stop.wait() if self.sender is None else self.sender.run())
        if self.listener is not None:
            self.listener.finish()

    def is_assigned(self, queue: MessageQueue) -> bool:
        return self.consumer is not None and queue in self.consumer.queues

    def progress(self) -> WorkerEvent:
        queues = 0
        if self.consumer is not None:
            with contextlib.suppress(ArianeError):  # it is closing
                queues = sum(queue.topic != f"%RETRY%{self.consumer.group}" for queue in self.consumer.queues)
        return WorkerEvent(
            completed=self.report.completed, failed=self.report.errors.count, queues=queues, is_ready=True
        )


async def run_worker(lines: asyncio.StreamReader, emit: Callable[[WorkerEvent], None]) -> None:
    """Do the work of the plan that `lines` begin with."""
    work = msgspec.json.decode(await lines.readline(), type=WorkerPlan)
    commands = Commands()
    following = asyncio.create_task(commands.follow(lines))
    try:
        async with contextlib.AsyncExitStack() as clients:
            load = await clients.enter_async_context(_open_load(work, commands))
            ticker = asyncio.create_task(_emit_progress(load, emit))
            clients.callback(ticker.cancel)
            await commands.started.wait()
            await load.run(commands.stopped)
        emit(WorkerEvent(report=load.report))
    except ArianeError as error:
        emit(WorkerEvent(error=str(error)))
    finally:
        following.cancel()


@contextlib.asynccontextmanager
async def _open_load(work: WorkerPlan, commands: Commands) -> AsyncIterator[Load]:
    plan, report = work.plan, WorkerReport(role=work.role)
    load = Load(report)
    # No retries: each failed attempt is a failure that the benchmark counts.
    settings = ProducerSettings(retries=0, compress_from=UNCOMPRESSED, message_max=MESSAGE_MAX)
    async with contextlib.AsyncExitStack() as clients:
        instance = await clients.enter_async_context(ClientInstance(plan.namesrv, plan.client_settings()))

        async def open_producer() -> Producer:
            producer = Producer(instance, "ariane-bench", settings=settings)
            return await clients.enter_async_context(producer)

        if work.role in (Role.SEND, Role.REQUEST):
            load.sender = SendLoad(work, await open_producer(), report, commands.stopped)
        elif work.role is Role.CONSUME:
            load.listener = ConsumeLoad(work, report, commands.started, load.is_assigned)
            load.consumer = PushConsumer(
                instance,
                plan.group,
                subscriptions={plan.topic: "*"},
                listener=load.listener,
                start="first",
                settings=ConsumerSettings(consume_batch_max=CONSUME_BATCH, commit_interval=1),
            )
        else:
            load.consumer = PushConsumer(
                instance,
                plan.group,
                subscriptions={plan.topic: "*"},
                listener=ReplyLoad(await open_producer(), report),
                start="last",
                settings=ConsumerSettings(
                    consume_batch_max=CONSUME_BATCH, concurrency=REPLIES_IN_FLIGHT, commit_interval=1
                ),
            )
        if load.consumer is not None:
            await clients.enter_async_context(load.consumer)
        yield load


async def _emit_progress(load: Load, emit: Callable[[WorkerEvent], None]) -> None:
    while True:
        emit(load.progress())
        await asyncio.sleep(PROGRESS_S)


async def _main() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=PLAN_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)

    def emit(event: WorkerEvent) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
        sys.stdout.buffer.flush()

    await run_worker(lines, emit)


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:  # Windows
        asyncio.run(_main())
    else:
        uvloop.run(_main())
