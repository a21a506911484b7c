"""RECALL_MESSAGE (370) of 5.x: cancel a message that is pending in the timer topic. [RecallMessageProcessor of 5.x]

A message is named by the response to its send: the message id, or the recall handle that 5.x clients get. Its unique key works
too, and is the only name of a timer that was moved to a newer part of the log. Clients without this code send any message to the
same topic with the name in its property TIMER_DEL_UNIQKEY (see `send`).
"""

from __future__ import annotations

from ariane.broker.collaborators import Durability
from ariane.broker.delivery import delayed_delivery
from ariane.broker.lifecycle.offset_waiters import OffsetWaiter
from ariane.errors import FlushFailed, ProtocolError, ReplyError, StoreError
from ariane.model import ids
from ariane.model.topic import TIMER_TOPIC
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header, encode_header
from ariane.protocol.requests.messaging import RecallMessage, RecallMessageResponse
from ariane.store.index.key_query import KeyQuery
from ariane.store.message_store import AppendResult, MessageStore

SAME_KEY_MAX = 32  # timers looked up by one unique key: a message that is sent again has the same one


class RecallHandler:
    """Cancels timers before they are due."""

    def __init__(
        self, *, store: MessageStore, deliveries: delayed_delivery.DeliveryLoop, durability: Durability
    ) -> None:
        self._store = store
        self._deliveries = deliveries
        self._durability = durability

    def recall(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle RECALL_MESSAGE. An unknown or delivered timer is answered with code 1 and the reason."""
        request = decode_header(command, RecallMessage)
        try:
            timer, result = self.cancel(request.recall_handle, peer.packed)
        except StoreError as error:
            return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
        reply = Reply(fields=encode_header(RecallMessageResponse(timer.unique_key or request.recall_handle)))
        flushed = self._durability.wait_flushed(result.offset + result.size)
        return reply if flushed is None else flushed.then(lambda waiter: _flushed_reply(waiter, reply))

    def cancel(self, name: str, born_host: bytes) -> tuple[delayed_delivery.DeliveryTimer, AppendResult]:
        """Cancel a timer.

        Args:
            name: Message id, unique key or recall handle.
            born_host: Packed address of the client.

        Returns:
            The timer, and where its cancellation is stored.

        Raises:
            ReplyError: no pending timer has this name.
        """
        timer = self._find_timer(name)
        return timer, self._deliveries.cancel(timer.number, timer.due_ms, born_host, timer.unique_key)

    def _find_timer(self, name: str) -> delayed_delivery.DeliveryTimer:
        try:
            offset = ids.parse_offset_message_id(name)[1]
        except ProtocolError:
            key = ids.recalled_key(name).rpartition("+")[2]  # in TIMER_DEL_UNIQKEY, 5.x puts the topic before it
        else:
            timer = delayed_delivery.decode_timer(self._store.read_record(offset))
            if timer is not None:
                return timer
            key = name  # a unique key may have the length of a message id
        records = self._store.query(KeyQuery(TIMER_TOPIC, key, SAME_KEY_MAX)).records
        timers = [timer for data in records if (timer := delayed_delivery.decode_timer(data)) is not None]
        if not timers:
            remark = f"no pending timer is named {name}: use its message id, unique key or recall handle"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        return max(timers)  # a timer that was moved to a newer part of the log has the higher number


def _flushed_reply(flushed: OffsetWaiter[bool], reply: Reply) -> Reply:
    try:
        is_flushed = flushed.result()
    except FlushFailed as error:
        return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
    return reply if is_flushed else Reply(ResponseCode.FLUSH_DISK_TIMEOUT, reply.fields)
