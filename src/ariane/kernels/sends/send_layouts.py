"""Layouts of headers: the sends of a producer differ in few values, so all the rest is compared instead of parsed.

    {"code":310,"extFields":{"a":"P","b":"T",…,"e":"1",…,"i":"KEYS\\u0001k-7\\u0002TAGS\\u0001red"},"flag":0,…,"opaque":7,…}
                                  -       -          -                     ---               ---                    -

A layout is learned from a header that the parser found to be that of a plain send. It is a regular expression: the text of
this header, with a group for each value that may differ. A header that matches has the members of the first one in the same
order, and nothing else, and the parser would return each differing value as it is written:

    texts       printable ASCII without `"` and `\\`: no escapes, no separators of properties, not too long for their member
    numbers     decimal digits without a leading zero, few enough for the type of the member
    lengths     in the ROCKETMQ form: compared with those of the values after the match

All other values decide about something (WAIT, flags, a batch) or rarely differ; they have to be those of the first header. A
header with two members or two properties of one name is not learned, because which of them counts is for the parser to say.
"""

from __future__ import annotations

import re
from struct import Struct

import msgspec

from ariane.model.message import CLUSTER, KEYS, TAGS, UNIQ_KEY, WAIT
from ariane.protocol.codes import RequestCode
from ariane.protocol.frame import BINARY_FORM, JSON_FORM, PREFIX_SIZE
from ariane.protocol.records.properties import NAME_END, PAIR_END
from ariane.protocol.requests.messaging import LONG_NAMES, NAME_MAX, SendMessage

LAYOUTS_MAX = 4  # tried for a header, most recently used first: each that does not match takes half a microsecond
COUNTS_MAX = 16  # numbers of escapes that have layouts
PAUSE = 16  # headers that are parsed after one that none of LAYOUTS_MAX layouts matched: others may follow
PARSED_PER_LAYOUT = 2000  # sends; to learn a layout takes as long as to parse 70 of them

HEADER_AT = PREFIX_SIZE - 4  # `SendLayouts` takes form and size with a header

_CHARACTER = r"[ !#-\[\]-~]"
_TEXT, _NAME = f"{_CHARACTER}+", f"{_CHARACTER}{{1,{NAME_MAX}}}"
_INT32, _INT64 = "0|1[0-9]{0,9}|[2-9][0-9]{0,8}", "0|[1-9][0-9]{0,17}"
_TOPIC, _QUEUE_ID, _BORN_MS, _PROPERTIES = "b", "e", "g", "i"
_OPAQUE, _FIELDS = ":opaque", ":extFields"  # not fields themselves
_REQUIRED = {_TOPIC, _QUEUE_ID, _BORN_MS, _PROPERTIES, _OPAQUE}
# Members whose values may differ; also producer group, default topic, and number of its queues.
_VALUES = {_TOPIC: _TEXT, _QUEUE_ID: _INT32, _BORN_MS: _INT64, "a": _NAME, "c": _NAME, "d": _INT32}
_is_text = re.compile(_TEXT).fullmatch

# A strict JSON header as clients write it. Texts are quoted and numbers are not, so that the parser has no choice; it has a lower
# limit for the size of other headers, which a layout would not have.
_FIELD = rf'"[A-Za-z]+":"(?:{_CHARACTER}|\\u000[12])*"'
_NUMBER, _WORD = (
    '"(?:code|flag|opaque|version)":-?(?:0|[1-9][0-9]*)',
    rf'"(?:language|serializeTypeCurrentRPC)":"{_CHARACTER}*"',
)
_MEMBER = f'(?:{_NUMBER}|{_WORD}|"remark":null)'
_match_json = re.compile(rf'\{{(?:{_MEMBER},)*"extFields":\{{({_FIELD}(?:,{_FIELD})*)\}}(?:,{_MEMBER})*\}}').fullmatch
_iter_fields = re.compile(r'"([A-Za-z]+)":"([^"]*)"').finditer
_iter_members = re.compile(r'"([A-Za-z]+)":("[^"]*"|[^",{}]+)').finditer
_JSON_NAME_END, _JSON_PAIR_END = r"\u0001", r"\u0002"  # separators of properties
_LONG_START = f'{{"code":{RequestCode.SEND_MESSAGE:d},'

# A ROCKETMQ header without a remark: code, language, version, opaque, flag, length of the remark, length of the extFields.
_BINARY_START = Struct(">hBhiiii")
_BINARY_OPAQUE_AT = 5
_I16, _I32 = Struct(">h"), Struct(">i")

_Member = tuple[str, int, int]  # name, start and end of its value in the header


