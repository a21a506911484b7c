"""Values as JSON for `--json`: Structs and NamedTuples become objects with camel-case members, times ISO 8601 in UTC."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import msgspec


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON text."""
    return json.dumps(to_builtins(value), ensure_ascii=False, indent=indent)


def to_builtins(value: Any) -> Any:
    """Return a value made of dicts, lists, texts, numbers, booleans and None, without members that are not set.

    Bytes become text if they are UTF-8, and an object {"hex": "…"} otherwise.
    """
    if isinstance(value, msgspec.Struct):
        names = {field.name: field.encode_name for field in msgspec.structs.fields(value)}
        members = {_camel(wire): getattr(value, name) for name, wire in names.items()}
        return {name: to_builtins(member) for name, member in members.items() if member is not msgspec.UNSET}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {_camel(name): to_builtins(item) for name, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): to_builtins(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_builtins(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    if isinstance(value, Enum):
        return value.name
    return value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)
