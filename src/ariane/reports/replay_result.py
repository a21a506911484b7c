"""The result of a replay: one row per message, in a file that a later replay goes on from.

FILE            Parquet (name ends in .parquet) or JSON, one object a line: the last that is known of each message
FILE.journal    JSON lines in the order in which things happened, until they are merged into FILE in the end

A killed replay leaves its journal; the next one with the same FILE reads both. A last line that is torn was never acted upon
(a message is sent after its line is on disk), or tells of an answer that is then not known: that message is sent again.
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

from ariane.client.client_instance import ClientInstance
from ariane.client.producer import Producer
from ariane.cluster.replay import (
    OriginalMessage,
    ProducerTarget,
    RecordId,
    ReplayOutcome,
    ReplayPace,
    ReplayResult,
    replay,
)
from ariane.errors import ConfigError, StoreError
from ariane.reports.table_views import sql_type

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
PLACE = "source_topic, source_broker, source_queue_id, source_queue_offset"
# Of the rows of a message the one that counts: what was sent stays sent, and an answer is more than a beginning.
LAST = f"QUALIFY row_number() OVER (PARTITION BY {PLACE} ORDER BY state = 'ok' DESC, at_ms DESC, state = 'sending') = 1"


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
    """`replay` to the cluster of `instance`, `rate` messages a second, with a result in a file."""
    pace = ReplayPace(rate)
    with ResultFile(result) as journal:
        async with Producer(GROUP, instance=instance) as producer:
            target = ProducerTarget(instance, producer)
            return await replay(originals, target, journal, topic=topic, pace=pace, stop=stop, on_progress=on_progress)


class ResultFile:
    """`with ResultFile(path) as journal:` - the journal of a replay; leaving it writes FILE. One replay at a time."""

    def __init__(self, path: Path) -> None:
        if path.suffix not in SUFFIXES:
            raise ConfigError("--result", str(path), f"name a file that ends in {' or '.join(SUFFIXES)}")
        self._path = path
        self._journal_path = path.with_name(f"{path.name}.journal")
        self._journal: IO[bytes] | None = None
        self._done: set[RecordId] = set()
        self._tried: dict[RecordId, str] = {}

    def __enter__(self) -> Self:
        try:
            self._journal = self._journal_path.open("a+b")
        except OSError as error:
            raise ConfigError("--result", str(self._path), f"cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._journal.close()
            raise ConfigError("--result", str(self._path), "another replay is writing it") from None
        if os.fstat(self._journal.fileno()).st_nlink == 0:  # it ended between the two lines
            self._journal.close()
            raise ConfigError("--result", str(self._path), "another replay was writing it: run it again")
        self._load(self._journal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._journal is not None
        with self._journal:
            if self._journal.seek(0, os.SEEK_END):
                self._merge()
            # Removed while it is locked: who waits for it sees that FILE has it all.
            self._journal_path.unlink()

    def is_sent(self, place: RecordId) -> bool:
        return place in self._done

    def message_id_of(self, place: RecordId) -> str | None:
        return self._tried.get(place)

    def write(self, outcomes: list[ReplayOutcome]) -> None:
        assert self._journal is not None
        if not outcomes:
            return
        self._journal.write(b"".join(msgspec.json.encode(one) + b"\n" for one in outcomes))
        self._journal.flush()
        os.fsync(self._journal.fileno())
        for one in outcomes:
            self._keep(one.record_id, one.state, one.message_id)

    def _keep(self, place: RecordId, state: str, message_id: str | None) -> None:
        if state == "ok":
            self._done.add(place)
            self._tried.pop(place, None)
        elif message_id is not None and place not in self._done:
            self._tried[place] = message_id

    def _load(self, journal: IO[bytes]) -> None:
        """What earlier replays did."""
        journal.seek(0)
        whole = 0
        for line in journal:
            if not line.endswith(b"\n"):
                break
            whole += len(line)
        journal.truncate(whole)
        if not self._path.exists() and not whole:
            return
        import duckdb

        with duckdb.connect() as sql:
            answer = self._ask(sql, f"SELECT {PLACE}, state, message_id FROM ({self._every()}) {LAST}")
            while some := answer.fetchmany(10_000):
                for *place, state, message_id in some:
                    self._keep(RecordId(*place), state, message_id)

    def _merge(self) -> None:
        """FILE and journal to FILE, which is replaced at once."""
        import duckdb

        beside = self._path.with_name(f".{self._path.name}.tmp")
        form = "PARQUET, COMPRESSION zstd" if self._path.suffix == ".parquet" else "JSON"
        with duckdb.connect() as sql:
            names = ", ".join(COLUMNS)
            last = f"SELECT {names} FROM ({self._every()}) {LAST} ORDER BY {PLACE}"
            self._ask(sql, f"COPY ({last}) TO {_quoted(beside)} (FORMAT {form})")
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(self._path)

    def _every(self) -> str:
        """All rows of both files."""
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

    def _ask(self, sql: Any, question: str) -> Any:
        import duckdb

        try:
            return sql.execute(question)
        except duckdb.Error as error:
            raise StoreError(f"{self._path} and its journal are no result of a replay: {error}") from error


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