class SendLayout(msgspec.Struct, frozen=True, gc=False):
    """The layout of a header."""

    pattern: re.Pattern[str]  # of the header and the four bytes before it: form and size
    fields: tuple[int, ...]  # numbers of the groups with topic, queue id, born time, opaque, UNIQ_KEY, KEYS, TAGS
    values: tuple[int, ...]  # those with the values of stored properties
    properties: str  # as stored: a format for these values
    lengths: tuple[int, ...]  # those with lengths, in the ROCKETMQ form; the next group of each has this length
    request: SendMessage  # that of the first header: flags and redeliveries are the same
    form: int  # JSON or ROCKETMQ header
    is_one_way: bool  # gets no response

    def has_right_lengths(self, match: re.Match[str]) -> bool:
        """Return whether the lengths in a ROCKETMQ header are those of the values."""
        return all(_I32.pack(len(match[n + 1])) == match[n].encode("latin-1") for n in self.lengths)


class _Candidates:
    """The layouts of headers with a certain number of escapes."""

    __slots__ = ("layouts", "pause")

    def __init__(self) -> None:
        self.layouts: list[SendLayout] = []  # most recently used first
        self.pause = 0  # headers that are parsed before these layouts are tried again


class SendLayouts:
    """The layouts that were used last, by the number of backslashes: two for each property of a JSON header."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster  # value of the last stored property
        self._candidates: dict[int, _Candidates] = {}
        # Sends that were parsed, less those that layouts have cost.
        self._parsed = LAYOUTS_MAX * COUNTS_MAX * PARSED_PER_LAYOUT

    def match(self, header: str) -> tuple[SendLayout, re.Match[str]] | None:
        """Return the layout of a header and its groups; None if the header has to be parsed.

        Args:
            header: The header of a frame with the four bytes before it, as Latin-1.
        """
        candidates = self._candidates.get(header.count("\\"))
        if candidates is None:
            return None
        if candidates.pause:
            candidates.pause -= 1
            return None
        layouts = candidates.layouts
        for layout in layouts:
            match = layout.pattern.fullmatch(header)
            if match is None or (layout.lengths and not layout.has_right_lengths(match)):
                continue
            if layout is not layouts[0]:
                layouts.remove(layout)
                layouts.insert(0, layout)
            return layout, match
        if len(layouts) == LAYOUTS_MAX:
            candidates.pause = PAUSE
        return None

    def learn(self, header: str, request: SendMessage, is_one_way: bool, properties: bytes) -> None:
        """Learn the layout of a plain send of one message that was parsed.

        Args:
            header: As `match` takes it.
            request: Its decoded fields.
            is_one_way: Whether it gets no response.
            properties: As stored.
        """
        self._parsed += 1
        if self._parsed < PARSED_PER_LAYOUT:
            return
        self._parsed -= PARSED_PER_LAYOUT
        layout = _LayoutBuilder(header).build(request, is_one_way, self._cluster)
        if layout is None or not _is_right(layout, header, request, properties):
            return
        candidates = self._candidates.setdefault(header.count("\\"), _Candidates())
        if all(layout.pattern != other.pattern for other in candidates.layouts):  # not one that was paused
            candidates.layouts = [layout, *candidates.layouts[: LAYOUTS_MAX - 1]]
        if len(self._candidates) > COUNTS_MAX:
            del self._candidates[next(iter(self._candidates))]


def _is_right(layout: SendLayout, header: str, request: SendMessage, properties: bytes) -> bool:
    """Return whether a layout yields of its own header what the parser returned."""
    match = layout.pattern.fullmatch(header)
    if match is None or not layout.has_right_lengths(match):
        return False
    topic, queue_id, born_ms, *_ = match.group(*layout.fields)
    stored = (layout.properties % match.group(*layout.values)).encode()
    expected = (request.topic, request.queue_id, request.born_ms, properties)
    return (topic, int(queue_id), int(born_ms), stored) == expected


class _LayoutBuilder:
    """Builds the layout of one header: copies its text into a pattern, except for the values that may differ."""

    def __init__(self, header: str) -> None:
        self._header = header  # with form and size, as `SendLayouts` takes it
        self._is_binary = ord(header[0]) == BINARY_FORM  # values have lengths
        self._pattern = ["()", re.escape(header[0]), "..."]  # group 1 is empty; the size is that of the header
        self._position = HEADER_AT  # up to which the header is in the pattern
        self._count = 1  # of groups
        self._lengths: list[int] = []  # groups of lengths; the next group has this length

    def build(self, request: SendMessage, is_one_way: bool, cluster: str) -> SendLayout | None:
        """Return the layout; None if the header is not written as clients usually do."""
        members = _binary_members(self._header) if self._is_binary else _json_members(self._header)
        names = [name for name, _, _ in members]
        if len(set(names)) < len(names) or not _REQUIRED.issubset(names):
            return None
        groups: dict[str, int] = {}
        properties: dict[str, int] = {}
        for name, start, end in members:
            if name == _FIELDS:
                self._begin_measured(start)
            elif name == _PROPERTIES:
                properties = self._add_properties(start, end)
            elif name == _OPAQUE:
                groups[name] = self._add_group(start, end, "...." if self._is_binary else _INT32)
            elif name in _VALUES:
                if self._is_binary:
                    self._lengths.append(self._add_group(start - 4, start, "...."))
                groups[name] = self._add_group(start, end, _VALUES[name])
        if not properties:
            return None
        self._copy(len(self._header))
        if self._is_binary:
            self._pattern.append(")")
        fields = [groups[name] for name in (_TOPIC, _QUEUE_ID, _BORN_MS, _OPAQUE)]
        stored = [f"{_escape(name)}{NAME_END}%s" for name in properties]
        return SendLayout(
            pattern=re.compile("".join(self._pattern), re.DOTALL),
            fields=(*fields, *(properties.get(name, 1) for name in (UNIQ_KEY, KEYS, TAGS))),
            values=tuple(properties.values()),
            properties=PAIR_END.join([*stored, f"{CLUSTER}{NAME_END}{_escape(cluster)}"]),
            lengths=tuple(self._lengths),
            request=request,
            form=ord(self._header[0]),
            is_one_way=is_one_way,
        )

    def _add_properties(self, start: int, end: int) -> dict[str, int]:
        """Add a group for each value that is stored; return their numbers by name, none if a property is unusual."""
        if self._is_binary:
            self._begin_measured(start)
        name_end, pair_end = (NAME_END, PAIR_END) if self._is_binary else (_JSON_NAME_END, _JSON_PAIR_END)
        names: set[str] = set()
        groups: dict[str, int] = {}
        position = start
        for pair in self._header[start:end].removesuffix(pair_end).split(pair_end):
            name, _, value = pair.partition(name_end)
            if name in names or name == CLUSTER or not (_is_text(name) and _is_text(value)):
                return {}
            names.add(name)
            position += len(pair)
            if name != WAIT:  # decides about the send, and is not stored
                groups[name] = self._add_group(position - len(value), position, _TEXT)
            position += len(pair_end)
        if self._is_binary:
            self._copy(end)
            self._pattern.append(")")
        return groups

    def _begin_measured(self, start: int) -> None:
        """Begin a group of text with the bytes that are counted by the length before `start`."""
        self._lengths.append(self._add_group(start - 4, start, "...."))
        self._pattern.append("(")
        self._count += 1

    def _add_group(self, start: int, end: int, pattern: str) -> int:
        """Add a group in place of a part of the header; return its number."""
        self._copy(start)
        self._pattern.append(f"({pattern})")
        self._position = end
        self._count += 1
        return self._count

    def _copy(self, end: int) -> None:
        """Add the text of the header up to `end`."""
        self._pattern.append(re.escape(self._header[self._position : end]))
        self._position = end


def _escape(text: str) -> str:
    return text.replace("%", "%%")


def _json_members(header: str) -> list[_Member]:
    """Return the fields of a JSON header and its opaque, in their order; none if it is not written as usual."""
    match = _match_json(header, HEADER_AT)
    if match is None or ord(header[0]) != JSON_FORM:
        return []
    start, end = match.span(1)
    members = [(f":{member[1]}", *member.span(2)) for member in _iter_members(header, HEADER_AT, start)]
    members += [(member[1], *member.span(2)) for member in _iter_fields(header, start, end)]
    members += [(f":{member[1]}", *member.span(2)) for member in _iter_members(header, end)]
    return _with_short_names(members) if header.startswith(_LONG_START, HEADER_AT) else members


def _binary_members(header: str) -> list[_Member]:
    """Return the opaque of a ROCKETMQ header, all its fields as one, and each of them; none if it has a remark."""
    data = header.encode("latin-1")
    code, _, _, _, _, remark_size, _ = _BINARY_START.unpack_from(data, HEADER_AT)
    if remark_size:
        return []
    opaque_at, position = HEADER_AT + _BINARY_OPAQUE_AT, HEADER_AT + _BINARY_START.size
    members = [(_OPAQUE, opaque_at, opaque_at + 4), (_FIELDS, position, len(data))]
    while position < len(data):
        (size,) = _I16.unpack_from(data, position)
        name = header[position + 2 : position + 2 + size]
        position += 2 + size
        (size,) = _I32.unpack_from(data, position)
        position += 4 + size
        members.append((name, position - size, position))
    return _with_short_names(members) if code == RequestCode.SEND_MESSAGE else members


def _with_short_names(members: list[_Member]) -> list[_Member]:
    return [(LONG_NAMES.get(name, name), start, end) for name, start, end in members]
