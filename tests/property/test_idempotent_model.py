"""Idempotent against a model: deliveries, successes, failures, timeouts, kills and time in any order.

A message reaches the listener if and only if the model has no unexpired success of it, and never while another call has it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from ariane.client.duplicates.consumed_store import BLOCK_ROWS, ConsumedKey
from ariane.client.duplicates.idempotent import Idempotent
from ariane.client.duplicates.sqlite_store import SqliteStore
from ariane.model import dedup
from ariane.model.dedup import Row
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.testing.clock import FakeClock

TTL_S = 100
# Messages with unique ids, and rows in two blocks.
IDENTITIES = ["A", "B", "C", *(Row("q", 0, 0, sequence) for sequence in (0, 1, BLOCK_ROWS - 1, BLOCK_ROWS))]


class KilledProcess(Exception):
    """The process ends within an addition."""


class InlineStore(SqliteStore):
    """A store without its thread, so that the order of events is the test's, and whose process can be killed."""

    is_killed = False
    kill_at = ""  # "before" or "after" the transaction

    async def _in_thread(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        return function(*args, **options)

    async def add(self, keys: Sequence[ConsumedKey], ttl: float | None) -> None:
        if self.is_killed or self.kill_at == "before":
            raise KilledProcess
        await super().add(keys, ttl)
        if self.kill_at:
            raise KilledProcess


class Call:
    """One call of `Idempotent`, which may wait for others, and its call of the listener."""

    def __init__(self, identities: list[Any]) -> None:
        self.identities = identities
        self.given: list[Any] | None = None  # what the listener received; None: not called so far
        self.has_started = threading.Event()  # its thread is in the listener
        self.gate = threading.Event()  # opened when the thread may leave the listener
        self.ended: asyncio.Future[None]
        self.error: Exception | None = None
        self.thread: threading.Thread | None = None
        self.task: asyncio.Task[None]
        self.is_running = False  # the listener


def received(identity: Any) -> ReceivedMessage:
    is_row = isinstance(identity, Row)
    properties = {dedup.DEDUP: dedup.text(identity)} if is_row else {"UNIQ_KEY": identity}
    return ReceivedMessage(
        topic="T", body=b"", properties=properties, queue=MessageQueue("T", "b", 0), queue_offset=0,
        commit_log_offset=0, message_id="", offset_message_id="", born_ms=0, born_host="", store_ms=0, store_host="",
        reconsume_times=0, flag=0, sys_flag=0, stored_size=0,
    )  # fmt: skip


def identity_of(message: ReceivedMessage) -> Any:
    return dedup.parse(message.properties.get(dedup.DEDUP, "")) or message.properties["UNIQ_KEY"]


class Model:
    """Successes and how long they count; rows count with their block, from its last addition."""

    def __init__(self) -> None:
        self.ends: dict[Any, float] = {}
        self.blocks: dict[int, set[Row]] = {}

    def add(self, identities: list[Any], now: float) -> None:
        for identity in identities:
            if isinstance(identity, Row):
                block = identity.sequence // BLOCK_ROWS
                if self.ends.get(block, 0) <= now:
                    self.blocks[block] = set()
                self.blocks[block].add(identity)
                self.ends[block] = now + TTL_S
            else:
                self.ends[identity] = now + TTL_S

    def has(self, identity: Any, now: float) -> bool:
        if isinstance(identity, Row):
            block = identity.sequence // BLOCK_ROWS
            return self.ends.get(block, 0) > now and identity in self.blocks[block]
        return self.ends.get(identity, 0) > now


class IdempotentMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = Path(tempfile.mkdtemp())
        self.clock = FakeClock()
        self.model = Model()
        self.calls: list[Call] = []
        self.faults: list[str] = []
        self.start(in_threads=False)

    def start(self, in_threads: bool) -> None:
        self.store = InlineStore(self.directory / "seen.db", clock=self.clock)
        self.in_threads = in_threads
        self.idempotent = Idempotent(self.plain if in_threads else self.coroutine, store=self.store, ttl=TTL_S)
        self.current: Call | None = None
        self.loop.run_until_complete(self.idempotent.__aenter__())

    def now(self) -> float:
        return self.clock.now_ms() / 1000

    # The listener, and the consumer's way to call it.

    def on_call(self, call: Call, messages: list[ReceivedMessage]) -> None:
        call.given = [identity_of(message) for message in messages]
        expected = [identity for identity in dict.fromkeys(call.identities) if not self.model.has(identity, self.now())]
        if call.given != expected:
            self.faults.append(f"{call.identities}: given {call.given}, expected {expected}")
        for other in self.calls:
            if other.is_running and set(other.given or ()) & set(call.given):
                self.faults.append(f"{call.given} while {other.given} is running")
        call.is_running = True

    async def coroutine(self, messages: list[ReceivedMessage]) -> None:
        raise AssertionError("called by `run`")

    def plain(self, messages: list[ReceivedMessage]) -> None:
        call = self.current
        assert call is not None
        self.on_call(call, messages)
        call.has_started.set()
        call.gate.wait(30)
        call.is_running = False
        if call.error is not None:
            raise call.error

    def run_of(self, call: Call) -> Callable[..., Any]:
        async def run(listener: Any, messages: list[ReceivedMessage]) -> None:
            call.ended = self.loop.create_future()
            if not self.in_threads:
                self.on_call(call, messages)
                try:
                    await call.ended
                finally:
                    call.is_running = False
                return
            self.current = call

            def work() -> None:
                error: Exception | None = None
                try:
                    listener(messages)
                except ValueError as caught:
                    error = caught
                self.loop.call_soon_threadsafe(self.end, call, error)

            call.thread = threading.Thread(target=work)
            call.thread.start()
            assert call.has_started.wait(30)
            await call.ended

        return run

    @staticmethod
    def end(call: Call, error: Exception | None) -> None:
        if not call.ended.done():
            if error is None:
                call.ended.set_result(None)
            else:
                call.ended.set_exception(error)

    def settle(self) -> None:
        async def turns() -> None:
            for _ in range(40):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def let_end(self, call: Call, error: Exception | None) -> None:
        call.error = error
        if call.thread is not None:
            call.gate.set()
            call.thread.join(30)
        else:
            self.end(call, error)
        self.settle()

    # The steps.

    @rule(identities=st.lists(st.sampled_from(IDENTITIES), min_size=1, max_size=4))
    def deliver(self, identities: list[Any]) -> None:
        call = Call(identities)
        messages = [received(identity) for identity in identities]
        call.task = self.loop.create_task(self.idempotent.invoke(messages, self.run_of(call), "g"))
        self.calls.append(call)
        self.settle()

    def running(self) -> list[Call]:
        return [call for call in self.calls if call.is_running]

    @precondition(lambda self: self.running())
    @rule(data=st.data(), fails=st.booleans())
    def end_one(self, data: st.DataObject, fails: bool) -> None:
        call = data.draw(st.sampled_from(self.running()), label="call")
        if not fails:
            self.model.add(call.given or [], self.now())  # also if it timed out before
        self.let_end(call, ValueError("no") if fails else None)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def time_out(self, data: st.DataObject) -> None:
        """The consumer cancels a call, which may be waiting for another, or run in a thread that goes on."""
        data.draw(st.sampled_from(self.calls), label="call").task.cancel()
        self.settle()

    @rule(seconds=st.sampled_from([1, 40, 99, 100, 1000]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.settle()

    @rule(in_threads=st.booleans())
    def kill(self, in_threads: bool) -> None:
        """The process dies, and another one continues with the file."""
        self.restart(in_threads)

    def restart(self, in_threads: bool) -> None:
        self.store.is_killed = True
        for call in self.running():
            self.let_end(call, ValueError("killed"))
        for call in self.calls:
            call.task.cancel()
        self.settle()
        while self.running():  # calls that waited for those which ended
            self.let_end(self.running()[0], ValueError("killed"))
        if self.calls:
            self.loop.run_until_complete(asyncio.wait([call.task for call in self.calls]))
        self.store._close()
        self.calls.clear()
        self.start(in_threads)

    @precondition(lambda self: self.running())
    @rule(data=st.data(), at=st.sampled_from(["before", "after"]), in_threads=st.booleans())
    def kill_in_addition(self, data: st.DataObject, at: str, in_threads: bool) -> None:
        call = data.draw(st.sampled_from(self.running()), label="call")
        if at == "after":
            self.model.add(call.given or [], self.now())
        for other in self.running():
            if other is not call:
                self.let_end(other, ValueError("killed"))
        for other in self.calls:
            if other is not call and not other.task.done():
                other.task.cancel()
        self.settle()
        self.store.kill_at = at
        self.let_end(call, None)
        self.restart(in_threads)

    @invariant()
    def nothing_was_skipped_or_repeated(self) -> None:
        assert self.faults == []
        for call in [call for call in self.calls if call.task.done() and not call.is_running]:
            self.calls.remove(call)
            is_success = not call.task.cancelled() and call.task.exception() is None
            if is_success and call.given is None:
                assert all(self.model.has(identity, self.now()) for identity in call.identities), call.identities

    def teardown(self) -> None:
        self.restart(False)
        self.loop.run_until_complete(self.idempotent.__aexit__(None, None, None))
        self.loop.close()
        shutil.rmtree(self.directory)


def test_any_order_of_events_equals_the_model(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "ariane.client")  # kills within additions are logged as errors
    run_state_machine_as_test(
        IdempotentMachine,
        settings=settings(
            max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
