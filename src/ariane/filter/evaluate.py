"""Compiles a tree to a function of message properties that returns True, False or None (unknown). [Expression.evaluate]

Truth has three values: a comparison with a missing property is unknown, NOT unknown is unknown, FALSE AND unknown is false,
TRUE OR unknown is true. Equality looks at its left side first: missing = x is unknown, x = missing is false.

Properties are texts; a comparison converts them to the kind of the other side (`numbers`), two properties in > or < to
doubles. A text that cannot be converted raises ValueError, as 4.9.4 does, and ends the evaluation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any

from ariane.filter import numbers
from ariane.filter.tree import (
    EQUAL,
    GREATER,
    GREATER_EQUAL,
    LESS,
    LESS_EQUAL,
    NUMBERS,
    And,
    Cast,
    Compare,
    Constant,
    In,
    Negate,
    Node,
    Not,
    Or,
    Property,
    ValueKind,
    kind_of,
)

Properties = Mapping[str, str]
Truth = bool | None
Evaluate = Callable[[Properties], Truth]
Value = Callable[[Properties], Any]  # a str, int, float or bool according to the node's kind, or None

_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    EQUAL: operator.eq,
    GREATER: operator.gt,
    GREATER_EQUAL: operator.ge,
    LESS: operator.lt,
    LESS_EQUAL: operator.le,
}
_WHOLE = {ValueKind.INT: numbers.int32, ValueKind.LONG: numbers.int64}
_READ: dict[ValueKind, Callable[[str], Any]] = {
    **_WHOLE,
    ValueKind.DOUBLE: numbers.double,
    ValueKind.BOOLEAN: lambda text: text.lower() == "true",
}


@singledispatch
def value_of(node: Node) -> Value:
    """Return the function that computes the value of a node."""
    raise TypeError(f"unknown node {node!r}")


@value_of.register
def _(node: Property) -> Value:
    name = node.name
    return lambda properties: properties.get(name)


@value_of.register
def _(node: Constant) -> Value:
    value = node.value
    return lambda _: value


@value_of.register
def _(node: Negate) -> Value:
    if kind_of(node) is ValueKind.NOTHING:
        inner = value_of(node.operand)

        def evaluate_missing(properties: Properties) -> None:
            inner(properties)  # which may raise ValueError

        return evaluate_missing
    value = _number(node)
    return lambda _: value


@value_of.register
def _(node: Not) -> Value:
    inner = value_of(node.operand)

    def negated(properties: Properties) -> Truth:
        value = inner(properties)
        return None if value is None else not value

    return negated


@value_of.register
def _(node: Cast) -> Value:
    name = node.operand.name
    return lambda properties: False if name in properties else None


@value_of.register
def _(node: In) -> Value:
    name, values, is_negated = node.operand.name, node.values, node.is_negated

    def is_in(properties: Properties) -> Truth:
        value = properties.get(name)
        return None if value is None else (value in values) is not is_negated

    return is_in


@value_of.register
def _(node: And) -> Value:
    parts = tuple(map(value_of, node.parts))

    def all_of(properties: Properties) -> Truth:
        truth: Truth = True
        # No early end at unknown: a later FALSE decides, and a later text that is not a number has to raise its error.
        for part in parts:
            value = part(properties)
            if value is None:
                truth = None
            elif not value:
                return False
        return truth

    return all_of


@value_of.register
def _(node: Or) -> Value:
    parts = tuple(map(value_of, node.parts))

    def some_of(properties: Properties) -> Truth:
        truth: Truth = False
        # As for AND: a later TRUE decides.
        for part in parts:
            value = part(properties)
            if value is None:
                truth = None
            elif value:
                return True
        return truth

    return some_of


@value_of.register
def _(node: Compare) -> Value:
    # The usual comparison has a fast path, because this runs for every message.
    if isinstance(node.left, Property):
        quick = _with_constant(node, node.left.name)
        if quick is not None:
            return quick
    left, right = value_of(node.left), value_of(node.right)
    compare = _comparison(node.operator, kind_of(node.left), kind_of(node.right))
    if node.operator == EQUAL:

        def equal(properties: Properties) -> Truth:
            # Both sides are evaluated even if one is missing: either may raise ValueError, as in 4.9.4.
            left_value, right_value = left(properties), right(properties)
            if left_value is None:
                return True if right_value is None else None
            return False if right_value is None else compare(left_value, right_value)

        return equal

    def ordered(properties: Properties) -> Truth:
        left_value = left(properties)
        if left_value is None:
            return None
        right_value = right(properties)
        return None if right_value is None else compare(left_value, right_value)

    return ordered


def _with_constant(node: Compare, name: str) -> Value | None:
    """Return the fast path for the usual comparison of a property with a text or number; None for any other."""
    kind = kind_of(node.right)
    if node.operator == EQUAL and kind is ValueKind.TEXT and isinstance(node.right, Constant):
        text = node.right.value

        def equals_constant(properties: Properties) -> Truth:
            value = properties.get(name)
            return None if value is None else value == text

        return equals_constant
    if kind not in NUMBERS:
        return None
    number, compare = _number(node.right), _comparison(node.operator, ValueKind.TEXT, kind)

    def compared(properties: Properties) -> Truth:
        value = properties.get(name)
        return None if value is None else compare(value, number)

    return compared


def _comparison(symbol: str, left: ValueKind, right: ValueKind) -> Callable[[Any, Any], bool]:
    """Return the function that compares two present values."""
    test = _TESTS[symbol]
    if ValueKind.NOTHING in (left, right):
        return lambda x, y: False  # never reached: one side is always missing
    # Two properties: texts are equal or not, but larger or smaller only as numbers.
    if left is ValueKind.TEXT is right:
        if symbol == EQUAL:
            return operator.eq
        return lambda x, y: test(numbers.order(numbers.double(x), numbers.double(y)), 0)
    if left is ValueKind.TEXT:
        return _reading(test, _READ[right], right is ValueKind.DOUBLE)
    if right is ValueKind.TEXT:
        if left is ValueKind.BOOLEAN:
            return _unreadable
        swapped = _reading(_SWAPPED[symbol], _READ[left], left is ValueKind.DOUBLE)
        return lambda x, y: swapped(y, x)
    if (left is ValueKind.BOOLEAN) is not (right is ValueKind.BOOLEAN):
        return lambda x, y: test(-1, 0)
    if ValueKind.DOUBLE in (left, right):
        return lambda x, y: test(numbers.order(float(x), float(y)), 0)
    return test


_SWAPPED: dict[str, Callable[[Any, Any], bool]] = {
    EQUAL: operator.eq,
    GREATER: operator.lt,
    GREATER_EQUAL: operator.le,
    LESS: operator.gt,
    LESS_EQUAL: operator.ge,
}


def _reading(
    test: Callable[[Any, Any], bool], read: Callable[[str], Any], is_double: bool
) -> Callable[[Any, Any], bool]:
    """Return the comparison of a text, converted to the kind of the other side, with that side."""
    if is_double:
        order, double = numbers.order, numbers.double
        return lambda text, value: test(order(double(text), value), 0)
    return lambda text, value: test(read(text), value)


def _unreadable(x: Any, y: Any) -> bool:
    raise ValueError("4.9.4 converts a text on the left of a truth value, never one on its right")


def _number(node: Node) -> int | float:
    """Return the value of a constant number."""
    if isinstance(node, Negate):
        return -_number(node.operand)
    if isinstance(node, Constant) and isinstance(node.value, int | float):
        return node.value
    raise TypeError(f"not a number: {node!r}")
