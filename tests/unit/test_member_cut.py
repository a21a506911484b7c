"""The log line of a cut says why the records were cut off."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ariane.broker.config.broker_config import BrokerConfig, to_store_config
from ariane.broker.failover.member_cut import cut_member
from ariane.model import host
from ariane.store.log.epochs import Epoch, EpochHistory
from ariane.store.message_store import RecordDraft, open_store
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk

HOST = host.pack("127.0.0.1", 10911)


@pytest.mark.parametrize(
    ("epochs", "reason"),
    [
        ((Epoch(1, 0, "a"),), "no later master has them"),
        ((), "their epochs are unknown, and they are copied from the master"),  # restored from a backup
    ],
)
def test_a_cut_names_its_reason(epochs: tuple[Epoch, ...], reason: str, caplog: pytest.LogCaptureFixture) -> None:
    disk, config = FakeDisk(), BrokerConfig(store_path_root_dir="/store", mapped_file_size_commit_log=1024)
    store = open_store(to_store_config(config), disk, now_ms=FakeClock(tick_ms=1).now_ms, store_host=HOST)
    store.put(RecordDraft(topic="T", queue_id=0, body=b"1", born_ms=1, born_host=HOST))
    end = store.commit_log_max
    store.close()
    history = EpochHistory(disk, "/store", epochs=epochs)
    with caplog.at_level(logging.WARNING):
        asyncio.run(cut_member(config, disk, history, 0, end))
    assert f"Cut {end} bytes off the log at 0: {reason}. They are readable" in caplog.text
