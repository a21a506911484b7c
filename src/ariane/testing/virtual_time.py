"""PUBLIC: an event loop whose clock jumps, and processes in it that can be paused and killed.

    loop = VirtualLoop()
    shop = loop.process("shop")
    shop.start(serve())                    # what this starts, and what that starts …, belongs to the process
    shop.pause(); …; shop.resume()         # meanwhile time goes on and none of its code runs (SIGSTOP, a long collection)
    shop.kill()                            # none of its code ever runs again (SIGKILL)

When nothing is ready the clock goes to the next timer: an hour of waiting takes no time, and what happens at one instant
happens in the order in which it was asked for. Threads have no place here: what is given to an executor runs at once, in the
loop. The real event loop under real code: asyncio's own tasks, futures, locks and timeouts; only time is made up.
`ariane.testing.virtual_cluster` puts a network, a name server, a broker and clients on it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple, cast

from ariane.errors import ArianeError
from ariane.testing.clock import EPOCH_MS

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


SAME_INSTANT_MAX = 1_000_000  # callbacks without a step of the clock: by then the program goes round in a circle
CLOSE_TRIES = 100  # a coroutine that awaits while it is thrown away is thrown away again

_process: ContextVar[VirtualProcess | None] = ContextVar("process", default=None)


class ProcessKilled(ArianeError):
    """What a process was to do will never be done: it was killed."""


class VirtualClock:
    """An `ariane.clock.Clock` that shows the time of a virtual loop. `wall_offset_ms` is the error of its wall clock."""

    def __init__(self, loop: VirtualLoop, wall_offset_ms: int = 0) -> None:
        self._loop = loop
        self.wall_offset_ms = wall_offset_ms

    def now_ms(self) -> int:
        return EPOCH_MS + round(self._loop.time() * 1000) + self.wall_offset_ms

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualProcess:
    """Made by `VirtualLoop.process`. What it is called in messages is `name`, its machine is `ip`."""

    def __init__(self, loop: VirtualLoop, name: str, ip: str) -> None:
        self.name = name
        self.ip = ip
        self.is_alive = True
        self.is_paused = False
        self.killed: list[Callable[[], None]] = []
        """Called when it is killed, before what it held is thrown away."""
        self._loop = loop
        self._deferred: list[asyncio.Handle] = []
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._awaited: dict[asyncio.Future[Any], None] = {}
        self._context = copy_context()
        self._context.run(_process.set, self)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Do `work` in this process; the result, for who is outside of it. ProcessKilled when none will come."""
        if not self.is_alive:
            work.close()
            raise ProcessKilled(f"{self.name} was killed: start another process")
        outcome: asyncio.Future[T] = self._loop.create_future()
        self._awaited[outcome] = None
        task = self._loop.create_task(work, name=self.name, context=self._context.copy())

        def tell(done: asyncio.Task[T]) -> None:
            self._awaited.pop(outcome, None)
            if outcome.done():
                return
            if done.cancelled():
                outcome.cancel()
            elif (error := done.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(done.result())

        task.add_done_callback(tell, context=self._context)
        return outcome

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        """Everything that was due meanwhile happens now, in its order."""
        self.is_paused = False
        held, self._deferred = self._deferred, []
        self._loop.run_soon(self, held)

    def kill(self) -> None:
        """No handler, no `finally`, no goodbye is run, as far as others can see: it is cut off before its coroutines are
        thrown away."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._deferred.clear()
        for cut in self.killed:
            cut()
        self.killed.clear()
        self._context.copy().run(self._throw_away)
        for outcome in list(self._awaited):
            if not outcome.done():
                outcome.set_exception(ProcessKilled(f"{self.name} was killed"))
                outcome.exception()  # nobody has to look
        self._awaited.clear()

    def admits(self, handle: asyncio.Handle) -> bool:
        """Whether the callback may run now; otherwise it is kept for later, or forgotten with the process."""
        if self.is_alive and self.is_paused:
            self._deferred.append(handle)
        return self.is_alive and not self.is_paused

    def owns(self, task: asyncio.Task[Any]) -> None:
        if self.is_alive:
            self._tasks.add(task)
        else:  # begun by a `finally` of what is thrown away
            _throw_away(task)

    def _throw_away(self) -> None:
        for task in list(self._tasks):
            _throw_away(task)
        self._tasks.clear()


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time. Sockets exist when `network` was given (`ariane.testing.virtual_network`)."""

    def __init__(self) -> None:
        super().__init__()
        self.network: Any = None
        self._now = 0.0
        self._due: deque[tuple[VirtualProcess | None, asyncio.Handle]] = deque()
        self._later: list[tuple[float, int, VirtualProcess | None, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._at_this_instant = 0
        self._processes: list[VirtualProcess] = []
        self.callbacks = 0
        """How many callbacks ran: two runs with the same seed have the same."""

    def process(self, name: str, ip: str = "10.0.0.1") -> VirtualProcess:
        process = VirtualProcess(self, name, ip)
        self._processes.append(process)
        return process

    def close(self) -> None:
        """Kill every process, and throw away what else is under way."""
        if not self.is_closed():
            self._at_this_instant = 0
            self.run_until_complete(self._end())
        super().close()

    async def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for task in asyncio.all_tasks(self) - {asyncio.current_task(self)}:
            _throw_away(task)

    @staticmethod
    def current_process() -> VirtualProcess | None:
        """The process whose code is running."""
        return _process.get()

    # --- what asyncio asks of a loop ---

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._check_open()
        handle = asyncio.Handle(callback, args, self, context)
        owner = _owner(context)
        if owner is None or owner.is_alive:
            self._due.append((owner, handle))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._check_open()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        owner = _owner(context)
        if owner is None or owner.is_alive:
            heapq.heappush(self._later, (when, next(self._numbers), owner, handle))
        return handle

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task = super().create_task(coro, name=name, context=context)
        owner = _owner(context)
        if owner is not None:
            owner.owns(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """At once and in the loop: what waits for a thread sees no time pass."""
        outcome: asyncio.Future[T] = self.create_future()
        owner = _process.get()
        if owner is not None and not owner.is_alive:
            return outcome
        try:
            outcome.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - handed to who awaits it
            outcome.set_exception(error)
        return outcome

    async def create_server(self, *args: Any, **more: Any) -> Any:
        return await self._sockets().create_server(*args, **more)

    async def create_connection(self, *args: Any, **more: Any) -> Any:
        return await self._sockets().create_connection(*args, **more)

    def _sockets(self) -> Any:
        if self.network is None:
            raise RuntimeError("this loop has no network: use ariane.testing.virtual_cluster, or set loop.network")
        return self.network

    # --- details ---

    def run_soon(self, owner: VirtualProcess, handles: list[asyncio.Handle]) -> None:
        self._due.extend((owner, handle) for handle in handles)

    def _check_open(self) -> None:
        if self.is_closed():
            raise RuntimeError("the virtual loop is closed")

    def _run_once(self) -> None:
        """One turn: asyncio's loop calls this until it is stopped."""
        later, due = self._later, self._due
        if not due:
            while later and later[0][3].cancelled():
                heapq.heappop(later)
            if not later:
                raise RuntimeError("everything waits, and nothing will ever happen: no callback and no timer is left")
            if later[0][0] > self._now:
                self._now = later[0][0]
                self._at_this_instant = 0
        while later and later[0][0] <= self._now:
            _, _, owner, timer = heapq.heappop(later)
            due.append((owner, timer))
        for _ in range(len(due)):
            owner, handle = due.popleft()
            if handle.cancelled() or not (owner is None or owner.admits(handle)):
                continue
            self.callbacks += 1
            handle._run()
        self._at_this_instant += 1
        if self._at_this_instant > SAME_INSTANT_MAX:
            raise RuntimeError(f"{SAME_INSTANT_MAX} turns at {self._now:.6f} s: something asks again without waiting")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are passed over when their time comes."""

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no files to watch."""

    def _write_to_self(self) -> None:
        """Nobody sleeps who would have to be woken."""


class _Gone(BaseException):
    """Thrown into what a killed process was doing, until it is over: a GeneratorExit would leave what a `finally` awaits."""


def _throw_away(task: asyncio.Task[Any]) -> None:
    if task.done():
        return
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = cast("Coroutine[Any, Any, Any]", task.get_coro())
    for _ in range(CLOSE_TRIES):
        try:
            coroutine.throw(_Gone())
        except BaseException:  # noqa: BLE001 - it is over, and nobody is there to be told how
            return


def _owner(context: Context | None) -> VirtualProcess | None:
    return _process.get() if context is None else context.get(_process)
