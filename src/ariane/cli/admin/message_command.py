"""`ariane message`: shows, searches, sends, resends and tracks messages of a running cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.admin.admin_session import AdminSession, ChangeSession, table
from ariane.cli.admin.topic_command import TopicName
from ariane.cli.options import shared_options
from ariane.cli.options.option_kinds import flag_option, group_option, number_option, text_option, topic_option
from ariane.cli.options.time_options import StoreTimeOptions, parse_duration_ms
from ariane.cli.output.help_format import create_app
from ariane.cli.output.message_table import clock_remarks, message_lines, message_table, time_text
from ariane.clock import SYSTEM_CLOCK, utc_of
from ariane.errors import UsageError
from ariane.model.quantities import count_text

if TYPE_CHECKING:
    from ariane.client.instance.send_types import SendResult
    from ariane.cluster.admin import Admin
    from ariane.cluster.messages.message_query import QueryResult
    from ariane.cluster.messages.message_search import MessageFilter
    from ariane.cluster.messages.message_tracking import DirectConsumption, MessageTrack, TraceRows, TracksResult
    from ariane.model.message import ReceivedMessage
    from ariane.reports.report import Table

app = create_app("Look up, send, resend and track messages.")

LIMIT = 20
LIMIT_MAX = 10_000

MessageId = Annotated[
    str, typer.Argument(parser=shared_options.non_blank, metavar="ID", help="Unique key or offset id of a message.")
]
TopicOfId = Annotated[
    str | None, topic_option("-t", "--topic", help="Topic of a unique key; all topics are searched without it.")
]
Limit = Annotated[int, number_option(minimum=1, maximum=LIMIT_MAX, help="Maximum number of messages, the newest.")]


@dataclass(frozen=True, kw_only=True)
class FilterOptions:
    """Options that select messages of a topic."""

    key: Annotated[
        str | None,
        text_option(metavar="KEY", help="Messages with this business key or unique key.", panel=shared_options.FILTERS),
    ] = None
    tag: Annotated[
        str | None, typer.Option(metavar="TAG", help="Messages with this tag.", rich_help_panel=shared_options.FILTERS)
    ] = None
    text: Annotated[
        str | None,
        text_option(metavar="TEXT", help="Messages whose body contains this text.", panel=shared_options.FILTERS),
    ] = None
    times: StoreTimeOptions = field(default_factory=StoreTimeOptions)

    def parse(self) -> MessageFilter:
        """Return the selection.

        Raises:
            UsageError: a time is invalid, or the range is empty.
        """
        from ariane.cluster.messages.message_search import MessageFilter

        since_ms, until_ms = self.times.parse()
        return MessageFilter(key=self.key, tag=self.tag, text=self.text, since_ms=since_ms, until_ms=until_ms)


@app.command(
    "show", "ariane message show 7F00000100002A139A5A3C0000000004", "ariane message show ID --topic orders --json"
)
def show(message_id: MessageId, *, topic: TopicOfId = None, session: AdminSession) -> None:
    """Print a message with its properties and body, and where copies of it are stored.

    Retries, dead letters and delayed messages have the unique key of the message that they are a copy of.
    """
    result = session.read(lambda admin: _find(admin, message_id, topic))
    copies = [
        f"Also stored in {copy.queue.topic}, {time_text(copy.store_ms)}: {copy.offset_message_id}"
        for copy in result.messages[1:]
    ]
    session.show(result.messages, *message_lines(result.messages[0]), *copies)
    session.finish(result.unavailable)


@app.command(
    "search",
    "ariane message search orders  # the newest messages",
    "ariane message search orders --key ORDER-17",
    "ariane message search orders --text refused --since 1h",
)
def search(
    topic: TopicName,
    *,
    filters: FilterOptions,
    limit: Limit = LIMIT,
    session: AdminSession,
) -> None:
    """List the newest messages of a topic that match.

    A key is looked up in an index. A tag or text is searched by reading all messages of the time range.
    """
    search_topic(session, topic, filters.parse(), limit)


def search_topic(
    session: AdminSession, topic: str, selection: MessageFilter, limit: int, *, is_dead_letter: bool = False
) -> None:
    """Print the newest messages of a topic that match, and how many are omitted."""
    result = session.read(lambda admin: admin.search(topic, selection, limit=limit))
    if not result.messages:
        remark = f"No messages of {topic} match.\n{_searched_range(selection)}"
    elif result.matching is None:
        remark = f"{count_text(len(result.messages), 'message')}; unknown how many more match."
    else:
        omitted = result.matching - len(result.messages)
        more = f"; {omitted:,} older omitted, raise --limit to see them" if omitted else ""
        remark = f"{count_text(len(result.messages), 'message')}{more}."
    tables = [message_table(result.messages, with_origin=is_dead_letter)] if result.messages else []
    session.show(result, *tables, remark, *clock_remarks(result.messages))
    session.finish(result.unavailable)


def _searched_range(selection: MessageFilter) -> str:
    """Return which store times were searched, and how to search all of them."""
    options = {"--since": selection.since_ms, "--until": selection.until_ms}
    given = [name for name, time_ms in options.items() if time_ms is not None]
    if not given:
        return "All store times were searched."
    begin = "the beginning" if selection.since_ms is None else time_text(selection.since_ms)
    end = "now" if selection.until_ms is None else time_text(selection.until_ms)
    return f"Searched: stored from {begin} to {end}.\nRemove {' and '.join(given)} to search all store times."


@app.command(
    "send",
    "ariane message send orders hello --key ORDER-17 --tag new",
    "ariane message send orders hello --delay 30m",
    "ariane message send orders hello --property source=cli --dry-run",
)
def send(
    topic: TopicName,
    body: Annotated[str, typer.Argument(parser=shared_options.non_blank, metavar="BODY", help="Body, as UTF-8.")],
    *,
    key: Annotated[list[str] | None, typer.Option(metavar="KEY", help="Business key; repeatable.")] = None,
    tag: Annotated[str, typer.Option(metavar="TAG", help="Tag.")] = "",
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="Property; repeatable.")
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Deliver after this time (30s, 1h); an Apache 4.x broker delivers immediately."
        ),
    ] = None,
    level: Annotated[int, number_option("--delay-level", minimum=0, help="Delay level, from 1.")] = 0,
    trace: Annotated[bool, flag_option("--trace", "Send a trace record, too.")] = False,
    session: ChangeSession,
) -> None:
    """Send one message to an existing topic. `ariane cat -P` sends many."""
    from ariane.model.message import Message

    deliver_at_ms = 0 if delay is None else SYSTEM_CLOCK.now_ms() + parse_duration_ms(delay, "--delay")
    if delay is not None and level:
        raise UsageError("--delay-level", str(level), "not together with --delay; specify one of them")
    message = Message(
        topic=topic,
        body=body.encode(),
        tags=tag,
        keys=key or (),
        properties=_properties(properties or []),
        delay_level=level,
        deliver_at_ms=deliver_at_ms,
    )
    result = session.run(lambda admin: admin.send_message(message, trace=trace))
    if result is not None:
        session.show(result, *_result_lines(result))


@app.command(
    "resend",
    "ariane message resend ID --dry-run",
    "ariane message resend ID --topic orders2",
    "ariane message resend ID --group billing  # to one group only",
)
def resend(
    message_id: MessageId,
    *,
    topic: Annotated[
        str | None,
        topic_option(
            "-t", "--topic", help="Target topic.  [default: topic of the message; of a dead letter, its original topic]"
        ),
    ] = None,
    group: Annotated[
        str | None,
        group_option(
            "-g", "--group", help="Let an online client of this group consume it now, instead of sending it to a topic."
        ),
    ] = None,
    client: Annotated[str | None, typer.Option(metavar="ID", help="With --group: this client.")] = None,
    session: ChangeSession,
) -> None:
    """Send a copy of a message to a topic, or let one consumer group consume it again.

    The copy has a new unique key; its property REPLAYED_FROM names the original.
    """
    if topic is not None and group is not None:
        raise UsageError("--topic", topic, "not together with --group; specify one of them")
    if client is not None and group is None:
        raise UsageError("--client", client, "needs --group")

    async def work(admin: Admin) -> SendResult | DirectConsumption | None:
        message = (await _find(admin, message_id, None)).messages[0]
        if group is None:
            return await admin.resend(message, topic)
        return await admin.consume_directly(message, group, client or await admin.find_client(message, group))

    result = session.run(work)
    if result is None:
        return
    from ariane.cluster.messages.message_tracking import DirectConsumption

    if not isinstance(result, DirectConsumption):
        session.show(result, *_result_lines(result))
        return
    reason = f": {result.remark}" if result.remark else ""
    session.show(result, f"Consumed by {group} in {result.spent_time_mills} ms: {result.consume_result}{reason}")
    if not result.is_success:
        raise typer.Exit(1)


@app.command("track", "ariane message track 7F00000100002A139A5A3C0000000004", "ariane message track ID --json")
def track(message_id: MessageId, *, topic: TopicOfId = None, session: AdminSession) -> None:
    """Print which consumer groups have consumed a message.

    The state is inferred from the offsets of the groups. If the clients send traces, these are printed, too.
    """

    async def work(admin: Admin) -> tuple[ReceivedMessage, TracksResult, TraceRows]:
        from ariane.cluster.messages.message_tracking import TraceRows
        from ariane.errors import RouteNotFound

        message = (await _find(admin, message_id, topic)).messages[0]
        try:
            traces = await admin.query_trace(message.message_id)
        except RouteNotFound:  # no trace topic
            traces = TraceRows([])
        return message, await admin.track(message), traces

    message, tracks, traces = session.read(work)
    parts: list[Table | str] = [f"{message.message_id} in {message.queue.topic}, {time_text(message.store_ms)}"]
    parts += [_track_table(tracks.tracks)] if tracks.tracks else ["No consumer group is online or has offsets."]
    parts += [_trace_table(traces), "Times of traces are by the clients' clocks."] if traces.rows else []
    data = {
        "messageId": message.message_id,
        "topic": message.queue.topic,
        "groups": tracks.tracks,
        "trace": traces.rows,
    }
    session.show(data, *parts)
    session.finish({*tracks.unavailable, *traces.unavailable})


async def _find(admin: Admin, message_id: str, topic: str | None) -> QueryResult:
    result = await admin.find_messages(message_id, topic)
    if result.first is None:
        raise result.not_found("message", message_id)
    return result


def _properties(texts: list[str]) -> dict[str, str]:
    table = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not name or not sign:
            raise UsageError("--property", text, "expected NAME=VALUE")
        table[name] = value
    return table


def _result_lines(result: SendResult) -> list[str]:
    queue = result.queue
    return [
        f"Stored in {queue.topic}, queue {queue.queue_id} on {queue.broker}, offset {result.queue_offset}:"
        f" {result.status.name}",
        f"  unique key  {result.message_id}",
        f"  offset id   {result.offset_message_id}",
    ]


def _track_table(tracks: list[MessageTrack]) -> Table:
    from ariane.cluster.messages.message_tracking import TrackState

    # Why a group is not online needs no reason.
    reasons = [track.reason or "" if track.state is TrackState.UNKNOWN else "" for track in tracks]
    rows = tuple((track.group, track.state.value, reason) for track, reason in zip(tracks, reasons, strict=True))
    names = ("group", "state", "reason") if any(reasons) else ("group", "state")
    return table(names, (row[: len(names)] for row in rows))


def _trace_table(traces: TraceRows) -> Table:
    from ariane.reports.report import Column, Table

    columns = (
        Column("event"),
        Column("group"),
        Column("client"),
        Column("time (UTC)"),
        Column("took", "ms"),
        Column("outcome"),
    )
    rows = tuple(
        (
            "sent" if row.kind == "Pub" else "consumed",
            row.group,
            row.client_host,
            None if row.time_ms is None else utc_of(row.time_ms),
            row.cost_ms,
            "ok" if row.is_success else "failed",
        )
        for row in traces.rows
    )
    return Table("", columns, rows)
