"""Rows of messages: copies in internal topics below their original."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="needs fastapi: pip install 'ariane[console]'")

from ariane.console.areas.messages.message_rows import MessageRow, group_copies


def row(number: int, message_id: str, topic: str) -> MessageRow:
    return MessageRow.model_construct(message_id=message_id, offset_message_id=str(number), topic=topic)


def grouped(*rows: MessageRow) -> list[tuple[str, list[str]]]:
    return [
        (item.row.offset_message_id, [copy.offset_message_id for copy in item.copies]) for item in group_copies(rows)
    ]


def test_copies_are_below_the_original_wherever_it_is_in_the_list() -> None:
    rows = (
        row(4, "A", "%DLQ%G"),
        row(3, "A", "%RETRY%G"),
        row(2, "B", "orders"),
        row(1, "A", "orders"),
        row(0, "B", "SCHEDULE_TOPIC_XXXX"),
    )
    assert grouped(*rows) == [("2", ["0"]), ("1", ["4", "3"])]


def test_without_the_original_copies_are_below_the_first_one() -> None:
    assert grouped(row(2, "A", "%DLQ%G"), row(1, "A", "%RETRY%G")) == [("2", ["1"])]


def test_a_repeated_send_is_not_a_copy() -> None:
    assert grouped(row(2, "A", "orders"), row(1, "A", "orders")) == [("2", []), ("1", [])]
