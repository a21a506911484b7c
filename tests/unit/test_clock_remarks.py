"""Remarks on clocks and time ranges in the output of commands that look up messages."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import AsyncIterator
from typing import Any

import pytest
from client_script import message

from ariane.cli.mqadmin import message_text
from ariane.cli.mqadmin.command import Output
from ariane.cli.mqadmin.commands import message_print_commands, message_query_commands
from ariane.cli.output.message_table import clock_remarks, message_lines
from ariane.cluster.messages.message_query import QueryResult
from ariane.cluster.messages.message_tracking import TracksResult
from ariane.cluster.messages.queue_reading import QueueServer
from ariane.errors import NotFound
from ariane.model.message import ReceivedMessage
from ariane.model.quantities import count_text

STORED_MS = 1_780_000_000_000
MINUTE_MS = 60_000
AHEAD = "The producer's clock was at least 1 h 30 min ahead of the broker's."
LATE = (
    "Stored 2 h after it was sent, by the producer's clock: that clock was behind the broker's, or the send was late."
)


def stored(born_after_ms: int, *, host: str = "10.0.0.7:1") -> ReceivedMessage:
    return message(5, store_ms=STORED_MS, born_ms=STORED_MS + born_after_ms, born_host=host)


class ScriptedAdmin:
    """Returns prepared messages; no group consumes them, and every queue is empty."""

    def __init__(self, *messages: ReceivedMessage) -> None:
        self.found = QueryResult(list(messages))

    async def query_by_key(self, topic: str, key: str) -> QueryResult:
        return self.found

    async def query_by_unique_key(self, topic: str, unique_key: str) -> QueryResult:
        return self.found

    async def find_messages(self, message_id: str, topic: str | None) -> QueryResult:
        return self.found

    async def track(self, message: ReceivedMessage) -> TracksResult:
        return TracksResult([])

    async def locate_queues(self, topic: str) -> list[QueueServer]:
        return []


def outputs(command: Any, admin: ScriptedAdmin, **options: Any) -> list[Output]:
    async def run() -> list[Output]:
        iterator: AsyncIterator[Output] = command(admin, Namespace(**options))
        return [output async for output in iterator]

    return asyncio.run(run())


def test_the_attributes_of_a_message_are_followed_by_what_its_times_prove() -> None:
    lines = list(message_lines(stored(90 * MINUTE_MS)))
    at = next(number for number, line in enumerate(lines) if line.startswith("Born"))
    assert lines[at + 1].strip() == AHEAD
    assert list(message_lines(stored(-120 * MINUTE_MS)))[at + 1].strip() == LATE
    assert list(message_lines(stored(-5)))[at + 1].startswith("Properties")


def test_messages_of_one_producer_have_one_remark_with_the_greatest_difference() -> None:
    messages = [stored(80 * MINUTE_MS), stored(90 * MINUTE_MS), stored(-5), stored(5_000, host="10.0.0.8:1")]
    assert clock_remarks(messages) == [
        f"{AHEAD} (2 messages from 10.0.0.7, stored by a)",
        "The producer's clock was at least 5 s ahead of the broker's. (1 message from 10.0.0.8, stored by a)",
    ]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (message_query_commands.query_by_key, {"topic": "T", "msgKey": "K"}),
        (message_query_commands.query_by_unique_key, {"topic": "T", "msgId": "K", "showAll": False}),
        (message_query_commands.query_by_id, {"topic": None, "msgId": "K", "sendMessage": None}),
    ],
)
def test_mqadmin_reports_clocks_apart_from_the_text_of_javas_tool(
    command: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_text, "write_body", lambda message, number: "/body")
    common = {"consumerGroup": None, "clientId": None, **options}
    (output,) = outputs(command, ScriptedAdmin(stored(90 * MINUTE_MS)), **common)
    assert output.notes == (f"{AHEAD} (1 message from 10.0.0.7, stored by a)",)
    (agreeing,) = outputs(command, ScriptedAdmin(stored(0)), **common)
    assert agreeing.notes == ()
    assert "clock" not in output.text + agreeing.text
    with pytest.raises(NotFound, match="K; all store times were searched"):
        outputs(command, ScriptedAdmin(), **common)


def test_mqadmin_names_the_time_range_without_messages() -> None:
    options = {"topic": "T", "charsetName": "utf-8", "printBody": True, "json": False, "endTimestamp": None}
    print_messages = message_print_commands.print_messages
    (output,) = outputs(print_messages, ScriptedAdmin(), beginTimestamp=STORED_MS, **options)
    assert output == Output(
        "",
        [],
        notes=("No message stored from 2026-05-28 20:26:40.000 UTC to now. Remove -b to print all store times.",),
    )
    assert outputs(print_messages, ScriptedAdmin(), beginTimestamp=None, **options) == []


def test_a_count_of_one_has_a_singular_noun() -> None:
    assert [count_text(number, "message") for number in (0, 1, 2_000)] == ["0 messages", "1 message", "2,000 messages"]
    assert count_text(2, "query", "queries") == "2 queries"
