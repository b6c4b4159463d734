"""Compiles the way of a message: a closed set of modules becomes machine code, by mypyc (docs/adr/0081).

The sources stay the reference; compiled_sources.py says how their copies in build/compiled differ. What is
built is one shared library, and a shim for each module, by which Python's import system finds it, in
lightrail/_compiled with the digests of all sources (lightrail/native.py reads them). `make compiled` calls
this for a checkout, and setup.py for a wheel.

What was built before is used again: all of it where nothing that it is made of has changed, and otherwise
each object whose C, headers and flags are the same. The folder build/compiled may be copied to another place.
"""

import argparse
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir, contextmanager
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from lightrail.native import BUILT, DIGEST, LIBRARY, MODULES, ROOT, SUFFIX, digest_of
from scripts.compiled_checks import identified, narrowed, traps
from scripts.compiled_sources import copy

if TYPE_CHECKING:
    from distutils.core import Extension

ROOMS: Final = (
    "lightrail/amqp/*.py",
    "lightrail/frontend/client_socket.py",
    "lightrail/frontend/connection.py",
    "lightrail/frontend/engine.py",
    "lightrail/frontend/errors.py",
    "lightrail/frontend/intake.py",
    "lightrail/frontend/links/*.py",
    "lightrail/frontend/nodes/links.py",
    "lightrail/frontend/nodes/replies.py",
    "lightrail/frontend/outflow.py",
    "lightrail/frontend/transactions/coordinator.py",
    "lightrail/frontend/unsettled_bytes.py",
    "lightrail/journal/*.py",
    "lightrail/model/attempts.py",
    "lightrail/model/clock.py",
    "lightrail/namespace/spreading.py",
    "lightrail/service_bus/links/*.py",
    "lightrail/shard/archiving/archive.py",
    "lightrail/shard/effects/*.py",
    "lightrail/shard/engine/*.py",
    "lightrail/shard/journal/*.py",
    "lightrail/shard/links/**/*.py",
    "lightrail/shard/queue/**/*.py",
    "lightrail/shard/queues/*.py",
    "lightrail/shard/replicas/*.py",
    "lightrail/shard_client/**/*.py",
    "lightrail/telemetry/frontend.py",
    "lightrail/wire/*.py",
    "lightrail/wire/sockets/*.py",
)
"""Modules that a message passes, with all bases of their classes, and all classes that derive from these."""
LEFT_OUT: Final = {
    "Cython compiles them": (
        "lightrail/amqp/compiled.py",
        "lightrail/amqp/redelivery.py",
        "lightrail/amqp/scanner.py",
        "lightrail/amqp/transfers.py",
    ),
    "types of Python, or of tables, that mypyc can't derive from": (
        "lightrail/amqp/composite.py",
        "lightrail/amqp/fields.py",
        "lightrail/amqp/performatives.py",
        "lightrail/amqp/sections.py",
        "lightrail/amqp/values.py",
    ),
    "no message passes them": (
        "lightrail/amqp/sasl.py",
        "lightrail/amqp/sasl_client.py",
        "lightrail/amqp/security.py",
        "lightrail/amqp/shapes.py",
        "lightrail/amqp/survey.py",
        "lightrail/amqp/transactions.py",
        "lightrail/journal/archive.py",
        "lightrail/shard/journal/loading.py",
        "lightrail/shard/journal/memory.py",
        "lightrail/shard/journal/mirror.py",
        "lightrail/shard/journal/mirror_opening.py",
        "lightrail/shard/journal/recovery.py",
        "lightrail/shard/journal/repair.py",
        "lightrail/shard/journal/sqlite.py",
        "lightrail/shard/journal/sqlite_jobs.py",
        "lightrail/shard/journal/sqlite_opening.py",
        "lightrail/shard/journal/standby.py",
        "lightrail/wire/control.py",
        "lightrail/wire/looking.py",
        "lightrail/wire/replication.py",
        "lightrail/wire/sockets/keys.py",
        "lightrail/wire/sockets/zeromq.py",
        "lightrail/wire/sockets/zeromq_ends.py",
    ),
}
# What a class is annotated with is of no use at run time; the type of a class that comes later is NULL here.
HEADER: Final = """#include <Python.h>
static inline int set_item(PyObject *dict, PyObject *key, PyObject *value)
{
    return PyDict_SetItem(dict, key, value ? value : (PyObject *)&PyType_Type);
}
#define PyDict_SetItem set_item
"""
A = TypeVar("A")
B = TypeVar("B")
WORK: Final = "build/compiled"
"""Folder of a tree for copies, C and objects."""
WORK_FOR_TESTS: Final = "build/for_tests"
BUILT_FOR_TESTS: Final = ROOT / "build/compiled_for_tests"
"""Where tests/conftest.py finds the form for tests."""
STRICT: Final = "\nstrict = true\nwarn_return_any = false\nwarn_redundant_casts = false\n"
"""Settings of mypy for copies, in which fields of composites are Any."""
MADE: Final = "made"
"""Folder in it with the modules."""
MADE_OF: Final = "made-of"
"""File in it: the digest of all that the modules are made of."""
HOW: Final = (
    "pyproject.toml",
    "scripts/compiled_checks.py",
    "scripts/compiled_sources.py",
    "scripts/compiling.py",
)
"""Files that decide, beside the sources, what is built."""
OPTIONS: Final = ("--follow-imports=silent", "--ignore-missing-imports", "--no-warn-unused-ignores")
"""A build has no packages of the broker, whose types are then unknown; `make types` looks at all modules."""
_NUMBERED: Final = re.compile(r"\b(__LL|__tmp)(\d+)\b")


