"""Values of a send: the message as prepared for any queue, and where and how safely it was stored."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from ariane.model.message import Message, MessageQueue
from ariane.protocol.codes import RequestCode, ResponseCode


class SendStatus(Enum):
    """How safely a message is stored. In all four states it is stored."""

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


class SendResult(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message was stored.

    For a batch, `message_id` and `offset_message_id` contain the ids of all messages, joined by commas, and `queue_offset` is
    the first message's.
    """

    status: SendStatus
    """Whether flush and replication were in time."""
    message_id: str
    """Id that the producer gave the message."""
    offset_message_id: str
    """Id that the broker gave it: store address and commit log offset."""
    queue: MessageQueue
    """Queue of the message."""
    queue_offset: int
    """Offset of the message in its queue."""
    transaction_id: str | None
    """Id of the transaction, for a half message."""
    region: str
    """Region of the broker, for traces."""
    trace_on: bool
    """Whether the broker wants traces of the message."""
    recall_handle: str | None = None
    """Identifies a delayed message to `Producer.recall`."""


class Redelivery(NamedTuple):
    """Makes a message a copy in a retry topic."""

    reconsume_times: int
    """Redeliveries so far, with this copy."""
    max_reconsume_times: int
    """Maximum number of redeliveries; after them the broker stores the message as a dead letter."""


class PreparedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message or a batch, ready for any queue of its topic."""

    code: RequestCode = RequestCode.SEND_MESSAGE_V2
    """Request that carries it: a message, a batch, or the reply to a request."""
    topic: str
    """Topic of all its messages."""
    body: bytes
    """Body as sent: compressed if it is large, encoded messages for a batch."""
    properties: str
    """Encoded properties."""
    sys_flag: int = 0
    """Bits for compression and transactions."""
    flag: int = 0
    """The application's flag."""
    is_delayed: bool = False
    """Whether it asks for a later delivery."""
    redelivery: Redelivery | None = None
    """Set for a copy in a retry topic."""
    needs_timer: bool = False
    """Whether the broker has to support delivery times other than levels."""
    messages: Sequence[Message] = ()
    """The application's messages, for traces; none for a copy in a retry topic."""
    ids: Sequence[str] = ()
    """Message ids, one per message that is stored; for results."""

    @property
    def is_batch(self) -> bool:
        """Whether the body is a batch."""
        return self.code == RequestCode.SEND_BATCH_MESSAGE


# A send that a broker stored: the message, the broker's address, wall-clock ms and monotonic seconds of the start and of the
# response, and the result. A tuple, because every send with traces makes one.
StoredSend = tuple[PreparedMessage, str, int, float, int, float, SendResult]
