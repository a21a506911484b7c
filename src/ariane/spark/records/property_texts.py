"""Parses the properties of many records in one pass: finds all separators, and slices names and values out of one buffer.

    texts   KEYS 1 a 2 TAGS 1 b | TAGS 1 c | ...        1 and 2 are the characters U+0001 and U+0002, | the border of records
    pairs   KEYS=a     TAGS=b     TAGS=c

What counts as a pair, and which of two equal names wins, is defined by `protocol.properties.decode`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ariane.protocol.records import properties

_NAME_END, _PAIR_END = ord(properties.NAME_END), ord(properties.PAIR_END)
_MAP = pa.map_(pa.string(), pa.string())
# Up to this many distinct names, duplicates in a record are detected with one bit for each name; the sums fit into 64 bits.
_BITMASK_NAMES_MAX = 40


class PropertyTexts:
    """The property texts of some records, one for each, in valid UTF-8."""

    def __init__(self, texts: pa.Array) -> None:
        count = len(texts)
        self._texts = texts
        _, offsets, data = texts.buffers()
        ends = np.zeros(1, np.int32) if offsets is None else np.frombuffer(offsets, np.int32)
        ends = ends[texts.offset : texts.offset + count + 1]
        self._data = pa.py_buffer(b"") if data is None else data
        self._octets = np.frombuffer(self._data, np.uint8)[: int(ends[-1])] if count else np.zeros(0, np.uint8)
        marks = np.flatnonzero(self._octets <= max(_NAME_END, _PAIR_END))
        kinds = self._octets[marks]
        parted, self._name_ends = marks[kinds == _PAIR_END], marks[kinds == _NAME_END]
        # A segment ends at a pair separator or at the end of its record, whichever comes first.
        before = np.searchsorted(parted, ends[1:])
        stops = np.insert(parted, before, ends[1:])
        last = np.zeros(len(stops), bool)
        last[before + np.arange(count)] = True
        starts = np.empty_like(stops)
        if count:
            starts[0] = ends[0]
            starts[1:] = stops[:-1] + ~last[:-1]
        rows = np.cumsum(last) - last
        self._keep_pairs(starts, stops, rows)
        self._count = count

    def _keep_pairs(self, starts: Any, stops: Any, rows: Any) -> None:
        """Store the segments that are name-value pairs."""
        cut = self._name_ends
        if len(cut) != len(starts) or not ((starts < cut) & (cut + 1 < stops)).all():
            index = np.searchsorted(cut, starts)
            cut = np.append(cut, len(self._octets))[index]
            is_pair = (starts < cut) & (cut + 1 < stops)
            starts, stops, rows, cut = starts[is_pair], stops[is_pair], rows[is_pair], cut[is_pair]
        self._starts, self._name_stops, self._stops, self._rows = starts, cut, stops, rows
        self._lengths = cut - starts

    def values(self, name: str) -> pa.Array:
        """Return the property `name` of each record, null if missing."""
        encoded = name.encode()
        matches = np.flatnonzero(self._lengths == len(encoded))
        if len(matches):
            places = (len(self._octets) - len(encoded) + 1,)
            texts = np.ndarray(places, f"S{len(encoded)}", self._octets, 0, (1,))
            matches = matches[texts[self._starts[matches]] == encoded]
        rows = self._rows[matches]
        if len(rows) > 1 and not (is_last := np.append(rows[1:] != rows[:-1], True)).all():
            matches, rows = matches[is_last], rows[is_last]
        if not len(rows):
            return pa.nulls(self._count, pa.string())
        slices = self._slices(np.stack([self._name_stops[matches] + 1, self._stops[matches]], 1))
        which = np.zeros(self._count, np.int64)
        which[rows] = np.arange(0, 2 * len(rows), 2)
        absent = None
        if len(rows) < self._count:
            absent = np.ones(self._count, bool)
            absent[rows] = False
        return slices.take(pa.array(which, mask=absent))

    def maps(self) -> pa.Array:
        """Return all properties of each record."""
        list_offsets = np.arange(0, 4 * len(self._starts), 4)
        slices = self._slices(np.stack([self._starts, self._name_stops, self._name_stops + 1, self._stops], 1))
        names = slices.take(pa.array(list_offsets))
        if self._may_repeat(names):
            return pa.array([list(properties.decode(text).items()) for text in self._texts.to_pylist()], _MAP)
        offsets = np.zeros(self._count + 1, np.int32)
        np.cumsum(np.bincount(self._rows, minlength=self._count), out=offsets[1:])
        return pa.MapArray.from_arrays(pa.array(offsets), names, slices.take(pa.array(list_offsets + 2)))

    def _may_repeat(self, names: pa.Array) -> bool:
        """Return whether a record may contain a name twice: then the sum of its names' bits differs from their union."""
        if not len(names):
            return False
        encoded = names.dictionary_encode()
        if len(encoded.dictionary) > _BITMASK_NAMES_MAX:
            pairs = np.stack([self._rows, encoded.indices.to_numpy()], 1)
            return len(np.unique(pairs, axis=0)) < len(pairs)
        bits = np.left_shift(np.int64(1), encoded.indices.to_numpy().astype(np.int64))
        firsts = np.flatnonzero(np.append(True, self._rows[1:] != self._rows[:-1]))
        return bool((np.add.reduceat(bits, firsts) != np.bitwise_or.reduceat(bits, firsts)).any())

    def _slices(self, bounds: Any) -> pa.Array:
        """Cut the text at ascending `bounds`; every second slice is a gap that the caller skips."""
        edges = bounds.astype(np.int32).ravel()
        if not len(edges):
            return pa.array([], pa.string())
        return pa.Array.from_buffers(pa.string(), len(edges) - 1, [None, pa.py_buffer(edges), self._data])
