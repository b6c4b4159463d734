"""Compiles the way of a message: a closed set of modules becomes machine code, by mypyc (docs/adr/0081).

The sources stay the reference; compiled_sources.py says how their copies in build/compiled differ. What is
built is one shared library, and a shim for each module, by which Python's import system finds it, in
lightrail/_compiled with the digest of all sources (lightrail/native.py reads it). `make compiled` calls this.
"""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lightrail.native import BUILT, DIGEST, LIBRARY, MODULES, ROOT, SUFFIX, digest_of
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
_ASSIGNED: Final = re.compile(r"\s+(cpy_r_r\d+) = (.*);")
_CAST: Final = re.compile(r'CPy_TypeError\("None", (cpy_r_r\d+)\)')
_TRACED: Final = re.compile(r'AddTraceback\("([^"]+)", "([^"]+)", (\d+)')


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


def _say(text: str) -> None:
    print(f"compiling: {text}", file=sys.stderr, flush=True)


def narrowed(generated: Path) -> list[str]:
    """Places where an attribute is cast to None, each as "file:line (function)".

    mypy takes an attribute that was set to None for None until the function ends, whatever is called
    meanwhile; the cast raises TypeError where Python compares. Read the attribute in another function there.
    """
    found = []
    for file in sorted(generated.glob("__native_*.c")):
        lines = file.read_text().split("\n")
        values: dict[str, str] = {}
        for number, line in enumerate(lines):
            if assigned := _ASSIGNED.match(line):
                values[assigned[1]] = assigned[2]
            cast = _CAST.search(line)
            if cast and "->_" in values.get(cast[1], ""):
                traced = _TRACED.search("\n".join(lines[number : number + 8]))
                place = f"{traced[1]}:{traced[3]} ({traced[2]})" if traced else f"{file.name}:{number + 1}"
                found.append(place)
    return found


def build(root: Path, built: Path) -> int:
    """Compiles the modules of a tree to `built`; returns their number."""
    from mypyc.build import mypycify

    paths = modules(root)
    _say(f"{len(paths)} modules become C")
    work = root / "build/compiled"
    copy(root, work, paths)
    (work / "first.h").write_text(HEADER)
    (work / "stubs").mkdir(exist_ok=True)
    for stub in (root / "stubs").rglob("*.pyi"):
        target = work / stub.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(stub.read_text())
    (work / "pyproject.toml").write_text((root / "pyproject.toml").read_text())
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
    if casts := narrowed(work / "build"):
        raise SystemExit(f"compiling: expected no attribute that is cast to None, found {', '.join(casts)}")
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

    def compiled(source: str, *further: str) -> str:
        target = str(work / f"{source}.o")
        _run([*compiler, *flags, *further, "-c", str(work / source), "-o", target])
        return target

    with ThreadPool(os.cpu_count() or 1) as pool:
        _say("C becomes machine code, on all processors")
        library = next(each for each in extensions if each.name.endswith("__mypyc"))
        shims = [each for each in extensions if each is not library]
        inside = [f"-I{each}" for each in library.include_dirs]
        objects = pool.map(lambda source: compiled(source, "-O2", *inside), library.sources, 1)
        _run([*linker, *objects, "-o", str(built / f"{library.name}{SUFFIX}")])

        def shim(extension: "Extension") -> None:
            made = compiled(extension.sources[0], "-O0")
            _run([*linker, made, "-o", str(built / f"{extension.name}{SUFFIX}")])

        pool.map(shim, shims, 1)
    (built / MODULES).write_text("".join(f"{path}\n" for path in paths))
    (built / DIGEST).write_text(digest_of(root))
    return len(paths)


if __name__ == "__main__":
    _say(f"{build(ROOT, BUILT)} modules are compiled")
