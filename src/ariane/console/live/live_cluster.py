"""The background poll of the cluster: one for all tabs, alerts and REST clients.

    snapshot() ─→ wakes the thread, returns the newest LiveSnapshot ◀── ClusterWatch, in the thread

The poll runs in a thread with an event loop of its own: its CPU time can be measured and limited, and pages do not wait for the
decoding of large responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.console.live.cluster_watch import INTERVAL_S, ClusterWatch
from ariane.console.live.guarded_pool import GuardedPool
from ariane.console.live.live_snapshot import LiveSnapshot
from ariane.console.live.request_pacing import CpuBudget, PacedRequests
from ariane.net.connection import Sign
from ariane.net.pools.server_health import ServerHealth

log = logging.getLogger("ariane.console")

WAIT_S = 1.0  # time that a page waits for data
STOP_S = 2.0  # time that the end of the console waits for the thread
FRESH_S = 2 * INTERVAL_S  # data of this age are shown without waiting for others


class SnapshotSource(Protocol):
    """Returns snapshots: `LiveCluster`, or fixed ones in tests."""

    async def snapshot(self, wait_s: float = WAIT_S) -> LiveSnapshot:
        """Return the newest snapshot."""
        ...


class LiveCluster:
    """The state of a cluster, at most some seconds old while someone looks at it.

        async with LiveCluster(["10.0.0.1:9876"], health=health) as live:
            snapshot = await live.snapshot()

    Args:
        health: Which servers are silent; shared with the connections of pages.
        tls: Encrypts the connections; None: plain ones.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        *,
        health: ServerHealth,
        sign: Sign | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._name_servers = name_servers
        self._health = health
        self._sign = sign
        self._tls = tls
        self._clock = clock
        # Daemon: a program that is killed by an error does not wait for it.
        self._thread = threading.Thread(target=self._run, name="ariane-console-poll", daemon=True)
        self._pages: asyncio.AbstractEventLoop | None = None  # the loop of pages; None before the start
        self._ready = asyncio.Event()  # the thread polls when it is wanted
        self._poll_loop: asyncio.AbstractEventLoop | None = None  # the loop of the thread
        self._watch: ClusterWatch | None = None  # lives in the thread
        self._watching: asyncio.Task[None] | None = None  # cancelled at the end
        self._latest = LiveSnapshot(as_of_ms=0)  # replaced by the thread
        self._base_s = float("-inf")  # monotonic time when topics and groups were last published
        self._round_s = 0.0  # duration of the last round of these; 0 before the first
        self._waiting: set[asyncio.Event] = set()  # of pages that wait for the next publication

    async def __aenter__(self) -> Self:
        self._pages = asyncio.get_running_loop()
        self._thread.start()
        await self._ready.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._poll_loop is not None and self._watching is not None:
            with contextlib.suppress(RuntimeError):  # the thread has ended by an error, which it has logged
                self._poll_loop.call_soon_threadsafe(self._watching.cancel)
        # Tens of thousands of requests of a large cluster take long to cancel: the thread then ends with the program.
        await asyncio.to_thread(self._thread.join, STOP_S)

    async def snapshot(self, wait_s: float = WAIT_S) -> LiveSnapshot:
        """Return the newest snapshot, and keep polling for some time.

        Args:
            wait_s: Time to wait for data if there are none, or only old ones because the cluster was not polled for a while.
        """
        if self._poll_loop is not None and self._watch is not None:
            with contextlib.suppress(RuntimeError):
                self._poll_loop.call_soon_threadsafe(self._watch.want)
        arrived = asyncio.Event()
        self._waiting.add(arrived)
        try:
            async with asyncio.timeout(wait_s):
                while self._is_worth_waiting(wait_s):
                    arrived.clear()
                    await arrived.wait()
        except TimeoutError:
            pass  # the snapshot has its time
        finally:
            self._waiting.discard(arrived)
        return self._latest

    def publish(self, snapshot: LiveSnapshot, *, is_base: bool, round_s: float) -> None:
        """Accept a snapshot from the thread."""
        self._latest = snapshot
        if is_base:
            self._base_s, self._round_s = self._clock.monotonic(), round_s
        self._pages_call(self._wake_pages)

    def _is_worth_waiting(self, wait_s: float) -> bool:
        if not self._latest.is_loaded:
            # Without a name server there will be no data; the snapshot names those that did not respond.
            return not self._latest.name_servers or any(server.is_up for server in self._latest.name_servers)
        age_s = self._clock.monotonic() - self._base_s
        # In a large cluster a round takes longer than a page may wait: its data are shown, with their time.
        return age_s > FRESH_S + 2 * self._round_s and self._round_s < wait_s

    def _wake_pages(self) -> None:
        for arrived in self._waiting:
            arrived.set()

    # --- in the thread ---

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            try:
                runner.run(self._poll())
            except asyncio.CancelledError:
                log.debug("The poll of the cluster was stopped")
            except Exception:
                log.exception("The poll of the cluster failed")
            finally:
                self._pages_call(self._ready.set)

    def _pages_call(self, callback: Callable[[], None]) -> None:
        assert self._pages is not None
        with contextlib.suppress(RuntimeError):  # the console has stopped meanwhile
            self._pages.call_soon_threadsafe(callback)

    async def _poll(self) -> None:
        self._poll_loop = asyncio.get_running_loop()
        self._watching = asyncio.current_task()
        pool = GuardedPool(self._name_servers, health=self._health, sign=self._sign, tls=self._tls, clock=self._clock)
        async with pool as peers:
            self._watch = ClusterWatch(
                peers=peers,
                paced=PacedRequests(peers, CpuBudget(clock=self._clock)),
                name_servers=self._name_servers,
                subscriber=self,
                clock=self._clock,
            )
            self._pages_call(self._ready.set)
            await self._watch.run()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what creates a loop of uvloop; None where that is not available (Windows)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
