"""Splits SQL92 text into tokens, as 4.9.4 does. [SelectorParserTokenManager]

word     letters, digits, `_`, `$`, not a digit first; NOT AND OR BETWEEN IN TRUE FALSE NULL IS are keywords in any case
integer  0, or digits that do not begin with 0; an `L` may follow      decimal  5.5  5.  .5  5E3
text     'it''s'                                                       symbol   = <> > >= < <= ( ) , + -
between  white space, /* comments */, and -- comments up to the end of their line
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ariane.errors import FilterError

EXPRESSION_MAX = 16_384  # characters: far more than expressions in use have
TOKENS_MAX = 4_096

WORD, KEYWORD, INTEGER, DECIMAL, TEXT, SYMBOL, END = "word", "keyword", "integer", "decimal", "text", "symbol", "end"

KEYWORDS = frozenset(("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"))

_COMMENT = r" | --[^\n\r]*+(?:\r\n|\n|\r)"

# The longest token wins, so longer alternatives come first. Matching is linear in the length of the expression: repetitions are
# possessive, a run of digits is matched once, a comment ends at the first end, and a `--` counts only if a line ends after it.
# Python 3.11.2 (Debian 12) matches alternatives in a possessive repetition wrongly, so none has any.
_PATTERN = r"""(?P<between>[ \t\n\r\f]++ | /\*(?s:.*?)\*/ {comment})
      | (?P<word>[A-Za-z_$][A-Za-z0-9_$]*+)
      | (?P<decimal>\.[0-9]++(?:[eE][+-]?[0-9]++)?)
      | (?P<number>[0-9]++(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]++)?)
      | (?P<text>'[^']*+(?:''[^']*+)*+')
      | (?P<symbol><> | >= | <= | [=<>(),+-])"""
_ANYWHERE = re.compile(_PATTERN.format(comment=_COMMENT), re.VERBOSE)
_IN_LAST_LINE = re.compile(_PATTERN.format(comment=""), re.VERBOSE)  # a `--` without an end of line is two minus signs


class Token(NamedTuple):
    """A token: `text` as written (keywords in capitals), `position` the position of its first character."""

    kind: str
    text: str
    position: int


def tokens(expression: str) -> Iterator[Token]:
    """Yield the tokens of `expression`, followed by an END. Raise FilterError at the first character that starts none.

    They are found one by one, so that an expression with an error costs no more than what precedes the error.
    """
    if len(expression) > EXPRESSION_MAX:
        reason = f"an expression has at most {EXPRESSION_MAX} characters, this one has {len(expression)}"
        raise FilterError(expression, EXPRESSION_MAX, reason)
    for number, token in enumerate(_found(expression)):
        if number >= TOKENS_MAX and token.kind != END:
            reason = f"an expression has at most {TOKENS_MAX} words, numbers, texts and symbols"
            raise FilterError(expression, token.position, reason)
        yield token


def _found(expression: str) -> Iterator[Token]:
    last_line = 1 + max(expression.rfind("\n"), expression.rfind("\r"))
    position = 0
    while position < len(expression):
        match = (_ANYWHERE if position < last_line else _IN_LAST_LINE).match(expression, position)
        if match is None:
            raise FilterError(expression, position, _fault(expression, position))
        kind, text = match.lastgroup or "", match.group()
        start, position = position, match.end()
        if kind == "number" and text.isdigit():
            # 4.9.4's grammar has no number with a leading zero: `007` is the tokens 0, 0 and 7.
            digits = text.lstrip("0")
            for zero in range(start, position - len(digits)):
                yield Token(INTEGER, "0", zero)
            if digits:
                is_long = expression.startswith(("l", "L"), position)  # its letter is part of the token
                yield Token(INTEGER, digits + expression[position : position + is_long], position - len(digits))
                position += is_long
        elif kind == "number":
            yield Token(DECIMAL, text, start)
        elif kind == WORD and text.upper() in KEYWORDS:
            yield Token(KEYWORD, text.upper(), start)
        elif kind != "between":
            yield Token(kind, text, start)
    yield Token(END, "", position)


def _fault(expression: str, position: int) -> str:
    char = expression[position]
    if char == "'":
        return "the text that begins here has no closing '"
    if expression.startswith("/*", position):
        return "the comment that begins here has no closing */"
    if expression.startswith("!=", position):
        return "!= is written <>"
    return f"{char!r} begins nothing of SQL92"
