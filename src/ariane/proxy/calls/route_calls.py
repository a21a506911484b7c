"""QueryRoute and QueryAssignment: the queues of a topic, at the address of this server. [RouteActivity]

Clients connect to the addresses of a route only. Unless brokerIP1 is set, a route repeats the address by which the client has
reached this server, so that it works behind containers and address translation. Routes of a slave are those of its master: at the
same port of the master's host, as in 5.3.3.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ariane.model.topic import PERM_READ, PERM_WRITE, TopicConfig
from ariane.proxy import api
from ariane.proxy.calls.call import Call, ProxySettings, kinds_on
from ariane.proxy.conversion import field_checks, grpc_statuses
from ariane.proxy.conversion.grpc_messages import MESSAGE_TYPES
from ariane.proxy.conversion.grpc_statuses import CallRefused, StatusCode
from ariane.proxy.message_service import BrokerTopic, MessageService

NONE, READ, WRITE, READ_WRITE = 1, 2, 3, 4  # Permission
IPV4, IPV6, DOMAIN_NAME = 1, 2, 3  # AddressScheme
ALL_QUEUES = -1


@dataclass(kw_only=True)
class RouteCalls:
    """Calls about queues."""

    service: MessageService
    settings: ProxySettings
    advertised: str  # host that clients connect to; empty: the one that they have reached
    host: str  # of this server, for clients that name several
    port: int = 0  # set once the server listens

    async def query_route(self, request: Any, call: Call) -> Any:
        """Return the queues of a topic."""
        on_brokers = await self.service.topic(call.caller, field_checks.topic_name(request.topic))
        queues = []
        for on_broker in on_brokers:
            broker = self._broker(on_broker, request.endpoints)
            kinds = [MESSAGE_TYPES[kind] for kind in kinds_on(on_broker, self.settings)]
            queues += [
                api.MessageQueue(
                    topic=request.topic, id=number, permission=permission, broker=broker, accept_message_types=kinds
                )
                for number, permission in enumerate(_permissions(on_broker.topic))
            ]
        return api.QueryRouteResponse(status=grpc_statuses.ok(), message_queues=queues)

    async def query_assignment(self, request: Any, call: Call) -> Any:
        """Return the queues that a push consumer receives from: all of each broker, one by one if the group is ordered."""
        on_brokers = await self.service.topic(call.caller, field_checks.topic_name(request.topic))
        group = await self.service.group(call.caller, field_checks.group_name(request.group))
        assignments = []
        for on_broker in on_brokers:
            topic = on_broker.topic
            if not topic.perm & PERM_READ or not topic.read_queue_nums:
                continue
            broker = self._broker(on_broker, request.endpoints)
            assignments += [
                api.Assignment(
                    message_queue=api.MessageQueue(topic=request.topic, id=number, permission=READ_WRITE, broker=broker)
                )
                for number in (range(topic.read_queue_nums) if group.is_ordered else (ALL_QUEUES,))
            ]
        if not assignments:
            raise CallRefused(StatusCode.FORBIDDEN, "no readable queue")
        return api.QueryAssignmentResponse(status=grpc_statuses.ok(), assignments=assignments)

    def _broker(self, on_broker: BrokerTopic, reached: Any) -> Any:
        endpoints, host = reached, on_broker.host or self.advertised
        if host or len(reached.addresses) != 1 or not reached.scheme:
            host = host or self.host
            endpoints = api.Endpoints(scheme=_scheme(host), addresses=[{"host": host, "port": self.port}])
        return api.Broker(name=on_broker.broker, id=0, endpoints=endpoints)


def _scheme(name: str) -> int:
    try:
        return IPV6 if ipaddress.ip_address(name).version == 6 else IPV4
    except ValueError:
        return DOMAIN_NAME


def _permissions(topic: TopicConfig) -> Iterator[int]:
    """Yield the permission of each queue, in the order of 5.3.3: for reading only, for writing only, for both."""
    reads = topic.read_queue_nums if topic.perm & PERM_READ else 0
    writes = topic.write_queue_nums if topic.perm & PERM_WRITE else 0
    if not reads and not writes:
        yield from [NONE] * max(1, topic.read_queue_nums, topic.write_queue_nums)
    both = min(reads, writes)
    yield from [READ] * (reads - both) + [WRITE] * (writes - both) + [READ_WRITE] * both
