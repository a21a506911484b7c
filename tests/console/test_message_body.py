"""Bodies and properties as texts: formats, limits, and characters that deceive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ariane.console.areas.messages import message_body
from ariane.console.areas.messages.message_body import (
    HEX_BYTES,
    TEXT_BYTES,
    body_view,
    hex_rows,
    preview,
    property_rows,
    text_of,
)
from ariane.console.texts.visible_text import visible
from ariane.model.message import MessageQueue, ReceivedMessage


def message(body: bytes, properties: dict[str, str] | None = None, body_error: str = "") -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders", body=body, properties=properties or {}, queue=MessageQueue("orders", "broker-a", 0), queue_offset=0,
        commit_log_offset=0, message_id="M", offset_message_id="O", born_ms=1, born_host="10.0.0.2:1", store_ms=2,
        store_host="10.0.0.1:10911", reconsume_times=0, flag=0, sys_flag=0, stored_size=100, body_error=body_error,
    )  # fmt: skip


def test_the_format_follows_the_body_and_can_be_chosen() -> None:
    document = body_view(message(b' {"id": 17, "name": "M\xc3\xbcller"}'))
    assert (document.format, document.formats) == ("json", ["json", "text", "hex"])
    assert document.content == '{\n  "id": 17,\n  "name": "Müller"\n}'
    assert body_view(message(b'{"id": 17}'), "text").content == '{"id": 17}'
    assert body_view(message(b"plain"), "json").format == "text"
    binary = body_view(message(b"\x00\xff"), "text")
    assert (binary.format, binary.formats, binary.content[:17]) == ("hex", ["hex"], "00000000  00 ff  ")


def test_numbers_of_a_document_keep_their_digits() -> None:
    body = b'{"a": 12345678901234567890.12345678901234567890, "b": 1e400, "c": [], "d": {}, "e": [true, null, "1"]}'
    content = body_view(message(body)).content
    assert "12345678901234567890.12345678901234567890" in content
    assert "1e400" in content
    assert content.endswith('"c": [],\n  "d": {},\n  "e": [\n    true,\n    null,\n    "1"\n  ]\n}')


def test_deep_and_invalid_documents_are_texts() -> None:
    assert body_view(message(b"[" * 100_000)).format == "text"
    assert body_view(message(b"[" * 500 + b"]" * 500)).format == "text"
    assert body_view(message(b'{"a": }')).format == "text"


def test_large_bodies_are_cut_and_say_so() -> None:
    text = body_view(message("ä".encode() * TEXT_BYTES))
    assert (text.size, text.shown, text.is_truncated) == (2 * TEXT_BYTES, TEXT_BYTES, True)
    hexed = body_view(message(b"\0" * 10_000), "hex")
    assert (hexed.shown, len(hexed.content.splitlines())) == (HEX_BYTES, HEX_BYTES // 16)
    assert not body_view(message(b"x" * TEXT_BYTES)).is_truncated
    document = body_view(message(json.dumps(["x"] * 20_000).encode()))
    assert document.format == "json"
    assert 0 < document.shown < document.size


def test_a_text_cut_within_a_character_is_still_a_text() -> None:
    assert text_of("aä".encode()[:2], is_part=True) == "a"
    assert text_of("aä".encode()[:2]) is None


def test_a_body_that_cannot_be_decompressed_is_shown_as_stored() -> None:
    view = body_view(message(b"plain", body_error="unknown compression"))
    assert (view.format, view.error) == ("hex", "unknown compression")


def test_characters_that_reorder_or_hide_text_are_shown_as_escapes() -> None:
    assert visible("a\u202eb\u0007\ud800\tc\nä中😀") == "a\\u202eb\\u0007\\ud800\tc\nä中😀"
    (row,) = property_rows(message(b"", {"na\u2066me": "v\rw"}))
    assert (row.name, row.value, row.explanation) == ("na\\u2066me", "v\\u000dw", "")


def test_properties_of_the_application_are_first_and_others_are_explained() -> None:
    rows = property_rows(message(b"", {"UNIQ_KEY": "M", "KEYS": "a b", "zone": "x"}))
    assert [row.name for row in rows] == ["zone", "KEYS", "UNIQ_KEY"]
    assert rows[1].explanation == "Business keys, separated by spaces"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_indenting_does_not_change_a_document(document: dict[str, Any]) -> None:
    from ariane.console.areas.messages.message_body import _indented, _parsed

    parsed = _parsed(json.dumps(document).encode())
    assert parsed is not None
    indented, written = _indented(parsed)
    assert written is None
    assert json.loads(indented) == document


def test_a_deep_document_with_many_members_is_written_only_as_far_as_it_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Indented as a whole, these 40 KB are 8 MB, and a body of 1 MiB takes minutes."""
    pieces = 0

    def count(value: object, depth: int) -> Iterator[tuple[str, str]]:
        nonlocal pieces
        for piece in write(value, depth):
            pieces += depth == 0
            yield piece

    write = message_body._pieces
    monkeypatch.setattr(message_body, "_pieces", count)
    view = body_view(message(b"[" * 150 + b"1," * 20_000 + b"1" + b"]" * 150))
    assert (view.format, view.is_truncated, len(view.content)) == ("json", True, message_body.TEXT_BYTES)
    assert 0 < pieces < 2_000


