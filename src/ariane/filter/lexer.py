"""SQL92 text into tokens, as 4.9.4 cuts it. [SelectorParserTokenManager]

word     letters, digits, `_`, `$`, not a digit first; NOT AND OR BETWEEN IN TRUE FALSE NULL IS are keywords in any case
integer  0, or digits that do not begin with 0; an `L` may follow      decimal  5.5  5.  .5  5E3
text     'it''s'                                                       symbol   = <> > >= < <= ( ) , + -
between  white space, /* comments */, and -- comments up to the end of their line
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ariane.errors import FilterError

EXPRESSION_MAX = 65_536  # characters; far beyond what anybody writes, and cheap to refuse

WORD, KEYWORD, INTEGER, DECIMAL, TEXT, SYMBOL, END = "word", "keyword", "integer", "decimal", "text", "symbol", "end"

KEYWORDS = frozenset(("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"))

# The longest token wins, so what may be longer stands first. A `--` without an end of line is two minus signs.
_TOKEN = re.compile(
    r"""(?P<between>[ \t\n\r\f]+ | --[^\n\r]*(?:\r\n|\n|\r) | /\*(?:[^*]|\*(?!/))*+\*/)
      | (?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<decimal>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+)
      | (?P<integer>0 | [1-9][0-9]*[lL]?)
      | (?P<text>'(?:''|[^'])*+')
      | (?P<symbol><> | >= | <= | [=<>(),+-])""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """A piece of the expression: `text` as it stands there (keywords in capitals), `at` its first character."""

    kind: str
    text: str
    at: int


def tokens(expression: str) -> list[Token]:
    """The tokens of `expression`, an END behind them. FilterError at the first character that begins none."""
    if len(expression) > EXPRESSION_MAX:
        why = f"an expression has at most {EXPRESSION_MAX} characters, this one has {len(expression)}"
        raise FilterError(expression, EXPRESSION_MAX, why)
    found = []
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            raise FilterError(expression, at, _fault(expression, at))
        kind, text = match.lastgroup or "", match.group()
        if kind == WORD and text.upper() in KEYWORDS:
            kind, text = KEYWORD, text.upper()
        if kind != "between":
            found.append(Token(kind, text, at))
        at = match.end()
    found.append(Token(END, "", at))
    return found


def _fault(expression: str, at: int) -> str:
    char = expression[at]
    if char == "'":
        return "the text that begins here has no closing '"
    if expression.startswith("/*", at):
        return "the comment that begins here has no closing */"
    if expression.startswith("!=", at):
        return "!= is written <>"
    return f"{char!r} begins nothing of SQL92"
