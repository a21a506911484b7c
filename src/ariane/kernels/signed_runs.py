"""Signed requests of a turn: the signatures of a run of frames are verified, and removed from them.

    frames ─▶ extFields ─▶ access key ─▶ HMAC-SHA1 of the sorted values and the body ─▶ permit ─▶ frames without signature

A frame is plain if a client writes it so: one of the codes, strict JSON without white space or a ROCKETMQ header without a remark,
each extField once, names in ASCII. A frame without an access key is plain, too: `permit` decides about it as about all others. A
run ends before the first frame that is not plain, has another access key than the first, a wrong signature, or is not permitted:
the handler of single requests serves that one, and decides about every refusal.
"""

from __future__ import annotations

import hmac
import re
from binascii import b2a_base64
from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import msgspec

from ariane.protocol.command import LANGUAGES, Int32
from ariane.protocol.frame import BINARY_FORM, FRAME_MAX, JSON_FORM, PREFIX, PREFIX_SIZE
from ariane.protocol.signing import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, UNIQUE_KEY_QUERY

# Access key ("" without one), request code, values of the fields of this code (None if absent) -> whether it is served.
Permit = Callable[[str, int, tuple[str | None, ...]], bool]


class SignedRun(NamedTuple):
    """Requests with right signatures that are permitted. Both lists have an item for each, and one for the end of the last."""

    frames: bytes  # without access keys, signatures and tokens
    positions: list[int]  # of the frames in the data
    starts: list[int]  # of the same frames in `frames`


class SignatureChecker(Protocol):
    """Verifies runs of signed requests."""

    def check(self, data: bytes, position: int, header_max: int, frames_max: int, permit: Permit) -> SignedRun:
        """Return the permitted requests in `data` from `position` on.

        Args:
            data: Received frames; the last may be incomplete.
            position: Start of a frame.
            header_max: Bytes of a plain header.
            frames_max: Most frames of this run.
            permit: Called with the first request of each code with the same values.
        """
        ...


class PythonSignatureChecker:
    """Decodes headers with msgspec, and those that it writes in another way with a regular expression. [SignatureChecker]

    Args:
        secrets: Secret keys by access key.
        fields: Codes of the requests, with the extFields that `permit` is called with.
    """

    def __init__(self, secrets: Mapping[str, str], fields: Mapping[int, tuple[str, ...]]) -> None:
        # Keyed digests to copy, which takes half as long as a new one.
        self._keys = {key: hmac.new(secret.encode(), digestmod="sha1") for key, secret in secrets.items() if key}
        self._fields = fields
        self._names: dict[tuple[str, ...], _FieldNames | None] = {}  # of headers; at most NAMES_MAX

    def check(self, data: bytes, position: int, header_max: int, frames_max: int, permit: Permit) -> SignedRun:
        """Return the permitted requests in `data` from `position` on. [SignatureChecker.check]"""
        pieces: list[bytes] = []
        positions, starts, size = [position], [0], 0
        run_key: str | None = None
        permitted: set[tuple[int, tuple[str | None, ...]]] = set()
        while len(positions) <= frames_max:
            request = self._read(data, position, header_max)
            if request is None or (names := self._fields.get(request.code)) is None:
                break
            code, values, content, header, body, form, end = request
            access_key = values.get(ACCESS_KEY, "")
            if (run_key is not None and access_key != run_key) or not self._is_signed(values, content, body):
                break
            subject = (code, tuple([values.get(name) for name in names]))
            if subject not in permitted:
                if not permit(access_key, *subject):
                    break
                permitted.add(subject)
            run_key, position = access_key, end
            pieces += (PREFIX.pack(4 + len(header) + len(body), form << 24 | len(header)), header, body)
            size += PREFIX_SIZE + len(header) + len(body)
            positions.append(position)
            starts.append(size)
        return SignedRun(b"".join(pieces), positions, starts)

    def _is_signed(self, values: dict[str, str], content: str, body: bytes) -> bool:
        """Return whether a request has the signature of its access key, or no access key."""
        if ACCESS_KEY not in values:
            return True
        key, received = self._keys.get(values[ACCESS_KEY]), values.get(SIGNATURE)
        if key is None or received is None:
            return False
        digest = key.copy()
        digest.update(content.encode() + body)
        return hmac.compare_digest(received.encode(), b2a_base64(digest.digest(), newline=False))

    def _read(self, data: bytes, position: int, header_max: int) -> _Request | None:
        """Return the request at `position`; None if the frame is incomplete or not plain."""
        if len(data) - position < PREFIX_SIZE:
            return None
        length, form_and_size = PREFIX.unpack_from(data, position)
        size, form = form_and_size & 0xFFFFFF, form_and_size >> 24
        end, body_at = position + 4 + length, position + PREFIX_SIZE + size
        if not 4 <= length <= FRAME_MAX - 4 or end > len(data) or size > min(length - 4, header_max):
            return None
        header = data[position + PREFIX_SIZE : body_at]
        try:
            if form == BINARY_FORM:
                read = _read_binary(header)
            else:
                read = (self._read_usual(header) or _read_json(header)) if form == JSON_FORM else None
        except UnicodeDecodeError:
            return None
        return None if read is None else _Request(*read, data[body_at:end], form, end)

    def _read_usual(self, header: bytes) -> _Read | None:
        """Return a JSON header that msgspec writes as it is: with one name for each field, and nothing else; None for others."""
        try:
            request = _decode_usual(header)
        except msgspec.DecodeError:
            return None
        fields = request.fields
        field_names = tuple(fields)
        try:
            names = self._names[field_names]
        except KeyError:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            names = self._names[field_names] = _sorted_names(field_names)
        if names is None or _encode(request) != header:
            return None
        values = dict(fields)
        for name in names.removed:
            del fields[name]
        return request.code, values, "".join([values[name] for name in names.signed]), _encode(request)


