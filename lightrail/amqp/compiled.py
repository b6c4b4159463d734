"""The scanner as this installation has it: compiled, or interpreted where nothing could be compiled.

Both come from scanner.py. With LIGHTRAIL_INTERPRETED=1 in the environment the interpreted one is used, for
stepping through it with a debugger.
"""

import importlib
import os
from types import ModuleType
from typing import Final

from lightrail.amqp import scanner as _interpreted


def _compiled() -> ModuleType | None:
    if os.environ.get("LIGHTRAIL_INTERPRETED"):
        return None
    try:
        return importlib.import_module("lightrail.amqp._scanner")
    except ImportError:
        return None


_found = _compiled()
COMPILED: Final = _found is not None
"""Whether the scanner is machine code."""
scanner = _interpreted if _found is None else _found
