"""Idempotent delivers a message until it was consumed once, and never skips an unconsumed one."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from client_script import invoker

from ariane.client.consuming.group_options import Assignment, GroupOptions
from ariane.client.delivery.listener_invoker import ListenerInvoker, ReconsumeLater
from ariane.client.duplicates.consumed_store import ConsumedKey, MemoryStore
from ariane.client.duplicates.idempotent import NAME_MAX, Idempotent
from ariane.client.duplicates.sqlite_store import SqliteStore
from ariane.client.instance.hooks import ConsumeReturn
from ariane.errors import ClientClosed, ConfigError
from ariane.model import dedup
from ariane.model.dedup import Row
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.testing.clock import FakeClock

QUEUE = MessageQueue("T", "broker-a", 0)


def message(row: Row | None = None, *, unique_id: str = "", topic: str = "T", body: bytes = b"") -> ReceivedMessage:
    properties = {} if row is None else {dedup.DEDUP: dedup.text(row)}
    if unique_id:
        properties["UNIQ_KEY"] = unique_id
    return ReceivedMessage(
        topic=topic, body=body, properties=properties, queue=QUEUE,
        queue_offset=0, commit_log_offset=0, message_id=unique_id, offset_message_id="", born_ms=0, born_host="", store_ms=0,
        store_host="", reconsume_times=0, flag=0, sys_flag=0, stored_size=0,
    )  # fmt: skip


def rows(*sequences: int, batch: int = 0) -> list[ReceivedMessage]:
    return [message(Row("q-1", batch, 2, sequence)) for sequence in sequences]


class Listener:
    """Records its messages and raises the prepared errors."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def __call__(self, messages: list[ReceivedMessage]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        for sent_message in messages:
            row = dedup.parse(sent_message.properties.get(dedup.DEDUP, ""))
            self.given.append(-1 if row is None else row.sequence)


def test_row_names_round_trip() -> None:
    row = Row("0d6b3d3c-8a30-4c5e-9c1f-3b6a1f4b8b7e", 12, 0, 5)
    assert dedup.parse(dedup.text(row)) == row
    for strange in (
        "",
        "a/1/2",
        "a/1/2/3/4",
        "a/01/2/3",
        "a/-1/2/3",
        "a/x/2/3",
        "/1/2/3",
        "a b/1/2/3",
        "a/1/2/3\n",
        "a/1/2/٣",
    ):
        assert dedup.parse(strange) is None


def test_copies_are_skipped_in_the_same_call_and_in_later_ones() -> None:
    async def work() -> None:
        listener = Listener()
        once = Idempotent(listener)
        await once(rows(0, 1, 1, 0, 2))
        await once(rows(1, 3))
        await once(rows(0, 1))
        await once([message(), message(), *rows(0, batch=1)])
        assert listener.given == [0, 1, 2, 3, -1, -1, 0]
        assert once.skipped == 5

    asyncio.run(work())


def test_failed_rows_are_delivered_again() -> None:
    async def work() -> None:
        listener = Listener()
        once = Idempotent(listener)
        listener.error = ValueError("no")
        with pytest.raises(ValueError, match="no"):
            await once(rows(0, 1))
        listener.error = None
        await once(rows(0))
        await once(rows(0, 1))
        assert listener.given == [0, 1]

    asyncio.run(work())


