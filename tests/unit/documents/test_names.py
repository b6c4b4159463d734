"""ARCHITECTURE.md and CONTRIBUTING.md name only what exists: files, classes, functions, targets of make."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.broker import ROOT

PAGES: Final = ("ARCHITECTURE.md", "CONTRIBUTING.md")
CODE: Final = ROOT / "lightrail"
WALK: Final = re.compile(r"^\| [^|]+ \| `(lightrail/[\w/]+\.py)` \| `([\w.]+)` \|$")
TERM: Final = re.compile(r"`([^`\s]+)`")
SUFFIXES: Final = (".py", ".md", ".toml", ".yml", "/")


def lines(page: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        yield f"{page}:{number}", line


def defined(path: Path) -> set[str]:
    """Functions, classes, and methods as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found.add(node.name)
            parts = (ast.FunctionDef, ast.AsyncFunctionDef)
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, parts)}
    return found


ALL: Final = {name for path in CODE.rglob("*.py") for name in defined(path)}
FILES: Final = {path.name for folder in (CODE, ROOT / "tests") for path in folder.rglob("*.py")}


def exists(name: str) -> bool:
    """Whether a file or folder is there: below the root or lightrail/, or anywhere by the end of its path."""
    if (ROOT / name).exists() or (CODE / name).exists() or name in FILES:
        return True
    return any(path.match(name) for path in CODE.rglob(Path(name).name))


def test_every_file_that_is_named_exists() -> None:
    missing = [
        f"{place}: {term}"
        for page in PAGES
        for place, line in lines(page)
        for term in TERM.findall(line)
        if term.endswith(SUFFIXES)
        and not re.search(r"[<>*{}$=]|NAME|QUEUE|^\.|^/|://", term)
        and not exists(term)
    ]
    assert missing == []


def test_every_function_that_is_named_exists() -> None:
    named = [
        (place, term)
        for page in PAGES
        for place, line in lines(page)
        for term in TERM.findall(line)
        if re.fullmatch(r"[A-Z]\w+\.[a-z_]\w+", term)
    ]
    assert len(named) > 20
    assert [f"{place}: {term}" for place, term in named if term not in ALL] == []


def test_the_walks_lead_through_the_files_that_they_name() -> None:
    walked = [
        (place, *found.groups()) for place, line in lines("ARCHITECTURE.md") if (found := WALK.match(line))
    ]
    assert len(walked) >= 20
    wrong = [
        f"{place}: {path} has no {name}"
        for place, path, name in walked
        if not (ROOT / path).exists() or name not in defined(ROOT / path)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "walk", ["a transfer is stored", "a queue is frozen", "a policy is checked", "a lease is"]
)
def test_there_is_a_walk_to_where(walk: str) -> None:
    assert any(line.startswith(f"| {walk}") for _, line in lines("ARCHITECTURE.md"))


def test_every_target_of_make_that_is_named_exists() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    for page in (*PAGES, "README.md"):
        text = (ROOT / page).read_text()
        fenced = "".join(re.findall(r"(?ms)^```sh$(.*?)^```$", text))
        named = re.findall(r"(?m)^make ([a-z-]+)", fenced) + re.findall(r"`make ([a-z-]+)", text)
        assert named
        assert set(named) <= targets, page
