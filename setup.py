"""What pyproject.toml has no words for: what is compiled.

Three modules of lightrail/amqp, by Cython, where there is a compiler. Without one, or without Cython, the
installation succeeds and everything works, with more CPU per message (docs/adr/0034-a-compiled-scanner.md).

With LIGHTRAIL_COMPILED=1 in the environment, the modules that a message passes as well, by mypy and C, for
frontends and shards (docs/adr/0081-compiled-modules.md). That takes minutes and does nothing for clients, so
that whoever builds a wheel or an image of the broker asks for it; then it is an error if anything can't be
compiled. With LIGHTRAIL_PURE=1 nothing is compiled, and the wheel fits each platform. An installation for
editing has none of them: `make compiled` puts them beside its sources.
"""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from setuptools import Distribution, Extension, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
NAMES = ("transfers", "scanner", "redelivery")
"""Modules of lightrail/amqp; compiled, each has an underscore before its name (compiled.py)."""
IS_PURE = bool(os.environ.get("LIGHTRAIL_PURE"))
IS_COMPILED = bool(os.environ.get("LIGHTRAIL_COMPILED")) and not IS_PURE


def modules() -> list[Extension]:
    """What Cython compiles."""
    if IS_PURE:
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        message = "lightrail: the scanner is not compiled: expected the package Cython"
        if IS_COMPILED:
            raise SystemExit(message) from None
        print(message, file=sys.stderr)
        return []
    extensions = [Extension(f"lightrail.amqp._{name}", [f"lightrail/amqp/{name}.py"]) for name in NAMES]
    if sys.platform == "linux":
        # What syncs commits; elsewhere a thread of Python does (shard/journal/commit_thread.py).
        extensions.append(
            Extension("lightrail.shard.journal._syncer", ["lightrail/shard/journal/_syncer.pyx"])
        )
    # What was built before goes first: the modules call each other in C, so that one that can't be built now
    # must not stay beside newer ones.
    if "build_ext" in sys.argv:
        for name in NAMES:
            for built in Path("lightrail/amqp").glob(f"_{name}.*.so"):
                built.unlink()
    # By force, because Cython does not look at the times of the .pxd files: their names are those of the
    # compiled modules, and a module that was compiled with another's former types could not be imported.
    made: list[Extension] = cythonize(extensions, build_dir="build/cython", force=True, quiet=True)
    for each in made:
        # Not an argument above: cythonize makes extensions of its own.
        each.optional = not IS_COMPILED
    return made


class BuildPy(build_py):
    """Builds the sources, and what is compiled of them with LIGHTRAIL_COMPILED=1."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        built = Path(self.build_lib, "lightrail/_compiled").resolve()
        # Of an earlier build in this folder, of other sources.
        shutil.rmtree(built, ignore_errors=True)
        if IS_COMPILED:
            sys.path.insert(0, str(HERE))
            from scripts.compiling import WORK, CompilingError, build

            try:
                build(HERE, HERE / WORK, built)
            except CompilingError as error:
                raise SystemExit(f"compiling: {error}") from None
        else:
            print(
                "lightrail: what a message passes is not compiled; LIGHTRAIL_COMPILED=1 does so, in minutes",
                file=sys.stderr,
            )


class Compiled(Distribution):
    """Has machine code, also where the wheel would be called one of plain Python."""

    def has_ext_modules(self) -> bool:
        return True


def mypy() -> str:
    """The compiler of modules, in the version that the tests have."""
    (version,) = re.findall(r"(?m)^mypy==(\S+)$", (HERE / "constraints.txt").read_text())
    return f"mypy=={version}"


further: dict[str, Any] = {"distclass": Compiled, "setup_requires": [mypy()]} if IS_COMPILED else {}
setup(ext_modules=modules(), cmdclass={"build_py": BuildPy}, **further)
