"""Allocation: how much freed memory the C library keeps instead of returning it to the kernel at once.

A message of a mebibyte occupies memory of that size in each process. By default glibc returns such memory to
the kernel and allocates it again for the next message: 256 pages, each of which the kernel clears and maps.
That cost as much CPU as the remaining copies of messages (ADR 36).
"""

import ctypes
import os
from typing import Final

KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Free memory at the end of a heap; glibc's own bound rises to twice this with the sizes of freed blocks."""
MAPPED_BYTES_MIN: Final = 32 * 1024 * 1024
"""Blocks of this size and more are mapped separately; glibc allows no larger value, its own bound rises to
it."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Sets both bounds for this process; False if the C library has none, or the environment sets them."""
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # Each of the two calls ends glibc's adjustment of both bounds, so both have to be set.
    kept = mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)
    mapped = mallopt(_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
    return bool(kept and mapped)
