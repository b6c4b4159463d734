"""Allocation: how much freed memory the C library keeps instead of giving it back to the kernel at once.

A message of a mebibyte lies in memory of that size in each process. By itself glibc gives such memory back
and takes it anew for the next message: 256 pages, each of which the kernel clears and maps. That cost as much
CPU as the copies that are left (ADR 36).
"""

import ctypes
import os
from typing import Final

KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""What may be free at the end of a heap; glibc's own bound rises to twice of this with the blocks it sees."""
MAPPED_BYTES_MIN: Final = 32 * 1024 * 1024
"""From here on a block is mapped by itself; the most that glibc takes, and where its own bound rises to."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Sets both bounds for this process; False where the C library has none, or its environment sets them."""
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # Either call ends glibc's adjusting of both, so that none may be left out.
    kept = mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)
    mapped = mallopt(_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
    return bool(kept and mapped)
