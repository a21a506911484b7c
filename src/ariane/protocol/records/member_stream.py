"""The replication stream between brokers of Ariane: with identities and epochs. Not in Java; without I/O.

    member → leader   8 bytes MAGIC: as a report it would be negative, which no slave sends
    leader → member   8 bytes MAGIC, 32 bytes challenge, random
    member → leader   i32 size | fields: JSON of a request's extFields, with HELLO; with haAclEnable signed over the challenge
    leader → member   i32 size | JSON of `Welcome`; with a refusal, the connection ends
    then
    leader → member   i64 offset | i32 size | i64 epoch | i64 confirmed end | size bytes of the log; size 0: heartbeat
    leader → member   i64 −1 | i32 size | i64 epoch | i64 log position | JSON list of changes of the broker's state
    member → leader   i64 epoch | i64 written end | i64 flushed end | i64 number of the last applied change

The member sends nothing that a master of 4.9.4 would take as an offset before the leader has returned MAGIC. The bytes of a
frame are of one epoch of the log and of one file. Reported ends are record boundaries. Changes follow the log up to their position;
they are sent, and their number is reported, if both greetings have `changes`: members of the former version copy tables instead.
"""

from __future__ import annotations

from struct import Struct
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from ariane.errors import ProtocolError
from ariane.protocol.records.replication import SIZE_MAX

MAGIC = b"\xffARIANE\x02"
STREAM_KEY = "memberStream"  # of GET_BROKER_RUNTIME_INFO: the leader serves this stream
TLS_KEY = "replicationTls"  # of the same: "true" if the replication port accepts encrypted connections
WAITS_FOR_SLAVES_KEY = (
    "waitsForSlaves"  # of the same, if the master has registered without write permission until they are back
)
HELLO = "hello"  # the extField with the JSON of a `Hello`
CHANGES = -1  # instead of an offset: the frame has changes
NO_CHANGES = -1  # instead of a number: the member has no state of this leader yet
EPOCHS_MAX = 1_000  # the last ones of a log: enough to find where two logs differ
GREETING_MAX = 128 * 1024  # bytes of a Hello or Welcome

_SIZE = Struct(">i")
SIZE_SIZE = _SIZE.size
_HEAD = Struct(">qiqq")
_REPORT = Struct(">qqq")
_REPORT_WITH_CHANGES = Struct(">qqqq")

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.\-]{1,127}$")]
_Incarnation = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
# Number, start and holder of an epoch of the log.
EpochEntry = tuple[_Count, _Count, Annotated[str, msgspec.Meta(max_length=200)]]
_Epochs = Annotated[tuple[EpochEntry, ...], msgspec.Meta(max_length=EPOCHS_MAX)]


class ChangePosition(msgspec.Struct, frozen=True):
    """Which changes a member has applied, or a leader has."""

    stream: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Identifies the sequence of numbers: that of one leader, from its start to its stop. Empty: the member has none."""
    number: Annotated[int, msgspec.Meta(ge=NO_CHANGES, lt=1 << 62)] = NO_CHANGES
    """Of the last change."""


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
    changes: ChangePosition | None = None
    """The changes that it has; None: it takes none."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a leader."""

    member: _Name
    epoch: _Count = 0
    """Epoch of the leader; 0 without failover."""
    epochs: _Epochs = ()
    """The last epochs of its log."""
    changes: ChangePosition | None = None
    """The changes that it has, if it sends them; None: the member has to copy tables."""
    refusal: str = ""
    """Why it does not serve the member; empty if it does."""
    start: _Count = 0
    """Start of its log: what was before has been removed."""


class MemberFrame(NamedTuple):
    offset: int
    epoch: int  # of the leader
    confirmed: int  # end of the log that every member of the in-sync set has
    data: bytes


class ChangesFrame(NamedTuple):
    position: int  # end of the log that the changes follow
    epoch: int  # of the leader
    data: bytes  # JSON list


class MemberReport(NamedTuple):
    epoch: int  # of the leader whose data the member has accepted
    written: int  # end of the log in its files
    flushed: int  # end of the log on its disk
    changes: int | None = None  # number of the last applied change; None: this connection has no changes


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


def changes_head(position: int, size: int, epoch: int) -> bytes:
    return _HEAD.pack(CHANGES, size, epoch, position)


def encode_report(report: MemberReport) -> bytes:
    return _REPORT.pack(*report[:3]) if report.changes is None else _REPORT_WITH_CHANGES.pack(*report)


class MemberReportReader:
    """Decodes the reports of a member; of all received ones only the last complete report counts."""

    def __init__(self, *, has_changes: bool = False) -> None:
        self._layout = _REPORT_WITH_CHANGES if has_changes else _REPORT
        self._partial = b""

    def feed(self, data: bytes) -> MemberReport | None:
        """Return the last complete report in the data received so far; None if there is none."""
        data, size = self._partial + data, self._layout.size
        end = len(data) // size * size
        self._partial = data[end:]
        if not end:
            return None
        report = MemberReport(*self._layout.unpack_from(data, end - size))
        if min(report[:3]) < 0 or report.flushed > report.written or (report.changes or 0) < NO_CHANGES:
            raise ProtocolError(f"Invalid {report}")
        return report


class MemberFrameReader:
    """Decodes the frames of a leader."""

    def __init__(self, *, has_changes: bool = False) -> None:
        self._first_offset = CHANGES if has_changes else 0  # the least valid offset
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[MemberFrame | ChangesFrame]:
        """Return the frames that are complete now, including heartbeats (without data)."""
        buffer = self._buffer
        buffer += data
        frames: list[MemberFrame | ChangesFrame] = []
        position = 0
        while len(buffer) - position >= _HEAD.size:
            offset, size, epoch, confirmed = _HEAD.unpack_from(buffer, position)
            if offset < self._first_offset or min(epoch, confirmed) < 0 or not 0 <= size <= SIZE_MAX:
                raise ProtocolError(f"Invalid frame of a leader: {size} bytes for offset {offset} in epoch {epoch}")
            if len(buffer) - position < _HEAD.size + size:
                break
            position += _HEAD.size
            content = bytes(buffer[position : position + size])
            position += size
            if offset == CHANGES:
                frames.append(ChangesFrame(confirmed, epoch, content))
            else:
                frames.append(MemberFrame(offset, epoch, confirmed, content))
        del buffer[:position]
        return frames
