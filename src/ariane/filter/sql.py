"""SQL92 expressions, compiled once and evaluated per message: `compile_sql("a > 5 AND b = 'x'").matches(properties)`.

[SqlFilter, ExpressionMessageFilter.isMatchedByCommitLog]
"""

from __future__ import annotations

from functools import lru_cache

from ariane.filter.evaluate import Evaluate, Properties, Truth, value_of
from ariane.filter.parser import parse

CACHED_LENGTH_MAX = 4_096  # characters; longer ones are compiled on each use
COMPILED_MAX = 256  # compiled expressions in the cache: pull clients send theirs with every request


class SqlFilter:
    """A compiled expression."""

    __slots__ = ("_evaluate", "expression")

    def __init__(self, expression: str, evaluate: Evaluate) -> None:
        self.expression = expression
        self._evaluate = evaluate

    def matches(self, properties: Properties) -> bool:
        """Return whether the expression is true for these properties; false if it is unknown or cannot be evaluated."""
        try:
            return self._evaluate(properties) is True
        # As in 4.9.4, a consumer does not receive a message whose properties cannot be compared.
        except ValueError:
            return False

    def truth(self, properties: Properties) -> Truth:
        """Return True, False, or None for unknown. Raise ValueError if a text cannot be converted to a number."""
        return self._evaluate(properties)


def compile_sql(expression: str) -> SqlFilter:
    """Return the compiled `expression`. Raise FilterError, with the position, if it is invalid."""
    # Bounded in number and length, because the expressions come from clients.
    return _cached(expression) if len(expression) <= CACHED_LENGTH_MAX else _compile(expression)


def _compile(expression: str) -> SqlFilter:
    return SqlFilter(expression, value_of(parse(expression)))


_cached = lru_cache(maxsize=COMPILED_MAX)(_compile)
