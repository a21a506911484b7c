"""Parses SQL92 tokens to a tree; expressions that can never be evaluated are rejected with their position. [SelectorParser]

    or          and { OR and }                                              binds least
    and         equality { AND equality }
    equality    comparison { = comparison | <> comparison | IS [NOT] NULL }
    comparison  unary { > unary | >= unary | < unary | <= unary | [NOT] BETWEEN unary AND unary | [NOT] IN ( text { , text } ) }
    unary       + unary | - unary | NOT unary | primary                     binds most: NOT a = 1 is (NOT a) = 1
    primary     literal | property | ( or )

4.9.4 stops where the grammar ends and silently ignores the rest (`a > 5 ADN b = 1` is `a > 5`, `a LIKE 'x'` matches nothing);
this parser reports the rest as an error. Everything else is accepted or rejected as by 4.9.4.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from ariane.errors import FilterError
from ariane.filter import lexer
from ariane.filter.lexer import Token
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
    is_boolean,
)

COMPARISONS_MAX = 256  # comparisons per message; IN counts as one, whatever the number of its values
DEPTH_MAX = (
    64  # of nesting: far more than expressions in use have, and neither parser nor evaluation can exhaust the stack
)
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

ORDERED = (GREATER, GREATER_EQUAL, LESS, LESS_EQUAL)
NULL = Constant(ValueKind.NOTHING, None)
LITERALS = {"TRUE": Constant(ValueKind.BOOLEAN, True), "FALSE": Constant(ValueKind.BOOLEAN, False), "NULL": NULL}
# Only for a better error: 4.9.4 would silently ignore the rest of the expression.
LATER_WORDS = ("LIKE", "CONTAINS", "STARTSWITH", "ENDSWITH")  # keywords of SQL, or of 5.x


def parse(expression: str) -> Node:
    """Return the tree of `expression`, a truth value. Raise FilterError at the first error."""
    return _Parser(expression).parse()


class _Parser:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = lexer.tokens(expression)
        self._token = next(self._tokens)
        self._nesting = 0
        self._comparisons = 0

    def parse(self) -> Node:
        first = self._token.position
        root = self._boolean(self._or(), first)
        token = self._token
        if token.kind != lexer.END and not self._expression.startswith("--", token.position):
            raise self._error(token.position, self._why_no_end(token))
        return root

    def _why_no_end(self, token: Token) -> str:
        if token.text.upper() in LATER_WORDS:
            return f"{token.text.upper()} is not part of 4.9.4's SQL92"
        return f"the expression could end here, but {_shown(token)} follows: AND or OR is missing, or it is too much"

    # --- grammar, from the operators that bind least to those that bind most ---

    def _or(self) -> Node:
        return self._joined("OR", self._and, Or)

    def _and(self) -> Node:
        return self._joined("AND", self._equality, And)

    def _joined(self, word: str, part: Callable[[], Node], join: Callable[[tuple[Node, ...], int], Node]) -> Node:
        position = self._token.position
        first = part()
        # A single part need not be a truth value here: it may be an operand, as in (a) > 5.
        if not self._is(word):
            return first
        parts = [self._boolean(first, position)]
        while self.accept(word):
            position = self._token.position
            parts.append(self._boolean(part(), position))
        return join(tuple(parts), self._depth(*parts))

    def _equality(self) -> Node:
        position = self._token.position
        left = self._comparison()
        while True:
            if self.accept("="):
                left = self._equal(left, position, EQUAL)
            # 4.9.4 has no node for <>: it negates =, which decides the result for a missing property.
            elif self.accept("<>"):
                left = self._not(self._equal(left, position, "<>"))
            elif self.accept("IS"):
                negated = self.accept("NOT")
                self._expect("NULL")
                left = self._compare(EQUAL, left, NULL)
                left = self._not(left) if negated else left
            else:
                return left

    def _equal(self, left: Node, left_at: int, written: str) -> Node:
        right_at = self._token.position
        right = self._comparison()
        for node, position in ((left, left_at), (right, right_at)):
            if node == NULL:
                raise self._error(position, f"{written} NULL is never true or false: write IS NULL or IS NOT NULL")
        if (
            isinstance(left, Constant)
            and isinstance(right, Constant)
            and left.kind is ValueKind.BOOLEAN is not right.kind
        ):
            raise self._error(right_at, f"a truth value is not compared with a {right.kind.value}")
        return self._compare(EQUAL, left, right)

    def _comparison(self) -> Node:
        position = self._token.position
        left = self._unary()
        while True:
            token = self._token
            if token.kind == lexer.SYMBOL and token.text in ORDERED:
                self._advance()
                right_at = self._token.position
                left = self._ordered(token.text, left, position, self._unary(), right_at)
                continue
            negated = self.accept("NOT")
            if self.accept("BETWEEN"):
                left = self._between(left, position, negated)
            elif self.accept("IN"):
                left = self._in(left, position, negated)
            elif negated:
                raise self._error(
                    self._token.position, f"BETWEEN or IN is expected behind NOT, not {_shown(self._token)}"
                )
            else:
                return left

    def _between(self, value: Node, position: int, negated: bool) -> Node:
        low_at = self._token.position
        low = self._unary()
        self._expect("AND")
        high_at = self._token.position
        high = self._unary()
        above, below = (LESS, GREATER) if negated else (GREATER_EQUAL, LESS_EQUAL)
        parts = (
            self._ordered(above, value, position, low, low_at),
            self._ordered(below, value, position, high, high_at),
        )
        # NOT BETWEEN is two comparisons joined by OR, not a negation: a missing property stays unknown either way.
        if negated:
            return Or(parts, self._depth(*parts))
        if isinstance(low, Constant) and isinstance(high, Constant) and _number(low) > _number(high):
            raise self._error(low_at, f"BETWEEN names the smaller value first: {low.value} > {high.value}")
        return And(parts, self._depth(*parts))

    def _in(self, left: Node, position: int, negated: bool) -> Node:
        if not isinstance(left, Property):
            raise self._error(position, "IN asks for a property on its left")
        self._expect("(")
        values = {self._text()}
        while self.accept(","):
            values.add(self._text())
        self._expect(")")
        self._count_comparison()
        return In(left, frozenset(values), negated, self._depth(left))

    def _unary(self) -> Node:
        if self.accept("+"):
            return self._nested(self._unary)
        if self.accept("-"):
            operand = self._nested(self._unary)
            return Negate(operand, self._depth(operand))
        if self.accept("NOT"):
            position = self._token.position
            return self._not(self._boolean(self._nested(self._unary), position))
        return self._primary()

    def _primary(self) -> Node:
        token = self._token
        if self.accept("("):
            inner = self._nested(self._or)
            self._expect(")")
            return inner
        if token.kind == lexer.KEYWORD and token.text in LITERALS:
            self._advance()
            return LITERALS[token.text]
        if token.kind == lexer.TEXT:
            return Constant(ValueKind.TEXT, self._text())
        if token.kind == lexer.WORD:
            self._advance()
            return Property(token.text)
        if token.kind in (lexer.INTEGER, lexer.DECIMAL):
            self._advance()
            return self._integer(token) if token.kind == lexer.INTEGER else self._decimal(token)
        raise self._error(token.position, f"a property, a literal or ( is expected, not {_shown(token)}")

    # --- literals ---

    def _integer(self, token: Token) -> Constant:
        digits = token.text.rstrip("lL")
        # The length first: converting a long text of digits to a number takes quadratic time.
        if len(digits) > len(str(LONG_MAX)) or int(digits) > LONG_MAX:
            raise self._error(token.position, f"{digits} is larger than {LONG_MAX}")
        value = int(digits)
        return Constant(ValueKind.INT if value <= INT_MAX else ValueKind.LONG, value)

    def _decimal(self, token: Token) -> Constant:
        value = float(token.text)
        if value == inf:
            raise self._error(token.position, f"{token.text} is larger than any double")
        if value == 0:
            raise self._error(
                token.position, f"{token.text} is 0 as a double, which 4.9.4 takes for too small: write 0"
            )
        return Constant(ValueKind.DOUBLE, value)

    def _text(self) -> str:
        token = self._token
        if token.kind != lexer.TEXT:
            raise self._error(token.position, f"a text like 'abc' is expected, not {_shown(token)}")
        self._advance()
        return token.text[1:-1].replace("''", "'")

    # --- which operands fit which operators ---

    def _boolean(self, node: Node, position: int) -> Node:
        if isinstance(node, Property):
            return Cast(node, self._depth(node))
        if not is_boolean(node):
            raise self._error(position, "something that is true or false is expected here: compare it with something")
        return node

    def _ordered(self, operator: str, left: Node, left_at: int, right: Node, right_at: int) -> Node:
        for node, position in ((left, left_at), (right, right_at)):
            if is_boolean(node) or (isinstance(node, Constant) and node.kind not in NUMBERS):
                raise self._error(position, f"{operator} compares numbers and properties only")
        return self._compare(operator, left, right)

    def _compare(self, operator: str, left: Node, right: Node) -> Node:
        self._count_comparison()
        return Compare(operator, left, right, self._depth(left, right))

    def _count_comparison(self) -> None:
        self._comparisons += 1
        if self._comparisons > COMPARISONS_MAX:
            raise self._error(
                self._token.position, f"an expression has at most {COMPARISONS_MAX} comparisons: use IN for lists"
            )

    def _not(self, node: Node) -> Node:
        return Not(node, self._depth(node))

    def _depth(self, *parts: Node) -> int:
        # The depth is in the nodes, because long chains of operators nest without recursion of the parser.
        depth = 1 + max(part.depth for part in parts)
        if depth > DEPTH_MAX:
            raise self._too_deep()
        return depth

    def _nested(self, inner: Callable[[], Node]) -> Node:
        self._nesting += 1
        if self._nesting > DEPTH_MAX:
            raise self._too_deep()
        node = inner()
        self._nesting -= 1
        return node

    def _too_deep(self) -> FilterError:
        return self._error(self._token.position, f"an expression is nested at most {DEPTH_MAX} deep")

    # --- tokens ---

    def _advance(self) -> None:
        self._token = next(self._tokens)

    def _is(self, text: str) -> bool:
        token = self._token
        return token.text == text and token.kind in (lexer.KEYWORD, lexer.SYMBOL)

    def accept(self, text: str) -> bool:
        is_present = self._is(text)
        if is_present:
            self._advance()
        return is_present

    def _expect(self, text: str) -> None:
        if not self.accept(text):
            raise self._error(self._token.position, f"{text} is expected, not {_shown(self._token)}")

    def _error(self, position: int, reason: str) -> FilterError:
        return FilterError(self._expression, position, reason)


def _number(constant: Constant) -> int | float:
    if isinstance(constant.value, int | float):
        return constant.value
    raise TypeError("bounds of BETWEEN were checked to be numbers")


def _shown(token: Token) -> str:
    if token.kind == lexer.END:
        return "the end"
    return token.text if len(token.text) <= 40 else f"{token.text[:40]}…"
