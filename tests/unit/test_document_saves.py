"""Documents of config/ are written one write at a time, and every write takes effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.lifecycle.persistent_state import PersistentState
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.loading.saved_state import SavedState
from ariane.model.topic import TopicConfig
from ariane.testing.disk import FakeDisk

CONFIG = BrokerConfig(broker_name="broker-a", store_path_root_dir="/store")


class Held(Executor):
    """Runs what is submitted when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        outcome: Future[Any] = Future()

        def run() -> None:
            try:
                outcome.set_result(fn(*args, **kwargs))
            except Exception as error:
                outcome.set_exception(error)

        self.jobs.append(run)
        return outcome

    async def run_while(self, more: Callable[[], bool]) -> None:
        """Run one job after another while `more` holds."""
        while more():
            if self.jobs:
                self.jobs.pop(0)()
            await asyncio.sleep(0)


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def topics_of(disk: FakeDisk) -> set[str]:
    state = SavedState(disk, CONFIG.config_dir)
    state.load()
    return {name for name in state.topics.topic_config_table if name in ("A", "B")}


def test_a_write_interrupted_by_a_stop_ends_before_the_last_write_starts() -> None:
    disk, threads = FakeDisk(), Held()
    disk.make_dirs(CONFIG.config_dir)
    saved = SavedState(disk, CONFIG.config_dir)
    saved.load()
    tables = PersistentState(CONFIG, disk, saved, threads, lambda: 5, lambda: 0.0)

    async def scenario() -> None:
        tables.topics.put(TopicConfig(topic_name="A"))
        first = asyncio.ensure_future(tables.save())
        await turns()
        threads.jobs.pop(0)()  # the flush of the change log comes before the document
        await turns()
        first.cancel()
        await turns()
        tables.topics.put(TopicConfig(topic_name="B"))
        second = asyncio.ensure_future(tables.save())
        await turns()
        assert len(threads.jobs) == 1, "two writes of topics.json at once"
        await threads.run_while(lambda: not second.done())
        await asyncio.gather(first, second, return_exceptions=True)
        assert first.cancelled()
        await second

    asyncio.run(scenario())
    assert topics_of(disk.after_kill()) == {"A", "B"}


def test_an_offset_that_is_committed_during_a_save_is_in_the_next_one() -> None:
    """After a kill an offset is therefore older than flushConsumerOffsetInterval by the time of two writes, at most."""
    disk, threads = FakeDisk(), Held()
    disk.make_dirs(CONFIG.config_dir)
    saved = SavedState(disk, CONFIG.config_dir)
    saved.load()
    tables = PersistentState(CONFIG, disk, saved, threads, lambda: 5, lambda: 0.0)

    def committed() -> int:
        state = SavedState(disk.after_kill(), CONFIG.config_dir)
        state.load()
        return ConsumerOffsets(state.offsets).get("G", "T", 0) or 0

    async def scenario() -> None:
        tables.offsets.commit("G", "T", 0, 7)
        first = asyncio.ensure_future(tables.save())
        await turns()
        tables.offsets.commit("G", "T", 0, 8)  # the disk is slow: the first save holds the earlier offset
        await threads.run_while(lambda: not first.done())
        assert committed() == 7
        second = asyncio.ensure_future(tables.save())
        await threads.run_while(lambda: not second.done())
        assert committed() == 8

    asyncio.run(scenario())
