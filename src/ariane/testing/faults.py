"""Faults of a local broker: responses that are replaced, delayed or lost, in front of the broker's own handlers.

    request ─► RequestFaults ─ no fault matches ─► handler ─► response
                    └ faults, in the order in which they began ─► each may call the handler, wait, and change the response

A fault is active from the call that creates it until `end`, or until it has affected as many requests as it was to. Tests begin
and end faults in their own thread; requests meet them in the thread of the servers.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection
from functools import partial
from types import TracebackType
from typing import Self

from ariane.errors import ConfigError
from ariane.net.connection import Handler, HandlerResult, LateReply, Peer, Reply
from ariane.net.replies import ServedTurn, TurnHandler
from ariane.protocol.command import Command


class Fault:
    """A fault of a broker. It ends with `end`, or with the `with` block that it is used in.

    Example:
        with cluster.broker.refuse_sends() as fault:
            shop.place_order()
        assert fault.hits == 3
    """

    def __init__(self, on_end: Callable[[], object]) -> None:
        self.hits = 0
        """Number of requests that were affected."""
        self._on_end = on_end  # removes the fault
        self._has_ended = False

    def end(self) -> None:
        """End the fault. Has no effect if it has ended."""
        if not self._has_ended:
            self._has_ended = True
            self._on_end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class RequestFault(Fault):
    """A fault of requests with certain codes."""

    def __init__(
        self,
        faults: RequestFaults,
        change: Callable[[Handler, Command, Peer], HandlerResult],
        codes: Collection[int] | None,
        times: int | None,
    ) -> None:
        super().__init__(partial(faults.remove, self))
        self.change = change  # serves an affected request, given the handler of the broker
        self._codes = codes  # affected requests; None: all
        self._times = times  # how many requests are affected at most; None: any number

    def affects(self, code: int) -> bool:
        """Return whether a request with this code is affected, and count it."""
        if self._codes is not None and code not in self._codes:
            return False
        self.hits += 1
        if self.hits == self._times:
            self.end()
        return True


class RequestFaults:
    """The request faults of one broker, in the order in which they began."""

    def __init__(self) -> None:
        self._active: tuple[RequestFault, ...] = ()  # replaced as a whole: two threads use it

    def add(
        self,
        change: Callable[[Handler, Command, Peer], HandlerResult],
        codes: Collection[int] | None,
        times: int | None,
    ) -> RequestFault:
        """Begin a fault. Arguments as of `RequestFault`.

        Raises:
            ConfigError: `times` is less than 1.
        """
        if times is not None and times < 1:
            raise ConfigError("times", times, "expected at least 1, or None for any number of requests")
        fault = RequestFault(self, change, codes, times)
        self._active = (*self._active, fault)
        return fault

    def remove(self, fault: RequestFault) -> None:
        """Remove a fault that has ended."""
        self._active = tuple(active for active in self._active if active is not fault)

    @property
    def is_empty(self) -> bool:
        """Whether no fault is active."""
        return not self._active

    def in_front_of(self, handler: Handler) -> Handler:
        """Return a handler that applies the active faults before it lets `handler` serve a request."""

        def serve(command: Command, peer: Peer) -> HandlerResult:
            served_by = handler
            for fault in self._active:
                if fault.affects(command.code):
                    served_by = partial(fault.change, served_by)
            return served_by(command, peer)

        return serve


class TurnsWithoutFaults:
    """Serves plain requests together, or one by one by their handlers while a fault is active. [TurnHandler]"""

    def __init__(self, turns: TurnHandler, faults: RequestFaults) -> None:
        self._turns = turns  # those of the broker
        self._faults = faults

    def serve(self, data: bytes, position: int, peer: Peer, waited_s: float) -> ServedTurn | None:
        return self._turns.serve(data, position, peer, waited_s) if self._faults.is_empty else None


def refuse(reply: Reply, handler: Handler, command: Command, peer: Peer) -> HandlerResult:
    """Reply without serving the request."""
    return reply


async def delay(seconds: float, handler: Handler, command: Command, peer: Peer) -> Reply | LateReply | None:
    """Serve the request now and send the reply later."""
    [outcome] = await asyncio.gather(_result(handler, command, peer), return_exceptions=True)
    await asyncio.sleep(seconds)
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


async def lose(handler: Handler, command: Command, peer: Peer) -> Reply | LateReply | None:
    """Serve the request and do not reply."""
    await asyncio.gather(_result(handler, command, peer), return_exceptions=True)
    return None


def ignore(handler: Handler, command: Command, peer: Peer) -> HandlerResult:
    """Neither serve the request nor reply."""
    return None


async def _result(handler: Handler, command: Command, peer: Peer) -> Reply | LateReply | None:
    handled = handler(command, peer)
    return await handled if inspect.isawaitable(handled) else handled
