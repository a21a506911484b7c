"""Requests to name servers, without I/O: which one is asked next, which response counts, and which error is raised.

    lookup = route_lookup("orders")
    for addr in order:                         adapters: `net.name_servers` (asyncio), `spark.wire.name_servers` (blocking)
        send lookup.code, lookup.header to addr
        lookup.on_response(addr, response) | lookup.on_error(error), order.on_no_response(addr)
        if lookup.is_finished: break
    lookup.result()

Name servers share nothing: a broker registers with each of them, so one that has just started has no route, broker or topic yet.
A name server that did not respond is asked last from then on.

    outcome at a name server                   next
    a result                                   return it
    an empty list of brokers or topics         the next name server; returned if all others list nothing, either
    unreadable body, no response               the next name server
    an error response                          the next name server; with `is_first_final`, as in Java's clients, raise it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from ariane.errors import ArianeError, ConnectionLost, ProtocolError, ReplyError
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.routing import ClusterInfo, RouteRequest, TopicList, TopicRoute

T = TypeVar("T")


class NameServerOrder:
    """The name servers in the order in which they are tried.

    Args:
        addrs: Addresses, `host:port`.
        first: Index of the address to start with; clients choose it at random to spread the load.
    """

    def __init__(self, addrs: Sequence[str], first: int = 0) -> None:
        self._addrs = tuple(addrs)
        self._first = first

    def __iter__(self) -> Iterator[str]:
        return iter(self._addrs[self._first :] + self._addrs[: self._first])

    def on_no_response(self, addr: str) -> None:
        """Try `addr` last from now on."""
        self._first = (self._addrs.index(addr) + 1) % len(self._addrs)


class NameServerLookup(Generic[T]):
    """State of one look-up.

    Args:
        code: Code of the request.
        header: Header of the request; None for a request without fields.
        decode: Return the result of a successful response; may raise ProtocolError.
        is_empty: Whether a result only means that the name server has just started.
        is_first_final: Take an error response as final.
    """

    def __init__(
        self,
        code: int,
        header: msgspec.Struct | None,
        decode: Callable[[Command], T],
        *,
        is_empty: Callable[[T], bool] | None = None,
        is_first_final: bool = False,
    ) -> None:
        self.code = code  # code and header of the request, the same for all name servers
        self.header = header
        self._decode = decode
        self._is_empty = is_empty
        self._is_first_final = is_first_final
        # Lists with the final result, and with an empty one, once there is one: None may be a result.
        self._final: list[T] = []
        self._empty: list[T] = []  # used if no server has a better one
        self._error: ArianeError | None = None  # of the last attempt, raised if all fail

    @property
    def is_finished(self) -> bool:
        """Whether no further name server needs to be asked."""
        return bool(self._final)

    def on_response(self, addr: str, response: Command) -> None:
        """Take the response of the name server `addr`.

        Raises:
            ReplyError: the response is an error, and the first response is final.
        """
        if response.code != ResponseCode.SUCCESS:
            error = ReplyError(response.code, response.remark, addr)
            if self._is_first_final:
                raise error
            return self.on_error(error)
        try:
            result = self._decode(response)
        except ProtocolError as error:
            return self.on_error(ProtocolError(f"name server {addr}: {error}"))
        is_empty = self._is_empty is not None and self._is_empty(result)
        (self._empty if is_empty else self._final).append(result)
        return None

    def on_error(self, error: ArianeError) -> None:
        """Take the error of a name server."""
        # "No such topic" is an answer to the question and wins over the failures of other name servers.
        if not is_unknown_topic(self._error):
            self._error = error

    def result(self) -> T:
        """Return the result.

        Raises:
            ReplyError: no name server has the topic, or the name servers rejected the request.
            ConnectionLost, RequestTimeout: no name server responded.
            ProtocolError: the responses cannot be decoded.
        """
        if self._final:
            return self._final[0]
        # Next to a failure, an empty list proves nothing: the name server that failed may list brokers.
        if self._empty and self._error is None:
            return self._empty[0]
        raise self._error or ConnectionLost("name servers", "none is configured")


def route_lookup(topic: str, *, is_first_final: bool = False) -> NameServerLookup[TopicRoute]:
    """Return a look-up of the route of `topic`."""
    # Strict JSON is decoded many times as fast; name servers before 4.9.3 ignore the wish.
    header = RouteRequest(topic, accept_standard_json_only=True)
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    return NameServerLookup(code, header, _body_as(TopicRoute), is_first_final=is_first_final)


def cluster_lookup(*, is_first_final: bool = False) -> NameServerLookup[ClusterInfo]:
    """Return a look-up of the registered brokers, by name and by cluster."""
    return NameServerLookup(
        RequestCode.GET_BROKER_CLUSTER_INFO,
        None,
        _body_as(ClusterInfo),
        is_empty=lambda info: not info.broker_addr_table,
        is_first_final=is_first_final,
    )


def topics_lookup() -> NameServerLookup[TopicList]:
    """Return a look-up of all registered topics."""
    code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
    return NameServerLookup(code, None, _body_as(TopicList), is_empty=lambda topics: not topics.topic_list)


def _body_as(kind: type[T]) -> Callable[[Command], T]:
    return lambda response: fastjson.decode(response.body, kind)


def is_unknown_topic(error: BaseException | None) -> bool:
    """Return whether a name server responded that it has no such topic."""
    return isinstance(error, ReplyError) and error.code == ResponseCode.TOPIC_NOT_EXIST
