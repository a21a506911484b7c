"""`ariane replay`: send messages of an archive, of a dead-letter topic, or of any other once more."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli import auth_options, shared_options, signals
from ariane.cli import paths as homes
from ariane.cli.time_options import parse_time
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import ArianeError, UsageError
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from ariane.client.client_instance import ClientInstance
    from ariane.cluster.replay import OriginalMessage, ReplayResult
    from ariane.reports.replay_source import ReplayFilter

RATE_MAX = 1e9  # more than any cluster takes
SHOWN = 5  # messages that a dry run shows


def replay(
    namesrv: shared_options.NameServers = shared_options.NAMESRV_DEFAULT,
    archive: Annotated[
        Path | None, typer.Option("--from", parser=shared_options.local_path, metavar="DIR", help="Home of an archive.")
    ] = None,
    from_topic: Annotated[
        str | None,
        typer.Option(
            parser=shared_options.topic_name,
            metavar="TOPIC",
            help="Topic to read, such as %DLQ%group; with --from: that topic of the archive.",
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            parser=shared_options.topic_name,
            metavar="TOPIC",
            help="Topic to send to. Default for dead letters: the topic they were first sent to.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stored since: how long ago (15m, 2d), or a time in UTC (2026-11-21T10:00)."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Stored before this time.")] = None,
    key: Annotated[
        str | None,
        typer.Option(parser=shared_options.some_text, metavar="KEY", help="Only messages with this business key."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            parser=shared_options.some_text,
            metavar="SQL",
            help="Only messages that match: a condition over the archive's columns.",
        ),
    ] = None,
    rate: Annotated[str, typer.Option(metavar="N/s", help="Maximum rate: 500/s, 30/m.")] = "500/s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be sent, send nothing.")] = False,
    result: Annotated[
        Path | None,
        typer.Option(
            parser=shared_options.local_path,
            metavar="FILE",
            help="Outcome of each message, .parquet or .jsonl; a replay with the same file resumes.",
        ),
    ] = None,
    access_key: auth_options.AccessKey = "",
    secret_key: auth_options.SecretKey = "",
) -> None:
    """Send messages again, with a rate limit and a result for each. At least once; needs no Spark."""
    from ariane.client.client_instance import ClientInstance
    from ariane.reports.replay_result import SUFFIXES
    from ariane.reports.replay_source import ReplayFilter

    if archive is None and from_topic is None:
        raise UsageError("--from", None, "give --from DIR (an archive), --from-topic TOPIC, or both")
    if topic is None and from_topic is not None and not from_topic.startswith((DLQ_PREFIX, RETRY_PREFIX)):
        raise UsageError("--topic", None, f"name the topic to send to: messages of {from_topic} name no other")
    if not dry_run and result is None:
        raise UsageError("--result", None, "name a file for the outcome of each message, .jsonl or .parquet")
    if result is not None and result.suffix not in SUFFIXES:
        raise UsageError("--result", str(result), f"name a file that ends in {' or '.join(SUFFIXES)}")
    now_ms = SYSTEM_CLOCK.now_ms()
    since_ms = None if since is None else parse_time(since, now_ms, "--since")
    until_ms = None if until is None else parse_time(until, now_ms, "--until")
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise UsageError("--since", since, f"is not before --until {until}")
    if archive is not None:
        archive = homes.archive_dir(archive)
    wanted = ReplayFilter(from_topic, since_ms, until_ms, key, where)
    per_second = parse_rate(rate)
    client = auth_options.client_settings(access_key, secret_key)

    async def work() -> None:
        async with ClientInstance(namesrv, client) as instance:
            if dry_run:
                await _show(_originals(archive, wanted, instance), topic)
            else:
                assert result is not None
                await _send(_originals(archive, wanted, instance), instance, topic, per_second, result)

    asyncio.run(work())


def parse_rate(text: str) -> float:
    """Messages a second, of `500/s`, `500`, `30/m`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/(s|m))?", text.strip())
    if found is None or not 0 < float(found[1]) <= RATE_MAX:
        shown = text if len(text) <= shared_options.NAME_MAX else f"{text[:40]}…"
        raise UsageError("--rate", shown, "expected messages per second, such as 500/s, or per minute, such as 30/m")
    return float(found[1]) / (60 if found[2] == "m" else 1)


def _originals(archive: Path | None, wanted: ReplayFilter, instance: ClientInstance) -> AsyncIterator[OriginalMessage]:
    from ariane.reports import replay_source

    if archive is not None:
        return replay_source.archived_messages(archive, wanted)
    return replay_source.topic_messages(instance.peers, instance.name_servers, wanted)


async def _show(originals: AsyncIterator[OriginalMessage], topic: str | None) -> None:
    """What would be sent: how many to which topic, and the first few."""
    from ariane.cluster.replay import build_message
    from ariane.errors import MessageRefused

    to: dict[str, int] = {}
    shown = 0
    async for one in originals:
        try:
            message = build_message(one, topic, "")
        except MessageRefused as error:
            to[f"cannot be sent: {error}"] = to.get(f"cannot be sent: {error}", 0) + 1
            continue
        to[message.topic] = to.get(message.topic, 0) + 1
        if shown < SHOWN:
            shown += 1
            about = f"keys {' '.join(message.keys) or '-'}  tag {message.tags or '-'}  {len(message.body):,} bytes"
            typer.echo(f"{'/'.join(map(str, one.record_id))}  {one.message_id}  →  {message.topic}  {about}")
    if not to:
        raise _nothing()
    for name, count in sorted(to.items()):
        typer.echo(f"{count:,} messages  →  {name}")
    typer.echo("nothing was sent (--dry-run)")


async def _send(
    originals: AsyncIterator[OriginalMessage],
    instance: ClientInstance,
    topic: str | None,
    per_second: float,
    result: Path,
) -> None:
    from ariane.cluster.replay import ReplayResult
    from ariane.reports.replay_result import replay_into

    told_s = time.monotonic()

    def tell(done: ReplayResult) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > 1:
            told_s = time.monotonic()
            typer.echo(_said(done))

    with signals.loop_stop_event() as stop:
        done = await replay_into(result, originals, instance, topic=topic, rate=per_second, stop=stop, on_progress=tell)
    if done == ReplayResult(0, 0, 0, 0):
        raise _nothing()
    typer.echo(f"{_said(done)}; each in {result}")
    if done.stop_reason is not None or done.failed:
        why = f"{done.stop_reason}: " if done.stop_reason else ""
        typer.echo(f"{why}{done.failed + done.unsent:,} were not sent; run it again with the same --result", err=True)
        raise typer.Exit(1)


def _nothing() -> ArianeError:
    return ArianeError("no message matches --from, --from-topic, --since, --until, --key and --where")


def _said(done: ReplayResult) -> str:
    earlier = f", {done.already_sent:,} were sent before" if done.already_sent else ""
    return f"{done.ok:,} sent, {done.failed:,} failed, {done.unsent:,} unsent{earlier}"
