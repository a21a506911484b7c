"""Dead letters without a broker: cells of an export, and properties next to those of the original."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from ariane.console.areas.dead_letters.dead_letter_export import csv_cell, csv_text
from ariane.console.areas.dead_letters.dead_letter_list import BODY_CHARS, compare_properties, letter_copy, letter_row
from ariane.console.areas.messages.message_body import PREVIEW_CHARS
from ariane.model.message import MessageQueue, ReceivedMessage


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＠"])
def test_texts_that_spreadsheets_execute_get_an_apostrophe(start: str) -> None:
    assert csv_cell(f"{start}cmd|' /C calc'!A0") == f"'{start}cmd|' /C calc'!A0"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, ""), ("plain", "plain"), ("a=b", "a=b"), (-5, "-5"), (1.5, "1.5"), ({"k": "=1"}, '{"k": "=1"}'), ("", "")],
)
def test_other_cells_stay_as_they_are(value: object, expected: str) -> None:
    assert csv_cell(value) == expected


def test_cells_with_commas_quotes_and_line_breaks_are_one_cell() -> None:
    text = csv_text(("a", "b"), [('x,"y"', "two\nlines")])
    assert list(csv.reader(io.StringIO(text))) == [["a", "b"], ['x,"y"', "two\nlines"]]


BODIES = ["Gruß\n".encode(), b"\x00abc", b"\xff\xfe"]


def message(body: bytes = b"", **properties: str) -> ReceivedMessage:
    values: dict[str, Any] = dict.fromkeys(
        ("queue_offset", "commit_log_offset", "born_ms", "store_ms", "flag", "sys_flag"), 0
    )
    return ReceivedMessage(
        topic="T", body=body, properties=properties, queue=MessageQueue("T", "b", 0), message_id="m", offset_message_id="o",
        born_host="", store_host="", reconsume_times=0, stored_size=0, **values,
    )  # fmt: skip


def test_properties_that_differ_come_first_and_those_of_the_application_before_the_others() -> None:
    rows = compare_properties(message(a="1", b="2", KEYS="k", DELAY="0"), message(a="1", b="3", c="4", KEYS="k"))
    assert [(row.name, row.state, row.is_reserved) for row in rows] == [
        ("b", "changed", False), ("c", "removed", False), ("DELAY", "added", True), ("KEYS", "same", False), ("a", "same", False),
    ]  # fmt: skip


def test_without_the_original_nothing_is_called_a_difference() -> None:
    assert [row.state for row in compare_properties(message(a="1"), None)] == ["unknown"]


def test_bodies_that_are_no_text_are_not_shown_as_text() -> None:
    shown = {
        body: (letter_row(message(body=body), {}).preview, letter_copy(message(body=body)).body) for body in BODIES
    }
    assert shown["Gruß\n".encode()] == ("Gruß", "Gruß\n")
    assert shown[b"\x00abc"] == (None, None)
    assert shown[b"\xff\xfe"] == (None, None)


def test_texts_that_a_reader_does_not_see_are_escaped() -> None:
    """A right-to-left override in a key shows another key than the one that is stored."""
    letter = message(body="a\u202eb".encode(), KEYS="k\u202e", TAGS="t\u202e", color="\u202egnp")
    row = letter_row(letter, {})
    assert (row.keys, row.tag, row.preview) == (["k\\u202e"], "t\\u202e", "a\\u202eb")
    assert letter_copy(letter).body == "a\\u202eb"
    assert "\\u202egnp" in [property.dead for property in compare_properties(letter, None)]
    assert "\\u202egnp" in [property.original for property in compare_properties(letter, letter)]


def test_a_long_body_is_cut_between_characters() -> None:
    body = ("ß" * 200_000).encode()
    assert letter_row(message(body=b"x" + body), {}).preview == "x" + "ß" * (PREVIEW_CHARS - 1)
    assert letter_copy(message(body=b"x" + body)).body == "x" + "ß" * (BODY_CHARS - 1)
