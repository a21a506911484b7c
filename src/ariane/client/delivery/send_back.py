"""Failed messages: sent back to the broker for redelivery. [CONSUMER_SEND_MSG_BACK (36)]

    36 to the message's broker ─ error, no connection ─→ a copy to %RETRY%<group>, delayed ─ error ─→ local retry
                               └ code 3: the broker does not support retries ───────────────────────→ local retry

Local retry: the message stays in the offset tracker, so no committed offset passes it, and the listener is called again after
a pause.
"""

from __future__ import annotations

import logging
from typing import Protocol

from ariane.client.instance.message_texts import identity
from ariane.client.instance.namespace import Namespace
from ariane.client.instance.route_cache import RouteCache
from ariane.client.instance.send_types import PreparedMessage, Redelivery
from ariane.client.instance.settings import ProducerSettings
from ariane.client.sending.sender import MessageSender
from ariane.errors import ArianeError, ConnectionLost, ReplyError
from ariane.model import message as names
from ariane.model.message import ReceivedMessage
from ariane.model.topic import retry_topic
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.records import compression, properties
from ariane.protocol.records.received_messages import is_unreadable
from ariane.protocol.requests.messaging import ConsumerSendMsgBack

log = logging.getLogger("ariane.client")

TIMEOUT_MS = 5_000
FIRST_DELAY_LEVEL = 3  # levels 1 and 2 (1 s, 5 s) are too short for a retry; brokers start at 3, too
DEAD_LETTER = -1


class SendBackStrategy(Protocol):
    """Handles messages that the listener failed on. Both methods return False if the message has to be retried locally."""

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool: ...

    async def send_copy(self, message: ReceivedMessage) -> bool: ...


class SendBack:
    """Sends failed messages of one group back to the brokers."""

    def __init__(
        self,
        peers: ConnectionPool,
        routes: RouteCache,
        sender: MessageSender,
        group: str,
        max_reconsume_times: int,
        namespace: Namespace | None = None,
    ) -> None:
        self._peers = peers
        self._routes = routes  # finds the master of a message's broker
        self._sender = sender  # sends copies, in the client's own producer group
        self._group = group  # consumer group, whose retry topic receives the copies
        self._max = max_reconsume_times  # redeliveries before a message becomes a dead letter
        self._namespace = namespace or Namespace("")  # of the original topic in the properties of a copy

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Send a message back for redelivery. Return True if a broker has it."""
        if is_unreadable(message):
            log.error(
                "Sending message %s to the dead-letter topic of group %s, with its body as stored: %s",
                identity(message),
                self._group,
                message.body_error,
            )
        self._log_last_attempt(message)
        request = ConsumerSendMsgBack(
            offset=message.commit_log_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            max_reconsume_times=self._max,
        )
        try:
            # The master, also for a message that was pulled from a slave: slaves store no messages.
            addr = self._routes.master_address(message.queue.broker)
            if addr is None:
                raise ConnectionLost(message.queue.broker, "no master in the cached routes")
            await self._peers.request_ok(addr, RequestCode.CONSUMER_SEND_MSG_BACK, request, timeout_ms=TIMEOUT_MS)
        except ArianeError as error:
            log.warning("Group %s could not send message %s back: %s", self._group, identity(message), error)
            # A broker without retries has no retry topic either.
            if isinstance(error, ReplyError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return False
            # A copy with all attempts used up becomes a dead letter, also if this member does not read the retry topic.
            return await self._send_copy(message, self._max if delay_level == DEAD_LETTER else 0)
        return True

    async def send_copy(self, message: ReceivedMessage) -> bool:
        """Send a copy to the group's retry topic. After the last attempt the broker turns it into a dead letter."""
        self._log_last_attempt(message)
        return await self._send_copy(message)

    def _log_last_attempt(self, message: ReceivedMessage) -> None:
        if message.reconsume_times >= self._max and not is_unreadable(message):
            log.error(
                "Message %s becomes a dead letter of group %s: it failed %d times",
                identity(message),
                self._group,
                message.reconsume_times + 1,
            )

    async def _send_copy(self, message: ReceivedMessage, attempts: int = 0) -> bool:
        redelivery = Redelivery(max(message.reconsume_times + 1, attempts), self._max)
        try:
            copy = copy_to_retry(message, self._group, redelivery, self._sender.settings, self._namespace)
            await self._sender.send(copy)
        except ArianeError as error:
            log.warning(
                "Group %s could not send message %s to its retry topic: %s", self._group, identity(message), error
            )
            return False
        return True


class RetryLocally:
    """Retries messages in the client, because this member does not read the retry topic; the last attempt ends in the
    dead-letter topic."""

    def __init__(self, broker: SendBackStrategy, max_reconsume_times: int) -> None:
        self._broker = broker
        self._max = max_reconsume_times

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Return False, unless the message has to become a dead letter."""
        if delay_level != DEAD_LETTER and message.reconsume_times < self._max:
            return False
        return await self._broker.send_back(message, DEAD_LETTER)

    async def send_copy(self, message: ReceivedMessage) -> bool:
        """Make the message a dead letter: its attempts are used up."""
        return await self._broker.send_back(message, DEAD_LETTER)


def copy_to_retry(
    message: ReceivedMessage, group: str, redelivery: Redelivery, settings: ProducerSettings, namespace: Namespace
) -> PreparedMessage:
    """Return a copy of the message, prepared for the group's retry topic."""
    table = dict(message.properties)
    # Otherwise the broker would take the copy for a half message.
    table.pop(names.TRAN_MSG, None)
    table.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
    table[names.RETRY_TOPIC] = namespace.wrap(message.topic)
    table[names.DELAY] = str(FIRST_DELAY_LEVEL + message.reconsume_times)
    body, sys_flag = message.body, 0
    if is_unreadable(message):
        sys_flag = message.sys_flag & (names.COMPRESSED | names.COMPRESSION_MASK)
    elif len(body) >= settings.compress_from:
        body, sys_flag = compression.compress(body, settings.compression, settings.compress_level)
    return PreparedMessage(
        topic=retry_topic(group),
        body=body,
        properties=properties.encode(table),
        sys_flag=sys_flag,
        flag=message.flag,
        messages=(),
        ids=(message.message_id,),
        redelivery=redelivery,
    )
