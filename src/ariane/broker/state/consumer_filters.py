"""SQL92 filters of consumer groups, by topic: registered by heartbeats, dead when the group is gone, kept in
consumerFilter.json. [ConsumerFilterManager, ConsumerFilterData]

    topic → group → expression, version (the subscription's), born, dead since, bloom positions of `group#topic`

A newer version with another expression takes the place of the old one; a dead filter lives again when the group comes back,
and is forgotten `keep_ms` after its death. The bloom positions are for Java brokers that open the same directory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from ariane.errors import FilterError, ReplyError
from ariane.filter.bloom import Bloom
from ariane.filter.sql import SqlFilter, compile_sql
from ariane.net.peer_log import PeerLog
from ariane.protocol.codes import ResponseCode
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.messaging import SQL92, TAG

log = logging.getLogger("ariane.broker.state")

FILTERS_MAX = 100_000  # of a topic and a group
EXPRESSIONS_MAX = 4 * 1024 * 1024  # characters of all of them together; compiled, one takes about 80 bytes
DEAD_AT_LOAD_MS = 30_000  # after a start every group counts as gone since this long


def unsupported_remark(expression_type: str | None, sql: bool) -> str:
    """Why a broker does not filter by an expression of this type."""
    fix = f"use {TAG} or {SQL92}" if sql else "set enablePropertyFilter=true to allow it"
    return f"The broker does not support consumer to filter message by {expression_type}; {fix}"


class BloomData(msgspec.Struct, frozen=True, rename="camel"):
    """`bloomFilterData` of the file."""

    bit_num: int = 0
    bit_pos: tuple[int, ...] = ()


class FilterData(msgspec.Struct, frozen=True, rename="camel"):
    """One filter as consumerFilter.json holds it. `client_version` is the version of the subscription."""

    bloom_filter_data: BloomData | None = None
    born_time: int = 0
    client_version: int = 0
    consumer_group: str = ""
    dead: bool = False
    dead_time: int = 0
    expression: str = ""
    expression_type: str = SQL92
    topic: str = ""


class TopicFilters(msgspec.Struct, frozen=True, rename="camel"):
    group_filter_data: dict[str, FilterData] = {}
    topic: str = ""


class FilterTable(msgspec.Struct, frozen=True, rename="camel"):
    """consumerFilter.json."""

    filter_data_by_topic: dict[str, TopicFilters] = {}


class ConsumerFilter(NamedTuple):
    """A filter, ready to use."""

    data: FilterData
    sql: SqlFilter

    @property
    def is_dead(self) -> bool:
        return self.data.dead_time >= self.data.born_time

    def with_changes(self, **members: int) -> ConsumerFilter:
        data = msgspec.structs.replace(self.data, **members)
        return ConsumerFilter(msgspec.structs.replace(data, dead=data.dead_time >= data.born_time), self.sql)


class ConsumerFilters:
    """`changed` since it was last saved; `now_ms` is the time of day, which the file holds."""

    def __init__(self, table: FilterTable, bloom: Bloom, *, keep_ms: int, now_ms: Callable[[], int]) -> None:
        self._bloom = bloom
        self._keep_ms = keep_ms
        self._now_ms = now_ms
        self._log = PeerLog(log)
        self._filters: dict[tuple[str, str], ConsumerFilter] = {}  # by group and topic
        self._topics: dict[str, set[str]] = {}  # of a group
        self._chars = 0
        self.is_changed = False
        self._load(table)

    def get(self, group: str, topic: str) -> ConsumerFilter | None:
        return self._filters.get((group, topic))

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """What a heartbeat says that `group` wants; filters of topics that it does not name die."""
        named = set()
        for subscription in subscriptions:
            named.add(subscription.topic)
            if subscription.expression_type not in (None, "", TAG):
                self._register(group, subscription)
        for topic in self._topics.get(group, set()) - named:
            self._mark_dead(group, topic)

    def mark_group_dead(self, group: str) -> None:
        """The last member of the group left: its filters die."""
        for topic in self._topics.get(group, ()):
            self._mark_dead(group, topic)

    def remove_dead(self) -> None:
        """Drop what has been dead for long."""
        limit = self._now_ms() - self._keep_ms
        for (group, topic), known in list(self._filters.items()):
            if known.is_dead and known.data.dead_time <= limit:
                log.info("filter of group %s on %s is forgotten: the group is gone", group, topic)
                self._remove(group, topic)

    def table(self) -> FilterTable:
        """What consumerFilter.json holds."""
        topics: dict[str, TopicFilters] = {}
        for (group, topic), known in self._filters.items():
            topics.setdefault(topic, TopicFilters({}, topic)).group_filter_data[group] = known.data
        return FilterTable(topics)

    # --- one filter ---

    def _register(self, group: str, wanted: SubscriptionData) -> None:
        topic, version = wanted.topic, wanted.sub_version
        known = self._filters.get((group, topic))
        if known is None:
            self._add(group, wanted)
        elif version < known.data.client_version:
            return
        elif known.data.expression == wanted.sub_string and known.data.expression_type == wanted.expression_type:
            if version != known.data.client_version or known.is_dead:
                self._put(known.with_changes(client_version=version, dead_time=0))
        elif version > known.data.client_version:
            self._remove(group, topic)  # a new one that cannot be compiled leaves none: its pulls are told so
            self._add(group, wanted)
        elif known.is_dead:
            self._put(known.with_changes(dead_time=0))

    def _add(self, group: str, wanted: SubscriptionData) -> None:
        if len(self._filters) >= FILTERS_MAX:
            remark = f"filters of {FILTERS_MAX} topics and groups are kept already; delete groups first"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        if self._chars + len(wanted.sub_string or "") > EXPRESSIONS_MAX:
            remark = f"the filters of all groups hold {EXPRESSIONS_MAX} characters, which is the maximum"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        if wanted.expression_type != SQL92:
            kind = wanted.expression_type
            self._log.error(
                group, self._now_ms() / 1000, "group %s on %s: no expression type %s", group, wanted.topic, kind
            )
            return
        try:
            sql = compile_sql(wanted.sub_string or "")
        except FilterError as error:
            self._log.error(group, self._now_ms() / 1000, "group %s on %s: %s", group, wanted.topic, error)
            return
        data = FilterData(
            bloom_filter_data=BloomData(self._bloom.bits, self._bloom.positions(f"{group}#{wanted.topic}")),
            born_time=self._now_ms(),
            client_version=wanted.sub_version,
            consumer_group=group,
            expression=sql.expression,
            expression_type=SQL92,
            topic=wanted.topic,
        )
        self._put(ConsumerFilter(data, sql))

    def _mark_dead(self, group: str, topic: str) -> None:
        known = self._filters[group, topic]
        if not known.is_dead:
            self._put(known.with_changes(dead_time=self._now_ms()))

    def _put(self, new: ConsumerFilter) -> None:
        group, topic = new.data.consumer_group, new.data.topic
        former = self._filters.get((group, topic))
        self._chars += len(new.sql.expression) - (len(former.sql.expression) if former else 0)
        self._filters[group, topic] = new
        self._topics.setdefault(group, set()).add(topic)
        self.is_changed = True

    def _remove(self, group: str, topic: str) -> None:
        self._chars -= len(self._filters.pop((group, topic)).sql.expression)
        topics = self._topics[group]
        topics.discard(topic)
        if not topics:
            del self._topics[group]
        self.is_changed = True

    # --- the file ---

    def _load(self, table: FilterTable) -> None:
        """All die at a start; none are taken when the bloom filter was sized otherwise, as in 4.9.4: heartbeats bring them."""
        stored = [data for topic in table.filter_data_by_topic.values() for data in topic.group_filter_data.values()]
        if any(not self._fits(data.bloom_filter_data) for data in stored):
            log.warning("consumerFilter.json was written with other bloom settings; heartbeats fill it anew")
            self.is_changed = True
            return
        dead_ms = self._now_ms() - DEAD_AT_LOAD_MS
        for data in stored:
            try:
                known = ConsumerFilter(data, compile_sql(data.expression))
            except FilterError as error:
                log.error("consumerFilter.json: group %s on %s: %s", data.consumer_group, data.topic, error)
                continue
            dead_time = data.dead_time or max(data.born_time, dead_ms)
            self._put(known.with_changes(dead_time=dead_time))

    def _fits(self, bloom: BloomData | None) -> bool:
        return bloom is not None and (bloom.bit_num, len(bloom.bit_pos)) == (self._bloom.bits, self._bloom.hashes)
