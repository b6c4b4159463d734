"""Waiting in tests: for a condition until a deadline, for a line of a pipe, never for a time to pass."""

import os
import select
import signal
import time
from collections.abc import Callable
from typing import IO, TypeVar

Given = TypeVar("Given")
Value = TypeVar("Value")
DEADLINE_S = 30.0
POLL_S = 0.01


def until(condition: Callable[[], Value], what: str, deadline_s: float = DEADLINE_S) -> Value:
    """Ask again and again until ``condition`` gives something true, which is returned."""
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {deadline_s:.0f} s in vain: {what}"
        time.sleep(POLL_S)
    return value


def until_with(
    one: Given, condition: Callable[[Given], Value], what: str, deadline_s: float = DEADLINE_S
) -> Value:
    """The same for a condition of one of several, as a loop has them."""
    return until(lambda: condition(one), what, deadline_s)


def line(pipe: IO[bytes], deadline_s: float = DEADLINE_S) -> bytes:
    """The next line of an unbuffered pipe, b"" when it was closed; fail at the deadline."""
    end = time.monotonic() + deadline_s
    gathered = b""
    while not gathered.endswith(b"\n"):
        readable, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
        assert readable, f"waited {deadline_s:.0f} s in vain for a line, got {gathered!r}"
        byte = os.read(pipe.fileno(), 1)
        if not byte:
            break
        gathered += byte
    return gathered


def gone(pid: int) -> bool:
    """True when no process has this number, or only its exit status is left.

    A process whose first thread has ended keeps its sockets until its other threads end, too.
    """
    try:
        return set(_states(pid)) <= {b"Z", b"X"} and len(os.listdir(f"/proc/{pid}/task")) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def freeze(pid: int) -> None:
    """SIGSTOP; when this returns every thread of the process stands still (a signal takes its time)."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: set(_states(pid)) <= {b"T", b"t", b"Z", b"X"}, f"process {pid} stands still")


def _states(pid: int) -> list[bytes]:
    """Of its threads; one that ends meanwhile has none."""
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                found.append(file.read().rpartition(b")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
