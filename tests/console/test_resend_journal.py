"""Journals of resent dead letters: one per group, whatever its name, and for one resend at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ariane.cluster.messages.replay import RecordId, ReplayOutcome
from ariane.console.areas.dead_letters.resend_journal import journal_path, open_journal, read_outcomes
from ariane.errors import ServerUnavailable
from ariane.model.topic import group_name_fault

RECORD = RecordId("%DLQ%billing", "broker-a", 0, 7)


def outcome(message_id: str) -> ReplayOutcome:
    return ReplayOutcome(
        source_topic=RECORD.topic, source_broker=RECORD.broker, source_queue_id=RECORD.queue_id,
        source_queue_offset=RECORD.queue_offset, source_message_id="U7", state="ok", error=None, at_ms=1, topic="orders",
        message_id=message_id, broker="broker-a", queue_id=0, queue_offset=1, offset_message_id="O",
    )  # fmt: skip


async def store(home: Path, group: str, message_id: str) -> None:
    async with open_journal(home, group) as journal:
        journal.write([outcome(message_id)])


def test_long_names_of_groups_have_journals_of_their_own(tmp_path: Path) -> None:
    groups = ["billing", "g" * 200, "g" * 201, "g" * 250, "g" * 254 + "h", "g" * 255]
    assert not any(map(group_name_fault, groups))
    for group in groups:
        asyncio.run(store(tmp_path, group, f"N-{group}"))
    for group in groups:
        assert read_outcomes(tmp_path, group)[RECORD].message_id == f"N-{group}"
    assert journal_path(tmp_path, "billing") == tmp_path / "resent" / "billing.jsonl"


def test_a_second_resend_of_a_group_is_refused_in_words_of_the_console(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_journal(tmp_path, "billing"):
            async with open_journal(tmp_path, "refunds"):
                pass
            with pytest.raises(
                ServerUnavailable, match="dead letters of billing: another resend of this group is running"
            ):
                await store(tmp_path, "billing", "N")

    asyncio.run(run())
