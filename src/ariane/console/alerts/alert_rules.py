"""Alert rules: a metric, the subjects that are watched (groups, topics, …), and when their values are an alert."""

from __future__ import annotations

import enum
import fnmatch
import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from ariane.console.texts.translation import gettext_noop as _
from ariane.errors import ConfigError
from ariane.net.listening.certificates import WARNING_DAYS

RULES_MAX = 200
NAME_CHARACTERS_MAX = 100
PATTERN_CHARACTERS_MAX = 255
HOLD_SECONDS_MAX = 86_400


class AlertMetric(enum.StrEnum):
    """What a rule watches."""

    GROUP_LAG = "groupLag"
    GROUP_AGE = "groupAge"
    GROUP_BLOCKED = "groupBlocked"
    GROUP_TPS = "groupTps"
    GROUP_CLIENTS = "groupClients"
    DEAD_LETTERS = "deadLetters"
    TOPIC_TPS = "topicTps"
    BROKER = "broker"
    BROKER_DISK = "brokerDisk"
    CERTIFICATE_DAYS = "certificateDays"
    REPLICATION_DELAY = "replicationDelay"
    BROKER_SET_MASTER = "brokerSetMaster"
    BROKER_SET_BEHIND = "brokerSetBehind"
    PIPELINE_TABLE_AGE = "pipelineTableAge"
    PIPELINE_SOURCE = "pipelineSource"
    PIPELINE_REJECTED = "pipelineRejected"
    PIPELINE_RETRIES = "pipelineRetries"


class AlertCondition(enum.StrEnum):
    """When a value is an alert. UNKNOWN is the only one that an unknown value fulfils."""

    ABOVE = "above"
    BELOW = "below"
    GROWS = "grows"
    UNKNOWN = "unknown"


class Severity(enum.StrEnum):
    """How urgent an alert is."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """Position in the order of severities; the most urgent has the largest."""
        return _SEVERITY_RANKS[self]


_SEVERITY_RANKS = {severity: rank for rank, severity in enumerate(Severity)}


_VALUE_CONDITIONS = (AlertCondition.ABOVE, AlertCondition.BELOW, AlertCondition.UNKNOWN)
_COUNT_CONDITIONS = (AlertCondition.GROWS, *_VALUE_CONDITIONS)


class MetricDefinition(NamedTuple):
    """A metric: what has it, what it is, in which unit, and which conditions make sense."""

    subject: str
    label: str
    unit: str
    conditions: tuple[AlertCondition, ...] = _VALUE_CONDITIONS


METRICS: Mapping[AlertMetric, MetricDefinition] = {
    AlertMetric.GROUP_LAG: MetricDefinition("group", _("Lag of a consumer group"), _("messages")),
    AlertMetric.GROUP_AGE: MetricDefinition("group", _("Age of a group's oldest message"), "s"),
    AlertMetric.GROUP_BLOCKED: MetricDefinition("group", _("Blocked queues of a group"), _("queues")),
    AlertMetric.GROUP_TPS: MetricDefinition("group", _("Messages delivered to a group"), _("msg/s")),
    AlertMetric.GROUP_CLIENTS: MetricDefinition("group", _("Connected clients of a group"), _("clients")),
    AlertMetric.DEAD_LETTERS: MetricDefinition("group", _("Dead letters of a group"), _("messages"), _COUNT_CONDITIONS),
    AlertMetric.TOPIC_TPS: MetricDefinition("topic", _("Messages sent to a topic"), _("msg/s")),
    AlertMetric.BROKER: MetricDefinition("broker", _("State of a broker"), "", (AlertCondition.UNKNOWN,)),
    AlertMetric.BROKER_DISK: MetricDefinition("broker", _("Used disk of a broker"), "%"),
    AlertMetric.CERTIFICATE_DAYS: MetricDefinition(
        "server", _("Remaining validity of a certificate"), _("days"), (AlertCondition.BELOW,)
    ),
    AlertMetric.REPLICATION_DELAY: MetricDefinition("broker", _("Replication delay of a slave"), "s"),
    AlertMetric.BROKER_SET_MASTER: MetricDefinition(
        "broker", _("Master of a broker set"), "", (AlertCondition.UNKNOWN,)
    ),
    AlertMetric.BROKER_SET_BEHIND: MetricDefinition(
        "broker", _("Members of a broker set that are not in sync"), _("members")
    ),
    AlertMetric.PIPELINE_TABLE_AGE: MetricDefinition("table", _("Age of a table of the pipeline"), "s"),
    AlertMetric.PIPELINE_SOURCE: MetricDefinition(
        "source", _("State of a source of the pipeline"), "", (AlertCondition.UNKNOWN,)
    ),
    AlertMetric.PIPELINE_REJECTED: MetricDefinition(
        "source", _("Discarded records of a source of the pipeline"), _("records"), _COUNT_CONDITIONS
    ),
    AlertMetric.PIPELINE_RETRIES: MetricDefinition(
        "source", _("Retries of the pipeline that reads a source"), "", _COUNT_CONDITIONS
    ),
}


class AlertRule(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A rule. Each subject (group, topic, broker, server, table or source) that matches has its own alert.

    Attributes:
        id: Random text that identifies it.
        name: Name for people.
        metric: What is watched.
        condition: When it is an alert.
        pattern: Subjects that are watched: a name in which * and ? are wildcards.
        exclude: Subjects that are not; empty: none.
        threshold: Limit in the unit of the metric; without effect for UNKNOWN.
        hold_s: Seconds for which the condition must hold. For GROWS: the time in which the growth is measured.
        severity: How urgent it is.
        is_enabled: Whether it is evaluated.
    """

    id: str
    name: str
    metric: AlertMetric
    condition: AlertCondition
    pattern: str = "*"
    exclude: str = ""
    threshold: float = 0.0
    hold_s: int = 0
    severity: Severity = Severity.WARNING
    is_enabled: bool = True

    def matches(self, subject: str) -> bool:
        """Return whether the rule watches a subject."""
        return fnmatch.fnmatchcase(subject, self.pattern) and not (
            self.exclude and fnmatch.fnmatchcase(subject, self.exclude)
        )


