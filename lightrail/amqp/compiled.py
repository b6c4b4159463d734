"""The scanner of this installation: compiled, or interpreted where nothing could be compiled.

Both are made from transfers.py, scanner.py and redelivery.py. LIGHTRAIL_INTERPRETED=1 in the environment
selects the interpreted ones, for debuggers.
"""

import importlib
import logging
import os
from types import ModuleType
from typing import Final

from lightrail.amqp import redelivery as _redelivery
from lightrail.amqp import scanner as _scanner
from lightrail.amqp import transfers as _transfers

log = logging.getLogger("lightrail.amqp.compiled")

NAMES: Final = ("transfers", "scanner", "redelivery")
"""Modules that are compiled, each after those that it calls."""
_INTERPRETED: Final = (_transfers, _scanner, _redelivery)


def _chosen() -> tuple[ModuleType, ...]:
    if os.environ.get("LIGHTRAIL_INTERPRETED"):
        return _INTERPRETED
    try:
        # All or none: the compiled ones call each other.
        found = tuple(importlib.import_module(f"lightrail.amqp._{name}") for name in NAMES)
    except ImportError:
        return _INTERPRETED
    except (TypeError, ValueError) as error:
        # Built from different versions of each other: a signature, or the size of an object, differs.
        log.error("the compiled scanner can't be used, run `make setup` to build it anew: %s", error)
        return _INTERPRETED
    if hasattr(found[0], "u32"):
        # Built without the .pxd files, which hide it: that is slower than what learned shapes spare.
        log.error(
            "the compiled scanner has no types, build it from a checkout: lightrail/amqp/*.pxd are missing"
        )
        return _INTERPRETED
    return found


transfers, scanner, redelivery = _chosen()
COMPILED: Final = scanner is not _scanner
"""Whether the scanner is machine code."""
