"""What a group has taken from a queue, against a model: any order of deliveries, acknowledgements, changes, time and restarts."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ariane.broker.state.pop_queue import PopQueue
from ariane.broker.state.pop_table import PopChange, PopTable, QueueKey
from ariane.broker.state.saved.change_records import (
    MessageHidden,
    MessagesAcknowledged,
    MessagesReturned,
    MessagesTaken,
)

KEY = QueueKey("G", "T", 0)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 5), st.integers(1, 50)),
        st.tuples(st.just("ack"), st.integers(0, 20), st.integers(0, 3)),
        st.tuples(st.just("hide"), st.integers(0, 20), st.integers(1, 50)),
        st.tuples(st.just("return"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("restart"), st.booleans(), st.just(0)),
    ),
    max_size=60,
)


class Model:
    """Deliveries by offset, in the simplest form."""

    def __init__(self) -> None:
        self.end = 0
        self.open: dict[int, tuple[int, int]] = {}  # offset → time of the delivery, time when it is visible
        self.handles: list[tuple[int, int]] = []  # of all deliveries
        self.done: set[int] = set()


@given(STEPS)
@example([("take", 2, 1), ("return", 0, 0), ("take", 2, 1)])  # returned at the time at which it would be visible
def test_every_order_of_steps_delivers_each_message_until_it_is_acknowledged(steps: list[tuple[str, int, int]]) -> None:
    table, model, now = PopTable(), Model(), 1_000
    log: list[PopChange] = []
    saved = table.document()

    def record(change: PopChange) -> None:
        log.append(change)
        table.apply(change)

    def queue() -> PopQueue:
        return table.get(KEY) or table.open(KEY, 0)

    for kind, number, amount in steps:
        now += 1
        match kind:
            case "take":
                due = queue().due(now, number)
                assert due == sorted(due)
                assert set(due) <= {offset for offset, (_, visible) in model.open.items() if visible <= now}
                visible = [offset for offset, (_, visible_ms) in model.open.items() if visible_ms <= now]
                assert len(due) == min(number, len(visible))
                new = range(model.end, model.end + number - len(due))
                offsets = (*due, *new)
                model.end += len(new)
                record(MessagesTaken(*KEY, offsets=offsets, at_ms=now, visible_ms=now + amount, next=model.end))
                for offset in offsets:
                    assert offset not in model.done, "an acknowledged message is delivered again"
                    model.open[offset] = (now, now + amount)
                    model.handles.append((offset, now))
            case "ack" if model.handles:
                offset, taken_ms = model.handles[number % len(model.handles)]
                is_current = model.open.get(offset, (None,))[0] == taken_ms
                assert queue().is_current(offset, taken_ms) == is_current
                if is_current:
                    record(MessagesAcknowledged(*KEY, offsets=(offset,)))
                    del model.open[offset]
                    model.done.add(offset)
            case "hide" if model.handles:
                offset, taken_ms = model.handles[number % len(model.handles)]
                if queue().is_current(offset, taken_ms):
                    record(MessageHidden(*KEY, offset=offset, at_ms=now, visible_ms=now + amount))
                    model.open[offset] = (now, now + amount)
                    model.handles.append((offset, now))
            case "return" if model.handles:
                offset, taken_ms = model.handles[number % len(model.handles)]
                if queue().is_current(offset, taken_ms):
                    deliveries = queue().taken[offset].deliveries
                    record(MessagesReturned(*KEY, offsets=(offset,), at_ms=now))
                    assert queue().taken[offset].deliveries == deliveries - 1
                    model.open[offset] = (now, now)
            case "wait":
                now += number
            case "restart":
                if number:  # the document is written; otherwise the log alone is newer
                    saved, log = table.document(), []
                table = PopTable(saved)
                for change in log:
                    table.apply(change)
        state = queue()
        assert state.committed == min(model.open, default=model.end)
        assert state.next == model.end
        assert {offset: message[:2] for offset, message in state.taken.items()} == model.open
        assert state.due_ms == min((visible for _, visible in model.open.values()), default=None)
