"""Requests of POP: take messages from a broker, acknowledge them, change when they are visible again. [MQClientAPIImpl]

POP_MESSAGE (200050)                    all queues of a topic at one broker; parked while they are empty
ACK_MESSAGE, BATCH_ACK_MESSAGE          one message; several of one broker
CHANGE_MESSAGE_INVISIBLETIME (200053)   the response has the parts of the new handle
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ariane.client.consuming.pop_deliveries import NO_RETRY, Delivery, batch_acks, taken_records
from ariane.client.instance.client_instance import ClientInstance
from ariane.errors import ConnectionLost, PopUnsupported, ReplyError
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.protocol import fastjson
from ariane.protocol.client_rules.transient import NO_RESPONSE
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records.received_messages import to_received_message
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.pop import (
    FROM_END,
    AckMessage,
    BatchAckBody,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PopMessage,
)

COUNT_MAX = 32  # messages of one response
ALL_QUEUES = -1
# 5.x compares `bornTime` with its own clock, and refuses requests that are late. One that is not parked has no time limit.
CLOCK_ERROR_MS = 86_400_000


class PopSource(NamedTuple):
    """All queues of a topic at one broker."""

    topic: str
    broker: str


class PopRequests:
    """Requests of one consumer group."""

    def __init__(self, instance: ClientInstance, group: str, *, from_end: bool) -> None:
        self._instance = instance  # connections, routes and the clock
        self._group = group
        self._from_end = from_end  # where a group without an offset starts

    async def take(
        self, source: PopSource, subscription: SubscriptionData, count: int, invisible_ms: int, poll_ms: int
    ) -> list[tuple[ReceivedMessage, Delivery]]:
        """Take up to `count` messages; none if there were none within `poll_ms`.

        Raises:
            PopUnsupported: the broker does not serve POP.
            ConnectionLost, RequestTimeout, ReplyError: the broker did not respond, or with an error.
            ProtocolError: the response is not valid.
        """
        request = PopMessage(
            consumer_group=self._group,
            topic=source.topic,
            queue_id=ALL_QUEUES,
            max_msg_nums=count,
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=self._instance.clock.now_ms() + (0 if poll_ms else CLOCK_ERROR_MS),
            init_mode=FROM_END if self._from_end else 0,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
        )
        response = await self._request(source.broker, RequestCode.POP_MESSAGE, request, wait_ms=poll_ms)
        if response.code == ResponseCode.POLLING_TIMEOUT:
            return []
        self._check(response, source.broker)
        namespace = self._instance.namespace
        group, topic = namespace.wrap(self._group), namespace.wrap(source.topic)
        taken = []
        for stored, properties, delivery in taken_records(response, source.broker, group, topic):
            queue = MessageQueue(delivery.stored_topic(self._group, source.topic), source.broker, delivery.queue_id)
            message = to_received_message(stored, properties, queue, namespace.unwrap)
            # A record in a retry topic may lack the name of the original topic.
            taken.append((msgspec.structs.replace(message, topic=source.topic), delivery))
        return taken

    async def acknowledge(self, source: PopSource, deliveries: Sequence[Delivery]) -> None:
        """End deliveries of one topic at one broker. Those that have ended already are ignored by the broker.

        Raises:
            ConnectionLost, RequestTimeout, ReplyError: the broker did not respond, or with an error.
        """
        if len(deliveries) == 1:
            (delivery,) = deliveries
            ack = AckMessage(
                self._group, self._stored_topic(source, delivery), delivery.queue_id, delivery.handle, delivery.offset
            )
            response = await self._request(source.broker, RequestCode.ACK_MESSAGE, ack)
        else:
            namespace = self._instance.namespace
            acks = tuple(batch_acks(deliveries, namespace.wrap(self._group), namespace.wrap(source.topic)))
            body = fastjson.write(BatchAckBody(acks, source.broker))
            response = await self._request(source.broker, RequestCode.BATCH_ACK_MESSAGE, body=body)
        self._check(response, source.broker)

    async def change_invisible(self, source: PopSource, delivery: Delivery, invisible_ms: int) -> Delivery | None:
        """Make a message visible again `invisible_ms` from now.

        Returns:
            The delivery that continues; None if it had ended already.

        Raises:
            ConnectionLost, RequestTimeout, ReplyError: the broker did not respond, or with an error.
        """
        request = ChangeInvisibleTime(
            self._group,
            self._stored_topic(source, delivery),
            delivery.queue_id,
            delivery.handle,
            delivery.offset,
            invisible_ms,
        )
        response = await self._request(source.broker, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, request)
        if response.code == ResponseCode.NO_MESSAGE:  # it was removed from the store
            return None
        self._check(response, source.broker)
        changed = decode_header(response, ChangeInvisibleTimeResponse)
        if changed.pop_time == delivery.taken_ms:
            return None
        return msgspec.structs.replace(
            delivery, taken_ms=changed.pop_time, invisible_ms=changed.invisible_time, revive_queue=changed.revive_qid
        )

    # --- inside ---

    def _stored_topic(self, source: PopSource, delivery: Delivery) -> str:
        if delivery.retry == NO_RETRY:
            return source.topic
        # Both names inside have the namespace, so the pool adds none.
        wrap = self._instance.namespace.wrap
        return delivery.stored_topic(wrap(self._group), wrap(source.topic))

    async def _request(
        self,
        broker: str,
        code: RequestCode,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        wait_ms: int = 0,
    ) -> Command:
        """Send a request to the master: slaves store no deliveries."""
        instance = self._instance
        addr = instance.routes.master_address(broker)
        if addr is None:
            instance.refresh_routes_soon()
            raise ConnectionLost(broker, "no master in the cached routes")
        try:
            timeout_ms = wait_ms + instance.settings.request_timeout * 1000
            return await instance.peers.request(addr, code, header, body, timeout_ms=timeout_ms)
        except NO_RESPONSE:
            instance.refresh_routes_soon()
            raise

    def _check(self, response: Command, broker: str) -> None:
        if response.code == ResponseCode.SUCCESS:
            return
        addr = self._instance.routes.master_address(broker) or broker
        kind = PopUnsupported if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED else ReplyError
        raise kind(response.code, response.remark, addr)
