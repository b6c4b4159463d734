"""Imports between modules: those that are executed when a module is loaded.

Left out: imports inside of functions, and those below `if TYPE_CHECKING`. `from package import name` is an
import of the module `package.name` if there is one, else of the package's `__init__.py`. That Python loads
the packages of a module before the module is no import.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from scripts.counts.product import Module, Product

Graph = Mapping[str, set[str]]
"""By the name of a module or room: those that it imports."""
SMALL_MAX: Final = 109
"""Lines of a file that counts as small."""


def executed(statements: Iterable[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements that loading a module executes, or may execute."""
    for statement in statements:
        match statement:
            case ast.Import() | ast.ImportFrom():
                yield statement
            case ast.If(test=test, body=body, orelse=orelse):
                if "TYPE_CHECKING" not in ast.unparse(test):
                    yield from executed(body)
                yield from executed(orelse)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
                for block in (body, *(handler.body for handler in handlers), orelse, finalbody):
                    yield from executed(block)
            case ast.With(body=body) | ast.ClassDef(body=body):
                yield from executed(body)


def origin(module: Module, statement: ast.ImportFrom) -> str:
    """The module that `from ... import` names, absolute."""
    if not statement.level:
        return statement.module or ""
    package = module.folder.split(".")
    named = [statement.module] if statement.module else []
    return ".".join([*package[: len(package) - statement.level + 1], *named])


def imported(product: Product, module: Module) -> set[str]:
    """Names of the product's modules that one of them imports."""
    found: set[str] = set()
    for statement in executed(module.tree.body):
        if isinstance(statement, ast.ImportFrom):
            source = origin(module, statement)
            names = (f"{source}.{alias.name}" for alias in statement.names)
            found.update(name if name in product.modules else source for name in names)
        else:
            found.update(alias.name for alias in statement.names)
    return (found & product.modules.keys()) - {module.name}


def graph(product: Product) -> dict[str, set[str]]:
    """All modules of the product."""
    return {module.name: imported(product, module) for module in product}


def rooms(modules: Graph, folder: str) -> dict[str, set[str]]:
    """The direct children of a folder, each file and each subfolder once, without the `__init__.py`."""
    found: dict[str, set[str]] = {}
    for name, targets in modules.items():
        if name.startswith(folder + "."):
            room = child(name, folder)
            found.setdefault(room, set()).update(
                child(target, folder) for target in targets if target.startswith(folder + ".")
            )
            found[room].discard(room)
    return found


def child(name: str, folder: str) -> str:
    return name[len(folder) + 1 :].split(".")[0]


def circles(graph: Graph) -> list[set[str]]:
    """Groups of at least two modules that import each other, directly or through others."""
    return [group for group in groups(graph) if len(group) > 1]


def chain(graph: Graph) -> list[str]:
    """The longest chain in which each imports the next; a circle counts as one link, written `a = b`."""
    ends: dict[str, list[str]] = {}
    longest: list[str] = []
    for group in groups(graph):
        below = (ends[target] for name in group for target in graph[name] - group)
        best = [" = ".join(sorted(group)), *max(below, key=len, default=[])]
        ends.update(dict.fromkeys(group, best))
        longest = max(longest, best, key=len)
    return longest


def groups(graph: Graph) -> list[set[str]]:
    """Strongly connected components, each after those that it imports (Tarjan 1972)."""
    indexes: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    finished: set[str] = set()
    found: list[set[str]] = []

    def visit(name: str) -> None:
        indexes[name] = lowest[name] = len(indexes)
        path.append(name)
        for target in sorted(graph[name]):
            if target not in indexes:
                visit(target)
                lowest[name] = min(lowest[name], lowest[target])
            elif target not in finished:
                lowest[name] = min(lowest[name], indexes[target])
        if lowest[name] == indexes[name]:
            start = path.index(name)
            found.append(set(path[start:]))
            finished.update(path[start:])
            del path[start:]

    for name in sorted(graph):
        if name not in indexes:
            visit(name)
    return found


def loose(product: Product, package: str) -> list[str]:
    """Modules that are directly in a folder, without its `__init__.py`."""
    folder = f"{product.root}.{package}"
    return [module.name for module in product if not module.is_package and module.folder == folder]


def small_with_one_importer(product: Product, modules: Graph) -> list[str]:
    """Files of at most SMALL_MAX lines that one module imports, and that one is in the same folder."""
    importers: dict[str, list[str]] = {name: [] for name in modules}
    for name, targets in modules.items():
        for target in targets:
            importers[target].append(name)
    return [
        module.name
        for module in product
        if not module.is_package and len(module.lines) <= SMALL_MAX
        for importer in importers[module.name]
        if len(importers[module.name]) == 1 and product.modules[importer].folder == module.folder
    ]
