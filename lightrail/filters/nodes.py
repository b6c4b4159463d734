"""Nodes of the tree of a parsed expression: one class for each kind."""

from collections.abc import Sequence
from typing import Any

from lightrail.filters.lexer import Reference


class Node:
    """`position` counts characters from 1; `depth` is 1 for a node without children.

    `weight` is the largest number of evaluated nodes; one with two parents is evaluated twice.
    """

    __slots__ = ("depth", "position", "weight")

    def __init__(self, position: int, *children: "Node") -> None:
        self.position = position
        self.depth: int = 1 + max((child.depth for child in children), default=0)
        self.weight: int = 1 + sum(child.weight for child in children)


class Literal(Node):
    """A string, a number or a boolean."""

    __slots__ = ("value",)

    def __init__(self, position: int, value: Any) -> None:
        super().__init__(position)
        self.value = value


class Field(Node):
    """An identifier and its field."""

    __slots__ = ("reference",)

    def __init__(self, position: int, reference: Reference) -> None:
        super().__init__(position)
        self.reference = reference


class Negate(Node):
    __slots__ = ("operand",)

    def __init__(self, position: int, operand: Node) -> None:
        super().__init__(position, operand)
        self.operand = operand


class Arithmetic(Node):
    """`operator` is one of + - * / %."""

    __slots__ = ("left", "operator", "right")

    def __init__(self, position: int, operator: str, left: Node, right: Node) -> None:
        super().__init__(position, left, right)
        self.operator = operator
        self.left = left
        self.right = right


class Condition(Node):
    """A node whose value is true, false or unknown."""

    __slots__ = ()


class Compare(Condition):
    """`operator` is one of = <> < <= > >=."""

    __slots__ = ("left", "operator", "right")

    def __init__(self, position: int, operator: str, left: Node, right: Node) -> None:
        super().__init__(position, left, right)
        self.operator = operator
        self.left = left
        self.right = right


class In(Condition):
    """Equal to one of some literals."""

    __slots__ = ("operand", "values")

    def __init__(self, position: int, operand: Node, values: Sequence[Any]) -> None:
        super().__init__(position, operand)
        self.operand = operand
        self.values = values


class Like(Condition):
    __slots__ = ("escape", "operand", "pattern")

    def __init__(self, position: int, operand: Node, pattern: str, escape: str | None) -> None:
        super().__init__(position, operand)
        self.operand = operand
        self.pattern = pattern
        self.escape = escape


class IsNull(Condition):
    """Never unknown."""

    __slots__ = ("operand",)

    def __init__(self, position: int, operand: Node) -> None:
        super().__init__(position, operand)
        self.operand = operand


class Not(Condition):
    __slots__ = ("operand",)

    def __init__(self, position: int, operand: Node) -> None:
        super().__init__(position, operand)
        self.operand = operand


class Every(Condition):
    """AND of two or more."""

    __slots__ = ("operands",)

    def __init__(self, position: int, operands: Sequence[Node]) -> None:
        super().__init__(position, *operands)
        self.operands = operands


class Some(Condition):
    """OR of two or more."""

    __slots__ = ("operands",)

    def __init__(self, position: int, operands: Sequence[Node]) -> None:
        super().__init__(position, *operands)
        self.operands = operands
