"""Framed Avro bodies against a registry: a scripted server that answers as Confluent's and Apicurio's do."""

from __future__ import annotations

import base64
import http.server
import io
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")
pytest.importorskip("fastavro", reason="needs fastavro: pip install 'ariane[bodies]'")

import fastavro
import pyarrow as pa
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from ariane.errors import ConfigError
from ariane.spark.records import record_columns
from ariane.spark.values import body_options, registry
from ariane.spark.values.registry import RegistryUnavailable, UnknownSchema
from ariane.spark.values.value_columns import declared_columns, value_columns


def record(name: str, **types: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in types.items()]}


FIRST = record("shop.Order", id="int", note="string")
SECOND = record("shop.Order", id="long", amount="double", note="string")
READER = record("shop.Order", id="long", amount="double")
READER["fields"][1]["default"] = -1.0
ADDRESS = record("shop.Address", city="string")
WITH_ADDRESS = record("shop.Order", id="long", address="shop.Address")


class ScriptedRegistry(http.server.ThreadingHTTPServer):
    """Answers the paths in `responses`; `failures` come first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.responses: dict[str, bytes] = {}
        self.failures: list[int] = []  # status codes of the next responses
        self.requests: list[tuple[str, str | None]] = []  # path and Authorization
        self.not_found = {"error_code": 40403, "message": "Schema not found"}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, path: str, content: Any) -> None:
        self.responses[path] = json.dumps(content).encode()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: ScriptedRegistry

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers["Authorization"]))
        content = self.server.responses.get(self.path)
        status = self.server.failures.pop(0) if self.server.failures else 200 if content is not None else 404
        if status != 200:
            content = json.dumps(self.server.not_found).encode()
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://127.0.0.1:1/")
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedRegistry]:
    monkeypatch.setattr(registry, "FIRST_DELAY_S", 0.0)
    registry.fetch_schema.cache_clear()
    with ScriptedRegistry() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def confluent(server: ScriptedRegistry, schemas: dict[int, Any]) -> None:
    for schema_id, schema in schemas.items():
        server.add(f"/schemas/ids/{schema_id}", {"schema": json.dumps(schema)})


def body(schema: Any, value: Any, schema_id: int, id_bytes: int = 4) -> bytes:
    stream = io.BytesIO(b"\0" + schema_id.to_bytes(id_bytes, "big"))
    stream.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


FIRST_BODY = body(FIRST, {"id": 1, "note": "a"}, 1)
SECOND_BODY = body(SECOND, {"id": 2, "amount": 9.5, "note": "b"}, 2)


def read(bodies: list[bytes], url: str, **options: str) -> list[dict[str, Any]]:
    """Return what a task reads from `bodies`."""
    given = {"bodyFormat": "avro", "bodySchema": json.dumps(READER), "schemaRegistry": url, **options}
    value = StructType([StructField("id", LongType()), StructField("amount", DoubleType())])
    schema = StructType([StructField("value", value), StructField("value_error", StringType())])
    columns = value_columns(body_options.parse(given, "rocketmq source"), schema, record_columns.COLUMNS)
    stored = pa.record_batch({"body": pa.array(bodies, pa.binary()), "body_error": pa.nulls(len(bodies), pa.string())})
    return [row for batch in columns.complete([stored]) for row in batch.to_pylist()]


def test_writers_evolve_and_the_schema_of_the_query_stays(server: ScriptedRegistry):
    confluent(server, {1: FIRST, 2: SECOND, 3: READER})
    third = body(READER, {"id": 3, "amount": 1.0}, 3)
    rows = read([FIRST_BODY, SECOND_BODY, third, FIRST_BODY], server.url)
    assert rows == [
        {"value": {"id": number, "amount": amount}, "value_error": None}
        for number, amount in ((1, -1.0), (2, 9.5), (3, 1.0), (1, -1.0))
    ]
    assert [path for path, _ in server.requests] == ["/schemas/ids/1", "/schemas/ids/2", "/schemas/ids/3"]
    read([FIRST_BODY], server.url)
    assert len(server.requests) == 3, "a process requests a schema once"


def test_an_unknown_id_is_a_fault_of_the_body_and_names_it(server: ScriptedRegistry):
    confluent(server, {1: FIRST})
    rows = read([FIRST_BODY, SECOND_BODY, SECOND_BODY], server.url)
    assert rows[0]["value"] == {"id": 1, "amount": -1.0}
    assert {row["value_error"] for row in rows[1:]} == {f"schema id 2 is not known to the registry {server.url}"}
    assert len(server.requests) == 2, "once for a task, not for each body"


def test_a_schema_that_the_reader_cannot_resolve_is_explained(server: ScriptedRegistry):
    confluent(server, {1: record("shop.Order", id="string")})
    (row,) = read([body(record("shop.Order", id="string"), {"id": "x"}, 1)], server.url)
    assert row["value"] is None
    assert "Schema" in row["value_error"]


def test_references_are_followed(server: ScriptedRegistry):
    reference = {"name": "shop.Address", "subject": "address-value", "version": 3}
    server.add("/schemas/ids/1", {"schema": json.dumps(WITH_ADDRESS), "references": [reference]})
    server.add("/subjects/address-value/versions/3", {"schema": json.dumps(ADDRESS), "id": 9})
    inline = record("shop.Order", id="long", address=ADDRESS)
    assert read([body(inline, {"id": 5, "address": {"city": "Kyoto"}}, 1)], server.url)[0]["value"] == {
        "id": 5,
        "amount": -1.0,
    }


@pytest.mark.parametrize(
    ("base", "path", "options", "id_bytes"),
    [
        ("/apis/registry/v2", "/ids/globalIds/7", {}, 8),
        ("/apis/registry/v3", "/ids/contentIds/7", {}, 4),
        (
            "/apis/registry/v3",
            "/ids/globalIds/7",
            {"schemaRegistryIds": "globalId", "bodyFraming": "apicurio-8-byte"},
            8,
        ),
    ],
)
def test_apicurios_own_protocol(server: ScriptedRegistry, base: str, path: str, options: dict[str, str], id_bytes: int):
    version = f"{base}/groups/default/artifacts/address/versions/1"
    server.add(base + path, WITH_ADDRESS)
    server.add(
        f"{base}{path}/references", [{"groupId": None, "artifactId": "address", "version": "1", "name": "shop.Address"}]
    )
    server.add(f"{version}/content" if base.endswith("v3") else version, ADDRESS)
    server.add(f"{version}/references", [])
    inline = record("shop.Order", id="long", address=ADDRESS)
    framed = body(inline, {"id": 5, "address": {"city": "Kyoto"}}, 7, id_bytes)
    assert read([framed], server.url + base, **options)[0]["value"] == {"id": 5, "amount": -1.0}
    unknown = body(inline, {"id": 5, "address": {"city": "Kyoto"}}, 8, id_bytes)
    kind = path.split("/")[2].removesuffix("s")
    assert read([unknown], server.url + base, **options)[0]["value_error"].startswith(f"{kind} 8 is not known")


def test_transient_faults_are_retried(server: ScriptedRegistry):
    confluent(server, {1: FIRST})
    server.failures = [503, 429, 500]
    assert read([FIRST_BODY], server.url)[0]["value"]["id"] == 1
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("failures", "reason"),
    [([503] * 4, "status 503"), ([401], "status 401.*schemaRegistryAuth"), ([302], "status 302")],
)
def test_an_unusable_registry_fails_the_query(server: ScriptedRegistry, failures: list[int], reason: str):
    confluent(server, {1: FIRST})
    server.failures = list(failures)
    with pytest.raises(RegistryUnavailable, match=f"schema id 1: the registry {server.url} failed .*{reason}"):
        read([FIRST_BODY], server.url)
    assert len(server.requests) == len(failures)


def test_a_registry_that_does_not_listen_fails_the_query(server: ScriptedRegistry):
    server.shutdown()
    server.server_close()
    with pytest.raises(RegistryUnavailable, match="ConnectionRefusedError"):
        read([FIRST_BODY], server.url)


def test_other_servers_are_recognised(server: ScriptedRegistry):
    server.responses["/schemas/ids/1"] = b"<html>"
    with pytest.raises(RegistryUnavailable, match="not JSON"):
        read([FIRST_BODY], server.url)
    server.add("/schemas/ids/1", ["hello"])
    with pytest.raises(RegistryUnavailable, match="is this the URL of a registry"):
        read([FIRST_BODY], server.url)


@pytest.mark.parametrize(
    ("secret", "header"),
    [("me:hunter2\n", "Basic " + base64.b64encode(b"me:hunter2").decode()), ("Bearer hunter2", "Bearer hunter2")],
)
def test_credentials_come_from_a_file_or_variable_and_are_never_shown(
    server: ScriptedRegistry, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, secret: str, header: str
):
    confluent(server, {1: FIRST})
    (tmp_path / "auth").write_text(secret)
    monkeypatch.setenv("REGISTRY_AUTH", secret)
    for source in (f"file:{tmp_path / 'auth'}", "env:REGISTRY_AUTH"):
        registry.fetch_schema.cache_clear()
        server.failures = [503]
        read([FIRST_BODY], server.url, schemaRegistryAuth=source)
        assert server.requests[-1] == ("/schemas/ids/1", header)
        server.failures = [401]
        with pytest.raises(RegistryUnavailable) as caught:
            read([SECOND_BODY], server.url, schemaRegistryAuth=source)
        assert "hunter2" not in repr(caught.value)


@pytest.mark.parametrize("source", ["env:NOT_SET", "file:/no/such/file"])
def test_missing_credentials_are_an_error(server: ScriptedRegistry, source: str):
    with pytest.raises(ConfigError, match="schemaRegistryAuth"):
        read([FIRST_BODY], server.url, schemaRegistryAuth=source)


def test_the_latest_schema_of_a_subject_can_be_the_readers(server: ScriptedRegistry):
    server.add("/subjects/orders-value/versions/latest", {"schema": json.dumps(READER), "version": 4, "id": 3})
    confluent(server, {1: FIRST})
    options = {"bodyFormat": "avro", "schemaRegistry": server.url, "bodySchema": "subject:orders-value"}
    declared = declared_columns(body_options.parse(options, "s"), "body BINARY")
    assert declared == "body BINARY, value struct<`id`: bigint, `amount`: double>, value_error STRING"
    assert read([FIRST_BODY], server.url, bodySchema="subject:orders-value")[0]["value"]["id"] == 1
    with pytest.raises(UnknownSchema, match="subject other is not known"):
        declared_columns(body_options.parse({**options, "bodySchema": "subject:other"}, "s"), "")
