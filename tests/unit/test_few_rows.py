"""What changed since an earlier version of a table, by its files alone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ariane.pipeline.publishing import few_rows
from ariane.tables import TRANSACTIONS, table_format
from ariane.tables.table_format import DataFile, TableVersion

BUCKET = "2026-11-21T1020"
MESSAGE_ROWS = TRANSACTIONS  # a table with rows of messages


def rows_of(*ids: str) -> pa.Table:
    return pa.table({name: pa.array(ids, pa.string()) for name in MESSAGE_ROWS.column_names})


def version_of(*files: DataFile, number: int) -> TableVersion:
    return TableVersion(number, MESSAGE_ROWS.schema, 0, None, files=files)


def file_of(number: int, added_version: int | None = None) -> DataFile:
    path = f"v={number:08d}/bucket={BUCKET}/part-00000.zstd.parquet"
    return DataFile(path, BUCKET, 1, 1, added_version or number)


def test_rewritten_files_name_the_messages_that_differ_from_earlier_ones(tmp_path: Path) -> None:
    directory = tmp_path / MESSAGE_ROWS.name
    few_rows.write(directory / "v=00000001", MESSAGE_ROWS, {BUCKET: rows_of("a", "b", "c")})
    for number, changed in ((2, "a"), (3, "b")):
        former = version_of(file_of(number - 1), number=number - 1)
        (directory / table_format.CURRENT).write_bytes(msgspec.json.encode(former))
        merged = few_rows.merge(tmp_path, MESSAGE_ROWS, {BUCKET: {changed}}, {BUCKET: rows_of(changed)})
        few_rows.write(directory / f"v={number:08d}", MESSAGE_ROWS, merged)
    versions = {MESSAGE_ROWS.name: version_of(file_of(3), number=3)}

    def changed_since(number: int) -> dict[str, set[str]]:
        applied = {MESSAGE_ROWS.name: number}
        return few_rows.changed_messages(tmp_path, versions, applied, None, {MESSAGE_ROWS.name})

    assert changed_since(2) == {BUCKET: {"b"}}
    assert changed_since(1) == {BUCKET: {"a", "b"}}
    assert changed_since(0) == {}, "the first file was computed as a whole"
    (directory / file_of(1).path).unlink()
    assert changed_since(1) == {}, "the rows before the change are not on disk"


def test_rows_before_a_change_are_unknown_after_files_were_merged(tmp_path: Path) -> None:
    old, new = file_of(1), file_of(2)

    def paths(*files: DataFile) -> list[str] | None:
        version = version_of(*files, number=4)
        return few_rows.paths_of(tmp_path, version, BUCKET, 1, is_rewritten=False)

    assert paths(old, new) == [old.path]
    assert paths(new) == []
    assert paths(file_of(3, added_version=2)) is None
    assert paths(file_of(3, added_version=1), file_of(4)) == [file_of(3).path]


@pytest.mark.parametrize("numbers", [[], [3], [5, 6, 7, 2, 3, 9], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]])
def test_rows_are_taken_in_the_given_order(numbers: list[int]) -> None:
    rows = pa.table({"number": pa.array(range(10), pa.int64())})
    assert few_rows._take(rows, pa.array(numbers, pa.uint64()))["number"].to_pylist() == numbers


def test_no_message_has_no_rows(tmp_path: Path) -> None:
    pq.write_table(rows_of("a", "b"), tmp_path / "0.parquet")

    def count(*ids: str) -> int:
        return pq.read_table(tmp_path / "0.parquet", filters=few_rows.of_messages(ids)).num_rows

    assert [count("b"), count()] == [1, 0]


def test_rows_that_several_tables_need_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(rows_of("a", "b", "c"), path)
    rows = few_rows.rows_of_messages(path, frozenset({"a", "c"}))
    assert rows[few_rows.ID].to_pylist() == ["a", "c"]
    path.unlink()
    assert few_rows.rows_of_messages(path, frozenset({"c", "a"})) is rows


def test_rows_of_messages_are_released_after_a_round(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")
    from ariane.pipeline import jobs, run

    path = tmp_path / "rows.parquet"
    pq.write_table(rows_of("a"), path)
    few_rows.rows_of_messages(path, frozenset({"a"}))
    nothing = jobs.PipelineJob("nothing", (), ())
    runner = run.JobRunner(
        spark=cast(Any, None),
        job=nothing,
        streams={},
        home=tmp_path,
        settings=run.RunSettings(),
        stop=threading.Event(),
    )
    runner._round()
    assert few_rows.rows_of_messages.cache_info().currsize == 0
