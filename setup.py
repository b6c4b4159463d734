"""What pyproject.toml has no words for: the module that is compiled where there is a compiler.

Without a compiler, or without Cython, the installation succeeds and everything works, with more CPU per
message (docs/adr/0034-a-compiled-scanner.md). With LIGHTRAIL_PURE=1 in the environment nothing is compiled,
and the wheel fits each platform.
"""

import os
import sys

from setuptools import Extension, setup

SOURCE = "lightrail/amqp/scanner.py"



def modules() -> list[Extension]:
    """What is compiled."""
    if os.environ.get("LIGHTRAIL_PURE"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        print(f"lightrail: {SOURCE} is not compiled: expected the package Cython", file=sys.stderr)
        return []
    extension = Extension("lightrail.amqp._scanner", [SOURCE])
    made: list[Extension] = cythonize([extension], build_dir="build/cython", quiet=True)
    for each in made:
        # Not an argument above: cythonize makes extensions of its own.
        each.optional = True
    return made


setup(ext_modules=modules())
