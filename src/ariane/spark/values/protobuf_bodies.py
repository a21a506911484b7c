"""Bodies in Protobuf, decoded by a message type of a descriptor set (`protoc --include_imports --descriptor_set_out=FILE`).

A body needs no schema of its writer: fields are found by number. A frame names the type of the message, by its path in the .proto
file (Confluent) or its name (Apicurio); it has to be the declared one, because a body of another type would decode to wrong values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ariane.errors import ConfigError
from ariane.extras import naming_extras
from ariane.spark.values.framing import ID_BYTES, read_frame, read_indexes, read_ref
from ariane.spark.values.value_types import ValueType

with naming_extras():
    from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
    from google.protobuf.descriptor import FieldDescriptor

Extract = Callable[[Any], Any]

_SCALARS = {
    FieldDescriptor.CPPTYPE_BOOL: "boolean",
    FieldDescriptor.CPPTYPE_INT32: "int",
    FieldDescriptor.CPPTYPE_INT64: "bigint",
    FieldDescriptor.CPPTYPE_UINT32: "bigint",
    FieldDescriptor.CPPTYPE_UINT64: "decimal(20,0)",
    FieldDescriptor.CPPTYPE_FLOAT: "float",
    FieldDescriptor.CPPTYPE_DOUBLE: "double",
    FieldDescriptor.CPPTYPE_STRING: "string",
    FieldDescriptor.CPPTYPE_ENUM: "string",
}
_MICROS = 1_000_000


def _micros(stamp: Any) -> int:
    return int(stamp.seconds) * _MICROS + int(stamp.nanos) // 1000


_WELL_KNOWN: dict[str, tuple[ValueType, Extract]] = {
    "google.protobuf.Timestamp": ("timestamp", _micros),
    "google.protobuf.Duration": ("interval day to second", _micros),
    **{
        f"google.protobuf.{name}Value": (kind, lambda wrapper: wrapper.value)
        for name, kind in {
            "Bool": "boolean", "Int32": "int", "Int64": "bigint", "UInt32": "bigint", "UInt64": "decimal(20,0)",
            "Float": "float", "Double": "double", "String": "string", "Bytes": "binary",
        }.items()
    },
}  # fmt: skip


class ProtobufDecoder:
    """Decodes bodies to values of a message type."""

    def __init__(self, descriptor_set: bytes, name: str, framing: str) -> None:
        self._descriptor = _find_message(descriptor_set, name)
        self.kind, self._extract = _compile_message(self._descriptor, "value", ())
        self._parse = message_factory.GetMessageClass(self._descriptor).FromString
        self._framing = framing
        self._path = _path_in_file(self._descriptor)

    def __call__(self, body: bytes) -> Any:
        """Return the value of a body; raise ValueError if it has none."""
        if self._framing != "none":
            body = body[self._skip_frame(body) :]
        try:
            return self._extract(self._parse(body))
        except message.DecodeError as error:
            raise ValueError(f"not a message {self._descriptor.full_name}: {error}") from None

    def _skip_frame(self, body: bytes) -> int:
        """Return where the message starts; raise ValueError if the frame names another type."""
        start = read_frame(body, ID_BYTES[self._framing]).start
        names = (self._descriptor.name, self._descriptor.full_name)
        if self._framing == "confluent":
            path, start = read_indexes(body, start)
            if path != self._path:
                raise ValueError(
                    f"the body has message {path} of its .proto file, not {names[1]}, which is {self._path}"
                )
            return start
        name, start = read_ref(body, start)
        if name and name not in names:
            raise ValueError(f"the body has a message {name}, not {names[1]}")
        return start


def _find_message(descriptor_set: bytes, name: str) -> Any:
    """Return the descriptor of a message; raise ConfigError if there is none."""
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(descriptor_set)
    except message.DecodeError:
        files.Clear()
    if not files.file:
        raise ConfigError(
            "bodySchema", "", "contains no descriptors: write it by protoc --include_imports --descriptor_set_out=FILE"
        )
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files.file:
            pool.Add(file)
        return pool.FindMessageTypeByName(name)
    except KeyError:
        names = [f"{file.package}.{kind.name}".lstrip(".") for file in files.file for kind in file.message_type]
        raise ConfigError(
            "bodyMessage", name, f"is not in the descriptor set; expected one of {', '.join(names[:20])}"
        ) from None
    except TypeError as error:
        raise ConfigError("bodySchema", "", f"lacks an import; use protoc --include_imports: {error}") from None


def _path_in_file(descriptor: Any) -> list[int]:
    """Return the indexes that lead to a message in its .proto file, which does not contain the entries of maps as messages."""
    path: list[int] = []
    file = descriptor_pb2.FileDescriptorProto.FromString(descriptor.file.serialized_pb)
    siblings = file.message_type
    package = f"{file.package}." if file.package else ""
    for name in descriptor.full_name.removeprefix(package).split("."):
        written = [sibling for sibling in siblings if not sibling.options.map_entry]
        path.append([sibling.name for sibling in written].index(name))
        siblings = written[path[-1]].nested_type
    return path


def _compile_message(descriptor: Any, path: str, open_names: tuple[str, ...]) -> tuple[ValueType, Extract]:
    """Return the type of a message and a function that extracts a dictionary from it."""
    name = descriptor.full_name
    if name in _WELL_KNOWN:
        return _WELL_KNOWN[name]
    if name in open_names:
        raise ConfigError("bodySchema", f"{path} {name}", "contains itself, which no type of Spark does")
    if not descriptor.fields:
        raise ConfigError("bodySchema", f"{path} {name}", "has no fields, which Spark's structs need")
    kinds: dict[str, ValueType] = {}
    extracts: list[tuple[str, Extract]] = []
    for field in descriptor.fields:
        kinds[field.name], extract = _compile_field(field, f"{path}.{field.name}", (*open_names, name))
        extracts.append((field.name, extract))
    return kinds, lambda value: {name: extract(value) for name, extract in extracts}


def _compile_field(field: Any, path: str, open_names: tuple[str, ...]) -> tuple[ValueType, Extract]:
    """Return the type of a field and a function that extracts it from its message."""
    name, inner = field.name, field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        keys, values = inner.fields_by_name["key"], inner.fields_by_name["value"]
        (key_kind, key), (kind, value) = (
            _compile_value(keys, path, open_names),
            _compile_value(values, path, open_names),
        )
        return (key_kind, kind), lambda outer: {key(k): value(v) for k, v in getattr(outer, name).items()}
    kind, value = _compile_value(field, path, open_names)
    if field.is_repeated if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED:
        return [kind], lambda outer: [value(item) for item in getattr(outer, name)]
    # Proto3 fields without presence have a default; all others are null if the writer did not set them.
    if field.has_presence:
        return kind, lambda outer: value(getattr(outer, name)) if outer.HasField(name) else None
    return kind, lambda outer: value(getattr(outer, name))


def _compile_value(field: Any, path: str, open_names: tuple[str, ...]) -> tuple[ValueType, Extract]:
    if field.message_type is not None:
        return _compile_message(field.message_type, path, open_names)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return "string", lambda number: names.get(number, str(number))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return "binary", _same
    return _SCALARS[field.cpp_type], _same


def _same(value: Any) -> Any:
    return value
