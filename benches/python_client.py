"""The Python client under one load, in a process of its own: the twin of `JavaClient.java`. Started by `client.py`.

    python benches/python_client.py sends NAMESRV topic=T in_flight=64 warm=1 seconds=4 [trace=drop|block|spill]
    python benches/python_client.py paced NAMESRV topic=T rate=20000 seconds=5 trace=block trace_topic=R
    python benches/python_client.py consume NAMESRV topic=T count=200000 batch=1
    python benches/python_client.py fill NAMESRV topic=T count=200000

Prints its figures as a JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ariane import ConsumerSettings, Message, Producer, PushConsumer, TraceSettings
from ariane.cli.servers.process.run_server import run_loop
from ariane.model.message import ReceivedMessage

Options = dict[str, str]
Figures = dict[str, float]

BODY = b"x" * 128
BATCH = 32  # messages of a request that fills a topic
TICK_S = 0.002  # how often a paced load starts sends
CLOSE_S = 60  # for the traces that wait when the producer is closed


class Reading(NamedTuple):
    """Time and CPU time of this process."""

    at: float
    cpu_s: float

    @classmethod
    def now(cls) -> Reading:
        return cls(time.perf_counter(), time.process_time())

    def figures_until(self, end: Reading, messages: int) -> Figures:
        """Return rate and CPU time of messages that were processed from here to `end`."""
        return {"msg/s": messages / (end.at - self.at), "cpu us": (end.cpu_s - self.cpu_s) / messages * 1e6}


def trace_settings(options: Options, scratch: str) -> TraceSettings | bool:
    """Return the `trace` argument of a producer."""
    if "trace" not in options:
        return False
    topic = {"topic": options["trace_topic"]} if "trace_topic" in options else {}
    if options["trace"] == "spill":
        return TraceSettings(when_full="spill", spill_dir=scratch, close_timeout=CLOSE_S, **topic)
    when_full = "block" if options["trace"] == "block" else "drop"
    return TraceSettings(when_full=when_full, close_timeout=CLOSE_S, **topic)


async def sends(producer: Producer, options: Options) -> Figures:
    """Send with a number of sends in flight; measure after a warm-up."""
    topic, stop_at = options["topic"], 0.0
    latencies: list[float] = []

    async def one_after_another() -> None:
        while (began := time.perf_counter()) < stop_at:
            await producer.send(topic, BODY)
            latencies.append(time.perf_counter() - began)

    async def run(seconds: float) -> None:
        nonlocal stop_at
        stop_at = time.perf_counter() + seconds
        await asyncio.gather(*(one_after_another() for _ in range(int(options["in_flight"]))))

    await run(float(options["warm"]))
    latencies.clear()
    began = Reading.now()
    await run(float(options["seconds"]))
    figures = began.figures_until(Reading.now(), len(latencies))
    latencies.sort()
    at = {name: latencies[int(len(latencies) * share)] * 1000 for name, share in (("p50 ms", 0.5), ("p99 ms", 0.99))}
    return {**figures, **at}


async def paced(producer: Producer, options: Options) -> Figures:
    """Start sends at a rate, whatever the responses take; wait for all of them."""
    topic, rate = options["topic"], float(options["rate"])
    total = round(rate * float(options["seconds"]))
    pending: set[asyncio.Task[object]] = set()
    began, started = Reading.now(), 0
    while started < total:
        due = min(total, int((time.perf_counter() - began.at) * rate))
        for _ in range(started, due):
            task: asyncio.Task[object] = asyncio.ensure_future(producer.send(topic, BODY))
            pending.add(task)
            task.add_done_callback(pending.discard)
        started = max(started, due)
        await asyncio.sleep(TICK_S)
    await asyncio.gather(*pending)
    return {**began.figures_until(Reading.now(), total), "sent": total}


async def with_producer(
    load: Callable[[Producer, Options], Awaitable[Figures]], namesrv: str, options: Options
) -> Figures:
    """Run a load with a producer; closing it sends the traces that wait."""
    with tempfile.TemporaryDirectory() as scratch:
        group = f"bench-{time.time_ns()}"
        async with Producer(namesrv, group, trace=trace_settings(options, scratch)) as producer:
            figures = await load(producer, options)
        if producer.trace is None:
            return figures
        return {**figures, "dropped": producer.trace.dropped, "failed": producer.trace.failed}


async def consume(namesrv: str, options: Options) -> Figures:
    """Consume a backlog; measure from a fifth of it to nine tenths of it, when the first queues are empty."""
    count, received = int(options["count"]), 0
    first: Reading | None = None
    last: Reading | None = None
    done = asyncio.Event()

    async def listen(messages: list[ReceivedMessage]) -> None:
        nonlocal received, first, last
        received += len(messages)
        if first is None and received >= count * 0.2:
            first = Reading.now()
        if last is None and received >= count * 0.9:
            last = Reading.now()
            done.set()

    settings = ConsumerSettings(consume_batch_max=int(options["batch"]))
    async with PushConsumer(namesrv, f"bench-{time.time_ns()}", {options["topic"]: "*"}, listen, settings=settings):
        await done.wait()
    assert first is not None and last is not None
    return first.figures_until(last, round(count * 0.7))


async def fill(producer: Producer, options: Options) -> Figures:
    """Send a backlog in batches, which rotate over the queues."""
    began, count = Reading.now(), int(options["count"])
    batch = [Message(topic=options["topic"], body=BODY)] * BATCH
    for _ in range(count // BATCH):
        await producer.send_batch(batch)
    return began.figures_until(Reading.now(), count)


async def main() -> None:
    mode, namesrv, *rest = sys.argv[1:]
    options = dict(option.split("=", 1) for option in rest)
    if mode == "consume":
        figures = await consume(namesrv, options)
    else:
        figures = await with_producer({"sends": sends, "paced": paced, "fill": fill}[mode], namesrv, options)
    print(json.dumps(figures))


if __name__ == "__main__":
    run_loop(main())
