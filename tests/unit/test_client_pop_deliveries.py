"""Deliveries of POP: handles of the records of a response, and the acknowledgements of several deliveries."""

from __future__ import annotations

import pytest
from test_client_fetcher import stored

from ariane.client.consuming.pop_deliveries import Delivery, batch_acks, parse_handle, taken_records
from ariane.errors import ProtocolError
from ariane.protocol.command import Command


def response(*records: bytes, starts: str | None = "0 0 3", offsets: str | None = "0 0 3,4") -> Command:
    fields = {"popTime": "1000", "invisibleTime": "60000", "reviveQid": "2", "restNum": "0"}
    infos = {"startOffsetInfo": starts, "msgOffsetInfo": offsets}
    present = {name: text for name, text in infos.items() if text is not None}
    return Command(0, fields={**fields, **present}, body=b"".join(records))


def handles(command: Command) -> list[str]:
    return [delivery.handle for _, _, delivery in taken_records(command, "a", "g", "T")]


def test_each_record_has_the_handle_of_its_queue() -> None:
    assert handles(response(stored(3), stored(4))) == ["3 1000 60000 2 0 a 0 3", "3 1000 60000 2 0 a 0 4"]


def test_a_record_without_offsets_in_the_header_begins_its_own_delivery() -> None:
    assert handles(response(stored(7), starts=None, offsets=None)) == ["7 1000 60000 2 0 a 0 7"]


@pytest.mark.parametrize(("topic", "retry"), [(b"%RETRY%g_T", "1"), (b"%RETRY%g+T", "2")])
def test_records_of_retry_topics_are_counted_separately(topic: bytes, retry: str) -> None:
    command = response(stored(3), stored(9, topic=topic), starts=f"0 0 3;{retry} 0 9", offsets=f"0 0 3;{retry} 0 9")
    normal, again = (delivery for _, _, delivery in taken_records(command, "a", "g", "T"))
    assert (normal.stored_topic("g", "T"), again.stored_topic("g", "T")) == ("T", topic.decode())
    assert again.handle == f"9 1000 60000 2 {retry} a 0 9"


def test_a_record_that_names_its_delivery_keeps_it_and_hides_it_from_the_application() -> None:
    named = "0 1000 60000 2 1 a 0 5"
    ((_, properties, delivery),) = taken_records(response(stored(5, POP_CK=named, a="b")), "a", "g", "T")
    assert (delivery.handle, properties) == (named, {"a": "b"})


def test_the_name_of_a_former_delivery_is_ignored() -> None:
    """An application that sends a copy of a message copies its properties, too."""
    assert handles(response(stored(3, POP_CK="0 999 60000 2 1 a 0 5"))) == ["3 1000 60000 2 0 a 0 3"]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (response(stored(3), stored(4), stored(5)), "queue 0 of T has more records than the header"),
        (response(stored(3), starts="0 1 3", offsets="0 1 3"), "queue 0 of T has more records than the header"),
        (response(stored(3), starts="0 0"), "expected 3 fields"),
        (response(stored(3), offsets="0 0 x"), "queue 0 of T has more records than the header"),
        (response(stored(3), offsets="0 0 99999999999"), "Invalid offset 99999999999"),
        (response(stored(3, POP_CK="1 2 3")), "Invalid POP_CK '1 2 3': expected 8 fields"),
        (response(stored(3, POP_CK="0 1000 1 1 7 a 0 5")), "unknown kind of retry topic '7'"),
    ],
)
def test_an_invalid_response_is_an_error(command: Command, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        handles(command)


def test_a_handle_is_read_as_it_is_written() -> None:
    delivery = Delivery(0, 1, 2, 3, "0", "a", 4, 5)
    assert parse_handle(delivery.handle) == delivery
    assert parse_handle(f"{delivery.handle} 77") == delivery  # as proxies write it, with the offset in the commit log


def test_deliveries_that_were_taken_together_are_acknowledged_together() -> None:
    first, second = Delivery(3, 1, 9, 2, "0", "a", 0, 4), Delivery(3, 1, 9, 2, "0", "a", 0, 5)
    other = Delivery(3, 2, 9, 2, "0", "a", 0, 3)
    together, alone = batch_acks([second, other, first], "g", "T")
    assert (together.bits, together.offsets, together.taken_ms) == ("Bg==", (4, 5), 1)
    assert (alone.offsets, alone.taken_ms, alone.revive_queue, alone.invisible_ms) == ((3,), 2, 2, 9)
