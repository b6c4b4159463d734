"""The scanner of this installation: compiled, or interpreted where nothing could be compiled.

Both are made from scanner.py. LIGHTRAIL_INTERPRETED=1 in the environment selects the interpreted one, for
debuggers.
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
