"""Stored records as columns, in native code: the twin of `ariane.spark.records`, which decides about everything unusual.

    find_chain, find_all   bytes          → where records start
    decode                 starts         → buffers of Arrow columns, and the rows with damaged bodies

Every method returns None if Python has to decide: a record is unusual, or the native code failed, which only a bug of it can cause.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

COLUMN_SETS_MAX = 16  # decoders retained: a task decodes one set of columns

Buffers = list[bytes | None]


class RecordChain(NamedTuple):
    """The adjacent records at the start of some bytes of a log."""

    starts: bytes  # i64 each, in native byte order
    size: int  # bytes of the records
    may_have_replacement: bool  # of a corrupt range (`store.corrupt_ranges`)


class ColumnBuffers(NamedTuple):
    """Buffers of the columns of some records."""

    columns: list[tuple[int, Buffers]]  # number of nulls; validity (None without nulls), offsets of texts, values
    has_compressed: bool  # whether a body is compressed: bodies are returned as stored
    faults: list[tuple[int, bool]]  # rows that are damaged, ascending; whether their properties end in zeros


class NativeRecords:
    """Finds and decodes records with `ariane_native`.

    Args:
        on_failure: Called if the native code fails.
    """

    def __init__(self, module: Any, on_failure: Callable[[RuntimeError], None]) -> None:
        self._module = module
        self._on_failure = on_failure
        self._decoder = lru_cache(COLUMN_SETS_MAX)(lambda columns: module.ColumnDecoder(list(columns)))

    def find_chain(self, data: bytes, offset: int, limit: int) -> RecordChain | None:
        """Find the adjacent records at the start of `data`, which is stored at `offset` of a log; none ends after `limit`."""
        chain = self._call(lambda: self._module.find_chain(data, offset, max(limit, 0)))
        return None if chain is None else RecordChain._make(chain)

    def find_all(self, data: bytes) -> bytes | None:
        """Return the starts of the records that `data` consists of; None also if it contains anything else."""
        starts: bytes | None = self._call(lambda: self._module.find_all(data))
        return starts

    def decode(
        self, data: bytes, starts: bytes, columns: tuple[str, ...], *, checks_bodies: bool
    ) -> ColumnBuffers | None:
        """Decode records.

        Args:
            data: Bytes that contain the records.
            starts: Where they start, i64 each.
            columns: Names of columns that are stored in records.
            checks_bodies: Whether to report rows whose bodies do not have their CRC, or whose properties end in zeros.
        """
        buffers = self._call(lambda: self._decoder(columns).decode(data, starts, checks_bodies))
        return None if buffers is None else ColumnBuffers._make(buffers)

    def _call(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except RuntimeError as error:
            self._on_failure(error)
            return None
