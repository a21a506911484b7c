"""Send codec: from messages to requests, and from responses to results. Pure. [DefaultMQProducerImpl.sendKernelImpl, Validators]

    Message ─ prepare() ─→ PreparedMessage ─ request_fields() ─→ SEND_MESSAGE_V2 (310) ─→ response ─ parse_result() ─→ SendResult
    Messages ─ prepare_batch() ─↗                                SEND_BATCH_MESSAGE (320)

Messages that brokers would refuse or silently change (a property with an empty value disappears) are refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import msgspec

from ariane.client.instance import validation
from ariane.client.instance.send_types import PreparedMessage, SendResult, SendStatus
from ariane.client.instance.settings import ProducerSettings
from ariane.errors import ConfigError, MessageRefused, ProtocolError, ReplyError
from ariane.model import message as names
from ariane.model.hashes import java_hash
from ariane.model.message import Message, MessageQueue
from ariane.model.topic import RETRY_PREFIX, SEND_FORBIDDEN, topic_name_fault
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.records import batch, compression, properties
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import SendMessageResponse

_STATUS = {status.value: status for status in SendStatus}


def prepare(message: Message, message_id: str, settings: ProducerSettings) -> PreparedMessage:
    """Validate a message and compress a large body.

    Raises:
        MessageRefused: the message cannot be sent as it is; the text says what to change.
    """
    _check_types(message)
    body = _checked_body(message, settings)
    _check_topic(message.topic)
    sys_flag = 0
    if len(body) >= settings.compress_from:
        body, sys_flag = compression.compress(body, settings.compression, settings.compress_level)
    text = _property_text(message, message_id)
    return PreparedMessage(
        topic=message.topic,
        body=body,
        properties=text,
        sys_flag=sys_flag,
        flag=message.flag,
        is_delayed=message.is_delayed,
        needs_timer=message.is_delayed and not message.delay_level,
        messages=(message,),
        ids=(message_id,),
    )


def prepare_batch(
    messages: Sequence[Message], make_id: Callable[[], str], settings: ProducerSettings
) -> PreparedMessage:
    """Prepare several messages as one request: stored together or not at all, next to each other in one queue.

    Raises:
        MessageRefused: the batch cannot be sent as it is; the text says what to change.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise MessageRefused(f"a batch of type {type(messages).__name__}: expected a list of messages")
    if not messages:
        raise MessageRefused("a batch needs at least one message")
    for message in messages:
        _check_types(message)
    first = messages[0]
    _check_topic(first.topic)
    if first.topic.startswith(RETRY_PREFIX):
        raise MessageRefused(f"{first.topic}: brokers accept no batches in retry topics; send the messages one by one")
    ids = [message.message_id or make_id() for message in messages]
    entries = []
    for message, message_id in zip(messages, ids, strict=True):
        if message.topic != first.topic:
            raise MessageRefused(
                f"the batch contains messages of {first.topic} and {message.topic}: expected one topic per batch"
            )
        # The request has one WAIT for all messages, and the broker ignores those of the entries.
        if message.wait_stored != first.wait_stored:
            raise MessageRefused("wait_stored differs within the batch: send those messages in two batches")
        if message.is_delayed:
            raise MessageRefused("a batch cannot be delayed: send messages with a delay one by one")
        body = _checked_body(message, settings)
        entries.append(batch.BatchEntry(message.flag, body, _property_text(message, message_id)))
    body = batch.encode(entries)
    if len(body) > settings.message_max:
        raise MessageRefused(
            f"the batch has {len(body)} bytes, allowed are {settings.message_max}: split it into smaller batches"
        )
    outer = properties.encode({names.WAIT: "true" if first.wait_stored else "false"})
    return PreparedMessage(
        code=RequestCode.SEND_BATCH_MESSAGE,
        topic=first.topic,
        body=body,
        properties=outer,
        messages=tuple(messages),
        ids=ids,
    )


def split_batch(
    messages: Sequence[Message], make_id: Callable[[], str], settings: ProducerSettings
) -> list[list[Message]]:
    """Split messages into batches of at most `message_max` bytes, in their order.

    Returns:
        The messages with ids, so that a second attempt of the program can be recognized.

    Raises:
        MessageRefused: a message cannot be sent in a batch.
    """
    parts: list[list[Message]] = []
    room = 0
    for message in messages:
        _check_class(message)
        named = msgspec.structs.replace(message, message_id=message.message_id or make_id())
        size = len(prepare_batch([named], make_id, settings).body) + ADDED_MAX
        if not parts or size > room:
            parts.append([])
            room = settings.message_max
        parts[-1].append(named)
        room -= size
    for part in parts:
        prepare_batch(part, make_id, settings)  # refuses messages that do not go together, before any is sent
    return parts


