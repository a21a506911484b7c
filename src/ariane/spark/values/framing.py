"""What serializers of schema registries write in front of a body.

    confluent         0 | schema id, 4 bytes | Protobuf only: message indexes, zigzag varints, 0 for [0]        | body
    apicurio          0 | schema id, 4 bytes | Protobuf only: Ref { string name = 1 } with its length as varint | body
    apicurio-8-byte   0 | schema id, 8 bytes | the same                                                        | body

Sources: Confluent, "Wire format" of Schema Registry's serializers; Apicurio Registry, Default4ByteIdHandler (3.x),
Legacy8ByteIdHandler (the default of 2.x), ProtobufSerializer.writeRef and MessageIndexesUtil. Apicurio's variant with the id in a
header of Kafka has no counterpart: properties of RocketMQ are texts, and that header is eight raw bytes.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Framing = Literal["none", "confluent", "apicurio", "apicurio-8-byte"]
ID_BYTES: dict[str, int] = {"confluent": 4, "apicurio": 4, "apicurio-8-byte": 8}
_VARINT_BYTES_MAX = 5


class FramingError(ValueError):
    """The body does not begin as its framing requires."""


class SchemaFrame(NamedTuple):
    """The id in front of a body, and where the rest starts."""

    schema_id: int
    start: int


def read_frame(body: bytes, id_bytes: int) -> SchemaFrame:
    """Read the magic byte and the schema id; raise FramingError if the body has none."""
    start = 1 + id_bytes
    if len(body) < start or body[0]:
        first = body[:1].hex() or "nothing"
        raise FramingError(f"the body has no schema id: expected 00 and {id_bytes} bytes of id, got {first} first")
    return SchemaFrame(int.from_bytes(body[1:start], "big"), start)


def read_indexes(body: bytes, position: int) -> tuple[list[int], int]:
    """Return the path of the message type in its .proto file, and the position after it."""
    count, position = _zigzag(body, position)
    if count == 0:
        return [0], position
    if not 0 < count <= len(body) - position:
        raise FramingError(f"{count} message indexes")
    indexes = []
    for _ in range(count):
        index, position = _zigzag(body, position)
        indexes.append(index)
    return indexes, position


def read_ref(body: bytes, position: int) -> tuple[str, int]:
    """Return the name of the message type in Apicurio's Ref, and the position after it."""
    size, start = _varint(body, position)
    end = start + size
    if end > len(body):
        raise FramingError("the name of the message type is longer than the body")
    if not size:
        return "", end
    if body[start] != 0x0A:
        raise FramingError("the schema id is not followed by the name of the message type")
    length, start = _varint(body, start + 1)
    if start + length != end:
        raise FramingError("the name of the message type has another length than its frame")
    return body[start:end].decode(), end


def _zigzag(body: bytes, position: int) -> tuple[int, int]:
    value, position = _varint(body, position)
    return (value >> 1) ^ -(value & 1), position


def _varint(body: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(body[position : position + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise FramingError(f"no integer at byte {position} of the body")