class NativeSignatureChecker:
    """Verifies signatures in native code. [SignatureChecker]

    Args:
        checker: `ariane_native.SignatureChecker`.
        fallback: Verifies if the native code has failed.
        has_failed: Returns whether the native code is not to be used any more.
        report: Called with an error of the native code.
    """

    def __init__(
        self,
        checker: Any,
        fallback: SignatureChecker,
        has_failed: Callable[[], object],
        report: Callable[[RuntimeError], None],
    ) -> None:
        self._check = checker.check
        self._fallback = fallback
        self._has_failed = has_failed
        self._report = report

    def check(self, data: bytes, position: int, header_max: int, frames_max: int, permit: Permit) -> SignedRun:
        """Return the permitted requests in `data` from `position` on. [SignatureChecker.check]"""
        if not self._has_failed():
            try:
                return SignedRun._make(self._check(data, position, header_max, frames_max, permit))
            except RuntimeError as error:
                # An error of `permit` is raised once more here. Otherwise it was a panic of the native code.
                run = self._fallback.check(data, position, header_max, frames_max, permit)
                self._report(error)
                return run
        return self._fallback.check(data, position, header_max, frames_max, permit)


# --- frames ---

NAMES_MAX = 256  # different sequences of names that are remembered; beyond, all are sorted again
_REMOVED = frozenset({ACCESS_KEY, SIGNATURE, SECURITY_TOKEN})

# Code, extFields, the values that are signed, and the header without access key, signature and token.
_Read = tuple[int, dict[str, str], str, bytes]


class _Request(NamedTuple):
    """A plain request. The first four are a `_Read`."""

    code: int
    values: dict[str, str]
    content: str
    header: bytes
    body: bytes
    form: int
    end: int  # of its frame in the data


class _UsualHeader(
    msgspec.Struct,
    forbid_unknown_fields=True,
    gc=False,
    rename={"fields": "extFields", "form": "serializeTypeCurrentRPC"},
):
    """A JSON header of the Java client, or of another that writes the same members in the same order."""

    code: Annotated[int, msgspec.Meta(ge=1, le=9_999_999_999)]
    fields: dict[str, str]
    flag: Int32
    language: Literal[LANGUAGES]  # type: ignore[valid-type] # a tuple of texts
    opaque: Int32
    form: Literal["JSON", "ROCKETMQ"]
    version: Int32


class _FieldNames(NamedTuple):
    """Names of the extFields of a header."""

    signed: list[str]  # sorted
    removed: list[str]  # access key, signature and token, if the header has them


_decode_usual = msgspec.json.Decoder(_UsualHeader).decode
_encode = msgspec.json.Encoder().encode