def with_properties(message: PreparedMessage, added: Mapping[str, str]) -> PreparedMessage:
    """Add properties that only the client itself sets.

    Raises:
        MessageRefused: all properties together are too large.
    """
    text = f"{message.properties}{properties.PAIR_END}{properties.encode(added)}"
    if len(text.encode()) > properties.SIZE_MAX:
        raise MessageRefused(
            f"the properties have {len(text.encode())} bytes, at most {properties.SIZE_MAX} are allowed"
        )
    return msgspec.structs.replace(message, properties=text)


def request_fields(
    message: PreparedMessage, group: str, queue_id: int, born_ms: int, settings: ProducerSettings
) -> dict[str, str]:
    """Return the extFields of a send request.

    They are those of `requests.messaging.SendMessage`, built without that class: its cost would be paid by every message.
    """
    redelivery = message.redelivery
    names_and_values = {
        "a": group,
        "b": message.topic,
        "c": settings.create_topic_key,
        "d": str(settings.default_topic_queue_nums),
        "e": str(queue_id),
        "f": str(message.sys_flag),
        "g": str(born_ms),
        "h": str(message.flag),
        "i": message.properties,
        "j": str(redelivery.reconsume_times) if redelivery is not None else "0",
        "k": "false",
        "m": "true" if message.is_batch else "false",
    }
    if redelivery is not None:
        names_and_values["l"] = str(redelivery.max_reconsume_times)
    return names_and_values


def parse_status(response: Command, addr: str) -> SendStatus:
    """Return how safely a message is stored.

    Raises:
        ReplyError: the message is not stored.
    """
    status: SendStatus | None = _STATUS.get(response.code)  # type: ignore[call-overload]
    if status is None:
        raise ReplyError(response.code, response.remark, addr)
    return status


def parse_result(message: PreparedMessage, response: Command, queue: MessageQueue, addr: str) -> SendResult:
    """Return what a broker's response reports.

    Raises:
        ReplyError: the message is not stored.
    """
    status = parse_status(response, addr)
    stored = _stored_at(response)
    if stored.queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker, stored.queue_id)
    return SendResult(
        status=status,
        message_id=message.ids[0] if len(message.ids) == 1 else ",".join(message.ids),
        offset_message_id=stored.message_id,
        queue=queue,
        queue_offset=stored.queue_offset,
        transaction_id=stored.transaction_id,
        region=stored.region,
        trace_on=stored.trace_on,
        recall_handle=stored.recall_handle,
    )


def _stored_at(response: Command) -> SendMessageResponse:
    """Decode the header, without the rules for values that clients send."""
    if isinstance(response.fields, msgspec.Raw):
        try:
            return _decode_stored(response.fields)
        except fastjson.UNREADABLE:
            pass  # read more liberally, or refused with the name of the member
    return decode_header(response, SendMessageResponse)


_decode_stored = msgspec.json.Decoder(SendMessageResponse, strict=False).decode


def select_queue(queues: Sequence[MessageQueue], turn: int, avoid: str | None) -> MessageQueue:
    """Return the queue of this turn; not one of broker `avoid` as long as another broker has queues."""
    count = len(queues)
    if avoid is not None:
        for step in range(count):
            queue = queues[(turn + step) % count]
            if queue.broker != avoid:
                return queue
    return queues[turn % count]


