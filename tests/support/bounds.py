"""All bounds of the product by name: those of limits.py, and those that stand beside their one user.

A bound beside its user is declared `NAME: Final[int]` or `Final[float]`: no type depends on its value, and
tests replace it. Constants that are no bounds, such as the codes of a protocol, are declared `Final`.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from lightrail.model import limits
from tests.support.broker import ROOT

PACKAGES: Final = ("lightrail", "pyspark_lightrail")
SHARED: Final = Path(limits.__file__)
BESIDE: Final = re.compile(r"^(\w+): Final\[(?:int|float)\] =", re.MULTILINE)


def files() -> Iterator[Path]:
    """Every module of the product."""
    for package in PACKAGES:
        yield from (ROOT / package).rglob("*.py")


@cache
def homes() -> dict[str, list[Path]]:
    """Every bound, with the files that declare it: one file, unless two bounds have the same name."""
    found: dict[str, list[Path]] = {}
    for file in files():
        text = file.read_text()
        for name in shared(text) if file == SHARED else BESIDE.findall(text):
            found.setdefault(name, []).append(file)
    return found


def shared(text: str) -> list[str]:
    """The bounds that limits.py declares: all of its constants."""
    return [
        node.target.id
        for node in ast.parse(text).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


def used() -> set[str]:
    """The names that the product reads outside of limits.py; a declaration or a comment reads none."""
    found: set[str] = set()
    for file in files():
        if file != SHARED:
            for node in ast.walk(ast.parse(file.read_text())):
                match node:
                    case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
                        found.add(name)
    return found
