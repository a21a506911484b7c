"""Both implementations verify the same signed requests, and none that the check of single requests denies.

    frames ─┬→ PythonSignatureChecker ─┐
            ├→ ariane_native ──────────┼→ the same runs, whose frames are the received ones without their signatures
            └→ signing.verify ─────────┘

Frames are sends and pulls of signing clients, and all of them damaged. ARIANE_FUZZ_S sets how many seconds
`test_damaged_frames` runs, ARIANE_FUZZ_SEED repeats a run of it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unusual_sends import TOKENS, damaged

from ariane.errors import ProtocolError
from ariane.kernels import signed_runs
from ariane.kernels.implementation import select
from ariane.kernels.signed_runs import NativeSignatureChecker, PythonSignatureChecker, SignatureChecker, SignedRun
from ariane.protocol import command as commands
from ariane.protocol import signing
from ariane.protocol.command import Command
from ariane.protocol.frame import BINARY_FORM, JSON_FORM, PREFIX, PREFIX_SIZE, Frame, FrameReader
from ariane.protocol.signing import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, UNIQUE_KEY_QUERY, Credentials

SECRETS = {"first-account": "first-secret", "second-account": "zweites Geheimnis ä", "long-account": "x" * 100}
FIELDS = {10: ("topic",), 310: ("b",), 320: ("b",), 11: ("topic", "consumerGroup")}
HEADER_MAX = 3000
SEND = {"a": "P", "b": "T", "e": "1", "i": "KEYS\x01k 1\x02TAGS\x01ä", "m": "false", "B": "before a", "topic": "no"}
PULL = {"consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "7", "subscription": '"a" || \\b'}


def checkers() -> list[SignatureChecker]:
    pytest.importorskip("ariane_native", reason="ariane_native is not installed; ./ariane install builds it")
    return [select(choice).signature_checker(SECRETS, FIELDS) for choice in ("python", "native")]


def request(
    fields: Mapping[str, str],
    key: str | None = "first-account",
    *,
    code: int = 310,
    form: int = JSON_FORM,
    body: bytes = b"hello",
    token: str = "",
) -> bytes:
    """Return the frame of a request, signed with a secret key of SECRETS or a wrong one."""
    if key is not None:
        fields = signing.sign(Credentials(key, SECRETS.get(key, "another secret"), token), fields, body)
    return b"".join(commands.encode(code, opaque=7, flag=0, fields=fields, body=body, form=form))


def framed(header: bytes, body: bytes = b"", form: int = JSON_FORM) -> bytes:
    return PREFIX.pack(4 + len(header) + len(body), form << 24 | len(header)) + header + body


class Permitted(NamedTuple):
    """A run, and what was permitted in it."""

    run: SignedRun
    asked: list[tuple[str, int, tuple[str | None, ...]]]


def check(checker: SignatureChecker, data: bytes, position: int = 0, denied: str = "denied") -> Permitted:
    asked: list[tuple[str, int, tuple[str | None, ...]]] = []

    def permit(access_key: str, code: int, values: tuple[str | None, ...]) -> bool:
        asked.append((access_key, code, values))
        return denied not in values

    run = checker.check(data, position, HEADER_MAX, 100, permit)
    assert len(asked) == len(set(asked))
    return Permitted(run, asked)


def decoded(frame: bytes) -> Command:
    [read] = FrameReader().feed(frame)
    return commands.decode(read)


def assert_right(data: bytes, permitted: Permitted) -> None:
    """Check a run by what the handlers of single requests do with its frames."""
    run = permitted.run
    assert run.starts[0] == 0
    assert run.starts[-1] == len(run.frames)
    keys = set()
    for index in range(len(run.positions) - 1):
        received = decoded(data[run.positions[index] : run.positions[index + 1]])
        stripped = decoded(run.frames[run.starts[index] : run.starts[index + 1]])
        fields = received.field_map()
        keys.add(access_key := fields.get(ACCESS_KEY, ""))
        assert not access_key or signing.verify(SECRETS[access_key], fields, received.body)
        values = tuple(fields.get(name) for name in FIELDS[received.code])
        assert (access_key, received.code, values) in permitted.asked
        assert "denied" not in values
        kept = {name: fields[name] for name in fields if name not in (ACCESS_KEY, SIGNATURE, SECURITY_TOKEN)}
        assert stripped.field_map() == kept
        received.fields = stripped.fields = None
        assert msgspec.structs.asdict(stripped) == msgspec.structs.asdict(received)
    assert len(keys) <= 1


def assert_twins(twins: list[SignatureChecker], frames: list[bytes]) -> int:
    """Check runs from the start of each frame; return how many frames were in the run that begins with them."""
    data, start, taken = b"".join(frames), 0, 0
    for frame in frames:
        python, native = (check(checker, data, start) for checker in twins)
        assert python == native
        assert_right(data, python)
        taken += len(python.run.positions) > 1
        start += len(frame)
    return taken


USUAL = [
    request(fields, key, code=code, form=form, token=token)
    for code, fields in ((310, SEND), (320, SEND), (10, {**SEND, "topic": "T"}), (11, PULL))
    for form in (JSON_FORM, BINARY_FORM)
    for key in (*SECRETS, None)
    for token in ("", "token")
]


def test_usual_requests_are_plain() -> None:
    assert assert_twins(checkers(), USUAL) == len(USUAL)


def test_usual_headers_are_decoded_without_a_regular_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signed_runs, "_read_json")
    checker = PythonSignatureChecker(SECRETS, FIELDS)
    assert [len(check(checker, frame).run.positions) for frame in USUAL] == [2] * len(USUAL)


def test_a_run_has_one_access_key() -> None:
    frames = [request(SEND, "first-account")] * 3 + [request(SEND, "second-account")] * 2 + [request(SEND, None)]
    for checker in checkers():
        run = check(checker, b"".join(frames)).run
        assert len(run.positions) - 1 == 3
        assert len(check(checker, b"".join(frames), run.positions[-1]).run.positions) - 1 == 2


@pytest.mark.parametrize("form", [JSON_FORM, BINARY_FORM])
def test_a_run_ends_before_what_is_denied(form: int) -> None:
    good = request(SEND, form=form)
    bad = [
        request(SEND, "unknown-account", form=form),
        request({**SEND, "b": "denied"}, form=form),
        request({**SEND, UNIQUE_KEY_QUERY: "true"}, form=form),
        request(SEND, form=form)[:-1] + b"?",  # the body is signed
        request(SEND, code=34, form=form),
        request({**SEND, ACCESS_KEY: "first-account"}, None, form=form),
        request({**SEND, ACCESS_KEY: "first-account", SIGNATURE: ""}, None, form=form),
        request({**SEND, ACCESS_KEY: "first-account", SIGNATURE: "A" * 28}, None, form=form),
        good[:-1],
    ]
    for frame in bad:
        for checker in checkers():
            assert len(check(checker, good + good + frame + good).run.positions) - 1 == 2, frame


def test_values_that_are_equal_are_permitted_once() -> None:
    frames = [request({**SEND, "b": topic}) for topic in ("T", "U", "T", "T", "U")]
    for checker in checkers():
        assert check(checker, b"".join(frames)).asked == [
            ("first-account", 310, ("T",)),
            ("first-account", 310, ("U",)),
        ]


def test_a_run_ends_with_its_limit_and_with_large_headers() -> None:
    frames = b"".join([request(SEND)] * 5)
    for checker in checkers():
        assert len(checker.check(frames, 0, HEADER_MAX, 3, lambda *_: True).positions) - 1 == 3
        assert len(checker.check(frames, 0, 50, 3, lambda *_: True).positions) - 1 == 0


def test_an_error_of_permit_is_that_of_the_run() -> None:
    def permit(*_: Any) -> bool:
        raise KeyError("permit")

    for checker in checkers():
        with pytest.raises(KeyError):
            checker.check(request(SEND), 0, HEADER_MAX, 3, permit)


# Names and members twice, in other places, with escapes, or written in an unusual way.
SIGNED = signing.sign(Credentials("first-account", "first-secret"), {"b": "T"}, b"")
PAIRS = [f'"{name}":"{value}"'.encode() for name, value in SIGNED.items()]
HEADERS = [
    b'{"code":310,"extFields":{' + b",".join(fields) + b'},"flag":0,"language":"JAVA","opaque":7,"version":401}'
    for fields in (
        PAIRS,
        [*PAIRS, PAIRS[0]],
        [*PAIRS, b'"b":"denied"'],
        [b'"b":"denied"', *PAIRS],
        [*PAIRS, PAIRS[2]],
        [*PAIRS, b'"a,\\"Signature":""'],
        [*PAIRS, b'"a":""'],
        [*PAIRS, b'"\\u0062":"denied"'],
        [*PAIRS, b'"a":null'],
        [*PAIRS, b'"a":1'],
        [*PAIRS, b'"a":{"b":"denied"}'],
        [*PAIRS, b'"a":""', b'"":""'],
        [*PAIRS[:1], b" " + PAIRS[1], PAIRS[2]],
        [PAIRS[0], PAIRS[1], PAIRS[2].replace(b'"Sig', b'"\\u0053ig')],
    )
] + [
    b'{"code":310,"extFields":{' + b",".join(PAIRS) + b"}" + rest
    for rest in (
        b',"extFields":{"b":"denied"}}',
        b',"code":11}',
        b',"flag":99999999999}',
        b',"opaque":-0,"flag":0}',
        b',"flag":0,"flag":1}',
        b',"remark":""}',
        b',"remark":null,"language":null}',
        b',"language":"\xc3\xa4"}',
        b',"language":"\xff"}',
        b'}}',
        b'} ',
        b',}',
        b'}',
    )
]  # fmt: skip


def test_unusual_json_headers() -> None:
    quoted = request({"b": "T", "a": ',"Signature":"x"', "z": '{"AccessKey":"'})
    assert assert_twins(checkers(), [framed(header) for header in HEADERS] + [quoted]) == 6


def test_damaged_lengths() -> None:
    twins = checkers()
    for frame in (request(SEND), request(SEND, form=BINARY_FORM)):
        for size in (0, 3, 4, len(frame) - 5, len(frame), 2**24 - 1, 2**31 - 1, 2**32 - 1):
            assert_twins(twins, [size.to_bytes(4, "big") + frame[4:], frame])
            assert_twins(twins, [frame[:5] + (size & 0xFFFFFF).to_bytes(3, "big") + frame[8:], frame])
        for end in range(len(frame)):
            assert_twins(twins, [frame[:end]])
    header = request(SEND, form=BINARY_FORM)[PREFIX_SIZE:-5]
    for at in range(0, len(header)):
        for value in (b"\0\0", b"\xff\xff", b"\x7f\xff", b"\0\0\0\x01", b"\x7f\xff\xff\xff", b"\x80\0\0\0"):
            changed = header[:at] + value + header[at + len(value) :]
            assert_twins(twins, [framed(changed, b"hello", BINARY_FORM)])


@pytest.mark.parametrize("form", [JSON_FORM, BINARY_FORM])
def test_a_changed_byte_of_what_is_signed_ends_the_run(form: int) -> None:
    """The checkers compare a header with those before it, so each changed frame follows the one that it was."""
    twins = checkers()
    good = request(SEND, form=form, token="token")
    fields = signing.sign(Credentials("first-account", SECRETS["first-account"], "token"), SEND, b"hello")
    signed = set(range(len(good) - len(b"hello"), len(good)))
    for name, value in fields.items():
        if form == JSON_FORM:
            pair = msgspec.json.encode(name) + b":" + (text := msgspec.json.encode(value))
        else:
            text = value.encode()
            pair = name.encode() + len(text).to_bytes(4, "big") + text
        end = good.index(pair) + len(pair)
        signed |= set(range(end - len(text), end))
    assert len(signed) > 80
    for at in range(len(good)):
        for bit in range(8):
            changed = good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :]
            python, native = (check(checker, good + changed) for checker in twins)
            assert python == native, (at, bit)
            assert_right(good + changed, python)
            assert len(python.run.positions) == 2 or at not in signed, (at, bit)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.sampled_from(["a", "b", "c", "i", "Z", "topic", "consumerGroup", "_x", "ä", "😀", "", SIGNATURE + "s"])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.builds(
            request,
            st.dictionaries(NAMES, TEXTS, max_size=6),
            st.sampled_from([*SECRETS, "first-account", "unknown-account", None]),
            code=st.sampled_from([10, 310, 320, 11, 34]),
            form=st.sampled_from([JSON_FORM, BINARY_FORM]),
            body=st.binary(max_size=70),
        ),
        max_size=6,
    )
)
def test_any_fields(frames: list[bytes]) -> None:
    assert_twins(checkers(), frames)


def altered(rng: random.Random) -> bytes:
    """Return a usual frame with other bytes, mostly signed after they were changed."""
    frame = rng.choice(USUAL)
    if rng.random() < 0.5:
        return damaged(rng, frame)
    size = int.from_bytes(frame[5:8], "big")
    header, body = frame[PREFIX_SIZE : PREFIX_SIZE + size], frame[PREFIX_SIZE + size :]
    token = rng.choice(TOKENS)
    at = rng.randrange(len(header))
    changed = header[:at] + token + header[at + rng.choice([0, len(token)]) :]
    try:
        fields = commands.decode(Frame(frame[4], changed, body)).field_map()
    except ProtocolError:
        return framed(changed, body, frame[4])
    key = rng.choice(list(SECRETS))
    wanted = {name: fields[name] for name in fields if name != SIGNATURE} | {ACCESS_KEY: key}
    if frame[4] == BINARY_FORM or rng.random() < 0.5:
        return request({n: v for n, v in wanted.items() if n != ACCESS_KEY}, key, form=frame[4], body=body)
    signature = signing.signature(SECRETS.get(fields.get(ACCESS_KEY, key), "s"), fields, body)
    old = fields.get(SIGNATURE, "")
    return framed(changed.replace(old.encode(), signature.encode()) if len(old) == 28 else changed, body)


def seeds() -> Iterator[int]:
    if seed := os.environ.get("ARIANE_FUZZ_SEED"):
        yield int(seed)
        return
    end = time.monotonic() + float(os.environ.get("ARIANE_FUZZ_S", "1"))
    while time.monotonic() < end:
        yield random.SystemRandom().randrange(2**32)


def test_damaged_frames() -> None:
    twins, taken = checkers(), 0
    for seed in seeds():
        rng = random.Random(seed)
        frames = [altered(rng) for _ in range(20)]
        try:
            taken += assert_twins(twins, frames)
        except BaseException:
            print(f"ARIANE_FUZZ_SEED={seed}")
            raise
    assert taken > 0


def test_a_failure_of_native_code_continues_in_python() -> None:
    class Failing:
        def check(self, *_: Any) -> Any:
            raise RuntimeError("planted")

    failures: list[RuntimeError] = []
    fallback = PythonSignatureChecker(SECRETS, FIELDS)
    checker = NativeSignatureChecker(Failing(), fallback, lambda: failures, failures.append)
    for _ in range(2):
        assert check(checker, request(SEND)) == check(fallback, request(SEND))
    assert len(failures) == 1
