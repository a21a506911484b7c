"""Options of `format("rocketmq-store")`: parsing and validation."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

import msgspec

from ariane.errors import ConfigError
from ariane.model.topic import topic_name_fault
from ariane.spark.option_parsing import (
    INT_MAX,
    LONG_MAX,
    Readers,
    boolean_option,
    integer_option,
    list_option,
    parse_options,
    reject_changed,
)

CHUNK_MIN = 64 * 1024
STREAM_ONLY = dict.fromkeys(
    ("max_bytes_per_trigger", "starting_position", "fail_on_data_loss"),
    "only for spark.readStream: a batch reads the whole log, with rows for missing files; remove it",
)


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Validated options of the store source."""

    path: str = ""
    """Required. A broker's store directory, or its commitlog directory, visible to the driver and all executors."""
    broker: str | None = None
    """Value of the column broker; store files do not contain the broker's name."""
    topic: tuple[str, ...] = ()
    """Topics to read, separated by commas; empty: all. Damage is reported for any topic."""
    check_crc: bool = True
    """Whether to check the CRC of every body."""
    max_partition_bytes: int = 128 * 1024 * 1024
    """Maximum number of bytes of the log that one task reads."""
    chunk_bytes: int = 1536 * 1024
    """Bytes per read of a task; a larger record is read completely."""
    max_bytes_per_trigger: int | None = None
    """Streaming: approximate number of bytes of the log in a micro-batch; default: all available."""
    starting_position: str | int = "earliest"
    """Streaming: earliest, latest, or a log offset; reading starts with the first record at or after it."""
    fail_on_data_loss: bool = True
    """Streaming: whether a part of the log that was removed before it was read fails the query; otherwise it becomes a row."""


def parse(options: Mapping[str, str]) -> StoreOptions:
    """Parse and validate options; raise ConfigError with the option's name and the remedy."""
    parsed = StoreOptions(**parse_options(options, "rocketmq-store source", StoreOptions, READERS))
    if not parsed.path:
        raise ConfigError("path", "", 'is required: .load("/path/of/the/store")')
    return parsed


def reject_stream_options(options: StoreOptions) -> None:
    """Raise ConfigError for an option that has no effect in a batch."""
    reject_changed(options, STREAM_ONLY)


def _local_path(name: str, text: str) -> str:
    """Return a local path; `file:` URIs are converted."""
    if "://" not in text and not text.startswith("file:"):
        return text
    # Spark users write `file:` URIs by habit; any other scheme would be read as a name of a local directory.
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ConfigError("path", text, "expected a local path: mount other file systems on every machine")
    return unquote(parts.path)


def _topics(name: str, text: str) -> tuple[str, ...]:
    topics = list_option(",")(name, text)
    for topic in topics:
        if fault := topic_name_fault(topic):
            raise ConfigError(name, topic, fault)
    return topics


def _position(name: str, text: str) -> str | int:
    if text in ("earliest", "latest"):
        return text
    return integer_option(0, LONG_MAX, "earliest, latest or ")(name, text)


READERS: Readers = {
    "path": _local_path,
    "topic": _topics,
    "checkcrc": boolean_option,
    "maxpartitionbytes": integer_option(CHUNK_MIN, LONG_MAX),
    "chunkbytes": integer_option(CHUNK_MIN, INT_MAX),  # positions in a chunk are 32-bit
    "maxbytespertrigger": integer_option(CHUNK_MIN, LONG_MAX),
    "startingposition": _position,
    "failondataloss": boolean_option,
}
