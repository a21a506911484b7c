"""Messages in flight of consumer groups: delivered by POP (clients of RocketMQ 5), and not acknowledged.

The first ones of each queue are listed: they hold back the group's offset. Java's tools have no counterpart.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ariane.cluster.connection import BrokerServer, BrokerUnavailable
from ariane.cluster.groups.group_admin import GroupOperations
from ariane.cluster.groups.group_lag import GroupLagOperations
from ariane.errors import ReplyError
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.pop import IN_FLIGHT_MAX, InFlightMessage, InFlightMessages, ListInFlight

__all__ = ["IN_FLIGHT_MAX", "BrokerInFlightMessage", "InFlightOperations", "InFlightResult"]

NOT_SUPPORTED = "it does not list messages in flight: brokers of Ariane from this version on do, those of Java do not"


class BrokerInFlightMessage(InFlightMessage, frozen=True, kw_only=True, rename="camel"):
    """A message in flight, with its broker."""

    broker: str


class InFlightResult(NamedTuple):
    """Messages in flight of a group.

    Attributes:
        total: How many there are at the brokers that responded.
        messages: At most `limit` of each broker, the first ones of each queue, by topic, broker, queue and offset.
        unavailable: Brokers that did not respond.
    """

    total: int
    messages: list[BrokerInFlightMessage]
    unavailable: tuple[BrokerUnavailable, ...] = ()


class InFlightOperations(GroupOperations, GroupLagOperations):
    """Operations on messages in flight."""

    async def in_flight_messages(self, group: str, topic: str | None = None, *, limit: int = 100) -> InFlightResult:
        """Return the messages in flight of a group, in one topic or in all.

        Only brokers that report some are asked. Java's brokers report how many there are, and cannot list them.

        Args:
            group: Consumer group.
            topic: Only this topic.
            limit: Maximum number of messages of each broker, 1 to IN_FLIGHT_MAX.

        Raises:
            NotFound: no broker has the group.
            ServerUnavailable: no broker is registered.
        """
        lag = await self.group_lag(group, topic)
        if not lag.queues:
            await self.check_group(group)
        brokers = {queue.broker for queue in lag.queues if queue.in_flight}
        servers = [server for server in await self.select_brokers() if server.broker in brokers] if brokers else []
        header = ListInFlight(group, limit, topic)

        async def ask(server: BrokerServer) -> InFlightMessages:
            try:
                answer = await self.request(server.addr, RequestCode.LIST_IN_FLIGHT, header)
            except ReplyError as error:
                if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise ReplyError(error.code, NOT_SUPPORTED, server.addr) from None
                raise
            return fastjson.decode(answer.body, InFlightMessages)

        answers = await self.ask_all(servers, ask)
        messages = [
            BrokerInFlightMessage(**msgspec.structs.asdict(message), broker=server.broker)
            for server, listed in answers.values
            for message in listed.messages
        ]
        messages.sort(key=lambda message: (message.topic, message.broker, message.queue_id, message.offset))
        total = sum(listed.total for _, listed in answers.values)
        return InFlightResult(total, messages, (*lag.unavailable, *answers.unavailable))
