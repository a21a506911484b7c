"""Options and columns of the sink: what a write may say, checked before a task starts.

The names that the source has too mean the same there.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from ariane.errors import ConfigError
from ariane.model import dedup
from ariane.model.topic import SEND_FORBIDDEN, topic_name_fault
from ariane.protocol import compression
from ariane.spark.option_parsing import Readers, boolean_option, integer_option, parse_options
from ariane.spark.wire import access
from ariane.spark.wire.access import ClusterAccess

MAX_MESSAGE_SIZE = 4 * 1024 * 1024  # maxMessageSize of a broker that nobody configured
BATCH_BYTES = 256 * 1024

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

# Spark gives the sink of a stream the options that are its own, too.
SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname"})


class SinkOptions(ClusterAccess, frozen=True, kw_only=True):
    """What a write was asked for."""

    topic: str = ""
    """Topic of the rows that have none in a column `topic`."""
    max_in_flight: int = 32
    """Requests of a task that wait for their answers at a time."""
    batch_size: int = 1000
    """Most messages of one request; 1: each message has a request of its own."""
    batch_bytes: int = BATCH_BYTES
    """Most bytes of one request with several messages; never more than max_message_size, which brokers hold against it too."""
    compression_threshold: int = compression.COMPRESS_MIN_BYTES
    """Bodies of so many bytes and more are compressed (zlib), each in a request of its own; brokers take no compressed bodies in
    a batch."""
    max_message_size: int = MAX_MESSAGE_SIZE
    """Most bytes of a body, as the brokers' maxMessageSize."""
    run_id: str = ""
    """Batch only: names the run in ARIANE_DEDUP, so that the same job under the same name can be recognised; empty: a new
    name for each write."""
    drop_reserved_properties: bool = False
    """Whether names in `properties` that belong to the protocol are left out (a frame that was read from a topic has them)
    rather than refused."""


READERS: Readers = {
    **access.READERS,
    "maxinflight": integer_option(1, 1024),
    "batchsize": integer_option(1, 100_000),
    "batchbytes": integer_option(1, 15 * 1024 * 1024),  # a frame has at most 16 MiB
    "compressionthreshold": integer_option(1),
    "maxmessagesize": integer_option(1, 15 * 1024 * 1024),
    "dropreservedproperties": boolean_option,
}


def parse(options: Mapping[str, str], *, is_stream: bool = True) -> SinkOptions:
    """ConfigError names the option and what to write instead. Unknown options are refused: they are mistyped ones."""
    for name in options:
        if name.lower() == "path":
            raise ConfigError("path", options[name], 'a sink of messages has no path: .option("topic", …) and .save()')
        if not is_stream and name.lower() in SPARK_OPTIONS:
            raise ConfigError(name, options[name], "is for streams (writeStream): leave it out")
    parsed = SinkOptions(**parse_options(options, "rocketmq sink", SinkOptions, READERS, access.ALIASES, SPARK_OPTIONS))
    access.validate(parsed)
    if parsed.batch_bytes > parsed.max_message_size and "batchbytes" in {name.lower() for name in options}:
        fix = f"is more than maxMessageSize, {parsed.max_message_size}, which brokers hold against a request too"
        raise ConfigError("batchBytes", parsed.batch_bytes, fix)
    if parsed.topic and (fault := topic_fault(parsed.topic)):
        raise ConfigError("topic", parsed.topic, fault)
    if parsed.run_id and (fault := dedup.run_fault(parsed.run_id)):
        raise ConfigError("runId", parsed.run_id, fault)
    return parsed


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
            fix = f'has to be {" or ".join(types)}: .withColumn("{field.name}", {_cast_hint(field.name, types[0])})'
            raise ConfigError("column", f"{field.name} {given}", fix)
    if "body" not in names:
        raise ConfigError(
            "column", "body", 'is needed (binary or string), e.g. .selectExpr("to_json(struct(*)) AS body")'
        )
    if "topic" not in names and not options.topic:
        raise ConfigError("topic", "", 'is needed: .option("topic", …), or a column topic')
    if "broker" in names and "queue_id" not in names:
        raise ConfigError("column", "broker", 'names no queue without a column queue_id: .drop("broker"), or add it')


def _cast_hint(name: str, wanted: str) -> str:
    return f'col("{name}").cast("{wanted}")'


def topic_fault(topic: str) -> str | None:
    """Why nobody may send to `topic`, or None."""
    if topic in SEND_FORBIDDEN:
        return f"{topic} belongs to the broker; nobody else writes to it"
    return topic_name_fault(topic)
