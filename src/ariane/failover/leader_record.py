"""The record of a broker set in the coordination service: holder, epoch and in-sync set in one value, so that one compare-and-swap
changes them together.

    {"epoch":6,"holder":"b","in_sync":[{"incarnation":"1f","name":"a"},{"incarnation":"c4","name":"b"}],"set_version":9,"successor":"","token":"…"}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from ariane.errors import InvalidLeaderRecord

RECORD_BYTES_MAX = 64 * 1024  # far below the 1.5 MiB of etcd and of Kubernetes objects

MemberName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.\-]{1,127}$")]
_Identifier = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class InSyncMember(msgspec.Struct, frozen=True, order=True):
    """A member of the in-sync set, with the incarnation of its data that was admitted."""

    name: MemberName
    incarnation: _Identifier
    """Changes when the member may have lost acknowledged records: another boot without a clean stop, or a new directory."""


class LeaderRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holder, epoch and in-sync set of a broker set.

    Raises:
        ValueError: a member is listed twice, or the set is empty.
    """

    holder: str  # name of the member that leads, or led last; empty before the first
    epoch: _Count  # a counter of our own: grows by one with each change of the holder
    in_sync: tuple[InSyncMember, ...]  # sorted by name; each of them has every confirmed record
    set_version: _Count  # grows by one with each change of the set
    token: _Identifier  # unique per write: identifies a write whose outcome was not received
    successor: str = ""  # member for which a planned switch released the lease; others wait before they try

    def __post_init__(self) -> None:
        names = [member.name for member in self.in_sync]
        if not names or names != sorted(set(names)):
            raise ValueError(f"Invalid in-sync set {names}: expected distinct names in ascending order")

    def admits(self, member: InSyncMember) -> bool:
        """Return whether `member` is in the set with this incarnation."""
        return member in self.in_sync


_DECODER = msgspec.json.Decoder(LeaderRecord)
_ENCODER = msgspec.json.Encoder(order="sorted")


def sorted_members(members: Iterable[InSyncMember]) -> tuple[InSyncMember, ...]:
    """Return `members` as an in-sync set."""
    return tuple(sorted(members))


def encode_record(record: LeaderRecord) -> bytes:
    """Return the canonical JSON: equal records have equal bytes."""
    return _ENCODER.encode(record)


def decode_record(data: bytes) -> LeaderRecord:
    """Decode a stored record.

    Raises:
        InvalidLeaderRecord: the bytes are not a record; names the first violation.
    """
    if len(data) > RECORD_BYTES_MAX:
        raise InvalidLeaderRecord(f"The record has {len(data)} bytes: expected at most {RECORD_BYTES_MAX}")
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidLeaderRecord(
            f"Invalid record in the coordination service: {error}. Is the prefix used by another program?"
        ) from error
