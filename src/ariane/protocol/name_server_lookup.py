"""One request that is tried at one name server after another, without I/O: which response counts, and which error is raised.

    for addr in name_servers:                  adapters: `net.name_servers` (asyncio), `spark.wire.name_servers` (blocking)
        send the request to addr
        lookup.on_response(addr, response) | lookup.on_error(error)
        if lookup.is_finished: break
    lookup.result()

Name servers share nothing: a broker registers with each of them, so one that has just started may not have a route yet. By
default the next one is asked then as well. Java's clients take the first response as final (`is_first_final`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ariane.errors import ArianeError, ConnectionLost, ReplyError
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.transient import NO_RESPONSE


class NameServerLookup:
    """State of one look-up."""

    def __init__(self, *, is_first_final: bool = False) -> None:
        self._is_first_final = is_first_final
        self._response: Command | None = None
        self._error: ArianeError | None = None

    @property
    def is_finished(self) -> bool:
        """Whether no further name server needs to be asked."""
        return self._response is not None

    def on_response(self, addr: str, response: Command) -> None:
        """Take the response of the name server `addr`.

        Raises:
            ReplyError: the response is an error, and the first response is final.
        """
        if response.code == ResponseCode.SUCCESS:
            self._response = response
        else:
            self.on_error(ReplyError(response.code, response.remark, addr))

    def on_error(self, error: ArianeError) -> None:
        """Take the error of a name server.

        Raises:
            ArianeError: `error`, if the first response is final and this is one.
        """
        if self._is_first_final and not isinstance(error, NO_RESPONSE):
            raise error
        # "No such topic" is an answer to the question and wins over the failures of other name servers.
        if not is_unknown_topic(self._error):
            self._error = error

    def result(self) -> Command:
        """Return the successful response.

        Raises:
            ReplyError: no name server has the topic, or all of them rejected the request.
            ConnectionLost, RequestTimeout: no name server responded.
        """
        if self._response is not None:
            return self._response
        raise self._error or ConnectionLost("name servers", "none is configured")


def is_unknown_topic(error: BaseException | None) -> bool:
    """Return whether a name server responded that it has no such topic."""
    return isinstance(error, ReplyError) and error.code == ResponseCode.TOPIC_NOT_EXIST


def rotated(addrs: Sequence[str], first: int) -> list[str]:
    """Return `addrs` in the order in which they are tried when the one at index `first` comes first."""
    return [*addrs[first:], *addrs[:first]]
