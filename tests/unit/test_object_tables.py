"""Versions of tables in an object store; here in a directory, through the same calls of delta-rs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("deltalake", reason="needs deltalake: pip install 'ariane[objectstore]'")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")

import deltalake

from ariane.errors import StoreError
from ariane.tables import TRAFFIC
from ariane.tables.object_tables import ObjectTables, file_path
from ariane.tables.table_format import DataFile, TableVersion
from ariane.tables.table_home import ObjectHome, object_home

BUCKET = "2026-11-21T1020"


def publish(home: ObjectHome, former: TableVersion) -> TableVersion:
    """Add a file with one row; its progress is the number of files."""
    number = former.version + 1
    file = DataFile(file_path(number, BUCKET, number, 1, 1), BUCKET, 1, 9, number, 1, 1)
    version = former.replace(removed=lambda _: False, added=[file], retired=[], now_ms=1)
    version = msgspec.structs.replace(version, applied={"traces 1": len(version.files)})
    ObjectTables(home).publish(TRAFFIC, former, version, 1)
    return version


def test_a_version_that_is_read_during_commits_is_one_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs returns the information of commits that are newer than the opened table, too."""
    home = ObjectHome(tmp_path.as_uri(), tmp_path)
    first = publish(home, TableVersion.initial(TRAFFIC, 1))
    history = deltalake.DeltaTable.history

    def read_after_commits(table: Any, limit: int) -> Any:
        monkeypatch.undo()
        publish(home, publish(home, first))
        return history(table, limit)

    monkeypatch.setattr(deltalake.DeltaTable, "history", read_after_commits)
    version = ObjectTables(home).read_version(TRAFFIC)
    assert version is not None
    assert (version.version, version.rows, version.applied) == (first.version, 1, {"traces 1": 1})
    version = ObjectTables(home).read_version(TRAFFIC)
    assert version is not None
    assert (version.rows, version.applied) == (3, {"traces 1": 3})


def test_a_table_that_another_writer_created_a_second_ago_is_not_continued(tmp_path: Path) -> None:
    """Numbers of versions begin with the time: its version has the number from which the other writer starts."""
    home = ObjectHome(tmp_path.as_uri(), tmp_path)
    publish(home, TableVersion.initial(TRAFFIC, 1_000))
    with pytest.raises(StoreError, match="another pipeline is writing"):
        publish(home, TableVersion.initial(TRAFFIC, 2_000))
    version = ObjectTables(home).read_version(TRAFFIC)
    assert version is not None
    assert version.rows == 1


def test_a_vacuum_leaves_the_state_that_another_writer_commits_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = ObjectHome(tmp_path.as_uri(), tmp_path)
    first = publish(home, TableVersion.initial(TRAFFIC, 1))
    orphan = tmp_path / TRAFFIC.name / file_path(1, "2026-11-21.%RETRY%a b", 1, 1, 1)
    orphan.parent.mkdir(parents=True)
    orphan.touch()
    os.utime(orphan, (1, 1))
    vacuum = deltalake.DeltaTable.vacuum

    def commit_and_vacuum(table: Any, **values: Any) -> Any:
        monkeypatch.undo()
        publish(home, first)
        return vacuum(table, **values)

    monkeypatch.setattr(deltalake.DeltaTable, "vacuum", commit_and_vacuum)
    ObjectTables(home).recover(TRAFFIC, 1)
    assert not orphan.exists()
    version = ObjectTables(home).read_version(TRAFFIC)
    assert version is not None
    assert (version.rows, version.applied) == (2, {"traces 1": 2})


def test_a_file_that_a_writer_of_hdfs_left_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "status").mkdir()
    (tmp_path / "status" / ".traces.tmp.1").write_bytes(b"{")
    tables = ObjectTables(ObjectHome(tmp_path.as_uri(), tmp_path))
    tables.write_small_file("status/traces", b"{}")
    assert list(tables.read_small_files("status")) == [("traces", b"{}")]


def test_errors_name_the_home(tmp_path: Path) -> None:
    tables = ObjectTables(object_home("hdfs://127.0.0.1:1/tables", tmp_path))  # no server
    with pytest.raises(StoreError, match=r"^Cannot read hdfs://127.0.0.1:1/tables/traffic: .*Connection refused"):
        tables.read_version(TRAFFIC)
    with pytest.raises(StoreError, match=r"^Cannot read hdfs://127.0.0.1:1/tables/status: .*Connection refused"):
        list(tables.read_small_files("status"))
    with pytest.raises(
        StoreError, match=r"^Cannot write hdfs://127.0.0.1:1/tables/status/traces: .*Connection refused"
    ):
        tables.write_small_file("status/traces", b"{}")
