"""What the two times of a message, born and stored, prove about the clock of its producer.

born after stored                      the producer's clock was ahead of the broker's by at least the difference
born long before stored                it was behind, or the message was delayed: nothing proves which
… and the message waited at a broker   no statement: redelivery, delayed message, transaction
"""

from __future__ import annotations

from typing import NamedTuple

from ariane.model import message as names
from ariane.model.message import TRANSACTION_MASK, ReceivedMessage
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, is_system_topic

AHEAD_MS = 1_000  # a smaller difference is not worth a remark
SEND_MS = 60_000  # a send with its repetitions takes less
# A message with one of these was stored again by a broker or consumer, with its first born time.
WAITED_PROPERTIES = frozenset(
    {
        names.DELAY,
        names.REAL_TOPIC,
        names.RETRY_TOPIC,
        names.ORIGIN_MESSAGE_ID,
        names.TRAN_MSG,
        names.START_DELIVER_TIME,
        names.TIMER_DELIVER_MS,
        names.TIMER_DELAY_MS,
        names.TIMER_DELAY_SEC,
        names.TIMER_OUT_MS,
    }
)


class ClockDifference(NamedTuple):
    """Statement about the clock of a producer; both values are None without one.

    Attributes:
        ahead_ms: The producer's clock was ahead of the broker's by at least this.
        late_ms: Time from born to stored that no redelivery, delay or transaction explains: the clock was behind, or the
            message was delayed on its way.
    """

    ahead_ms: int | None = None
    late_ms: int | None = None


def compare_clocks(message: ReceivedMessage) -> ClockDifference:
    """Return what the times of a message prove about its producer's clock."""
    ahead_ms = message.born_ms - message.store_ms
    if ahead_ms > AHEAD_MS:
        return ClockDifference(ahead_ms=ahead_ms)
    if -ahead_ms > SEND_MS and not _has_waited(message):
        return ClockDifference(late_ms=-ahead_ms)
    return ClockDifference()


def _has_waited(message: ReceivedMessage) -> bool:
    topic = message.queue.topic
    return (
        bool(message.reconsume_times or message.sys_flag & TRANSACTION_MASK)
        or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        or is_system_topic(topic)
        or not WAITED_PROPERTIES.isdisjoint(message.properties)
    )
