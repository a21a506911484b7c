"""Message properties as text: `name 0x01 value`, pairs joined by 0x02.

No separator at the end (4.9.4 writes none; older clients do, so one is accepted). A pair counts only with a non-empty
name and a non-empty value, as in Java. [MessageDecoder.messageProperties2String]
"""

from __future__ import annotations

from collections.abc import Mapping

from ariane.errors import ProtocolError

NAME_END = "\x01"
PAIR_END = "\x02"
SIZE_MAX = 32767  # the length field of a record is a signed short


def encode(properties: Mapping[str, str]) -> str:
    """Text of `properties`. A name or value that holds a separator would become other properties: ProtocolError."""
    text = join(properties)
    if text.count(NAME_END) != len(properties) or (properties and text.count(PAIR_END) != len(properties) - 1):
        raise ProtocolError("a property name or value holds U+0001 or U+0002, which separate properties on the wire")
    return text


def join(properties: Mapping[str, str]) -> str:
    """Text of properties that `decode` gave, or that were checked: nothing of them is looked at."""
    return PAIR_END.join([f"{name}{NAME_END}{value}" for name, value in properties.items()])


def decode(text: str) -> dict[str, str]:
    """Properties of `text`; segments that are no pair are skipped, the last of equal names wins."""
    properties = {}
    for segment in text.split(PAIR_END):
        name, end, value = segment.partition(NAME_END)
        if name and end and value:
            properties[name] = value
    return properties
