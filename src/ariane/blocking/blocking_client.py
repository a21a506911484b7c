"""How a blocking client is made of an asyncio one: the same arguments and results, on the background loop.

    class Producer(BlockingClient[aio.Producer[Any]], Generic[P]):
        @same_signature(aio.Producer)                          # for `help`; `arguments` is for type checkers
        def __init__(self, namesrv, group, **arguments): super().__init__(aio.Producer(namesrv, group, **arguments))

        send_batch = waiting(aio.Producer.send_batch)          # coroutine function → function
        send_batches = iterating(aio.Producer.send_batches)    # asynchronous generator → generator
        pause = calling(aio.LitePullConsumer.pause)            # function → the same, on the loop

Types follow from those of the asyncio client. Functions with overloads repeat these, because type checkers see only the first
overload of a function through a decorator; `client.client_arguments` has the lists of keyword arguments.
"""

from __future__ import annotations

import atexit
import functools
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from ariane.blocking.background_loop import BackgroundLoop, shared_loop
from ariane.client.tracing.trace_dispatcher import TraceCounts
from ariane.errors import ArianeError, ClientClosed
from ariane.model.clock_offset import ClockOffset

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class AsyncClient(Protocol):
    """An asyncio client."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


class AsyncTracingClient(AsyncClient, Protocol):
    """An asyncio client that can trace messages."""

    @property
    def trace_counts(self) -> TraceCounts: ...

    @property
    def clock_offsets(self) -> dict[str, ClockOffset]: ...


Constructor = TypeVar("Constructor", bound=Callable[..., None])
Client = TypeVar("Client", bound=AsyncClient)
Tracing = TypeVar("Tracing", bound=AsyncTracingClient)


class BlockingClient(Generic[Client]):
    """An asyncio client behind functions that wait. Use it within `with`, or between `open` and `close`, from any threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop: BackgroundLoop | None = None  # None unless the client is open

    def open(self) -> Self:
        """Connect, or raise as entering the asyncio client does.

        `with` calls it; call it where a program has no block that encloses the client's use.

        Raises:
            ClientClosed: the client is open already.
        """
        if self._loop is not None:
            raise ClientClosed(f"this {type(self).__name__} is open already")
        loop = shared_loop()
        loop.run(self._client.__aenter__())
        self._loop = loop
        _open_clients.add(self)
        return self

    def close(self) -> None:
        """Finish what is in flight and disconnect. Does nothing if the client is not open, or belongs to the parent process."""
        self._leave(None, None, None)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(kind, error, trace)

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop, self._loop = self._loop, None
        _open_clients.discard(self)
        if loop is not None and not loop.is_inherited:
            loop.run(self._client.__aexit__(kind, error, trace))

    def _running(self) -> BackgroundLoop:
        if self._loop is None:
            raise ClientClosed(f"this {type(self).__name__} is not open: use it within `with`")
        return self._loop


class TracingClient(BlockingClient[Tracing]):
    """A client that can trace messages."""

    @property
    def trace_counts(self) -> TraceCounts:
        """How many trace records were sent, dropped and lost; also after closing."""
        return self._client.trace_counts

    @property
    def clock_offsets(self) -> dict[str, ClockOffset]:
        """Offsets of the brokers' clocks from this machine's, by address, as far as they were measured; empty without `trace`."""
        return self._client.clock_offsets


def same_arguments(
    client: Callable[Parameters, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, Parameters], None]]:
    """Return a decorator that gives a constructor the parameters of `client`."""

    def decorate(constructor: Callable[..., None]) -> Callable[Concatenate[Any, Parameters], None]:
        def construct(self: Any, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
            constructor(self, *args, **kwargs)

        functools.update_wrapper(construct, getattr(client, "__init__"))  # noqa: B009 - type checkers see a function
        return construct

    return decorate


def same_signature(client: Callable[..., object]) -> Callable[[Constructor], Constructor]:
    """Return a decorator that shows the signature of `client` in `help`, for a constructor with types of its own."""

    def decorate(constructor: Constructor) -> Constructor:
        functools.update_wrapper(constructor, getattr(client, "__init__"))  # noqa: B009 - type checkers see a function
        return constructor

    return decorate


def waiting(
    method: Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """Return the function that runs a coroutine function of the asyncio client and waits for its result."""

    def wait(self: Any, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        loop: BackgroundLoop = self._running()
        return loop.run(method(self._client, *args, **kwargs))

    functools.update_wrapper(wait, method)
    return wait


def calling(method: Callable[Concatenate[Any, Parameters], Result]) -> Callable[Concatenate[Any, Parameters], Result]:
    """Return the function that calls a plain method of the asyncio client on the loop."""

    def call(self: Any, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        loop: BackgroundLoop = self._running()
        return loop.call(lambda: method(self._client, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def iterating(
    method: Callable[Concatenate[Any, Parameters], AsyncIterator[Result]],
) -> Callable[Concatenate[Any, Parameters], Iterator[Result]]:
    """Return the generator of an asynchronous generator of the asyncio client."""

    def iterate(self: Any, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Iterator[Result]:
        loop: BackgroundLoop = self._running()
        items = method(self._client, *args, **kwargs)
        end = object()

        async def following() -> Any:
            return await anext(items, end)

        async def finish() -> None:
            aclose = getattr(items, "aclose", None)
            if aclose is not None:
                await aclose()

        try:
            while (item := loop.run(following())) is not end:
                yield item
        finally:
            loop.run(finish())

    functools.update_wrapper(iterate, method)
    return iterate


_open_clients: weakref.WeakSet[BlockingClient[Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close what the program left open: offsets are committed, traces are sent, and groups are left."""
    for client in list(_open_clients):
        with suppress(ArianeError):  # the program has ended and cannot handle it; the client has logged it
            client.close()
