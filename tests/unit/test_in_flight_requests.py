"""LIST_IN_FLIGHT: other requests are served while messages are read."""

from __future__ import annotations

import inspect

import pytest

from ariane.broker.delivery.pop.delivery_clients import DeliveryClients
from ariane.broker.handlers.reading.in_flight_requests import SLICE, SLICE_BYTES, InFlightHandler
from ariane.broker.state.group_members import GroupMembers
from ariane.broker.state.pop_table import PopTable
from ariane.broker.state.saved.change_records import MessagesTaken
from ariane.net.connection import Reply
from ariane.net.replies import make_peer
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.pop import InFlightMessages, ListInFlight
from ariane.store.message_store import RecordDraft, StoreConfig, open_store
from ariane.testing.disk import FakeDisk


@pytest.mark.parametrize(
    ("count", "size", "pauses"),
    [(SLICE - 1, 10, 0), (SLICE, 10, 1), (4 * SLICE, 10, 4), (3, SLICE_BYTES, 3), (5, SLICE_BYTES // 2, 2)],
)
def test_a_list_pauses_after_many_messages_and_after_large_ones(count: int, size: int, pauses: int) -> None:
    store = open_store(StoreConfig(root="/s", commit_log_size=16 << 20), FakeDisk(), store_host=bytes(8))
    for _ in range(count):
        store.put(RecordDraft(topic="T", queue_id=0, body=bytes(size), born_ms=1, born_host=bytes(8)))
    store.dispatch_pending()
    table = PopTable()
    table.apply(MessagesTaken("G", "T", 0, tuple(range(count)), at_ms=1, visible_ms=2, next=count))
    handler = InFlightHandler(table=table, members=GroupMembers(), clients=DeliveryClients(), store=store)
    request = Command(RequestCode.LIST_IN_FLIGHT, fields=encode_header(ListInFlight("G", 1_000)))
    listing = handler.list_messages(request, make_peer(1, ("127.0.0.1", 1)))
    assert inspect.iscoroutine(listing)
    paused = 0
    while True:
        try:
            listing.send(None)
        except StopIteration as end:
            reply = end.value
            break
        paused += 1
    assert isinstance(reply, Reply) and isinstance(reply.body, bytes)
    assert (fastjson.decode(reply.body, InFlightMessages).total, paused) == (count, pauses)
