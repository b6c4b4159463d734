"""The Python files of the product, parsed once, with their names as modules.

Lines are lines of text. Files that are not Python (templates, styles, the declarations of the compiled
scanner) are left out.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Self

Function = ast.FunctionDef | ast.AsyncFunctionDef
SCOPES: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
"""What may begin with a docstring."""


@dataclass(frozen=True)
class Module:
    """One file.

    Attributes:
        name: dotted, from the root package; that of its package for `__init__.py`.
        path: relative to the folder in which the root package is.
    """

    name: str
    path: str
    is_package: bool
    text: str
    tree: ast.Module = field(repr=False)

    @classmethod
    def read(cls, root: Path, file: Path) -> Self:
        """A file of the package in folder `root`. Raises SyntaxError."""
        relative = file.relative_to(root.parent)
        names = relative.with_suffix("").parts
        is_package = names[-1] == "__init__"
        text = file.read_text()
        name = ".".join(names[:-1] if is_package else names)
        return cls(name, relative.as_posix(), is_package, text, ast.parse(text))

    @property
    def folder(self) -> str:
        """The package that the file is in; a package's own name for its `__init__.py`."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        """All of them, also those inside of others and of functions."""
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def code_lines(self) -> int:
        """Lines other than blank ones, lines with a comment alone, and docstrings."""
        docstrings = {
            number
            for node in self.nodes
            if isinstance(node, SCOPES) and (docstring := docstring_of(node))
            for number in range(docstring.lineno, length_and_end(docstring)[1] + 1)
        }
        return sum(
            number not in docstrings and bool(stripped := line.strip()) and not stripped.startswith("#")
            for number, line in enumerate(self.lines, 1)
        )

    @cached_property
    def comment_lines(self) -> int:
        """Lines with a comment and nothing else."""
        return sum(line.lstrip().startswith("#") for line in self.lines)


@dataclass(frozen=True)
class Product:
    """All files of one root package, by their names as modules."""

    root: str
    modules: dict[str, Module]

    @classmethod
    def read(cls, root: Path) -> Self:
        """The package in a folder, such as `lightrail`. Raises FileNotFoundError if the folder has none."""
        files = sorted(root.rglob("*.py"))
        if not files:
            raise FileNotFoundError(f"expected a Python package, found no file in {root}")
        read = (Module.read(root, file) for file in files)
        return cls(root.name, {module.name: module for module in read})

    def __iter__(self) -> Iterator[Module]:
        return iter(self.modules.values())

    def below(self, package: str) -> Iterator[Module]:
        """A package's files, at any depth; `package` is relative to the root, such as `shard.queue`."""
        name = f"{self.root}.{package}"
        return (module for module in self if module.name == name or module.name.startswith(name + "."))

    @property
    def length(self) -> int:
        """Lines of all files, of any kind."""
        return sum(len(module.lines) for module in self)


def docstring_of(node: ast.Module | ast.ClassDef | Function) -> ast.Expr | None:
    """The statement that is the docstring."""
    match node.body:
        case [ast.Expr(value=ast.Constant(value=str())) as first, *_]:
            return first
    return None


def length_and_end(node: ast.stmt) -> tuple[int, int]:
    """Lines of a statement, without its decorators, and the number of the last."""
    end = node.lineno if node.end_lineno is None else node.end_lineno
    return end - node.lineno + 1, end


def length(nodes: Iterable[ast.stmt]) -> int:
    """Lines of statements, none of which is in another."""
    return sum(length_and_end(node)[0] for node in nodes)


def name_of(node: ast.expr) -> str:
    """The last name of an expression: Protocol of `typing.Protocol[T]`; "" if it has none."""
    match node:
        case ast.Subscript(value=inner):
            return name_of(inner)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
