"""Sending messages once more: of an archive, of a dead-letter topic, or any others, to a topic.

    originals ─→ chunk ─→ journal: "sending", with new ids ─→ Producer ─→ journal: what became of each ─→ result
                   ↑ at a rate

A message goes out with its body, keys, tag, flag and the application's properties, under a new unique id, and with a property
that names where it comes from (`REPLAYED_FROM`). What brokers and clients had put on it is left out (`NOT_TAKEN`): it is
delivered at once, in no transaction, as a first attempt. Messages with a sharding key go to that key's queue, in their order.

At least once: the new id stands in the journal before the message is sent, so a replay that is killed, or gets no answer,
sends it under the same id again. It may then be stored twice, and consumers can tell by the id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from ariane.client.sending import SendResult
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.errors import ArianeError, ConfigError, ConnectionLost, MessageRefused, RequestTimeout, RouteNotFound
from ariane.model import message as names
from ariane.model.message import COMPRESSED, RESERVED, Message
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX

REPLAYED_FROM = "REPLAYED_FROM"  # topic, broker, queue id, queue offset and message id, joined by "/"
SHARDING_KEY = "__SHARDINGKEY"
RATE = 500.0  # messages a second
CHUNK_MAX = 64  # messages under way at once
CHUNK_S = 0.1  # and no more than the rate allows in this time

# Properties that say how a record came to be where it was. KEYS and TAGS are taken by themselves.
NOT_TAKEN = RESERVED | {
    names.CHECK_IMMUNITY_TIME,
    names.PREPARED_QUEUE_OFFSET,
    names.CHECK_TIMES,
    names.START_DELIVER_TIME,
    names.TIMER_DELIVER_MS,
    names.TIMER_DELAY_MS,
    names.TIMER_DELAY_SEC,
    names.TIMER_DEL_UNIQKEY,
    names.TIMER_OUT_MS,
    names.TIMER_CANCELS,
    "__transactionId__",
    "DLQ_ORIGIN_TOPIC",  # of 5.x
    "DLQ_ORIGIN_MESSAGE_ID",
    REPLAYED_FROM,
}

AWAY = (ConnectionLost, RequestTimeout, RouteNotFound)


class Place(NamedTuple):
    """Where a record lies: it names it."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int


class Original(NamedTuple):
    """A message that is to be sent once more."""

    place: Place
    message_id: str
    properties: Mapping[str, str]
    body: bytes
    flag: int
    sys_flag: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a message: a row of the result."""

    source_topic: str
    source_broker: str
    source_queue_id: int
    source_queue_offset: int
    source_message_id: str
    state: str
    """ok; failed; unsent: the replay ended before; sending: it was killed before the answer came."""
    error: str | None = None
    at_ms: int
    """When this was so: our clock, ms since the epoch."""
    topic: str | None = None
    message_id: str | None = None
    """Its new unique id; a message that is tried again keeps it."""
    broker: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    offset_message_id: str | None = None

    @property
    def place(self) -> Place:
        return Place(self.source_topic, self.source_broker, self.source_queue_id, self.source_queue_offset)


class Replayed(NamedTuple):
    """How many messages: `earlier` were sent by an earlier replay with the same result."""

    ok: int
    failed: int
    unsent: int
    earlier: int
    why: str | None = None
    """What ended the replay before all were sent."""


class Journal(Protocol):
    """Where outcomes are kept (`ariane.admin.replay_result`)."""

    def is_done(self, place: Place) -> bool:
        """Whether it was sent."""
        ...

    def id_of(self, place: Place) -> str | None:
        """The new id under which it was tried before."""
        ...

    def write(self, outcomes: list[Outcome]) -> None:
        """Keep them, also when the process is killed right after."""
        ...


class Sending(NamedTuple):
    """How messages are sent: with an order key to its queue."""

    send: Callable[[Message, str | None], AsyncIterator[None] | object]


Send = Callable[[Message, str | None], "asyncio.Future[SendResult]"]


class Pace:
    """Lets `rate` messages a second pass, evenly; time that was not used is not made up for."""

    def __init__(self, rate: float, clock: Clock = SYSTEM_CLOCK) -> None:
        if not rate > 0:
            raise ConfigError("--rate", rate, "give messages a second, more than 0, such as 500/s")
        self._rate = rate
        self._clock = clock
        self._next_s = clock.monotonic()

    @property
    def chunk(self) -> int:
        """How many messages go at once."""
        return max(1, min(CHUNK_MAX, int(self._rate * CHUNK_S)))

    async def wait(self, count: int) -> None:
        """Wait until `count` more may go."""
        now_s = self._clock.monotonic()
        if self._next_s > now_s:
            await self._clock.sleep(self._next_s - now_s)
        self._next_s = max(self._next_s, now_s) + count / self._rate


def message_of(original: Original, topic: str | None, message_id: str) -> Message:
    """The message to send to `topic`, or to where it came from. MessageRefused when it cannot be sent."""
    if original.sys_flag & COMPRESSED:
        raise MessageRefused("its body cannot be decompressed here")
    own = original.properties
    kept = {name: value for name, value in own.items() if name not in NOT_TAKEN and value}
    kept[REPLAYED_FROM] = "/".join(map(str, (*original.place, original.message_id)))
    return Message(
        topic=topic or destination(original),
        body=original.body,
        tags=own.get(names.TAGS, ""),
        keys=tuple(own.get(names.KEYS, "").split()),
        properties=kept,
        flag=original.flag,
        message_id=message_id,
    )


def destination(original: Original) -> str:
    """The topic that a dead letter or a retried message was first sent to."""
    if not original.place.topic.startswith((DLQ_PREFIX, RETRY_PREFIX)):
        raise MessageRefused(f"it lies in {original.place.topic}, which tells no other topic: name one with --topic")
    first = original.properties.get(names.RETRY_TOPIC) or original.properties.get("DLQ_ORIGIN_TOPIC")
    if not first:
        raise MessageRefused("its first topic is not known (no RETRY_TOPIC): name one with --topic")
    return first


async def replay(
    originals: AsyncIterator[Original],
    send: Callable[[Message, str | None], object],
    journal: Journal,
    *,
    topic: str | None,
    make_id: Callable[[], str],
    pace: Pace,
    topic_fault: Callable[[str], object],
    clock: Clock = SYSTEM_CLOCK,
    stop: asyncio.Event | None = None,
    on_progress: Callable[[Replayed], None] = lambda _: None,
) -> Replayed:
    raise NotImplementedError
