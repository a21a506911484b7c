"""Searches topics for messages by time, tag, key and text, and resends dead letters. [QueryMsgByKeySubCommand, ResendMessage]

search(topic, MessageFilter)  ─→ newest matching messages        by the key index, or by reading the queues
resend_all(messages)          ─→ replay with a journal ─→ ReplayOutcome of each
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ariane.cluster.connection import BrokerUnavailable, Change
from ariane.cluster.messages.message_query import EVER_MS, MessageOperations, is_offset_id, to_message
from ariane.cluster.messages.message_sending import MessageSendOperations, to_original
from ariane.cluster.messages.queue_reading import ALL_TAGS, QueueServer
from ariane.errors import ArianeError, MessageRefused, NotFound
from ariane.model.message import ReceivedMessage
from ariane.model.topic import dlq_topic
from ariane.protocol.codes import RequestCode

if TYPE_CHECKING:
    from ariane.cluster.messages.replay import OriginalMessage, RecordId, ReplayJournal, ReplayOutcome

LIMIT = 20
RESEND_GROUP = "ARIANE_REPLAY"
RESEND_RATE = 500.0  # messages per second


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selection of messages; what is None selects all.

    Attributes:
        key: Business key or unique key.
        tag: Tag.
        text: Text that the body contains, as UTF-8.
        since_ms: Stored at this time or later, ms since the epoch.
        until_ms: Stored before this time.
    """

    key: str | None = None
    tag: str | None = None
    text: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def accepts(self, message: ReceivedMessage) -> bool:
        """Return whether a message belongs to the selection."""
        return (
            (self.key is None or self.key in message.keys or self.key == message.message_id)
            and (self.tag is None or self.tag == message.tags)
            and (self.text is None or self.text.encode() in message.body)
            and (self.since_ms is None or message.store_ms >= self.since_ms)
            and (self.until_ms is None or message.store_ms < self.until_ms)
        )

    @property
    def is_by_position(self) -> bool:
        """Whether times alone select, so that the newest messages are at the ends of the queues."""
        return self.key is None and self.tag is None and self.text is None


class SearchResult(NamedTuple):
    """The newest matching messages, in the order of their store times.

    Attributes:
        messages: The messages.
        matching: Number of messages that match; None if it is not known, because the rest was not read.
        unavailable: Brokers that did not respond.
    """

    messages: list[ReceivedMessage]
    matching: int | None
    unavailable: tuple[BrokerUnavailable, ...] = ()


