"""An event loop whose clock jumps, and processes in it that can be paused and killed.

    loop = VirtualLoop()
    shop = loop.process("shop")
    shop.start(serve())                    # tasks that it starts, directly or not, belong to the process
    shop.pause(); …; shop.resume()         # meanwhile time passes and none of its code runs (SIGSTOP, a long GC pause)
    shop.kill()                            # none of its code ever runs again (SIGKILL)

When no callback is ready the clock jumps to the next timer: an hour of waiting takes no real time, and callbacks of the same
instant run in the order in which they were scheduled. Nothing runs in threads: work for an executor runs in the loop. Tasks,
futures, locks and timeouts are asyncio's own; only time is simulated. `ariane.testing.virtual` runs a network, a name
server, a broker and clients on it.
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

from ariane.clock import Timer
from ariane.errors import ArianeError
from ariane.testing.clock import EPOCH_MS

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


# Callbacks while the clock stands still: more means that the program is in an endless loop.
SAME_INSTANT_MAX = 1_000_000
CLOSE_TRIES = 100  # attempts to close a coroutine that awaits again while it is closed

_process: ContextVar[VirtualProcess | None] = ContextVar("process", default=None)


class ProcessKilled(ArianeError):
    """The process was killed before it had a result."""


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

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> Timer:
        return self._loop.call_later(seconds, callback, *args)


class VirtualProcess:
    """A simulated process; created by `VirtualLoop.process`. `name` appears in messages, `ip` is its machine."""

    def __init__(self, loop: VirtualLoop, name: str, ip: str) -> None:
        self.name = name
        self.ip = ip
        self.is_alive = True  # False after `kill`, for good
        self.is_paused = False  # as by SIGSTOP: callbacks are deferred, time goes on
        self.killed: list[Callable[[], None]] = []
        """Callbacks for a kill, called before the coroutines of the process are closed."""
        self._loop = loop  # shared by all processes
        self._deferred: list[asyncio.Handle] = []  # callbacks that were due during a pause, in order
        # To close their coroutines at a kill; weak, because finished tasks must not accumulate.
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        # Results that others wait for: a kill fails them. A dict as an ordered set, for equal runs.
        self._awaited: dict[asyncio.Future[Any], None] = {}
        self._context = copy_context()  # marks its tasks and callbacks as this process's
        self._context.run(_process.set, self)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run `work` in this process and return a future of its result, which can be awaited outside the process.

        Raises:
            ProcessKilled: the process was killed; the future raises it if that happens later.
        """
        if not self.is_alive:
            work.close()
            raise ProcessKilled(f"{self.name} was killed: start another process")
        outcome: asyncio.Future[T] = self._loop.create_future()
        self._awaited[outcome] = None
        task = self._loop.create_task(work, name=self.name, context=self._context.copy())

        def report(done: asyncio.Task[T]) -> None:
            self._awaited.pop(outcome, None)
            if outcome.done():
                return
            if done.cancelled():
                outcome.cancel()
            elif (error := done.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(done.result())

        task.add_done_callback(report, context=self._context)
        return outcome

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        """Run everything that was due meanwhile, in its order."""
        self.is_paused = False
        deferred, self._deferred = self._deferred, []
        self._loop.run_soon(self, deferred)

    def kill(self) -> None:
        """Kill the process: others see no handler, no `finally` and no farewell of it, because it is disconnected before its
        coroutines are closed."""
        if not self.is_alive:
            return
        self.is_alive = False
        for cut in self.killed:
            cut()
        self.killed.clear()
        self._context.copy().run(self._throw_away)
        self._deferred.clear()  # after its tasks were closed: some of them exist only by their first callback
        for outcome in list(self._awaited):
            if not outcome.done():
                outcome.set_exception(ProcessKilled(f"{self.name} was killed"))
                outcome.exception()  # marks the exception as retrieved
        self._awaited.clear()

    def admits(self, handle: asyncio.Handle) -> bool:
        """Return whether a callback may run now. If not, it is deferred, or dropped if the process was killed."""
        if self.is_alive and self.is_paused:
            self._deferred.append(handle)
        return self.is_alive and not self.is_paused

    def owns(self, task: asyncio.Task[Any]) -> None:
        if self.is_alive:
            self._tasks.add(task)
        else:  # tasks that a `finally` started while its coroutine was closed
            _throw_away(task)

    def _throw_away(self) -> None:
        for task in list(self._tasks):
            _throw_away(task)
        self._tasks.clear()


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time. Sockets exist when `network` was given (`ariane.testing.virtual.virtual_network`)."""

    def __init__(self) -> None:
        super().__init__()
        self.network: Any = None
        self._now = 0.0  # virtual seconds; jumps to the next timer when nothing is due
        # Callbacks of this instant with their process, in order.
        self._ready_handles: deque[tuple[VirtualProcess | None, asyncio.Handle]] = deque()
        # Heap of (time, sequence number, process, timer): equal times run in the order of their scheduling.
        self._later: list[tuple[float, int, VirtualProcess | None, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()  # the sequence numbers of `_later`
        self._at_this_instant = 0  # callbacks since time last moved; bounds programs that never sleep
        self._processes: list[VirtualProcess] = []  # all that were created, killed ones included
        self.callbacks = 0  # number of callbacks that ran: equal in two runs with the same seed

    def process(self, name: str, ip: str = "10.0.0.1") -> VirtualProcess:
        process = VirtualProcess(self, name, ip)
        self._processes.append(process)
        return process

    def close(self) -> None:
        """Kill every process and discard all other callbacks."""
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
        """Return the process whose code is running."""
        return _process.get()

    # --- the interface that asyncio expects of a loop ---

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._check_open()
        handle = asyncio.Handle(callback, args, self, context)
        owner = _owner(context)
        if owner is None or owner.is_alive:
            self._ready_handles.append((owner, handle))
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
        """Run `func` in the loop, without virtual time passing."""
        outcome: asyncio.Future[T] = self.create_future()
        owner = _process.get()
        if owner is not None and not owner.is_alive:
            return outcome
        try:
            outcome.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - passed on through the future
            outcome.set_exception(error)
        return outcome

    async def create_server(self, *args: Any, **more: Any) -> Any:
        return await self._sockets().create_server(*args, **more)

    async def create_connection(self, *args: Any, **more: Any) -> Any:
        return await self._sockets().create_connection(*args, **more)

    def _sockets(self) -> Any:
        if self.network is None:
            raise RuntimeError("This loop has no network: use ariane.testing.virtual, or set loop.network")
        return self.network

    # --- implementation ---

    def run_soon(self, owner: VirtualProcess, handles: list[asyncio.Handle]) -> None:
        self._ready_handles.extend((owner, handle) for handle in handles)

    def _check_open(self) -> None:
        if self.is_closed():
            raise RuntimeError("The virtual loop is closed")

    def _run_once(self) -> None:
        """Run one iteration; asyncio calls this until the loop is stopped."""
        later, due = self._later, self._ready_handles
        if not due:
            while later and later[0][3].cancelled():
                heapq.heappop(later)
            if not later:
                raise RuntimeError("Deadlock: every task waits, and no callback or timer is left")
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
            raise RuntimeError(f"Endless loop: {SAME_INSTANT_MAX} iterations at {self._now:.6f} s without waiting")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: cancelled timers are skipped when their time comes."""

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: the loop has no file descriptors."""

    def _write_to_self(self) -> None:
        """Do nothing: the loop never blocks, so it need not be woken."""


class _Gone(BaseException):
    """Thrown into the coroutines of a killed process until they end: GeneratorExit would not end what a `finally` awaits."""


def _throw_away(task: asyncio.Task[Any]) -> None:
    if task.done():
        return
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = cast("Coroutine[Any, Any, Any]", task.get_coro())
    for _ in range(CLOSE_TRIES):
        try:
            coroutine.throw(_Gone())
        except BaseException:  # noqa: BLE001 - the process is over; its errors are of no interest
            return


def _owner(context: Context | None) -> VirtualProcess | None:
    return _process.get() if context is None else context.get(_process)
