"""`ariane collect`: samples of all brokers, slaves included, to a topic, for `ariane pipeline run lag`."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ariane.cli import auth_options, shared_options, signals
from ariane.model.topic import SAMPLES_TOPIC

if TYPE_CHECKING:
    from ariane.metrics_collector.publisher import PollingRound

SAY_EVERY_S = 60.0


def _most(what: str) -> Any:
    text = f"Maximum number of {what} in one round; others take turns."
    return typer.Option(parser=shared_options.whole_number(1), metavar="N", help=text)


def collect(
    namesrv: shared_options.NameServers = shared_options.NAMESRV_DEFAULT,
    interval: Annotated[
        float, typer.Option(parser=shared_options.seconds(1), metavar="SECONDS", help="Time between rounds.")
    ] = 5.0,
    topic: Annotated[
        str,
        typer.Option(
            parser=shared_options.topic_name, metavar="TOPIC", help="Topic of the samples; created if missing."
        ),
    ] = SAMPLES_TOPIC,
    name: Annotated[
        str | None,
        typer.Option(
            parser=shared_options.some_text, metavar="NAME", help="Name in the samples. Default: the host's name."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Take one round of samples, then exit.")] = False,
    topics_max: Annotated[int, _most("topics of a broker")] = 500,
    groups_max: Annotated[int, _most("pairs of topic and group")] = 500,
    ages_max: Annotated[int, _most("pairs whose oldest message is looked up")] = 50,
    access_key: auth_options.AccessKey = "",
    secret_key: auth_options.SecretKey = "",
) -> None:
    """Sample all groups at all brokers to a topic. Runs until SIGINT or SIGTERM."""
    from ariane.metrics_collector.poller import PollLimits
    from ariane.metrics_collector.publisher import collect as collecting

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)-7s %(name)s  %(message)s")
    limits = PollLimits(topics_max, groups_max, ages_max)
    settings = auth_options.client_settings(access_key, secret_key)

    async def run() -> None:
        with signals.loop_stop_event() as stop:
            await collecting(
                namesrv,
                interval_s=interval,
                topic=topic,
                once=once,
                collector=name or "",
                limits=limits,
                settings=settings,
                on_round=CollectorStatus().say,
                stop=stop,
            )

    asyncio.run(run())


class CollectorStatus:
    """A line for the first round, for each in which something is otherwise than before, and for one in a minute."""

    def __init__(self) -> None:
        self._before: tuple[object, ...] | None = None
        self._at_s = 0.0

    def say(self, done: PollingRound) -> None:
        away = {f"{one.broker}/{one.broker_id}": one.away for one in done.samples if one.away is not None}
        full = any(any((one.left_out.topics, one.left_out.groups, one.left_out.ages)) for one in done.samples)
        now = (tuple(sorted(away)), len(done.samples), full, done.fault is None, done.lost)
        if now == self._before and time.monotonic() - self._at_s < SAY_EVERY_S:
            return
        self._before, self._at_s = now, time.monotonic()
        requests = sum(one.requests for one in done.samples)
        groups = len({group.group for one in done.samples for group in one.groups})
        line = f"{time.strftime('%H:%M:%S')} brokers {len(done.samples)}  groups {groups}  requests {requests:,}"
        typer.echo(line + ("  full: what had no turn comes in the next rounds" if full else ""))
        for broker, why in sorted(away.items()):
            typer.echo(f"         away: {broker}: {why}")
        if done.fault is not None:
            typer.echo(f"         {done.waiting:,} samples wait, {done.lost:,} are lost: {done.fault}")
