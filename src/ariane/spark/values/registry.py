"""Schemas from a registry: Confluent's protocol, and Apicurio's own of versions 2 and 3.

    Confluent    /schemas/ids/17, /subjects/orders-value/versions/latest      (Apicurio: /apis/ccompat/v7)
    Apicurio     /ids/globalIds/17, /ids/contentIds/17, …/references          below /apis/registry/v2 or v3

Schemas are immutable, so each process keeps those it has seen. An unavailable registry is an error of the query, never a null: only
an id that the registry does not know is a fault of the body.
"""

from __future__ import annotations

import base64
import http.client
import os
import random
import re
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from ariane.errors import ArianeError, ConfigError

TIMEOUT_S = 10.0
ATTEMPTS = 4
FIRST_DELAY_S = 0.25
RESPONSE_BYTES_MAX = 16 * 1024 * 1024
SCHEMAS_MAX = 1024  # schemas that a process keeps
REFERENCES_MAX = 200  # of one schema, including those of its references
TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})

SchemaIds = Literal["schemas", "globalIds", "contentIds"]


class RegistryUnavailable(ArianeError):
    """The registry did not give a usable response in any of several attempts."""


class UnknownSchema(ArianeError):
    """The registry does not have the schema."""


class SchemaRegistry(msgspec.Struct, frozen=True, kw_only=True):
    """Where schemas are looked up. Contains no secret: `auth` says where the executors find it."""

    url: str
    """Base URL."""
    ids: SchemaIds
    """What the ids in bodies identify: schemas in Confluent's protocol, otherwise Apicurio's kinds of ids."""
    auth: str = ""
    """`env:NAME` or `file:/path`; its content is `user:password`, or a whole header such as `Bearer …`."""

    def describe(self, schema_id: int) -> str:
        kind = "schema id" if self.ids == "schemas" else self.ids.removesuffix("s")
        return f"{kind} {schema_id}"


class SchemaText(NamedTuple):
    """A schema, and the schemas that it refers to, each after those that it needs itself."""

    text: str
    references: tuple[str, ...] = ()


def api_version(url: str) -> int | None:
    """Return the version of Apicurio's own protocol, or None for Confluent's."""
    version = re.search(r"/apis/registry/v([23])(/|$)", url)
    return int(version[1]) if version else None


@lru_cache(SCHEMAS_MAX)
def fetch_schema(registry: SchemaRegistry, schema_id: int) -> SchemaText:
    """Return the schema with an id.

    Raises:
        UnknownSchema: the registry does not have it, or a schema that it refers to.
        RegistryUnavailable: the registry did not respond, or rejected the request.
        ConfigError: the credentials cannot be read.
    """
    client = _Client(registry)
    description = registry.describe(schema_id)
    if registry.ids == "schemas":
        return client.confluent(f"/schemas/ids/{schema_id}", description)
    path = f"/ids/{registry.ids}/{schema_id}"
    return client.apicurio(path, f"{path}/references", description)


def fetch_latest(registry: SchemaRegistry, subject: str) -> SchemaText:
    """Return the latest schema of a subject, in Confluent's protocol; raises as `fetch_schema`."""
    return _Client(registry).confluent(f"/subjects/{quote(subject, safe='')}/versions/latest", f"subject {subject}")


