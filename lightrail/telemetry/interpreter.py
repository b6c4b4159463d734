"""Interpreter: whether the Python of this process was built with optimisations.

They save a third of a broker's CPU. scripts/setup.sh runs this file with the interpreters of the PATH, before
anything is installed: it imports nothing but the standard library, and exits with 0 for an optimised one.
"""

import sys
import sysconfig
from typing import Final

SYSTEM: Final = "/usr"
"""Prefix of the interpreters of distributions; Debian's are built by a profile without the option."""
OPTION: Final = "--enable-optimizations"
"""The option of Python's configure script that builds by a profile."""


def optimised(prefix: str, arguments: str) -> bool:
    """Whether an interpreter was built with optimisations.

    Args:
        prefix: its `sys.base_prefix`.
        arguments: those of its configure script (`CONFIG_ARGS` of sysconfig).
    """
    return prefix == SYSTEM or OPTION in arguments


OPTIMISED: Final = optimised(sys.base_prefix, sysconfig.get_config_var("CONFIG_ARGS") or "")
"""Whether the interpreter of this process was built with optimisations."""
UNOPTIMISED: Final = (
    f"this Python ({sys.executable}) was built without optimisations, and the broker needs up to half as "
    f"much CPU again: run it with one of the distribution, or one that was built with {OPTION}; see "
    "docs/operate/running.md"
)
"""The warning in the log of `lightrail serve`, and of `lightrail shard`, `frontend` and `gateway`."""

if __name__ == "__main__":
    sys.exit(not OPTIMISED)
