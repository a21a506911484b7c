"""`ariane bench`: measures throughput and latency of a cluster, of Ariane or Apache. Modelled on `nats bench`.

exit status   0 every message was sent and arrived   1 a message failed   2 invalid command line   130 interrupted by Ctrl-C
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.options import shared_options
from ariane.cli.options.access_options import AccessOptions
from ariane.cli.options.option_kinds import number_option, topic_option
from ariane.cli.options.rate_options import parse_rate
from ariane.cli.servers.process import signals
from ariane.errors import UsageError

if TYPE_CHECKING:
    from ariane.bench.bench_plan import BenchPlan
    from ariane.bench.bench_run import BenchResult, OnProgress

MODES = ("send", "consume", "both", "request")
METHODS = ("sync", "async", "batch", "one-way")
TOPIC = "ariane-bench"
SIZE_MAX = 4 * 1024 * 1024  # of a body; brokers accept no more by default
CLIENTS_MAX = 256
MESSAGES_MAX = 1_000_000_000
IN_FLIGHT_MAX = 4_096
BATCH_MAX = 10_000
QUEUES_MAX = 1_024
WARM_UP_SHARE, WARM_UP_MAX = 10, 20_000  # by default a tenth of the messages, at most this many per client
IN_FLIGHT = {"send": 256, "both": 256, "request": 64}
BATCHES_IN_FLIGHT = 8
_SIZE = re.compile(r"(\d{1,9})([kKmM]?)")


def parse_size(text: object) -> int:
    """Return the bytes of `128`, `4k` or `1m`."""
    match = _SIZE.fullmatch(str(text).strip())
    size = int(match[1]) * {"": 1, "k": 1024, "m": 1024 * 1024}[match[2].lower()] if match else 0
    if not 1 <= size <= SIZE_MAX:
        raise typer.BadParameter(f"{str(text)!r}: expected bytes from 1 to {SIZE_MAX} (128, 4k, 1m).")
    return size


def choice(*choices: str) -> Callable[[object], str]:
    """Return a parser that accepts one of some words."""

    def parse(text: object) -> str:
        if str(text) not in choices:
            raise typer.BadParameter(f"{str(text)!r}: expected {', '.join(choices[:-1])} or {choices[-1]}.")
        return str(text)

    return parse


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What a benchmark sends and consumes."""

    topic: Annotated[str, topic_option("-t", "--topic", help="Topic; created if it is missing.")] = TOPIC
    queues: Annotated[
        int | None,
        number_option(
            minimum=1, maximum=QUEUES_MAX, help="Queues per broker of the topic.  [default: 8 if it is created]"
        ),
    ] = None
    messages: Annotated[
        int,
        number_option("-c", "--messages", minimum=2, maximum=MESSAGES_MAX, help="Number of messages over all clients."),
    ] = 100_000
    size: Annotated[
        int, typer.Option("-s", "--size", parser=parse_size, metavar="BYTES", help="Size of each body (128, 4k, 1m).")
    ] = 128
    method: Annotated[
        str,
        typer.Option(
            "-m",
            "--method",
            parser=choice(*METHODS),
            metavar="METHOD",
            help="How to send: sync (one after another), async (pipelined), batch, or one-way (without responses).",
        ),
    ] = "async"
    in_flight: Annotated[
        int | None,
        number_option(
            minimum=1,
            maximum=IN_FLIGHT_MAX,
            help="Sends of a client that wait for responses.  [default: 256; batches 8, requests 64]",
        ),
    ] = None
    batch: Annotated[
        int | None,
        number_option(minimum=2, maximum=BATCH_MAX, help="Messages per batch, with --method batch.  [default: 32]"),
    ] = None
    clients: Annotated[
        int,
        number_option(
            minimum=1, maximum=CLIENTS_MAX, help="Senders, requesters, or in mode consume consumers; each is a process."
        ),
    ] = 1
    consumers: Annotated[
        int | None,
        number_option(
            minimum=1, maximum=CLIENTS_MAX, help="Consumers (mode both) or repliers (mode request).  [default: 1]"
        ),
    ] = None
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Send at this rate (500/s, 30/m) instead of as fast as possible; latency counts from when a message is due.",
        ),
    ] = None
    warm_up: Annotated[
        int | None,
        number_option(
            minimum=0,
            maximum=MESSAGES_MAX,
            help=f"First messages that are not measured.  [default: a tenth, at most {WARM_UP_MAX:,} per client]",
        ),
    ] = None

    def plan(self, mode: str, namesrv: str, access: AccessOptions) -> BenchPlan:
        """Return the plan of a benchmark.

        Raises:
            UsageError: an option has no effect with the others, or contradicts them.
        """
        from ariane.bench.bench_plan import BenchMode, BenchPlan, SendMethod

        self._check_combination(mode)
        warm_up = min(self.messages // WARM_UP_SHARE, WARM_UP_MAX * self.clients)
        if self.warm_up is not None:
            warm_up = self.warm_up
            if warm_up >= self.messages:
                raise UsageError("--warm-up", warm_up, f"expected fewer than --messages {self.messages}")
        default_in_flight = BATCHES_IN_FLIGHT if self.method == "batch" else IN_FLIGHT.get(mode, 1)
        plan = BenchPlan(
            mode=BenchMode(mode),
            namesrv=namesrv,
            topic=self.topic,
            group=f"bench-{self.topic}",
            run_id=secrets.token_hex(8),
            messages=self.messages,
            warm_up=warm_up,
            size=self.size,
            method=SendMethod(self.method),
            in_flight=self.in_flight or default_in_flight,
            batch=self.batch or 32,
            rate=None if self.rate is None else parse_rate(self.rate),
            clients=self.clients,
            consumers=self.consumers or 1,
            **vars(access),
        )
        _check_sizes(plan)
        return plan

    def _check_combination(self, mode: str) -> None:
        """Raise UsageError for an option that has no effect with the others."""
        if mode == "consume":
            for name, value in (("--rate", self.rate), ("--in-flight", self.in_flight)):
                if value is not None:
                    raise UsageError(name, value, "has no effect in mode consume")
        if mode in ("consume", "request") and self.method != "async":
            raise UsageError("--method", self.method, f"has no effect in mode {mode}")
        if self.batch is not None and self.method != "batch":
            raise UsageError("--batch", self.batch, "requires --method batch")
        if self.in_flight is not None and self.method in ("sync", "one-way"):
            raise UsageError("--in-flight", self.in_flight, f"cannot be combined with --method {self.method}")
        if self.consumers is not None and mode in ("send", "consume"):
            fix = "use --clients" if mode == "consume" else "requires mode both or request"
            raise UsageError("--consumers", self.consumers, fix)


def bench(
    mode: Annotated[
        str,
        typer.Argument(
            parser=choice(*MODES),
            metavar="MODE",
            help="What to measure: send; consume (messages that are stored already); both (at the same time, with the "
            "latency from sender to consumer); request (requests and replies).",
        ),
    ],
    load: LoadOptions,
    *,
    as_json: shared_options.AsJson = False,
    namesrv: shared_options.NameServers = shared_options.NAMESRV_DEFAULT,
    access: AccessOptions,
) -> None:
    """Measure throughput and latency of a cluster.

    Exit status: 0 every message was sent and arrived; 1 a message failed; 130 Ctrl-C.
    """
    _run(load.plan(mode, namesrv, access), load.queues, as_json=as_json)


def _check_sizes(plan: BenchPlan) -> None:
    from ariane.bench.bench_body import STAMP_BYTES
    from ariane.bench.bench_plan import SendMethod
    from ariane.model.topic import group_name_fault

    if plan.has_stamps and plan.size < STAMP_BYTES:
        raise UsageError("--size", plan.size, f"expected at least {STAMP_BYTES} in mode both, for the time of sending")
    if plan.method is SendMethod.BATCH and plan.size * plan.batch > SIZE_MAX:
        raise UsageError(
            "--batch", plan.batch, f"times --size {plan.size} exceeds {SIZE_MAX:,} bytes; reduce one of them"
        )
    if plan.clients > plan.messages:
        raise UsageError("--clients", plan.clients, f"expected at most --messages {plan.messages}")
    if fault := group_name_fault(plan.group):
        raise UsageError("--topic", plan.topic, fault)


def _run(plan: BenchPlan, queues: int | None, *, as_json: bool) -> None:
    from ariane.bench.bench_run import BenchRun
    from ariane.cli.messages import bench_output
    from ariane.cli.servers.process import run_server

    def print_note(text: str) -> None:
        typer.echo(f"Note: {text}", err=True)

    async def work() -> tuple[BenchResult, int]:
        with signals.loop_stop_signal() as stop, _progress() as on_progress:
            run = BenchRun(plan, queues=queues, on_progress=on_progress, on_note=print_note, stop=stop.event)
            return await run.run(), stop.exit_status

    result, status = run_server.run_loop(work())
    if as_json:
        typer.echo(bench_output.result_json(result))
    else:
        for line in bench_output.result_lines(result):
            typer.echo(line)
    typer.echo(bench_output.cleanup_line(result), err=True)
    if status or not result.is_successful:
        raise typer.Exit(status or 1)


@contextlib.contextmanager
def _progress() -> Iterator[OnProgress]:
    """Provide what shows the progress on standard error: a bar in a terminal, otherwise a line every few seconds."""
    from rich.console import Console

    from ariane.cli.messages.bench_output import ProgressBar, ProgressLines

    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal:
        yield ProgressLines()
        return
    from rich.live import Live

    # Transient: the result replaces the bar.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield ProgressBar(live)
