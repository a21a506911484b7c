"""The replication stream between brokers of Ariane: with identities and epochs. Not in Java; without I/O.

    member → leader   8 bytes MAGIC: as a report it would be negative, which no slave sends
    leader → member   8 bytes MAGIC, 32 bytes challenge, random
    member → leader   i32 size | fields: JSON of a request's extFields, with HELLO; with haAclEnable signed over the challenge
    leader → member   i32 size | JSON of `Welcome`; with a refusal, the connection ends
    then
    leader → member   i64 offset | i32 size | i64 epoch | i64 confirmed end | size bytes of the log; size 0: heartbeat
    member → leader   i64 epoch | i64 written end | i64 flushed end

The member sends nothing that a master of 4.9.4 would take as an offset before the leader has returned MAGIC. The bytes of a
frame are of one epoch of the log and of one file. Reported ends are record boundaries.
"""

from __future__ import annotations

from struct import Struct
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from ariane.errors import ProtocolError
from ariane.protocol.records.replication import SIZE_MAX

MAGIC = b"\xffARIANE\x02"
STREAM_KEY = "memberStream"  # of GET_BROKER_RUNTIME_INFO: the leader serves this stream
HELLO = "hello"  # the extField with the JSON of a `Hello`
EPOCHS_MAX = 1_000  # the last ones of a log: enough to find where two logs differ
GREETING_MAX = 128 * 1024  # bytes of a Hello or Welcome

_SIZE = Struct(">i")
SIZE_SIZE = _SIZE.size
_HEAD = Struct(">qiqq")
_REPORT = Struct(">qqq")

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.\-]{1,127}$")]
_Incarnation = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
# Number, start and holder of an epoch of the log.
EpochEntry = tuple[_Count, _Count, Annotated[str, msgspec.Meta(max_length=200)]]
_Epochs = Annotated[tuple[EpochEntry, ...], msgspec.Meta(max_length=EPOCHS_MAX)]


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What a member reports about itself."""

    member: _Name
    incarnation: _Incarnation
    end: _Count
    """End of its log, a record boundary."""
    promised: _Count = 0
    """Highest epoch that it accepted."""
    epochs: _Epochs = ()
    """The last epochs of its log."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a leader."""

    member: _Name
    epoch: _Count = 0
    """Epoch of the leader; 0 without failover."""
    epochs: _Epochs = ()
    """The last epochs of its log."""
    refusal: str = ""
    """Why it does not serve the member; empty if it does."""


class MemberFrame(NamedTuple):
    offset: int
    epoch: int  # of the leader
    confirmed: int  # end of the log that every member of the in-sync set has
    data: bytes


class MemberReport(NamedTuple):
    epoch: int  # of the leader whose data the member has accepted
    written: int  # end of the log in its files
    flushed: int  # end of the log on its disk


Greeting = TypeVar("Greeting", Hello, Welcome)


def encode_sized(data: bytes) -> bytes:
    """Return `data` after its size."""
    return _SIZE.pack(len(data)) + data


def decode_size(data: bytes) -> int:
    """Return the size of a greeting.

    Raises:
        ProtocolError: it is empty, or too large.
    """
    (size,) = _SIZE.unpack(data)
    if not 0 < size <= GREETING_MAX:
        raise ProtocolError(f"Invalid greeting on a replication stream: {size} bytes, expected 1 to {GREETING_MAX}")
    return int(size)


def decode_greeting(data: bytes | str, kind: type[Greeting]) -> Greeting:
    """Return a Hello or Welcome.

    Raises:
        ProtocolError: it is malformed.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"Invalid {kind.__name__.lower()} on a replication stream: {error}") from None


def frame_head(offset: int, size: int, epoch: int, confirmed: int) -> bytes:
    return _HEAD.pack(offset, size, epoch, confirmed)


def encode_report(report: MemberReport) -> bytes:
    return _REPORT.pack(*report)


class MemberReportReader:
    """Decodes the reports of a member; of all received ones only the last complete report counts."""

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> MemberReport | None:
        """Return the last complete report in the data received so far; None if there is none."""
        data = self._partial + data
        end = len(data) // _REPORT.size * _REPORT.size
        self._partial = data[end:]
        if not end:
            return None
        report = MemberReport(*_REPORT.unpack_from(data, end - _REPORT.size))
        if min(report) < 0 or report.flushed > report.written:
            raise ProtocolError(f"Invalid {report}")
        return report


class MemberFrameReader:
    """Decodes the frames of a leader."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[MemberFrame]:
        """Return the frames that are complete now, including heartbeats (without data)."""
        buffer = self._buffer
        buffer += data
        frames: list[MemberFrame] = []
        position = 0
        while len(buffer) - position >= _HEAD.size:
            offset, size, epoch, confirmed = _HEAD.unpack_from(buffer, position)
            if min(offset, epoch, confirmed) < 0 or not 0 <= size <= SIZE_MAX:
                raise ProtocolError(f"Invalid frame of a leader: {size} bytes for offset {offset} in epoch {epoch}")
            if len(buffer) - position < _HEAD.size + size:
                break
            position += _HEAD.size
            frames.append(MemberFrame(offset, epoch, confirmed, bytes(buffer[position : position + size])))
            position += size
        del buffer[:position]
        return frames
