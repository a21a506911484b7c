"""Pull consumer: reads queues at offsets that the application chooses, without joining a group. [DefaultMQPullConsumer]

    async with PullConsumer("127.0.0.1:9876") as consumer:
        for queue in await consumer.queues_of("orders"):
            first, end = await consumer.bounds(queue)
            result = await consumer.pull(queue, first)           # result.messages; continue at result.next_offset

No broker lists this consumer, and it commits no offsets: for tools and for applications that store their own positions. So
hooks and traces record a pulled message as consumed, with success and in no time, when `pull` returns it: what the application
does with it afterwards is unknown.
Pulls are requests of the group TOOLS_CONSUMER, which exists on every broker.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Generic, Unpack, cast, overload

from ariane.client.client_arguments import PullConsumerArguments
from ariane.client.consuming.offset_store import OffsetStore
from ariane.client.consuming.payload_messages import M, PayloadMessage, with_payload
from ariane.client.consuming.subscriptions import Sql, subscription_data
from ariane.client.delivery.consume_events import ConsumeEvents
from ariane.client.instance import validation
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.hooks import ConsumeHook, ConsumeReturn
from ariane.client.instance.message_texts import identity
from ariane.client.instance.settings import ClientSettings, ConsumerSettings, TraceSettings
from ariane.client.membership.consuming_client import ConsumingClient
from ariane.client.membership.fetcher import PullResult, parse_pull_result, require_sql_support
from ariane.errors import ConnectionLost, ReplyError, RequestTimeout
from ariane.filter import tags
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.payloads import P, PayloadCodec
from ariane.protocol.codes import PULL_RESULT_CODES, RequestCode
from ariane.protocol.records.received_messages import is_unreadable
from ariane.protocol.requests.messaging import SUBSCRIPTION, SUSPEND, TAG, PullMessage

log = logging.getLogger("ariane.client")

TOOLS_GROUP = "TOOLS_CONSUMER"


class PullConsumer(ConsumingClient, Generic[M]):
    """Reads queues without a consumer group.

    Args:
        namesrv: Name server addresses, `"host:port;host:port"` or a list; or an open `ClientInstance` to share.
        group: Group that the pull requests name; brokers must have it, but it is not joined.
        settings: `pull_batch`, `suspend_time` and `pull_timeout` count; the other fields have no effect.
        client: Settings of the client instance; a shared one has its own.
        trace: True or `TraceSettings` to record each pulled message as consumed: `SubBefore` and `SubAfter` with success and
            a duration of 0 ms, when `pull` returns it. Pulling it again records it again.
        hooks: Functions that receive `ConsumeStarted` and `ConsumeFinished` for the messages that `pull` returns.
        payload: Codec of the bodies, such as `ariane.payloads.Json(Order)`: `result.messages` have `payload`, an `Order`. Messages
            whose bodies it cannot decode are logged and in `result.unreadable`.

    Raises:
        ConfigError: an argument cannot be used; raised before anything is connected.

    Example:
        async with PullConsumer("127.0.0.1:9876") as consumer:
            queues = await consumer.queues_of("orders")
            result = await consumer.pull(queues[0], 0)
    """

    @overload
    def __init__(
        self: PullConsumer[ReceivedMessage],
        namesrv: str | Sequence[str] | ClientInstance,
        group: str = ...,
        *,
        payload: None = ...,
        **arguments: Unpack[PullConsumerArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: PullConsumer[PayloadMessage[P]],
        namesrv: str | Sequence[str] | ClientInstance,
        group: str = ...,
        *,
        payload: PayloadCodec[P],
        **arguments: Unpack[PullConsumerArguments],
    ) -> None: ...

    def __init__(
        self,
        namesrv: str | Sequence[str] | ClientInstance,
        group: str = TOOLS_GROUP,
        *,
        settings: ConsumerSettings | None = None,
        client: ClientSettings | None = None,
        trace: TraceSettings | bool = False,
        hooks: Sequence[ConsumeHook] = (),
        payload: PayloadCodec[Any] | None = None,
    ) -> None:
        super().__init__(namesrv, group, settings=settings, client=client, trace=trace, hooks=hooks)
        self._codec: PayloadCodec[Any] | None = validation.codec(
            payload
        )  # decodes bodies; None: messages have no payload
        # Notifies hooks and traces of pulled messages; None unless the consumer is open.
        self._events: ConsumeEvents | None = None
        # Which server of a broker to pull each queue from, as its last response suggested.
        self._broker_ids: dict[MessageQueue, int] = {}
        # Version of each subscription: brokers cache compiled expressions by it.
        self._versions: dict[tuple[str, str | Sql], int] = {}

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str | Sql = tags.ALL,
        max_messages: int | None = None,
        can_wait: bool = True,
    ) -> PullResult[M]:
        """Return the messages of a queue from `offset` on.

        Args:
            queue: One of `queues_of`.
            offset: Offset of the first message.
            expression: Tags joined by `||`, `"*"` for every message, or `Sql(…)`.
            max_messages: At most this many messages; `settings.pull_batch` if None. Brokers have a limit of their own.
            can_wait: Whether the broker holds the request, for at most `settings.suspend_time`, while it has no message.

        Returns:
            The messages, and the offset of the next pull.

        Raises:
            ClientClosed: the consumer is not open.
            ConfigError: an argument cannot be used.
            ConnectionLost, RequestTimeout, ReplyError: the broker did not respond, or with an error.
        """
        self._running_offsets()
        instance, settings = self._instance, self.settings
        if max_messages is not None:
            validation.whole("max_messages", max_messages, 1, 2**31 - 1)
        version = self._versions.setdefault((queue.topic, expression), instance.clock.now_ms())
        subscription = subscription_data(queue.topic, expression, version)
        await instance.routes.subscribe_queues(queue.topic)  # fetches the route
        address = instance.routes.pull_address(queue.broker, self._broker_ids.get(queue, 0))
        if address is None:
            raise ConnectionLost(queue.broker, "not in the cached routes")
        if subscription.expression_type != TAG:
            await require_sql_support(address.addr, instance)
        request = PullMessage(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_messages or settings.pull_batch,
            sys_flag=SUBSCRIPTION | (SUSPEND if can_wait else 0),
            suspend_timeout_millis=round(settings.suspend_time * 1000) if can_wait else 0,
            sub_version=subscription.sub_version,
            subscription=subscription.sub_string,
            expression_type=subscription.expression_type,
        )
        try:
            response = await instance.peers.request(
                address.addr, RequestCode.PULL_MESSAGE, request, timeout_ms=settings.pull_timeout * 1000
            )
        except (ConnectionLost, RequestTimeout):
            # The broker may have moved; the instance refreshes only the routes of groups and producers.
            await instance.routes.refresh([queue.topic])
            raise
        if response.code not in PULL_RESULT_CODES:
            raise ReplyError(response.code, response.remark, address.addr)
        result = parse_pull_result(response, queue, subscription.tags_set, instance.namespace)
        self._broker_ids[queue] = result.broker_id
        if self._codec is not None:
            decoded = [with_payload(message, self._codec) for message in result.messages]
            for message in filter(is_unreadable, decoded):
                log.error("Cannot decode message %s: %s", identity(message), message.body_error)
            result = result._replace(
                messages=[message for message in decoded if not is_unreadable(message)],
                unreadable=tuple(filter(is_unreadable, decoded)),
            )
        if result.messages and self._events is not None:
            consumption = await self._events.start(queue, result.messages)
            await self._events.finish(consumption, ConsumeReturn.SUCCESS)
        return cast(PullResult[M], result)

    async def _join(self, opening: AsyncExitStack, offsets: OffsetStore, events: ConsumeEvents) -> None:
        self._events = events
