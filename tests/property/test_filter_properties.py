"""Random SQL92 expressions: the compiled function returns the result of a simple model, and no text crashes the parser."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ariane.errors import FilterError
from ariane.filter.sql import compile_sql

NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from(["5", "-2", "x", "true", "7", "", "5.0", "99999999999"])
PROPERTIES = st.dictionaries(NAMES, VALUES.filter(bool), max_size=3)
COMPARE = {
    "=": lambda one, other: one == other,
    "<>": lambda one, other: one != other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
}

# A condition is a tuple; `text` writes it, `model` answers it.
leaf = st.one_of(
    st.tuples(st.just("number"), NAMES, st.sampled_from(list(COMPARE)), st.integers(-9, 9)),
    st.tuples(st.just("text"), NAMES, st.sampled_from(["=", "<>"]), st.sampled_from(["x", "5", "it's", ""])),
    st.tuples(st.just("between"), NAMES, st.integers(-9, 0), st.integers(1, 9), st.booleans()),
    st.tuples(st.just("in"), NAMES, st.lists(st.sampled_from(["x", "5", "it's"]), min_size=1, max_size=7), st.booleans()),
    st.tuples(st.just("null"), NAMES, st.booleans()),
    st.tuples(st.just("literal"), st.sampled_from([True, False, None])),
)  # fmt: skip
conditions = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.tuples(st.just("and"), inner, inner),
        st.tuples(st.just("or"), inner, inner),
        st.tuples(st.just("not"), inner),
    ),
    max_leaves=12,
)


def quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def text(condition: Any) -> str:
    match condition:
        case ("number", name, symbol, number):
            return f"{name} {symbol} {number}"
        case ("text", name, symbol, value):
            return f"{name} {symbol} {quoted(value)}"
        case ("between", name, low, high, negated):
            return f"{name} {'NOT ' * negated}BETWEEN {low} AND {high}"
        case ("in", name, values, negated):
            return f"{name} {'NOT ' * negated}IN ({', '.join(map(quoted, values))})"
        case ("null", name, negated):
            return f"{name} IS {'NOT ' * negated}NULL"
        case ("literal", value):
            return "NULL" if value is None else str(value).upper()
        case ("not", inner):
            return f"NOT ({text(inner)})"
        case (word, one, other):
            return f"({text(one)}) {word.upper()} ({text(other)})"
    raise AssertionError(condition)


def whole(value: str) -> int:
    number = int(value)  # ValueError: no answer
    if not -(2**31) <= number < 2**31:
        raise ValueError(value)
    return number


def model(condition: Any, p: dict[str, str]) -> bool | None:
    match condition:
        case ("number", name, symbol, number):
            return None if name not in p else COMPARE[symbol](whole(p[name]), number)
        case ("text", name, symbol, value):
            return None if name not in p else COMPARE[symbol](p[name], value)
        case ("between", name, low, high, negated):
            return None if name not in p else (low <= whole(p[name]) <= high) != negated
        case ("in", name, values, negated):
            return None if name not in p else (p[name] in values) != negated
        case ("null", name, negated):
            return (name not in p) != negated
        case ("literal", value):
            return value
        case ("not", inner):
            value = model(inner, p)
            return None if value is None else not value
        case (word, one, other):
            decides = word == "or"
            first = model(one, p)
            if first is decides:
                return decides
            second = model(other, p)
            return decides if second is decides else None if None in (first, second) else not decides
    raise AssertionError(condition)


def outcome(ask) -> object:
    try:
        return ask()
    except ValueError:
        return "no answer"


@given(conditions, PROPERTIES)
@example(("and", ("null", "a", False), ("number", "a", ">", 5)), {"a": "x"})
def test_a_compiled_expression_evaluates_as_the_model(condition, properties):
    sql = compile_sql(text(condition))
    expected = outcome(lambda: model(condition, properties))
    assert outcome(lambda: sql.truth(properties)) == expected
    assert sql.matches(properties) is (expected is True)


PIECES = [
    "a",
    "b",
    "5",
    "5.5",
    "'x'",
    "'",
    "(",
    ")",
    ",",
    "=",
    "<>",
    ">",
    "-",
    "+",
    "NOT",
    "AND",
    "OR",
    "BETWEEN",
    "IN",
    "IS",
    "NULL",
    "TRUE",
    "--",
    "/*",
    "*/",
    "\n",
    "0",
    "L",
    "é",
]


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=14).map(" ".join)), PROPERTIES)
@example("a = 5 --", {"a": "5"})
def test_any_text_is_compiled_or_rejected_with_a_position_inside_it(expression, properties):
    try:
        sql = compile_sql(expression)
    except FilterError as error:
        assert 0 <= error.position <= len(expression)
        assert str(error).count("\n") == 2
        return
    assert outcome(lambda: sql.truth(properties)) in (True, False, None, "no answer")
