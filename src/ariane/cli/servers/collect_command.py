"""`ariane collect`: publishes statistics of all brokers, slaves included, to a topic for `ariane pipeline run lag`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ariane.cli.options import shared_options
from ariane.cli.options.access_options import AccessOptions
from ariane.cli.options.metrics_options import MetricsOptions
from ariane.cli.options.option_kinds import flag_option, number_option, seconds_option, text_option, topic_option
from ariane.cli.servers.process import signals
from ariane.clock import SYSTEM_CLOCK
from ariane.model.topic import SAMPLES_TOPIC

if TYPE_CHECKING:
    from ariane.metrics.collector_metrics import CollectorState
    from ariane.metrics_collector.publisher import PollingRound

LINE_INTERVAL_S = 60.0  # an unchanged state is printed this often


def _limit(items: str) -> Any:
    text = f"Maximum number of {items} per round; the others follow in later rounds."
    return number_option(minimum=1, help=text, panel="Load limits")


def collect(
    *,
    namesrv: shared_options.NameServers = shared_options.NAMESRV_DEFAULT,
    interval: Annotated[float, seconds_option(minimum=1, help="Seconds between rounds.")] = 5.0,
    topic: Annotated[str, topic_option(help="Topic for the samples; created if missing.")] = SAMPLES_TOPIC,
    name: Annotated[
        str | None, text_option(metavar="NAME", help="Name of this collector in the samples.  [default: host name]")
    ] = None,
    once: Annotated[bool, flag_option("--once", "Poll all brokers once, then exit.")] = False,
    topics_max: Annotated[int, _limit("topics per broker")] = 500,
    groups_max: Annotated[int, _limit("pairs of topic and group")] = 500,
    ages_max: Annotated[int, _limit("pairs whose oldest pending message is looked up")] = 50,
    metrics: MetricsOptions,
    access: AccessOptions,
) -> None:
    """Poll statistics of all brokers and publish them to a topic.

    Runs until SIGINT or SIGTERM. `ariane pipeline run lag` computes lag and TPS from the samples.
    """
    from ariane.cli.servers.process import public_http, run_server
    from ariane.metrics.collector_metrics import CollectorSource
    from ariane.metrics_collector.poller import PollLimits
    from ariane.metrics_collector.publisher import CollectorOptions, run_collector

    run_server.log_warnings()
    options = CollectorOptions(
        interval_s=interval,
        topic=topic,
        once=once,
        collector=name or "",
        limits=PollLimits(topics_max, groups_max, ages_max),
    )
    settings, http = access.client_settings(), public_http.metrics_port("collector", metrics)

    source = CollectorSource()
    status = CollectorStatus()

    def on_round(polled: PollingRound) -> None:
        status.on_round(polled)
        source.state = _metrics_state(source.state, polled)

    async def run() -> None:
        async with contextlib.AsyncExitStack() as background:
            stop = background.enter_context(signals.loop_stop_event())
            if http:
                await background.enter_async_context(public_http.serve_metrics(http, source, stop=stop.set))
            await run_collector(namesrv, options, settings=settings, on_round=on_round, stop=stop)

    asyncio.run(run())


def _metrics_state(before: CollectorState | None, polled: PollingRound) -> CollectorState:
    """Return the state for the metrics after a round."""
    from ariane.metrics.collector_metrics import CollectorState

    unavailable = len(polled.unavailable)
    return CollectorState(
        rounds=1 + (before.rounds if before else 0),
        at_ms=SYSTEM_CLOCK.now_ms(),
        responding=len(polled.samples) - unavailable,
        unavailable=unavailable,
        requests=sum(sample.requests for sample in polled.samples),
        pending=polled.pending,
        dropped=polled.dropped,
    )


class CollectorStatus:
    """Prints a line for the first round, for each change, and otherwise once a minute."""

    def __init__(self) -> None:
        self._previous: tuple[object, ...] | None = None  # state that was printed last; None before the first round
        self._printed_at_s = 0.0  # by the monotonic clock

    def on_round(self, polled: PollingRound) -> None:
        """Print the state after a round, if it is due."""
        samples, unavailable = polled.samples, polled.unavailable
        is_limited = any(any((sample.skipped.topics, sample.skipped.groups, sample.skipped.ages)) for sample in samples)
        state = (tuple(sorted(unavailable)), len(samples), is_limited, polled.error is None, polled.dropped)
        if state == self._previous and time.monotonic() - self._printed_at_s < LINE_INTERVAL_S:
            return
        self._previous, self._printed_at_s = state, time.monotonic()
        requests = sum(sample.requests for sample in samples)
        groups = len({group.group for sample in samples for group in sample.groups})
        line = f"{time.strftime('%H:%M:%S')} brokers {len(samples)}  groups {groups}  requests {requests:,}"
        typer.echo(line + ("  limit reached: the rest follows in the next rounds" if is_limited else ""))
        for broker, reason in sorted(unavailable.items()):
            typer.echo(f"         unavailable: {broker}: {reason}")
        if polled.error is not None:
            typer.echo(f"         {polled.pending:,} samples pending, {polled.dropped:,} dropped: {polled.error}")
