"""SQL92 filters of consumer groups, stored in consumerFilter.json. [ConsumerFilterManager, ConsumerFilterData]

    topic → group → expression, version (of the subscription), born, dead since, bloom positions of `group#topic`

Heartbeats register filters. A newer version with another expression replaces the former one. When the last member of a group
leaves, its filters are dead; they revive with the group, and are removed `keep_ms` after their death. The bloom positions are for
Java brokers that open the same directory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from ariane.errors import FilterError, ReplyError
from ariane.filter.bloom import Bloom
from ariane.filter.sql import SqlFilter, compile_sql
from ariane.net.peer_log import REPEAT_S, PeerLog
from ariane.protocol.codes import ResponseCode
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.messaging import SQL92, TAG

log = logging.getLogger("ariane.broker.state")

FILTERS_MAX = 100_000  # pairs of topic and group
EXPRESSIONS_MAX = 4 * 1024 * 1024  # characters of all expressions; a compiled one takes about 80 bytes per character
SHOWN_MAX = 100  # characters of an invalid expression in a log line
DEAD_AT_LOAD_MS = 30_000  # at a start, every filter counts as dead since this long


def unsupported_remark(expression_type: str | None, sql: bool) -> str:
    """Return the error message for an expression type that the broker cannot filter by."""
    fix = f"use {TAG} or {SQL92}" if sql else "set enablePropertyFilter=true to allow it"
    return f"The broker does not support consumer to filter message by {expression_type}; {fix}"


class BloomData(msgspec.Struct, frozen=True, rename="camel"):
    """The member `bloomFilterData` of consumerFilter.json."""

    bit_num: int = 0
    bit_pos: tuple[int, ...] = ()


class FilterData(msgspec.Struct, frozen=True, rename="camel"):
    """One filter as consumerFilter.json stores it. `client_version` is the version of the subscription."""

    bloom_filter_data: BloomData | None = None  # positions for Java brokers that open the same directory
    born_time: int = 0  # ms of the first heartbeat with the filter
    client_version: int = 0
    consumer_group: str = ""  # repeats the key of the document, as Java does
    dead: bool = False  # no member of the group subscribes with it any more
    dead_time: int = 0  # ms since when; dead filters are removed later, because a restarting group comes back
    expression: str = ""  # as the client wrote it; compiled when it is loaded
    expression_type: str = SQL92  # SQL92; tags need no filter data
    topic: str = ""  # repeats the key of the document


class TopicFilters(msgspec.Struct, frozen=True, rename="camel"):
    group_filter_data: dict[str, FilterData] = {}
    topic: str = ""


class FilterTable(msgspec.Struct, frozen=True, rename="camel"):
    """The document consumerFilter.json."""

    filter_data_by_topic: dict[str, TopicFilters] = {}


class ConsumerFilter(NamedTuple):
    """A filter with its compiled expression."""

    data: FilterData
    sql: SqlFilter

    @property
    def is_dead(self) -> bool:
        return self.data.dead_time >= self.data.born_time

    def with_changes(self, **members: int) -> ConsumerFilter:
        data = msgspec.structs.replace(self.data, **members)
        return ConsumerFilter(msgspec.structs.replace(data, dead=data.dead_time >= data.born_time), self.sql)


class ConsumerFilters:
    """The filters of all groups, and whether they changed since the last save (`is_changed`).

    Args:
        table: The stored filters.
        bloom: Sizes the bloom positions of the file.
        keep_ms: How long a dead filter is retained.
        now_ms: Wall-clock time, which the file holds.
    """

    def __init__(self, table: FilterTable, bloom: Bloom, *, keep_ms: int, now_ms: Callable[[], int]) -> None:
        self._bloom = bloom
        self._keep_ms = keep_ms
        self._now_ms = now_ms
        self._log = PeerLog(log, lines=1, window_s=REPEAT_S)  # clients repeat an invalid subscription all the time
        self._filters: dict[tuple[str, str], ConsumerFilter] = {}  # by group and topic
        self._topics: dict[str, set[str]] = {}  # topics with a filter, by group
        self._chars = 0  # of all expressions
        self.is_changed = False
        self._load(table)

    def get(self, group: str, topic: str) -> ConsumerFilter | None:
        return self._filters.get((group, topic))

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Apply the subscriptions of a heartbeat. Filters of topics that it does not name become dead."""
        named = set()
        for subscription in subscriptions:
            named.add(subscription.topic)
            if subscription.expression_type not in (None, "", TAG):
                self._register(group, subscription)
        for topic in self._topics.get(group, set()) - named:
            self._mark_dead(group, topic)

    def mark_group_dead(self, group: str) -> None:
        """Mark all filters of a group dead, after its last member left."""
        for topic in self._topics.get(group, ()):
            self._mark_dead(group, topic)

    def remove_dead(self) -> None:
        """Remove filters that died more than `keep_ms` ago."""
        limit = self._now_ms() - self._keep_ms
        for (group, topic), current in list(self._filters.items()):
            if current.is_dead and current.data.dead_time <= limit:
                log.info("Removed the filter of group %s on topic %s: the group has no members any more", group, topic)
                self._remove(group, topic)

    def table(self) -> FilterTable:
        """Return the document for consumerFilter.json."""
        topics: dict[str, TopicFilters] = {}
        for (group, topic), current in self._filters.items():
            topics.setdefault(topic, TopicFilters({}, topic)).group_filter_data[group] = current.data
        return FilterTable(topics)

    # --- one filter ---

    def _register(self, group: str, subscription: SubscriptionData) -> None:
        topic, version = subscription.topic, subscription.sub_version
        current = self._filters.get((group, topic))
        if current is None:
            self._add(group, subscription)
        elif version < current.data.client_version:
            return  # a delayed heartbeat of a member with an older subscription
        elif (
            current.data.expression == subscription.sub_string
            and current.data.expression_type == subscription.expression_type
        ):
            if version != current.data.client_version or current.is_dead:
                self._put(current.with_changes(client_version=version, dead_time=0))
        elif version > current.data.client_version:
            self._remove(
                group, topic
            )  # if the new one does not compile, pulls have to fail instead of using the old one
            self._add(group, subscription)
        elif current.is_dead:
            self._put(current.with_changes(dead_time=0))

    def _add(self, group: str, subscription: SubscriptionData) -> None:
        if len(self._filters) >= FILTERS_MAX:
            remark = (
                f"cannot add a filter: this broker has {FILTERS_MAX} filters, the maximum; delete unused groups first"
            )
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        if self._chars + len(subscription.sub_string or "") > EXPRESSIONS_MAX:
            remark = (
                f"cannot add a filter: the expressions of all groups have {EXPRESSIONS_MAX} characters, the maximum"
            )
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        if subscription.expression_type != SQL92:
            self._report_ignored(group, subscription, f"unsupported expression type {subscription.expression_type}")
            return
        try:
            sql = compile_sql(subscription.sub_string or "")
        except FilterError as error:
            self._report_ignored(group, subscription, str(error))
            return
        data = FilterData(
            bloom_filter_data=BloomData(self._bloom.bits, self._bloom.positions(f"{group}#{subscription.topic}")),
            born_time=self._now_ms(),
            client_version=subscription.sub_version,
            consumer_group=group,
            expression=sql.expression,
            expression_type=SQL92,
            topic=subscription.topic,
        )
        self._put(ConsumerFilter(data, sql))

    def _report_ignored(self, group: str, subscription: SubscriptionData, fault: str) -> None:
        about = (
            f"the filter {subscription.sub_string or ''!r:.{SHOWN_MAX}} of group {group} on topic {subscription.topic}"
        )
        text = "Ignoring the subscription of group %s to %s: %s"
        self._log.warning(about, self._now_ms() / 1000, text, group, subscription.topic, fault)

    def _mark_dead(self, group: str, topic: str) -> None:
        current = self._filters[group, topic]
        if not current.is_dead:
            self._put(current.with_changes(dead_time=self._now_ms()))

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
        """Load the stored filters as dead: the heartbeats of their groups revive them.

        If the bloom filter was sized differently, nothing is loaded, as in 4.9.4.
        """
        stored = [data for topic in table.filter_data_by_topic.values() for data in topic.group_filter_data.values()]
        if any(not self._fits(data.bloom_filter_data) for data in stored):
            log.warning(
                "Ignoring consumerFilter.json: it was written with other bloom filter settings; heartbeats restore the filters"
            )
            self.is_changed = True
            return
        dead_ms = self._now_ms() - DEAD_AT_LOAD_MS
        for data in stored:
            try:
                current = ConsumerFilter(data, compile_sql(data.expression))
            except FilterError as error:
                log.error(
                    "Ignoring the filter of group %s on topic %s in consumerFilter.json: %s",
                    data.consumer_group,
                    data.topic,
                    error,
                )
                continue
            dead_time = data.dead_time or max(data.born_time, dead_ms)
            self._put(current.with_changes(dead_time=dead_time))

    def _fits(self, bloom: BloomData | None) -> bool:
        return bloom is not None and (bloom.bit_num, len(bloom.bit_pos)) == (self._bloom.bits, self._bloom.hashes)
