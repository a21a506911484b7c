"""Values that peers send to break decoders, and the types of all headers and bodies of the protocol."""

from __future__ import annotations

import importlib
import pkgutil

import msgspec

from ariane.model.topic import DataVersion, SubscriptionGroupConfig, TopicConfig
from ariane.protocol import requests

# Pieces that have broken a decoder, here or in other software.
NASTY = [
    b"9" * 5000, b"-" + b"9" * 5000, "²".encode(), "\u0663".encode(), b"\xff", b"\xed\xa0\x80", b"[" * 3000, b'{"a":' * 3000,
    b'{"a":' * 70 + b"1" + b"}" * 70, b"{" * 70 + b'"a":1}' + b":1}" * 69, b"\\ud800", b"\\u12", b"1e999", b"-1e999", b"NaN",
    b"Infinity", b"null", b"\x00", b"1.0", b"1e400000", b"-0", b"0.1", b'""', b"[]", b"{}", b"true", b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00", b"\xff\xff\xff\xff", b"\x01", b"\x02", b"\r\n", b"\\", b"'", b'"', b":", b"{", b"}", b"[", b"]",
]  # fmt: skip


def structs() -> list[type[msgspec.Struct]]:
    """Return every header and body type of the protocol."""
    modules = [
        importlib.import_module(f"{requests.__name__}.{item.name}") for item in pkgutil.iter_modules(requests.__path__)
    ]
    kinds = {
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    }
    return sorted(kinds | {DataVersion, TopicConfig, SubscriptionGroupConfig}, key=lambda kind: kind.__name__)