class MessageSearchOperations(MessageOperations, MessageSendOperations):
    """Operations on selections of messages."""

    async def search(self, topic: str, selection: MessageFilter | None = None, *, limit: int = LIMIT) -> SearchResult:
        """Return the newest messages of a topic that match.

        A key is looked up in the brokers' indexes; tag and text are searched by reading the queues in the time range.

        Args:
            topic: Topic that stores the messages, also `%DLQ%GROUP` or `%RETRY%GROUP`.
            selection: Which messages; None: all.
            limit: Maximum number of messages.

        Raises:
            RouteNotFound: the topic does not exist, or is not readable.
        """
        wanted = selection or MessageFilter()
        if wanted.key is not None:
            end_ms = EVER_MS if wanted.until_ms is None else wanted.until_ms
            result = await self.query_by_key(topic, wanted.key, begin_ms=wanted.since_ms or 0, end_ms=end_ms)
            matching = [message for message in result.messages if wanted.accepts(message)]
            total = len(matching) if not (result.unavailable or result.truncated) else None
            return SearchResult(matching[-limit:], total, result.unavailable)
        return await self._search_queues(topic, wanted, limit)

    async def _search_queues(self, topic: str, wanted: MessageFilter, limit: int) -> SearchResult:
        newest: list[tuple[int, str, int, ReceivedMessage]] = []  # heap: the oldest of the newest first
        unavailable: dict[str, BrokerUnavailable] = {}
        matching = 0
        for at in await self.locate_queues(topic):
            if at.server.broker in unavailable:
                continue
            try:
                first, stop = await self.exact_time_bounds(at, wanted.since_ms, wanted.until_ms)
                if wanted.is_by_position:
                    matching += max(0, stop - first - limit)  # these are older than those that are read
                    first = max(first, stop - limit)
                async for message in self._read_matching(at, first, stop, wanted):
                    matching += 1
                    entry = (message.store_ms, message.queue.broker, message.commit_log_offset, message)
                    (heapq.heappush if len(newest) < limit else heapq.heappushpop)(newest, entry)
            except ArianeError as error:
                server = at.server
                unavailable[server.broker] = BrokerUnavailable(server.broker, server.addr, str(error))
        messages = [message for *_, message in sorted(newest, key=lambda entry: entry[:3])]
        return SearchResult(messages, None if unavailable else matching, tuple(unavailable.values()))

    async def _read_matching(
        self, at: QueueServer, first: int, stop: int, wanted: MessageFilter
    ) -> AsyncIterator[ReceivedMessage]:
        async for page in self.read_queue(at, first, stop, tags=wanted.tag or ALL_TAGS):
            for stored in page.records:
                message = to_message(stored, at.queue.broker)
                if wanted.accepts(message):
                    yield message

    async def find_dead_letter(self, group: str, message_id: str) -> ReceivedMessage:
        """Return the dead letter of a group with a unique key or an offset id; of several, the newest.

        Raises:
            NotFound: the group has no such dead letter.
            ServerUnavailable: it is on no broker that responded, and one did not.
        """
        topic = dlq_topic(group)
        matches = await self.find_messages(message_id, None if is_offset_id(message_id) else topic)
        matching = [message for message in matches.messages if message.queue.topic == topic]
        if matching:
            return matching[-1]
        if matches.messages:
            raise NotFound(
                f"dead letter of {group}", f"{message_id}: it is stored in {matches.messages[0].queue.topic}"
            )
        raise matches.not_found(f"dead letter of {group}", message_id)

    async def resend_all(
        self,
        messages: Sequence[ReceivedMessage],
        *,
        topic: str | None = None,
        journal: ReplayJournal | None = None,
    ) -> list[ReplayOutcome]:
        """Send copies of stored messages under new unique keys, at a limited rate. In a dry run return an empty list.

        Args:
            messages: The messages, for example dead letters.
            topic: Target topic; None: the original topic of each retried message or dead letter.
            journal: Where earlier outcomes are read from and these are stored: what it contains as sent is skipped.

        Returns:
            The outcome of each message that the journal did not contain as sent.

        Raises:
            ConfigError: `topic` does not exist.
        """
        originals = [to_original(message) for message in messages]
        if self.is_dry_run:
            self._record_resends(originals, topic)
            return []
        from ariane.client.instance.client_instance import ClientInstance
        from ariane.client.producer import Producer
        from ariane.cluster.messages.replay import ProducerTarget, ReplayPace, replay

        async def stream() -> AsyncIterator[OriginalMessage]:
            for original in originals:
                yield original

        recorder = _OutcomeRecorder(journal)
        async with (
            ClientInstance(self.name_servers, self.client) as instance,
            Producer(instance, RESEND_GROUP) as producer,
        ):
            target = ProducerTarget(instance, producer)
            await replay(stream(), target, recorder, topic=topic, pace=ReplayPace(RESEND_RATE))
        return list(recorder.outcomes.values())

    def _record_resends(self, originals: Sequence[OriginalMessage], topic: str | None) -> None:
        from ariane.cluster.messages.replay import build_message

        for original in originals:
            try:
                target = build_message(original, topic, "").topic
                summary = f"resend message {original.message_id} to topic {target}"
            except MessageRefused as error:
                summary = f"fail to resend message {original.message_id}: {error}"
            self.changes.append(Change(original.record_id.broker, summary, RequestCode.SEND_MESSAGE_V2))


class _OutcomeRecorder:
    """A journal that keeps the last outcome of each message, and writes to another journal if there is one."""

    def __init__(self, journal: ReplayJournal | None) -> None:
        self.outcomes: dict[RecordId, ReplayOutcome] = {}
        self._journal = journal

    def is_sent(self, place: RecordId) -> bool:
        return self._journal is not None and self._journal.is_sent(place)

    def message_id_of(self, place: RecordId) -> str | None:
        return None if self._journal is None else self._journal.message_id_of(place)

    def write(self, outcomes: list[ReplayOutcome]) -> None:
        if self._journal is not None:
            self._journal.write(outcomes)
        self.outcomes.update((outcome.record_id, outcome) for outcome in outcomes)
