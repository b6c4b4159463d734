"""The rows that `scripts/structure.py` counts, each with its target.

A row has a ratchet: the best value so far, in `scripts/structure.json`. A row that each change moves a
little may be worse than its ratchet by its slack.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Self

from scripts.counts import doors, imports, lines, protocols
from scripts.counts.product import Product

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Found:
    """What was counted: the value, and its parts for somebody who wants to change it."""

    value: float
    parts: list[str]

    @classmethod
    def each(cls, parts: list[str]) -> Self:
        """As many as there are parts."""
        return cls(len(parts), parts)


@dataclass(frozen=True)
class Checkout:
    """What the rows are counted in: the product, and the text of pyproject.toml."""

    product: Product
    configuration: str

    @classmethod
    def read(cls, root: Path) -> Self:
        """The checkout in a folder. Raises FileNotFoundError where it lacks a part."""
        return cls(Product.read(root / "lightrail"), (root / "pyproject.toml").read_text())

    @cached_property
    def imports(self) -> imports.Graph:
        return imports.graph(self.product)

    def chain_in(self, package: str) -> list[str]:
        """The longest chain among the direct children of a package."""
        return imports.chain(imports.rooms(self.imports, f"{self.product.root}.{package}"))


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        key: its name in JSON.
        target: None where no number is the aim.
        slack: by how much a commit may be worse than the ratchet.
        rises: whether larger values are better.
    """

    key: str
    text: str
    target: float | None
    slack: float = 0
    rises: bool = False

    def is_worse(self, value: float, ratchet: float) -> bool:
        """Whether a value is worse than the ratchet by more than the slack."""
        worse_by = ratchet - value if self.rises else value - ratchet
        return round(worse_by, 6) > self.slack

    def better(self, one: float, other: float) -> float:
        return max(one, other) if self.rises else min(one, other)


@dataclass(frozen=True, kw_only=True)
class Counted(Row):
    """A row that the text of the code decides."""

    count: Callable[[Checkout], Found]


def joints(checkout: Checkout) -> Found:
    found = lines.joints(checkout.product)
    parts = [f"{name}: {number}" for name, number in vars(found).items()]
    return Found(round(lines.joints_percent(checkout.product), 1), parts)


def comments(checkout: Checkout) -> Found:
    return Found(round(lines.comment_percent([*checkout.product.below("amqp")]), 1), [])


def shared_names(checkout: Checkout) -> Found:
    found = doors.shared_class_names(checkout.product)
    return Found.each([f"{name}: {number} classes" for name, number in found.items()])


def of_one_implementer(checkout: Checkout) -> Found:
    found = protocols.with_one_implementer(checkout.product)
    return Found.each([f"{protocol} by {implementer}" for protocol, implementer in found])


def circles(checkout: Checkout) -> Found:
    return Found.each([" = ".join(sorted(circle)) for circle in imports.circles(checkout.imports)])


ROWS: Final = (
    Counted(
        "loose_in_shard",
        "modules directly in shard/",
        12,
        count=lambda checkout: Found.each(imports.loose(checkout.product, "shard")),
    ),
    Counted(
        "chain_in_shard",
        "longest chain of imports of the direct children of shard/",
        8,
        count=lambda checkout: Found.each(checkout.chain_in("shard")),
    ),
    Counted(
        "chain_in_queue",
        "longest chain of imports of the direct children of shard/queue/",
        8,
        count=lambda checkout: Found.each(checkout.chain_in("shard.queue")),
    ),
    Counted(
        "chain",
        "longest chain of imports of modules",
        24,
        count=lambda checkout: Found.each(imports.chain(checkout.imports)),
    ),
    Counted("circles", "circles of imports of modules", 0, count=circles),
    Counted(
        "long_files",
        f"files above {lines.FILE_MAX} lines",
        0,
        count=lambda checkout: Found.each(lines.long_files(checkout.product)),
    ),
    Counted(
        "code_lines",
        "lines without comments, blanks and docstrings",
        87_012,  # 92 % of what there was at the first count
        slack=400,
        count=lambda checkout: Found(lines.code_lines(checkout.product), []),
    ),
    Counted(
        "joints_percent", "imports, constructors, slots, protocols: % of lines", 11, slack=0.1, count=joints
    ),
    Counted(
        "contents_uses",
        "uses of machine.contents outside of shard/queue/",
        0,
        count=lambda checkout: Found.each(doors.reaching_contents(checkout.product)),
    ),
    Counted(
        "touched_marks",
        "assignments to the table `touched` of another object",
        0,
        count=lambda checkout: Found.each(doors.marking_touched(checkout.product)),
    ),
    Counted("protocols_of_one", "protocols with one implementer", 0, count=of_one_implementer),
    Counted(
        "small_files",
        f"files of at most {imports.SMALL_MAX} lines with one importer, of their folder",
        0,
        count=lambda checkout: Found.each(
            imports.small_with_one_importer(checkout.product, checkout.imports)
        ),
    ),
    Counted(
        "contract_lines",
        "lines of contracts in pyproject.toml",
        60,
        count=lambda checkout: Found(doors.contract_lines(checkout.configuration), []),
    ),
    Counted("shared_class_names", "class names that several classes have", 0, count=shared_names),
    Counted(
        "comment_percent",
        "lines with a comment alone in amqp/: % of lines",
        None,
        slack=0.1,
        rises=True,
        count=comments,
    ),
)
TRACED: Final = (
    Row("transfer_files", "files that a durable transfer passes", 40, slack=2),
    Row("resumed_link_files", "files that a resumed link passes", 60, slack=3),
    Row("move_files", "files that the move of an idle queue passes", 60, slack=8),
)
"""Rows that a running broker decides (scripts/counts/traces.py). On a busy machine a move takes longer, and
more timers run during it."""
