"""Counters of the kernel for processes and their descendants: voluntary context switches and system calls.

Switches are those of proc(5), `voluntary_ctxt_switches`: each is a thread that waited for something. System
calls are counted by the trace point raw_syscalls:sys_enter through perf_event_open(2), which needs root (or
CAP_PERFMON) and a kernel with tracefs, and makes each call slower, so it is optional.

CPU time of processes and all their descendants, from /proc/PID/stat (proc(5)).
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

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


_NUMBERS: Final = {"x86_64": 298, "aarch64": 241}
"""Of the system call perf_event_open, by machine."""
_TRACEFS: Final = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_ATTR_BYTES: Final = 64
"""PERF_ATTR_SIZE_VER0: the fields that are set here are in the first version of the structure."""
_TRACE_POINT: Final = 2
_INHERIT: Final = 1 << 1
"""Threads and children that start later are counted as well."""
_CLOEXEC: Final = 8


class NotCountedError(Exception):
    """System calls can't be counted here; the text says why, and what is needed."""


def switches(pids: Iterable[int]) -> dict[int, int]:
    """Voluntary context switches of each living thread of the processes, by thread id."""
    counts: dict[int, int] = {}
    for pid, thread in _threads(pids):
        try:
            with open(f"/proc/{pid}/task/{thread}/status", "rb") as file:
                text = file.read()
        except OSError:
            continue
        _, found, rest = text.partition(b"\nvoluntary_ctxt_switches:")
        if found:
            counts[thread] = int(rest.split(None, 1)[0])
    return counts


def more(before: dict[int, int], after: dict[int, int]) -> int:
    """Switches between two readings, without those of threads that ended in between."""
    return sum(count - before.get(thread, 0) for thread, count in after.items())


class SystemCalls:
    """Counts the system calls of processes and their descendants, from its creation until it is closed."""

    def __init__(self, pids: tuple[int, ...]) -> None:
        """Raises NotCountedError."""
        self._files: list[int] = []
        attr = struct.pack("<IIQ24xQ", _TRACE_POINT, _ATTR_BYTES, _trace_point(), _INHERIT)
        attr = attr.ljust(_ATTR_BYTES, b"\0")
        call = ctypes.CDLL(None, use_errno=True).syscall
        number = _NUMBERS.get(platform.machine())
        if number is None:
            known = ", ".join(_NUMBERS)
            raise NotCountedError(f"expected a machine that is one of {known}, found {platform.machine()}")
        try:
            for _, thread in _threads(tree(pids)):
                file: int = call(number, attr, thread, -1, -1, _CLOEXEC)
                if file < 0:
                    error = ctypes.get_errno()
                    if error == errno.ESRCH:
                        continue
                    raise NotCountedError(
                        f"perf_event_open: {os.strerror(error)}; expected root or CAP_PERFMON"
                    )
                self._files.append(file)
        except BaseException:
            self.close()
            raise

    def count(self) -> int:
        """System calls so far."""
        return sum(struct.unpack("<Q", os.read(file, 8))[0] for file in self._files)

    def close(self) -> None:
        """Stops counting."""
        for file in self._files:
            os.close(file)
        self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _threads(pids: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for pid in pids:
        try:
            found += [(pid, int(name)) for name in os.listdir(f"/proc/{pid}/task")]
        except OSError:
            continue
    return found


def _trace_point() -> int:
    for root in _TRACEFS:
        try:
            with open(f"{root}/events/raw_syscalls/sys_enter/id", encoding="ascii") as file:
                return int(file.read())
        except PermissionError:
            raise NotCountedError("reading the trace points of the kernel: expected root") from None
        except OSError:
            continue
    raise NotCountedError(
        "the kernel's trace point raw_syscalls:sys_enter was not found; "
        "`mount -t tracefs tracefs /sys/kernel/tracing` makes it visible where the kernel has it"
    )
