"""Arrow arrays from the buffers that the native core decodes (`kernels.native_records`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ariane.kernels import implementation
from ariane.kernels.native_records import Buffers


class NativeColumns(NamedTuple):
    """Columns of some records."""

    arrays: dict[str, pa.Array]  # bodies as stored
    has_compressed: bool  # whether a body is compressed
    faults: list[tuple[int, bool]]  # damaged rows, and whether their properties end in zeros


def find_all(data: bytes) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Return the starts of the records that `data` consists of; None if Python has to decide."""
    records = implementation.native_records()
    starts = None if records is None else records.find_all(data)
    return None if starts is None else np.frombuffer(starts, np.int64)


def decode(
    data: bytes, starts: Any, types: Mapping[str, pa.DataType], *, checks_bodies: bool = False
) -> NativeColumns | None:
    """Decode the records at `starts` (at least one) to columns of `types`; None if Python has to decide."""
    records = implementation.native_records()
    if records is None:
        return None
    decoded = records.decode(data, starts.tobytes(), tuple(types), checks_bodies=checks_bodies)
    if decoded is None:
        return None
    arrays = {
        name: _array(kind, len(starts), nulls, buffers)
        for (name, kind), (nulls, buffers) in zip(types.items(), decoded.columns, strict=True)
    }
    return NativeColumns(arrays, decoded.has_compressed, decoded.faults)


def _array(kind: pa.DataType, rows: int, nulls: int, buffers: Buffers) -> pa.Array:
    wrapped = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    if not pa.types.is_map(kind):
        return pa.Array.from_buffers(kind, rows, wrapped, nulls)
    row_offsets, name_offsets, names, value_offsets, values = wrapped
    pairs = len(buffers[1] or b"") // 4 - 1
    return pa.MapArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), rows + 1, [None, row_offsets]),
        pa.Array.from_buffers(kind.key_type, pairs, [None, name_offsets, names]),
        pa.Array.from_buffers(kind.item_type, pairs, [None, value_offsets, values]),
    )
