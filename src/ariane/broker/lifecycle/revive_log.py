"""Messages in flight of a store that a broker of 5.x has served by POP. [PopReviveService]

    rmq_sys_wheel_timer            check points of deliveries and their acknowledgements, until a delivery's time is over
    rmq_sys_REVIVE_LOG_<cluster>   then; those below the offset of its group have been copied to retry topics

5.x commits offsets behind what it has delivered. Without this, a group would go on there, and lose what was in flight.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec

from ariane.broker.lifecycle.persistent_state import PersistentState
from ariane.broker.state.pop_table import QueueKey
from ariane.broker.state.saved.change_records import MessagesTaken, PopRestarted
from ariane.model.message import REAL_TOPIC, TAGS
from ariane.model.topic import TIMER_TOPIC
from ariane.protocol.records import record
from ariane.store.delays.delay_queues import TIMER_QUEUE
from ariane.store.message_store import MessageStore

log = logging.getLogger("ariane.broker.state")

REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
CHECK_POINT, ACK, BATCH_ACK = "ck", "ack", "bAck"  # tags
BATCH_MAX = 127  # messages of a check point: a byte at 5.x. Clients can write entries of any number into its topic


class _ReviveEntry(
    msgspec.Struct,
    rename={
        "start": "so",
        "taken_ms": "pt",
        "group": "c",
        "topic": "t",
        "queue_id": "q",
        "invisible_ms": "it",
        "acked_bits": "bm",
        "count": "n",
        "differences": "d",
        "acked": "ao",
        "all_acked": "aol",
    },
):
    """A check point, or an acknowledgement of one or several of its messages."""

    start: int
    taken_ms: int
    group: str
    topic: str
    queue_id: int
    invisible_ms: int = 0
    acked_bits: int = 0
    count: Annotated[int, msgspec.Meta(ge=0, le=BATCH_MAX)] = 0
    differences: list[int] | None = None  # of the offsets from the first one
    acked: int = -1
    all_acked: list[int] | None = None

    @property
    def key(self) -> QueueKey:
        return QueueKey(self.group, self.topic, self.queue_id)

    @property
    def delivered(self) -> list[int]:
        """Return the offsets that a check point has, without those whose acknowledgement it contains."""
        offsets = self.differences or range(self.count)
        return [self.start + offset for bit, offset in enumerate(offsets) if not self.acked_bits >> bit & 1]


class _Delivery(NamedTuple):
    taken_ms: int
    visible_ms: int


def resume_deliveries(store: MessageStore, state: PersistentState) -> None:
    """Continue the deliveries of a broker of 5.x that has served the store since ours, with their handles."""
    if not state.has_foreign_offsets or not _revive_queues(state):
        return
    in_flight: dict[QueueKey, dict[int, _Delivery]] = {}
    acked: set[tuple[QueueKey, int, int]] = set()
    for tag, entry in _entries(store, state):
        if tag == CHECK_POINT:
            delivery = _Delivery(entry.taken_ms, entry.taken_ms + entry.invisible_ms)
            deliveries = in_flight.setdefault(entry.key, {})
            for offset in entry.delivered:
                deliveries[offset] = max(delivery, deliveries.get(offset, delivery))
        else:
            acked.update((entry.key, entry.taken_ms, offset) for offset in entry.all_acked or [entry.acked])
    for key, deliveries in in_flight.items():
        _resume(key, deliveries, acked, store, state)
    for topic, queue_id in _revive_queues(state):
        state.offsets.commit(REVIVE_GROUP, topic, queue_id, store.max_offset(topic, queue_id))


def _resume(
    key: QueueKey,
    deliveries: dict[int, _Delivery],
    acked: set[tuple[QueueKey, int, int]],
    store: MessageStore,
    state: PersistentState,
) -> None:
    committed, first = state.offsets.get(*key), store.min_offset(key.topic, key.queue_id)
    if committed is None:
        return
    pending = {
        offset: delivery
        for offset, delivery in sorted(deliveries.items())
        if first <= offset < committed and (key, delivery.taken_ms, offset) not in acked
    }
    if not pending:
        return
    lowest = next(iter(pending))
    changes = [MessagesTaken(*key, (offset,), *delivery, next=committed) for offset, delivery in pending.items()]
    state.record_pop(PopRestarted(*key, next=lowest), *changes)
    state.offsets.commit(*key, lowest)
    log.warning(
        "%s: %d messages of %s-%d are in flight since a broker of 5.x delivered them", key.group, len(pending), *key[1:]
    )


def _entries(store: MessageStore, state: PersistentState) -> Iterator[tuple[str, _ReviveEntry]]:
    places = [(TIMER_TOPIC, TIMER_QUEUE, number) for _, number in store.delayed.timers_before(store.commit_log_max)]
    for topic, queue_id in _revive_queues(state):
        first = state.offsets.get(REVIVE_GROUP, topic, queue_id) or 0
        places += [(topic, queue_id, number) for number in range(first, store.max_offset(topic, queue_id))]
    for place in places:
        data = store.read_queue_record(*place)
        if data is None:
            continue
        item = record.decode(data)
        properties = item.property_map()
        tag, topic = properties.get(TAGS, ""), properties.get(REAL_TOPIC, item.topic)
        if topic.startswith(REVIVE_PREFIX) and tag in (CHECK_POINT, ACK, BATCH_ACK):
            try:
                yield tag, msgspec.json.decode(item.body, type=_ReviveEntry)
            except msgspec.DecodeError as error:
                log.error("Cannot read an entry of %s; its messages may be lost or come again: %s", topic, error)


def _revive_queues(state: PersistentState) -> list[tuple[str, int]]:
    names = [name for name in state.topics.names() if name.startswith(REVIVE_PREFIX)]
    return [
        (name, queue_id)
        for name in names
        if (topic := state.topics.get(name)) is not None
        for queue_id in range(topic.read_queue_nums)
    ]
