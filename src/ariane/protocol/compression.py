"""Compressed bodies: which algorithm the sysFlag names, and undoing it within a bound. [CompressorFactory]

Bits 8–10 of the sysFlag, valid with bit 0: 0 and 3 zlib, 1 LZ4 frame, 2 ZSTD frame. zlib is what every version of every
client can read, so it is what we write.
"""

from __future__ import annotations

import zlib

from ariane.errors import ProtocolError
from ariane.model.message import COMPRESSED, COMPRESSION_MASK, COMPRESSION_ZLIB

COMPRESS_FROM = 4096  # bytes; below that Java clients leave a body as it is
LEVEL = 5
EXPANDED_MAX = 64 * 1024 * 1024  # a 4 MiB body of zeros expands a thousand times; more than this is an attack

ZLIB_FLAGS = COMPRESSED | COMPRESSION_ZLIB


def compress(body: bytes) -> bytes:
    """zlib stream of `body`; store it with ZLIB_FLAGS in the sysFlag."""
    return zlib.compress(body, LEVEL)


def expand(body: bytes, sys_flag: int, expanded_max: int = EXPANDED_MAX) -> bytes:
    """The body as the producer gave it. ProtocolError when the algorithm is unknown, the stream broken or too large."""
    if not sys_flag & COMPRESSED or not body:
        return body
    kind = sys_flag & COMPRESSION_MASK
    if kind not in (0, COMPRESSION_ZLIB):
        name = {0x100: "LZ4", 0x200: "ZSTD"}.get(kind, f"algorithm {kind >> 8}")
        raise ProtocolError(f"the body is compressed with {name}; this version reads zlib")
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, expanded_max)
    except zlib.error as error:
        raise ProtocolError(f"the compressed body is broken: {error}") from None
    if stream.unconsumed_tail:
        raise ProtocolError(f"the compressed body is larger than {expanded_max} bytes when expanded")
    if not stream.eof:
        raise ProtocolError("the compressed body ends too early")
    return data
