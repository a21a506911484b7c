"""What an SQL92 expression is made of: frozen nodes, made by the parser, read by `evaluate`.

Every node has a static Kind: properties are always text, so what a comparison converts is known before any message comes.
A value may always be missing as well (None). [Expression and its subclasses]
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

EQUAL, GREATER, GREATER_EQUAL, LESS, LESS_EQUAL = "=", ">", ">=", "<", "<="


class ValueKind(Enum):
    """What a node's value is when it is there. [String, Integer, Long, Double, Boolean]"""

    TEXT = "text"
    INT = "32-bit number"
    LONG = "64-bit number"
    DOUBLE = "decimal number"
    BOOLEAN = "truth value"
    NOTHING = "nothing"


NUMBERS = frozenset((ValueKind.INT, ValueKind.LONG, ValueKind.DOUBLE))


@dataclass(frozen=True, slots=True)
class Property:
    name: str
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal; NULL has the kind NOTHING."""

    kind: ValueKind
    value: str | int | float | bool | None
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Negate:
    """`-operand`: of a number; of anything else (a property, too) it is missing."""

    operand: Node
    depth: int


@dataclass(frozen=True, slots=True)
class Not:
    operand: Node
    depth: int


@dataclass(frozen=True, slots=True)
class Cast:
    """A property where a truth value is asked for: a text is none, so it is false, or missing."""

    operand: Property
    depth: int


@dataclass(frozen=True, slots=True)
class Compare:
    operator: str
    left: Node
    right: Node
    depth: int


@dataclass(frozen=True, slots=True)
class In:
    operand: Property
    values: frozenset[str]
    is_negated: bool
    depth: int


@dataclass(frozen=True, slots=True)
class And:
    """Parts joined by AND."""

    parts: tuple[Node, ...]
    depth: int


@dataclass(frozen=True, slots=True)
class Or:
    """Parts joined by OR."""

    parts: tuple[Node, ...]
    depth: int


Node = Property | Constant | Negate | Not | Cast | Compare | In | And | Or


def is_boolean(node: Node) -> bool:
    """Whether a truth value comes of it; NULL counts as one, a property does not."""
    if isinstance(node, Constant):
        return node.kind in (ValueKind.BOOLEAN, ValueKind.NOTHING)
    return not isinstance(node, Property | Negate)


def kind_of(node: Node) -> ValueKind:
    if isinstance(node, Property):
        return ValueKind.TEXT
    if isinstance(node, Constant):
        return node.kind
    if isinstance(node, Negate):
        kind = kind_of(node.operand)
        return kind if kind in NUMBERS else ValueKind.NOTHING
    return ValueKind.BOOLEAN
