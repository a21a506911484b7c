"""The message service over the handlers of a broker in this process: each request is a command, as if it came from a socket.

    request ─ signed with the keys of the account that has signed the call ─▶ handler of its code ─▶ reply

Handlers are those of the broker's ports, with access control, limits of accounts, audit records, write protection and replication.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from ariane.errors import ArianeError, ReplyError
from ariane.model.topic import SubscriptionGroupConfig, TopicConfig
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.replies import (
    AckHandler,
    Handler,
    LateReply,
    Peer,
    Reply,
    ServedTurn,
    TurnHandler,
    abandon,
    error_reply,
    not_supported,
)
from ariane.protocol import fastjson, signing
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command, Fields
from ariane.protocol.requests import decode_header, encode_header
from ariane.protocol.requests.clients import HeartbeatData
from ariane.protocol.requests.messaging import (
    ConsumerSendMsgBack,
    EndTransactionHeader,
    RecallMessage,
    RecallMessageResponse,
    SendMessage,
    SendMessageResponse,
)
from ariane.protocol.requests.pop import (
    AckedDelivery,
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PopMessage,
    PopMessageResponse,
)
from ariane.proxy.message_service import BrokerTopic, Caller, PoppedRecords

NOT_RESPONSIBLE = "this broker may not answer: another member of its set may have taken over"

SHOWN_MAX = 120  # characters of an unknown name in a text

Header = TypeVar("Header", bound=msgspec.Struct)
T = TypeVar("T")


class ServedTopics(Protocol):
    """Topics of the broker. [TopicRegistry]"""

    def get(self, name: str) -> TopicConfig | None: ...


class ServedGroups(Protocol):
    """Consumer groups of the broker. [GroupRegistry]"""

    def get(self, name: str) -> SubscriptionGroupConfig | None: ...


class BrokerMessageService:
    """Serves requests by the handlers of a broker. [MessageService]

    Args:
        broker_name: Name of the broker.
        handlers: By request code; GET_ROUTEINFO_BY_TOPIC only checks the topic and the caller's permissions.
        topics: Read once a route request is permitted.
        groups: Settings of groups.
        limits: Of all requests in flight; whether answers may be sent.
        master_host: Returns the host of a slave's master; empty at a master.
        sends: Stores plain sends; None if access control decides about each.
        acks: Serves acknowledgements together; None as for sends.
    """

    def __init__(
        self,
        *,
        broker_name: str,
        handlers: Mapping[int, Handler],
        topics: ServedTopics,
        groups: ServedGroups,
        limits: ServerLimits,
        master_host: Callable[[], str] = lambda: "",
        sends: TurnHandler | None = None,
        acks: AckHandler | None = None,
    ) -> None:
        self._broker_name = broker_name
        self._handlers = handlers
        self._topics = topics
        self._groups = groups
        self._limits = limits
        self._master_host = master_host
        self._sends = sends
        self._acks = acks

    async def topic(self, caller: Caller, name: str) -> tuple[BrokerTopic, ...]:
        """Return a topic that the caller may send to or receive from."""
        await self._request(caller, "", RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})
        topic = self._topics.get(name)
        if topic is None:
            raise ReplyError(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {name}")
        return (BrokerTopic(self._broker_name, topic, host=self._master_host()),)

    async def group(self, caller: Caller, name: str) -> SubscriptionGroupConfig:
        """Return the settings of a consumer group; the defaults if it does not exist yet."""
        return self._groups.get(name) or SubscriptionGroupConfig(group_name=name)

    async def send(self, caller: Caller, broker: str, request: SendMessage, body: bytes) -> SendMessageResponse:
        """Store a message."""
        code = RequestCode.SEND_MESSAGE_V2
        reply = await self._request(caller, broker, code, encode_header(request), body)
        return _decoded(code, reply, SendMessageResponse)

    def plain_topic(self, name: str) -> TopicConfig | None:
        """Return a topic that all clients may send to; None if `topic` has to decide."""
        return None if self._sends is None else self._topics.get(name)

    def send_turn(self, frames: bytes, position: int, peer: Peer) -> ServedTurn | None:
        """Store the plain sends in `frames` from `position` on. Return None if the next one has to be served by itself."""
        if self._sends is None or self._limits.overload_reason(0) or not self._may_answer():
            return None
        turn = self._sends.serve(frames, position, peer, 0.0)
        if turn is None or isinstance(turn.responses, bytes):
            return turn
        return turn._replace(responses=self._count_until_done(turn.responses, turn.requests))

    async def _count_until_done(self, responses: Awaitable[T], requests: int) -> T:
        self._limits.in_flight += requests
        try:
            done = await responses
        finally:
            self._limits.in_flight -= requests
        if not self._may_answer():
            raise ReplyError(ResponseCode.SERVICE_NOT_AVAILABLE, NOT_RESPONSIBLE)
        return done

    async def pop(self, caller: Caller, broker: str, request: PopMessage) -> PoppedRecords:
        """Take messages, or wait for some."""
        code = RequestCode.POP_MESSAGE
        reply = await self._request(caller, broker, code, encode_header(request))
        body = reply.body if isinstance(reply.body, bytes) else b"".join(reply.body)
        return PoppedRecords(self._broker_name, _decoded(code, reply, PopMessageResponse), body)

    async def acknowledge(self, caller: Caller, broker: str, request: AckMessage) -> None:
        """End the delivery of a message."""
        await self._request(caller, broker, RequestCode.ACK_MESSAGE, encode_header(request))

    def acknowledge_all(self, deliveries: Sequence[AckedDelivery]) -> Awaitable[None] | None:
        """End deliveries, all or nothing; raise ArianeError if `acknowledge` has to decide about each."""
        is_here = all(each.broker in ("", self._broker_name) for each in deliveries)
        if self._acks is None or not is_here or self._limits.overload_reason(0) or not self._may_answer():
            raise ReplyError(ResponseCode.SYSTEM_BUSY, "acknowledgements are not served together now")
        durable = self._acks(deliveries)
        return (
            None if durable is None else self._count_until_done(durable, sum(len(each.offsets) for each in deliveries))
        )

    async def change_invisible_time(
        self, caller: Caller, broker: str, request: ChangeInvisibleTime
    ) -> ChangeInvisibleTimeResponse:
        """Change when a message is delivered again."""
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        reply = await self._request(caller, broker, code, encode_header(request))
        return _decoded(code, reply, ChangeInvisibleTimeResponse)

    async def send_back(self, caller: Caller, broker: str, request: ConsumerSendMsgBack) -> None:
        """Store a message that was not consumed for another attempt, or as a dead letter."""
        await self._request(caller, broker, RequestCode.CONSUMER_SEND_MSG_BACK, encode_header(request))

    async def end_transaction(self, caller: Caller, broker: str, request: EndTransactionHeader) -> None:
        """Commit or roll back a transaction."""
        await self._request(caller, broker, RequestCode.END_TRANSACTION, encode_header(request))

    async def recall(self, caller: Caller, broker: str, request: RecallMessage) -> str:
        """Cancel a delayed message. Return its unique key."""
        code = RequestCode.RECALL_MESSAGE
        reply = await self._request(caller, broker, code, encode_header(request))
        return _decoded(code, reply, RecallMessageResponse).msg_id

    async def heartbeat(self, caller: Caller, data: HeartbeatData) -> None:
        """Refresh the memberships of a client."""
        await self._request(caller, "", RequestCode.HEART_BEAT, None, fastjson.write(data))

    async def _request(
        self, caller: Caller, broker: str, code: RequestCode, fields: Mapping[str, str] | None, body: bytes = b""
    ) -> Reply:
        """Return the reply of a handler. Raise ReplyError if its code is another than SUCCESS."""
        if broker not in ("", self._broker_name):
            remark = f"broker {broker[:SHOWN_MAX]!r} is not served here: this is {self._broker_name}"
            raise ReplyError(ResponseCode.NO_MESSAGE, remark)
        if caller.credentials is not None:
            fields = signing.sign(caller.credentials, fields, body)
        command = Command(code, fields=fields, body=body, language=caller.language, version=caller.version)
        overload = self._limits.rejection(code, self._limits.overload_reason(0), 0.0)
        reply = Reply(ResponseCode.SYSTEM_BUSY, remark=overload) if overload else await self._serve(command, caller)
        if not self._may_answer():
            abandon(reply)
            raise ReplyError(ResponseCode.SERVICE_NOT_AVAILABLE, NOT_RESPONSIBLE)
        if reply.code != ResponseCode.SUCCESS:
            raise ReplyError(reply.code, reply.remark)
        return reply

    def _may_answer(self) -> bool:
        return self._limits.may_answer is None or self._limits.may_answer()

    async def _serve(self, command: Command, caller: Caller) -> Reply:
        handler = self._handlers.get(command.code)
        if handler is None:
            return not_supported(command.code)
        self._limits.in_flight += 1
        try:
            result = handler(command, caller.peer)
            handled = result if result is None or isinstance(result, Reply) else await result
        except ArianeError as error:
            now = asyncio.get_running_loop().time()
            return error_reply(command.code, error, caller.peer, self._limits.log, now)
        finally:
            self._limits.in_flight -= 1
        reply = handled.build() if isinstance(handled, LateReply) else handled
        return reply or Reply()  # None: of a request that needs no response


def _decoded(code: int, reply: Reply, kind: type[Header]) -> Header:
    """Return the header of a reply."""
    fields: Fields = reply.fields or {}
    return decode_header(Command(code, fields=fields), kind)
