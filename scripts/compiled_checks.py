"""What mypyc compiles to something else than Python does: sources that have it are not compiled.

Each check returns places as "file:line (what)". The first two read the C that mypyc has generated, the third
one the sources. What each of them looks for was found by a test that failed in compiled form (docs/adr/0081).
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ASSIGNED: Final = re.compile(r"\s+(cpy_r_r\d+) = (.*);")
_CAST: Final = re.compile(r'CPy_TypeError\("None", (cpy_r_r\d+)\)')
_BOXED: Final = re.compile(
    r"\s+(cpy_r_r\d+) = (?:PyTuple_New|CPyTagged_StealAsObject|PyFloat_FromDouble|PyLong_From\w+)\("
)
_COMPARED: Final = re.compile(r"\s+cpy_r_r\d+ = (cpy_r_\w+) [!=]= (cpy_r_\w+);")
_TRACED: Final = re.compile(r'AddTraceback\("([^"]+)", "([^"]+)", (\d+)')
AT_ONCE: Final = frozenset(
    (
        *("accumulate", "all", "any", "array", "deque", "dict", "extend", "fromkeys", "frozenset", "join"),
        *("list", "max", "min", "nsmallest", "set", "sorted", "sum", "tuple", "update", "Counter"),
    )
)
"""Functions that take all of a generator before anything else happens; what they return does so, too."""


def _place(lines: list[str], number: int, reach: int, file: Path) -> str:
    traced = _TRACED.search("\n".join(lines[number : number + reach]))
    return f"{traced[1]}:{traced[3]} ({traced[2]})" if traced else f"{file.name}:{number + 1}"


def _generated(generated: Path) -> Iterator[tuple[Path, list[str]]]:
    for file in sorted(generated.glob("__native_*.c")):
        yield file, file.read_text().split("\n")


def narrowed(generated: Path) -> list[str]:
    """Places where an attribute is cast to None.

    mypy takes an attribute that was set to None for None until the function ends, whatever is called
    meanwhile; the cast raises TypeError where Python compares. Read the attribute in another function there.
    """
    found = []
    for file, lines in _generated(generated):
        values: dict[str, str] = {}
        for number, line in enumerate(lines):
            if assigned := _ASSIGNED.match(line):
                values[assigned[1]] = assigned[2]
            cast = _CAST.search(line)
            if cast and "->_" in values.get(cast[1], ""):
                found.append(_place(lines, number, 8, file))
    return found


def identified(generated: Path) -> list[str]:
    """Places where `is` has a tuple or a number that is made for it, and is identical with nothing.

    Such values are no objects in compiled code. Compare them by `==`.
    """
    found = []
    for file, lines in _generated(generated):
        made: set[str] = set()
        for number, line in enumerate(lines):
            if line.startswith("}"):
                made.clear()
            elif boxed := _BOXED.match(line):
                made.add(boxed[1])
            elif (compared := _COMPARED.match(line)) and not made.isdisjoint(compared.groups()):
                found.append(_place(lines, number, 40, file))
    return found


def traps(root: Path, paths: list[str]) -> list[str]:
    """Errors that are caught under one name with several types, and generators that are not taken at once.

    A name has one type in a function, that of the first `except`: another error under it raises TypeError. A
    generator expression becomes a list, with all its values, whoever takes the first of them only.
    """
    found = []
    for path in paths:
        tree = ast.parse((root / path).read_text())
        for each in ast.walk(tree):
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                found += [f"{path}:{line} ({name})" for line, name in _caught_again(each)]
        parents = {child: each for each in ast.walk(tree) for child in ast.iter_child_nodes(each)}
        for each in parents:
            if isinstance(each, ast.GeneratorExp) and not _is_taken_at_once(each, parents[each]):
                found.append(f"{path}:{each.lineno} (generator)")
    return found


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """What is in a function, in its order, but not in functions inside of it."""
    for each in ast.iter_child_nodes(function):
        yield each
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _own(each)


def _caught_again(function: ast.AST) -> Iterator[tuple[int, str]]:
    caught: dict[str, str] = {}
    for each in _own(function):
        if isinstance(each, ast.ExceptHandler) and each.name and each.type is not None:
            kind = ast.unparse(each.type)
            if caught.setdefault(each.name, kind) != kind:
                yield each.lineno, each.name


def _is_taken_at_once(generator: ast.GeneratorExp, parent: ast.AST) -> bool:
    match parent:
        case ast.Starred() | ast.AugAssign() | ast.Assign(targets=[ast.Subscript()]):
            return True
        case ast.Call(func=ast.Name(id="next")):
            return True  # mypyc stops at the first one there.
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in AT_ONCE
    return False
