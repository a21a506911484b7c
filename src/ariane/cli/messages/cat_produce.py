"""`ariane cat -P`: sends the records of standard input or of files as messages.

    files ─ read_records ─→ InputRecord ─ MessageTemplate ─→ Message ─ SendWindow ─→ Producer
                                                                       up to --in-flight sends, each reported with its line

The first record that cannot be sent ends the input: sends in flight are awaited, then the report names every record that
failed and where the unsent rest begins. A message without an acknowledgement may be stored.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from ariane.cli.messages.byte_streams import read_chunks
from ariane.cli.messages.message_input import MessageTemplate, RecordSplitter
from ariane.client.instance.settings import MIB
from ariane.client.producer import Producer
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import ArianeError, MessageRefused, ReplyError
from ariane.model.message import Message, MessageQueue
from ariane.net.pools.fail_fast_pool import NotAsked
from ariane.protocol.client_rules.transient import NO_RESPONSE
from ariane.protocol.codes import ResponseCode

STDIN = "-"
MESSAGE_MAX = 15 * MIB  # what a client can send; brokers have a limit of their own, which they apply


class InputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How the input is split into records."""

    delimiter: bytes = b"\n"  # separates records
    is_whole: bool = False  # whether each file is one record
    is_json: bool = False  # whether each record is a JSON object
    # Whether empty records are skipped; otherwise they are errors, because brokers accept no empty body.
    skips_empty: bool = False


class InputRecord(NamedTuple):
    """A record, and how messages name it: `line 7`, `access.log line 7`, `picture.png`."""

    name: str
    data: bytes


class SendReport(msgspec.Struct):
    """Outcome of sending."""

    sent: int = 0  # number of acknowledged messages
    failures: list[str] = []  # each record that failed, with the reason
    last_read: str | None = None  # name of the last record that was read
    is_complete: bool = False  # whether the input was read to its end, or to the requested number of messages


async def read_records(paths: Sequence[str], form: InputFormat) -> AsyncGenerator[InputRecord, None]:
    """Yield the records of files, in order; of standard input for `-`.

    Raises:
        OSError: a file cannot be read.
        MessageRefused: a record is larger than clients can send; its text names the record.
    """
    for path in paths:
        fd = 0 if path == STDIN else os.open(path, os.O_RDONLY)
        try:
            source = "" if path == STDIN else f"{path} "
            unit = "line" if form.delimiter == b"\n" else "record"
            if form.is_whole:
                yield InputRecord("standard input" if path == STDIN else path, await _read_whole(fd, path))
                continue
            splitter = RecordSplitter(form.delimiter, size_max=MESSAGE_MAX)
            number = 0
            try:
                async for chunk in read_chunks(fd):
                    for record in splitter.feed(chunk):
                        number += 1
                        if record or not form.skips_empty:
                            yield InputRecord(f"{source}{unit} {number}", record)
                if (rest := splitter.finish()) is not None:
                    number += 1
                    yield InputRecord(f"{source}{unit} {number}", rest)
            except MessageRefused as error:
                raise MessageRefused(f"{source}{unit} {number + 1}: {error}") from None
        except OSError as error:
            # A read error has no file name of its own.
            raise OSError(error.errno, error.strerror, error.filename or path) from None
        finally:
            if fd:
                os.close(fd)


async def _read_whole(fd: int, path: str) -> bytes:
    content = bytearray()
    async for chunk in read_chunks(fd):
        content += chunk
        if len(content) > MESSAGE_MAX:
            name = "standard input" if path == STDIN else path
            raise MessageRefused(f"{name}: more than {MESSAGE_MAX:,} bytes: clients cannot send more in one message")
    return bytes(content)


class SendWindow:
    """Sends messages, at most `size` at a time, and collects the outcomes.

    Without a queue, the queues take turns. With one and a size of 1, messages are stored in the order of the input.
    """

    def __init__(self, producer: Producer, queue: MessageQueue | None, size: int) -> None:
        self.report = SendReport()  # outcomes so far; complete after `finish`
        self.failed = asyncio.Event()  # set with the first failure
        self._producer = producer  # sends the messages
        self._queue = queue  # to send to; None: the queues take turns
        self._free = asyncio.Semaphore(size)  # one slot per send that may still be started
        self._sends: set[asyncio.Task[None]] = set()  # in flight

    async def send(self, name: str, message: Message) -> None:
        """Start sending a message as soon as the window has room."""
        await self._free.acquire()
        task = asyncio.create_task(self._send(name, message))
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    def fail(self, name: str, reason: str) -> None:
        """Record that a record was not sent."""
        self.report.failures.append(f"{name}: {reason}")
        self.failed.set()

    async def finish(self) -> None:
        """Wait for all sends in flight."""
        if self._sends:
            await asyncio.wait(self._sends)

    async def _send(self, name: str, message: Message) -> None:
        try:
            await self._producer.send(message, queue=self._queue)
        except ArianeError as error:
            self.fail(name, describe_failure(error, len(message.body)))
        else:
            self.report.sent += 1
        finally:
            self._free.release()


def describe_failure(error: ArianeError, body_size: int) -> str:
    """Return why a message was not sent, with what the user can do about it."""
    if isinstance(error, NO_RESPONSE) and not isinstance(error, NotAsked):
        return f"{error} (not acknowledged: it may be stored)"
    if isinstance(error, ReplyError) and error.code == ResponseCode.MESSAGE_ILLEGAL:
        return f"{error} (body of {body_size:,} bytes; the broker's limit is its setting maxMessageSize, by default 4,194,304)"
    return str(error)


async def produce(
    records: AsyncGenerator[InputRecord, None],
    template: MessageTemplate,
    window: SendWindow,
    *,
    is_json: bool,
    count: int | None,
    stop: asyncio.Event,
) -> SendReport:
    """Send records until the input ends, `count` messages were sent, one of them failed, or `stop` is set."""
    report = window.report
    build = template.from_json if is_json else template.from_body
    halts = [asyncio.ensure_future(event.wait()) for event in (stop, window.failed)]
    number = 0
    try:
        async with aclosing(records):
            while number != count:
                record = await _next_record(records, window, halts)
                if record is None:
                    break
                report.last_read = record.name
                number += 1
                try:
                    message = build(record.data, SYSTEM_CLOCK.now_ms())
                except MessageRefused as error:
                    window.fail(record.name, str(error))
                    break
                await window.send(record.name, message)
                if any(halt.done() for halt in halts):
                    break
            else:
                report.is_complete = True
    finally:
        for halt in halts:
            halt.cancel()
    await window.finish()
    return report


async def _next_record(
    records: AsyncGenerator[InputRecord, None], window: SendWindow, halts: Sequence[asyncio.Future[Any]]
) -> InputRecord | None:
    """Return the next record; None at the end of the input, or if one of `halts` is done first."""
    next_record = asyncio.ensure_future(anext(records, None))
    pending: set[asyncio.Future[Any]] = {next_record, *halts}
    await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    if not next_record.done():
        next_record.cancel()
        await asyncio.wait({next_record})
        return None
    try:
        record = next_record.result()
    except MessageRefused as error:
        window.report.failures.append(str(error))
        window.failed.set()
        return None
    window.report.is_complete = record is None
    return record
