"""Exports journeys from the pipeline's tables over OTLP, each span once. Reads Parquet files, without Spark.

    JOURNEYS ─ buckets that changed ─ messages without a `traceparent` ─→ journey_spans ─→ SpanExporter

HOME/otel/progress.json    version of JOURNEYS up to which everything is exported
HOME/otel/BUCKET.ids       8 bytes per exported span of a bucket; removed with the bucket

A crash between an export and its record repeats the export, with the same span ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from ariane.errors import ArianeError
from ariane.otel.journey_spans import journey_spans, span_key
from ariane.reports.tables import table_views
from ariane.tables import JOURNEYS, MESSAGES, table_format
from ariane.tables.table_home import Home
from ariane.tables.table_store import open_store, read_version

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

DIRECTORY = "otel"
SPANS_AT_ONCE = 512  # per request, the default of OpenTelemetry's own batches
KEY_SIZE = 8

# A message whose clients propagate a context has spans already. Only messages whose record was read are known not to.
_QUERY = """
SELECT journeys.* FROM journeys SEMI JOIN (
  SELECT message_id FROM messages GROUP BY message_id HAVING NOT bool_or(coalesce(len(properties['traceparent']), 0) > 0)
) AS untraced USING (message_id)
"""


class ExportProgress(msgspec.Struct, frozen=True):
    """Content of progress.json."""

    journeys_version: int = 0


class JourneyExporter:
    """Exports journeys that were not exported before.

    Args:
        home: Directory of the tables.
        exporter: Where the spans go, for example OTLPSpanExporter("http://127.0.0.1:4318/v1/traces").
    """

    def __init__(self, home: Home, exporter: SpanExporter) -> None:
        self._home = home
        self._directory = open_store(home).local_dir / DIRECTORY
        self._exporter = exporter

    def export_new(self) -> int:
        """Export the spans of all journeys that changed, and return their number.

        Raises:
            ArianeError: the collector did not accept spans; they are exported by the next call.
        """
        version = read_version(self._home, JOURNEYS)
        done = self._read_progress()
        if version is None or version.version == done.journeys_version:
            return 0
        changed = {file.bucket for file in version.files if file.added_version > done.journeys_version}
        exported = sum(self._export_bucket(bucket) for bucket in sorted(changed))
        self._remove_expired({file.bucket for file in version.files})
        self._directory.mkdir(parents=True, exist_ok=True)
        progress = msgspec.json.encode(ExportProgress(version.version))
        table_format.replace_file(self._directory / "progress.json", progress)
        return exported

    def _export_bucket(self, bucket: str) -> int:
        ids_file = self._directory / f"{bucket}.ids"
        keys = ids_file.read_bytes() if ids_file.exists() else b""
        # A crash may have left a part of a key at the end.
        exported = {keys[start : start + KEY_SIZE] for start in range(0, len(keys) // KEY_SIZE * KEY_SIZE, KEY_SIZE)}
        count = 0
        spans = self._new_spans(bucket, exported)
        while batch := list(islice(spans, SPANS_AT_ONCE)):
            if self._exporter.export(batch) is not SpanExportResult.SUCCESS:
                raise ArianeError(
                    f"the collector did not accept {len(batch)} spans of {bucket}; check its address and log"
                )
            self._directory.mkdir(parents=True, exist_ok=True)
            with ids_file.open("r+b" if ids_file.exists() else "wb") as file:
                file.seek(0, 2)
                file.truncate(file.tell() // KEY_SIZE * KEY_SIZE)
                file.seek(0, 2)
                file.write(b"".join(map(span_key, batch)))
            count += len(batch)
        return count

    def _new_spans(self, bucket: str, exported: set[bytes]) -> Iterator[ReadableSpan]:
        for row in self._rows(bucket):
            for span in journey_spans(row):
                key = span_key(span)
                if key not in exported:
                    exported.add(key)  # the rows of several groups share the span of the send
                    yield span

    def _rows(self, bucket: str) -> Iterable[dict[str, Any]]:
        parts = (table_views.files_of_buckets(table, {bucket}) for table in (JOURNEYS, MESSAGES))
        with table_views.open_views(self._home, *parts) as sql:
            return table_views.query(sql, _QUERY)

    def _remove_expired(self, buckets: set[str]) -> None:
        for path in self._directory.glob("*.ids"):
            if path.stem not in buckets:
                path.unlink()

    def _read_progress(self) -> ExportProgress:
        path = self._directory / "progress.json"
        return msgspec.json.decode(path.read_bytes(), type=ExportProgress) if path.exists() else ExportProgress()
