"""Options and columns of the sink, validated before a task starts. Options that the source has, too, mean the same there."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from ariane.errors import ConfigError
from ariane.model import dedup
from ariane.model.topic import SEND_FORBIDDEN, topic_name_fault
from ariane.protocol.records import compression
from ariane.spark.option_parsing import Readers, Secret, boolean_option, integer_option, parse_options
from ariane.spark.values.body_options import is_body_option
from ariane.spark.wire import access
from ariane.spark.wire.access import ClusterAccess

MAX_MESSAGE_SIZE = 4 * 1024 * 1024  # default maxMessageSize of brokers
BATCH_BYTES = 512 * 1024  # 1,000 messages of some 500 bytes with their properties

# column → accepted types
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

# Spark passes its own options to the sink of a stream, too.
SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname"})


class SinkOptions(ClusterAccess, frozen=True, kw_only=True):
    """Validated options of the sink."""

    topic: str = ""
    """Topic of rows without a value in the column `topic`."""
    max_in_flight: int = 32
    """Maximum number of requests in flight for a task."""
    batch_size: int = 1000
    """Maximum number of messages in a request; 1: each message has its own request."""
    batch_bytes: int = BATCH_BYTES
    """Maximum size of a batch request in bytes; at most max_message_size, which brokers apply to requests, too."""
    compression_threshold: int = compression.COMPRESS_MIN_BYTES
    """Minimum body size in bytes for compression (zlib). Each compressed message has its own request, because brokers accept no
    compressed bodies in a batch."""
    max_message_size: int = MAX_MESSAGE_SIZE
    """Maximum size of a body in bytes; the brokers' maxMessageSize."""
    run_id: str = ""
    """Batch only: identifies the run in ARIANE_DEDUP. A job that is repeated with the same id writes recognisable copies. Empty: a
    new id for each write."""
    check_timers: bool = True
    """Whether a task asks each broker that is to deliver rows at a time whether it can. Brokers that cannot deliver immediately."""
    drop_reserved_properties: bool = False
    """Whether to drop reserved names from `properties` (a frame read from a topic contains them) instead of rejecting them."""


READERS: Readers = {
    **access.READERS,
    "maxinflight": integer_option(1, 1024),
    "batchsize": integer_option(1, 100_000),
    "batchbytes": integer_option(1, 15 * 1024 * 1024),  # a frame has at most 16 MiB
    "compressionthreshold": integer_option(1),
    "maxmessagesize": integer_option(1, 15 * 1024 * 1024),
    "checktimers": boolean_option,
    "dropreservedproperties": boolean_option,
}


def parse(options: Mapping[str, str], *, is_stream: bool = True) -> SinkOptions:
    """Parse and validate options; raise ConfigError with the option's name and the remedy."""
    for name in options:
        if name.lower() == "path":
            raise ConfigError("path", options[name], 'not supported by the sink: use .option("topic", …) and .save()')
        if is_body_option(name):
            fix = 'not supported by the sink, which writes bodies as they are: .withColumn("body", to_json("value")), or a UDF'
            raise ConfigError(name, Secret("..."), fix)
        if not is_stream and name.lower() in SPARK_OPTIONS:
            raise ConfigError(name, options[name], "only for streams (writeStream): remove it")
    parsed = SinkOptions(**parse_options(options, "rocketmq sink", SinkOptions, READERS, access.ALIASES, SPARK_OPTIONS))
    access.validate(parsed)
    if parsed.batch_bytes > parsed.max_message_size and "batchbytes" in {name.lower() for name in options}:
        fix = f"expected at most maxMessageSize, {parsed.max_message_size}, which brokers apply to requests, too"
        raise ConfigError("batchBytes", parsed.batch_bytes, fix)
    if parsed.topic and (fault := topic_fault(parsed.topic)):
        raise ConfigError("topic", parsed.topic, fault)
    if parsed.run_id and (fault := dedup.run_fault(parsed.run_id)):
        raise ConfigError("runId", parsed.run_id, fault)
    return parsed


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise ConfigError for a missing column, or one that the sink does not accept, with the expression that fixes it."""
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        types = COLUMNS.get(field.name)
        if field.name == "value":
            fix = 'is not a column of the sink: .withColumn("body", to_json("value")).drop("value"), or encode it in a UDF'
            raise ConfigError("column", "value", fix)
        if types is None:
            fix = f'is not a column of the sink: .drop("{field.name}"), or .select() some of {", ".join(COLUMNS)}'
            raise ConfigError("column", field.name, fix)
        if names.count(field.name) > 1:
            raise ConfigError("column", field.name, "occurs twice: keep one")
        type_name = field.dataType.simpleString()
        if type_name not in types:
            fix = f'expected {" or ".join(types)}: .withColumn("{field.name}", {_cast_hint(field.name, types[0])})'
            raise ConfigError("column", f"{field.name} {type_name}", fix)
    if "body" not in names:
        raise ConfigError(
            "column", "body", 'is required (binary or string), for example .selectExpr("to_json(struct(*)) AS body")'
        )
    if "topic" not in names and not options.topic:
        raise ConfigError("topic", "", 'is required: .option("topic", …), or a column topic')
    if "broker" in names and "queue_id" not in names:
        raise ConfigError("column", "broker", 'requires a column queue_id: add it, or .drop("broker")')


def _cast_hint(name: str, type_name: str) -> str:
    return f'col("{name}").cast("{type_name}")'


def topic_fault(topic: str) -> str | None:
    """Return why applications must not send to `topic`, or None."""
    if topic in SEND_FORBIDDEN:
        return f"{topic} is reserved for the broker"
    return topic_name_fault(topic)
