"""A nearly full disk: Java's brokers remove unexpired messages, members of a set with failover refuse new ones."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.failover.failover_settings import role_config
from ariane.broker.file_cleaner import FileCleaner
from ariane.broker.lifecycle.flusher import Flusher
from ariane.errors import StoreFull
from ariane.model import host
from ariane.store.disk.files import Usage
from ariane.store.message_store import RecordDraft, StoreConfig, open_store
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk

HOST = host.pack("127.0.0.1", 10911)
BROKER = BrokerConfig(store_path_root_dir="/store", delete_when="", delete_commit_log_files_interval=0)
MEMBER = replace(BROKER, failover_endpoints="http://10.0.0.1:2379", broker_role="SYNC_MASTER", broker_id=1)


class Reader:
    """A consumer without requests."""

    def on_flushed(self) -> None:
        pass


class NearlyFullStore:
    """A store of several log files with `used` percent of its disk in use."""

    def __init__(self, config: BrokerConfig, used: int) -> None:
        self.disk, self.clock = FakeDisk(), FakeClock()
        self.disk.now_ms = self.clock.now_ms
        layout = StoreConfig(root="/store", commit_log_size=1024, consume_queue_size=100)
        self.store = open_store(layout, self.disk, now_ms=self.clock.now_ms, store_host=HOST)
        for number in range(60):
            self.store.put(RecordDraft(topic="T", queue_id=0, body=b"%03d" % number, born_ms=1, born_host=HOST))
        self.store.flush()
        self.store.dispatch_pending()
        self.store.write_checkpoint()
        self.disk.used = Usage(100, 100 - used)
        asyncio.run(self._clean(config))

    async def _clean(self, config: BrokerConfig) -> None:
        with ThreadPoolExecutor(1) as executor:
            flusher = Flusher(store=self.store, executor=executor, derived_executor=executor, listener=Reader())
            cleaner = FileCleaner(
                config=config,
                store=self.store,
                disk=self.disk,
                flusher=flusher,
                executor=executor,
                on_stored=lambda: None,
                now_ms=self.clock.now_ms,
                reject_writes=not config.is_slave,
            )
            await cleaner.check_disk_space()
            await cleaner.run()

    @property
    def removed(self) -> int:
        """Return how many messages a consumer cannot read any more."""
        return self.store.min_offset("T", 0)


def test_a_broker_without_failover_removes_the_oldest_messages_before_they_expire() -> None:
    assert NearlyFullStore(BROKER, used=86).removed > 0
    assert NearlyFullStore(BROKER, used=85).removed == 0
    assert NearlyFullStore(replace(BROKER, clean_file_forcibly_enable=False), used=99).removed == 0


@pytest.mark.parametrize("leads", [False, True])
def test_a_member_of_a_set_with_failover_has_acknowledged_messages_until_they_expire(leads: bool) -> None:
    config = role_config(MEMBER, leads=leads)
    full = NearlyFullStore(config, used=99)
    assert full.removed == 0
    assert isinstance(full.store.refusal, StoreFull) == leads
    assert NearlyFullStore(replace(config, file_reserved_time=0), used=99).removed > 0
