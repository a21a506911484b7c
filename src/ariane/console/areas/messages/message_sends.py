"""Test messages: sends one message to a topic, immediately or delayed, with a trace record on request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import Field

from ariane.console.services import ConsoleServices
from ariane.console.texts import preferences
from ariane.console.web.form_fields import OptionalInt, OptionalText, VerbatimText, parse_duration_ms, parse_time_ms
from ariane.console.web.view_model import ChangeForm, View
from ariane.errors import UsageError
from ariane.model.message import Message, MessageQueue

BODY_MAX = 4 * 1024 * 1024  # characters; clients send up to 4 MiB
_IS_DURATION = re.compile(r"[\d.]+\s*[smhd]")


class SendMessageForm(ChangeForm):
    """A message to send."""

    body: VerbatimText = Field(min_length=1, max_length=BODY_MAX)
    """Content as text, sent as UTF-8."""
    tag: str = Field("", max_length=1_000)
    """Tag that subscriptions filter by."""
    keys: str = Field("", max_length=4_000)
    """Business keys, separated by white space."""
    properties: str = Field("", max_length=32_000)
    """Properties of the application, one `name=value` per line."""
    delay: str = Field("", max_length=40)
    """Delay: a level (`3`), a duration (`90s`, `2h`), or a date and time of the delivery; empty: immediately."""
    broker: OptionalText = None
    """Broker of the queue to send to; null: the producer selects the queue."""
    queue_id: OptionalInt = Field(None, ge=0)
    """Number of the queue; needs `broker`."""
    is_traced: bool = True
    """Send a trace record, too."""


class SentMessageView(View):
    """A message that was sent."""

    notice: str
    """What was done, for people."""
    topic: str
    status: str
    """`SEND_OK`, or why the broker could not wait for flush or replication in time."""
    message_id: str
    """Unique key, which the producer gave it."""
    offset_message_id: str
    """Id that the broker gave it."""
    broker: str
    """Broker that stores it."""
    queue_id: int
    """Queue on that broker."""
    queue_offset: int
    is_traced: bool
    """Whether a trace record was sent, too."""
    recall_handle: str | None
    """Identifies a delayed message to cancel it."""


async def send_message(services: ConsoleServices, topic: str, form: SendMessageForm) -> SentMessageView:
    """Send a message.

    Raises:
        UsageError: a property, the delay or the queue is invalid.
        RouteNotFound: the topic does not exist, or no broker accepts messages of it.
        MessageRefused: the message cannot be sent as it is.
        ReplyError, ConnectionLost, RequestTimeout: not acknowledged; the message may be stored.
    """
    level, deliver_at_ms = parse_delay(form.delay, services.clock.now_ms())
    message = Message(
        topic=topic,
        body=form.body.encode(),
        tags=form.tag,
        keys=form.keys.split(),
        properties=parse_properties(form.properties.splitlines()),
        delay_level=level,
        deliver_at_ms=deliver_at_ms,
    )
    admin = services.admin()
    sent = await admin.send_message(message, queue=_queue(topic, form), trace=form.is_traced)
    assert sent is not None, "only a dry run sends nothing"
    return SentMessageView.of(
        sent,
        sent.queue,
        notice=f"sent message {sent.message_id} to topic {topic}",
        topic=topic,
        status=sent.status.name,
        is_traced=form.is_traced and sent.trace_on,
    )


def parse_properties(lines: Sequence[str]) -> dict[str, str]:
    """Return the properties of lines `name=value`; blank lines are ignored.

    Raises:
        UsageError: a line has no `=` or no name, or a name occurs twice.
    """
    properties: dict[str, str] = {}
    for line in lines:
        name, separator, value = line.partition("=")
        name = name.strip()
        if not line.strip():
            continue
        if not separator or not name:
            raise UsageError("properties", line, "expected name=value, one per line")
        if name in properties:
            raise UsageError("properties", line, f"{name} occurs twice; expected each name once")
        properties[name] = value.strip()
    return properties


def parse_delay(text: str, now_ms: int) -> tuple[int, int]:
    """Return the delay level and the delivery time in ms of a delay; 0 for the one that it does not name.

    Raises:
        UsageError: the text is neither a level, a duration nor a time in the future.
    """
    text = text.strip()
    if not text:
        return 0, 0
    if text.isascii() and text.isdecimal() and len(text) <= 3:
        if int(text) == 0:
            raise UsageError("delay", text, "expected a delay level from 1, or no delay")
        return int(text), 0
    if _IS_DURATION.fullmatch(text):
        return 0, now_ms + parse_duration_ms(text, "delay")
    deliver_at_ms = parse_time_ms(text, now_ms, "delay", zone=preferences.current().zone)
    if deliver_at_ms <= now_ms:
        raise UsageError("delay", text, "in the past; expected a later time, or no delay")
    return 0, deliver_at_ms


def _queue(topic: str, form: SendMessageForm) -> MessageQueue | None:
    if form.broker is None and form.queue_id is None:
        return None
    if form.broker is None or form.queue_id is None:
        raise UsageError("queue", None, "specify both the broker and the number of the queue, or neither")
    return MessageQueue(topic, form.broker, form.queue_id)
