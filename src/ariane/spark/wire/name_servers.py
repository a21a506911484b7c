"""Blocking client of name servers: asks one after another until one has the answer.

Policy: `ariane.protocol.client_rules.name_server_lookup`; the asyncio adapter is `ariane.net.pools.name_servers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from ariane.errors import ReplyError
from ariane.protocol.client_rules.name_server_lookup import (
    NameServerLookup,
    NameServerOrder,
    cluster_lookup,
    is_unknown_topic,
    route_lookup,
    topics_lookup,
)
from ariane.protocol.client_rules.transient import NO_RESPONSE
from ariane.protocol.command import Command
from ariane.protocol.requests.routing import ClusterInfo, TopicList, TopicRoute
from ariane.spark.wire.blocking_connection import Request

T = TypeVar("T")


class BlockingRequester(Protocol):
    """Sends requests to one address and waits for all responses."""

    def __call__(self, addr: str, requests: Sequence[Request], /) -> Sequence[Command]:
        """Return the responses in the order of the requests."""
        ...


class BlockingNameServerClient:
    """Sends requests to the first of several name servers that can answer them.

    Args:
        addrs: Addresses, `host:port`, in the order in which they are tried.
    """

    def __init__(self, send: BlockingRequester, addrs: Sequence[str]) -> None:
        self._send = send
        self._order = NameServerOrder(addrs)

    def fetch_topics(self) -> TopicList:
        """Return all registered topics.

        Raises:
            ReplyError: the name servers rejected the request.
            ConnectionLost, RequestTimeout: no name server responded; or no name server lists a topic, and one failed.
            ProtocolError: the responses cannot be decoded.
        """
        return self._look_up([topics_lookup()])[0].result()

    def fetch_cluster(self) -> ClusterInfo:
        """Return the brokers that are registered, by name and by cluster.

        Raises:
            ReplyError, ConnectionLost, RequestTimeout, ProtocolError: as `fetch_topics`.
        """
        return self._look_up([cluster_lookup()])[0].result()

    def fetch_routes(self, topics: Sequence[str]) -> dict[str, TopicRoute]:
        """Return the route of each topic, without those that no name server has.

        Raises:
            ReplyError, ConnectionLost, RequestTimeout, ProtocolError: as `fetch_topics`, for the first topic that failed.
        """
        routes: dict[str, TopicRoute] = {}
        for topic, lookup in zip(topics, self._look_up([route_lookup(topic) for topic in topics]), strict=True):
            try:
                routes[topic] = lookup.result()
            except ReplyError as error:
                if not is_unknown_topic(error):
                    raise
        return routes

    def _look_up(self, lookups: list[NameServerLookup[T]]) -> list[NameServerLookup[T]]:
        for addr in self._order:
            # The next server is asked only for what the ones before could not answer.
            pending = [lookup for lookup in lookups if not lookup.is_finished]
            if not pending:
                break
            try:
                responses = self._send(addr, [Request(lookup.code, lookup.header) for lookup in pending])
            except NO_RESPONSE as error:
                self._order.on_no_response(addr)
                for lookup in pending:
                    lookup.on_error(error)
                continue
            for lookup, response in zip(pending, responses, strict=True):
                lookup.on_response(addr, response)
        return lookups
