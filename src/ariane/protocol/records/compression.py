"""Compressed bodies: the algorithm in the sysFlag, and decompression within a bound. [CompressorFactory, CompressionType]

Bits 8 to 10 of the sysFlag, valid with bit 0: 0 and 3 zlib stream, 1 LZ4 frame, 2 ZSTD frame. Producers of 5.x (and of 4.9.4 with
`rocketmq.message.compressType`) choose the algorithm. Every version of every client can read zlib, so it is the default.

All three are decompressed piece by piece, so that a small body that expands to gigabytes costs no more than the bound. The
lengths declared in LZ4 and ZSTD frames are not used: the producer controls them.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from typing import Literal

from ariane.errors import ConfigError, ProtocolError
from ariane.model.message import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

COMPRESS_MIN_BYTES = 4096  # bytes; Java clients do not compress smaller bodies
COMPRESS_LEVEL = 5  # of zlib, as in Java clients
DECOMPRESSED_MAX = 64 * 1024 * 1024  # a 4 MiB body of zeros expands a thousand times; more than this is an attack
FRAMES_MAX = 1024  # per body: LZ4 and ZSTD streams may consist of several frames; producers write one
PIECE = 1024 * 1024  # output bytes per step for an LZ4 frame
LZ4_INPUT = 256 * 1024  # input bytes of a body per step
ZSTD_INPUT = 512  # input bytes of a ZSTD frame per step, which expand to at most 16 MiB
ZSTD_WINDOW_MAX = (
    128 * 1024 * 1024
)  # the largest window that ZSTD compressors use at any level; its memory is taken as it fills

ZLIB_FLAGS = COMPRESSED | COMPRESSION_ZLIB

Algorithm = Literal["zlib", "lz4", "zstd"]


def compress(body: bytes, algorithm: Algorithm = "zlib", level: int = COMPRESS_LEVEL) -> tuple[bytes, int]:
    """Return the compressed body, and the bits of the sysFlag that say so.

    Args:
        level: Of zlib, from 1 (fast) to 9 (small); the other algorithms are fast at any rate.

    Raises:
        ConfigError: the algorithm's package is missing.
    """
    flags, compressor = _COMPRESSORS[algorithm]
    try:
        return compressor(body, level), COMPRESSED | flags
    except ModuleNotFoundError as error:
        package = (error.name or algorithm).partition(".")[0]
        fix = f"is not installed for {sys.executable}, which compresses with {algorithm}: pip install {package}"
        raise ConfigError(package, None, fix) from None


def _compress_zlib(body: bytes, level: int) -> bytes:
    return zlib.compress(body, level)


def _compress_lz4(body: bytes, level: int) -> bytes:
    from lz4.frame import compress

    data: bytes = compress(body)
    return data


def _compress_zstd(body: bytes, level: int) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(body)


_COMPRESSORS: dict[str, tuple[int, Callable[[bytes, int], bytes]]] = {
    "zlib": (COMPRESSION_ZLIB, _compress_zlib),
    "lz4": (COMPRESSION_LZ4, _compress_lz4),
    "zstd": (COMPRESSION_ZSTD, _compress_zstd),
}


def decompress(body: bytes, sys_flag: int, expanded_max: int = DECOMPRESSED_MAX) -> bytes:
    """Return the body as the producer sent it.

    Raises:
        ProtocolError: the algorithm is unknown, the stream is corrupt, or it expands to more than `expanded_max` bytes.
        ConfigError: the algorithm's package is missing, which is possible on Spark executors.
    """
    if not sys_flag & COMPRESSED or not body:
        return body
    kind = sys_flag & COMPRESSION_MASK
    if kind not in _EXPANDERS:
        raise ProtocolError(
            f"Unknown compression algorithm {kind >> 8} in the sysFlag: expected 0 or 3 (zlib), 1 (LZ4) or 2 (ZSTD)"
        )
    name, expander = _EXPANDERS[kind]
    try:
        data, is_complete = expander(body, expanded_max + 1)
    except ModuleNotFoundError as error:
        package = (error.name or name).partition(".")[0]
        fix = (
            f"is not installed for {sys.executable}, which expands a body compressed with {name}: pip install {package}"
        )
        raise ConfigError(package, None, fix) from None
    except (zlib.error, RuntimeError, EOFError, ValueError) as error:
        raise ProtocolError(f"the body compressed with {name} is broken: {error}") from None
    if len(data) > expanded_max:
        raise ProtocolError(f"the body compressed with {name} is larger than {expanded_max} bytes when expanded")
    if not is_complete:
        raise ProtocolError(f"the body compressed with {name} ends too early")
    return data


def _expand_zlib(body: bytes, length_max: int) -> tuple[bytes, bool]:
    stream = zlib.decompressobj()
    data = stream.decompress(body, length_max)
    return data, stream.eof


def _expand_lz4(body: bytes, length_max: int) -> tuple[bytes, bool]:
    from lz4.frame import LZ4FrameDecompressor

    stream = LZ4FrameDecompressor()
    pieces, length, position, frames = [], 0, 0, 1
    while length < length_max:
        if stream.eof:
            position -= len(stream.unused_data or b"")
            if position == len(body):
                break
            frames = _next_frame(frames)
            stream = LZ4FrameDecompressor()
        chunk = body[position : position + LZ4_INPUT] if stream.needs_input else b""
        position += len(chunk)
        # The decompressor allocates what it may return, so a small body does not get the whole bound in one step.
        piece = stream.decompress(chunk, max_length=min(PIECE, length_max - length))
        if not chunk and not piece and not stream.eof:
            break
        pieces.append(piece)
        length += len(piece)
    return b"".join(pieces), stream.eof


def _expand_zstd(body: bytes, length_max: int) -> tuple[bytes, bool]:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_MAX)
    stream = decompressor.decompressobj()
    pieces, length, position, frames = [], 0, 0, 1
    while position < len(body) and length < length_max:
        if stream.eof:
            frames = _next_frame(frames)
            stream = decompressor.decompressobj()
        # It returns everything that its input expands to, and 4 bytes may be a block of 128 KiB: so each step gets little input.
        chunk = body[position : position + ZSTD_INPUT]
        try:
            piece = stream.decompress(chunk)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from None
        position += len(chunk) - (len(stream.unused_data) if stream.eof else 0)
        pieces.append(piece)
        length += len(piece)
    return b"".join(pieces), stream.eof


def _next_frame(frames: int) -> int:
    """Count another frame: each costs a decompressor, and an empty one has a few bytes."""
    if frames == FRAMES_MAX:
        raise ValueError(f"it has more than {FRAMES_MAX:,} frames")
    return frames + 1


# Kind -> name, and a function of the body and a length: it returns at least this many decompressed bytes or all of them, and
# whether the stream is complete.
_EXPANDERS: dict[int, tuple[str, Callable[[bytes, int], tuple[bytes, bool]]]] = {
    0: ("zlib", _expand_zlib),
    COMPRESSION_LZ4: ("LZ4", _expand_lz4),
    COMPRESSION_ZSTD: ("ZSTD", _expand_zstd),
    COMPRESSION_ZLIB: ("zlib", _expand_zlib),
}
