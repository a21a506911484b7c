"""`ariane cat`: sends standard input to a topic, or prints a topic. Modelled on kcat.

exit status   0 success   1 a message was not sent, or a server failed   2 invalid command line
              130 interrupted by Ctrl-C   141 (SIGPIPE) the reader of the output has closed the pipe   143 terminated
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ariane.cli.options import access_options, queue_selection, shared_options
from ariane.cli.options.option_kinds import group_option, number_option, text_option
from ariane.cli.options.time_options import parse_time
from ariane.cli.servers import signals
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import FilterError, UsageError
from ariane.model.quantities import count_text

if TYPE_CHECKING:
    from ariane.cli.messages.cat_consume import Anchor, ConsumePlan
    from ariane.cli.messages.cat_produce import InputFormat, SendReport
    from ariane.cli.messages.message_format import Formatter
    from ariane.cli.messages.message_input import MessageTemplate
    from ariane.client.consuming.subscriptions import Sql
    from ariane.client.instance.settings import ClientSettings

PRODUCER_GROUP = "ariane-cat"
IN_FLIGHT = 64
IN_FLIGHT_MAX = 4_096
DELAY_LEVEL_MAX = 127
PRODUCE, CONSUME = "Options with -P", "Options without -P"


def parse_offset(text: object) -> Anchor | int:
    """Return the start offset of `beginning`, `end`, `4120` or `-10`."""
    from ariane.cli.messages.cat_consume import Anchor

    value = str(text)
    try:
        return Anchor(value)
    except ValueError:
        digits = value.removeprefix("-")
        if digits.isascii() and digits.isdigit() and 0 < len(digits) <= 18 and value != "-0":
            return int(value)
    raise typer.BadParameter(f"{value!r}: expected beginning, end, an offset (4120) or a number from the end (-10).")


def cat(
    topic: Annotated[str, typer.Argument(parser=shared_options.topic_name, metavar="TOPIC", help="Name of the topic.")],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="Files to send, with -P; - is standard input.")
    ] = None,
    produce: Annotated[bool, typer.Option("-P", "--produce", help="Send standard input or files.")] = False,
    count: Annotated[
        int | None, number_option("-c", "--count", minimum=1, help="Exit after this number of messages.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("-J", "--json", help="Print or read one JSON object per line; its output can be sent again.")
    ] = False,
    delimiter: Annotated[
        str,
        typer.Option(
            "-D", "--delimiter", metavar="TEXT", help="Text after each message.  [default: \\n]", show_default=False
        ),
    ] = "\\n",
    key_delimiter: Annotated[
        str | None,
        typer.Option("-K", "--key-delimiter", metavar="TEXT", help="Text between keys and body of each message."),
    ] = None,
    key: Annotated[
        str | None, text_option("-k", "--key", metavar="KEY", help="Only messages with this key; with -P: set it.")
    ] = None,
    tag: Annotated[
        str | None,
        text_option("--tag", metavar="TAG", help="Only messages with this tag, or one of 'A || B'; with -P: set it."),
    ] = None,
    queue: Annotated[
        list[Any] | None,
        typer.Option(
            "-q",
            "--queue",
            parser=queue_selection.parse_queue,
            metavar="QUEUE",
            help="Queue id, or BROKER:ID; repeatable without -P.",
        ),
    ] = None,
    offset: Annotated[
        Any,
        typer.Option(
            "-o",
            "--offset",
            parser=parse_offset,
            metavar="OFFSET",
            help="Start of each queue: beginning, end, an offset, or -N for its last N messages.  [default: beginning]",
            rich_help_panel=CONSUME,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            "--from",
            metavar="DURATION|TIME",
            help="Start at a store time: a duration before now (15m, 2d) or a UTC time (2026-11-21T10:00).",
            rich_help_panel=CONSUME,
        ),
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("-e", "--exit-at-end", help="Exit after the messages stored now.", rich_help_panel=CONSUME)
    ] = False,
    group: Annotated[
        str | None, group_option("-g", "--group", help="Consume as a member of this group, and commit.", panel=CONSUME)
    ] = None,
    sql: Annotated[
        str | None,
        text_option(
            "--filter", metavar="SQL", help="Only messages whose properties match an SQL92 expression.", panel=CONSUME
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--format",
            metavar="FORMAT",
            help="Format: %t topic, %b broker, %p queue, %o offset, %k keys, %g tag, %s body, %S size, %T stored (ms), "
            "%D stored (UTC), %B born (ms), %i id, %I offset id, %r redeliveries, %h properties, %{NAME} property, "
            "%%, \\n, \\t, \\xHH.",
            rich_help_panel=CONSUME,
        ),
    ] = None,
    as_hex: Annotated[
        bool, typer.Option("--hex", help="Print bodies as hexadecimal bytes.", rich_help_panel=CONSUME)
    ] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Send each file as one message.", rich_help_panel=PRODUCE)
    ] = False,
    skip_empty: Annotated[
        bool, typer.Option("--skip-empty", help="Skip empty lines instead of failing.", rich_help_panel=PRODUCE)
    ] = False,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "-H",
            "--property",
            metavar="NAME=VALUE",
            help="Property of each message; repeatable.",
            rich_help_panel=PRODUCE,
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Deliver after this duration (10s, 5m, 2h); not supported by Apache 4.x.",
            rich_help_panel=PRODUCE,
        ),
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Deliver at this UTC time; not supported by Apache 4.x.", rich_help_panel=PRODUCE
        ),
    ] = None,
    delay_level: Annotated[
        int | None,
        number_option(
            minimum=1,
            maximum=DELAY_LEVEL_MAX,
            metavar="LEVEL",
            help="Deliver after the delay of this level.",
            panel=PRODUCE,
        ),
    ] = None,
    in_flight: Annotated[
        int | None,
        number_option(
            minimum=1,
            maximum=IN_FLIGHT_MAX,
            help=f"Maximum number of unacknowledged messages; 1 keeps the order in a --queue.  [default: {IN_FLIGHT}]",
            panel=PRODUCE,
        ),
    ] = None,
    namesrv: shared_options.NameServers = shared_options.NAMESRV_DEFAULT,
    access: access_options.AccessOptions = access_options.NO_ACCESS,
) -> None:
    """Print the messages of a topic, or send standard input or files to it.

    Exit status: 0 success; 1 a message was not sent or a server failed; 130 Ctrl-C; 141 the reader closed the pipe.
    """
    client = access.client_settings()
    consume_only = {
        "--offset": offset, "--since": since, "--exit-at-end": exit_at_end, "--group": group, "--filter": sql,
        "--format": format_, "--hex": as_hex,
    }  # fmt: skip
    produce_only = {
        "FILE": files, "--whole": whole, "--skip-empty": skip_empty, "--property": properties, "--delay": delay,
        "--deliver-at": deliver_at, "--delay-level": delay_level, "--in-flight": in_flight,
    }  # fmt: skip
    if produce:
        _reject(consume_only, "cannot be combined with -P")
        template = _template(topic, key_delimiter, key, tag, properties or ())
        template = _with_delay(template, delay, deliver_at, delay_level)
        form = _input_format(delimiter, key_delimiter, as_json=as_json, is_whole=whole, skips_empty=skip_empty)
        _produce(namesrv, client, template, form, files or ["-"], queue or (), count, in_flight or IN_FLIGHT)
        return
    _reject(produce_only, "requires -P")
    formatter = _formatter(format_, delimiter, key_delimiter, as_json=as_json, as_hex=as_hex)
    plan = _consume_plan(topic, offset, since, group, tuple(queue or ()))
    plan = _with_filters(plan, key, tag, sql, count, exit_at_end)
    _consume(namesrv, client, plan, formatter)


def _reject(options: Mapping[str, object], reason: str) -> None:
    """Raise UsageError for the first of these options that was given."""
    for name, value in options.items():
        if value not in (None, False, []):
            raise UsageError(name, None, reason)


# --- produce ---


def _template(
    topic: str, key_delimiter: str | None, key: str | None, tag: str | None, properties: Sequence[str]
) -> MessageTemplate:
    from ariane.cli.messages.message_input import MessageTemplate, parse_delimiter

    pairs = {}
    for text in properties:
        name, sign, value = text.partition("=")
        if not sign or not name or not value:
            raise UsageError("--property", text, "expected NAME=VALUE, both not empty")
        pairs[name] = value
    return MessageTemplate(
        topic=topic,
        tags=tag or "",
        keys=tuple(key.split()) if key else (),
        properties=pairs,
        key_delimiter=parse_delimiter(key_delimiter, "--key-delimiter") if key_delimiter is not None else b"",
    )


def _with_delay(
    template: MessageTemplate, delay: str | None, deliver_at: str | None, delay_level: int | None
) -> MessageTemplate:
    import msgspec

    from ariane.cli.messages.message_input import parse_duration_ms

    if sum(value is not None for value in (delay, deliver_at, delay_level)) > 1:
        raise UsageError("--delay", None, "expected at most one of --delay, --deliver-at and --delay-level")
    return msgspec.structs.replace(
        template,
        delay_ms=parse_duration_ms(delay, "--delay") if delay is not None else 0,
        deliver_at_ms=parse_time(deliver_at, SYSTEM_CLOCK.now_ms(), "--deliver-at") if deliver_at is not None else 0,
        delay_level=delay_level or 0,
    )


def _input_format(
    delimiter: str, key_delimiter: str | None, *, as_json: bool, is_whole: bool, skips_empty: bool
) -> InputFormat:
    from ariane.cli.messages.cat_produce import InputFormat
    from ariane.cli.messages.message_input import parse_delimiter

    if as_json and is_whole:
        raise UsageError("--whole", None, "cannot be combined with --json, which reads one object per line")
    if as_json and key_delimiter is not None:
        raise UsageError("--key-delimiter", None, "cannot be combined with --json; use the field keys")
    return InputFormat(
        delimiter=parse_delimiter(delimiter, "--delimiter"), is_whole=is_whole, is_json=as_json, skips_empty=skips_empty
    )


def _produce(
    namesrv: str,
    client: ClientSettings | None,
    template: MessageTemplate,
    form: InputFormat,
    paths: Sequence[str],
    queues: Sequence[queue_selection.QueueName],
    count: int | None,
    in_flight: int,
) -> None:
    from ariane.cli.messages import cat_produce
    from ariane.cli.servers import run_server
    from ariane.client.instance.client_instance import ClientInstance
    from ariane.client.instance.settings import ProducerSettings
    from ariane.client.producer import Producer
    from ariane.net.pools.server_health import ServerHealth

    settings = ProducerSettings(message_max=cat_produce.MESSAGE_MAX, in_flight_max=in_flight)
    status = 0

    async def work() -> None:
        nonlocal status
        with signals.loop_stop_signal() as stop:
            async with (
                ClientInstance(namesrv, client, health=ServerHealth()) as instance,
                Producer(instance, PRODUCER_GROUP, settings=settings) as producer,
            ):
                target = None
                if queues:
                    names = queue_selection.select_queues(await producer.queues(template.topic), queues)
                    if len(names) > 1:
                        choices = ", ".join(f"{name.broker}:{name.queue_id}" for name in names)
                        raise UsageError("--queue", None, f"messages are sent to one queue; choose one of {choices}")
                    target = names[0]
                window = cat_produce.SendWindow(producer, target, in_flight)
                records = cat_produce.read_records(paths, form)
                report = await cat_produce.produce(
                    records, template, window, is_json=form.is_json, count=count, stop=stop.event
                )
            _print_unsent(report)
            status = 1 if report.failures else stop.exit_status

    run_server.run_loop(work())
    if status:
        raise typer.Exit(status)


def _print_unsent(report: SendReport) -> None:
    """Report on standard error what was not sent; print nothing if everything was."""
    for failure in report.failures:
        typer.echo(f"Error: {failure}", err=True)
    if report.failures or not report.is_complete:
        rest = "" if report.is_complete else f"; any input after {report.last_read or 'the start'} was not sent"
        typer.echo(f"{count_text(report.sent, 'message')} sent, {len(report.failures):,} failed{rest}", err=True)


# --- consume ---


def _formatter(
    text: str | None, delimiter: str, key_delimiter: str | None, *, as_json: bool, as_hex: bool
) -> Formatter:
    from ariane.cli.messages import message_format
    from ariane.cli.messages.message_input import parse_escapes

    if sum((text is not None, as_json, as_hex)) > 1:
        raise UsageError("--format", None, "expected at most one of --format, --json and --hex")
    if text is not None:
        return message_format.compile_format(text)
    if as_json or as_hex:
        return message_format.json_format if as_json else message_format.hex_format
    keys = b"" if key_delimiter is None else parse_escapes(key_delimiter, "--key-delimiter")
    return message_format.body_format(parse_escapes(delimiter, "--delimiter"), keys)


def _consume_plan(
    topic: str,
    offset: Anchor | int | None,
    since: str | None,
    group: str | None,
    queues: tuple[queue_selection.QueueName, ...],
) -> ConsumePlan:
    from ariane.cli.messages.cat_consume import Anchor, ConsumePlan

    if offset is not None and since is not None:
        raise UsageError("--offset", None, "cannot be combined with --since")
    if group is not None and queues:
        raise UsageError("--queue", None, "cannot be combined with --group, whose members share all queues")
    if group is not None and isinstance(offset, int):
        raise UsageError(
            "--offset", offset, "expected beginning or end with --group; a group continues where it committed"
        )
    return ConsumePlan(
        topic=topic,
        group=group,
        queues=queues,
        start=Anchor.BEGINNING if offset is None else offset,
        since_ms=None if since is None else parse_time(since, SYSTEM_CLOCK.now_ms(), "--since"),
    )


def _with_filters(
    plan: ConsumePlan, key: str | None, tag: str | None, sql: str | None, count: int | None, exit_at_end: bool
) -> ConsumePlan:
    import msgspec

    if tag is not None and sql is not None:
        raise UsageError("--tag", tag, "cannot be combined with --filter; compare TAGS in the expression")
    if key is not None and plan.group is not None:
        raise UsageError("--key", key, "cannot be combined with --group, which would skip all other messages for good")
    expression: str | Sql = "*" if tag is None else tag
    if sql is not None:
        expression = _parse_sql(sql)
    return msgspec.structs.replace(plan, expression=expression, key=key, count=count, exit_at_end=exit_at_end)


def _parse_sql(text: str) -> Sql:
    from ariane.client.consuming.subscriptions import Sql
    from ariane.filter.sql import compile_sql

    try:
        compile_sql(text)
    except FilterError as error:
        raise UsageError("--filter", None, str(error)) from None
    return Sql(text)


def _consume(namesrv: str, client: ClientSettings | None, plan: ConsumePlan, formatter: Formatter) -> None:
    from ariane.cli.messages import cat_consume
    from ariane.cli.messages.byte_streams import ByteOutput
    from ariane.cli.servers import run_server
    from ariane.client.instance.client_instance import ClientInstance

    status = 0
    is_pipe_closed = False

    async def work() -> None:
        nonlocal status, is_pipe_closed
        with signals.loop_stop_signal() as stop:
            output = cat_consume.MessageOutput(ByteOutput(1, stop.event), formatter, plan)
            async with ClientInstance(namesrv, client) as instance:
                try:
                    await cat_consume.consume(instance, plan, output, stop.event)
                except BrokenPipeError:
                    is_pipe_closed = True
            status = stop.exit_status

    run_server.run_loop(work())
    if is_pipe_closed:
        signals.end_by_broken_pipe()
    if status:
        raise typer.Exit(status)
