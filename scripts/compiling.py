"""Compiles the way of a message: a closed set of modules becomes machine code, by mypyc (docs/adr/0081).

The sources stay the reference; compiled_sources.py says how their copies in build/compiled differ. What is
built is one shared library, and a shim for each module, by which Python's import system finds it, in
lightrail/_compiled with the digest of all sources (lightrail/native.py reads it). `make compiled` calls this.
"""

import argparse
import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
from functools import cache
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
        "lightrail/wire/sockets/counts.py",
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
STRICT: Final = "\nstrict = true\nwarn_return_any = false\nwarn_redundant_casts = false\n"
"""Settings of mypy for copies, in which fields of composites are Any."""
BUILT_FOR_TESTS: Final = ROOT / "build/compiled_for_tests"
"""Where tests/conftest.py finds the form for tests."""


def modules(root: Path) -> list[str]:
    """Paths of the modules that are compiled, in the order of the alphabet."""
    left_out = {each for paths in LEFT_OUT.values() for each in paths}
    found = {path.relative_to(root).as_posix() for room in ROOMS for path in root.glob(room)}
    missing = sorted(path for path in left_out if not (root / path).exists())
    if missing:
        raise SystemExit(
            f"compiling: expected {', '.join(missing)}, which LEFT_OUT names, found no such file"
        )
    return sorted(path for path in found - left_out if not path.endswith(("/__init__.py", "/main.py")))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"compiling: {shlex.join(command)}\n{done.stdout}{done.stderr}")


def _inputs(target: Path) -> list[str]:
    """The files that an object was compiled of, as the compiler has listed them; none if it has not."""
    listed = target.with_suffix(".d")
    return listed.read_text().partition(":")[2].replace("\\\n", " ").split() if listed.exists() else []


class Objects:
    """Compiles C to objects, but for those whose command and input are what they were."""

    def __init__(self) -> None:
        self._digest = cache(lambda path: hashlib.sha256(Path(path).read_bytes()).hexdigest())

    def _key(self, command: list[str], target: Path) -> str | None:
        try:
            return "\n".join([shlex.join(command), *map(self._digest, _inputs(target))])
        except OSError:
            return None

    def make(self, command: list[str], target: Path) -> None:
        known = target.with_suffix(".key")
        if target.exists() and known.exists() and known.read_text() == self._key(command, target):
            return
        known.unlink(missing_ok=True)
        _run([*command, "-MMD", "-MF", str(target.with_suffix(".d")), "-o", str(target)])
        known.write_text(self._key(command, target) or "")


def _say(text: str) -> None:
    print(f"compiling: {text}", file=sys.stderr, flush=True)


def build(root: Path, work: Path, built: Path, *, for_tests: bool = False) -> int:
    """Compiles the modules of a tree to `built`; returns their number.

    Args:
        work: for copies and C.
        for_tests: see compiled_sources.py.
    """
    from mypyc.build import mypycify

    digest = digest_of(root)
    paths = modules(root)
    if places := traps(root, paths):
        raise SystemExit(f"compiling: expected code that mypyc compiles as it is, found {', '.join(places)}")
    _say(f"{len(paths)} modules become C")
    copy(root, work, paths, for_tests=for_tests)
    (work / "first.h").write_text(HEADER)
    (work / "stubs").mkdir(exist_ok=True)
    for stub in (root / "stubs").rglob("*.pyi"):
        target = work / stub.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(stub.read_text())
    settings = (root / "pyproject.toml").read_text()
    (work / "pyproject.toml").write_text(settings.replace("\nstrict = true\n", STRICT))
    built.mkdir(parents=True, exist_ok=True)
    for former in built.iterdir():
        former.unlink()
    home = Path.cwd()
    os.chdir(work)
    try:
        extensions = mypycify(
            ["--config-file=pyproject.toml", *paths],
            multi_file=True,
            group_name=LIBRARY.removesuffix("__mypyc"),
        )
    finally:
        os.chdir(home)
    if places := narrowed(work / "build") + identified(work / "build"):
        raise SystemExit(f"compiling: expected code that does what Python does, found {', '.join(places)}")
    variables = sysconfig.get_config_vars()
    compiler = shlex.split(os.environ.get("CC", variables["CC"]))
    flags = [*shlex.split(variables["CFLAGS"]), "-fPIC", "-g0", "-w", "-fvisibility=hidden"]
    flags += [
        f"-I{sysconfig.get_paths()['include']}",
        f"-I{work}/build",
        f"-I{work}",
        "-include",
        f"{work}/first.h",
    ]
    linker = shlex.split(os.environ.get("LDSHARED", variables["LDSHARED"]))

    objects = Objects()

    def compiled(source: str, *further: str) -> str:
        target = work / f"{source}.o"
        objects.make([*compiler, *flags, *further, "-c", str(work / source)], target)
        return str(target)

    with ThreadPool(os.cpu_count() or 1) as pool:
        _say("C becomes machine code, on all processors")
        library = next(each for each in extensions if each.name.endswith("__mypyc"))
        shims = [each for each in extensions if each is not library]
        inside = [f"-I{each}" for each in library.include_dirs]
        level = "-O0" if for_tests else "-O2"  # A minute where it is three.
        made = pool.map(lambda source: compiled(source, level, *inside), library.sources, 1)
        _run([*linker, *made, "-o", str(built / f"{library.name}{SUFFIX}")])

        def shim(extension: "Extension") -> None:
            made = compiled(extension.sources[0], "-O0")
            _run([*linker, made, "-o", str(built / f"{extension.name}{SUFFIX}")])

        pool.map(shim, shims, 1)
    (built / MODULES).write_text("".join(f"{path}\n" for path in paths))
    (built / DIGEST).write_text(digest)
    return len(paths)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compiles the modules that a message passes.")
    parser.add_argument(
        "--for-tests",
        action="store_true",
        help="interpreted classes may derive from compiled ones; to build/compiled_for_tests",
    )
    for_tests = parser.parse_args().for_tests
    work, built = ("build/for_tests", BUILT_FOR_TESTS) if for_tests else ("build/compiled", BUILT)
    _say(f"{build(ROOT, ROOT / work, built, for_tests=for_tests)} modules are compiled")


if __name__ == "__main__":
    main()
