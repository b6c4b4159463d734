"""Quick: lint, types, layers of imports, and the unit tests of what changed. `make quick` runs it.

What changed is the difference to LIGHTRAIL_BASE, a commit, and the files that git does not know yet. Without
LIGHTRAIL_BASE it is the commit at which the branch left origin/main, or main. A changed module is tested by
the files of tests/unit and tests/model that import it or bear its name; `make test` runs all others.
"""

import ast
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TESTED: Final = ("tests/unit", "tests/model")
SPARK: Final = "tests/unit/spark/"
"""Tests that import PySpark, which `make dev` does not install."""
PARTLY: Final = (
    *("-p", "lightrail", "-p", "tests.unit", "-p", "tests.model", "-p", "tests.support"),
    *("--exclude", "/spark/"),
)
"""What mypy reads where `make dev` alone was run: all whose imports are there."""
TRUNKS: Final = ("origin/main", "main")


def module_of(path: str) -> str:
    """The module of a file of Python, by its path in the repository: of lightrail/a/b.py, lightrail.a.b."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(source: str) -> set[str]:
    """The names that a file imports: `from a import b` gives a and a.b, which may be a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
            found.update(f"{node.module}.{each.name}" for each in node.names)
    return found


def unit_tests(changed: Collection[str], imports: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """By changed file: its tests, sorted. A file that no test maps to has an empty list.

    Args:
        changed: paths in the repository.
        imports: by path of each test file, the names that it imports.
    """
    return {
        path: sorted(test for test, names in imports.items() if _is_test_of(test, names, path))
        for path in sorted(changed)
    }


def _is_test_of(test: str, imports: Collection[str], path: str) -> bool:
    if not path.endswith(".py"):
        return False
    if _name(path) == "conftest.py":
        return test.startswith(path.removesuffix("conftest.py"))
    return test == path or module_of(path) in imports or _bears_name(test, path)


def _bears_name(test: str, path: str) -> bool:
    """Whether a test begins with the name of a module, in the folder of the module or in one above.

    lightrail/a/b/c.py has tests/unit/a/b/test_c.py, tests/unit/a/test_c_more.py, tests/model/test_c_model.py.
    """
    folders, _, name = path.removesuffix(".py").rpartition("/")
    top, _, room = folders.partition("/")
    tested = _name(test).removesuffix(".py")
    if top != "lightrail" or not (tested == f"test_{name}" or tested.startswith(f"test_{name}_")):
        return False
    folder = test.removeprefix("tests/unit/").rpartition("/")[0]
    return folder == "tests/model" or f"{room}/".startswith(f"{folder}/")


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def all_imports() -> dict[str, set[str]]:
    """By path of each test file of TESTED: the names that it imports."""
    files = (file for folder in TESTED for file in (ROOT / folder).rglob("test_*.py"))
    return {file.relative_to(ROOT).as_posix(): imported(file.read_text(encoding="utf-8")) for file in files}


def say(text: str) -> None:
    """Print a line between those of the programs."""
    print(f"quick: {text}", flush=True)


def git(*arguments: str) -> list[str] | None:
    """Lines of the output of git; None if git refuses."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else None


def base() -> str:
    """The commit to compare with. Ends the program if LIGHTRAIL_BASE is none."""
    chosen = os.environ.get("LIGHTRAIL_BASE")
    if chosen:
        if git("rev-parse", "--verify", f"{chosen}^{{commit}}") is None:
            sys.exit(f"quick: expected a commit in LIGHTRAIL_BASE, found {chosen!r}")
        return chosen
    for trunk in TRUNKS:
        found = git("merge-base", "HEAD", trunk)
        if found:
            return found[0]
    say("neither origin/main nor main is here: only what is not committed counts as changed")
    return "HEAD"


def changed_since(commit: str) -> list[str]:
    """Paths that differ from a commit, and those that git does not know yet; deleted files are left out."""
    differing = git("diff", "--name-only", "--diff-filter=d", commit)
    unknown = git("ls-files", "--others", "--exclude-standard")
    if differing is None or unknown is None:
        sys.exit("quick: expected a working copy of git, found none")
    return [*differing, *unknown]


def steps() -> Iterator[tuple[str, list[str]]]:
    """Name and command of each step, all from the environment of this interpreter."""
    programs = Path(sys.executable).parent
    complete = importlib.util.find_spec("pyspark") is not None
    if not complete:
        say("set up by `make dev`: types of Spark's jobs and of other tests are left to `make test`")
    yield "lint", [str(programs / "ruff"), "check"]
    yield "types", [str(programs / "mypy"), *([] if complete else PARTLY)]
    yield "imports", [str(programs / "lint-imports")]
    commit = base()
    mapped = unit_tests(changed_since(commit), all_imports())
    chosen = sorted({test for tests in mapped.values() for test in tests})
    untested = [path for path, tests in mapped.items() if path.endswith(".py") and not tests]
    if untested:
        say(f"changed, and no unit test imports it or bears its name: {', '.join(untested)}")
    if not complete and any(test.startswith(SPARK) for test in chosen):
        say(f"left out, as PySpark is not installed (`make setup` installs it): {SPARK}")
        chosen = [test for test in chosen if not test.startswith(SPARK)]
    if chosen:
        yield "tests", [str(programs / "pytest"), "-m", "not soak", *chosen]
    else:
        say(f"no unit test belongs to what changed since {commit}")


def main() -> int:
    """Run all steps, up to the first that fails; returns its exit status."""
    for name, command in steps():
        begun = time.monotonic()
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        say(f"{name}: {'passed' if status == 0 else 'failed'} in {time.monotonic() - begun:.0f} s")
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
