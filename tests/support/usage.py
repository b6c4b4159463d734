"""What a process has used: processor time and threads, as the system counts them."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """Of one process up to now."""

    cpu_s: float
    threads: int


def usage(pid: int) -> Usage:
    """Raises OSError when the process is gone."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    # Behind the name: state is the 1st, utime and stime the 12th and 13th, threads the 18th (proc(5)).
    return Usage((int(fields[11]) + int(fields[12])) / _TICKS, int(fields[17]))
