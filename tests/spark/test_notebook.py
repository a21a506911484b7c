"""docs/notebooks/ is current: the cells run and reproduce the stored outputs."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import re
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ariane.clock import ms_of
from ariane.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTEBOOKS = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
CONNECTOR, TABLES = "rocketmq-in-spark.ipynb", "read-the-tables.ipynb"
VARIES = "varies"  # a cell with this tag says something else each time: costs, times
FIRST_ORDER = datetime(2026, 11, 21, 10, 12, tzinfo=UTC)
OUTPUT_MAX = 4_000  # characters of one output
# Absolute paths but those below /data, which stand for the reader's own; hosts but this machine's.
PLACE = re.compile(r"(?<![\w.~])/(?!data/)[a-z]+/[\w.]+|\b(?!127\.0\.0\.1)\d+\.\d+\.\d+\.\d+\b|https?://")


def cells(name: str) -> list[dict[str, Any]]:
    """Return the cells of a notebook that have code."""
    notebook: dict[str, list[dict[str, Any]]] = json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def source(cell: Mapping[str, Any]) -> str:
    return "".join(cell["source"])


def stored(cell: Mapping[str, Any]) -> str:
    """Return the output of a cell and the value of its last line."""
    texts = [
        item["text"] if item["output_type"] == "stream" else item["data"]["text/plain"] for item in cell["outputs"]
    ]
    return "".join("".join(text) for text in texts)


async def run(text: str, names: dict[str, Any]) -> tuple[str, object]:
    """Return the output of a cell and the value of its last line, with top-level `await`, as Jupyter does."""
    tree = ast.parse(text)
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        for part, mode in ((tree, "exec"), (last, "eval")):
            if part is not None:
                code = compile(part, "<cell>", mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                value = eval(code, names)
                if inspect.iscoroutine(value):
                    value = await value
    return printed.getvalue(), value


async def run_all(name: str, names: dict[str, Any]) -> None:
    """Run the cells of a notebook and compare their outputs."""
    for cell in cells(name):
        number = cell["execution_count"]
        try:
            printed, value = await run(source(cell), names)
        except Exception as error:
            error.add_note(f"in cell {number}:\n{source(cell)}")
            raise
        if VARIES not in cell["metadata"].get("tags", ()):
            assert printed + ("" if value is None else repr(value)) == stored(cell), f"cell {number}"


@pytest.mark.long(
    "tests/spark/test_source.py::test_a_batch_reads_all_messages_with_all_columns",
    "tests/spark/test_notebook.py::test_stored_outputs_contain_no_error_and_no_path",
)
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_cell_reproduces_its_stored_output(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    with LocalCluster(tmp_path, trace_topic_enable=True) as servers:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the notebook keeps its files
        monkeypatch.setenv("NAMESRV", servers.namesrv)
        monkeypatch.setenv("STORE", str(tmp_path / "store"))
        asyncio.run(run_all(CONNECTOR, names))
    assert names["spark"].range(3).count() == 3, "the notebook leaves the session to the reader"


@pytest.mark.long(
    "tests/spark/test_table_engines.py::test_every_engine_reads_each_row_once",
)
@pytest.mark.spark
def test_four_engines_read_the_tables_by_their_documentation(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("deltalake", "duckdb", "pandas", "polars"):
        pytest.importorskip(package, reason=f"needs {package}: pip install {package}")
    publish_tables(tmp_path)
    monkeypatch.setenv("TABLES", str(tmp_path))
    asyncio.run(run_all(TABLES, {"__name__": "__main__"}))


def publish_tables(home: Path) -> None:
    """Publish `traffic` and `journeys` of ten orders that two groups consume, in two versions; one call fails."""
    import pyarrow as pa

    from ariane.pipeline.publishing import table_publisher
    from ariane.tables import JOURNEYS, TRAFFIC
    from ariane.tables.arrow_types import arrow_schema
    from ariane.tables.time_buckets import bucket_of_time

    for version, orders in enumerate((range(6), range(6, 10))):
        added: dict[str, dict[str, list[dict[str, Any]]]] = {TRAFFIC.name: {}, JOURNEYS.name: {}}
        for order in orders:
            sent_at = FIRST_ORDER + timedelta(minutes=2 * order)
            bucket = bucket_of_time(ms_of(sent_at))
            sent = {"minute": sent_at, "topic": "orders", "direction": "out", "client_group": "shop", "failures": 0}
            added["traffic"].setdefault(bucket, []).append(sent | {"messages": 1 + order % 3})
            for group, queueing_ms in (("billing", 5 + 7 * order % 11), ("stock", None if order == 4 else 3 * order)):
                failures = int(group == "billing" and order == 7)
                consumed = sent | {"direction": "in", "client_group": group, "messages": 1, "failures": failures}
                added["traffic"][bucket].append(consumed)
                added["journeys"].setdefault(bucket, []).append({
                    "message_id": f"M{order}", "consumer_group": group, "topic": "orders", "keys": f"order-{order}",
                    "sent_at": sent_at, "queueing_ms": queueing_ms, "consume_cost_ms": 2 + order, "attempts": 1,
                    "result": "exception" if failures else "success",
                })  # fmt: skip
        for table in (TRAFFIC, JOURNEYS):
            empty = dict.fromkeys(table.column_names)
            rows = {
                bucket: pa.Table.from_pylist([empty | row for row in listed], arrow_schema(table))
                for bucket, listed in added[table.name].items()
            }
            change = table_publisher.TableChange(rows=(rows,), applied={"traces": version})
            table_publisher.commit(home, table, change, ms_of(FIRST_ORDER))


@pytest.mark.parametrize("name", [CONNECTOR, TABLES])
def test_stored_outputs_contain_no_error_and_no_path(name: str) -> None:
    code = cells(name)
    assert len(code) >= 8
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run from top to bottom"
    for cell in code:
        for output in cell["outputs"]:
            assert output["output_type"] in ("stream", "execute_result"), source(cell)
            assert output.get("name") != "stderr", source(cell)
        assert len(stored(cell)) <= OUTPUT_MAX
        assert PLACE.findall(stored(cell)) == []
    assert any(stored(cell) for cell in code)


def test_paths_are_detected() -> None:
    assert PLACE.search("a file /srv/rows/part-0.parquet") and PLACE.search("at 10.0.0.17:10911")
    assert not PLACE.search("127.0.0.1:9876, 1/2, {'a': 1}, /data/rocketmq/store")
