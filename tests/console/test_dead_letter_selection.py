"""All dead letters that match, for a resend or an export: complete, or an error."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from queues_in_memory import Queues

from ariane.cluster.admin import Admin
from ariane.console.areas.dead_letters import dead_letter_selection
from ariane.console.areas.dead_letters.dead_letter_selection import DeadLetterFilter, all_matching
from ariane.console.areas.messages import message_scan
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings
from ariane.errors import NotFound, ServerUnavailable, UsageError
from ariane.model.message import ReceivedMessage


def select(queues: Queues, home: Path, selection: DeadLetterFilter | None = None) -> list[ReceivedMessage]:
    async def run() -> list[ReceivedMessage]:
        settings = ConsoleSettings(namesrv="127.0.0.1:1", data_dir=home)
        async with open_services(settings) as services:
            return await all_matching(services, cast(Admin, queues), "billing", selection or DeadLetterFilter())

    return asyncio.run(run())


def letters(count: int, size: int = 10) -> Queues:
    """Return two queues of dead letters with bodies of `size` bytes, one per ms."""
    contents = [(ms, b"%0*d" % (size, ms), "new" if ms % 2 else "") for ms in range(1_000, 1_000 + count)]
    return Queues(contents[::2], contents[1::2])


def test_all_pages_are_read_in_the_order_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_scan, "MATCHES_MAX", 20)
    monkeypatch.setattr(message_scan, "WINDOW_MESSAGES", 8)
    found = select(letters(100), tmp_path)
    assert [message.store_ms for message in found] == list(range(1_000, 1_100))
    assert all(int(message.body) == message.store_ms for message in found)
    odd = select(letters(100), tmp_path, DeadLetterFilter(text="10", tag="new"))
    assert [message.store_ms for message in odd] == [ms for ms in range(1_001, 1_100, 2) if "10" in str(ms)]


def test_more_than_fit_into_memory_are_refused_before_all_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_scan, "MATCHES_MAX", 20)
    monkeypatch.setattr(message_scan, "WINDOW_MESSAGES", 8)
    monkeypatch.setattr(dead_letter_selection, "BODIES_MAX_BYTES", 1_000)
    assert len(select(letters(10, size=100), tmp_path)) == 10
    queues = letters(2_000, size=100)
    with pytest.raises(UsageError, match="restrict the time range"):
        select(queues, tmp_path)
    assert queues.pulls < 30
    monkeypatch.setattr(dead_letter_selection, "READ_MAX", 50)
    assert len(select(letters(50), tmp_path)) == 50
    with pytest.raises(UsageError, match="more than 50 dead letters"):
        select(letters(51), tmp_path)


def test_an_incomplete_selection_is_an_error(tmp_path: Path) -> None:
    queues = letters(10)
    queues.broken = "broker-b"
    with pytest.raises(ServerUnavailable, match="cannot read all dead letters of billing: .*broker-b"):
        select(queues, tmp_path)
    with pytest.raises(NotFound, match="billing that matches"):
        select(letters(10), tmp_path, DeadLetterFilter(text="no such text"))
