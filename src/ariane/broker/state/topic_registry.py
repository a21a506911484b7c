"""Topics of this broker: built-in ones, created ones, and creation by the first send. [TopicConfigManager]"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.state.creation_limits import CreationLimits
from ariane.broker.state.saved.change_records import TopicDeleted, TopicPut
from ariane.errors import ReplyError
from ariane.model.topic import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    OFFSET_MOVED_TOPIC,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    QUEUES_MAX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    DataVersion,
    TopicConfig,
    TopicDeletion,
    topic_name_fault,
)
from ariane.net.limits.quotas import Quotas
from ariane.protocol.codes import ResponseCode
from ariane.protocol.requests.routing import TopicTable

INTERNAL_SHARE = 1.25  # of serverTopicsMax, with retry and dead-letter topics: consumers go on when it is reached
AUTO_CREATE_SHARE = 0.75  # of serverTopicsMax: above it sends create no further topics; tools still can

READ_WRITE = PERM_READ | PERM_WRITE


def builtin_topics(config: BrokerConfig) -> dict[str, TopicConfig]:
    """Return the topics that every broker has from its start."""

    def topic(name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
        return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)

    open_perm = PERM_INHERIT | READ_WRITE
    topics = [
        topic(SELF_TEST_TOPIC, 1),
        topic(BENCHMARK_TOPIC, 1024),
        topic(config.broker_cluster_name, 16, open_perm if config.cluster_topic_enable else PERM_INHERIT),
        topic(config.broker_name, 1, open_perm if config.broker_topic_enable else PERM_INHERIT),
        topic(OFFSET_MOVED_TOPIC, 1),
        topic(SCHEDULE_TOPIC, len(config.delays_ms)),
        topic(TIMER_TOPIC, 2),  # timers, and their cancellations
        topic(f"{config.broker_cluster_name}_REPLY_TOPIC", 1),
    ]
    if config.auto_create_topic_enable:
        topics.append(topic(AUTO_CREATE_TOPIC, config.default_topic_queue_nums, open_perm))
    if config.has_trace_topic:
        topics.append(topic(config.msg_trace_topic_name, 1))
    return {config.topic_name: config for config in topics}


def protected_topics(config: BrokerConfig) -> frozenset[str]:
    """Return the names of topics that tools may neither create nor delete."""
    names = {config.broker_cluster_name, config.broker_name, f"{config.broker_cluster_name}_REPLY_TOPIC"}
    if config.has_trace_topic:
        names.add(config.msg_trace_topic_name)
    return SYSTEM_TOPICS | names


class TopicRegistry:
    """The table of topics.

    `record` stores each change before it is made; if it raises, the table does not change. After each change `on_topics_change`
    is called with the names (None: all topics), then `on_table_change`.
    """

    def __init__(
        self,
        table: TopicTable,
        config: BrokerConfig,
        now_ms: Callable[[], int],
        record: Callable[[TopicPut | TopicDeleted], object] = lambda change: None,
        limits: CreationLimits | None = None,
    ) -> None:
        self._record = record
        self.limits = limits or CreationLimits(config, Quotas(), lambda: 0.0)
        # Built-in topics follow the configuration, whatever was stored.
        self._topics = {**table.topic_config_table, **builtin_topics(config)}
        if not config.auto_create_topic_enable and AUTO_CREATE_TOPIC in self._topics:
            del self._topics[AUTO_CREATE_TOPIC]
        self.queue_count = sum(map(_queues, self._topics.values()))  # of all topics
        self._version = table.data_version  # name servers compare it to notice changes
        self._now_ms = now_ms  # time in the version
        self._ordered = {
            name for name, topic in self._topics.items() if topic.order
        }  # names, to compare with a new list
        self.on_table_change: Callable[[], None] = lambda: None
        self.on_topics_change: Callable[[Collection[str] | None], None] = lambda names: None

    @property
    def version(self) -> DataVersion:
        """Version of the table, which changes with each topic."""
        return self._version

    def names(self) -> list[str]:
        return list(self._topics)

    def get(self, name: str) -> TopicConfig | None:
        """Return a topic, None if it does not exist."""
        return self._topics.get(name)

    def table(self) -> TopicTable:
        """Return the document for topics.json."""
        return TopicTable(self._version, dict(self._topics))

    def replace(self, table: TopicTable, *, is_forced: bool = False) -> None:
        """Replace the table by the master's if the versions differ, or in any case (on a slave)."""
        if is_forced or table.data_version != self._version:
            self._topics = dict(table.topic_config_table)
            self.queue_count = sum(map(_queues, self._topics.values()))
            self._ordered = {name for name, topic in self._topics.items() if topic.order}
            self._version = table.data_version
            self.on_topics_change(None)
            self.on_table_change()

    def apply(self, change: TopicPut | TopicDeleted) -> None:
        """Make a change of the master (on a slave), which is stored already."""
        name = change.config.topic_name if isinstance(change, TopicPut) else change.name
        former = self._topics.pop(name, None)
        self.queue_count -= 0 if former is None else _queues(former)
        self._ordered.discard(name)
        if isinstance(change, TopicPut):
            self._topics[name] = change.config
            self.queue_count += _queues(change.config)
            self._update_ordered(change.config)
        if change.version is not None:
            self._publish([name], change.version)

    def put(self, config: TopicConfig, *, is_internal: bool = False) -> None:
        """Create or change a topic.

        Args:
            config: The topic.
            is_internal: Whether consumers need it: it may exceed the limit, and is not charged to the client.

        Raises:
            ReplyError: the name or a number is invalid, or there are too many topics.
        """
        name = config.topic_name
        if fault := topic_name_fault(name):
            raise ReplyError(ResponseCode.SYSTEM_ERROR, fault)
        for key, queues in (("readQueueNums", config.read_queue_nums), ("writeQueueNums", config.write_queue_nums)):
            if not 0 <= queues <= QUEUES_MAX:
                raise ReplyError(
                    ResponseCode.SYSTEM_ERROR, f"{key} of topic {name} is {queues}: expected 0 to {QUEUES_MAX}"
                )
        existing = self._topics.get(name)
        growth = _queues(config) - (0 if existing is None else _queues(existing))
        if existing is None or growth > 0:
            self._check_limits(config, growth, is_new=existing is None, is_internal=is_internal)
        version = self._next_version()
        self._record(TopicPut(config, version))
        self._topics[name] = config
        self.queue_count += growth
        self._update_ordered(config)
        self._publish([name], version)

    def create_from_template(self, template_name: str, name: str, queues: int) -> TopicConfig | None:
        """Create a topic with the settings of a template, and with at most its number of queues, and return it.

        The topic has at least one queue: 4.9.4 creates one without queues on request, which cannot be written to. Return None if
        the template does not exist or must not be inherited from.
        """
        template = self._topics.get(template_name)
        if template is None or not template.perm & PERM_INHERIT:
            return None
        if len(self._topics) >= (auto_max := int(self.limits.topics_max * AUTO_CREATE_SHARE)):
            remark = f"topic[{name}] not created: this broker has {len(self._topics)} topics, and sends create at most"
            raise self.limits.refuse("topics", f"{remark} {auto_max}; create it with updateTopic")
        nums = max(1, min(queues, template.write_queue_nums))
        config = TopicConfig(
            topic_name=name,
            read_queue_nums=nums,
            write_queue_nums=nums,
            perm=template.perm & ~PERM_INHERIT,
            topic_filter_type=template.topic_filter_type,
        )
        self.put(config)
        return config

    def get_or_create_internal(
        self, name: str, queues: int, perm: int = READ_WRITE, *, is_internal: bool = True
    ) -> TopicConfig:
        """Return a topic that the broker itself needs, such as %RETRY%group; create it if it does not exist."""
        existing = self._topics.get(name)
        if existing is not None:
            return existing
        config = TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
        self.put(config, is_internal=is_internal)
        return config

    def delete(self, name: str, deletion: TopicDeletion | None = None) -> None:
        """Delete a topic with its messages, which `deletion` identifies.

        A topic that is not in the table may still have messages and offsets, so its deletion is recorded, too.
        """
        version = self._next_version() if name in self._topics else None
        self._record(TopicDeleted(name, version, deletion))
        if version is not None:
            self.queue_count -= _queues(self._topics.pop(name))
            self._ordered.discard(name)
            self._publish([name], version)

    def bump_version(self) -> None:
        """Increase the version: name servers apply a changed broker permission only with a new version."""
        self._publish_change(None)

    def set_auto_create(self, config: BrokerConfig) -> None:
        """Add or remove TBW102, the template of automatically created topics, as the configuration says."""
        model = builtin_topics(config).get(AUTO_CREATE_TOPIC)
        if model is None:
            self.delete(AUTO_CREATE_TOPIC)
        elif self._topics.get(AUTO_CREATE_TOPIC) != model:
            self.put(model)

    def mark_ordered(self, ordered: Mapping[str, str]) -> None:
        """Mark the topics in the name server's ORDER_TOPIC_CONFIG as ordered, all others as not."""
        listed = {name for name in ordered if name in self._topics}
        changed = sorted(listed ^ self._ordered)
        for name in changed:
            self._topics[name] = msgspec.structs.replace(self._topics[name], order=name in listed)
        if changed:
            self._ordered = listed
            self._publish_change(changed)

    def _check_limits(self, config: TopicConfig, growth: int, *, is_new: bool, is_internal: bool) -> None:
        """Raise ReplyError if the broker, or the client, has too many topics or queues for this one."""
        name, limits, count = config.topic_name, self.limits, len(self._topics)
        if is_new and count >= limits.topics_max * (INTERNAL_SHARE if is_internal else 1):
            fix = "delete unused topics first"
            raise limits.refuse("topics", f"topic {name} not created: this broker has {count} topics; {fix}")
        if is_internal:
            return
        if limits.queues_max and self.queue_count + growth > limits.queues_max:
            remark = f"topic {name} needs {growth} queues more: this broker has {self.queue_count}"
            raise limits.refuse("queues", f"{remark}, at most {limits.queues_max} are allowed")
        limits.charge_client({"topics": int(is_new), "queues": max(0, growth)})

    def _update_ordered(self, config: TopicConfig) -> None:
        if config.order:
            self._ordered.add(config.topic_name)
        else:
            self._ordered.discard(config.topic_name)

    def _publish_change(self, names: Collection[str] | None) -> None:
        self._publish(names, self._next_version())

    def _next_version(self) -> DataVersion:
        return self._version.next(self._now_ms())

    def _publish(self, names: Collection[str] | None, version: DataVersion) -> None:
        self._version = version
        self.on_topics_change(names)
        self.on_table_change()


def _queues(config: TopicConfig) -> int:
    return max(config.read_queue_nums, config.write_queue_nums)