def queue_for_key(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """Return the queue of all messages with this ordering key, as Java's SelectMessageQueueByHash does for a String."""
    if not isinstance(key, str):
        raise MessageRefused(f"order_key = {key!r}: expected a text, give str(…)")
    # Java's 4.9.4 takes the absolute value of the remainder. Integers of Python do not overflow, so this is the same number.
    return queues[abs(java_hash(key)) % len(queues)]


@lru_cache(maxsize=4096)
def _topic_fault(topic: str) -> str | None:
    if topic in SEND_FORBIDDEN:
        return f"{topic} belongs to the broker: clients cannot write to it"
    return topic_name_fault(topic)


def _check_topic(topic: str) -> None:
    fault = _topic_fault(topic)
    if fault:
        raise MessageRefused(fault)


# Fields of a message and their types. Without the check, the text of a wrong value would be sent.
_TYPES = {"topic": str, "tags": str, "flag": int, "wait_stored": bool, "message_id": str}
FLAG_MAX = 2**31
ADDED_MAX = 256  # bytes of properties that telemetry may add to a message of a batch
LEVEL_MAX = 2**31 - 1  # brokers use their highest level for higher ones


def message_id_of(message: Message, make_id: Callable[[], str]) -> str:
    """Return the id that the application gave the message, or a new one."""
    _check_class(message)
    return message.message_id or make_id()


def _check_class(message: object) -> None:
    if not isinstance(message, Message):
        raise MessageRefused(f"{message!r} is of type {type(message).__name__}: expected a Message")


def _check_types(message: Message) -> None:
    """Raise MessageRefused if a field has the wrong type."""
    _check_class(message)
    if (
        type(message.topic) is str
        and type(message.tags) is str
        and type(message.message_id) is str
        and type(message.wait_stored) is bool
        and type(message.flag) is int
        and -FLAG_MAX <= message.flag < FLAG_MAX
    ):
        return  # as almost always: a loop over the fields takes four times as long
    for name, kind in _TYPES.items():
        value = getattr(message, name)
        if type(value) is not kind and not isinstance(value, kind):
            raise MessageRefused(f"{name} = {value!r} is of type {type(value).__name__}: expected {kind.__name__}")
    if not -FLAG_MAX <= message.flag < FLAG_MAX:
        raise MessageRefused(f"flag = {message.flag}: choose a number of 32 bits")


def _checked_body(message: Message, settings: ProducerSettings) -> bytes:
    body = message.body
    if not isinstance(body, bytes):
        raise MessageRefused(f"the body is of type {type(body).__name__}: encode it to bytes first")
    if not body:
        raise MessageRefused("the body is empty, which brokers refuse")
    if len(body) > settings.message_max:
        raise MessageRefused(f"the body has {len(body)} bytes, at most {settings.message_max} are allowed")
    return body


def _property_text(message: Message, message_id: str) -> str:
    if not message.properties and not message.is_delayed:
        text = _simple_property_text(message, message_id)
        if text is not None:
            return text
    table = {names.UNIQ_KEY: message_id, names.WAIT: "true" if message.wait_stored else "false"}
    if message.tags:
        table[names.TAGS] = message.tags
    if message.keys:
        table[names.KEYS] = _joined_keys(message.keys)
    if message.is_delayed:
        table.update(_delay_properties(message))
    if message.properties:
        _check_properties(message)
        table.update(message.properties)
    try:
        text = properties.encode(table)
    except ProtocolError as error:
        raise MessageRefused(str(error)) from None
    if _is_too_large(text):
        raise MessageRefused(
            f"the properties have {len(text.encode())} bytes, at most {properties.SIZE_MAX} are allowed"
        )
    return text


def _is_too_large(text: str) -> bool:
    # A character takes at most four bytes, so most texts need not be encoded to be measured.
    return len(text) * 4 > properties.SIZE_MAX and len(text.encode()) > properties.SIZE_MAX


def _simple_property_text(message: Message, message_id: str) -> str | None:
    """Return the text for most messages; None if a value has separators, or the text is too large."""
    wait = "true" if message.wait_stored else "false"
    text, pairs = f"UNIQ_KEY\x01{message_id}\x02WAIT\x01{wait}", 2
    if message.tags:
        text, pairs = f"{text}\x02TAGS\x01{message.tags}", pairs + 1
    if message.keys:
        text, pairs = f"{text}\x02KEYS\x01{_joined_keys(message.keys)}", pairs + 1
    is_valid = text.count(properties.NAME_END) == pairs and text.count(properties.PAIR_END) == pairs - 1
    return text if is_valid and not _is_too_large(text) else None


def _delay_properties(message: Message) -> dict[str, str]:
    """Return the properties that ask for a later delivery."""
    given = [name for name in ("delay_level", "delay", "deliver_at", "deliver_at_ms") if getattr(message, name)]
    if len(given) > 1:
        raise MessageRefused(f"the message has {' and '.join(given)}: give only one of them")
    try:
        if message.delay_level:
            return {names.DELAY: str(validation.whole("delay_level", message.delay_level, 1, LEVEL_MAX))}
        if message.delay:
            delay_s = validation.seconds("delay", message.delay)
            return {names.TIMER_DELAY_MS: str(max(1, round(delay_s * 1000)))}
        if message.deliver_at is not None:
            at_ms = validation.instant_ms("deliver_at", message.deliver_at)
        else:
            at_ms = validation.time_ms("deliver_at_ms", message.deliver_at_ms)
    except ConfigError as error:
        raise MessageRefused(str(error)) from None
    # The first name is read by Alibaba Cloud's brokers and Ariane, the second by 5.x.
    return {names.START_DELIVER_TIME: str(at_ms), names.TIMER_DELIVER_MS: str(at_ms)}


def _joined_keys(keys: Sequence[str]) -> str:
    if isinstance(keys, str):
        raise MessageRefused(f"keys is the text {keys!r}: give a list of keys")
    if not isinstance(keys, Sequence | set | frozenset):
        raise MessageRefused(f"keys is of type {type(keys).__name__}: give a list of keys")
    for key in keys:
        if not isinstance(key, str):
            raise MessageRefused(f"the key {key!r} is of type {type(key).__name__}: expected str")
        if key.split() != [key]:
            raise MessageRefused(f"the key {key!r} is empty or holds white space, which separates keys")
    return " ".join(keys)


def _check_properties(message: Message) -> None:
    if not isinstance(message.properties, Mapping):
        raise MessageRefused(f"properties is of type {type(message.properties).__name__}: give a mapping of texts")
    for name, value in message.properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise MessageRefused(f"the property {name!r} = {value!r}: expected texts, give str(…)")
        if name in names.RESERVED:
            raise MessageRefused(f"the property name {name} is reserved; use another, or the field of Message for it")
        if not name or not value:
            raise MessageRefused(f"the property {name!r} = {value!r}: an empty name or value does not arrive")
