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
from typing import Any, NamedTuple, Protocol

import msgspec

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
    """Parses each header with a regular expression. [SignatureChecker]

    Args:
        secrets: Secret keys by access key.
        fields: Codes of the requests, with the extFields that `permit` is called with.
    """

    def __init__(self, secrets: Mapping[str, str], fields: Mapping[int, tuple[str, ...]]) -> None:
        self._secrets = {key.encode(): secret.encode() for key, secret in secrets.items()}
        self._fields = {code: tuple(name.encode() for name in names) for code, names in fields.items()}

    def check(self, data: bytes, position: int, header_max: int, frames_max: int, permit: Permit) -> SignedRun:
        """Return the permitted requests in `data` from `position` on. [SignatureChecker.check]"""
        pieces: list[bytes] = []
        positions, starts, size = [position], [0], 0
        run_key: bytes | None = None
        permitted: set[tuple[int, tuple[bytes | None, ...]]] = set()
        while len(pieces) < frames_max:
            request = _read(data, position, header_max)
            if request is None or (names := self._fields.get(request.code)) is None:
                break
            values = request.values
            access_key = values.get(_ACCESS_KEY, b"")
            if (run_key is not None and access_key != run_key) or not self._is_signed(request, access_key):
                break
            subject = (request.code, tuple([values.get(name) for name in names]))
            if subject not in permitted:
                if not permit(access_key.decode(), request.code, tuple(map(_text, subject[1]))):
                    break
                permitted.add(subject)
            run_key, position = access_key, request.end
            header = request.header
            frame = PREFIX.pack(4 + len(header) + len(request.body), request.form << 24 | len(header)) + header
            pieces += (frame + request.body,)
            size += len(pieces[-1])
            positions.append(position)
            starts.append(size)
        return SignedRun(b"".join(pieces), positions, starts)

    def _is_signed(self, request: _Request, access_key: bytes) -> bool:
        """Return whether a request has the signature of its access key, or no access key."""
        values = request.values
        if _ACCESS_KEY not in values:
            return True
        secret, received = self._secrets.get(access_key), values.get(_SIGNATURE)
        if not access_key or secret is None or received is None:
            return False
        content = [values[name] for name in sorted(values) if name != _SIGNATURE]
        digest = hmac.digest(secret, b"".join([*content, request.body]), "sha1")
        return hmac.compare_digest(received, b2a_base64(digest, newline=False))


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

_ACCESS_KEY, _SIGNATURE = ACCESS_KEY.encode(), SIGNATURE.encode()
_REMOVED = frozenset({_ACCESS_KEY, _SIGNATURE, SECURITY_TOKEN.encode()})
_UNIQUE_KEY_QUERY = UNIQUE_KEY_QUERY.encode()  # whether it is signed depends on the client


class _Request(NamedTuple):
    """A plain request."""

    code: int
    values: dict[bytes, bytes]  # extFields
    header: bytes  # without access key, signature and token
    body: bytes
    form: int
    end: int  # of its frame in the data


_ASCII = rb"[ !#-\[\]-\x7f]"  # no quote, backslash or control character
_NUMBER = rb"(?:0|-?[1-9][0-9]{0,9})"
_NULL_OR_WORD = rb'(?:null|"%b*+")' % _ASCII
_MEMBER = rb'"(?:(?:flag|opaque|version)":%b|(?:language|serializeTypeCurrentRPC)":%b|remark":null)' % (
    _NUMBER, _NULL_OR_WORD,
)  # fmt: skip
_TEXT = rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}))*+'
_FIELD = rb'"%b++":"%b"' % (_ASCII, _TEXT)
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


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _read(data: bytes, position: int, header_max: int) -> _Request | None:
    """Return the request at `position`; None if the frame is incomplete or not plain."""
    if len(data) - position < PREFIX_SIZE:
        return None
    length, form_and_size = PREFIX.unpack_from(data, position)
    size, form = form_and_size & 0xFFFFFF, form_and_size >> 24
    end, body_at = position + 4 + length, position + PREFIX_SIZE + size
    if not 4 <= length <= FRAME_MAX - 4 or end > len(data) or size > min(length - 4, header_max):
        return None
    header, body = data[position + PREFIX_SIZE : body_at], data[body_at:end]
    try:
        if form == JSON_FORM:
            return _read_json(header, body, end)
        return _read_binary(header, body, end) if form == BINARY_FORM else None
    except UnicodeDecodeError:
        return None


def _read_json(header: bytes, body: bytes, end: int) -> _Request | None:
    match = _match_json(header)
    if match is None:
        return None
    header.decode()  # texts have to be UTF-8
    fields = _find_fields(match[2])
    values = dict(fields)
    if len(values) < len(fields) or _UNIQUE_KEY_QUERY in values:
        return None
    for name, value in fields:
        if b"\\" in value:
            values[name] = _decode_text(b'"%b"' % value).encode()
    start, stop = match.span(2)
    kept = _remove_signature(b"", b"," + match[2])[1:]
    return _Request(int(match[1]), values, header[:start] + kept + header[stop:], body, JSON_FORM, end)


def _read_binary(header: bytes, body: bytes, end: int) -> _Request | None:
    if len(header) < _BINARY_START.size:
        return None
    code, *_, remark_size, fields_size = _BINARY_START.unpack_from(header)
    if remark_size or _BINARY_START.size + fields_size != len(header):
        return None
    values: dict[bytes, bytes] = {}
    names: set[bytes] = set()
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
    if _UNIQUE_KEY_QUERY in names:
        return None
    packed = b"".join(kept)
    start = header[: _BINARY_START.size - _FIELDS_SIZE.size] + _FIELDS_SIZE.pack(len(packed))
    return _Request(code, values, start + packed, body, BINARY_FORM, end)


def _binary_fields(header: bytes) -> Iterator[tuple[bytes, bytes, bytes] | None]:
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
        value = header[value_at : value_at + size]
        value.decode()  # has to be UTF-8
        yield name, value, header[position : value_at + size]
        position = value_at + size
