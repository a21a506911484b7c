"""A learned layout takes only headers that the parser takes, and reads of them what the parser reads.

frame → teaches an encoder → its siblings and near misses → the same runs as by an encoder that parses each header
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

import msgspec
import pytest
from test_send_turn import send_frame
from unusual_sends import RECORDED, TOKENS, altered, corpus, damaged

from ariane.broker.handlers.sending.send_turns import EXCEPTIONAL_PROPERTIES
from ariane.kernels.sends import send_encoder, send_layouts
from ariane.kernels.sends.send_encoder import PythonSendEncoder
from ariane.kernels.sends.send_layouts import COUNTS_MAX, LAYOUTS_MAX, PARSED_PER_LAYOUT, PAUSE
from ariane.kernels.sends.send_turn import LogEnd, SendRun, SendSettings
from ariane.protocol.frame import BINARY_FORM, JSON_FORM, PREFIX_SIZE

SETTINGS = SendSettings(
    store_host=bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F)), cluster="100 %s", region="R", trace_on=True, header_max=3000,
    body_max=3000, is_indexed=True, exceptional=EXCEPTIONAL_PROPERTIES,
)  # fmt: skip
LOG_END = LogEnd(40_000, 100_000, 1_700_000_000_123)
ONE_OF_EACH = [
    *(frame for frame in RECORDED if frame.endswith(b"message 0")),
    *(send_frame(code=code, form=form) for code in (10, 310) for form in (JSON_FORM, BINARY_FORM)),
    send_frame(command_flag=2, property_text="KEYS\x01a b\x02é%d\x01x\x02%s\x01100 %d\x02WAIT\x01true\x02"),
    send_frame(sys_flag=1, flag=7, reconsume_times=3, property_text="%s\x01100 %d\x02TAGS\x01t\x02"),
]
BYTES = [bytes((byte,)) for byte in b'"\\,:{}[] 019-+.eEnaZ#\x00\x01\x02\x1f\x7f\x80\xc3\xff']


class NoLayouts:
    """Layouts of an encoder that parses each header."""

    def match(self, header: str) -> None: ...
    def learn(self, *_: Any) -> None: ...


class AllCounts(dict[int, Any]):
    """Candidates that are tried for each header, whatever the number of its backslashes."""

    def get(self, count: int, default: Any = None) -> Any:
        return next(iter(self.values()), default)


def parsing() -> PythonSendEncoder:
    encoder = PythonSendEncoder(SETTINGS)
    encoder._layouts = NoLayouts()  # type: ignore[assignment]
    return encoder


def taught(*frames: bytes) -> PythonSendEncoder:
    """Return an encoder that has encoded these frames."""
    encoder = PythonSendEncoder(SETTINGS)
    for frame in frames:
        encode(encoder, frame)
    encoder._layouts._candidates = AllCounts(encoder._layouts._candidates)
    return encoder


def encode(encoder: PythonSendEncoder, data: bytes) -> SendRun:
    return encoder.encode(data, 0, bytes((10, 1, 2, 3, 0, 0, 0x11, 0xD7)), LOG_END, next_offset)


def next_offset(topic: str, queue_id: int) -> int:
    return queue_id * 7 + len(topic) if topic in ("T", "Many", "Ü") else -1


def is_parsed(encoder: PythonSendEncoder, frame: bytes) -> bool:
    """Return whether the encoder parses this header, although it takes the send."""
    with mock.patch.object(send_encoder, "_parse", wraps=send_encoder._parse) as parse:
        assert encode(encoder, frame).sends == 1
    return bool(parse.called)


def with_header(frame: bytes, header: bytes) -> bytes:
    """Return a frame with another header and the lengths that it needs."""
    body = frame[PREFIX_SIZE + int.from_bytes(frame[5:8], "big") :]
    sizes = (4 + len(header) + len(body)).to_bytes(4, "big") + frame[4:5] + len(header).to_bytes(3, "big")
    return sizes + header + body


def header_of(frame: bytes) -> bytes:
    return frame[PREFIX_SIZE : PREFIX_SIZE + int.from_bytes(frame[5:8], "big")]


def near_misses(header: bytes) -> Iterator[bytes]:
    """Yield a header with each byte changed, missing, repeated, or with something in front of it."""
    for at in range(len(header)):
        yield header[:at] + header[at + 1 :]
        for piece in (*BYTES[at % 2 :: 2], header[at : at + 1], TOKENS[at % len(TOKENS)]):
            yield header[:at] + piece + header[at:]
        for byte in BYTES[:: 1 + at % 2]:
            yield header[:at] + byte + header[at + 1 :]


def siblings(rng: random.Random, header: bytes, count: int) -> Iterator[bytes]:
    """Yield headers with some letters and digits replaced by others, as the values of the next sends have them."""
    for _ in range(count):
        changed = bytearray(header)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(header))
            if 48 <= changed[at] < 58:
                changed[at] = rng.randrange(48, 58)
            elif bytes((changed[at],)).isalpha():
                changed[at] = rng.choice(b"ABZabz")
        yield bytes(changed)


@pytest.mark.parametrize("frame", ONE_OF_EACH)
def test_near_misses_of_a_layout(frame: bytes) -> None:
    encoder, parser = taught(frame), parsing()
    is_learned = not is_parsed(encoder, frame)
    assert is_learned == (b"\xc3\xa9" not in frame)
    with mock.patch.object(encoder._layouts, "learn"):
        taken = 0
        for header in near_misses(header_of(frame)):
            other = with_header(frame, header)
            run = encode(encoder, other)
            assert run == encode(parser, other), other
            taken += run.sends
    assert taken > 100


def test_siblings_of_any_frame() -> None:
    rng = random.Random(5)
    parser, learned = parsing(), 0
    sources = corpus(rng)
    for _ in range(1500):
        frame = altered(rng) if rng.random() < 0.5 else damaged(rng, rng.choice(sources))
        if not encode(parser, frame).sends:
            continue
        encoder = taught(frame)
        learned += not is_parsed(encoder, frame)
        for header in siblings(rng, header_of(frame), 10):
            other = with_header(frame, header)
            assert encode(encoder, other) == encode(parser, other), (frame, other)
    assert learned > 50


@pytest.mark.parametrize("form", [JSON_FORM, BINARY_FORM])
def test_values_of_any_length_have_one_layout(form: int) -> None:
    encoder = taught(send_frame(form=form, property_text="UNIQ_KEY\x010A\x02KEYS\x01k"))
    parser = parsing()
    for queue_id, opaque, born_ms, key in [(0, 0, 0, "x"), (12, 10**6, 10**12, "a b"), (3, 1_999_999_999, 9, "k" * 99)]:
        frame = send_frame(
            opaque, form=form, queue_id=queue_id, born_ms=born_ms, topic="Many", producer_group="Q" * 271,
            property_text=f"UNIQ_KEY\x01{key}\x02KEYS\x01{key[::-1]}",
        )  # fmt: skip
        assert not is_parsed(encoder, frame)
        assert encode(encoder, frame) == encode(parser, frame)


def test_numbers_out_of_range_do_not_match() -> None:
    encoder, parser = taught(send_frame(opaque=7, queue_id=5, born_ms=99)), parsing()
    for before, after in [
        (b'"opaque":7', b'"opaque":2147483648'), (b'"opaque":7', b'"opaque":07'), (b'"opaque":7', b'"opaque":7.0'),
        (b'"e":"5"', b'"e":"2147483648"'), (b'"e":"5"', b'"e":"-1"'), (b'"e":"5"', b'"e":"05"'),
        (b'"g":"99"', b'"g":"9223372036854775808"'), (b'"d":"4"', b'"d":"4294967296"'), (b'"a":"P"', b'"a":"%s"' % (b"P" * 272)),
    ]:  # fmt: skip
        frame = send_frame(opaque=7, queue_id=5, born_ms=99)
        assert before in frame
        frame = with_header(frame, header_of(frame).replace(before, after))
        assert encode(encoder, frame) == encode(parser, frame)


@pytest.mark.parametrize("frame", ONE_OF_EACH)
def test_other_header_forms_have_no_layout_of_these(frame: bytes) -> None:
    parser = parsing()
    for form in (0, 1, 2, 5, 255):
        other = frame[:4] + bytes((form,)) + frame[5:]
        encoder = taught(frame, other)
        assert encode(encoder, other + frame + other) == encode(parser, other + frame + other)


def test_properties_that_exceed_a_record_are_left_to_the_handler() -> None:
    encoder = PythonSendEncoder(msgspec.structs.replace(SETTINGS, header_max=2**18))
    assert encode(encoder, send_frame(property_text="x\x01v")).sends == 1
    assert encode(encoder, send_frame(property_text=f"x\x01{'v' * 32_700}")).sends == 1
    assert encode(encoder, send_frame(property_text=f"x\x01{'v' * 32_760}")).sends == 0


def test_a_header_that_is_not_strict_json_has_no_layout() -> None:
    strict = send_frame(code=10)
    liberal = with_header(strict, header_of(strict).replace(b'"version":401', b'"version":0401'))
    assert liberal != strict
    assert not is_parsed(taught(strict), strict)
    assert is_parsed(taught(liberal), liberal)


def test_layouts_and_their_cost_are_bounded() -> None:
    encoder = PythonSendEncoder(SETTINGS)
    frames = [
        send_frame(flag=flag, property_text="\x02".join(f"p{number}\x01v" for number in range(count)))
        for flag in range(2 * LAYOUTS_MAX)
        for count in range(1, 2 * COUNTS_MAX)
    ]
    with mock.patch.object(send_layouts.re, "compile", wraps=send_layouts.re.compile) as compile_pattern:
        for frame in frames:
            encode(encoder, frame)
    assert compile_pattern.call_count == LAYOUTS_MAX * COUNTS_MAX
    for _ in range(PARSED_PER_LAYOUT + PAUSE + 1):
        encode(encoder, frames[-1])
    assert not is_parsed(encoder, frames[-1])
    candidates = encoder._layouts._candidates
    assert len(candidates) <= COUNTS_MAX
    assert max(len(some.layouts) for some in candidates.values()) <= LAYOUTS_MAX


def test_headers_that_differ_in_a_constant_pause_the_layouts_for_a_while() -> None:
    frames = [send_frame(flag=flag) for flag in range(LAYOUTS_MAX + 1)]
    encoder = taught(*frames[1:])
    assert not any(is_parsed(encoder, frame) for frame in frames[1:])
    with mock.patch.object(encoder._layouts, "learn"):
        assert is_parsed(encoder, frames[0])
        assert [is_parsed(encoder, frames[1]) for _ in range(PAUSE + 1)] == [True] * PAUSE + [False]
