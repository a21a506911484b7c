"""Options of `format("rocketmq-store")`, as texts and as values."""

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
    "works in streams only (spark.readStream): a batch reads the whole log, and shows what is missing as rows",
)


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a read of store files was asked for."""

    path: str = ""
    """A broker's store directory, or its commitlog: a path that the driver and all executors see. Needed."""
    broker: str | None = None
    """What the column broker says: no file of a store holds the broker's name."""
    topic: tuple[str, ...] = ()
    """Topics to read, joined by commas; empty: all. Damage is told whatever the topic."""
    check_crc: bool = True
    """Whether the CRC of every body is computed."""
    max_partition_bytes: int = 128 * 1024 * 1024
    """Bytes of the log that one task reads."""
    chunk_bytes: int = 1536 * 1024
    """Bytes that a task has in memory undecoded; a larger record is read whole."""
    max_bytes_per_trigger: int | None = None
    """Streaming: about how many bytes of the log one micro-batch reads; without it, all there are."""
    starting_position: str | int = "earliest"
    """Streaming: earliest, latest, or an offset of the log; it begins with the first record from there on."""
    fail_on_data_loss: bool = True
    """Streaming: whether a part of the log that was removed before it was read ends the query, or becomes a row."""


def parse(options: Mapping[str, str]) -> StoreOptions:
    """ConfigError names the option and what to write instead. Unknown options are refused: they are mistyped ones."""
    parsed = StoreOptions(**parse_options(options, "rocketmq-store source", StoreOptions, READERS))
    if not parsed.path:
        raise ConfigError("path", "", 'is needed: .load("/path/of/the/store")')
    return parsed


def reject_stream_options(options: StoreOptions) -> None:
    """Raise ConfigError for an option that has no effect in a batch."""
    reject_changed(options, STREAM_ONLY)


def _local_path(name: str, text: str) -> str:
    """A path of this machine's file system; `file:` URIs are such."""
    if "://" not in text and not text.startswith("file:"):
        return text
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ConfigError("path", text, "store files are read as files: mount that file system and give the local path")
    return unquote(parts.path)


def _topics(name: str, text: str) -> tuple[str, ...]:
    topics = list_option(",")(name, text)
    for one in topics:
        if fault := topic_name_fault(one):
            raise ConfigError(name, one, fault)
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
    "chunkbytes": integer_option(CHUNK_MIN, INT_MAX),  # a chunk is addressed with 32 bits
    "maxbytespertrigger": integer_option(CHUNK_MIN, LONG_MAX),
    "startingposition": _position,
    "failondataloss": boolean_option,
}
