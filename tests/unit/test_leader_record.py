"""The record of a broker set: canonical JSON, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from ariane.errors import InvalidLeaderRecord
from ariane.failover.leader_record import (
    InSyncMember,
    LeaderRecord,
    decode_record,
    encode_record,
    sorted_members,
)

A, B = InSyncMember("a", "1f"), InSyncMember("b", "c4")
RECORD = LeaderRecord(holder="b", epoch=6, in_sync=(A, B), set_version=9, token="n.1")
JSON = (
    b'{"epoch":6,"holder":"b","in_sync":[{"incarnation":"1f","name":"a"},{"incarnation":"c4","name":"b"}],'
    b'"set_version":9,"successor":"","token":"n.1"}'
)


def test_equal_records_have_equal_bytes() -> None:
    assert encode_record(RECORD) == JSON
    assert decode_record(JSON) == RECORD
    assert encode_record(msgspec.structs.replace(RECORD, in_sync=sorted_members([B, A]))) == JSON


def test_a_member_is_admitted_with_its_incarnation_only() -> None:
    assert RECORD.admits(A)
    assert not RECORD.admits(InSyncMember("a", "20"))


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        (b'"epoch":6', b'"epoch":-1', "epoch"),
        (b'"epoch":6', b'"epoch":"6"', "epoch"),
        (b'"token":"n.1"', b'"token":""', "token"),
        (b'"name":"a"', b'"name":"b"', "in-sync set"),
        (b'"name":"a"', b'"name":"c"', "in-sync set"),
        (b'"name":"a"', b'"name":"a b"', "name"),
        (b'"successor"', b'"sucessor"', "sucessor"),
        (b'"holder":"b",', b"", "holder"),
        (JSON, b"", "truncated"),
        (JSON, b"x" * 70_000, "70000 bytes"),
    ],
)
def test_other_bytes_are_refused(before: bytes, after: bytes, fault: str) -> None:
    with pytest.raises(InvalidLeaderRecord, match=fault):
        decode_record(JSON.replace(before, after))


def test_a_set_is_not_empty() -> None:
    with pytest.raises(ValueError, match="in-sync set"):
        LeaderRecord(holder="", epoch=0, in_sync=(), set_version=0, token="n")