_ASCII = rb"[ !#-\[\]-\x7f]"  # no quote, backslash or control character
_NUMBER = rb"(?:0|-?[1-9][0-9]{0,9})"
_NULL_OR_WORD = rb'(?:null|"%b*+")' % _ASCII
_MEMBER = rb'"(?:(?:flag|opaque|version)":%b|(?:language|serializeTypeCurrentRPC)":%b|remark":null)' % (
    _NUMBER, _NULL_OR_WORD,
)  # fmt: skip
_TEXT = rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}))*+'
_FIELD = rb'"%b++":"%b"' % (_ASCII, _TEXT)
_match_name = re.compile(_ASCII.decode() + "+").fullmatch
_match_json = re.compile(
    rb'\{"code":([1-9][0-9]{0,9}),(?:%b,)*+"extFields":\{(%b(?:,%b)*+)\}(?:,%b)*+\}'
    % (_MEMBER, _FIELD, _FIELD, _MEMBER)
).fullmatch
_find_fields = re.compile(rb'"(%b++)":"(%b)"' % (_ASCII, _TEXT)).findall
_remove_signature = re.compile(rb',"(?:AccessKey|SecurityToken|Signature)":"%b"' % _TEXT).sub
_decode_text = msgspec.json.Decoder(str).decode

# code, language, version, opaque, flag, length of the remark, length of the extFields
_BINARY_START = Struct(">hBhiiii")
_NAME_SIZE, _VALUE_SIZE, _FIELDS_SIZE = Struct(">h"), Struct(">i"), Struct(">i")


def _sorted_names(names: tuple[str, ...]) -> _FieldNames | None:
    """Sort the names of a header; None if it is not plain with them."""
    if not names or UNIQUE_KEY_QUERY in names or not all(map(_match_name, names)):
        return None
    signed = sorted(name for name in names if name != SIGNATURE)
    return _FieldNames(signed, [name for name in names if name in _REMOVED])


def _signed_content(values: Mapping[str, str]) -> str:
    return "".join([values[name] for name in sorted(values) if name != SIGNATURE])


def _read_json(header: bytes) -> _Read | None:
    match = _match_json(header)
    if match is None:
        return None
    header.decode()  # texts have to be UTF-8
    fields = _find_fields(match[2])
    values = {
        name.decode(): _decode_text(b'"%b"' % value) if b"\\" in value else value.decode() for name, value in fields
    }
    if len(values) < len(fields) or UNIQUE_KEY_QUERY in values:
        return None
    start, stop = match.span(2)
    kept = _remove_signature(b"", b"," + match[2])[1:]
    return int(match[1]), values, _signed_content(values), header[:start] + kept + header[stop:]


def _read_binary(header: bytes) -> _Read | None:
    if len(header) < _BINARY_START.size:
        return None
    code, *_, remark_size, fields_size = _BINARY_START.unpack_from(header)
    if remark_size or _BINARY_START.size + fields_size != len(header):
        return None
    values: dict[str, str] = {}
    names: set[str] = set()
    kept: list[bytes] = []
    for field in _binary_fields(header):
        if field is None or field[0] in names:
            return None
        name, value, piece = field
        names.add(name)
        if value:  # of length zero, which Java reads as null
            values[name] = value
        if name not in _REMOVED:
            kept.append(piece)
    if UNIQUE_KEY_QUERY in names:
        return None
    packed = b"".join(kept)
    start = header[: _BINARY_START.size - _FIELDS_SIZE.size] + _FIELDS_SIZE.pack(len(packed))
    return code, values, _signed_content(values), start + packed


def _binary_fields(header: bytes) -> Iterator[tuple[str, str, bytes] | None]:
    """Yield name, value and all bytes of each extField of a ROCKETMQ header; None for one that is not plain."""
    position = _BINARY_START.size
    while position < len(header):
        value_at = position + _NAME_SIZE.size
        size = _NAME_SIZE.unpack_from(header, position)[0] if value_at <= len(header) else 0
        name = header[value_at : value_at + size]
        value_at += size + _VALUE_SIZE.size
        if size <= 0 or value_at > len(header) or not name.isascii():
            yield None
            return
        (size,) = _VALUE_SIZE.unpack_from(header, value_at - _VALUE_SIZE.size)
        if size < 0 or value_at + size > len(header):
            yield None
            return
        yield name.decode(), header[value_at : value_at + size].decode(), header[position : value_at + size]
        position = value_at + size
