"""docs/notebooks/rocketmq-in-spark.ipynb is current: its cells run and reproduce the stored outputs."""

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ariane.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebooks" / "rocketmq-in-spark.ipynb"
VARIES = "varies"  # a cell with this tag says something else each time: costs, times
OUTPUT_MAX = 4_000  # characters of one output
# Absolute paths but those below /data, which stand for the reader's own; hosts but this machine's.
PLACE = re.compile(r"(?<![\w.~])/(?!data/)[a-z]+/[\w.]+|\b(?!127\.0\.0\.1)\d+\.\d+\.\d+\.\d+\b|https?://")


def cells() -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return result


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


@pytest.mark.long(
    "tests/spark/test_source.py::test_a_batch_reads_all_messages_with_all_columns",
    "tests/spark/test_notebook.py::test_stored_outputs_contain_no_error_and_no_path",
)
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_cell_reproduces_its_stored_output(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_all() -> None:
        for number, cell in enumerate(cells()):
            if cell["cell_type"] != "code":
                continue
            try:
                printed, value = await run(source(cell), names)
            except Exception as error:
                error.add_note(f"in cell {number}:\n{source(cell)}")
                raise
            if VARIES not in cell["metadata"].get("tags", ()):
                assert printed + ("" if value is None else repr(value)) == stored(cell), f"cell {number}"

    names: dict[str, Any] = {"__name__": "__main__"}
    with LocalCluster(tmp_path, trace_topic_enable=True) as servers:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the notebook keeps its files
        monkeypatch.setenv("NAMESRV", servers.namesrv)
        monkeypatch.setenv("STORE", str(tmp_path / "store"))
        asyncio.run(run_all())
    assert names["spark"].range(3).count() == 3, "the notebook leaves the session to the reader"


def test_stored_outputs_contain_no_error_and_no_path() -> None:
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert len(code) >= 20
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
