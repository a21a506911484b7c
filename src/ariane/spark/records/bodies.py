"""Bodies as producers gave them: stored compressed with zlib, LZ4 or ZSTD, expanded by `protocol.compression`.

What a body expands to is bounded there. What the bodies of one batch expand to is bounded here: a few hundred KB may hold GBs.
"""

from __future__ import annotations

import pyarrow as pa

from ariane.errors import ArianeError, ProtocolError
from ariane.model.message import COMPRESSED
from ariane.protocol import compression
from ariane.spark.records.layout import RecordHeader

ERROR_COLUMN = "body_error"
EXPANDED_BYTES_MAX = (
    compression.DECOMPRESSED_MAX
)  # bytes that compressed bodies of a batch expand to; one body has room in any case
_ADVICE = (
    f"leave body out of the schema, or add `{ERROR_COLUMN} STRING` to it: then such a body is null and this says why"
)


class BatchTooLarge(ArianeError):
    """The compressed bodies expand to more than a batch may hold: to be decoded in two halves."""


def expand_bodies(stored: pa.Array, header: RecordHeader, *, tolerant: bool) -> tuple[pa.Array, pa.Array]:
    """All bodies, and why one is null: only so with `tolerant`; else the first that cannot be expanded is a ProtocolError.
    TooMuch when those that are compressed have no room in a batch."""
    if not (header["sys_flag"] & COMPRESSED).any():
        return stored, pa.nulls(len(stored), pa.string())
    expanded: list[bytes | None] = stored.to_pylist()
    why: list[str | None] = [None] * len(expanded)
    size = 0
    for row in (header["sys_flag"] & COMPRESSED).nonzero()[0].tolist():
        try:
            expanded[row] = compression.decompress(expanded[row] or b"", int(header["sys_flag"][row]))
        except ProtocolError as error:
            if not tolerant:
                raise locate_error(error, header["queue_id"][row], header["queue_offset"][row]) from None
            expanded[row], why[row] = None, str(error)
        size += len(expanded[row] or b"")
        check_size(size)
    return pa.array(expanded, pa.binary()), pa.array(why, pa.string())


def check_size(size: int) -> None:
    """TooMuch when bodies that expand to `size` bytes have no room in a batch."""
    if size > EXPANDED_BYTES_MAX:
        raise BatchTooLarge(f"the bodies expand to more than {EXPANDED_BYTES_MAX} bytes")


def locate_error(error: ProtocolError, queue_id: int, queue_offset: int) -> ProtocolError:
    """`error` with the record it is about, and the way out."""
    return ProtocolError(f"queue {queue_id} offset {queue_offset}: {error}; {_ADVICE}")
