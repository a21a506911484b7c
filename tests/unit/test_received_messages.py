"""Conversion of stored records to the messages that applications receive."""

from __future__ import annotations

import pytest

from ariane.model import host
from ariane.model.message import MessageQueue
from ariane.protocol.records import record
from ariane.protocol.records.received_messages import to_received_message

HOST = host.pack("127.0.0.1", 10911)
QUEUE = MessageQueue("T", "broker-a", 0)


def received(properties: str):
    times = {"born_ms": 1, "born_host": HOST, "store_ms": 2, "store_host": HOST}
    data = record.encode(b"T", b"x", properties.encode(), queue_id=0, queue_offset=0, offset=256, **times)
    stored = record.decode(data)
    return to_received_message(stored, stored.property_map(), QUEUE)


def test_a_message_of_a_5x_batch_has_its_own_id_and_not_that_of_the_batch():
    """A 5.x broker appends the properties of the batch, with an id of its own, to those of each message."""
    message = received("KEYS\x01k\x02UNIQ_KEY\x01OWN\x02WAIT\x01true\x02UNIQ_KEY\x01BATCH\x02CLUSTER\x01c")
    assert (message.message_id, message.properties["UNIQ_KEY"], message.keys) == ("OWN", "OWN", ("k",))


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ("UNIQ_KEY\x01ONLY", "ONLY"),
        ("MY_UNIQ_KEY\x01other\x02UNIQ_KEY\x01own", "own"),
        ("UNIQ_KEY\x01\x02UNIQ_KEY\x01second", "second"),
        ("KEYS\x01k", "7F00000100002A9F0000000000000100"),
    ],
    ids=["one", "the end of another name", "an empty one first", "none"],
)
def test_the_id_of_other_messages(properties, expected):
    assert received(properties).message_id == expected