def check_rule(rule: AlertRule) -> None:
    """Check the values of a rule.

    Raises:
        ConfigError: a value is invalid.
    """
    if not rule.name or len(rule.name) > NAME_CHARACTERS_MAX:
        raise ConfigError("name", rule.name, f"expected 1 to {NAME_CHARACTERS_MAX} characters")
    definition = METRICS[rule.metric]
    if rule.condition not in definition.conditions:
        raise ConfigError(
            "condition", rule.condition.value, f"expected one of {', '.join(definition.conditions)} for {rule.metric}"
        )
    for key, pattern in (("pattern", rule.pattern), ("exclude", rule.exclude)):
        if len(pattern) > PATTERN_CHARACTERS_MAX or (key == "pattern" and not pattern):
            fix = f"expected 1 to {PATTERN_CHARACTERS_MAX} characters, for example * or orders-*"
            raise ConfigError(key, pattern[:PATTERN_CHARACTERS_MAX], fix)
    if not math.isfinite(rule.threshold) or rule.threshold < 0:
        raise ConfigError("threshold", rule.threshold, "expected a number of at least 0")
    if not 0 <= rule.hold_s <= HOLD_SECONDS_MAX:
        raise ConfigError("holdS", rule.hold_s, f"expected 0 to {HOLD_SECONDS_MAX} seconds")
    if rule.condition is AlertCondition.GROWS and rule.hold_s < 1:
        raise ConfigError("holdS", rule.hold_s, "expected at least 1: the seconds in which the growth is measured")


# What most clusters want to know from the first start on. Limits of lag and rate depend on the application.
DEFAULT_RULES = (
    AlertRule(
        id="default-broker", name="Broker does not respond", metric=AlertMetric.BROKER,
        condition=AlertCondition.UNKNOWN, hold_s=30, severity=Severity.CRITICAL,
    ),
    AlertRule(
        id="default-disk", name="Disk nearly full", metric=AlertMetric.BROKER_DISK, condition=AlertCondition.ABOVE,
        threshold=85, hold_s=60, severity=Severity.CRITICAL,
    ),
    AlertRule(
        id="default-dead-letters", name="New dead letters", metric=AlertMetric.DEAD_LETTERS,
        condition=AlertCondition.GROWS, hold_s=600, severity=Severity.WARNING,
    ),
    AlertRule(
        id="default-age", name="Messages wait for more than 10 minutes", metric=AlertMetric.GROUP_AGE,
        condition=AlertCondition.ABOVE, threshold=600, hold_s=120, severity=Severity.WARNING,
    ),
    AlertRule(
        id="default-blocked", name="Connected clients do not consume", metric=AlertMetric.GROUP_BLOCKED,
        condition=AlertCondition.ABOVE, threshold=0, hold_s=60, severity=Severity.WARNING,
    ),
    AlertRule(
        id="default-certificate", name="Certificate expires", metric=AlertMetric.CERTIFICATE_DAYS,
        condition=AlertCondition.BELOW, threshold=WARNING_DAYS, severity=Severity.WARNING,
    ),
    AlertRule(
        id="default-replication", name="Slave is a minute behind", metric=AlertMetric.REPLICATION_DELAY,
        condition=AlertCondition.ABOVE, threshold=60, hold_s=60, severity=Severity.WARNING,
    ),
    AlertRule(
        id="default-broker-set-master", name="Broker set without a master", metric=AlertMetric.BROKER_SET_MASTER,
        condition=AlertCondition.UNKNOWN, hold_s=30, severity=Severity.CRITICAL,
    ),
    AlertRule(
        id="default-broker-set-behind", name="Member of a broker set is not in sync",
        metric=AlertMetric.BROKER_SET_BEHIND, condition=AlertCondition.ABOVE, threshold=0, hold_s=120,
        severity=Severity.WARNING,
    ),
    AlertRule(
        id="default-pipeline-source", name="Pipeline waits for a server", metric=AlertMetric.PIPELINE_SOURCE,
        condition=AlertCondition.UNKNOWN, hold_s=120, severity=Severity.WARNING,
    ),
    AlertRule(
        id="default-pipeline-age", name="Table of the pipeline is an hour old", metric=AlertMetric.PIPELINE_TABLE_AGE,
        condition=AlertCondition.ABOVE, threshold=3_600, hold_s=60, severity=Severity.WARNING,
    ),
    AlertRule(
        id="default-pipeline-rejected", name="Pipeline discards records", metric=AlertMetric.PIPELINE_REJECTED,
        condition=AlertCondition.GROWS, hold_s=600, severity=Severity.WARNING,
    ),
    AlertRule(
        id="default-pipeline-retries", name="Pipeline retries often", metric=AlertMetric.PIPELINE_RETRIES,
        condition=AlertCondition.GROWS, threshold=5, hold_s=3_600, severity=Severity.INFO,
    ),
)  # fmt: skip
