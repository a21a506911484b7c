"""Character encodings of bodies: clients send bytes, and older systems write GBK, Shift_JIS or Latin-1.

bytes ─→ UTF-8, if it is valid ─→ otherwise a guess, which the reader can correct ─→ otherwise hex
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

BodyEncoding = Literal["utf-8", "gbk", "gb18030", "big5", "shift_jis", "euc-jp", "euc-kr", "latin-1"]

# In the order in which pages offer them. Latin-1 is read as its superset, which has letters for bytes that are controls otherwise.
ENCODINGS: dict[BodyEncoding, str] = {
    "utf-8": "UTF-8", "gbk": "GBK", "gb18030": "GB18030", "big5": "Big5", "shift_jis": "Shift_JIS", "euc-jp": "EUC-JP",
    "euc-kr": "EUC-KR", "latin-1": "Latin-1",
}  # fmt: skip
JAPANESE: tuple[BodyEncoding, ...] = ("shift_jis", "euc-jp")
_CODECS = {"latin-1": "cp1252"}
CHARACTER_BYTES = 4  # longest character of these encodings
CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
LONG_RUN = re.compile(rb"[\x80-\xff]{3}")
KANA = re.compile("[\u3040-\u30ff]")


def decode(body: bytes, encoding: str, *, is_part: bool = False, errors: str = "strict") -> str | None:
    """Return a body as text; None if it is invalid in the encoding.

    Args:
        encoding: A name of `ENCODINGS`, or of another codec.
        is_part: Whether they are the beginning of a body, which may end within a character.
    """
    for cut in range(CHARACTER_BYTES if is_part else 1):
        try:
            return body[: len(body) - cut].decode(_CODECS.get(encoding, encoding), errors)
        except UnicodeDecodeError:
            continue
    return None


def guess_encoding(body: bytes, *, is_part: bool = False) -> BodyEncoding | None:
    """Return the encoding in which a body that is not UTF-8 reads best; None if it is not text in any.

    Common characters are the evidence: texts in GBK are often valid in an encoding of Japanese, as rare characters, and vice versa.
    """
    if CONTROLS.search(body):
        return None
    # Letters with accents stand alone between ASCII letters; characters of two bytes come in longer runs.
    ascii_bytes = sum(byte < 128 for byte in body)
    if not LONG_RUN.search(body) and 2 * ascii_bytes >= len(body) and decode(body, "latin-1") is not None:
        return "latin-1"
    common = decode(body, "gb2312", is_part=is_part)
    if common is not None and not KANA.search(common):
        return "gbk"
    for japanese in JAPANESE:
        if KANA.search(decode(body, japanese, is_part=is_part) or ""):
            return japanese
    return "gb18030" if _is_readable(decode(body, "gb18030", is_part=is_part)) else None


def _is_readable(text: str | None) -> bool:
    return text is not None and not any(unicodedata.category(char) in ("Co", "Cn") for char in text)
