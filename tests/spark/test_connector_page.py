"""docs/connector.md: its code runs, its tables list every option and column, and its references exist."""

from __future__ import annotations

import ast
import asyncio
import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

from test_notebook import run

from ariane.cluster.admin import Admin
from ariane.spark.read.source_options import SourceOptions
from ariane.spark.records import record_columns
from ariane.spark.store import log_task as store_tasks
from ariane.spark.store.store_options import StoreOptions
from ariane.spark.values.body_options import BodyOptions
from ariane.spark.values.value_columns import VALUE, VALUE_ERROR
from ariane.spark.write import sink_options
from ariane.spark.write.sink_options import SinkOptions
from ariane.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "connector.md").read_text(encoding="utf-8")
SECTIONS = {section.partition("\n")[0]: section for section in PAGE.split("\n## ")}


def first_cells(section: str, head: str) -> set[str]:
    """Return the first-column names of the section's tables with that head."""
    names: set[str] = set()
    for table in re.findall(r"(?:^\|.*\n)+", SECTIONS[section], re.MULTILINE):
        if table.startswith(f"| {head} |"):
            for line in table.splitlines()[2:]:
                names |= set(re.findall(r"\w+", re.split(r"(?<!\\)\|", line)[1].replace(".load(`path`)", "")))
    return names


def written(members: Any) -> set[str]:
    return {re.sub(r"_(.)", lambda found: found[1].upper(), member) for member in members}


@pytest.mark.long(
    "tests/spark/test_connector_page.py::test_every_block_of_code_has_valid_names",
    "tests/spark/test_source.py::test_a_batch_reads_all_messages_with_all_columns",
    "tests/spark/test_sink.py::test_a_written_batch_is_read_back_with_all_columns",
)
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_block_of_code_runs(spark: SparkSession, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 7

    async def run_all(namesrv: str) -> None:
        async with Admin(namesrv) as admin:
            for topic in ("orders", "changes"):
                await admin.create_topic(topic, queues=2)
        names["stopped"] = asyncio.Event()
        asyncio.get_running_loop().call_later(60, names["stopped"].set)
        for block in blocks:
            if "stopped.wait()" in block:
                names["stopped"].set()
            text = block.replace("127.0.0.1:9876", namesrv).replace("/data/", f"{tmp_path}/")
            try:
                printed, _ = await run(text, names)
            except Exception as error:
                error.add_note(f"in the block\n{block}")
                raise
            shown.append(printed)

    names: dict[str, Any] = {}
    shown: list[str] = []
    with LocalCluster(tmp_path / "rocketmq") as servers:
        asyncio.run(run_all(servers.namesrv))
    spark.streams.removeListener(names["lag_listener"])
    assert "ORDER-17" in shown[0]
    assert any("{'orders': {'broker-a': {'0': 0, '1': 0}}}" in text for text in shown), "the lag in the end"
    assert spark.read.parquet(str(tmp_path / "orders")).count() == 2
    assert "ORDER-17" in shown[-1], "found in the store"


def test_every_block_of_code_has_valid_names() -> None:
    """Names that a block imports, formats, and options of both."""
    fields = (SourceOptions, BodyOptions, SinkOptions, StoreOptions)
    options = set().union(*(written(struct.__struct_fields__) for struct in fields), {"path", "checkpointLocation"})
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for node in ast.walk(compile(block, "block", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module or "")
                assert [name.name for name in node.names if not hasattr(module, name.name)] == [], block
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                constants = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
                if node.func.attr == "options":
                    assert {keyword.arg for keyword in node.keywords} - {None} <= options, block
                elif node.func.attr == "option":
                    assert constants[0] in options, block
                elif node.func.attr == "format":
                    assert constants[0] in {"rocketmq", "rocketmq-store", "parquet"}, block


def test_each_table_of_options_is_complete() -> None:
    aliases = {"nameServer", "subExpression", "group", "pullTimeoutMs"}
    of_bodies = written(BodyOptions.__struct_fields__)
    assert first_cells("Reading", "option") - aliases == written(SourceOptions.__struct_fields__) | of_bodies
    assert first_cells("Bodies", "option") == of_bodies
    assert first_cells("Writing", "option") - aliases == written(SinkOptions.__struct_fields__)
    assert first_cells("Store files", "option") - {"load"} == written(StoreOptions.__struct_fields__)


def test_each_table_of_columns_is_complete() -> None:
    assert first_cells("Reading", "column") == set(record_columns.COLUMNS) | {VALUE, VALUE_ERROR}
    assert first_cells("Writing", "column") == set(sink_options.COLUMNS)
    more = set(store_tasks.COLUMNS) - set(record_columns.COLUMNS)
    assert first_cells("Store files", "column") == more


def test_references_on_the_page_exist() -> None:
    names = set(re.findall(r"`((?:tests|benches)/[\w/.]+)`", PAGE)) | {
        f"docs/{link}" for link in re.findall(r"\]\(([\w/.-]+)\)", PAGE)
    }
    assert len(names) >= 4
    assert sorted(name for name in names if not (ROOT / name).exists()) == []
    for number in re.findall(r"docs/decisions/(\d+)", PAGE):
        assert list((ROOT / "docs" / "decisions").glob(f"{number}-*.md"))
