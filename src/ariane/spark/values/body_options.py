"""Options of decoded bodies, shared by all readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from ariane.errors import ConfigError
from ariane.spark.option_parsing import Readers, Secret, camel_case, parse_options
from ariane.spark.values.framing import Framing
from ariane.spark.values.registry import SchemaRegistry, api_version

_FORMATS = ("json", "avro", "protobuf", "text", "debezium-json", "debezium-avro")
_FRAMINGS = ("none", "confluent", "apicurio", "apicurio-8-byte")
_AVRO = ("avro", "debezium-avro")
SUBJECT = "subject:"


class BodyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Validated options of decoded bodies."""

    body_format: Literal["json", "avro", "protobuf", "text", "debezium-json", "debezium-avro", ""] = ""
    """Format of the bodies; empty: they are not decoded."""
    body_schema: str = ""
    """json: columns in DDL; avro: the schema, a file, or `subject:NAME` of the registry; protobuf: a file with a descriptor set."""
    body_message: str = ""
    """protobuf: full name of the message type."""
    body_framing: Framing | Literal[""] = ""
    """What precedes a body; empty: as the registry's URL suggests."""
    body_errors: Literal["null", "fail"] = "null"
    """The result for a body that cannot be decoded: a null with a reason in `value_error`, or an error of the query."""
    schema_registry: str = ""
    """avro: URL of the registry that has the schemas of the writers."""
    schema_registry_auth: str = ""
    """`env:NAME` or `file:/path` with `user:password`, or `Bearer …`."""
    schema_registry_ids: Literal["globalId", "contentId", ""] = ""
    """Apicurio's own protocol: kind of the ids in bodies; empty: the default of its version."""

    @property
    def framing(self) -> Framing:
        """What precedes a body."""
        if self.body_framing:
            return self.body_framing
        if not self.schema_registry:
            return "none"
        defaults: dict[int | None, Framing] = {None: "confluent", 2: "apicurio-8-byte", 3: "apicurio"}
        return defaults[api_version(self.schema_registry)]

    @property
    def registry(self) -> SchemaRegistry | None:
        """The registry that has the schemas of the writers."""
        if not self.schema_registry:
            return None
        version = api_version(self.schema_registry)
        if version is None:
            return SchemaRegistry(url=self.schema_registry, ids="schemas", auth=self.schema_registry_auth)
        kind = self.schema_registry_ids or ("globalId" if version == 2 else "contentId")
        ids: Literal["globalIds", "contentIds"] = "globalIds" if kind == "globalId" else "contentIds"
        return SchemaRegistry(url=self.schema_registry, ids=ids, auth=self.schema_registry_auth)


def is_body_option(name: str) -> bool:
    return name.lower().startswith(("body", "schemaregistry"))


def _choice(*values: str) -> Callable[[str, str], object]:
    def read(name: str, text: str) -> str:
        if text not in values:
            raise ConfigError(name, text, f"expected one of {', '.join(values)}")
        return text

    return read


def _url(name: str, text: str) -> str:
    parts = urlsplit(text)
    if parts.username or parts.password or "@" in parts.netloc:
        raise ConfigError(
            name, Secret("..."), "contains credentials: put them in a file or variable, see schemaRegistryAuth"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(name, text, "expected a URL such as http://registry:8081")
    return text.rstrip("/")


def _auth(name: str, text: str) -> str:
    # The text may be a password written here by mistake, so it is not shown.
    if not text.startswith(("env:", "file:/")):
        raise ConfigError(
            name, Secret("..."), "expected env:NAME or file:/path, whose content is user:password or Bearer …"
        )
    return text


READERS: Readers = {
    "bodyformat": _choice(*_FORMATS),
    "bodyframing": _choice(*_FRAMINGS),
    "bodyerrors": _choice("null", "fail"),
    "schemaregistry": _url,
    "schemaregistryauth": _auth,
    "schemaregistryids": _choice("globalId", "contentId"),
}


def parse(options: Mapping[str, str], format_name: str) -> BodyOptions:
    """Parse the options of bodies among those of a source.

    Raises:
        ConfigError: an option is unknown, invalid, without effect or missing; the message names the option and the remedy.
    """
    given = {name: text for name, text in options.items() if is_body_option(name)}
    parsed = BodyOptions(**parse_options(given, format_name, BodyOptions, READERS))
    _reject_ineffective(parsed, given)
    return parsed


def _reject_ineffective(options: BodyOptions, given: Mapping[str, str]) -> None:
    fixes = {
        "body_schema": (options.body_format == "text", "bodies in text have no schema"),
        "body_message": (options.body_format != "protobuf", "only bodyFormat=protobuf has message types"),
        "body_framing": (options.body_format == "text", "bodies in text have no frame"),
        "schema_registry": (
            options.body_format not in _AVRO, "only Avro needs the schema of the writer: set bodyFraming to skip the id of others"
        ),
        "schema_registry_auth": (not options.schema_registry, "has no effect without schemaRegistry"),
        "schema_registry_ids": (
            api_version(options.schema_registry) is None, "only for Apicurio's own protocol, …/apis/registry/v2 or v3"
        ),
    }  # fmt: skip
    if given and not options.body_format:
        name = next(iter(given))
        raise ConfigError(
            name, Secret("..."), f"has no effect without bodyFormat: expected one of {', '.join(_FORMATS)}"
        )
    for field in msgspec.structs.fields(options):
        is_ineffective, reason = fixes.get(field.name, (False, ""))
        if is_ineffective and getattr(options, field.name) != field.default:
            raise ConfigError(camel_case(field.name), getattr(options, field.name), f"{reason}: remove it")
    if options.body_format in _AVRO and options.framing != "none" and not options.schema_registry:
        raise ConfigError(
            "schemaRegistry", "", "is required: the id in front of a body names the schema of its writer there"
        )
    if options.body_format in _AVRO and options.schema_registry and options.framing == "none":
        raise ConfigError("bodyFraming", "none", "has no id to look up: remove it, or schemaRegistry")
    if options.body_format == "protobuf" and not options.body_message:
        raise ConfigError("bodyMessage", "", "is required: the full name of the message type, such as shop.Order")
    if options.body_format in (*_AVRO, "protobuf") and not options.body_schema:
        expected = (
            "a file with a descriptor set" if options.body_format == "protobuf" else "a schema, a file or subject:NAME"
        )
        raise ConfigError("bodySchema", "", f"is required: {expected}")
    if options.body_schema.startswith(SUBJECT) and (
        options.body_format not in _AVRO or not options.schema_registry or api_version(options.schema_registry)
    ):
        raise ConfigError(
            "bodySchema",
            options.body_schema,
            "needs Avro and schemaRegistry with Confluent's protocol (Apicurio: …/ccompat/v7)",
        )


def read_file(path: str) -> bytes:
    """Read the file that bodySchema names; raise ConfigError if that fails."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError("bodySchema", path, f"cannot be read: {error.strerror}") from None
