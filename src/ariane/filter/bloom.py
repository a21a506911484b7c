"""The bloom filter with which 4.9.4 marks the groups that want a message: positions of `group#topic` in a bit map.

murmur3-128 x64 (seed 0) over UTF-8, its first half:  low 32 bits h1 | high 32 bits h2
position i (1..hashes) = h1 + i·h2 in signed 32-bit arithmetic, inverted when negative, modulo bits   [BloomFilter]
"""

from __future__ import annotations

from math import ceil, e, log
from struct import Struct
from typing import NamedTuple

# Python's integers do not overflow: the mask does what 64-bit arithmetic does by itself.
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_BLOCK = Struct("<QQ")


class Bloom(NamedTuple):
    """Parameters of a bloom filter; `sized` computes them."""

    hashes: int
    bits: int

    @classmethod
    def sized(cls, error_percent: int, groups: int) -> Bloom:
        """Return the filter for `groups` (≥ 1) entries with `error_percent` (1 to 99) false positives. [BloomFilter.createByFn]"""
        rate = error_percent / 100
        hashes = ceil(log(rate) / log(0.5))
        # As Java computes it: another order of the operations may round to another number of bits.
        bits = ceil(groups * (log(1 / rate) / log(2)) * (log(e) / log(2)))
        return cls(hashes, 8 * ceil(bits / 8))

    def positions(self, text: str) -> tuple[int, ...]:
        half = murmur3(text.encode())
        first, second = half & 0xFFFF_FFFF, half >> 32
        positions = []
        for i in range(1, self.hashes + 1):
            # Java computes with signed 32-bit numbers, and inverts a negative result instead of negating it.
            position = (first + i * second) & 0xFFFF_FFFF
            if position & 0x8000_0000:
                position ^= 0xFFFF_FFFF
            positions.append(position % self.bits)
        return tuple(positions)


def murmur3(data: bytes) -> int:
    """Return the first 64 bits of murmur3-128 x64 with seed 0, unsigned."""
    h1 = h2 = 0
    # Full blocks of 16 bytes; the rest is padded with zeros, which equals Java's byte by byte handling of a tail.
    blocks_end = len(data) - len(data) % 16
    for k1, k2 in _BLOCK.iter_unpack(data[:blocks_end]):
        h1 = (_rotl((h1 ^ _mixed1(k1)), 27) + h2) & _MASK
        h1 = (h1 * 5 + 0x52DCE729) & _MASK
        h2 = (_rotl((h2 ^ _mixed2(k2)), 31) + h1) & _MASK
        h2 = (h2 * 5 + 0x38495AB5) & _MASK
    tail1, tail2 = _BLOCK.unpack(data[blocks_end:].ljust(16, b"\0"))
    h1 ^= _mixed1(tail1) ^ len(data)
    h2 ^= _mixed2(tail2) ^ len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_finished(h1) + _finished(h2)) & _MASK


def _mixed1(k: int) -> int:
    return _rotl(k * _C1 & _MASK, 31) * _C2 & _MASK


def _mixed2(k: int) -> int:
    return _rotl(k * _C2 & _MASK, 33) * _C1 & _MASK


def _finished(h: int) -> int:
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD & _MASK
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return h ^ h >> 33


def _rotl(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK
