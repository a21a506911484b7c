"""Stores the result of a replay: one row per message, in a file from which a later replay resumes.

FILE            Parquet (.parquet) or JSON lines (.jsonl): the last state of each message
FILE.journal    JSON lines in chronological order; merged into FILE at the end

A killed replay leaves its journal; the next one with the same FILE reads both. A torn last line is dropped: either the message
was not sent yet (it is sent after its line is on disk), or its outcome is unknown, and it is sent again.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from ariane.client.instance.client_instance import ClientInstance
from ariane.client.producer import Producer
from ariane.cluster.messages.replay import (
    OriginalMessage,
    ProducerTarget,
    RecordId,
    ReplayOutcome,
    ReplayPace,
    ReplayResult,
    replay,
)
from ariane.errors import ConfigError, StoreError
from ariane.reports.tables.table_views import sql_type

GROUP = "ARIANE_REPLAY"
SUFFIXES = (".parquet", ".jsonl")
COLUMNS = {
    "source_topic": "STRING",
    "source_broker": "STRING",
    "source_queue_id": "INT",
    "source_queue_offset": "BIGINT",
    "source_message_id": "STRING",
    "state": "STRING",
    "error": "STRING",
    "at_ms": "BIGINT",
    "topic": "STRING",
    "message_id": "STRING",
    "broker": "STRING",
    "queue_id": "INT",
    "queue_offset": "BIGINT",
    "offset_message_id": "STRING",
}
RECORD_COLUMNS = "source_topic, source_broker, source_queue_id, source_queue_offset"
BY_RECORD = f"PARTITION BY {RECORD_COLUMNS}"
# The decisive row of a message: success is final, and an outcome outranks "sending".
LATEST_OUTCOME = (
    f"QUALIFY row_number() OVER ({BY_RECORD} ORDER BY state = 'ok' DESC, at_ms DESC, state = 'sending') = 1"
)


async def replay_into(
    result: Path,
    originals: AsyncIterator[OriginalMessage],
    instance: ClientInstance,
    *,
    topic: str | None,
    rate: float,
    stop: asyncio.Event | None = None,
    on_progress: Callable[[ReplayResult], None] = lambda _: None,
) -> ReplayResult:
    """Replay messages to the cluster of `instance`, at `rate` messages per second, with the result in a file."""
    pace = ReplayPace(rate)
    with ResultFile(result) as journal:
        async with Producer(instance, GROUP) as producer:
            target = ProducerTarget(instance, producer)
            return await replay(originals, target, journal, topic=topic, pace=pace, stop=stop, on_progress=on_progress)


class ResultInUse(ConfigError):
    """Another replay writes its result to the file."""


class ResultFile:
    """The journal of a replay: `with ResultFile(path) as journal`. On exit it is merged into FILE. Locks out other replays."""

    def __init__(self, path: Path) -> None:
        if path.suffix not in SUFFIXES:
            raise ConfigError("--result", str(path), f"expected a file name that ends in {' or '.join(SUFFIXES)}")
        self._path = path
        self._journal_path = path.with_name(f"{path.name}.journal")
        self._journal: IO[bytes] | None = None
        self._done: set[RecordId] = set()
        self._tried: dict[RecordId, str] = {}

    def __enter__(self) -> Self:
        try:
            self._journal = self._journal_path.open("a+b")
        except OSError as error:
            raise ConfigError("--result", str(self._path), f"not writable: {error.strerror}") from error
        try:
            self._lock(self._journal)
            self._load(self._journal)
        except BaseException:
            self._journal.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._journal is not None
        with self._journal:
            if self._journal.seek(0, os.SEEK_END):
                self._merge()
            # Remove it while locked: a waiting replay then sees a journal without links and reads FILE.
            self._journal_path.unlink()

    def _lock(self, journal: IO[bytes]) -> None:
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ResultInUse(
                "--result", str(self._path), "in use by another replay; wait for it or use another file"
            ) from None
        if os.fstat(journal.fileno()).st_nlink == 0:  # another replay ended between open and flock
            raise ResultInUse("--result", str(self._path), "was in use by another replay: run the command again")

    def is_sent(self, record_id: RecordId) -> bool:
        return record_id in self._done

    def message_id_of(self, record_id: RecordId) -> str | None:
        return self._tried.get(record_id)

    def write(self, outcomes: list[ReplayOutcome]) -> None:
        assert self._journal is not None
        if not outcomes:
            return
        self._journal.write(b"".join(msgspec.json.encode(outcome) + b"\n" for outcome in outcomes))
        self._journal.flush()
        # Durable before the next messages are sent: what the journal lacks is sent a second time.
        os.fsync(self._journal.fileno())
        for outcome in outcomes:
            self._record(outcome.record_id, outcome.state, outcome.message_id)

    def _record(self, record_id: RecordId, state: str, message_id: str | None) -> None:
        if state == "ok":
            self._done.add(record_id)
            self._tried.pop(record_id, None)
        elif message_id is not None and record_id not in self._done:
            self._tried[record_id] = message_id

    def _load(self, journal: IO[bytes]) -> None:
        """Load the outcomes of earlier replays."""
        journal.seek(0)
        complete_bytes = 0
        for line in journal:
            if not line.endswith(b"\n"):
                break
            complete_bytes += len(line)
        # A line without its end was torn by a crash; the record that it describes counts as not sent.
        journal.truncate(complete_bytes)
        if not self._path.exists() and not complete_bytes:
            return
        import duckdb

        with duckdb.connect() as sql:
            response = self._execute(
                sql, f"SELECT {RECORD_COLUMNS}, state, message_id FROM ({self._all_outcomes()}) {LATEST_OUTCOME}"
            )
            while page := response.fetchmany(10_000):
                for *record_id, state, message_id in page:
                    self._record(RecordId(*record_id), state, message_id)

    def _merge(self) -> None:
        """Merge FILE and the journal into FILE, atomically."""
        import duckdb

        temporary = self._path.with_name(f".{self._path.name}.tmp")
        form = "PARQUET, COMPRESSION zstd" if self._path.suffix == ".parquet" else "JSON"
        with duckdb.connect() as sql:
            names = ", ".join(COLUMNS)
            last = f"SELECT {names} FROM ({self._all_outcomes()}) {LATEST_OUTCOME} ORDER BY {RECORD_COLUMNS}"
            self._execute(sql, f"COPY ({last}) TO {_quoted(temporary)} (FORMAT {form})")
        # The data before the name: after a power loss FILE must not be empty.
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(self._path)

    def _all_outcomes(self) -> str:
        """Return the query for all rows of both files."""
        columns = "{" + ", ".join(f"{name}: '{sql_type(kind)}'" for name, kind in COLUMNS.items()) + "}"

        def lines(path: Path) -> str:
            return f"SELECT * FROM read_json({_quoted(path)}, columns = {columns}, format = 'newline_delimited')"

        parts = [lines(self._journal_path)]
        if self._path.exists():
            is_parquet = self._path.suffix == ".parquet"
            parts.append(
                f"SELECT {', '.join(COLUMNS)} FROM read_parquet({_quoted(self._path)})"
                if is_parquet
                else lines(self._path)
            )
        return " UNION ALL BY NAME ".join(parts)

    def _execute(self, sql: Any, statement: str) -> Any:
        import duckdb

        try:
            return sql.execute(statement)
        except duckdb.Error as error:
            raise StoreError(f"{self._path} or its journal is not a valid replay result: {error}") from error


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
