"""Sends that a broker rarely receives, chosen by a random number generator: odd values, odd JSON, damaged frames.

RECORDED, `corpus`     sends of Java clients, and one of each kind: plain
`altered`              sends with some odd values, or written in an odd way: half of them are plain
`damaged`              frames with some changed bytes
"""

from __future__ import annotations

import random
from pathlib import Path

from test_send_turn import send_frame

from ariane.protocol.frame import BINARY_FORM, JSON_FORM
from ariane.protocol.records import batch
from ariane.protocol.requests.messaging import LONG_NAMES

RECORDED = [
    path.read_bytes()
    for path in sorted((Path(__file__).parents[1] / "data" / "frames").glob("*-request-*.bin"))
    if path.name[:3] in ("010", "310", "320")
]

# Pieces that have broken a decoder, here or in other software.
TOKENS = [
    b'"', b"\\", b"\\u0001", b"\\u0002", b"\\u00", b"\\u0000", b"\\ud83d\\ude00", b"\\ud800", b"\\udc00", b"\\/",
    b"\\n", b"\\u003c", b"\xed\xa0\x80", b"\xff", b"\xc3", b"\xf0\x9f\x98\x80", b"{", b"}", b"[", b"]", b",", b":",
    b"null", b"true", b"false", b"0", b"-0", b"1.0", b"1e5", b"+1", b" ", b"\n", b"\t", b"2147483648",
    b"-9223372036854775809", b"9" * 400, b'"b":"T",', b'"e":"1",', b'"m":"true",', b'"flag":2,', b'"opaque":1,',
    b'"remark":null,', b'"remark":"",', b'"code":310,', b'"extFields":{},', b'"a":1,', b'"x":null,', b'"topic":"T",',
    b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00", b"\x00\x00", b"\x01", b"\x02", b"CLUSTER",
    b"CLUSTER\\u0001x\\u0002", b"WAIT\\u0001false\\u0002", b"KEYS\\u0001a a b\\u0002", b"DELAY\\u00010\\u0002",
    b"TRAN_MSG\\u0001true\\u0002", b"TAGS\\u0001\\u00e9\\u0002", b"KEYS\x01c \x02", b"WAIT\x01false\x02",
    b"UNIQ_KEY\x01\x02", b"TRUE", "١".encode(), "２".encode(),
]  # fmt: skip


