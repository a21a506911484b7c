"""Options of the source, as texts and as values. Names are Kafka's and rocketmq-spark's where they say the same.

`Access` is what reaches servers: who asks, how, and for how long. Connections are kept per Access (`pull.cluster`), so every
option that changes a request or a connection belongs there, and no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec

from ariane.errors import ConfigError, ProtocolError
from ariane.model import host
from ariane.model.message import MessageQueue
from ariane.model.topic import group_name_fault, topic_name_fault
from ariane.spark.read.offsets import EARLIEST, Positions, positions_from_json

Start = Literal["earliest", "latest"] | Positions
Times = int | dict[MessageQueue, int]
Offset = Annotated[int, msgspec.Meta(ge=EARLIEST, le=2**63 - 1)]

INT_MAX = 2**31 - 1  # what the header of a pull can say
LONG_MAX = 2**63 - 1
GROUP = "ariane-spark"

ALIASES = {"nameserver": "namesrv", "subexpression": "tags", "group": "groupid"}


class Secret(str):
    """A text that shows itself to nobody who prints it."""

    def __repr__(self) -> str:
        return "..." if self else "''"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How servers are reached and asked."""

    namesrv: tuple[str, ...]
    """Name servers, `host:port` joined by `;`."""
    group_id: str = GROUP
    """Group that the brokers see in pulls, and whose offsets `commitOffsets` commits."""
    pull_batch_size: int = 32
    """Messages asked for at once; brokers answer with 32 at most unless told otherwise."""
    pull_timeout_ms: int = 10_000
    """ms to wait for an answer."""
    retries: int = 30
    """How often a request is tried again, a second apart, while a broker is away."""
    access_key: str = ""
    """Account that signs requests, for brokers with aclEnable; empty: they are not signed."""
    secret_key: Secret = Secret()
    """Its key. It is in no text made of the options."""
    security_token: Secret = Secret()
    """Its token, if it is a temporary account."""
    use_tls: bool = False
    """Whether connections are encrypted, to name servers and brokers alike."""
    tls_ca_file: str = ""
    """PEM file of the authorities to trust, on every machine; empty: those of the machine."""
    tls_cert_file: str = ""
    """PEM file of the certificate to show to servers that ask for one (with its key, or `tlsKeyFile` has it)."""
    tls_key_file: str = ""
    """PEM file of its key, not encrypted."""
    tls_verify: Literal["true", "ca", "false"] = "true"
    """`true`: the server's certificate and host name are checked; `ca`: its certificate alone, as brokers register by
    address; `false`: neither."""


class SourceOptions(Access, frozen=True, kw_only=True):
    """What a read was asked for."""

    topic: str = ""
    """One topic. Exactly one of topic, topics, topicsPattern is given."""
    topics: tuple[str, ...] = ()
    """Several, joined by `,`."""
    topics_pattern: str = ""
    """Python regular expression that the whole name of a topic has to match."""
    include_system_topics: bool = False
    """Whether a pattern takes the topics that brokers keep for themselves as well, and those of retries and dead letters."""
    starting_offsets: Start = "earliest"
    """earliest, latest, or JSON {topic: {broker: {queue id: offset}}} with -2 for earliest and -1 for latest; queues that it
    does not name begin at the earliest. A query that has a checkpoint goes on from there."""
    ending_offsets: Start = "latest"
    """Batch only: latest, or JSON as above (exclusive); queues that it does not name end at the latest."""
    starting_timestamp: Times | None = None
    """Messages stored at this time or later: ms since 1970, ISO 8601 (UTC unless it says otherwise), or JSON
    {topic: {broker: {queue id: time}}}; queues that it does not name begin at the earliest."""
    ending_timestamp: Times | None = None
    """Batch only: messages stored before this time, written as above."""
    tags: str = "*"
    """Tag expression, `a || b`."""
    keys: tuple[str, ...] = ()
    """Only messages that have one of these keys, joined by `,`."""
    max_offsets_per_trigger: int | None = None
    """Streaming: most queue entries of one micro-batch, shared by the queues after what each has waiting."""
    max_bytes_per_trigger: int | None = None
    """Streaming: about how many bytes of stored messages one micro-batch reads, estimated from a few of each queue."""
    min_offsets_per_trigger: int | None = None
    """Streaming: a micro-batch waits until this many entries are there, or maxTriggerDelay is over."""
    max_trigger_delay: int = 15 * 60_000
    """ms that a micro-batch waits at most; also 30s, 15m, 1h."""
    min_partitions: int = 1
    """At least this many tasks, if there are as many entries: ranges of queues are split."""
    max_records_per_partition: int | None = None
    """Most queue entries of one task."""
    fail_on_data_loss: bool = True
    """Whether offsets that are gone (retention, a lost disk) end the query, or are skipped with a warning."""
    commit_offsets: bool = False
    """Streaming: whether the offsets of finished micro-batches are committed to `groupId`, for tools to see."""
    pushdown: bool = False
    """Batch: whether filters reach the source; Spark has to allow it: spark.sql.python.filterPushdown.enabled."""


