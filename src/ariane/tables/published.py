"""The tables that the pipeline has published: which files are in them now, for any reader of Parquet. Never Spark.

HOME/<table>/CURRENT                                one line of JSON (`Published`), replaced by rename
HOME/<table>/v=00000012/slot=2026-11-21T1020/part-….parquet   files, never changed; in the table while CURRENT names them

What CURRENT does not name is half-written, replaced or of a writer that died: a reader that takes the files of the list sees
every row once. Files that leave the list stay on disk for `GRACE_MS`, for who has just read it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ariane.errors import StoreError
from ariane.tables import TableSchema

CURRENT = "CURRENT"
GRACE_MS = 600_000


class DataFile(msgspec.Struct, frozen=True):
    """A file of a table."""

    path: str
    """Under the table's directory."""
    slot: str
    """See `ariane.tables.time_buckets`."""
    rows: int
    bytes: int
    added: int
    """Version that brought these rows: what is merged out of others keeps their newest."""
    first_ms: int | None = None
    """Least and greatest time in it (the table's `time` column), ms since the epoch; None where no row has one."""
    last_ms: int | None = None


class RetiredFile(msgspec.Struct, frozen=True):
    """A file that has left the table, and when (ms since the epoch)."""

    path: str
    at_ms: int


class TableVersion(msgspec.Struct, frozen=True):
    """What CURRENT says."""

    version: int
    schema: int
    """`Table.schema` of who wrote last."""
    rows: int
    as_of_ms: int | None
    """Broker's time of the newest input that is in the table; None when nothing came yet."""
    files: tuple[DataFile, ...] = ()
    done: dict[str, int] = {}
    """Input → how far it is in the table: the last batch of a query, or the version of a table that was folded."""
    dropped: tuple[RetiredFile, ...] = ()


def current(home: Path, table: TableSchema) -> TableVersion | None:
    """The version that is published; None before the first. StoreError when the list cannot be read."""
    path = home / table.name / CURRENT
    try:
        return msgspec.json.decode(path.read_bytes(), type=TableVersion)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise StoreError(
            f"{path} is no list of files: {error}; remove {path.parent} and run the pipeline anew, it says what else"
        ) from error


def paths(home: Path, table: TableSchema, wanted: Callable[[DataFile], bool] = lambda _: True) -> list[Path]:
    """The files of a table, or those of them that are `wanted`; none before something was published."""
    now = current(home, table)
    return [home / table.name / file.path for file in now.files if wanted(file)] if now else []
