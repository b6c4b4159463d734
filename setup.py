"""What pyproject.toml has no words for: the modules that are compiled where there is a compiler.

Without a compiler, or without Cython, the installation succeeds and everything works, with more CPU per
message (docs/adr/0034-a-compiled-scanner.md). With LIGHTRAIL_PURE=1 in the environment nothing is compiled,
and the wheel fits each platform.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

NAMES = ("transfers", "scanner", "redelivery")
"""Modules of lightrail/amqp; compiled, each has an underscore before its name (compiled.py)."""


def modules() -> list[Extension]:
    """What is compiled."""
    if os.environ.get("LIGHTRAIL_PURE"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        print("lightrail: the scanner is not compiled: expected the package Cython", file=sys.stderr)
        return []
    extensions = [Extension(f"lightrail.amqp._{name}", [f"lightrail/amqp/{name}.py"]) for name in NAMES]
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
        each.optional = True
    return made


setup(ext_modules=modules())
