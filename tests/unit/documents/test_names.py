"""The documents name only files, functions, exports and targets of make that exist, and have walks."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

import pytest

from tests.support.broker import ROOT

MAPS: Final = ("ARCHITECTURE.md", "CONTRIBUTING.md")
"""Pages whose folders and names of the code are checked, too."""
PAGES: Final = sorted(
    str(page.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md", "examples/**/*.md")
    for page in ROOT.glob(pattern)
)
SOURCES: Final = [
    str(path.relative_to(ROOT))
    for top in ("lightrail", "tests", "scripts", "examples")
    for path in (ROOT / top).rglob("*.py")
]
WALK: Final = re.compile(r"^\| [^|]+ \| `(lightrail/[\w/]+\.py)` \| `([\w.]+)` \|$")
IN_FILE: Final = re.compile(r"`([A-Za-z_][\w.]*)`(?:\(\))? (?:of|in) `((?:\w+/)*\w+\.py)`")
MODULE: Final = re.compile(r"`((?:\w+/)*\w+\.py)`")
METHOD: Final = re.compile(r"`([A-Z]\w+)\.([a-z_]\w*)(?:\([^`]*\))?`")
IMPORT: Final = re.compile(r"(?m)^ *from (lightrail\.[\w.]+) import (\([^)]*\)|.*)$")
PATH: Final = re.compile(r"`([a-z][\w./-]*(?:/|\.md|\.toml|\.yml))`")


def lines(page: str) -> Iterator[tuple[str, str]]:
    """Every line of a page, with its position as an editor opens it."""
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        yield f"{page}:{number}", line


def files(name: str) -> list[str]:
    """Sources whose path ends with that."""
    return [path for path in SOURCES if path == name or path.endswith(f"/{name}")]


@cache
def defined(path: str) -> set[str]:
    """Functions, classes and constants of a file, and what a class has as `Class.name`."""
    found: set[str] = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        found |= named_by(node)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for part in node.body for name in named_by(part)}
    return found


def named_by(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Assign():
            return {target.id for target in node.targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def has(path: str, name: str) -> bool:
    """Whether a file has a name; one without a class may be a method of any."""
    return any(each == name or each.endswith(f".{name}") for each in defined(path))


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_it_names_exist(page: str) -> None:
    missing = [
        f"{position}: {name}"
        for position, line in lines(page)
        for name in MODULE.findall(line)
        if not files(name)
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("page", MAPS)
def test_folders_and_pages_that_it_names_exist(page: str) -> None:
    missing = [
        f"{position}: {name}"
        for position, line in lines(page)
        for name in PATH.findall(line)
        if not (ROOT / name).exists() and not any(f"/{name}" in path for path in SOURCES)
    ]
    assert not missing, "\n".join(missing)


def test_rooms_that_the_architecture_lists_exist() -> None:
    """The first column of each list: modules and folders of the folder named above it, or of the top."""
    missing: list[str] = []
    seen = 0
    folder = "lightrail/"
    inside = False
    for position, line in lines("ARCHITECTURE.md"):
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            folder = [folder, *re.findall(r"`(lightrail/(?:\w+/)*)`", line)][-1]
        else:
            for name in re.findall(r"\w+", (re.match(r"\w+/?(?: \| \w+/?)*", line) or [""])[0]):
                seen += 1
                paths = [f"{above}{name}{end}" for above in (folder, "lightrail/") for end in (".py", "/")]
                if not any((ROOT / path).exists() for path in paths):
                    missing.append(f"{position}: {folder}{name}")
    assert not missing, "\n".join(missing)
    assert seen > 40


@pytest.mark.parametrize("page", MAPS)
def test_names_that_it_says_a_file_has_are_there(page: str) -> None:
    missing = [
        f"{position}: {path} has no {name}"
        for position, line in lines(page)
        for name, path in (*IN_FILE.findall(line), *((name, path) for path, name in WALK.findall(line)))
        if not any(has(each, name) for each in files(path))
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("page", MAPS)
def test_methods_that_it_names_exist(page: str) -> None:
    code = {path: (ROOT / path).read_text() for path in SOURCES}
    missing = [
        f"{position}: {kind}.{name}"
        for position, line in lines(page)
        for kind, name in METHOD.findall(line)
        if not any(f"class {kind}" in text and has(path, f"{kind}.{name}") for path, text in code.items())
    ]
    assert not missing, "\n".join(missing)


def imported() -> set[tuple[str, str]]:
    """Modules of LightRail and names in them that pages for users and examples import."""
    found = set()
    pages = [page for page in PAGES if page not in MAPS]
    for path in (*pages, *(each for each in SOURCES if each.startswith("examples/"))):
        for module, names in IMPORT.findall((ROOT / path).read_text()):
            found |= {(module, name.split()[0]) for name in names.strip("()").split(",") if name.strip()}
    return found


@pytest.mark.parametrize("module", sorted({module for module, _ in imported()}))
def test_what_users_import_is_exported(module: str) -> None:
    exports = importlib.import_module(module).__all__
    assert {name for each, name in imported() if each == module} <= set(exports)


@pytest.mark.parametrize(
    "walk",
    [
        "a transfer is stored",
        "a queue is frozen",
        "a policy is checked",
        "a client is lost",
        "a move is undone",
        "a transaction over two shards is decided",
        "a lease is refreshed",
    ],
)
def test_there_is_a_walk_to_where(walk: str) -> None:
    """Its table has the heading, and steps of a file and a name each."""
    _, _, table = (ROOT / "ARCHITECTURE.md").read_text().partition(f"| {walk} |")
    rows = table.partition("\n\n")[0].splitlines()[2:]
    assert len(rows) >= 4
    assert [row for row in rows if not WALK.match(row)] == []


@pytest.mark.parametrize("page", [*MAPS, "README.md"])
def test_targets_of_make_that_it_names_exist(page: str) -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    text = (ROOT / page).read_text()
    fenced = "".join(re.findall(r"(?ms)^```sh$(.*?)^```$", text))
    named = re.findall(r"(?m)^make ([a-z-]+)", fenced) + re.findall(r"`make ([a-z-]+)", text)
    assert named
    assert set(named) <= targets
