"""Decompression of message bodies (zlib, LZ4, ZSTD) by `protocol.compression`.

That module limits the size of one body. This one limits the total of a batch, because a few hundred KB may expand to GBs.
"""

from __future__ import annotations

import pyarrow as pa

from ariane.errors import ArianeError, ProtocolError
from ariane.model.message import COMPRESSED
from ariane.protocol.records import compression
from ariane.spark.records.layout import RecordHeader
from ariane.spark.records.record_columns import ERROR_COLUMN

EXPANDED_BYTES_MAX = (
    compression.DECOMPRESSED_MAX
)  # total size of the expanded bodies of a batch; a single body always fits
_ADVICE = f"remove body from the schema, or add `{ERROR_COLUMN} STRING` to it to get a null body and the reason"


class BatchTooLarge(ArianeError):
    """The bodies expand to more than a batch may hold; the caller decodes the records in two parts."""


def expand_bodies(stored: pa.Array, header: RecordHeader, *, tolerant: bool) -> tuple[pa.Array, pa.Array]:
    """Return all bodies, expanded, and the reason for each null body.

    Args:
        stored: Bodies as stored.
        header: Fixed fields of their records.
        tolerant: Whether a body that cannot be expanded becomes null; otherwise it raises ProtocolError.

    Raises:
        BatchTooLarge: the expanded bodies exceed the limit of a batch.
    """
    if not has_compressed(header):
        return stored, pa.nulls(len(stored), pa.string())
    expanded: list[bytes | None] = stored.to_pylist()
    reasons: list[str | None] = [None] * len(expanded)
    size = 0
    for row in (header["sys_flag"] & COMPRESSED).nonzero()[0].tolist():
        try:
            expanded[row] = compression.decompress(expanded[row] or b"", int(header["sys_flag"][row]))
        except ProtocolError as error:
            if not tolerant:
                raise locate_error(error, header["queue_id"][row], header["queue_offset"][row]) from None
            expanded[row], reasons[row] = None, str(error)
        size += len(expanded[row] or b"")
        check_size(size)
    return pa.array(expanded, pa.binary()), pa.array(reasons, pa.string())


def has_compressed(header: RecordHeader) -> bool:
    """Return whether one of the bodies is compressed."""
    return bool((header["sys_flag"] & COMPRESSED).any())


def check_size(size: int) -> None:
    """Raise BatchTooLarge if `size` bytes of expanded bodies exceed the limit of a batch."""
    if size > EXPANDED_BYTES_MAX:
        raise BatchTooLarge(f"the bodies expand to more than {EXPANDED_BYTES_MAX} bytes")


def locate_error(error: ProtocolError, queue_id: int, queue_offset: int) -> ProtocolError:
    """Return `error` with the position of its record and what to do."""
    return ProtocolError(f"queue {queue_id} offset {queue_offset}: {error}; {_ADVICE}")
