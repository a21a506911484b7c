"""Nodes of SQL92 expressions: frozen values, built by the parser, compiled by `evaluate`.

Every node has a static kind: properties are always text, so the conversions of a comparison are fixed before any message comes.
A value may always be missing as well (None). [Expression and its subclasses]
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

EQUAL, GREATER, GREATER_EQUAL, LESS, LESS_EQUAL = "=", ">", ">=", "<", "<="


class ValueKind(Enum):
    """Type of a node's value, if present. [String, Integer, Long, Double, Boolean]"""

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
    """`-operand` of a number; the value is missing for any other operand, including properties."""

    operand: Node
    depth: int


@dataclass(frozen=True, slots=True)
class Not:
    operand: Node
    depth: int


@dataclass(frozen=True, slots=True)
class Cast:
    """A property used as a truth value: a text is not one, so it is false, or missing."""

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
    """Return whether the node has a truth value; NULL does, a property does not."""
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
