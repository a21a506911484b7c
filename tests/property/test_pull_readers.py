"""Both implementations read the same pulls, whatever arrives: native code knows only headers that the parser takes.

frame → teaches a reader → its siblings and near misses → the pulls of a reader that parses each header
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from ariane.kernels.implementation import select
from ariane.kernels.pulls import pull_reader
from ariane.kernels.pulls.pull_reader import NativePullReader, PlainPull, PythonPullReader, has_known_numbers
from ariane.kernels.pulls.pull_turn import parse_pull
from ariane.protocol import command as commands
from ariane.protocol.codes import RequestCode
from ariane.protocol.frame import BINARY_FORM, JSON_FORM, PREFIX, PREFIX_SIZE
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.messaging import PullMessage

pytest.importorskip("ariane_native", reason="ariane_native is not installed; ./ariane install builds it with cargo")

HEADER_MAX = 3000
USUAL = PullMessage("G", "T", 3, 120, 32, 5, 118, 15_000, "a || b", 1_700_000_000_123, "TAG")


def pull_frame(form: int = JSON_FORM, code: int = RequestCode.PULL_MESSAGE, **members: Any) -> bytes:
    fields = encode_header(msgspec.structs.replace(USUAL, **members))
    return b"".join(commands.encode(code, opaque=9, flag=0, fields=fields, form=form, body=b"ignored"))


def framed(header: bytes) -> bytes:
    return PREFIX.pack(4 + len(header), len(header)) + header


# As the Java client writes it: members in another order, a language, a version.
JAVA = framed(
    b'{"code":11,"extFields":{"queueId":"0","maxMsgNums":"32","sysFlag":"3","suspendTimeoutMillis":"15000","commitOffset":"64",'
    b'"topic":"T","queueOffset":"96","expressionType":"TAG","subVersion":"1700000000000","consumerGroup":"G"},"flag":0,'
    b'"language":"JAVA","opaque":71,"serializeTypeCurrentRPC":"JSON","version":401}'
)
KNOWN = [
    JAVA,
    pull_frame(),
    pull_frame(code=RequestCode.LITE_PULL_MESSAGE, subscription='"queueOffset":"7" \\ é'),
    pull_frame(commit_offset=0, queue_id=0, queue_offset=0),
]
# Headers with numbers where the parser does not read them.
DECOYS = [
    framed(header_of)
    for header_of in (
        b'{"code":11,"extFields":{"x":{"queueId":"3"},"queueId" :"3","queueOffset":"1","maxMsgNums":"2","sysFlag":"4","topic":"T",'
        b'"consumerGroup":"G"},"flag":0,"opaque":5}',
        b'{"code":11,"extFields":{"queueId":"3","queueId":"3","queueOffset":"1","maxMsgNums":"2","sysFlag":"4","topic":"T",'
        b'"consumerGroup":"G"},"flag":0,"opaque":5}',
        b'{"code":11,"extFields":{"x":{"opaque":5},"queueId":"3","queueOffset":"1","maxMsgNums":"2","sysFlag":"4","topic":"T",'
        b'"consumerGroup":"G"},"flag":0,"opaque" :5}',
        b'{"code":11,"extFields":{"queueId":3,"queueOffset":"1","maxMsgNums":"2","sysFlag":"4","topic":"T","consumerGroup":"G"},'
        b'"flag":0,"opaque":5}',
    )
]
BYTES = [bytes((byte,)) for byte in b'"\\,:{}[] 019-+.eE\x00\x01\x7f\x80\xff']


def header_of(frame: bytes) -> bytes:
    return frame[PREFIX_SIZE : PREFIX_SIZE + int.from_bytes(frame[5:8], "big")]


def near_misses(header: bytes) -> Iterator[bytes]:
    """Yield a header with each byte changed, missing, repeated, or with something in front of it."""
    for at in range(len(header)):
        yield header[:at] + header[at + 1 :]
        for piece in (*BYTES, header[at : at + 1], b'"queueId":"5",', b'"opaque":6,'):
            yield header[:at] + piece + header[at:]
            yield header[:at] + piece + header[at + 1 :]


def siblings(rng: random.Random, header: bytes, count: int) -> Iterator[bytes]:
    """Yield headers with some digits replaced by others, or by longer numbers."""
    digits = [at for at, byte in enumerate(header) if 48 <= byte < 58]
    for _ in range(count):
        changed = header
        for at in sorted(rng.sample(digits, rng.randint(1, 3)), reverse=True):
            changed = changed[:at] + b"%d" % rng.randrange(10 ** rng.choice((1, 1, 3, 10, 19))) + changed[at + 1 :]
        yield changed


def taught(*frames: bytes) -> NativePullReader:
    """Return a native reader that has read these frames."""
    reader = cast(NativePullReader, select("native").pull_reader())
    for frame in frames:
        reader.read(frame, 0, HEADER_MAX)
    return reader


def comparable(pull: PlainPull | None) -> tuple[Any, ...] | None:
    if pull is None:
        return None
    common = msgspec.structs.replace(
        pull[0].request, queue_id=0, queue_offset=0, commit_offset=0, suspend_timeout_millis=0
    )
    return (common, *pull[1:])


def assert_same(reader: NativePullReader, frame: bytes) -> PlainPull | None:
    expected = PythonPullReader().read(frame, 0, HEADER_MAX)
    pull = reader.read(frame, 0, HEADER_MAX)
    assert comparable(pull) == comparable(expected)
    return pull


@pytest.mark.parametrize("number", range(len(KNOWN)))
def test_near_misses_of_a_known_header(number: int) -> None:
    frame = KNOWN[number]
    reader, rng = taught(frame), random.Random(7)
    assert reader._find(frame, 0, HEADER_MAX) is not None
    for header in (*near_misses(header_of(frame)), *siblings(rng, header_of(frame), 2000)):
        reader._parsed = 0  # learns nothing else
        assert_same(reader, framed(header))


@pytest.mark.parametrize("number", range(len(DECOYS)))
def test_numbers_in_other_places_are_not_known(number: int) -> None:
    frame = DECOYS[number]
    reader = taught(frame)
    pull = assert_same(reader, frame)
    assert reader._find(frame, 0, HEADER_MAX) is None
    assert pull is None or not has_known_numbers(header_of(frame), pull[0].request)
    for header in near_misses(header_of(frame)):
        assert_same(reader, framed(header))


@pytest.mark.parametrize("frame", [KNOWN[0], pull_frame(BINARY_FORM), pull_frame(topic="x" * 200)])
def test_frames_that_are_not_whole(frame: bytes) -> None:
    reader = taught(frame)
    for end in range(len(frame)):
        assert reader.read(frame[:end], 0, HEADER_MAX) is None
    assert_same(reader, frame)
    assert_same(reader, frame[4:])
    parsed, moved = parse_pull(frame, 0, HEADER_MAX), reader.read(b"1234" + frame, 4, HEADER_MAX)
    assert (moved is None) == (parsed is None)
    if parsed is not None and moved is not None:
        assert (moved[1], moved[4], moved[6]) == (parsed[0].queue_id, parsed[1], parsed[3] + 4)
    assert reader.read(frame, 0, 20) is None


def test_pulls_of_a_consumer_have_one_template() -> None:
    reader = taught()
    pulls = [reader.read(pull_frame(queue_id=n, queue_offset=n * n), 0, HEADER_MAX) for n in range(5)]
    assert len({id(pull[0]) for pull in pulls if pull is not None}) == 1
    assert [pull[1:3] for pull in pulls if pull is not None] == [(n, n * n) for n in range(5)]
    other = reader.read(pull_frame(sub_version=2), 0, HEADER_MAX)
    assert other is not None
    assert pulls[0] is not None
    assert other[0] is not pulls[0][0]


def test_few_headers_and_templates_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_reader, "HEADERS_MAX", 3)
    monkeypatch.setattr(pull_reader, "TEMPLATES_MAX", 2)
    reader = taught()
    reader._parsed = 10_000
    for number in range(20):
        frame = pull_frame(sub_version=number)
        assert_same(reader, frame)
        assert reader._find(frame, 0, HEADER_MAX) is not None
        assert reader._count <= 3
        assert len(reader._parser._templates) <= 2
    assert reader._find(pull_frame(sub_version=0), 0, HEADER_MAX) is None


def test_ever_new_headers_are_only_parsed() -> None:
    reader = taught()
    reader._parsed = 0
    for number in range(100):
        assert_same(reader, pull_frame(sub_version=number))
    assert reader._count == 100 // pull_reader.PARSED_PER_HEADER


def test_the_parser_continues_after_a_failure() -> None:
    class Broken:
        def find(self, *_: object) -> None:
            raise RuntimeError("index out of bounds")

        def learn(self, *_: object) -> None:
            raise AssertionError("called after a failure")

    class Module:
        PullHeaders = Broken

    errors: list[str] = []
    reader = NativePullReader(Module, lambda: errors, lambda error: errors.append(str(error)))
    for _ in range(3):
        assert_same(reader, KNOWN[0])
    assert errors == ["index out of bounds"]