def test_a_copy_waits_for_the_one_being_consumed() -> None:
    async def work(first_fails: bool) -> list[int]:
        listener = Listener()
        listener.gate = asyncio.Event()
        once = Idempotent(listener)
        calls = [asyncio.create_task(once(rows(*some))) for some in ((0, 1), (1, 0, 2), (2, 1))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not any(call.done() for call in calls)
        if first_fails:
            calls[0].cancel()
        listener.gate.set()
        await asyncio.wait_for(asyncio.wait(calls), 5)
        return sorted(listener.given)

    assert asyncio.run(work(False)) == [0, 1, 2]
    assert asyncio.run(work(True)) == [0, 1, 2]


def test_a_plain_function_is_called_in_a_thread() -> None:
    given: list[Any] = []
    once = Idempotent(lambda messages: given.append(len(messages)))
    asyncio.run(once(rows(0, 1)))
    assert given == [2]


class Held:
    """A plain function that blocks until its gate opens and counts its calls and concurrent calls."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.errors: list[Exception] = []
        self.threads: list[str] = []
        self.at_once = self.at_once_max = 0

    def __call__(self, messages: list[ReceivedMessage]) -> None:
        self.threads.append(threading.current_thread().name)
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            assert self.gate.wait(30)
            if self.errors:
                raise self.errors.pop()
        finally:
            self.at_once -= 1


def listening_to(once: Idempotent, timeout_ms: int = 20, **settings: Any) -> ListenerInvoker:
    return invoker(once, consume_timeout=timeout_ms / 1000, concurrency=4, **settings)


@pytest.mark.parametrize("fails", [False, True])
def test_rows_of_a_timed_out_thread_are_blocked_until_it_has_ended(fails: bool, tmp_path: Path) -> None:
    listener = Held()
    if fails:
        listener.errors.append(ValueError("late"))

    async def work() -> None:
        async with Idempotent(listener, store=SqliteStore(tmp_path / "seen")) as once:
            listening, patient = listening_to(once), listening_to(once, timeout_ms=30_000)
            try:
                assert (await listening.invoke_once(rows(0, 1))).status is ConsumeReturn.TIME_OUT
                repeated = [asyncio.ensure_future(patient.invoke_once(rows(number))) for number in (0, 1, 0)]
                done, _ = await asyncio.wait(repeated, timeout=0.05)
                assert not done and len(listener.threads) == 1
                repeated[2].cancel()  # one that waits frees nothing
                listener.gate.set()
                assert all([(await item).is_success for item in repeated[:2]])
                assert once.skipped == (0 if fails else 2)
            finally:
                listener.gate.set()
                listening.close()
                patient.close()

    asyncio.run(work())
    assert len(listener.threads) == (3 if fails else 1)
    if not fails:
        assert listener.at_once_max == 1
    assert asyncio.run(recorded(tmp_path / "seen", 0, 1)) == 2


async def recorded(path: Path, *sequences: int) -> int:
    """Return how many of the rows the consumer of group g recorded as consumed."""
    store = SqliteStore(path)
    await store.open()
    keys = [ConsumedKey("g/row/T/q-1/0/2/0", sequence) for sequence in sequences]
    seen = await store.seen(keys)
    await store.close()
    return len(seen)


def test_a_cancelled_call_without_a_consumer_blocks_its_rows_too() -> None:
    listener = Held()

    async def work() -> None:
        once = Idempotent(listener)
        first = asyncio.ensure_future(once(rows(0)))
        while not listener.threads:
            await asyncio.sleep(0)
        first.cancel()
        second = asyncio.ensure_future(once(rows(0)))
        await asyncio.wait([first])
        listener.gate.set()
        await second
        assert (first.cancelled(), len(listener.threads), once.skipped) == (True, 1, 1)

    asyncio.run(work())


def test_a_cancelled_call_not_yet_started_by_a_thread_releases_its_rows() -> None:
    listener = Held()

    async def work() -> None:
        once = Idempotent(listener)
        listening = invoker(once)
        try:
            first, second = (asyncio.ensure_future(listening.invoke_once(rows(number))) for number in (0, 1))
            while not listener.threads:
                await asyncio.sleep(0)
            second.cancel()
            await asyncio.wait([second])
            third = asyncio.ensure_future(listening.invoke_once(rows(1)))
            listener.gate.set()
            assert (await first).is_success and (await third).is_success
            assert len(listener.threads) == 2
        finally:
            listener.gate.set()
            listening.close()

    asyncio.run(work())


def test_the_consumers_rules_for_threads_apply_to_the_wrapped_listener() -> None:
    listener = Held()

    async def work() -> None:
        listening = listening_to(Idempotent(listener), timeout_ms=1, is_orderly=True)
        assert listening.uses_threads
        call = asyncio.ensure_future(listening.invoke_once(rows(0)))
        try:
            done, _ = await asyncio.wait([call], timeout=0.05)
            assert not done
        finally:
            listener.gate.set()
            await asyncio.wait([call])
            listening.close()
        assert call.result().is_success
        assert listener.threads[0].startswith("listener-g")
        assert not listening_to(Idempotent(Listener())).uses_threads

    asyncio.run(work())


def bodies(messages: Sequence[ReceivedMessage]) -> list[bytes]:
    return [received.body for received in messages]


class Recording:
    """A listener that records the bodies of its messages."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, messages: list[ReceivedMessage]) -> None:
        self.bodies += bodies(messages)


def test_any_message_is_recognized_by_its_unique_id_within_its_topic() -> None:
    async def work() -> None:
        listener = Recording()
        once = Idempotent(listener)
        await once([message(unique_id="A", body=b"1"), message(unique_id="B", body=b"2")])
        await once([message(unique_id="B", body=b"copy"), message(unique_id="A", topic="U", body=b"3")])
        await once([message(body=b"4"), message(body=b"5")])  # without an id
        assert listener.bodies == [b"1", b"2", b"3", b"4", b"5"]
        assert once.skipped == 1

    asyncio.run(work())


def test_a_row_that_one_run_wrote_to_two_topics_is_consumed_from_both() -> None:
    async def work() -> None:
        listener, row = Recording(), Row("q-1", 0, 0, 0)
        once = Idempotent(listener)
        await once([message(row, topic="T", body=b"1"), message(row, topic="U", body=b"2"), message(row, topic="T")])
        assert listener.bodies == [b"1", b"2"]

    asyncio.run(work())


def test_the_applications_key_replaces_id_and_row() -> None:
    async def work() -> None:
        listener = Recording()
        once = Idempotent(listener, key=lambda received: received.properties.get("order"))
        first = message(Row("q", 0, 0, 0), unique_id="A", body=b"1")
        ordered = [
            msgspec.structs.replace(first, properties={"order": text}, body=text.encode()) for text in ("x", "", "x")
        ]
        await once([first, first, *ordered, ordered[1]])
        assert listener.bodies == [b"1", b"1", b"x", b"", b""]  # no key and an empty one are always passed on

    asyncio.run(work())


def test_a_key_that_is_not_a_text_is_refused_before_the_listener() -> None:
    async def work() -> None:
        listener = Recording()
        once = Idempotent(listener, key=lambda received: 5)  # type: ignore[arg-type,return-value]
        with pytest.raises(ConfigError, match="key = 5: the function returned this for message A"):
            await once([message(unique_id="A")])
        assert listener.bodies == []

    asyncio.run(work())


@pytest.mark.parametrize("identity", ["x" * NAME_MAX, "a\0b", "\ud800", "line\nfeed"])
def test_unusual_keys_are_recognized_in_a_database(identity: str, tmp_path: Path) -> None:
    async def work() -> None:
        listener = Recording()
        async with Idempotent(listener, store=SqliteStore(tmp_path / "s"), key=lambda received: identity) as once:
            await once([message(body=b"1")])
            await once([message(body=b"2")])
        assert listener.bodies == [b"1"]

    asyncio.run(work())


@pytest.mark.parametrize(
    "wrong",
    [
        {"store": "/data/seen.db"}, {"store": MemoryStore}, {"store": object()}, {"key": lambda: "x"}, {"key": "order"},
        {"ttl": 0}, {"ttl": -1}, {"ttl": timedelta(0)}, {"ttl": "7d"}, {"scope": 5},
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Idempotent(print, **wrong)
    assert caught.value.key == next(iter(wrong))


def in_group(
    once: Idempotent, group: str, client_id: str, assignment: Assignment = Assignment.SHARED
) -> ListenerInvoker:
    found = invoker(once)
    options = GroupOptions(group=group, assignment=assignment)
    return ListenerInvoker(once, options=options, clock=found._clock, events=found._events, client_id=client_id)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([("g", "c2", Assignment.SHARED)], 1),  # another member of the group
        ([("h", "c1", Assignment.SHARED)], 2),  # another group
        ([("g", "c1", Assignment.ALL), ("g", "c2", Assignment.ALL), ("g", "c1", Assignment.ALL)], 3),
    ],
)
def test_groups_and_broadcasting_members_have_their_own_records(
    others: list[Any], expected: int, tmp_path: Path
) -> None:
    async def work() -> None:
        listener = Recording()
        async with Idempotent(listener, store=SqliteStore(tmp_path / "s")) as once:
            for group, client_id, assignment in [("g", "c1", Assignment.SHARED), *others]:
                consumer = in_group(once, group, client_id, assignment)
                assert (await consumer.invoke_once([message(unique_id="A")])).is_success
        assert len(listener.bodies) == expected

    asyncio.run(work())


def test_a_scope_replaces_the_group() -> None:
    async def work() -> None:
        listener = Recording()
        once = Idempotent(listener, scope="both")
        for group in ("g", "h"):
            await in_group(once, group, "c").invoke_once([message(unique_id="A")])
        assert len(listener.bodies) == 1

    asyncio.run(work())


def test_a_restart_remembers_what_was_consumed(tmp_path: Path) -> None:
    async def run(*sequences: int) -> list[int]:
        listener = Listener()
        async with Idempotent(listener, store=SqliteStore(tmp_path / "deep" / "seen")) as once:
            for sequence in sequences:
                await once(rows(sequence))
        return listener.given

    some = list(range(0, 40, 2))
    assert asyncio.run(run(*some)) == some
    assert asyncio.run(run(*range(40))) == list(range(1, 40, 2))


def test_messages_are_delivered_again_after_their_time_to_live() -> None:
    async def work() -> None:
        clock, listener = FakeClock(), Recording()
        once = Idempotent(listener, store=MemoryStore(clock=clock), ttl=timedelta(minutes=1))
        for advance in (0, 59, 2, 59):
            clock.advance(advance)
            await once([message(unique_id="A")])
        assert (len(listener.bodies), once.skipped) == (2, 2)

    asyncio.run(work())


class Scripted(MemoryStore):
    """A store whose operations fail, or wait for a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: set[str] = set()
        self.gate: asyncio.Event | None = None
        self.opened = self.closed = 0

    async def open(self) -> None:
        self.opened += 1
        if "open" in self.failing:
            raise OSError("no server")

    async def close(self) -> None:
        self.closed += 1

    async def seen(self, keys: Sequence[ConsumedKey]) -> set[ConsumedKey]:
        if "seen" in self.failing:
            raise OSError("no server")
        return await super().seen(keys)

    async def add(self, keys: Sequence[ConsumedKey], ttl: float | None) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if "add" in self.failing:
            raise OSError("disk full")
        await super().add(keys, ttl)


@pytest.mark.parametrize("operation", ["open", "seen"])
def test_while_the_store_cannot_be_read_messages_are_delivered_later(operation: str) -> None:
    async def work() -> None:
        listener, store = Recording(), Scripted()
        once = Idempotent(listener, store=store)
        store.failing.add(operation)
        for _ in range(2):
            with pytest.raises(ReconsumeLater, match="cannot read the store of consumed messages: no server"):
                await once([message(unique_id="A")])
        assert listener.bodies == []
        store.failing.clear()
        await once([message(unique_id="A")])
        assert len(listener.bodies) == 1

    asyncio.run(work())


def test_a_success_that_cannot_be_recorded_counts_in_this_process(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        listener, store = Recording(), Scripted()
        once = Idempotent(listener, store=store)
        store.failing.add("add")
        with caplog.at_level(logging.ERROR, "ariane.client"):
            await once([message(unique_id="A")])
        await once([message(unique_id="A")])
        assert (len(listener.bodies), once.skipped) == (1, 1)

    asyncio.run(work())
    assert "Could not record 1 consumed messages" in caplog.text
    assert "disk full; the first is /id/T/A" in caplog.text


def test_a_success_is_recorded_although_the_call_is_cancelled_meanwhile() -> None:
    async def work() -> None:
        listener, store = Recording(), Scripted()
        once = Idempotent(listener, store=store)
        store.gate = asyncio.Event()
        first = asyncio.ensure_future(once([message(unique_id="A")]))
        while not listener.bodies:
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.ensure_future(once([message(unique_id="A")]))
        await asyncio.sleep(0)
        assert first.cancelled() and not second.done()
        store.gate.set()
        await second
        assert (len(listener.bodies), once.skipped) == (1, 1)

    asyncio.run(work())


def test_consumed_keys_do_not_wait_for_the_rest_of_their_call() -> None:
    async def work() -> None:
        listener = Listener()
        once = Idempotent(listener)
        await once(rows(0))
        listener.gate = asyncio.Event()
        long = asyncio.ensure_future(once(rows(0, 1)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.wait_for(once(rows(0)), 5)
        assert not long.done()
        listener.gate.set()
        await long
        assert listener.given == [0, 1]

    asyncio.run(work())


def test_leaving_waits_for_additions_and_closes_the_store() -> None:
    async def work() -> None:
        listener, store = Recording(), Scripted()
        once = Idempotent(listener, store=store)
        async with once:
            store.gate = asyncio.Event()
            first = asyncio.ensure_future(once([message(unique_id="A")]))
            while not listener.bodies:
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(store.gate.set)
        assert len(store) == 1 and (store.opened, store.closed) == (1, 1)
        await first
        with pytest.raises(ClientClosed, match="this Idempotent was closed"):
            await once([message(unique_id="B")])
        assert len(listener.bodies) == 1

    asyncio.run(work())


def test_a_store_is_shared_by_several_listeners(tmp_path: Path) -> None:
    async def work() -> None:
        store = SqliteStore(tmp_path / "s")
        async with Idempotent(Recording(), store=store, scope="a") as outer:
            async with Idempotent(Recording(), store=store, scope="b") as inner:
                await inner([message(unique_id="A")])
            await outer([message(unique_id="A")])
            await outer([message(unique_id="A")])
        assert (inner.skipped, outer.skipped) == (0, 1)

    asyncio.run(work())


def test_clients_can_be_imported_without_file_locks_and_sqlite() -> None:
    without = "import sys; sys.modules['fcntl'] = sys.modules['sqlite3'] = None; import ariane.client"  # as on Windows
    subprocess.run([sys.executable, "-c", without], check=True)
