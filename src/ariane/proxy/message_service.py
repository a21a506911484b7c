"""What the calls need of a cluster: typed requests in the name of a client.

`broker_service` serves them by the handlers of a broker in this process.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from ariane.model.topic import SubscriptionGroupConfig, TopicConfig
from ariane.net.replies import Peer
from ariane.protocol.requests.clients import HeartbeatData
from ariane.protocol.requests.messaging import (
    ConsumerSendMsgBack,
    EndTransactionHeader,
    RecallMessage,
    SendMessage,
    SendMessageResponse,
)
from ariane.protocol.requests.pop import (
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PopMessage,
    PopMessageResponse,
)
from ariane.protocol.signing import Credentials


class Caller(msgspec.Struct, frozen=True):
    """The sender of a call."""

    peer: Peer
    """Its client, numbered as a connection is."""
    client_id: str
    language: str
    version: int
    """Version of RocketMQ that servers list for it."""
    credentials: Credentials | None = None
    """Keys of the account that has signed the call, and has proven it; None without a signature."""


class BrokerTopic(NamedTuple):
    """A topic on one of its brokers."""

    broker: str
    topic: TopicConfig
    has_timers: bool = True
    """Whether a message can be delayed to any time. Brokers of 4.x would deliver it at once."""
    answers: bool = True
    """Whether the broker has answered its last request."""
    host: str = ""
    """Where clients reach it, at the port of this server; empty: at this server."""


class PoppedRecords(NamedTuple):
    """Messages that were taken for a group, and the parts of their handles."""

    broker: str
    header: PopMessageResponse
    records: bytes
    retains_handles: bool = True
    """Whether a delivery can be renewed so that its handle stays valid."""


class MessageService(Protocol):
    """Requests of clients. Each method raises ReplyError with the code and remark of a refusal.

    `broker` is the name of one that has the topic of the request. If it is empty, the service selects one.
    """

    async def topic(self, caller: Caller, name: str) -> tuple[BrokerTopic, ...]:
        """Return a topic that the caller may send to or receive from, on each of its brokers: at least one."""
        ...

    async def group(self, caller: Caller, name: str) -> SubscriptionGroupConfig:
        """Return the settings of a consumer group; the defaults if it does not exist yet."""
        ...

    async def send(self, caller: Caller, broker: str, request: SendMessage, body: bytes) -> SendMessageResponse:
        """Store a message. With a ReplyError of a flush or a slave, it is stored, but not as durable as configured."""
        ...

    async def pop(self, caller: Caller, broker: str, request: PopMessage) -> PoppedRecords:
        """Take messages, or wait for some."""
        ...

    async def acknowledge(self, caller: Caller, broker: str, request: AckMessage) -> None:
        """End the delivery of a message."""
        ...

    async def change_invisible_time(
        self, caller: Caller, broker: str, request: ChangeInvisibleTime
    ) -> ChangeInvisibleTimeResponse:
        """Change when a message is delivered again."""
        ...

    async def send_back(self, caller: Caller, broker: str, request: ConsumerSendMsgBack) -> None:
        """Store a message that was not consumed for another attempt, or as a dead letter."""
        ...

    async def end_transaction(self, caller: Caller, broker: str, request: EndTransactionHeader) -> None:
        """Commit or roll back a transaction."""
        ...

    async def recall(self, caller: Caller, broker: str, request: RecallMessage) -> str:
        """Cancel a delayed message. Return its unique key."""
        ...

    async def heartbeat(self, caller: Caller, data: HeartbeatData) -> None:
        """Refresh the memberships of a client."""
        ...
