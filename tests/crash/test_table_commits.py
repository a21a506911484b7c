"""The Delta log of a table: always a version that was published, whatever a crash interrupts, and CURRENT's after the next start.

deltalake (delta-rs) reads the log, CURRENT is read by `table_format`: neither shares code with the writer of the log.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")
pytest.importorskip("deltalake", reason="needs deltalake: pip install deltalake")

import deltalake

from ariane.errors import StoreError
from ariane.pipeline.publishing import table_publisher
from ariane.pipeline.publishing.data_files import Target
from ariane.pipeline.publishing.directory_files import DirectoryFiles
from ariane.pipeline.publishing.table_publisher import TableChange
from ariane.tables import TRAFFIC, delta_log, table_format, table_store
from ariane.tables.table_format import DataFile, TableVersion

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
OLD, NEW, ODD = "2023-09-01T1000", "2023-11-14T2210", "2023-11-14.%RETRY%a b"
FRAME: Any = None  # files are written by a double


@pytest.fixture(autouse=True)
def _files_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(files: DirectoryFiles, target: Target, frame: object, rows: object) -> list[DataFile]:
        buckets, (table, number, added) = cast("list[str]", frame), target
        prefix = f"{table_format.version_directory(number)}/bucket"
        last_ms = NOW_MS - 70 * DAY_MS
        (files.home / table.name).mkdir(parents=True, exist_ok=True)
        return [
            DataFile(
                f"{prefix}={bucket.replace('%', '%25')}/part-{index}.parquet", bucket, 3, 9, added, last_ms, last_ms
            )
            for index, bucket in enumerate(buckets)
        ]

    monkeypatch.setattr(DirectoryFiles, "write", write)


def change(*buckets: str, **values: Any) -> TableChange:
    return TableChange(frame=list(buckets), **{"applied": {}, **values})  # type: ignore[arg-type]


def compact(home: Path, now_ms: int) -> None:
    former = table_store.read_version(home, TRAFFIC)
    assert former is not None
    merged = {file.path: file for file in former.files if file.bucket == NEW}
    added = max(file.added_version for file in merged.values())
    table_publisher.commit(home, TRAFFIC, change(NEW, replaced=merged, added_version=added), now_ms)


def commit(made: TableChange) -> Callable[[Path, int], object]:
    return lambda home, now_ms: table_publisher.commit(home, TRAFFIC, made, now_ms)


COMMITS: tuple[Callable[[Path, int], object], ...] = (
    commit(change(OLD, NEW, applied={"journeys": 1})),
    commit(change(NEW, ODD, applied={"journeys": 2, "clocks": 7})),
    commit(change(NEW, replaced=[ODD], applied={"journeys": 3})),
    compact,
    commit(change(as_of_ms=NOW_MS + 9)),
    lambda home, now_ms: table_publisher.expire(home, TRAFFIC, NEW, now_ms),
    commit(change(ODD)),
)


def current(home: Path) -> set[str]:
    version = table_store.read_version(home, TRAFFIC)
    return {file.path for file in version.files} if version else set()


def delta(home: Path) -> set[str]:
    """Return the files of the Delta table; empty if there is none."""
    directory = home / TRAFFIC.name
    try:
        uris = deltalake.DeltaTable(str(directory)).file_uris()
    except deltalake.exceptions.TableNotFoundError:
        return set()
    return {os.path.relpath(uri, directory) for uri in uris}


def restart(home: Path) -> None:
    with table_publisher.lock_tables(home, [TRAFFIC]):
        pass


class Crash(BaseException):
    """The process ends here."""


@contextmanager
def crash_after(operations: int) -> Iterator[list[str]]:
    """Let writes, renames and removals pass, and end the process in the one after these: a write leaves half of its bytes."""
    done: list[str] = []
    opened, replaced, unlinked = Path.open, Path.replace, Path.unlink

    def before(name: str, path: Path) -> None:
        done.append(f"{name} {path.name}")
        if len(done) > operations:
            raise Crash(done[-1])

    def open_to_write(path: Path, mode: str = "r", *of: Any, **values: Any) -> Any:
        if mode != "wb":
            return opened(path, mode, *of, **values)
        file = opened(path, mode)

        class Half:
            def __enter__(self) -> Half:
                return self

            def __exit__(self, *of: object) -> None:
                file.close()

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

            def write(self, content: bytes) -> None:
                file.write(content[: len(content) // 2])
                before("write", path)
                file.write(content[len(content) // 2 :])

        return Half()

    def replace(path: Path, target: Path) -> Path:
        before("rename", path)
        return replaced(path, target)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        before("unlink", path)
        unlinked(path, missing_ok=missing_ok)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", open_to_write)
        patch.setattr(Path, "replace", replace)
        patch.setattr(Path, "unlink", unlink)
        yield done


def test_a_crash_in_any_write_leaves_a_published_version_to_all_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "CHECKPOINT_INTERVAL", 3)
    monkeypatch.setattr(delta_log, "RETIRED_RETENTION_MS", 0)
    home, former_home = tmp_path / "tables", tmp_path / "former"
    home.mkdir()
    crashes = set()
    for number, next_commit in enumerate(COMMITS):
        former, operations = current(home), 0
        shutil.rmtree(former_home, ignore_errors=True)
        shutil.copytree(home, former_home)
        while True:
            try:
                with crash_after(operations) as done:
                    next_commit(home, NOW_MS + number)
                break
            except Crash as crash:
                crashes.add(str(crash))
            made = current(home)
            assert delta(home) in (former, made), f"commit {number}, {done[-1]}"
            restart(home)
            assert delta(home) == current(home) == made, f"commit {number}, {done[-1]}: after the next start"
            shutil.rmtree(home)
            shutil.copytree(former_home, home)
            operations += 1
        assert delta(home) == current(home) != former or number == 4, f"commit {number}"
    expected = {
        "write CURRENT.tmp",
        "rename CURRENT.tmp",
        "write _last_checkpoint.tmp",
        "unlink 00000000000000000001.json",
    }
    assert expected < crashes
    assert any(name.endswith("checkpoint.parquet.tmp") for name in crashes)


def filled(home: Path, commits: int = 3) -> Path:
    for next_commit in COMMITS[:commits]:
        next_commit(home, NOW_MS)
    return home / TRAFFIC.name / delta_log.DELTA_LOG


def test_commits_carry_progress_and_say_which_of_them_change_data(tmp_path: Path) -> None:
    log = filled(tmp_path, len(COMMITS))
    table = deltalake.DeltaTable(str(log.parent))
    version = table_store.read_version(tmp_path, TRAFFIC)
    assert version is not None
    markers = [
        table.transaction_version(f"ariane/{name}") for name in ("version", "applied/journeys", "applied/clocks")
    ]
    assert markers == [version.version, 3, 7]
    assert table.metadata().partition_columns == ["v", "bucket"]
    changes = [
        ('"dataChange":true' in text, '"dataChange":false' in text)
        for text in (p.read_text() for p in sorted(log.iterdir()))
    ]
    assert changes == [(True, False)] * 3 + [(False, True), (False, False)] + [(True, False)] * 2, (
        "only the compaction is none"
    )
    assert {row["partition"]["bucket"] for row in _adds(table)} == {NEW, ODD}


def _adds(table: Any) -> list[dict[str, Any]]:
    import pyarrow as pa

    return pa.table(table.get_add_actions()).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("part", ["nothing", "half", "whole lines"])
def test_a_cut_commit_is_replaced(tmp_path: Path, part: str) -> None:
    last = filled(tmp_path) / f"{2:020d}.json"
    content = last.read_bytes()
    cut = {"nothing": 0, "half": len(content) // 2, "whole lines": content.rindex(b"\n", 0, -1) + 1}[part]
    last.write_bytes(content[:cut])
    restart(tmp_path)
    assert delta(tmp_path) == current(tmp_path)
    COMMITS[3](tmp_path, NOW_MS)
    assert delta(tmp_path) == current(tmp_path)


def test_a_table_of_an_older_version_gets_its_log_without_moving_files(tmp_path: Path) -> None:
    log = filled(tmp_path)
    shutil.rmtree(log)
    directory, files = log.parent, current(tmp_path)
    content = (directory / table_format.CURRENT).read_bytes()
    restart(tmp_path)
    assert delta(tmp_path) == current(tmp_path) == files
    assert (directory / table_format.CURRENT).read_bytes() == content
    restart(tmp_path)
    assert [path.name for path in log.iterdir()] == [f"{0:020d}.json"], "nothing to write at the next start"


def test_a_foreign_commit_is_reverted(tmp_path: Path) -> None:
    log = filled(tmp_path)
    deltalake.DeltaTable(str(log.parent)).delete("bucket = '2023-11-14T2210'")
    assert delta(tmp_path) < current(tmp_path)
    COMMITS[4](tmp_path, NOW_MS)
    assert delta(tmp_path) == current(tmp_path)


def test_versions_that_an_older_writer_added_are_in_the_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, 1)
    with monkeypatch.context() as older:
        older.setattr(delta_log, "record_version", lambda *_, **__: None)
        filled(tmp_path, 4)
    COMMITS[4](tmp_path, NOW_MS)
    assert delta(tmp_path) == current(tmp_path)


def test_a_new_column_changes_the_schema_and_not_the_identity(tmp_path: Path) -> None:
    log = filled(tmp_path)
    former = deltalake.DeltaTable(str(log.parent)).metadata().id
    wider = TRAFFIC._replace(definitions={**TRAFFIC.definitions, "extra ARRAY<STRUCT<a: INT>>": "new"}, schema=99)
    table_publisher.commit(tmp_path, wider, change(NEW), NOW_MS)
    table = deltalake.DeltaTable(str(log.parent))
    assert (table.metadata().id, delta(tmp_path)) == (former, current(tmp_path))
    names = [field.name for field in table.schema().fields]
    assert names == [*TRAFFIC.column_names, "extra", "v", "bucket"]


def test_old_commits_are_removed_after_a_checkpoint_when_readers_no_longer_need_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "CHECKPOINT_INTERVAL", 2)
    log = filled(tmp_path, 4)
    assert len(list(log.glob("*.json"))) == 4, "all of them are recent"
    old_s = time.time() - table_format.RETIRED_RETENTION_MS / 1000 - 60
    for path in log.iterdir():
        os.utime(path, (old_s, old_s))
    COMMITS[4](tmp_path, NOW_MS)
    assert sorted(path.name for path in log.iterdir()) == [
        f"{4:020d}.checkpoint.parquet", f"{4:020d}.json", delta_log.LAST_CHECKPOINT,
    ]  # fmt: skip
    COMMITS[5](tmp_path, NOW_MS)
    assert delta(tmp_path) == current(tmp_path)


def test_a_log_with_a_gap_is_reported_with_a_remedy(tmp_path: Path) -> None:
    log = filled(tmp_path)
    (log / f"{1:020d}.json").unlink()
    (log / f"{2:020d}.json").write_bytes(b"{")
    with pytest.raises(StoreError, match=r"Cannot read the Delta log .*traffic/_delta_log: .*Remove this directory"):
        restart(tmp_path)


def test_a_version_that_is_recorded_twice_is_one_commit(tmp_path: Path) -> None:
    log = filled(tmp_path)
    version = table_store.read_version(tmp_path, TRAFFIC)
    assert isinstance(version, TableVersion)
    delta_log.record_version(tmp_path, TRAFFIC, version, NOW_MS)
    assert len(list(log.glob("*.json"))) == 3
