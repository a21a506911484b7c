"""Reads the pulls that one read brought: what they have in common is a `PullTemplate`, the rest are numbers.

    frame ─ native: a header that differs from a known one only in numbers ─┬→ PlainPull: template, numbers
          └ parse_pull → request → template of all but its numbers ─────────┘
                                   └ native: remember the header

Native code parses no header. It compares each with headers that msgspec has parsed: with a zero byte in place of each number that
pulls have of their own, such a header is a key. A header without zero bytes that has the same key is the parsed one with other
numbers, so that msgspec would read the same of it. Before a key is remembered, msgspec has to find other numbers in their place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from ariane.kernels.pulls.pull_turn import parse_pull
from ariane.protocol.frame import JSON_FORM, PREFIX, PREFIX_SIZE
from ariane.protocol.requests.messaging import PullMessage

# Templates and headers, and characters of them, that are remembered; beyond, all are read again.
TEMPLATES_MAX, TEMPLATES_CHARS_MAX = 10_000, 1_000_000
HEADERS_MAX, HEADERS_BYTES_MAX = 10_000, 4_000_000
# Pulls that are parsed for each header that is remembered: to remember one takes as long as to parse ten.
PARSED_PER_HEADER = 20
_NUMBER = re.compile(rb'("queueId":"|"queueOffset":"|"commitOffset":"|"opaque":)(0|[1-9][0-9]*)')
_REQUIRED = {b'"queueId":"', b'"queueOffset":"', b'"opaque":'}


class PullTemplate(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What all pulls have in common that differ only in queue, offsets and opaque."""

    request: PullMessage  # one of these pulls


# A pull that expects a response: template, queue id, queue offset, commit offset, opaque, form of the header, end of the frame in
# the data. A plain tuple, because each pull needs one.
PlainPull = tuple[PullTemplate, int, int, int, int, int, int]


class PullReader(Protocol):
    """Reads pulls."""

    def read(self, data: bytes, position: int, header_max: int) -> PlainPull | None:
        """Return the pull at `position`; None if the frame is incomplete, not a pull, or not plain. [parse_pull]"""
        ...


class PythonPullReader:
    """Parses each pull. [PullReader]"""

    def __init__(self) -> None:
        self._templates: dict[tuple[Any, ...], PullTemplate] = {}  # by what their pulls have in common
        self._chars = 0  # of the subscriptions of these templates

    def read(self, data: bytes, position: int, header_max: int) -> PlainPull | None:
        """Return the pull at `position`. [PullReader.read]"""
        parsed = parse_pull(data, position, header_max)
        if parsed is None:
            return None
        request, opaque, form, end = parsed
        key = (
            request.consumer_group, request.topic, request.sys_flag, request.subscription, request.sub_version,
            request.expression_type, request.max_msg_nums,
        )  # fmt: skip
        template = self._templates.get(key) or self._add(key, request)
        return template, request.queue_id, request.queue_offset, request.commit_offset, opaque, form, end

    def _add(self, key: tuple[Any, ...], request: PullMessage) -> PullTemplate:
        chars = len(request.subscription or "")
        if len(self._templates) >= TEMPLATES_MAX or self._chars + chars > TEMPLATES_CHARS_MAX:
            self._templates.clear()
            self._chars = 0
        self._chars += chars
        template = self._templates[key] = PullTemplate(request)
        return template


class NativePullReader:
    """Compares headers in native code with those of pulls that were parsed. [PullReader]

    Args:
        module: `ariane_native`.
        has_failed: Returns whether the native code is not to be used any more.
        report: Called with an error of the native code.
    """

    def __init__(self, module: Any, has_failed: Callable[[], object], report: Callable[[RuntimeError], None]) -> None:
        self._headers = module.PullHeaders()  # known headers, with their templates
        self._find = self._headers.find  # a bound method: each pull needs it
        self._has_failed = has_failed
        self._report = report
        self._parser = PythonPullReader()  # reads what is not known
        self._count = 0  # of the known headers
        self._bytes = 0  # of the known headers
        self._parsed = HEADERS_MAX * PARSED_PER_HEADER  # pulls, less those that known headers have cost

    def read(self, data: bytes, position: int, header_max: int) -> PlainPull | None:
        """Return the pull at `position`. [PullReader.read]"""
        try:
            pull: PlainPull | None = self._find(data, position, header_max)
        except RuntimeError as error:
            self._report(error)
            self._find = lambda *_: None
            pull = None
        if pull is not None:
            return pull
        pull = self._parser.read(data, position, header_max)
        if pull is not None and pull[5] == JSON_FORM:
            self._learn(data, position, pull)
        return pull

    def _learn(self, data: bytes, position: int, pull: PlainPull) -> None:
        """Remember the header of a pull that was parsed."""
        self._parsed += 1
        if self._parsed < PARSED_PER_HEADER or self._has_failed():
            return
        self._parsed -= PARSED_PER_HEADER
        size = PREFIX.unpack_from(data, position)[1]
        header = data[position + PREFIX_SIZE : position + PREFIX_SIZE + size]
        if not has_known_numbers(header, pull[0].request):
            return
        if self._count >= HEADERS_MAX or self._bytes + size > HEADERS_BYTES_MAX:
            self._headers.clear()
            self._count = self._bytes = 0
        self._count += 1
        self._bytes += size
        self._headers.learn(_NUMBER.sub(rb"\1\0", header), pull[0])


def has_known_numbers(header: bytes, request: PullMessage) -> bool:
    """Return whether the parser reads the numbers of pulls with this JSON header where native code does.

    With other numbers in their place, it has to return these, and the rest of `request`.
    """
    names = _NUMBER.findall(header)
    markers = {name for name, _ in names}
    if len(markers) < len(names) or not markers >= _REQUIRED or b"\0" in header:
        return False
    numbers = {name: 1_000_001 + index for index, (name, _) in enumerate(names)}
    probe = _NUMBER.sub(lambda match: match[1] + b"%d" % numbers[match[1]], header)
    parsed = parse_pull(PREFIX.pack(4 + len(probe), len(probe)) + probe, 0, len(probe))
    if parsed is None:
        return False
    expected = msgspec.structs.replace(
        parsed[0],
        queue_id=numbers[b'"queueId":"'],
        queue_offset=numbers[b'"queueOffset":"'],
        commit_offset=numbers.get(b'"commitOffset":"', 0),
    )
    return parsed[:2] == (expected, numbers[b'"opaque":']) and _common(expected) == _common(request)


def _common(request: PullMessage) -> PullMessage:
    """Return a pull without the members that its template does not have."""
    return msgspec.structs.replace(request, queue_id=0, queue_offset=0, commit_offset=0, suspend_timeout_millis=0)
