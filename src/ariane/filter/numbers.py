"""Texts as numbers, and the order of numbers, as in Java: the value of a property may be `+5`, `1e3`, ` 7.5d`.

A text that is not a number of the kind raises ValueError. [Integer.valueOf, Long.valueOf, Double.valueOf, Double.compareTo]
"""

from __future__ import annotations

import re
from math import copysign, inf, isnan, nan

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

_BLANK = "".join(map(chr, range(33)))  # removed by String.trim
TEXT_MAX = 64  # characters of a text that is converted; Java converts longer ones, which do not occur

_DIGITS = re.compile(r"[+-]?\d++")  # of any script within 16 bits, as in Character.digit
_DECIMAL = re.compile(r"([+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)[fFdD]?")
_HEX = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]++(?:\.[0-9a-fA-F]*+)?|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++)[fFdD]?")
_NAMED = {
    "NaN": nan, "+NaN": nan, "-NaN": nan, "Infinity": inf, "+Infinity": inf, "-Infinity": -inf,
}  # fmt: skip


def int32(text: str) -> int:
    """Return a 32-bit integer; `3000000000` and `5.0` are invalid."""
    value = _whole(text)
    if INT_MIN <= value <= INT_MAX:
        return value
    raise ValueError("no 32-bit number")


def int64(text: str) -> int:
    """Return a 64-bit integer."""
    value = _whole(text)
    if LONG_MIN <= value <= LONG_MAX:
        return value
    raise ValueError("no 64-bit number")


def _whole(text: str) -> int:
    if len(text) > TEXT_MAX:
        raise ValueError("too long for a number")
    if not (text.isascii() and text.isdigit()) and (_DIGITS.fullmatch(text) is None or max(text) > "\uffff"):
        raise ValueError("no whole number")
    return int(text)


def double(text: str) -> float:
    """Return a double. As in Java, blanks around it, a type letter after it, hexadecimal, NaN and Infinity are valid."""
    text = text.strip(_BLANK)
    if len(text) > TEXT_MAX:
        raise ValueError("too long for a number")
    match = _DECIMAL.fullmatch(text)
    if match is not None:
        return float(match[1])
    if text in _NAMED:
        return _NAMED[text]
    # Java's Double.valueOf reads hexadecimal floats, Python's float() does not.
    match = _HEX.fullmatch(text)
    if match is None:
        raise ValueError("no decimal number")
    try:
        return float.fromhex(match[1])
    except OverflowError:
        return copysign(inf, -1 if text.startswith("-") else 1)


def order(left: float, right: float) -> int:
    """Return a negative number, zero or a positive one, in the total order of doubles: −0.0 below 0.0, NaN above all and equal to
    itself."""
    if left < right:
        return -1
    if left > right:
        return 1
    # Zeros are equal to `==` but not in Java's total order.
    if left == right != 0:
        return 0
    return _rank(left) - _rank(right)


def _rank(value: float) -> int:
    if isnan(value):
        return 2
    if value == 0:
        return 0 if copysign(1, value) < 0 else 1
    return 1
