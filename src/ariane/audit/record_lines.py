"""Records of audit logs as lines of JSON, with texts of bounded length. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

R = TypeVar("R", bound=msgspec.Struct)


def encode(record: msgspec.Struct) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def decode(line: bytes, kind: type[R]) -> R | None:
    """Return the record of a line; None for a line that a crash tore."""
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError:
        return None


def bounded(record: R, limits: Mapping[str, int]) -> R:
    """Return a record with texts of bounded length: peers without an account choose most of them.

    Args:
        record: The record.
        limits: Most characters of fields, by their names.
    """
    return msgspec.structs.replace(record, **{name: cut(getattr(record, name), most) for name, most in limits.items()})


def cut(text: str, characters_max: int) -> str:
    """Return the beginning of a text, which a file can hold: peers can send lone surrogates in JSON."""
    return text[:characters_max].encode(errors="replace").decode()
