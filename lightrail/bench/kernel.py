"""Counters of the kernel for processes and their descendants: voluntary context switches and system calls.

Switches are those of proc(5), `voluntary_ctxt_switches`: each is a thread that waited for something. System
calls are counted by the trace point raw_syscalls:sys_enter through perf_event_open(2), which needs root (or
CAP_PERFMON) and a kernel with tracefs, and makes each call slower, so it is optional.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable
from typing import Final, Self

from lightrail.bench import usage

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
            for _, thread in _threads(usage.tree(pids)):
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
