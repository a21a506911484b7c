"""What the calls need of a cluster: typed requests in the name of a client. `broker_service` serves them in this process."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from ariane.model.topic import SubscriptionGroupConfig, TopicConfig
from ariane.net.replies import Peer
from ariane.protocol.requests.clients import HeartbeatData, UnregisterClient
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


class PoppedRecords(NamedTuple):
    """Messages that were taken for a group, and the parts of their handles."""

    header: PopMessageResponse
    records: bytes


class MessageService(Protocol):
    """Requests of clients. Each method raises ReplyError with the code and remark of a refusal."""

    @property
    def broker_name(self) -> str:
        """Return the name of the broker whose queues are served."""
        ...

    async def topic(self, caller: Caller, name: str) -> TopicConfig:
        """Return a topic that the caller may send to or receive from."""
        ...

    def group(self, name: str) -> SubscriptionGroupConfig:
        """Return the settings of a consumer group; the defaults if it does not exist yet."""
        ...

    async def send(self, caller: Caller, request: SendMessage, body: bytes) -> SendMessageResponse:
        """Store a message. With a ReplyError of a flush or a slave, it is stored, but not as durable as configured."""
        ...

    async def pop(self, caller: Caller, request: PopMessage) -> PoppedRecords:
        """Take messages, or wait for some."""
        ...

    async def acknowledge(self, caller: Caller, request: AckMessage) -> None:
        """End the delivery of a message."""
        ...

    async def change_invisible_time(self, caller: Caller, request: ChangeInvisibleTime) -> ChangeInvisibleTimeResponse:
        """Change when a message is delivered again."""
        ...

    async def send_back(self, caller: Caller, request: ConsumerSendMsgBack) -> None:
        """Store a message that was not consumed for another attempt, or as a dead letter."""
        ...

    async def end_transaction(self, caller: Caller, request: EndTransactionHeader) -> None:
        """Commit or roll back a transaction."""
        ...

    async def recall(self, caller: Caller, request: RecallMessage) -> str:
        """Cancel a delayed message. Return its unique key."""
        ...

    async def heartbeat(self, caller: Caller, data: HeartbeatData) -> None:
        """Refresh the memberships of a client."""
        ...

    async def unregister(self, caller: Caller, request: UnregisterClient) -> None:
        """End a membership of a client."""
        ...