def damaged(rng: random.Random, frame: bytes) -> bytes:
    """Return a frame with some changed bytes. Mostly its lengths are right afterwards, so that the header is decoded."""
    header_size = int.from_bytes(frame[5:8], "big")
    parts = [bytearray(frame[8 : 8 + header_size]), bytearray(frame[8 + header_size :])]
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        part = parts[0] if rng.random() < 0.6 or not parts[1] else parts[1]
        at = rng.randrange(len(part) + 1)
        end = min(len(part), at + rng.randint(1, 12))
        match rng.randrange(6):
            case 0 if at < len(part):
                part[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(part):
                part[at] = rng.randrange(256)
            case 2:
                part[at:at] = rng.choice(TOKENS)
            case 3:
                part[at:end] = rng.choice(TOKENS)
            case 4:
                del part[at:end]
            case _:
                to = rng.randrange(len(part) + 1)
                part[to:to] = part[at:end]
    header, body = bytes(parts[0]), bytes(parts[1])
    sizes = [4 + len(header) + len(body), len(header)]
    if rng.random() < 0.05:
        sizes[rng.randrange(2)] = rng.choice([0, 3, sizes[0] - 1, sizes[1] + 1, 2**24 - 1, 2**31 - 1])
    prefix = (sizes[0]).to_bytes(4, "big") + frame[4:5] + (sizes[1] & 0xFFFFFF).to_bytes(3, "big")
    return prefix + header + body


NUMBERS = [
    "0",
    "1",
    "3",
    "4",
    "-1",
    "-0",
    "+1",
    "01",
    " 1",
    "1.0",
    "1e2",
    "",
    "x",
    "2147483647",
    "2147483648",
    "-9223372036854775808",
    "null",
    "٣",
]
FLAGS = ["true", "false", "true", "false", "True", "0", "1", "", "null"]
TEXTS = [
    "T",
    "Many",
    "%RETRY%G",
    "P",
    "",
    "Ü",
    "😀",
    "x" * 127,
    "x" * 128,
    "x" * 271,
    "ä" * 271,
    "x" * 272,
    "a/b",
    "SCHEDULE_TOPIC_XXXX",
]
PROPERTY_NAMES = [
    "UNIQ_KEY",
    "KEYS",
    "TAGS",
    "WAIT",
    "CLUSTER",
    "DELAY",
    "TRAN_MSG",
    "TIMER_DEL_UNIQKEY",
    "__STARTDELIVERTIME",
    "a",
    "é",
    "",
]
PROPERTY_VALUES = [
    "a",
    "true",
    "false",
    "a b  a",
    "7F00000100002A139A5500000000000A",
    "é😀",
    "x\x01y",
    '"\\/<',
    "0",
    " ",
    "",
    "\x00\x1f",
    "v" * 300,
]


def property_text(rng: random.Random) -> str:
    """Return properties as text, mostly valid."""
    count = rng.choice([0, 1, 1, 2, 2, 3, 4, 5, 20])
    names = (
        rng.choices(PROPERTY_NAMES, [9, 9, 9, 9, 0.1, 0.1, 0.1, 0.1, 0.1, 9, 4, 0.5], k=count)
        if count < 20
        else map(str, range(count))
    )
    text = "\x02".join(f"{name}\x01{rng.choice(PROPERTY_VALUES)}" for name in names)
    return text + rng.choice(["", "", "", "\x02", "\x01", "\x02name", "\x02\x01value"])


def altered(rng: random.Random) -> bytes:
    """Return a send in which some values are unusual, or written in an unusual way."""
    code, form = rng.choice([10, 310, 310, 320]), rng.choice([JSON_FORM, JSON_FORM, BINARY_FORM])
    is_batch = rng.random() < 0.3
    values = [
        "P",
        "T",
        "TBW102",
        "4",
        str(rng.randrange(4)),
        "0",
        "1700000000000",
        "0",
        property_text(rng),
        "0",
        "false",
        "16",
    ]
    pairs = list(zip("abcdefghijklm", [*values, "true" if is_batch else "false"], strict=True))
    for _ in range(rng.choice([0, 0, 0, 0, 0, 1, 1, 2])):
        at = rng.randrange(len(pairs))
        letter = pairs[at][0]
        match rng.randrange(6):
            case 0:
                del pairs[at]
            case 1:
                pairs.insert(
                    rng.randrange(len(pairs)),
                    (rng.choice(["n", "topic", "b", letter, "é", "toString", ""]), rng.choice(TEXTS)),
                )
            case 2:
                rng.shuffle(pairs)
            case _:
                choices = (
                    NUMBERS
                    if letter in "defghjl"
                    else FLAGS
                    if letter in "km"
                    else [property_text(rng)]
                    if letter == "i"
                    else TEXTS
                )
                pairs[at] = (letter, rng.choice(choices))
        if not pairs:
            break
    long_names = {short: name for name, short in LONG_NAMES.items()} if code == 10 else {}
    fields = [(long_names.get(name, name), value) for name, value in pairs]
    body = rng.randbytes(rng.randrange(100))
    if is_batch:
        entries = [batch.BatchEntry(rng.randrange(9), body, property_text(rng)) for _ in range(rng.randrange(4))]
        body = batch.encode(entries) + (body if rng.random() < 0.1 else b"")
    flag, opaque = rng.choice([0, 0, 0, 0, 0, 0, 2, 2, 1, 4]), rng.choice([0, 7, -1, 2**31 - 1])
    header = (
        binary_header(code, flag, opaque, fields)
        if form == BINARY_FORM
        else json_header(rng, code, flag, opaque, fields)
    )
    return (
        (4 + len(header) + len(body)).to_bytes(4, "big") + (form << 24 | len(header)).to_bytes(4, "big") + header + body
    )


def binary_header(code: int, flag: int, opaque: int, fields: list[tuple[str, str]]) -> bytes:
    packed = b"".join(
        len(name.encode()).to_bytes(2, "big") + name.encode() + len(value.encode()).to_bytes(4, "big") + value.encode()
        for name, value in fields
    )
    start = (
        code.to_bytes(2, "big")
        + b"\x0c\x01\x91"
        + opaque.to_bytes(4, "big", signed=True)
        + flag.to_bytes(4, "big")
        + bytes(4)
    )
    return start + len(packed).to_bytes(4, "big") + packed


def json_header(rng: random.Random, code: int, flag: int, opaque: int, fields: list[tuple[str, str]]) -> bytes:
    def quoted(text: str, chance: float) -> str:
        return '"' + "".join(escaped(rng, character, chance) for character in text) + '"'

    names = 0.1 if rng.random() < 0.02 else 0
    pairs = ",".join(f"{quoted(name, names)}:{quoted(value, 0.03)}" for name, value in fields)
    members = [f'"extFields":{{{pairs}}}', f'"flag":{flag}', f'"opaque":{opaque}']
    members += rng.choices(
        [
            ['"language":"JAVA"', '"serializeTypeCurrentRPC":"JSON"', '"version":401'],
            ['"language":"GO"', '"remark":null', '"version":317'],
            ['"language":null'],
            ['"remark":""', '"language":"\\u0047O"'],
            ['"extra":[{"a":1}]'],
        ],
        [10, 5, 3, 1, 1],
    )[0]
    if rng.random() < 0.3:
        rng.shuffle(members)
    return f'{{"code":{code},{",".join(members)}}}'.encode()


def escaped(rng: random.Random, character: str, chance: float) -> str:
    """Return a character as it may be written in a JSON text; raw control characters are not JSON, but occur."""
    if rng.random() < chance:
        units = character.encode("utf-16-be").hex()
        return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
    if character in '"\\':
        return "\\" + character
    return f"\\u{ord(character):04x}" if character < " " and rng.random() < 0.999 else character


def corpus(rng: random.Random) -> list[bytes]:
    """Return frames to damage: every form of a send, and recorded ones."""
    body = batch.encode([batch.BatchEntry(1, b"one", "KEYS\x01k j"), batch.BatchEntry(2, b"", "TAGS\x01é\x02x\x01y")])
    frames = list(RECORDED)
    for code in (10, 310, 320):
        for form in (JSON_FORM, BINARY_FORM):
            queue_id, flag = rng.randrange(4), rng.choice([0, 0, 2])
            frames.append(send_frame(rng.randrange(1000), code=code, form=form, queue_id=queue_id, flag=flag))
            frames.append(
                send_frame(code=code, form=form, batch=True, body=body, property_text="x\x01z\x02WAIT\x01true")
            )
    frames.append(
        send_frame(
            reconsume_times=3, sys_flag=0x31, property_text="KEYS\x01a  b a\x02no pair\x02\x01v\x02n\x01a\x01b\x02"
        )
    )
    frames.append(send_frame(topic="Many", body=b"", property_text="é\x01😀\x02TAGS\x01日本"))
    return frames
