"""Retention of what was cut off a log: nothing is removed that was not listed an hour before."""

from __future__ import annotations

import asyncio
from typing import Any

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.failover.cut_retention import HOUR_MS, CutRetention
from ariane.testing.disk import FakeDisk


class Store:
    """A directory `cut`, with files that are 3, 2 and 1 hours old, and one of a person."""

    def __init__(self, **settings: Any) -> None:
        self.disk, self.hour = FakeDisk(), 0
        self.disk.now_ms = self.now_ms
        self.disk.make_dirs("/store/cut")
        for number in (1, 2, 3):
            self.add(f"{number:020d}-1")
            self.hour += 1
        self.add("notes.txt")
        config = BrokerConfig(store_path_root_dir="/store", **settings)
        self.retention = CutRetention(config, self.disk, self.now_ms)

    def now_ms(self) -> int:
        return self.hour * HOUR_MS

    def add(self, name: str) -> None:
        handle = self.disk.create(f"/store/cut/{name}", 1)
        self.disk.pwrite(handle, b"x", 0)
        self.disk.close(handle)

    def run(self, hours: int = 0) -> list[int]:
        self.hour += hours
        asyncio.run(self.retention.run())
        return [int(name[:20]) for name in self.disk.listdir("/store/cut") if name != "notes.txt"]


def test_files_are_listed_then_removed() -> None:
    store = Store(cut_reserved_time=2)
    assert store.run() == [1, 2, 3]  # the first one is due
    assert store.run(1) == [2, 3]
    assert store.run(1) == [3]
    store.add(f"{4:020d}-1")
    assert store.run(10) == [4]  # due for a long time, and listed only now
    assert store.run() == []
    assert store.disk.listdir("/store/cut") == ["notes.txt"]


def test_the_newest_files_stay() -> None:
    store = Store(cut_files_max=2)
    assert store.run() == [1, 2, 3]
    store.add(f"{4:020d}-1")
    assert store.run(1) == [2, 3, 4]
    assert store.run(1) == [3, 4]
    assert store.run(1000) == [3, 4]


def test_without_settings_everything_stays() -> None:
    store = Store()
    assert [store.run(1000) for _ in range(3)][-1] == [1, 2, 3]


def test_a_store_without_cuts_has_nothing_to_remove() -> None:
    asyncio.run(CutRetention(BrokerConfig(cut_files_max=1), FakeDisk(), lambda: 0).run())
