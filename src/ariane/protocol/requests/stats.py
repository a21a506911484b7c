"""Statistics of a broker: headers and bodies of 28, 202, 208, 303, 315, 317. [ConsumeStats, TopicStatsTable, BrokerStatsData]

The members of bodies are in the order in which Java prints them. Tables by queue have the queue's JSON object as key, written
without quotes (`{{"brokerName":…}:{…}}`); a decoded key is its text, and `by_queue` returns the queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ariane.model.message import MessageQueue
from ariane.protocol import fastjson
from ariane.protocol.requests.clients import WireQueue

T = TypeVar("T")


class GetConsumeStats(msgspec.Struct, frozen=True, rename="camel"):
    """GET_CONSUME_STATS (208); without `topic` for all topics of the group."""

    consumer_group: str
    topic: str | None = None


class GetBrokerConsumeStats(msgspec.Struct, frozen=True, rename="camel"):
    """GET_BROKER_CONSUME_STATS (317); `is_order` selects ordered topics only."""

    is_order: bool


class ViewBrokerStats(msgspec.Struct, frozen=True, rename="camel"):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class QueryConsumeTimeSpan(msgspec.Struct, frozen=True):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


class GroupOffset(msgspec.Struct, frozen=True, rename="camel"):
    """Progress of a group in a queue. `last_timestamp`: store time of the last consumed message, or 0. [OffsetWrapper]"""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int | None = None  # of 5.x: offset of the next message to deliver; ours only with POP
    inflight: int | None = None  # ours, with POP: messages that were delivered and not acknowledged

    @property
    def in_flight(self) -> int | None:
        """Messages that were delivered and not acknowledged; of 5.x brokers an upper bound. None if it is not reported."""
        if self.inflight is not None or self.pull_offset is None:
            return self.inflight
        return max(0, self.pull_offset - self.consumer_offset)


class ConsumeStats(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to 208."""

    consume_tps: float = 0.0
    offset_table: dict[Any, GroupOffset] = {}


class ConsumeStatsList(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to 317: one map per group, with its topics one by one."""

    broker_addr: str = ""
    consume_stats_list: tuple[dict[str, list[ConsumeStats]], ...] = ()
    total_diff: int = 0


class TopicOffset(msgspec.Struct, frozen=True, rename="camel"):
    """A queue of the broker. `last_update_timestamp`: store time of its last message, 0 if it is empty."""

    last_update_timestamp: int = 0
    max_offset: int = 0
    min_offset: int = 0


class TopicStats(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to 202."""

    offset_table: dict[Any, TopicOffset] = {}


class BrokerStatsItem(msgspec.Struct, frozen=True):
    avgpt: float = 0.0
    sum: int = 0
    tps: float = 0.0


class BrokerStatsData(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to 315."""

    stats_day: BrokerStatsItem
    stats_hour: BrokerStatsItem
    stats_minute: BrokerStatsItem


class QueueTimeSpan(msgspec.Struct, frozen=True, rename="camel"):
    """Store times (ms) of a queue's first, last and last consumed message; -1 without a record."""

    consume_time_stamp: int  # of the last consumed message
    consume_time_stamp_str: str  # these texts are what mqadmin prints
    delay_time: int  # age of the next message for the group in ms; 0 without one
    max_time_stamp: int  # of the last message
    max_time_stamp_str: str  # see above
    message_queue: WireQueue  # topic, broker and queue id
    min_time_stamp: int  # of the first message
    min_time_stamp_str: str  # see above


class ConsumeTimeSpans(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to 303."""

    consume_time_span_set: tuple[QueueTimeSpan, ...] = ()


def by_queue(table: Mapping[Any, T]) -> dict[MessageQueue, T]:
    """A table of a response, by its queues."""
    return {fastjson.decode(str(key).encode(), WireQueue).queue(): value for key, value in table.items()}
