"""`ariane replay`: resends messages of an archive, of a dead-letter topic, or of any other topic."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.options import paths as homes
from ariane.cli.options import shared_options
from ariane.cli.options.access_options import AccessOptions
from ariane.cli.options.option_kinds import flag_option, path_option, text_option, topic_option
from ariane.cli.options.rate_options import parse_rate
from ariane.cli.options.time_options import StoreTimeOptions
from ariane.cli.servers.process import signals
from ariane.errors import ArianeError, UsageError
from ariane.model.quantities import count_text
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from ariane.client.instance.client_instance import ClientInstance
    from ariane.cluster.messages.replay import OriginalMessage, ReplayResult
    from ariane.reports.replay.replay_source import ReplayFilter

PREVIEW_MESSAGES = 5  # shown by --dry-run
PROGRESS_INTERVAL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """Options that select the messages to send, and the topic to send them to."""

    archive: Annotated[
        homes.OptionalHome,
        path_option(
            "--from", parser=homes.tables_home, metavar="DIR|URI", help="Home of an archive (`ariane archive run`)."
        ),
    ] = None
    from_topic: Annotated[
        str | None, topic_option(help="Source topic, for example %DLQ%GROUP; with --from, a topic of the archive.")
    ] = None
    topic: Annotated[str | None, topic_option(help="Target topic.  [default: the original topic of dead letters]")] = (
        None
    )
    times: StoreTimeOptions = field(default_factory=StoreTimeOptions)  # of the originals
    key: Annotated[
        str | None,
        text_option(metavar="KEY", help="Only messages with this business key.", panel=shared_options.FILTERS),
    ] = None
    where: Annotated[
        str | None,
        text_option(
            metavar="SQL",
            help="Only messages that match a SQL condition over the columns of the archive.",
            panel=shared_options.FILTERS,
        ),
    ] = None

    def check(self) -> None:
        """Raise UsageError if the source or the target is missing."""
        if self.archive is None and self.from_topic is None:
            raise UsageError("--from", None, "specify --from DIR (an archive), --from-topic TOPIC, or both")
        # Only messages of retry and dead-letter topics carry the name of their original topic.
        if self.topic is None and self.from_topic and not self.from_topic.startswith((DLQ_PREFIX, RETRY_PREFIX)):
            fix = f"missing; messages of {self.from_topic} have no original topic: specify the target topic"
            raise UsageError("--topic", None, fix)

    def parse(self) -> ReplayFilter:
        """Return the filter.

        Raises:
            UsageError: a time is invalid, or the range is empty.
        """
        from ariane.reports.replay.replay_source import ReplayFilter

        return ReplayFilter(self.from_topic, *self.times.parse(), self.key, self.where)

    def originals(self, selection: ReplayFilter, instance: ClientInstance) -> AsyncIterator[OriginalMessage]:
        """Yield the selected messages of the archive, or of the topic."""
        from ariane.reports.replay import replay_source

        if self.archive is None:
            return replay_source.topic_messages(instance.peers, instance.name_servers, selection)
        # The same rule as for `archive run`, so that --from takes the home that wrote the archive.
        return replay_source.archived_messages(homes.archive_dir(self.archive), selection)


def replay(
    *,
    namesrv: shared_options.NameServers = shared_options.NAMESRV_DEFAULT,
    source: SelectionOptions,
    rate: Annotated[str, typer.Option(metavar="RATE", help="Maximum rate, for example 500/s or 30/m.")] = "500/s",
    dry_run: Annotated[bool, flag_option("--dry-run", "Print what would be sent without sending it.")] = False,
    result: Annotated[
        Path | None,
        path_option(
            metavar="FILE",
            help="File for the outcome of each message (.parquet or .jsonl); the same file resumes a replay.",
        ),
    ] = None,
    access: AccessOptions,
) -> None:
    """Resend messages of an archive or a topic, at a limited rate.

    Writes the outcome of each message to a file. Delivery is at least once. Needs no Spark.
    """
    from ariane.client.instance.client_instance import ClientInstance
    from ariane.reports.replay.replay_result import SUFFIXES

    source.check()
    # Without the file an interrupted replay could only start over, and send everything twice.
    if not dry_run and result is None:
        fix = "missing; specify a file (.jsonl or .parquet) for the outcome of each message"
        raise UsageError("--result", None, fix)
    if result is not None and result.suffix not in SUFFIXES:
        raise UsageError("--result", str(result), f"expected a file name that ends in {' or '.join(SUFFIXES)}")
    selection = source.parse()
    per_second = parse_rate(rate)
    client = access.client_settings()

    async def resend() -> None:
        async with ClientInstance(namesrv, client) as instance:
            originals = source.originals(selection, instance)
            if dry_run:
                await _preview(originals, source.topic)
            else:
                assert result is not None
                await _send(originals, instance, source.topic, per_second, result)

    asyncio.run(resend())


async def _preview(originals: AsyncIterator[OriginalMessage], topic: str | None) -> None:
    """Print the first messages that would be sent, and how many go to each topic."""
    from ariane.cluster.messages.replay import build_message
    from ariane.errors import MessageRefused

    counts: Counter[str] = Counter()
    previewed = 0
    async for original in originals:
        try:
            message = build_message(original, topic, "")
        # Counted like the others, so that the preview adds up to the whole selection.
        except MessageRefused as error:
            counts[f"cannot be sent: {error}"] += 1
            continue
        counts[message.topic] += 1
        if previewed < PREVIEW_MESSAGES:
            previewed += 1
            details = f"keys {' '.join(message.keys) or '-'}  tag {message.tags or '-'}  {count_text(len(message.body), 'byte')}"
            source = "/".join(map(str, original.record_id))
            typer.echo(f"{source}  {original.message_id}  →  {message.topic}  {details}")
    if not counts:
        raise _no_match()
    for name, count in sorted(counts.items()):
        typer.echo(f"{count_text(count, 'message')}  →  {name}")
    typer.echo("Nothing sent (--dry-run).")


async def _send(
    originals: AsyncIterator[OriginalMessage],
    instance: ClientInstance,
    topic: str | None,
    per_second: float,
    result: Path,
) -> None:
    from ariane.cluster.messages.replay import ReplayResult
    from ariane.reports.replay.replay_result import replay_into

    printed_at_s = time.monotonic()

    def on_progress(done: ReplayResult) -> None:
        nonlocal printed_at_s
        if time.monotonic() - printed_at_s > PROGRESS_INTERVAL_S:
            printed_at_s = time.monotonic()
            typer.echo(_summary(done))

    with signals.loop_stop_event() as stop:
        done = await replay_into(
            result, originals, instance, topic=topic, rate=per_second, stop=stop, on_progress=on_progress
        )
    # An empty selection is usually a typing error, not a success.
    if done == ReplayResult(0, 0, 0, 0):
        raise _no_match()
    typer.echo(f"{_summary(done)}; outcomes in {result}")
    if done.stop_reason is not None or done.failed:
        reason = f"{done.stop_reason}: " if done.stop_reason else ""
        typer.echo(
            f"{reason}{count_text(done.failed + done.unsent, 'message')} not sent; run again with the same --result to retry them",
            err=True,
        )
        raise typer.Exit(1)


def _no_match() -> ArianeError:
    return ArianeError(
        "no message matches --from, --from-topic, --since, --until, --key and --where; widen the selection"
    )


def _summary(done: ReplayResult) -> str:
    earlier = f", {done.already_sent:,} already sent" if done.already_sent else ""
    return f"{done.ok:,} sent, {done.failed:,} failed, {done.unsent:,} unsent{earlier}"
