"""Message properties as text: `name 0x01 value`, pairs joined by 0x02.

The text does not end with a separator (older clients write one, so it is accepted). Pairs with an empty name or value
are ignored, as in Java. [MessageDecoder.messageProperties2String]
"""

from __future__ import annotations

from collections.abc import Mapping

from ariane.errors import ProtocolError

NAME_END = "\x01"
PAIR_END = "\x02"
SIZE_MAX = 32767  # the length field of a record is a signed short


def encode(properties: Mapping[str, str]) -> str:
    """Return `properties` as text. Raise ProtocolError if a name or value contains a separator."""
    text = join(properties)
    if text.count(NAME_END) != len(properties) or (properties and text.count(PAIR_END) != len(properties) - 1):
        raise ProtocolError(
            "Invalid property: name or value contains U+0001 or U+0002, which separate properties on the wire"
        )
    return text


def join(properties: Mapping[str, str]) -> str:
    """Return properties as text without checking them; for those that `decode` returned or a caller has checked."""
    return PAIR_END.join([f"{name}{NAME_END}{value}" for name, value in properties.items()])


def decode(text: str) -> dict[str, str]:
    """Return the properties in `text`. Segments that are not pairs are skipped; the last of equal names wins."""
    properties = {}
    for segment in text.split(PAIR_END):
        name, end, value = segment.partition(NAME_END)
        if name and end and value:
            properties[name] = value
    return properties


def first_value(text: str, name: str) -> str:
    """Return the value of the first pair with this name; empty without one. `decode` returns that of the last."""
    for segment in text.split(PAIR_END):
        key, _, value = segment.partition(NAME_END)
        if key == name and value:
            return value
    return ""


def parse_number(text: str | None, default: int = 0) -> int:
    """Return the decimal number of a property; `default` for other texts."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) <= 18 else default
