"""SQL92 expressions: three-valued logic, operator precedence, conversion of texts to numbers, and error positions."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator

import pytest

from ariane.errors import FilterError
from ariane.filter import lexer, numbers
from ariane.filter.lexer import EXPRESSION_MAX, TOKENS_MAX
from ariane.filter.parser import COMPARISONS_MAX, DEPTH_MAX
from ariane.filter.sql import compile_sql

P = {"a": "5", "b": "x", "t": "true", "n": "-3", "d": "2.5", "quote": "it's"}


def truth(expression: str, **properties: str) -> bool | None:
    return compile_sql(expression).truth(properties or P)


TRUTHS = {"TRUE": True, "FALSE": False, "NULL": None}


@pytest.mark.parametrize("left", TRUTHS)
@pytest.mark.parametrize("right", TRUTHS)
def test_and_or_not_have_three_values(left, right):
    item, other = TRUTHS[left], TRUTHS[right]
    both = False if False in (item, other) else None if None in (item, other) else True
    either = True if True in (item, other) else None if None in (item, other) else False
    assert truth(f"{left} AND {right}") is both
    assert truth(f"{left} OR {right}") is either
    assert truth(f"NOT {left}") is (None if item is None else not item)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a = 5", True),
        ("a <> 5", False),
        ("5 < a", False),
        ("a >= 5 AND a <= 5", True),
        ("a > 4.5", True),
        ("d > 2 OR a = 5", None),  # 2.5 is not an integer: the result is unknown
        ("n < 0", True),
        ("n = -3", True),
        ("b = 'x'", True),
        ("quote = 'it''s'", True),
        ("a BETWEEN 1 AND 5", True),
        ("a NOT BETWEEN 1 AND 5", False),
        ("a BETWEEN 1 AND 5 AND b = 'x'", True),
        ("b IN ('x', 'y')", True),
        ("b NOT IN ('x', 'y')", False),
        ("gone IN ('x')", None),
        ("gone NOT IN ('x')", None),
        ("gone IS NULL", True),
        ("gone IS NOT NULL", False),
        ("a IS NOT NULL", True),
        ("gone = 5", None),
        ("gone <> 5", None),
        ("gone > 5", None),
        ("a = gone", False),  # what is there does not equal what is not
        ("gone = gone", True),
        ("t = TRUE", True),
        ("b = TRUE", False),
        ("a", False),  # a text is not a truth value
        ("gone", None),
        ("-a = 5", None),  # a property is not negated
        ("a = 5 -- so it is", True),
        ("a = /* five */ 5 -- so it is\nAND b = 'x'", True),
        ("a=5and b='x'", True),
        ("FALSE AND TRUE OR TRUE", True),
        ("TRUE OR TRUE AND FALSE", True),
        ("NOT FALSE AND FALSE", False),
        ("NOT (FALSE AND FALSE)", True),
        ("NOT a = 5", False),  # (NOT a) = 5
    ],
)
def test_expressions_evaluate_to_true_false_or_unknown(expression, expected):
    sql = compile_sql(expression)
    if expression.startswith("d >"):
        with pytest.raises(ValueError, match="no whole number"):
            sql.truth(P)
    else:
        assert sql.truth(P) is expected
    assert sql.matches(P) is (expected is True)


def test_names_are_case_sensitive_and_keywords_are_not():
    assert truth("A = 1", a="1") is None
    assert truth("a = 1 aNd b iS nOt nUlL", a="1", b="2") is True
    assert truth("$_9z = '1'", **{"$_9z": "1"}) is True


@pytest.mark.parametrize(
    ("expression", "column", "why"),
    [
        ("", 1, "is expected, not the end"),
        ("a", None, ""),
        ("a = ", 5, "a property, a literal or ( is expected, not the end"),
        ("a > 5 AND )", 11, "not )"),
        ("a > 'x'", 5, "> compares numbers and properties only"),
        ("'x' < a", 1, "< compares numbers and properties only"),
        ("a = 5 OR b > TRUE", 14, "> compares numbers"),
        ("a = NULL", 5, "write IS NULL"),
        ("TRUE = 5", 8, "a truth value is not compared"),
        ("5", 1, "true or false is expected"),
        ("a = 5 AND 'x'", 11, "true or false is expected"),
        ("a = 5 ADN b = 1", 7, "ADN follows"),
        ("a LIKE 'x%'", 3, "LIKE is not part"),
        ("a contains 'x'", 3, "CONTAINS is not part"),
        ("a BETWEEN 5 AND 1", 11, "the smaller value first: 5 > 1"),
        ("a BETWEEN 1 OR 5", 13, "AND is expected, not OR"),
        ("a NOT 5", 7, "BETWEEN or IN is expected behind NOT"),
        ("a IN (5)", 7, "a text like 'abc' is expected, not 5"),
        ("'x' IN ('y')", 1, "a property on its left"),
        ("a IN ('x'", 10, ") is expected, not the end"),
        ("(a = 5", 7, ") is expected"),
        ("a = 5)", 6, ") follows"),
        ("a = 'x", 5, "no closing '"),
        ("a /* x", 3, "no closing */"),
        ("a != 5", 3, "!= is written <>"),
        ("a = 5 ; b", 7, "';' begins nothing"),
        ("a = 9223372036854775808", 5, "larger than 9223372036854775807"),
        ("a = 1e999", 5, "larger than any double"),
        ("a = 0.0", 5, "write 0"),
        ("a IS TRUE", 6, "NULL is expected, not TRUE"),
    ],
)
def test_an_invalid_expression_is_reported_with_its_position(expression, column, why):
    if column is None:
        compile_sql(expression)
        return
    with pytest.raises(FilterError) as refused:
        compile_sql(expression)
    error = refused.value
    assert why in str(error)
    assert (error.position + 1, error.expression) == (column, expression)
    first, shown, caret = str(error).split("\n")
    assert first.startswith(f"column {column}: ")
    assert shown == expression
    assert caret == " " * (column - 1) + "^"


def test_an_error_in_a_long_expression_is_shown_with_its_context():
    expression = " OR ".join(f"a = {n}" for n in range(100)) + "\nOR b > 'x' OR " + " OR ".join(["c = 1"] * 100)
    with pytest.raises(FilterError) as refused:
        compile_sql(expression)
    first, shown, caret = str(refused.value).split("\n")
    assert len(shown) < 110
    assert shown[caret.index("^") :].startswith("'x' OR c = 1")
    assert (shown[0], shown[-1]) == ("…", "…")


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 1_000 + "a = 1" + ")" * 1_000,
        "NOT " * 1_000 + "a",
        "a = " + "-" * 1_000 + "1",
        "a = " + "+" * 1_000 + "1",
        "a" + " IS NULL" * 1_000,
        "a" + " = b" * 1_000,
        "(TRUE OR " * 500 + "a" + ")" * 500,
    ],
)
def test_nesting_is_bounded(expression):
    with pytest.raises(FilterError, match=f"nested at most {DEPTH_MAX} deep"):
        compile_sql(expression)


def test_length_is_bounded_and_a_long_flat_expression_is_not_too_deep():
    assert truth(" OR ".join(f"a = {number}" for number in range(COMPARISONS_MAX)), a="255") is True
    assert truth(" AND ".join(["a = 1"] * COMPARISONS_MAX), a="1") is True
    values = ", ".join(f"'{number}'" for number in range(2000))
    assert truth(f"a IN ({values})", a="1999") is True
    with pytest.raises(FilterError, match=f"at most {COMPARISONS_MAX} comparisons"):
        compile_sql(" OR ".join(["a = 1"] * (COMPARISONS_MAX + 1)))
    with pytest.raises(FilterError, match=f"at most {TOKENS_MAX} words"):
        compile_sql("a IN (" + ",".join(["'x'"] * (TOKENS_MAX // 2)) + ")")
    with pytest.raises(FilterError, match=f"at most {EXPRESSION_MAX} characters"):
        compile_sql("a = 1 " + " " * EXPRESSION_MAX)


def test_what_follows_an_error_is_not_read():
    with pytest.raises(FilterError, match="the expression could end here"):
        compile_sql("a = 1 1 'unclosed")
    found = lexer.tokens("0" * EXPRESSION_MAX)
    assert [next(found).text for _ in range(3)] == ["0", "0", "0"]


def test_the_deepest_accepted_expression_uses_a_small_part_of_the_stack():
    inner = "a = 1"
    for _ in range(DEPTH_MAX - 2):
        inner = f"(TRUE AND {inner})"

    def at_depth(frames: int) -> bool | None:
        return at_depth(frames - 1) if frames else compile_sql(inner).truth({"a": "1"})

    assert at_depth(sys.getrecursionlimit() // 3) is True


@pytest.mark.parametrize("text", ["5", "+5", "-5", "007", "2147483647", "-2147483648", "٥"])
def test_valid_32_bit_integers_are_parsed(text):
    assert numbers.int32(text) == int(text)


@pytest.mark.parametrize(
    "text", ["", "+", " 5", "5 ", "5.0", "5L", "1_0", "2147483648", "-2147483649", "x", "𝟓", "9" * 5000]
)
def test_invalid_32_bit_integers_are_rejected(text):
    with pytest.raises(ValueError):
        numbers.int32(text)


def test_64_bit_integers_are_limited_to_their_range():
    assert numbers.int64("9223372036854775807") == 2**63 - 1
    for text in ("9223372036854775808", "-9223372036854775809", "5L"):
        with pytest.raises(ValueError):
            numbers.int64(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5.0), (" 5.5\t", 5.5), ("5.", 5.0), (".5", 0.5), ("-5e1", -50.0), ("5d", 5.0), ("5.5F", 5.5), ("0x1p3", 8.0),
        ("-0x.8P1", -1.0), ("Infinity", float("inf")), ("-Infinity", float("-inf")), ("1e999", float("inf")),
        ("0x1p9999", float("inf")), ("-0x1p9999", float("-inf")),
    ],
)  # fmt: skip
def test_valid_doubles_are_parsed(text, value):
    assert numbers.double(text) == value


@pytest.mark.parametrize("text", ["", " ", ".", "e5", "1_0", "inf", "nan", "0x1", "5 5", "٥", "5L", "+-5"])
def test_invalid_doubles_are_rejected(text):
    with pytest.raises(ValueError):
        numbers.double(text)


def test_doubles_have_a_total_order():
    ordered = [float("-inf"), -1.0, -0.0, 0.0, 1.0, float("inf"), float("nan")]
    for i, remaining in enumerate(ordered):
        for j, right in enumerate(ordered):
            result = numbers.order(remaining, right)
            assert (result > 0) - (result < 0) == (i > j) - (i < j)


@pytest.fixture
def limited_cpu_time() -> Iterator[None]:
    """Fail a test after 20 s of CPU time (of this process, however busy the machine is): a quadratic one takes minutes."""

    def stop(number: int, frame: object) -> None:
        raise AssertionError("this takes more than linear time")

    former = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 20)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, former)


@pytest.mark.usefixtures("limited_cpu_time")
@pytest.mark.parametrize(
    "part", ["-", "--x", "0", "00 ", "1e", "0e+", "0.", "/**", "'", "''", "\n--", "a=1 OR ", "+-", "9L", "007"]
)
def test_an_expression_is_tokenized_in_linear_time(part, monkeypatch):
    """63 KB of `-` or `0` took 9.9 s: each character was matched against all following text."""
    monkeypatch.setattr(lexer, "TOKENS_MAX", 10**9)
    monkeypatch.setattr(lexer, "EXPRESSION_MAX", 10**9)
    with contextlib.suppress(FilterError):
        list(lexer.tokens((part * 300_000)[:300_000]))


@pytest.mark.usefixtures("limited_cpu_time")
@pytest.mark.parametrize("read", [numbers.double, numbers.int32, numbers.int64])
@pytest.mark.parametrize("text", ["1" * 1_000_000 + "x", "0x" + "a" * 1_000_000 + "g", "0" * 129, "1" * 129])
def test_a_long_text_is_not_a_number(read, text, monkeypatch):
    with pytest.raises(ValueError, match="too long"):
        read(text)
    monkeypatch.setattr(numbers, "TEXT_MAX", 10**9)
    if len(text) > 129:
        with pytest.raises(ValueError, match="no "):
            read(text)


@pytest.mark.parametrize(
    ("expression", "kinds"),
    [
        ("007", ["0", "0", "7"]),
        ("007L", ["0", "0", "7L"]),
        ("00L", ["0", "0", "L"]),
        ("10L", ["10L"]),
        ("00.50", ["00.50"]),
        ("1.e5", ["1.e5"]),
        ("1e", ["1", "e"]),
        (".5e-1.5", [".5e-1", ".5"]),
        ("1--2\n3", ["1", "3"]),
        ("1\n--2", ["1", "-", "-", "2"]),
    ],
)
def test_numbers_and_comments_are_tokenized(expression, kinds):
    assert [token.text for token in lexer.tokens(expression)][:-1] == kinds
