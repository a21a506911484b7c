"""Client of name servers for asyncio: asks one after another until one has the answer. [MQClientAPIImpl]

    NameServerClient(connections, ["ns1:9876", "ns2:9876"]) ─→ fetch_route(topic), fetch_cluster(), request(code, header)

Policy: `ariane.protocol.client_rules.name_server_lookup`; the blocking adapter is `ariane.spark.wire.name_servers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from ariane.errors import ReplyError, RouteNotFound
from ariane.net.pools.requester import Requester
from ariane.protocol.client_rules.name_server_lookup import (
    NameServerLookup,
    NameServerOrder,
    cluster_lookup,
    is_unknown_topic,
    route_lookup,
)
from ariane.protocol.client_rules.transient import NO_RESPONSE
from ariane.protocol.command import Command
from ariane.protocol.requests.routing import ClusterInfo, TopicRoute

TIMEOUT_MS = 3000

T = TypeVar("T")


class NameServerClient:
    """Sends requests to the first of several name servers that can answer them.

    Args:
        connections: Sends the requests.
        addrs: Addresses, `host:port`, in the order in which they are tried.
        first: Index of the address to start with; clients choose it at random to spread the load.
        timeout_ms: Time limit of one attempt at one name server.
        is_first_final: Take an error response as final, as Java's clients do.
    """

    def __init__(
        self,
        connections: Requester,
        addrs: Sequence[str],
        *,
        first: int = 0,
        timeout_ms: float = TIMEOUT_MS,
        is_first_final: bool = False,
    ) -> None:
        self._connections = connections
        self._order = NameServerOrder(addrs, first)
        self._timeout_ms = timeout_ms
        self._is_first_final = is_first_final

    async def request(self, code: int, header: msgspec.Struct | None = None) -> Command:
        """Return the first successful response.

        Raises:
            ReplyError: the name servers rejected the request.
            ConnectionLost, RequestTimeout: no name server responded.
        """
        return await self._look_up(
            NameServerLookup(code, header, lambda response: response, is_first_final=self._is_first_final)
        )

    async def fetch_route(self, topic: str) -> TopicRoute:
        """Return the route of `topic`.

        Raises:
            RouteNotFound: no name server has the topic.
            ReplyError, ConnectionLost, RequestTimeout: as `request`.
            ProtocolError: the responses cannot be decoded.
        """
        try:
            return await self._look_up(route_lookup(topic, is_first_final=self._is_first_final))
        except ReplyError as error:
            if is_unknown_topic(error):
                raise RouteNotFound(topic, f"no such topic on name server {error.addr}") from None
            raise

    async def fetch_cluster(self) -> ClusterInfo:
        """Return the brokers that are registered, by name and by cluster.

        An empty result means that no name server lists a broker: one that has just started is not trusted alone.

        Raises:
            ReplyError, ConnectionLost, RequestTimeout: as `request`; or no name server lists a broker, and one failed.
            ProtocolError: the responses cannot be decoded.
        """
        return await self._look_up(cluster_lookup(is_first_final=self._is_first_final))

    async def _look_up(self, lookup: NameServerLookup[T]) -> T:
        for addr in self._order:
            try:
                response = await self._connections.request(
                    addr, lookup.code, lookup.header, timeout_ms=self._timeout_ms
                )
                lookup.on_response(addr, response)
            except NO_RESPONSE as error:
                self._order.on_no_response(addr)
                lookup.on_error(error)
            if lookup.is_finished:
                break
        return lookup.result()
