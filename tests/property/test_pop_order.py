"""Messages in order by POP, against a model: any sequence of requests, repeated ones, acknowledgements, failures, and restarts.

A request gets the first messages of the queue that are not acknowledged, and none while one that was taken before is invisible;
a repeated request gets them in any case.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from ariane.broker.delivery.pop.pop_service import PopService
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.pop_table import PopChange, PopTable, QueueKey
from ariane.broker.state.saved.change_records import MessagesAcknowledged
from ariane.model import host
from ariane.protocol.requests.admin import ConsumerOffsetTable
from ariane.store.message_store import MessageStore, RecordDraft, RecordFilter, StoreConfig, open_store
from ariane.testing.disk import FakeDisk

KEY = QueueKey("G", "T", 0)
HOST = host.pack("127.0.0.1", 10911)
MESSAGES = 12
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 4), st.integers(1, 50)),
        st.tuples(st.just("repeat"), st.integers(1, 4), st.integers(1, 50)),
        st.tuples(st.just("ack"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("fail"), st.integers(0, 20), st.integers(1, 50)),
        st.tuples(st.just("unsent"), st.just(0), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("restart"), st.booleans(), st.just(0)),
    ),
    max_size=50,
)


class Delivery(NamedTuple):
    taken_ms: int
    visible_ms: int


class Model:
    def __init__(self) -> None:
        self.next = 0  # the first message that was never taken
        self.open: dict[int, Delivery] = {}  # the last batch, without the acknowledged ones
        self.attempt: str | None = None  # of that batch

    def take(self, count: int, attempt: str, now_ms: int) -> list[int]:
        if attempt != self.attempt and any(delivery.visible_ms > now_ms for delivery in self.open.values()):
            return []
        if self.open:
            return sorted(self.open)[:count]
        return list(range(self.next, min(self.next + count, MESSAGES)))


def store_with_messages() -> MessageStore:
    config = StoreConfig(root="/store", commit_log_size=64 * 1024, consume_queue_size=20_000, flush="async")
    store = open_store(config, FakeDisk(), now_ms=lambda: 1, store_host=HOST)
    for number in range(MESSAGES):
        store.put(RecordDraft(topic="T", queue_id=0, body=b"%d" % number, born_ms=1, born_host=HOST))
    store.dispatch_pending()
    return store


STORED = store_with_messages()


class Group:
    """A group whose changes are in a document and a log."""

    def __init__(self) -> None:
        self.saved = PopTable().document(), {}
        self.log: list[PopChange] = []
        self.table, self.offsets = PopTable(), ConsumerOffsets(ConsumerOffsetTable())
        self.service = self.open()

    def record(self, *changes: PopChange) -> None:
        for change in changes:
            self.log.append(change)
            self.table.apply(change)

    def open(self) -> PopService:
        return PopService(store=STORED, offsets=self.offsets, table=self.table, record=self.record)

    def save(self) -> None:
        self.saved, self.log = (self.table.document(), copy.deepcopy(self.offsets.table().offset_table)), []

    def restart(self) -> None:
        self.table = PopTable(self.saved[0])
        for change in self.log:
            self.table.apply(change)
        self.offsets = ConsumerOffsets(ConsumerOffsetTable(copy.deepcopy(self.saved[1])))
        self.service = self.open()


@given(STEPS)
def test_every_order_of_steps_keeps_the_order_of_the_queue(steps: list[tuple[str, int, int]]) -> None:
    group, model, now, attempts = Group(), Model(), 1_000, 0
    handles: list[tuple[int, int]] = []  # offset and time of all deliveries
    done: set[int] = set()
    for kind, number, amount in steps:
        now += 1
        match kind:
            case "take" | "repeat":
                attempts += kind == "take" or model.attempt is None
                attempt = f"a{attempts}" if kind == "take" or model.attempt is None else model.attempt
                expected = model.take(number, attempt, now)
                batch = group.service.take(
                    KEY, number, amount, RecordFilter(), now, is_ordered=True, attempt_id=attempt
                )
                delivered = [] if batch is None else list(batch.offsets)
                assert delivered == expected
                assert not done & set(delivered), "an acknowledged message is delivered again"
                if delivered:
                    assert done >= set(range(delivered[0])), "a message overtakes others"
                    model.attempt = attempt
                    model.next = max(model.next, delivered[-1] + 1)
                    model.open.update(dict.fromkeys(delivered, Delivery(now, now + amount)))
                    handles += [(offset, now) for offset in delivered]
            case "ack" if handles:
                offset, taken_ms = handles[number % len(handles)]
                group.service.acknowledge(KEY, taken_ms, (offset,))
                if offset in model.open and model.open[offset].taken_ms == taken_ms:
                    del model.open[offset]
                    done.add(offset)
            case "fail" if handles:  # the batch keeps its handle
                offset, taken_ms = handles[number % len(handles)]
                is_current = offset in model.open and model.open[offset].taken_ms == taken_ms
                assert group.service.hide(KEY, taken_ms, offset, taken_ms, now + amount) == is_current
                if is_current:
                    model.open[offset] = Delivery(taken_ms, now + amount)
            case "unsent" if handles:
                taken_ms = handles[-1][1]
                unsent = [offset for offset, delivery in model.open.items() if delivery.taken_ms == taken_ms]
                group.service.give_back(KEY, taken_ms, unsent, now)
                model.open.update(dict.fromkeys(unsent, Delivery(now, now)))
            case "wait":
                now += number
            case "restart":
                if number:
                    group.save()
                group.restart()
        queue = group.table.get(KEY)
        assert (0 if queue is None else queue.committed) == min(model.open, default=model.next)


def test_acknowledgements_of_one_queue_that_arrive_together_are_one_change() -> None:
    group = Group()
    for now in (1_000, 1_001, 1_002):
        group.service.take(KEY, 2, 50, RecordFilter(), now)
    other = KEY._replace(queue_id=1)
    # The third delivery has another time, and nothing was taken from the other queue.
    group.service.acknowledge_all([(KEY, 1_000, (0, 1)), (KEY, 1_001, (3,)), (KEY, 1_001, (4,)), (other, 1_000, (0,))])
    assert group.log[3:] == [MessagesAcknowledged(*KEY, offsets=(0, 1, 3))]
    assert group.service.committed(KEY) == group.offsets.get(*KEY) == 2