class _Client:
    """Requests for one schema and its references."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._url = registry.url.rstrip("/")
        self._headers = {"Accept": "application/json, */*"}
        if registry.auth:
            self._headers["Authorization"] = _authorization(registry.auth)
        # Paths of referenced schemas → texts, in the order in which they have to be parsed.
        self._seen: dict[str, str] = {}

    def confluent(self, path: str, what: str) -> SchemaText:
        text = self._confluent(path, what)
        return SchemaText(text, tuple(self._seen.values()))

    def apicurio(self, path: str, references: str, what: str) -> SchemaText:
        text = self._apicurio(path, references, what)
        return SchemaText(text, tuple(self._seen.values()))

    def _confluent(self, path: str, what: str) -> str:
        response = self._json(path, what)
        if not isinstance(response, dict) or not isinstance(response.get("schema"), str):
            raise RegistryUnavailable(f"{self._url}{path}: the response has no schema: is this the URL of a registry?")
        for reference in response.get("references") or ():
            inner = f"/subjects/{quote(str(reference['subject']), safe='')}/versions/{reference['version']}"
            self._follow(inner, f"{what}: reference {reference['name']}", self._confluent)
        return str(response["schema"])

    def _apicurio(self, path: str, references: str, what: str) -> str:
        text = self._get(path, what).decode()
        for reference in self._json(references, what) or ():
            group, artifact, version = (
                quote(str(reference.get(name) or "default"), safe="") for name in ("groupId", "artifactId", "version")
            )
            inner = f"/groups/{group}/artifacts/{artifact}/versions/{version}"
            content = f"{inner}/content" if api_version(self._url) == 3 else inner
            self._follow(
                content,
                f"{what}: reference {reference.get('name')}",
                lambda at, name, inner=inner: self._apicurio(at, f"{inner}/references", name),
            )
        return text

    def _follow(self, path: str, what: str, fetch: Any) -> None:
        if path in self._seen:
            return
        if len(self._seen) >= REFERENCES_MAX:
            raise UnknownSchema(f"{what}: a schema with more than {REFERENCES_MAX} references is not supported")
        self._seen[path] = ""  # a reference to itself ends here
        text = fetch(path, what)
        del self._seen[path]
        self._seen[path] = text

    def _json(self, path: str, what: str) -> Any:
        try:
            return msgspec.json.decode(self._get(path, what))
        except msgspec.DecodeError as error:
            raise RegistryUnavailable(f"{self._url}{path}: the response is not JSON: {error}") from None

    def _get(self, path: str, what: str) -> bytes:
        """Return the body of the response; repeat the request while the fault may be transient."""
        fault = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                # Executors ask at the same time: a random part spreads their retries.
                time.sleep(FIRST_DELAY_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))  # noqa: S311 (no secret)
            try:
                status, content = _request(self._url, path, self._headers)
            except (OSError, http.client.HTTPException) as error:
                fault = f"{type(error).__name__}: {error}"
                continue
            if status == http.HTTPStatus.OK:
                return content
            if status == http.HTTPStatus.NOT_FOUND:
                raise UnknownSchema(f"{what} is not known to the registry {self._url}")
            fault = f"status {status}"
            if status not in TRANSIENT_STATUS:
                break
        hint = "; check schemaRegistryAuth" if fault in ("status 401", "status 403") else ""
        raise RegistryUnavailable(f"{what}: the registry {self._url} failed ({fault}){hint}")


def _request(url: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """Send a request. Redirects are not followed: they would send the credentials to another server."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", parts.path + path, headers=headers)
        response = connection.getresponse()
        content = response.read(RESPONSE_BYTES_MAX + 1)
        if len(content) > RESPONSE_BYTES_MAX:
            raise http.client.HTTPException(f"the response has more than {RESPONSE_BYTES_MAX} bytes")
        return response.status, content
    finally:
        connection.close()


def _authorization(source: str) -> str:
    kind, _, name = source.partition(":")
    if kind == "env":
        if name not in os.environ:
            raise ConfigError("schemaRegistryAuth", source, "this variable is not set on every machine that reads")
        secret = os.environ[name]
    else:
        try:
            secret = Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError("schemaRegistryAuth", source, f"cannot be read: {error.strerror}") from None
    secret = secret.strip()
    if not secret.isprintable() or not secret:
        raise ConfigError("schemaRegistryAuth", source, "expected one line: user:password, or Bearer and a token")
    if secret.startswith(("Bearer ", "Basic ")):
        return secret
    return "Basic " + base64.b64encode(secret.encode()).decode()
