"""Lines: those of code, and those that only join parts of the code (joints)."""

import ast
from dataclasses import dataclass
from typing import Final

from scripts.counts.product import Module, Product, length, name_of

FILE_MAX: Final = 400
"""Lines of a file of any kind."""


@dataclass(frozen=True)
class Joints:
    """Lines that pass things on.

    Attributes:
        imports: of all import statements, also those inside of functions and for types alone.
        constructors: all `__init__` and `__post_init__`, signature, docstring and blank lines included.
        slots: of the assignments of `__slots__` in classes.
        protocols: of the classes that have typing's Protocol as a base, docstrings and blank lines included.
    """

    imports: int
    constructors: int
    slots: int
    protocols: int

    @property
    def sum(self) -> int:
        return self.imports + self.constructors + self.slots + self.protocols


def joints(product: Product) -> Joints:
    """Of all files. A constructor inside of a protocol counts twice; there is none."""
    members = [member for module in product for each in module.classes for member in each.body]
    return Joints(
        imports=length(
            node
            for module in product
            for node in module.nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
        ),
        constructors=length(
            member
            for member in members
            if isinstance(member, ast.FunctionDef) and member.name in ("__init__", "__post_init__")
        ),
        slots=length(member for member in members if is_slots(member)),
        protocols=length(each for module in product for each in module.classes if is_protocol(each)),
    )


def is_slots(member: ast.stmt) -> bool:
    match member:
        case ast.Assign(targets=targets):
            return any(isinstance(target, ast.Name) and target.id == "__slots__" for target in targets)
        case ast.AnnAssign(target=ast.Name(id="__slots__")):
            return True
    return False


def is_protocol(each: ast.ClassDef) -> bool:
    """Whether a class has typing's Protocol among its bases; that of asyncio is another."""
    return any(
        name_of(base) == "Protocol" and not ast.unparse(base).startswith("asyncio.") for base in each.bases
    )


def joints_percent(product: Product) -> float:
    """Of all lines of the product, comments, blanks and docstrings included, as in constructors."""
    return 100 * joints(product).sum / product.length


def code_lines(product: Product) -> int:
    """Lines without comments, blanks and docstrings."""
    return sum(module.code_lines for module in product)


def long_files(product: Product) -> list[str]:
    return [module.name for module in product if len(module.lines) > FILE_MAX]


def comment_percent(modules: list[Module]) -> float:
    """Lines with a comment alone, of all lines; docstrings are no comments."""
    return (
        100 * sum(module.comment_lines for module in modules) / sum(len(module.lines) for module in modules)
    )