def modules(root: Path) -> list[str]:
    """Paths of the modules that are compiled, in the order of the alphabet."""
    left_out = {each for paths in LEFT_OUT.values() for each in paths}
    found = {path.relative_to(root).as_posix() for room in ROOMS for path in root.glob(room)}
    missing = sorted(path for path in left_out if not (root / path).exists())
    if missing:
        raise CompilingError(f"expected {', '.join(missing)}, which LEFT_OUT names, found no such file")
    return sorted(path for path in found - left_out if not path.endswith(("/__init__.py", "/main.py")))


class CompilingError(Exception):
    """What was expected for the modules to be compiled, and what was found."""


def _run(command: list[str], folder: Path) -> str:
    """What a program prints. Raises CompilingError."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompilingError(f"expected a C compiler, found that {error}") from None
    if done.returncode:
        raise CompilingError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def _say(text: str) -> None:
    print(f"compiling: {text}", file=sys.stderr, flush=True)


def renumbered(text: str) -> str:
    """C whose labels and temporary variables are counted from 0, in each file of its own.

    mypyc counts them over all files, so that a change of one would change those behind it.
    """
    numbers: dict[str, int] = {}
    return _NUMBERED.sub(lambda found: f"{found[1]}{numbers.setdefault(found[0], len(numbers))}", text)


class Compiler:
    """The C compiler that Python was built with, or that the variable CC names, for the C of one folder.

    Args:
        further: what else the objects depend on, beside their sources, headers and flags.
    """

    def __init__(self, work: Path, further: str) -> None:
        variables = sysconfig.get_config_vars()
        self._work = work
        self._compiler = shlex.split(os.environ.get("CC", variables["CC"]))
        self._linker = shlex.split(os.environ.get("LDSHARED", variables["LDSHARED"]))
        self._flags = [*shlex.split(variables["CFLAGS"]), "-fPIC", "-g0", "-w", "-fvisibility=hidden"]
        self._flags += ["-MMD", "-include", "first.h"]
        self._folders = [f"-I{sysconfig.get_paths()['include']}", "-Ibuild", "-I."]
        version = _run([*self._compiler, "--version"], work)
        self.identity: Final = "\0".join((version, *self._compiler, *self._linker, *self._flags, further))
        """What objects are made by; paths of folders are not a part of it."""
        self._sums: dict[str, str] = {}
        self.compiled = 0
        """Number of the objects that were not there."""

    def object_of(self, source: str, *flags: str, folders: tuple[str, ...] = ()) -> str:
        """Compiles a source, unless its object is there already; both are paths below the folder.

        Raises CompilingError.
        """
        target = f"{source}.o"
        identity = self.identity + "\0".join(flags)
        key = self._work / f"{source}.key"
        if not key.exists() or key.read_text() != self._key(source, identity):
            key.unlink(missing_ok=True)
            includes = [*self._folders, *(f"-I{each}" for each in folders)]
            command = [*self._compiler, *self._flags, *includes, *flags, "-c", source, "-o", target]
            _run(command, self._work)
            key.write_text(self._key(source, identity))
            self.compiled += 1
        return target

    def link(self, objects: list[str], target: Path) -> None:
        """Makes a shared library of objects. Raises CompilingError."""
        _run([*self._linker, *objects, "-o", str(target)], self._work)

    def _key(self, source: str, identity: str) -> str:
        """The digest of what the object of a source was made of; "" if it is not there."""
        try:
            if not (self._work / f"{source}.o").exists():
                return ""
            _, _, files = (self._work / f"{source}.d").read_text().replace("\\\n", " ").partition(":")
            parts = [self._sum(each) for each in files.split()]
        except OSError:
            return ""
        return hashlib.sha256("\0".join((identity, *parts)).encode()).hexdigest()

    def _sum(self, file: str) -> str:
        """The digest of a file, which no build changes between two looks. Raises OSError."""
        found = self._sums.get(file)
        if found is None:
            found = self._sums[file] = hashlib.sha256((self._work / file).read_bytes()).hexdigest()
        return found


def on_all_processors(work: Callable[[A], B], on: Iterable[A]) -> list[B]:
    """Results of a function, of threads that wait for programs. Raises what the function does."""
    with ThreadPool(len(os.sched_getaffinity(0))) as pool:
        return pool.map(work, on, 1)


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """One build at a time in a folder."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(root: Path, work: Path, built: Path, *, for_tests: bool = False) -> int:
    """Compiles the modules of a tree to the folder `built`; returns their number.

    Args:
        work: for copies, C and objects, and what a later build may use of this one.
        for_tests: see compiled_sources.py.

    Raises CompilingError: no mypy, no C compiler, or C that can't be compiled. What mypy finds in the sources
    it prints itself, and raises SystemExit.
    """
    try:
        from mypy.version import __version__ as version
    except ImportError:
        wanted = "the package mypy, of the version in constraints.txt"
        raise CompilingError(f"expected {wanted}, found none") from None

    paths = modules(root)
    with _alone(work):
        (work / "first.h").write_text(HEADER)
        compiler = Compiler(work, f"{version} {sys.version}")
        stubs = [path.relative_to(root).as_posix() for path in sorted((root / "stubs").rglob("*.pyi"))]
        sources = digest_of(root)
        parts = (compiler.identity, sources, digest_of(root, (*HOW, *stubs)))
        made_of = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        record, made = work / MADE_OF, work / MADE
        if not record.exists() or record.read_text() != made_of:
            record.unlink(missing_ok=True)
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            _build(root, work, paths, stubs, compiler, for_tests=for_tests)
            (made / MODULES).write_text("".join(f"{path}\n" for path in paths))
            (made / DIGEST).write_text(sources)
            record.write_text(made_of)
        _replace(built, made)
    return len(paths)


