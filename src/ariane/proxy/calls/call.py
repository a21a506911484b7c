"""A call, as its method sees it, and what the methods of all groups share."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ariane.errors import ArianeError
from ariane.kernels.grpc_port import ReceivedMessage, Reception
from ariane.model.topic import TopicConfig
from ariane.model.topic_attributes import TopicMessageType, accepted_types
from ariane.proxy.client_sessions import ClientSession
from ariane.proxy.conversion import grpc_statuses
from ariane.proxy.conversion.grpc_messages import SendLimits
from ariane.proxy.conversion.grpc_statuses import CallRefused
from ariane.proxy.message_service import BrokerTopic, Caller


class ReceivedEncoder(Protocol):
    """Encodes messages of receive calls together. [GrpcPort]"""

    def encode_received(self, records: bytes, reception: Reception) -> list[tuple[bytes, list[ReceivedMessage]]] | None:
        """Return the replies of a call in parts, each with its messages; None if one of these has to be decided about."""
        ...


class Call(NamedTuple):
    """One call."""

    caller: Caller
    session: ClientSession
    remaining_ms: float | None
    """Time to its deadline; None without one."""
    encoder: ReceivedEncoder | None = None
    """None: the transport encodes each reply."""

    def refusal_of(self, error: ArianeError) -> CallRefused:
        """Return the refusal that an error becomes for this caller."""
        return grpc_statuses.refusal_of(error, is_anonymous=self.caller.credentials is None)


class ProxySettings(Protocol):
    """Settings of the server, which may change while it runs."""

    @property
    def send_limits(self) -> SendLimits: ...

    @property
    def default_message_type(self) -> str:
        """Return what topics accept that declare no type: a `message.type`."""
        ...


def accepted_kinds(topic: TopicConfig, settings: ProxySettings) -> tuple[TopicMessageType, ...]:
    """Return the types of messages that may be sent to a topic."""
    return accepted_types(topic, TopicMessageType(settings.default_message_type))


def kinds_on(on_broker: BrokerTopic, settings: ProxySettings) -> tuple[TopicMessageType, ...]:
    """Return the types of messages that may be sent to a topic on a broker."""
    kinds = accepted_kinds(on_broker.topic, settings)
    return tuple(kind for kind in kinds if kind is not TopicMessageType.DELAY or on_broker.has_timers)
