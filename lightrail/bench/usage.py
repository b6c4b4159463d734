"""CPU time of processes and all their descendants, from /proc/PID/stat (proc(5))."""

import os
from dataclasses import dataclass
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """CPU seconds of one process; ``with_ended_s`` adds its children that ended and were waited for."""

    pid: int
    parent: int
    name: str
    own_s: float
    with_ended_s: float


def read(pid: int) -> ProcessUsage | None:
    """One process; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    end = text.rindex(b")")
    fields = text[end + 2 :].split()
    utime, stime, cutime, cstime = (int(value) for value in fields[11:15])
    own = (utime + stime) / TICKS_PER_S
    return ProcessUsage(pid, int(fields[1]), _name(pid), own, own + (cutime + cstime) / TICKS_PER_S)


def tree(pids: tuple[int, ...]) -> dict[int, ProcessUsage]:
    """The processes and all that descend from them, by process id."""
    everyone: dict[int, ProcessUsage] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            usage = read(int(entry))
            if usage is not None:
                everyone[usage.pid] = usage
    children: dict[int, list[int]] = {}
    for usage in everyone.values():
        children.setdefault(usage.parent, []).append(usage.pid)
    found: dict[int, ProcessUsage] = {}
    waiting = [pid for pid in pids if pid in everyone]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found[pid] = everyone[pid]
            waiting += children.get(pid, [])
    return found


def resident_bytes(pids: tuple[int, ...]) -> int:
    """Resident memory of the processes and their descendants; shared pages count in each."""
    pages = 0
    for pid in tree(pids):
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                pages += int(file.read().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds between two readings: in total, and per process as (pid, name, seconds)."""

    total_s: float
    processes: list[tuple[int, str, float]]


def between(before: dict[int, ProcessUsage], after: dict[int, ProcessUsage]) -> Spent:
    """The difference of two readings, including processes that started or ended in between."""
    total = sum(usage.with_ended_s for usage in after.values())
    total -= sum(usage.with_ended_s for usage in before.values() if usage.pid in after)
    processes = [
        (usage.pid, usage.name, usage.own_s - (before[usage.pid].own_s if usage.pid in before else 0.0))
        for usage in after.values()
    ]
    ended = sum(usage.with_ended_s for usage in before.values() if usage.pid not in after)
    return Spent(max(total - ended, 0.0), sorted(processes, key=lambda process: -process[2]))


def _name(pid: int) -> str:
    """A short name: for Python the module or script that it runs."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = [word.decode(errors="replace") for word in file.read().split(b"\0") if word]
        with open(f"/proc/{pid}/comm", "rb") as file:
            command = file.read().decode(errors="replace").strip()
    except OSError:
        return "?"
    if words and "python" in os.path.basename(words[0]):
        rest = words[1:]
        if "-m" in rest and rest.index("-m") + 1 < len(rest):
            return rest[rest.index("-m") + 1]
        scripts = [word for word in rest if not word.startswith("-")]
        if scripts:
            return " ".join([os.path.basename(scripts[0]), *scripts[1:2]])
    return command
