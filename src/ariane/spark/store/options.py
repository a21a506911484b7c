"""Options of `format("rocketmq-store")`, as texts and as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from ariane.errors import ConfigError
from ariane.model.topic import topic_name_fault

CHUNK_MIN = 64 * 1024
INT_MAX = 2**31 - 1  # a chunk is addressed with 32 bits


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a read of store files was asked for."""

    path: str
    """A broker's store directory, or its commitlog: a path that the driver and all executors see."""
    broker: str | None = None
    """What the column broker says: no file of a store holds the broker's name."""
    topic: tuple[str, ...] = ()
    """Topics to read, joined by commas; empty: all. Damage is told whatever the topic."""
    check_crc: bool = True
    """Whether the CRC of every body is computed."""
    split_bytes: int = 128 * 1024 * 1024
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
    values: dict[str, Any] = {}
    for given, text in options.items():
        member = KNOWN.get(given.lower())
        if member is None:
            there = ", ".join(_camel(one) for one in KNOWN.values())
            raise ConfigError(given, text, f"is no option of the rocketmq-store source; it has {there}")
        values[member] = _value(member, text.strip())
    if not values.get("path"):
        raise ConfigError("path", "", 'is needed: .load("/path/of/the/store")')
    return StoreOptions(**values)


# option in lower case, as Spark gives it → member
KNOWN = {name.replace("_", ""): name for name in StoreOptions.__struct_fields__}


def _camel(member: str) -> str:
    first, *others = member.split("_")
    return first + "".join(part.capitalize() for part in others)


def _value(member: str, text: str) -> object:
    match member:
        case "path":
            return _local(text)
        case "topic":
            topics = tuple(one.strip() for one in text.split(",") if one.strip())
            for one in topics:
                if fault := topic_name_fault(one):
                    raise ConfigError("topic", one, fault)
            return topics
        case "broker":
            return text or None
        case "check_crc" | "fail_on_data_loss":
            if text.lower() not in ("true", "false"):
                raise ConfigError(_camel(member), text, "use true or false")
            return text.lower() == "true"
        case "starting_position":
            return text if text in ("earliest", "latest") else _number(member, text, 0, 2**63 - 1)
        case "chunk_bytes":
            return _number(member, text, CHUNK_MIN, INT_MAX)
    return _number(member, text, CHUNK_MIN, 2**63 - 1)


def _number(member: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and least <= int(text) <= most):
        also = "earliest, latest or " if member == "starting_position" else ""
        raise ConfigError(_camel(member), text, f"it has to be {also}a whole number from {least} to {most}")
    return int(text)


def _local(text: str) -> str:
    """A path of this machine's file system; `file:` URIs are such."""
    if "://" not in text and not text.startswith("file:"):
        return text
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ConfigError("path", text, "store files are read as files: mount that file system and give the local path")
    return unquote(parts.path)
