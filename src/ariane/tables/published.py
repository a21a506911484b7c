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
from ariane.tables import Table

CURRENT = "CURRENT"
GRACE_MS = 600_000


class File(msgspec.Struct, frozen=True):
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


class Dropped(msgspec.Struct, frozen=True):
    """A file that has left the table, and when (ms since the epoch)."""

    path: str
    at_ms: int


class Published(msgspec.Struct, frozen=True):
    """What CURRENT says."""

    version: int
    schema: int
    """`Table.schema` of who wrote last."""
    rows: int
    as_of_ms: int | None
    """Broker's time of the newest input that is in the table; None when nothing came yet."""
    files: tuple[File, ...] = ()
    done: dict[str, int] = {}
    """Input → how far it is in the table: the last batch of a query, or the version of a table that was folded."""
    dropped: tuple[Dropped, ...] = ()


def current(home: Path, table: Table) -> Published | None:
    """The version that is published; None before the first. StoreError when the list cannot be read."""
    path = home / table.name / CURRENT
    try:
        return msgspec.json.decode(path.read_bytes(), type=Published)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise StoreError(
            f"{path} is no list of files: {error}; remove {path.parent} and run the pipeline anew, it says what else"
        ) from error


def paths(home: Path, table: Table, wanted: Callable[[File], bool] = lambda _: True) -> list[Path]:
    """The files of a table, or those of them that are `wanted`; none before something was published."""
    now = current(home, table)
    return [home / table.name / file.path for file in now.files if wanted(file)] if now else []
