"""SQL92 expressions, compiled once and asked for each message: `compile_sql("a > 5 AND b = 'x'").matches(properties)`.

[SqlFilter, ExpressionMessageFilter.isMatchedByCommitLog]
"""

from __future__ import annotations

from functools import lru_cache

from ariane.filter.evaluate import Evaluate, Properties, Truth, value_of
from ariane.filter.parser import parse

CACHED_LENGTH_MAX = 4_096  # characters; longer ones are compiled each time
COMPILED_MAX = 256  # expressions that are kept compiled: pull clients send theirs with every request


class SqlFilter:
    """A compiled expression."""

    __slots__ = ("_evaluate", "expression")

    def __init__(self, expression: str, evaluate: Evaluate) -> None:
        self.expression = expression
        self._evaluate = evaluate

    def matches(self, properties: Properties) -> bool:
        """Whether it is true of these properties: neither false, nor unknown, nor without an answer."""
        try:
            return self._evaluate(properties) is True
        except ValueError:
            return False

    def truth(self, properties: Properties) -> Truth:
        """True, False, or None for unknown; ValueError when a text would have to be a number and is none."""
        return self._evaluate(properties)


def compile_sql(expression: str) -> SqlFilter:
    """The filter that `expression` describes. FilterError shows the place where it is wrong."""
    return _cached(expression) if len(expression) <= CACHED_LENGTH_MAX else _compile(expression)


def _compile(expression: str) -> SqlFilter:
    return SqlFilter(expression, value_of(parse(expression)))


_cached = lru_cache(maxsize=COMPILED_MAX)(_compile)
