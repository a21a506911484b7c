"""Blocking client of name servers: asks one after another until one has the answer.

Policy: `ariane.protocol.name_server_lookup`; the asyncio adapter is `ariane.net.name_servers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from ariane.errors import ReplyError
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.name_server_lookup import (
    NameServerLookup,
    cluster_lookup,
    is_unknown_topic,
    route_lookup,
    topics_lookup,
)
from ariane.protocol.requests.routing import ClusterInfo, RouteRequest, TopicList, TopicRoute
from ariane.protocol.transient import NO_RESPONSE
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
        send: Sends requests to one address.
        addrs: Addresses, `host:port`, in the order in which they are tried.
    """

    def __init__(self, send: BlockingRequester, addrs: Sequence[str]) -> None:
        self._send = send
        self._addrs = tuple(addrs)

    def fetch_topics(self) -> TopicList:
        """Return all registered topics.

        Raises:
            ReplyError: the name servers rejected the request.
            ConnectionLost, RequestTimeout: no name server responded; or no name server lists a topic, and one failed.
            ProtocolError: the responses cannot be decoded.
        """
        request = Request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return self._look_up([request], [topics_lookup()])[0].result()

    def fetch_cluster(self) -> ClusterInfo:
        """Return the brokers that are registered, by name and by cluster.

        Raises:
            ReplyError, ConnectionLost, RequestTimeout, ProtocolError: as `fetch_topics`.
        """
        return self._look_up([Request(RequestCode.GET_BROKER_CLUSTER_INFO)], [cluster_lookup()])[0].result()

    def fetch_routes(self, topics: Sequence[str]) -> dict[str, TopicRoute]:
        """Return the route of each topic, without those that no name server has.

        Raises:
            ReplyError, ConnectionLost, RequestTimeout, ProtocolError: as `fetch_topics`, for the first topic that failed.
        """
        requests = [Request(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic, True)) for topic in topics]
        routes: dict[str, TopicRoute] = {}
        for topic, lookup in zip(topics, self._look_up(requests, [route_lookup() for _ in topics]), strict=True):
            try:
                routes[topic] = lookup.result()
            except ReplyError as error:
                if not is_unknown_topic(error):
                    raise
        return routes

    def _look_up(self, requests: Sequence[Request], lookups: list[NameServerLookup[T]]) -> list[NameServerLookup[T]]:
        for addr in self._addrs:
            # The next server is asked only for what the ones before could not answer.
            pending = [number for number, lookup in enumerate(lookups) if not lookup.is_finished]
            if not pending:
                break
            try:
                responses = self._send(addr, [requests[number] for number in pending])
            except NO_RESPONSE as error:
                for number in pending:
                    lookups[number].on_error(error)
                continue
            for number, response in zip(pending, responses, strict=True):
                lookups[number].on_response(addr, response)
        return lookups
