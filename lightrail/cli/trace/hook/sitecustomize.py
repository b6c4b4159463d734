"""Records calls of Python functions in a process of the broker, for `recorder.py` in the folder above.

Python imports a module of this name at its start if the module's folder is on PYTHONPATH. So only a process
that was started with this folder can be traced, and the broker has no code for traces. The process listens
at the UNIX socket TRACE_SOCKETS/PID: "begin" starts a record, "look" returns what it has so far, and "end"
returns it and stops recording. A record is JSON:

    {"functions": [[FILE, NAME, LINE], ...], "calls": [[TIME, FUNCTION], ...], "dropped": 0}

FILE is relative to the folder TRACE_ROOT, and functions of other files are left out. TIME is that of
time.monotonic_ns, which all processes of a machine share, and FUNCTION an index of `functions`. A coroutine
or generator that is resumed counts as a call; the body of a module or a class does not.
"""

import json
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

CO_OPTIMIZED = 1
"""Flag of the code of functions; bodies of modules and classes lack it (module inspect)."""
CALLS_MAX = 2_000_000
"""Calls of one record, about 200 MB; later ones are counted and dropped."""


@dataclass(eq=False, repr=False)
class Record:
    """Calls between a "begin" and an "end", from any thread."""

    calls: list[tuple[int, CodeType]] = field(default_factory=list)
    dropped: int = 0

    def add(self, code: CodeType) -> None:
        if len(self.calls) < CALLS_MAX:
            self.calls.append((time.monotonic_ns(), code))
        else:
            self.dropped += 1

    def as_json(self, root: str) -> str:
        # Not by code objects: equal functions of different files have equal ones.
        indexes: dict[tuple[str, str, int], int] = {}
        calls = [
            (
                time_ns,
                indexes.setdefault(
                    (code.co_filename[len(root) :], code.co_qualname, code.co_firstlineno), len(indexes)
                ),
            )
            for time_ns, code in self.calls.copy()  # other threads may add calls to it
            if code.co_filename.startswith(root)
        ]
        return json.dumps({"functions": list(indexes), "calls": calls, "dropped": self.dropped})


record: Record | None = None
"""The one that was begun; None: nothing is recorded."""


def hook(frame: FrameType, event: str, argument: Any) -> None:
    """Any thread calls it, at each call of a Python function and each return."""
    current = record
    if current is not None and event == "call" and frame.f_code.co_flags & CO_OPTIMIZED:
        current.add(frame.f_code)


def answer(listener: socket.socket, root: str) -> None:
    """Requests, one after the other, until the process ends."""
    global record
    while True:
        peer, _ = listener.accept()
        with peer:
            request = peer.recv(16)
            if request == b"begin":
                record = Record()
            elif record is not None:
                peer.sendall(record.as_json(root).encode())
            if request == b"end":
                record = None


def start(folder: str, root: str) -> None:
    """Listens; the thread that answers is not recorded itself."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(folder, str(os.getpid())))
    listener.listen()
    threading.Thread(target=answer, args=(listener, root), daemon=True).start()
    threading.setprofile(hook)
    sys.setprofile(hook)


if "TRACE_SOCKETS" in os.environ:
    start(os.environ["TRACE_SOCKETS"], os.environ["TRACE_ROOT"])
