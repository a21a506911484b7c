"""Prints the progress and the result of `ariane bench`, as text for 80 columns or as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import typer

from ariane.bench.bench_plan import BenchMode, BenchPlan, Role, SendMethod
from ariane.bench.bench_run import BenchProgress, BenchResult
from ariane.bench.environment import BrokerFacts
from ariane.bench.measurements import LatencyHistogram, Throughput
from ariane.cli.output.value_format import format_number
from ariane.model.quantities import count_text

if TYPE_CHECKING:
    from rich.live import Live

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)
SHOWN_PERCENTILES = (50.0, 90.0, 99.0, 99.9)
LINE_INTERVAL_S = 10.0  # between two lines of progress where standard error is not a terminal
BAR_WIDTH = 20
MIB = 1024 * 1024


# --- progress ---


class ProgressLines:
    """Prints a line of progress every LINE_INTERVAL_S, for pipes and log files."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._printed_s = monotonic()

    def __call__(self, progress: BenchProgress) -> None:
        """Print the state if it is time."""
        if self._monotonic() - self._printed_s >= LINE_INTERVAL_S:
            self._printed_s = self._monotonic()
            typer.echo(progress_text(progress), err=True)


class ProgressBar:
    """Redraws one line in a terminal."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._rates = ProgressRate()

    def __call__(self, progress: BenchProgress) -> None:
        """Draw the state."""
        from rich.text import Text

        done = _main_count(progress)
        filled = min(BAR_WIDTH, done * BAR_WIDTH // max(1, progress.total))
        rate = self._rates.update(done, time.monotonic())
        text = f"{'█' * filled}{'░' * (BAR_WIDTH - filled)}  {progress_text(progress)}"
        line = text if rate is None else f"{text}  {rate:,.0f}/s"
        self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)


class ProgressRate:
    """Messages per second over the last seconds."""

    WINDOW_S = 3.0

    def __init__(self) -> None:
        self._samples: list[tuple[float, int]] = []

    def update(self, count: int, now_s: float) -> float | None:
        """Add a count. Return the rate; None until it is known."""
        self._samples.append((now_s, count))
        while len(self._samples) > 2 and now_s - self._samples[0][0] > self.WINDOW_S:
            self._samples.pop(0)
        first_s, first = self._samples[0]
        return (count - first) / (now_s - first_s) if now_s > first_s else None


def progress_text(progress: BenchProgress) -> str:
    """Return the state in one line."""
    parts = []
    if progress.sent is not None:
        parts.append(f"sent {progress.sent:,}")
    if progress.received is not None:
        parts.append(f"received {progress.received:,}")
    text = f"{', '.join(parts)} of {progress.total:,}"
    return f"{text}, {progress.failed:,} failed" if progress.failed else text


def _main_count(progress: BenchProgress) -> int:
    return progress.sent if progress.sent is not None else progress.received or 0


# --- text ---


def result_lines(result: BenchResult) -> Iterator[str]:
    """Yield the result as text."""
    plan, host = result.plan, result.host
    yield f"{plan.mode.value} · topic {plan.topic} · {count_text(result.queues, 'queue')}"
    load = "unknown" if host.load_average is None else host.load_average
    memory = "" if host.memory_bytes is None else f", {host.memory_bytes / (1 << 30):.1f} GiB"
    yield f"host    {host.name}: {host.cpus} CPUs{memory}, load {load}, {host.system}"
    yield f"        {host.cpu_model}"
    yield f"client  ariane {host.ariane}, {host.python}"
    for broker in result.brokers:
        yield f"broker  {broker.name} {broker.addr}: {_software(broker)}, {broker.flush_mode}, {broker.role}"
        for error in broker.errors:
            yield f"        unknown: {error}"
    yield f"load    {_clients(plan)}"
    yield f"        {_messages(plan)}"
    yield ""
    yield from _table(result)
    yield from _remarks(result)


def _clients(plan: BenchPlan) -> str:
    if plan.mode is BenchMode.CONSUME:
        return count_text(plan.clients, "consumer")
    name = "requester" if plan.mode is BenchMode.REQUEST else "sender"
    parts = [f"{count_text(plan.clients, name)}, {_method(plan)}"]
    if plan.mode is BenchMode.BOTH:
        parts.append(count_text(plan.consumers, "consumer"))
    if plan.mode is BenchMode.REQUEST:
        parts.append(count_text(plan.consumers, "replier"))
    return "; ".join(parts)


def _messages(plan: BenchPlan) -> str:
    counts = f"{count_text(plan.messages, 'message')}, {plan.warm_up:,} of them warm-up"
    if plan.mode is BenchMode.CONSUME:
        return counts
    rate = "as fast as possible" if plan.rate is None else f"{plan.rate:,.10g} messages/s"
    return f"{counts}; {count_text(plan.size, 'byte')}, {rate}"


def _method(plan: BenchPlan) -> str:
    if plan.mode is BenchMode.REQUEST:
        return f"{plan.in_flight} in flight each"
    if plan.method is SendMethod.ASYNC:
        return f"async, {plan.in_flight} in flight each"
    if plan.method is SendMethod.BATCH:
        return f"batches of {plan.batch}, {plan.in_flight} in flight each"
    return plan.method.value


def _table(result: BenchResult) -> Iterator[str]:
    columns = [f"P{percent:g}" for percent in SHOWN_PERCENTILES]
    yield f"{'':8}{'MESSAGES':>11}{'/S':>9}{'MIB/S':>8}" + "".join(f"{name:>8}" for name in (*columns, "MAX")) + " MS"
    for throughput in result.throughputs:
        rate = "-" if throughput.messages_per_s is None else f"{throughput.messages_per_s:,.0f}"
        volume = "-" if throughput.bytes_per_s is None else f"{throughput.bytes_per_s / MIB:.1f}"
        values = [throughput.latency.percentile(percent) for percent in SHOWN_PERCENTILES]
        values.append(throughput.latency.max_ms if throughput.latency.count else None)
        latencies = "".join(f"{'-' if value is None else format_number(value, 'latency'):>8}" for value in values)
        messages = throughput.completed if throughput.role == Role.REPLY else throughput.messages
        yield f"{throughput.role:8}{messages:>11,}{rate:>9}{volume:>8}{latencies}"


def _remarks(result: BenchResult) -> Iterator[str]:
    """Yield what the figures of the table mean, and everything that did not succeed."""
    plan = result.plan
    yield ""
    for throughput in result.throughputs:
        if meaning := latency_meaning(plan, throughput):
            yield f"{throughput.role}: {meaning}"
    for throughput in result.throughputs:
        for status, count in sorted(throughput.late_statuses.items()):
            yield f"{throughput.role}: {count_text(count, 'message')} stored, but {status}"
        if throughput.duplicates:
            yield f"{throughput.role}: {count_text(throughput.duplicates, 'message')} arrived more than once"
        for kind, entry in sorted(throughput.errors.kinds.items(), key=lambda item: -item[1].count):
            yield f"{throughput.role}: {entry.count:,} failed: {kind}: {entry.example}"
    if result.missing:
        yield f"{count_text(result.missing, 'message')} did not arrive"
    for error in result.worker_errors:
        yield f"no measurements: {error}"
    if result.is_interrupted:
        yield "Interrupted: these are the measurements until then."


def latency_meaning(plan: BenchPlan, throughput: Throughput) -> str | None:
    """Return from when to when latencies are measured; None if there are none."""
    if not throughput.latency.count:
        if plan.method is SendMethod.ONE_WAY and throughput.role == Role.SEND:
            return "written to the connection; latencies are unknown without responses"
        return None
    start = "the call" if plan.rate is None else "when it was due (--rate)"
    if throughput.role == Role.CONSUME:
        return f"latency from {start} to the listener of the consumer"
    unit = "batch" if plan.method is SendMethod.BATCH and throughput.role == Role.SEND else "message"
    end = "reply" if throughput.role == Role.REQUEST else "acknowledgement"
    return f"latency of a {unit} from {start} to the {end}"


def cleanup_line(result: BenchResult) -> str:
    """Return how to remove what the benchmark leaves in the cluster."""
    clusters = sorted({broker.cluster for broker in result.brokers if broker.cluster}) or ["CLUSTER"]
    commands = [
        f"ariane admin deleteTopic -n '{result.plan.namesrv}' -c {name} -t {result.plan.topic}" for name in clusters
    ]
    if result.plan.mode is not BenchMode.SEND:
        commands += [
            f"ariane admin deleteSubGroup -n '{result.plan.namesrv}' -c {name} -g {result.plan.group}"
            for name in clusters
        ]
    return "To remove what this benchmark left:\n" + "\n".join(f"  {command}" for command in commands)


def _software(broker: BrokerFacts) -> str:
    if broker.is_ariane is None:
        return broker.version
    return f"{'Ariane' if broker.is_ariane else 'Apache'} {broker.version}"


# --- JSON ---


def result_json(result: BenchResult) -> str:
    """Return the result as one JSON object."""
    import msgspec

    fields = msgspec.to_builtins(result)
    for name in ("access_key", "secret_key", "tls_ca_file", "tls_cert_file", "tls_key_file", "tls_key_password_file"):
        fields["plan"].pop(name)
    fields["failed"] = result.failed
    for values, throughput in zip(fields["throughputs"], result.throughputs, strict=True):
        values["latency"] = _latency_fields(throughput.latency)
        values["latency_meaning"] = latency_meaning(result.plan, throughput)
        values["errors"] = values["errors"]["kinds"]
    return json.dumps(fields, ensure_ascii=False)


def _latency_fields(latency: LatencyHistogram) -> dict[str, Any] | None:
    if not latency.count:
        return None
    values = {f"p{percent:g}_ms": latency.percentile(percent) for percent in PERCENTILES}
    return {
        "count": latency.count, "min_ms": latency.min_ms, "mean_ms": latency.mean_ms, **values, "max_ms": latency.max_ms,
    }  # fmt: skip