def parse(options: Mapping[str, str]) -> SourceOptions:
    """ConfigError names the option and what to write instead. Unknown options are refused: they are mistyped ones."""
    texts: dict[str, str] = {}
    for given, text in options.items():
        name = ALIASES.get(given.lower(), given.lower())
        if name not in KNOWN:
            options_there = ", ".join(_camel(member) for member in KNOWN.values())
            raise ConfigError(name, text, f"is no option of the rocketmq source; it has {options_there}")
        if name in texts:
            raise ConfigError(given, text, f"is another name of {_camel(KNOWN[name])}, which is given too: keep one")
        texts[name] = text.strip()
    if not texts.get("namesrv"):
        raise ConfigError("namesrv", "", 'is needed: .option("namesrv", …)')
    selecting = [_camel(KNOWN[name]) for name in ("topic", "topics", "topicspattern") if texts.get(name)]
    if len(selecting) != 1:
        given = ", ".join(selecting) or "none"
        raise ConfigError("topic", given, "exactly one of topic, topics, topicsPattern is needed")
    for offsets, times in (("startingoffsets", "startingtimestamp"), ("endingoffsets", "endingtimestamp")):
        if offsets in texts and times in texts:
            raise ConfigError(_camel(KNOWN[times]), texts[times], f"{_camel(KNOWN[offsets])} is given too: keep one")
    values: dict[str, Any] = {
        KNOWN[name]: READ.get(name, _text)(_camel(KNOWN[name]), text) for name, text in texts.items()
    }
    return _checked(SourceOptions(**values))


def access(options: Access) -> Access:
    """What of the options reaches servers; equal for sources that may share connections."""
    return Access(**{name: getattr(options, name) for name in Access.__struct_fields__})


def listed_topics(options: SourceOptions) -> tuple[str, ...]:
    """The topics that are given by name; none with a pattern."""
    return (options.topic,) if options.topic else tuple(sorted(set(options.topics)))


def time_of(wanted: Times | None, queue: MessageQueue) -> int | None:
    """The time that an option says for a queue."""
    return wanted.get(queue) if isinstance(wanted, dict) else wanted


# option in lower case, as Spark gives it → member
KNOWN = {name.replace("_", ""): name for name in SourceOptions.__struct_fields__}


def _camel(member: str) -> str:
    first, *others = member.split("_")
    return first + "".join(part.capitalize() for part in others)


def _text(name: str, text: str) -> str:
    return text


def _list(separator: str) -> Callable[[str, str], tuple[str, ...]]:
    return lambda name, text: tuple(one.strip() for one in text.split(separator) if one.strip())


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(name, text, "use true or false")
    return text.lower() == "true"


def _verify(name: str, text: str) -> str:
    if text.lower() not in ("true", "ca", "false"):
        raise ConfigError(name, text, "use true, ca (the certificate, not the host name) or false")
    return text.lower()


def _number(least: int, most: int = INT_MAX) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
            raise ConfigError(name, text, f"it has to be a whole number from {least} to {most}")
        return int(text)

    return read


_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration_ms(name: str, text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12})\s*(ms|s|m|h|d|)", text)
    if found is None:
        raise ConfigError(name, text, "use a number of ms, or 30s, 15m, 1h")
    return int(found[1]) * _UNITS_MS[found[2]]


def _size(name: str, text: str) -> int:
    """Bytes, with k, m, g for powers of 1024 as Spark has them."""
    found = re.fullmatch(r"([0-9]{1,15})\s*([kmg]?)b?", text.lower())
    if found is None or int(found[1]) < 1:
        raise ConfigError(name, text, "use a number of bytes, or 64m, 1g")
    return int(found[1]) << 10 * " kmg".index(found[2] or " ")


def _offsets(name: str, text: str) -> object:
    if text in ("earliest", "latest"):
        return text
    try:
        tree = msgspec.json.decode(text, type=dict[str, dict[str, dict[str, Offset]]])
        return positions_from_json(tree)
    except (msgspec.DecodeError, ValueError):
        fix = 'use earliest, latest, or JSON such as {"T": {"broker-a": {"0": 12}}} (-2 earliest, -1 latest)'
        raise ConfigError(name, text, fix) from None


