"""What a process has used: processor time and threads, as the system counts them.

The pool of gRPC's core is not counted: the core sizes the pool by the processors and by what waits in it, so
a busy machine makes one thread more or less.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_POOL = frozenset({"event_engine", "lifeguard", "grpc_global_tim"})
"""Names that gRPC's core gives to the threads of its pool."""


@dataclass(frozen=True)
class Usage:
    """Of one process up to now."""

    cpu_s: float
    threads: int


def usage(pid: int) -> Usage:
    """Raises OSError when there is no such process any more."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    # Behind the name: state is the 1st, utime and stime the 12th and 13th (proc(5)).
    threads = sum(name not in _POOL for name in _threads(pid))
    return Usage((int(fields[11]) + int(fields[12])) / _TICKS, threads)


def _threads(pid: int) -> Iterator[str]:
    """The name of each thread."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end between the listing and the look.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield (task / "comm").read_text().strip()
