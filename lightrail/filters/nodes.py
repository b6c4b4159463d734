"""Nodes of the tree of a parsed expression: one class for each kind."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightrail.filters.lexer import Reference


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """`position` counts characters from 1; `depth` is 1 for a node without children.

    `weight` is the largest number of evaluated nodes; one with two parents is evaluated twice.
    """

    position: int
    depth: int = field(init=False)
    weight: int = field(init=False)

    def __post_init__(self) -> None:
        self.depth = 1 + max((child.depth for child in self.children), default=0)
        self.weight = 1 + sum(child.weight for child in self.children)

    @property
    def children(self) -> "Sequence[Node]":
        return ()


class Condition(Node):
    """A node whose value is true, false or unknown."""

    __slots__ = ()


@dataclass(slots=True, eq=False, repr=False)
class Literal(Node):
    """A string, a number or a boolean."""

    value: Any


@dataclass(slots=True, eq=False, repr=False)
class Field(Node):
    """An identifier and its field."""

    reference: "Reference"


@dataclass(slots=True, eq=False, repr=False)
class OfOne(Node):
    """A node with one operand."""

    operand: Node

    @property
    def children(self) -> Sequence[Node]:
        return (self.operand,)


class Negate(OfOne):
    __slots__ = ()


class IsNull(OfOne, Condition):
    """Never unknown."""

    __slots__ = ()


class Not(OfOne, Condition):
    __slots__ = ()


@dataclass(slots=True, eq=False, repr=False)
class In(OfOne, Condition):
    """Equal to one of some literals."""

    values: Sequence[Any]


@dataclass(slots=True, eq=False, repr=False)
class Like(OfOne, Condition):
    pattern: str
    escape: str | None


@dataclass(slots=True, eq=False, repr=False)
class OfTwo(Node):
    """A node with two operands."""

    operator: str
    left: Node
    right: Node

    @property
    def children(self) -> Sequence[Node]:
        return self.left, self.right


class Arithmetic(OfTwo):
    """`operator` is one of + - * / %."""

    __slots__ = ()


class Compare(OfTwo, Condition):
    """`operator` is one of = <> < <= > >=."""

    __slots__ = ()


@dataclass(slots=True, eq=False, repr=False)
class OfMany(Condition):
    """A condition of two or more."""

    operands: Sequence[Node]

    @property
    def children(self) -> Sequence[Node]:
        return self.operands


class Every(OfMany):
    """AND."""

    __slots__ = ()


class Some(OfMany):
    """OR."""

    __slots__ = ()
