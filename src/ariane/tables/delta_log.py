"""Delta log of a table: the versions of CURRENT in the form that Delta readers open.

    HOME/<table>/_delta_log/00000000000000000012.json                 a commit: one JSON per line for each file added or removed
    HOME/<table>/_delta_log/00000000000000000050.checkpoint.parquet   all files of a commit, every `CHECKPOINT_INTERVAL` commits
    HOME/<table>/_delta_log/_last_checkpoint                          number of the newest checkpoint

CURRENT is the truth and is written first. The last line of each commit names the version of CURRENT that it leads to. If that is
not the version before the next one (a crash between CURRENT and log, a table of an older Ariane, a foreign commit), the next commit
contains the difference between the whole log and CURRENT.

Files have only the number of their rows as statistics. Readers trust statistics of some columns as if they were of all
(decision 0017); the partition column `bucket` selects files by time.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import msgspec

from ariane.errors import StoreError
from ariane.tables.table import TableSchema, split_type
from ariane.tables.table_format import BUCKET, RETIRED_RETENTION_MS, DataFile, TableVersion, replace_file

if TYPE_CHECKING:
    import pyarrow as pa

DELTA_LOG = "_delta_log"
CHECKPOINT_INTERVAL = 50
LAST_CHECKPOINT = "_last_checkpoint"
# Partition column: the version directory of a file. polars rejects `v=…` directories without such a column.
WRITER = "v"
PARTITION_COLUMNS = (WRITER, BUCKET)
PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
# `txn` actions: the version of CURRENT, and the progress of its inputs (`TableVersion.applied`).
VERSION, AS_OF, APPLIED = "ariane/version", "ariane/as_of_ms", "ariane/applied/"

COMMIT_NAME = re.compile(r"(\d{20})\.json")
CHECKPOINT_NAME = re.compile(r"(\d{20})\.checkpoint\.parquet")
TYPES = {
    "STRING": "string", "BIGINT": "long", "INT": "integer", "DOUBLE": "double", "BOOLEAN": "boolean", "TIMESTAMP": "timestamp",
    "DATE": "date", "BINARY": "binary",
}  # fmt: skip


class _LogEnd(NamedTuple):
    """Where the log ends."""

    next_number: int  # of the next commit; that of the last one if a crash has cut it
    version: int | None
    """Version of CURRENT that the last commit leads to; None if it does not lead to one."""


class _LogState(NamedTuple):
    """The result of all commits."""

    paths: set[str]  # as in the log, percent-encoded
    metadata: dict[str, Any] | None  # the `metaData` action; None before the first commit


def record_version(
    home: Path, table: TableSchema, version: TableVersion, now_ms: int, *, former: TableVersion | None = None
) -> None:
    """Write the commit that leads to the version that CURRENT has; nothing if the log has it already.

    Args:
        former: the version before, if the caller has it: the whole log is not read if it ends there.

    Raises:
        StoreError: the log cannot be read.
    """
    log = home / table.name / DELTA_LOG
    log.mkdir(exist_ok=True)
    end = _log_end(log)
    if end.version == version.version:
        return
    if former is not None and end.version == former.version and former.schema == version.schema:
        actions = _changes(former, version, now_ms)
    else:
        actions = _repair(_read_log(log, end.next_number), table, version, now_ms)
    replace_file(
        log / f"{end.next_number:020d}.json", b"".join(msgspec.json.encode(action) + b"\n" for action in actions)
    )
    if end.next_number % CHECKPOINT_INTERVAL == 0 and end.next_number:
        _write_checkpoint(log, end.next_number, table, version, now_ms)
        _remove_old_entries(log, end.next_number)


def _changes(former: TableVersion, version: TableVersion, now_ms: int) -> Iterable[Mapping[str, Any]]:
    """Return the actions that lead from one version to another of the same schema."""
    former_paths, paths = ({file.path for file in of.files} for of in (former, version))
    added = [file for file in version.files if file.path not in former_paths]
    removed = [file.path for file in former.files if file.path not in paths]
    applied = {name: number for name, number in version.applied.items() if former.applied.get(name) != number}
    return _commit(version, added, map(_encoded, removed), applied, now_ms)


def _repair(state: _LogState, table: TableSchema, version: TableVersion, now_ms: int) -> Iterable[Mapping[str, Any]]:
    """Return the actions that lead from the state of a log to a version."""
    paths = {_encoded(file.path) for file in version.files}
    added = [file for file in version.files if _encoded(file.path) not in state.paths]
    metadata = _metadata(table, state.metadata, now_ms)
    head = [] if state.metadata else [{"protocol": PROTOCOL}]
    if metadata != state.metadata:
        head.append({"metaData": metadata})
    return chain(head, _commit(version, added, sorted(state.paths - paths), version.applied, now_ms))


def _commit(
    version: TableVersion, added: Sequence[DataFile], removed: Iterable[str], applied: Mapping[str, int], now_ms: int
) -> Iterable[Mapping[str, Any]]:
    # A compaction adds rows of former versions only. Streaming readers skip files without a change of data.
    is_change = not added or any(file.added_version == version.version for file in added)
    yield {"commitInfo": {"timestamp": now_ms, "operation": "WRITE", "operationParameters": {}, "engineInfo": "ariane"}}
    for path in removed:
        yield {"remove": {"path": path, "deletionTimestamp": now_ms, "dataChange": is_change}}
    for file in added:
        yield {"add": {**_add(file), "modificationTime": now_ms, "dataChange": is_change}}
    for name, number in _transactions(version, applied).items():
        yield {"txn": {"appId": name, "version": number, "lastUpdated": now_ms}}


def _transactions(version: TableVersion, applied: Mapping[str, int]) -> dict[str, int]:
    progress = {f"{APPLIED}{name}": number for name, number in applied.items()}
    as_of = {} if version.as_of_ms is None else {AS_OF: version.as_of_ms}
    return {**progress, **as_of, VERSION: version.version}  # VERSION comes last: it shows that the commit is complete


def _add(file: DataFile) -> dict[str, Any]:
    statistics = f'{{"numRecords":{file.rows}}}'
    return {"path": _encoded(file.path), "partitionValues": _partition(file), "size": file.bytes, "stats": statistics}


def _partition(file: DataFile) -> dict[str, str]:
    return {WRITER: str(int(file.path.partition("/")[0].removeprefix("v="))), BUCKET: file.bucket}


def _encoded(path: str) -> str:
    return quote(path, safe="/=")


def _metadata(table: TableSchema, former: Mapping[str, Any] | None, now_ms: int) -> dict[str, Any]:
    return {
        "id": former["id"] if former else str(uuid.uuid4()),
        "name": table.name,
        "description": table.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_string(table),
        "partitionColumns": list(PARTITION_COLUMNS),
        "configuration": {},
        "createdTime": former["createdTime"] if former else now_ms,
    }


def schema_string(table: TableSchema) -> str:
    """Return the columns of a table as JSON, as `metaData` has them."""
    columns = [(column.name, _delta_type(column.type), column.description) for column in table.columns]
    columns.append((WRITER, "long", "version of the table that wrote the file"))
    columns.append((BUCKET, "string", "rows are replaced by bucket: usually ten minutes, 2026-11-21T1020"))
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {"comment": description} if description else {}}
        for name, kind, description in columns
    ]
    return msgspec.json.encode({"type": "struct", "fields": fields}).decode()


def _delta_type(ddl: str) -> str | dict[str, Any]:
    if ddl in TYPES:
        return TYPES[ddl]
    kind, parts = split_type(ddl)
    if kind == "ARRAY":
        return {"type": "array", "elementType": _delta_type(parts[0]), "containsNull": True}
    if kind == "MAP":
        key, value = map(_delta_type, parts)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    split = (part.split(":", 1) for part in parts)
    fields = [
        {"name": name.strip(), "type": _delta_type(inner.strip()), "nullable": True, "metadata": {}}
        for name, inner in split
    ]
    return {"type": "struct", "fields": fields}


def _log_end(log: Path) -> _LogEnd:
    commits, checkpoints = _numbers(log, COMMIT_NAME), _numbers(log, CHECKPOINT_NAME)
    last = max(commits + checkpoints, default=-1)
    if last not in commits:
        return _LogEnd(last + 1, None)
    try:
        *_, marker = _read_commit(log, last)
    except (msgspec.DecodeError, ValueError):  # cut, or empty: no reader can have seen its version
        return _LogEnd(last, None)
    transaction = marker.get("txn", {})
    return _LogEnd(last + 1, transaction["version"] if transaction.get("appId") == VERSION else None)


def _numbers(log: Path, pattern: re.Pattern[str]) -> list[int]:
    return [int(match[1]) for path in log.iterdir() if (match := pattern.fullmatch(path.name))]


def _read_commit(log: Path, number: int) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (log / f"{number:020d}.json").read_bytes().splitlines()]


def _read_log(log: Path, end: int) -> _LogState:
    """Return the result of all commits before `end`.

    Raises:
        StoreError: one is missing or cannot be read.
    """
    checkpoint = max((number for number in _numbers(log, CHECKPOINT_NAME) if number < end), default=None)
    try:
        state = _LogState(set(), None) if checkpoint is None else _read_checkpoint(log, checkpoint)
        paths, metadata = state
        for number in range(0 if checkpoint is None else checkpoint + 1, end):
            for action in _read_commit(log, number):
                if "add" in action:
                    paths.add(action["add"]["path"])
                elif "remove" in action:
                    paths.discard(action["remove"]["path"])
                metadata = action.get("metaData", metadata)
    except (msgspec.DecodeError, OSError) as error:  # pyarrow's errors are OSErrors
        raise StoreError(
            f"Cannot read the Delta log {log}: {error}. Remove this directory; the pipeline writes it again from CURRENT."
        ) from error
    return _LogState(paths, metadata)


def _read_checkpoint(log: Path, number: int) -> _LogState:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    content = pq.read_table(log / f"{number:020d}.checkpoint.parquet", columns=["add", "metaData"])
    paths = pc.struct_field(content["add"], "path").drop_null().to_pylist()
    (metadata,) = content["metaData"].drop_null().to_pylist(maps_as_pydicts="strict")
    metadata["format"].setdefault("options", {})
    return _LogState(set(paths), metadata)


def _write_checkpoint(log: Path, number: int, table: TableSchema, version: TableVersion, now_ms: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = _read_log(log, number + 1).metadata
    assert metadata is not None
    transactions = [
        {"appId": name, "version": value, "lastUpdated": now_ms}
        for name, value in _transactions(version, version.applied).items()
    ]
    texts = pa.map_(pa.string(), pa.string())
    types = {
        "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
        "metaData": pa.struct({
            "id": pa.string(), "name": pa.string(), "description": pa.string(),
            "format": pa.struct({"provider": pa.string(), "options": texts}), "schemaString": pa.string(),
            "partitionColumns": pa.list_(pa.string()), "configuration": texts, "createdTime": pa.int64(),
        }),
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "remove": pa.struct({"path": pa.string(), "deletionTimestamp": pa.int64(), "dataChange": pa.bool_()}),
    }  # fmt: skip
    rows: dict[str, list[Any]] = {"protocol": [PROTOCOL], "metaData": [metadata], "txn": transactions, "remove": []}
    parts = [pa.table({name: pa.array(rows[name], kind)}) for name, kind in types.items()]
    content = pa.concat_tables([*parts, pa.table({"add": _added_files(version, now_ms)})], promote_options="default")
    buffer = pa.BufferOutputStream()
    pq.write_table(content, buffer, compression="zstd")
    replace_file(log / f"{number:020d}.checkpoint.parquet", buffer.getvalue().to_pybytes())
    replace_file(log / LAST_CHECKPOINT, msgspec.json.encode({"version": number, "size": content.num_rows}))


def _added_files(version: TableVersion, now_ms: int) -> pa.StructArray:
    """Return the `add` actions of all files. Built by column: there may be 50,000."""
    import pyarrow as pa

    files, count = version.files, len(version.files)
    values = list(chain.from_iterable(_partition(file).values() for file in files))
    width = len(PARTITION_COLUMNS)
    offsets = pa.array(range(0, width * count + 1, width), pa.int32())
    columns = {
        "path": pa.array([_encoded(file.path) for file in files], pa.string()),
        "partitionValues": pa.MapArray.from_arrays(
            offsets, pa.array(PARTITION_COLUMNS * count, pa.string()), pa.array(values)
        ),
        "size": pa.array([file.bytes for file in files], pa.int64()),
        "modificationTime": pa.array([now_ms] * count, pa.int64()),
        "dataChange": pa.array([False] * count, pa.bool_()),
        "stats": pa.array([_add(file)["stats"] for file in files], pa.string()),
    }
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def _remove_old_entries(log: Path, checkpoint: int) -> None:
    """Remove the commits and checkpoints before a checkpoint, except those that readers may be reading."""
    # By the clock of the file system, as the files' times are.
    newest_s = time.time() - RETIRED_RETENTION_MS / 1000
    for path in log.iterdir():
        match = COMMIT_NAME.fullmatch(path.name) or CHECKPOINT_NAME.fullmatch(path.name)
        if match and int(match[1]) < checkpoint and path.stat().st_mtime < newest_s:
            path.unlink()