def test_a_document_that_is_nested_too_deeply_is_text() -> None:
    depth = message_body.JSON_DEPTH + 2
    assert body_view(message(b"[" * depth + b"1" + b"]" * depth)).formats == ["text", "hex"]


@given(st.binary(max_size=3_000))
def test_any_body_is_shown(body: bytes) -> None:
    for view in (body_view(message(body)), body_view(message(body), "hex"), body_view(message(body), "text")):
        assert view.shown == len(body)
        assert all(
            char.isprintable() or char in "\n\t\xa0" or char.isspace() or ord(char) > 127 for char in view.content
        )
    assert bytes.fromhex("".join(row[10:57] for row in hex_rows(body).splitlines())) == body
    assert "\n" not in preview(body)


# --- encodings ---

CHINESE, JAPANESE, GERMAN = "订单已创建，祝您购物愉快", "ご注文を受け付けました。", "Größe 12, Café Müller"


@pytest.mark.parametrize(
    ("text", "codec", "guess"),
    [
        (CHINESE, "gbk", "gbk"),
        (f'{{"goods": "{CHINESE}"}}', "gbk", "gbk"),
        ("中", "gbk", "gbk"),
        ("鎔镕喆", "gb18030", "gb18030"),
        (JAPANESE, "shift_jis", "shift_jis"),
        (JAPANESE, "euc-jp", "euc-jp"),
        (GERMAN, "latin-1", "latin-1"),
        ("10 € für Œuvre", "cp1252", "latin-1"),
    ],
)
def test_bodies_of_other_encodings_are_read(text: str, codec: str, guess: str) -> None:
    view = body_view(message(text.encode(codec)), "text")
    assert (view.encoding, view.is_guessed, view.content) == (guess, True, text)
    assert preview(text.encode(codec)) == text


def test_an_encoding_can_be_chosen() -> None:
    body = message(CHINESE.encode("big5", errors="ignore"))
    view = body_view(body, encoding="big5")
    assert (view.encoding, view.is_guessed, view.content) == ("big5", False, body.body.decode("big5"))
    document = body_view(message(f'{{"goods": "{CHINESE}"}}'.encode("gbk")))
    assert document.format == "json" and CHINESE in document.content
    wrong = body_view(message(CHINESE.encode("gbk")), "text", "utf-8")
    assert wrong.content.startswith("\ufffd"), "invalid bytes have a mark"


def test_hex_is_the_last_resort() -> None:
    for body in (b"\x00\xff", b"\x01\x02\x03\xa4", bytes(range(128, 256))):
        view = body_view(message(body))
        assert (view.format, view.encoding, view.is_guessed) == ("hex", None, False)
        assert body_view(message(body), "text", "latin-1").format == "text", "the reader may want it nevertheless"
    assert body_view(message(b"plain")).is_ascii and not body_view(message("é".encode())).is_ascii


def test_a_guess_ends_within_a_character_of_a_long_body() -> None:
    view = body_view(message(b"x" + CHINESE.encode("gbk") * TEXT_BYTES))
    assert view.encoding == "gbk" and view.content.startswith("x订单") and "\ufffd" not in view.content
