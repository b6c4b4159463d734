"""Nodes of rules that other expressions don't have; the others are those of filters/nodes.py."""

from collections.abc import Sequence
from dataclasses import dataclass

from lightrail.filters import nodes
from lightrail.filters.nodes import Condition, Node, OfOne


@dataclass(slots=True, eq=False, repr=False)
class Property(Node):
    """An application property; `is_system` for a property of the message itself, such as sys.Label."""

    name: str
    is_system: bool


class PropertyOf(OfOne):
    """property(NAME): the application property whose name is the value of an expression."""

    __slots__ = ()


class NewId(Node):
    """newid(): a new uuid at each evaluation."""

    __slots__ = ()


@dataclass(slots=True, eq=False, repr=False)
class Within(OfOne, Condition):
    """Equal to one of some expressions."""

    items: Sequence[Node]

    @property
    def children(self) -> Sequence[Node]:
        return (self.operand, *self.items)


@dataclass(slots=True, eq=False, repr=False)
class Matches(OfOne, Condition):
    """LIKE with a pattern and an escape character, which are expressions."""

    pattern: Node
    escape: Node | None

    @property
    def children(self) -> Sequence[Node]:
        found = (self.operand, self.pattern)
        return found if self.escape is None else (*found, self.escape)


@dataclass(slots=True, eq=False, repr=False)
class Statement:
    """SET property = value, or REMOVE property, which has no value."""

    target: Property
    value: nodes.Node | None