def _times(name: str, text: str) -> Times:
    fix = 'use ms since 1970, 2026-01-31T12:00:00, or JSON such as {"T": {"broker-a": {"0": 1700000000000}}}'
    try:
        if not text.startswith("{"):
            return _time_ms(text)
        tree = msgspec.json.decode(text, type=dict[str, dict[str, dict[str, int | str]]])
        return {
            MessageQueue(topic, broker, int(queue_id)): _time_ms(str(when))
            for topic, brokers in tree.items()
            for broker, queues in brokers.items()
            for queue_id, when in queues.items()
        }
    except (msgspec.DecodeError, ValueError, OverflowError):
        raise ConfigError(name, text, fix) from None


def _time_ms(text: str) -> int:
    if text.isascii() and text.isdigit():
        if int(text) >= LONG_MAX:
            raise ValueError(text)
        return int(text)
    when = datetime.fromisoformat(text)
    since = (when if when.tzinfo else when.replace(tzinfo=UTC)) - datetime.fromtimestamp(0, UTC)
    if since < timedelta(0):
        raise ValueError(text)
    return -(-since // timedelta(milliseconds=1))  # brokers know whole ms: none before `text` is at it or later


READ: dict[str, Callable[[str, str], object]] = {
    "namesrv": _list(";"),
    "topics": _list(","),
    "keys": _list(","),
    "secretkey": lambda name, text: Secret(text),
    "securitytoken": lambda name, text: Secret(text),
    "startingoffsets": _offsets,
    "endingoffsets": _offsets,
    "startingtimestamp": _times,
    "endingtimestamp": _times,
    "failondataloss": _flag,
    "includesystemtopics": _flag,
    "commitoffsets": _flag,
    "pushdown": _flag,
    "usetls": _flag,
    "tlsverify": _verify,
    "maxoffsetspertrigger": _number(1),
    "minoffsetspertrigger": _number(1),
    "maxbytespertrigger": _size,
    "maxtriggerdelay": _duration_ms,
    "minpartitions": _number(1),
    "maxrecordsperpartition": _number(1),
    "pullbatchsize": _number(1),
    "pulltimeoutms": _number(1),
    "retries": _number(0),
}


def _checked(options: SourceOptions) -> SourceOptions:
    for addr in options.namesrv:
        try:
            host.parse(addr)
        except ProtocolError as error:
            raise ConfigError("namesrv", addr, str(error)) from None
    _check_topics(options)
    if fault := group_name_fault(options.group_id):
        raise ConfigError("groupId", options.group_id, fault)
    if bool(options.access_key) != bool(options.secret_key):
        missing = "secretKey" if options.access_key else "accessKey"
        raise ConfigError(missing, "", "accessKey and secretKey are given together or not at all")
    for name, file in (("tlsCaFile", options.tls_ca_file), ("tlsCertFile", options.tls_cert_file)):
        if file and not options.use_tls:
            raise ConfigError(name, file, "connections are encrypted with useTls = true only")
    if options.tls_key_file and not options.tls_cert_file:
        raise ConfigError("tlsKeyFile", options.tls_key_file, "tlsCertFile is missing")
    if options.ending_offsets == "earliest":
        raise ConfigError(
            "endingOffsets", "earliest", "use latest or JSON: a batch that ends at the beginning is empty"
        )
    if options.commit_offsets and options.group_id == GROUP:
        raise ConfigError("commitOffsets", "true", "groupId says which group, one of this query's own")
    return options


def _check_topics(options: SourceOptions) -> None:
    listed = listed_topics(options)
    if not listed and not options.topics_pattern:
        raise ConfigError("topics", "", "names no topic: use a,b,c")
    for topic in listed:
        if fault := topic_name_fault(topic):
            raise ConfigError("topic" if options.topic else "topics", topic, fault)
    try:
        pattern = re.compile(options.topics_pattern)
    except re.error as error:
        raise ConfigError("topicsPattern", options.topics_pattern, f"is no regular expression: {error}") from None
    for name, wanted in (
        ("startingOffsets", options.starting_offsets),
        ("endingOffsets", options.ending_offsets),
        ("startingTimestamp", options.starting_timestamp),
        ("endingTimestamp", options.ending_timestamp),
    ):
        for other in {queue.topic for queue in (wanted if isinstance(wanted, dict) else ())} - set(listed):
            if listed or not pattern.fullmatch(other):
                there = ", ".join(listed) or f"those that match {options.topics_pattern}"
                raise ConfigError(name, other, f"the source reads the topics {there} only: leave others out")