def _build(
    root: Path, work: Path, paths: list[str], stubs: list[str], compiler: Compiler, *, for_tests: bool
) -> None:
    """Makes the shared libraries, in the folder MADE of `work`."""
    from mypyc.build import mypycify

    if places := traps(root, paths):
        raise CompilingError(f"expected code that mypyc compiles as it is, found {', '.join(places)}")
    _say(f"{len(paths)} modules become C")
    copy(root, work, paths, for_tests=for_tests)
    for each in stubs:
        target = work / each
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((root / each).read_text())
    settings = (root / "pyproject.toml").read_text()
    (work / "pyproject.toml").write_text(settings.replace("\nstrict = true\n", STRICT))
    # The C of a module that is no longer compiled would be searched, too.
    for former in (work / "build").glob("*.c"):
        former.unlink()
    with chdir(work):
        extensions = mypycify(
            ["--config-file=pyproject.toml", *OPTIONS, *paths],
            multi_file=True,
            group_name=LIBRARY.removesuffix("__mypyc"),
        )
    for generated in (work / "build").glob("__native_*.c"):
        generated.write_text(renumbered(generated.read_text()))
    if places := narrowed(work / "build") + identified(work / "build"):
        raise CompilingError(f"expected code that does what Python does, found {', '.join(places)}")
    _say("C becomes machine code, on all processors")
    made = work / MADE
    library = next(each for each in extensions if each.name.endswith("__mypyc"))
    shims = [each for each in extensions if each is not library]
    folders = tuple(library.include_dirs)

    def shim(extension: "Extension") -> None:
        compiler.link([compiler.object_of(extension.sources[0], "-O0")], made / f"{extension.name}{SUFFIX}")

    level = "-O0" if for_tests else "-O2"  # A minute where it is three.
    objects = on_all_processors(
        lambda source: compiler.object_of(source, level, folders=folders), library.sources
    )
    compiler.link(objects, made / f"{library.name}{SUFFIX}")
    on_all_processors(shim, shims)
    _say(f"{compiler.compiled} of {len(objects) + len(shims)} objects were compiled")


def _replace(built: Path, made: Path) -> None:
    """Puts what was made in the place of what was built before; a running process keeps the former files."""
    built.mkdir(parents=True, exist_ok=True)
    for former in (built / DIGEST, *built.iterdir()):
        former.unlink(missing_ok=True)
    for each in sorted(made.iterdir(), key=lambda path: path.name == DIGEST):
        shutil.copy(each, built)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compiles the modules that a message passes.")
    parser.add_argument(
        "--for-tests",
        action="store_true",
        help="interpreted classes may derive from compiled ones; to build/compiled_for_tests",
    )
    for_tests = parser.parse_args().for_tests
    work, built = (WORK_FOR_TESTS, BUILT_FOR_TESTS) if for_tests else (WORK, BUILT)
    try:
        _say(f"{build(ROOT, ROOT / work, built, for_tests=for_tests)} modules are compiled")
    except CompilingError as wrong:
        sys.exit(f"compiling: {wrong}")


if __name__ == "__main__":
    main()
