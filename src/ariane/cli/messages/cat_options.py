"""Options of `ariane cat` as values, and what they stand for: the messages to send, or those to print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ariane.cli.options import queue_selection
from ariane.cli.options.option_kinds import flag_option, group_option, number_option, text_option, time_option
from ariane.cli.options.time_options import parse_time
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import FilterError, UsageError

if TYPE_CHECKING:
    from ariane.cli.messages.cat_consume import Anchor, ConsumePlan
    from ariane.cli.messages.cat_produce import InputFormat
    from ariane.cli.messages.message_format import Formatter
    from ariane.cli.messages.message_input import MessageTemplate
    from ariane.client.consuming.subscriptions import Sql

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


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """Options with and without -P: the form of a message, its keys and its tag."""

    count: Annotated[
        int | None, number_option("-c", "--count", minimum=1, help="Exit after this number of messages.")
    ] = None
    as_json: Annotated[
        bool, flag_option("--json", "Print or read one JSON object per line; its output can be sent again.", short="-J")
    ] = False
    delimiter: Annotated[
        str,
        typer.Option(
            "-D", "--delimiter", metavar="TEXT", help="Text after each message.  [default: \\n]", show_default=False
        ),
    ] = "\\n"
    key_delimiter: Annotated[
        str | None,
        typer.Option("-K", "--key-delimiter", metavar="TEXT", help="Text between keys and body of each message."),
    ] = None
    key: Annotated[
        str | None, text_option("-k", "--key", metavar="KEY", help="Only messages with this key; with -P: set it.")
    ] = None
    tag: Annotated[
        str | None,
        text_option("--tag", metavar="TAG", help="Only messages with this tag, or one of 'A || B'; with -P: set it."),
    ] = None
    queue: Annotated[
        list[Any] | None,
        typer.Option(
            "-q",
            "--queue",
            parser=queue_selection.parse_queue,
            metavar="QUEUE",
            help="Queue id, or BROKER:ID; repeatable without -P.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ConsumeOptions:
    """Options without -P."""

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
    ] = None
    since: Annotated[
        str | None,
        time_option(
            "--since",
            "--from",
            help="Start at a store time: a duration before now (15m, 2d) or a UTC time (2026-11-21T10:00).",
            panel=CONSUME,
        ),
    ] = None
    exit_at_end: Annotated[
        bool, flag_option("--exit-at-end", "Exit after the messages stored now.", short="-e", panel=CONSUME)
    ] = False
    group: Annotated[
        str | None, group_option("-g", "--group", help="Consume as a member of this group, and commit.", panel=CONSUME)
    ] = None
    sql: Annotated[
        str | None,
        text_option(
            "--filter", metavar="SQL", help="Only messages whose properties match an SQL92 expression.", panel=CONSUME
        ),
    ] = None
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
    ] = None
    as_hex: Annotated[bool, flag_option("--hex", "Print bodies as hexadecimal bytes.", panel=CONSUME)] = False

    def formatter(self, record: RecordOptions) -> Formatter:
        """Return the function that formats messages.

        Raises:
            UsageError: options contradict each other, or a text cannot be parsed.
        """
        from ariane.cli.messages import message_format
        from ariane.cli.messages.message_input import parse_escapes

        if sum((self.format_ is not None, record.as_json, self.as_hex)) > 1:
            raise UsageError("--format", None, "expected at most one of --format, --json and --hex")
        if self.format_ is not None:
            return message_format.compile_format(self.format_)
        if record.as_json or self.as_hex:
            return message_format.json_format if record.as_json else message_format.hex_format
        keys = b"" if record.key_delimiter is None else parse_escapes(record.key_delimiter, "--key-delimiter")
        return message_format.body_format(parse_escapes(record.delimiter, "--delimiter"), keys)

    def plan(self, topic: str, record: RecordOptions) -> ConsumePlan:
        """Return what to read.

        Raises:
            UsageError: options contradict each other, or a text cannot be parsed.
        """
        from ariane.cli.messages.cat_consume import Anchor, ConsumePlan

        if self.offset is not None and self.since is not None:
            raise UsageError("--offset", None, "cannot be combined with --since")
        if self.group is not None and record.queue:
            raise UsageError("--queue", None, "cannot be combined with --group, whose members share all queues")
        if self.group is not None and isinstance(self.offset, int):
            fix = "expected beginning or end with --group; a group continues where it committed"
            raise UsageError("--offset", self.offset, fix)
        since_ms = None if self.since is None else parse_time(self.since, SYSTEM_CLOCK.now_ms(), "--since")
        if record.tag is not None and self.sql is not None:
            raise UsageError("--tag", record.tag, "cannot be combined with --filter; compare TAGS in the expression")
        if record.key is not None and self.group is not None:
            fix = "cannot be combined with --group, which would skip all other messages for good"
            raise UsageError("--key", record.key, fix)
        return ConsumePlan(
            topic=topic,
            group=self.group,
            queues=tuple(record.queue or ()),
            start=Anchor.BEGINNING if self.offset is None else self.offset,
            since_ms=since_ms,
            expression=_parse_sql(self.sql) if self.sql is not None else record.tag or "*",
            key=record.key,
            count=record.count,
            exit_at_end=self.exit_at_end,
        )


@dataclass(frozen=True, kw_only=True)
class ProduceOptions:
    """Options with -P."""

    whole: Annotated[bool, flag_option("--whole", "Send each file as one message.", panel=PRODUCE)] = False
    skip_empty: Annotated[bool, flag_option("--skip-empty", "Skip empty lines instead of failing.", panel=PRODUCE)] = (
        False
    )
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "-H",
            "--property",
            metavar="NAME=VALUE",
            help="Property of each message; repeatable.",
            rich_help_panel=PRODUCE,
        ),
    ] = None
    delay: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Deliver after this duration (10s, 5m, 2h); not supported by Apache 4.x.",
            rich_help_panel=PRODUCE,
        ),
    ] = None
    deliver_at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Deliver at this UTC time; not supported by Apache 4.x.", rich_help_panel=PRODUCE
        ),
    ] = None
    delay_level: Annotated[
        int | None,
        number_option(
            minimum=1,
            maximum=DELAY_LEVEL_MAX,
            metavar="LEVEL",
            help="Deliver after the delay of this level.",
            panel=PRODUCE,
        ),
    ] = None
    in_flight: Annotated[
        int | None,
        number_option(
            minimum=1,
            maximum=IN_FLIGHT_MAX,
            help=f"Maximum number of unacknowledged messages; 1 keeps the order in a --queue.  [default: {IN_FLIGHT}]",
            panel=PRODUCE,
        ),
    ] = None

    def template(self, topic: str, record: RecordOptions) -> MessageTemplate:
        """Return what all messages have in common.

        Raises:
            UsageError: options contradict each other, or a text cannot be parsed.
        """
        from ariane.cli.messages.message_input import MessageTemplate, parse_delimiter, parse_duration_ms

        pairs = {}
        for text in self.properties or ():
            name, sign, value = text.partition("=")
            if not sign or not name or not value:
                raise UsageError("--property", text, "expected NAME=VALUE, both not empty")
            pairs[name] = value
        key_delimiter = (
            b"" if record.key_delimiter is None else parse_delimiter(record.key_delimiter, "--key-delimiter")
        )
        if sum(value is not None for value in (self.delay, self.deliver_at, self.delay_level)) > 1:
            raise UsageError("--delay", None, "expected at most one of --delay, --deliver-at and --delay-level")
        at = self.deliver_at
        return MessageTemplate(
            topic=topic,
            tags=record.tag or "",
            keys=tuple(record.key.split()) if record.key else (),
            properties=pairs,
            key_delimiter=key_delimiter,
            delay_ms=0 if self.delay is None else parse_duration_ms(self.delay, "--delay"),
            deliver_at_ms=0 if at is None else parse_time(at, SYSTEM_CLOCK.now_ms(), "--deliver-at"),
            delay_level=self.delay_level or 0,
        )

    def input_format(self, record: RecordOptions) -> InputFormat:
        """Return how the input is split into messages.

        Raises:
            UsageError: options contradict each other, or the delimiter cannot be parsed.
        """
        from ariane.cli.messages.cat_produce import InputFormat
        from ariane.cli.messages.message_input import parse_delimiter

        if record.as_json and self.whole:
            raise UsageError("--whole", None, "cannot be combined with --json, which reads one object per line")
        if record.as_json and record.key_delimiter is not None:
            raise UsageError("--key-delimiter", None, "cannot be combined with --json; use the field keys")
        return InputFormat(
            delimiter=parse_delimiter(record.delimiter, "--delimiter"),
            is_whole=self.whole,
            is_json=record.as_json,
            skips_empty=self.skip_empty,
        )


def _parse_sql(text: str) -> Sql:
    from ariane.client.consuming.subscriptions import Sql
    from ariane.filter.sql import compile_sql

    try:
        compile_sql(text)
    except FilterError as error:
        raise UsageError("--filter", None, str(error)) from None
    return Sql(text)
