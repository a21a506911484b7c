"""The message service over a cluster of brokers: each request goes to the master of its broker, on the link of its client.

    request ─ topic, broker ─▶ ClusterRoutes: address of the master ─▶ ClientLinks: connection of the client ─▶ reply

A route is fetched again after a request that its broker did not answer, so that clients go on after a switch of the master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Protocol

import msgspec

from ariane.errors import ArianeError, ConnectionLost, ReplyError, RequestTimeout
from ariane.model.topic import SubscriptionGroupConfig, TopicConfig, pop_topics
from ariane.net.replies import Peer, ServedTurn
from ariane.net.tasks import BackgroundTasks
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import OUR_LANGUAGE, Command
from ariane.protocol.records import record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.clients import HeartbeatData
from ariane.protocol.requests.messaging import (
    UNKNOWN,
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
from ariane.proxy.cluster.client_links import ClientLinks
from ariane.proxy.cluster.cluster_routes import ClusterRoutes, RoutedTopic
from ariane.proxy.conversion import receipt_handles
from ariane.proxy.message_service import BrokerTopic, Caller, PoppedRecords

TIMEOUT_MS = 3_000
POLL_GRACE_MS = 3_000  # after the end of a parked request
RELEASE_MS = 1
NOTHING = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.POLLING_TIMEOUT)
SWITCHED = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NO_PERMISSION)  # of a master that is one no more


class RouteCheck(Protocol):
    """Accounts of the proxy."""

    async def check_topic(self, caller: Caller, topic: str) -> None:
        """Raise ReplyError if the caller may neither send to a topic nor receive from it."""
        ...


class ClusterMessageService:
    """Serves requests by the brokers of a cluster. [MessageService]

    Args:
        routes: Of topics.
        links: Of clients.
        tasks: For work that outlives its call.
        access: Who may know a topic; None: everybody.
    """

    def __init__(
        self, *, routes: ClusterRoutes, links: ClientLinks, tasks: BackgroundTasks, access: RouteCheck | None
    ) -> None:
        self._routes = routes
        self._links = links
        self._tasks = tasks
        self._access = access

    async def topic(self, caller: Caller, name: str) -> tuple[BrokerTopic, ...]:
        """Return a topic that the caller may send to or receive from, on each of its brokers."""
        if self._access is not None:
            await self._access.check_topic(caller, name)
        return tuple(routed.on_broker for routed in (await self._routes.topic(name)).values())

    async def group(self, caller: Caller, name: str) -> SubscriptionGroupConfig:
        """Return the settings of a consumer group; the defaults if it does not exist yet."""
        return await self._routes.group(name)

    async def send(self, caller: Caller, broker: str, request: SendMessage, body: bytes) -> SendMessageResponse:
        """Store a message."""
        routed = await self._routes.broker(request.topic, broker)
        response = await self._request(caller, routed, RequestCode.SEND_MESSAGE_V2, request, body)
        return decode_header(response, SendMessageResponse)

    def plain_topic(self, name: str) -> TopicConfig | None:
        """Return None: each send is a request of its own."""
        return None

    def send_turn(self, frames: bytes, position: int, peer: Peer) -> ServedTurn | None:
        """Return None: no sends are stored together."""
        return None

    def acknowledge_all(self, deliveries: Sequence[AckedDelivery]) -> Awaitable[None] | None:
        """Raise ReplyError: each acknowledgement is a request of its own."""
        raise ReplyError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "brokers are sent each acknowledgement by itself")

    async def pop(self, caller: Caller, broker: str, request: PopMessage) -> PoppedRecords:
        """Take messages, or wait for some. Those of a call that is cancelled meanwhile are visible again at once."""
        routed = await self._routes.broker(request.topic, broker)
        taking = asyncio.ensure_future(self._pop(caller, routed, request))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._tasks.start(self._give_back(caller, request, taking), f"release messages of {caller.peer.addr}")
            raise

    async def acknowledge(self, caller: Caller, broker: str, request: AckMessage) -> None:
        """End the delivery of a message."""
        await self._request(caller, await self._of_delivery(request, broker), RequestCode.ACK_MESSAGE, request)

    async def change_invisible_time(
        self, caller: Caller, broker: str, request: ChangeInvisibleTime
    ) -> ChangeInvisibleTimeResponse:
        """Change when a message is delivered again."""
        routed = await self._of_delivery(request, broker)
        response = await self._request(caller, routed, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, request)
        return decode_header(response, ChangeInvisibleTimeResponse)

    async def send_back(self, caller: Caller, broker: str, request: ConsumerSendMsgBack) -> None:
        """Store a message that was not consumed for another attempt, or as a dead letter."""
        routed = await self._routes.broker(request.origin_topic or "", broker)
        await self._request(caller, routed, RequestCode.CONSUMER_SEND_MSG_BACK, request)

    async def end_transaction(self, caller: Caller, broker: str, request: EndTransactionHeader) -> None:
        """Commit or roll back a transaction."""
        routed = await self._routes.broker(request.producer_group, broker)
        if request.commit_or_rollback != UNKNOWN:
            await self._request(caller, routed, RequestCode.END_TRANSACTION, request)
        else:  # brokers of Apache do not answer that
            async with self._links.link(caller, routed.on_broker.broker) as link:
                await link.one_way(routed.addr, RequestCode.END_TRANSACTION, request)

    async def recall(self, caller: Caller, broker: str, request: RecallMessage) -> str:
        """Cancel a delayed message. Return its unique key."""
        routed = await self._routes.broker(request.topic, broker)
        response = await self._request(caller, routed, RequestCode.RECALL_MESSAGE, request)
        return decode_header(response, RecallMessageResponse).msg_id

    async def heartbeat(self, caller: Caller, data: HeartbeatData) -> None:
        """Refresh the memberships of a client at the brokers of its topics; at those only that answer, if any does."""
        topics = [producer.group_name for producer in data.producers]
        topics += [each.topic for consumer in data.consumers for each in consumer.subscription_data_set]
        routes = await asyncio.gather(*map(self._routes.topic, dict.fromkeys(topics)), return_exceptions=True)
        by_addr = {
            each.addr: each for route in routes if not isinstance(route, BaseException) for each in route.values()
        }
        body = fastjson.write(data)
        answering = [each for each in by_addr.values() if each.on_broker.answers] or by_addr.values()
        beats = [self._request(caller, each, RequestCode.HEART_BEAT, None, body) for each in answering]
        _raise_failure(await asyncio.gather(*beats, return_exceptions=True), routes)

    # --- requests ---

    async def _of_delivery(self, request: AckMessage | ChangeInvisibleTime, broker: str) -> RoutedTopic:
        """Return the broker of a delivery. Retry topics of Apache have no route of their own before the first retry."""
        topic, prefix = request.topic, pop_topics(request.consumer_group, "")[1:]
        for each in prefix:
            topic = topic.removeprefix(each)
        return await self._routes.broker(topic, broker)

    async def _pop(self, caller: Caller, routed: RoutedTopic, request: PopMessage) -> PoppedRecords:
        timeout_ms = request.poll_time + POLL_GRACE_MS
        try:
            response = await self._request(caller, routed, RequestCode.POP_MESSAGE, request, timeout_ms=timeout_ms)
        except ReplyError as error:
            if error.code in NOTHING:
                raise ReplyError(ResponseCode.POLLING_TIMEOUT, error.remark) from None
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                name = routed.on_broker.broker
                remark = f"broker {name} cannot serve consumers of RocketMQ 5: POP needs RocketMQ 5.0, or Ariane"
                raise ReplyError(error.code, remark) from None
            raise
        header = decode_header(response, PopMessageResponse)
        return PoppedRecords(routed.on_broker.broker, header, response.body, response.language == OUR_LANGUAGE)

    async def _give_back(self, caller: Caller, request: PopMessage, taking: asyncio.Future[PoppedRecords]) -> None:
        try:
            taken = await taking
        except ArianeError:  # nothing was taken, or the broker gives it back by itself
            return
        records = record.decode_all(taken.records)
        for item, handle in receipt_handles.with_handles(records, request, taken.broker, taken.header):
            change = ChangeInvisibleTime(
                request.consumer_group, item.topic, item.queue_id, handle.extra_info, item.queue_offset, RELEASE_MS
            )
            await self.change_invisible_time(caller, taken.broker, change)

    async def _request(
        self,
        caller: Caller,
        routed: RoutedTopic,
        code: RequestCode,
        header: msgspec.Struct | None,
        body: bytes = b"",
        *,
        timeout_ms: float = TIMEOUT_MS,
    ) -> Command:
        """Return the successful response of a broker. Raise ReplyError, RequestTimeout or ConnectionLost."""
        try:
            async with self._links.link(caller, routed.on_broker.broker) as link:
                return await link.request_ok(routed.addr, code, header, body, timeout_ms=timeout_ms)
        except (ConnectionLost, RequestTimeout):
            self._routes.on_silence(routed.addr)
            self._routes.expire(routed.on_broker.topic.topic_name)
            raise
        except ReplyError as error:
            if error.code in SWITCHED:
                self._routes.expire(routed.on_broker.topic.topic_name)
            raise


def _raise_failure(beats: Sequence[object], routes: Iterable[object]) -> None:
    """Raise the first refusal of a heartbeat or route. Brokers may be silent if another one has answered, and topics absent."""
    for error in (*beats, *routes):
        is_silent = isinstance(error, ConnectionLost | RequestTimeout)
        is_absent = isinstance(error, ReplyError) and error.code == ResponseCode.TOPIC_NOT_EXIST
        if isinstance(error, BaseException) and not is_silent and not is_absent:
            raise error
    failures = [each for each in beats if isinstance(each, BaseException)]
    if failures and len(failures) == len(beats):
        raise failures[0]
