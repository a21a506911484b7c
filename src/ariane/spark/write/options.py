"""Options and columns of the sink: what a write may say, checked before a task starts.

The names that the source has too mean the same there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pyspark.sql.types import StructType

from ariane.errors import ConfigError, ProtocolError
from ariane.model import dedup, host
from ariane.model.topic import SEND_FORBIDDEN, group_name_fault, topic_name_fault
from ariane.protocol import compression
from ariane.spark.read.options import Secret

MESSAGE_MAX = 4 * 1024 * 1024  # maxMessageSize of a broker that nobody configured
BATCH_BYTES = 256 * 1024

INT_MAX = 2**31 - 1  # what a header can say

ALIASES = {"nameserver": "namesrv", "group": "groupid"}

# column → types that it may have
COLUMNS = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "keys": ("string",),
    "tags": ("string",),
    "properties": ("map<string,string>",),
    "delay_level": ("int",),
    "deliver_at": ("timestamp",),
    "ordering_key": ("string",),
    "queue_id": ("int",),
    "broker": ("string",),
    "flag": ("int",),
}

# Spark gives a sink the options that are its own, too.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "path"})


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a write was asked for."""

    namesrv: tuple[str, ...]
    """Name servers, `host:port` joined by `;`."""
    topic: str = ""
    """Topic of the rows that have none in a column `topic`."""
    group_id: str = "ariane-spark"
    """Producer group that the brokers see."""
    access_key: str = ""
    """Account that signs requests, for brokers with aclEnable; empty: they are not signed."""
    secret_key: Secret = Secret()
    """Its key. It is in no text made of the options."""
    security_token: Secret = Secret()
    """Its token, if it is a temporary account."""
    timeout_ms: int = 10_000
    """ms to wait for the answer to a request."""
    retries: int = 30
    """How often a request is sent again, at most a second apart, before the task fails."""
    max_in_flight: int = 32
    """Requests of a task that wait for their answers at a time."""
    batch_size: int = 1000
    """Most messages of one request; 1: each message has a request of its own."""
    batch_bytes: int = BATCH_BYTES
    """Most bytes of one request with several messages; never more than max_message_size, which brokers hold against it too."""
    compress_over: int = compression.COMPRESS_FROM
    """Bodies of so many bytes and more are compressed (zlib), each in a request of its own; brokers take no compressed bodies in
    a batch."""
    max_message_size: int = MESSAGE_MAX
    """Most bytes of a body, as the brokers' maxMessageSize."""
    run_id: str = ""
    """Batch only: names the run in ARIANE_DEDUP, so that the same job under the same name can be recognised; empty: a new
    name for each write."""
    drop_reserved: bool = False
    """Whether names in `properties` that belong to the protocol are left out (a frame that was read from a topic has them)
    rather than refused."""


NUMBERS = {  # option → least, most
    "timeoutms": (1, INT_MAX),
    "retries": (0, INT_MAX),
    "maxinflight": (1, 1024),
    "batchsize": (1, 100_000),
    "batchbytes": (1, 15 * 1024 * 1024),  # a frame has at most 16 MiB
    "compressover": (1, INT_MAX),
    "maxmessagesize": (1, 15 * 1024 * 1024),
}

# option in lower case, as Spark gives it → member
KNOWN = {name.replace("_", ""): name for name in SinkOptions.__struct_fields__}


def parse(options: Mapping[str, str]) -> SinkOptions:
    """ConfigError names the option and what to write instead. Unknown options are refused: they are mistyped ones."""
    texts: dict[str, str] = {}
    for given, text in options.items():
        if given.lower() in SPARKS_OWN:
            continue
        name = ALIASES.get(given.lower(), given.lower())
        if name not in KNOWN:
            options_there = ", ".join(_camel(member) for member in KNOWN.values())
            shown = "" if "secret" in name or "token" in name else text
            raise ConfigError(name, shown, f"is no option of the rocketmq sink; it has {options_there}")
        if name in texts:
            raise ConfigError(given, text, f"is another name of {_camel(KNOWN[name])}, which is given too: keep one")
        texts[name] = text.strip()
    if not texts.get("namesrv"):
        raise ConfigError("namesrv", "", 'is needed: .option("namesrv", "host:port")')
    values: dict[str, Any] = {KNOWN[name]: _value(name, text) for name, text in texts.items()}
    return _checked(SinkOptions(**values))


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """ConfigError names a column that the sink cannot take, and how to mend the frame."""
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        types = COLUMNS.get(field.name)
        if types is None:
            fix = f'is no column of the sink: .drop("{field.name}"), or .select() some of {", ".join(COLUMNS)}'
            raise ConfigError("column", field.name, fix)
        if names.count(field.name) > 1:
            raise ConfigError("column", field.name, "is there twice: keep one")
        given = field.dataType.simpleString()
        if given not in types:
            fix = f'has to be {" or ".join(types)}: .withColumn("{field.name}", {_mended(field.name, types[0])})'
            raise ConfigError("column", f"{field.name} {given}", fix)
    if "body" not in names:
        raise ConfigError(
            "column", "body", 'is needed (binary or string), e.g. .selectExpr("to_json(struct(*)) AS body")'
        )
    if "topic" not in names and not options.topic:
        raise ConfigError("topic", "", 'is needed: .option("topic", …), or a column topic')
    if "broker" in names and "queue_id" not in names:
        raise ConfigError("column", "broker", 'names no queue without a column queue_id: .drop("broker"), or add it')


def _mended(name: str, wanted: str) -> str:
    return f'col("{name}").cast("{wanted}")'


def _camel(member: str) -> str:
    first, *others = member.split("_")
    return first + "".join(part.capitalize() for part in others)


def _namesrv(text: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(";") if one.strip())


def _value(name: str, text: str) -> object:
    if name in NUMBERS:
        least, most = NUMBERS[name]
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
            raise ConfigError(_camel(KNOWN[name]), text, f"it has to be a whole number from {least} to {most}")
        return int(text)
    if name == "dropreserved":
        if text.lower() not in ("true", "false"):
            raise ConfigError(_camel(KNOWN[name]), text, "use true or false")
        return text.lower() == "true"
    made: dict[str, Callable[[str], object]] = {"namesrv": _namesrv, "secretkey": Secret, "securitytoken": Secret}
    return made.get(name, str)(text)


def _checked(options: SinkOptions) -> SinkOptions:
    for addr in options.namesrv:
        try:
            host.parse(addr)
        except ProtocolError as error:
            raise ConfigError("namesrv", addr, str(error)) from None
    if options.topic and (fault := topic_fault(options.topic)):
        raise ConfigError("topic", options.topic, fault)
    if fault := group_name_fault(options.group_id):
        raise ConfigError("groupId", options.group_id, fault)
    if bool(options.access_key) != bool(options.secret_key):
        missing = "secretKey" if options.access_key else "accessKey"
        raise ConfigError(missing, "", "accessKey and secretKey are given together or not at all")
    if options.run_id and (fault := dedup.run_fault(options.run_id)):
        raise ConfigError("runId", options.run_id, fault)
    return options


def topic_fault(topic: str) -> str | None:
    """Why nobody may send to `topic`, or None."""
    if topic in SEND_FORBIDDEN:
        return f"{topic} belongs to the broker; nobody else writes to it"
    return topic_name_fault(topic)
