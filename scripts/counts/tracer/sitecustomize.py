"""Counts calls of Python functions in a process of the broker, for `scripts/counts/traces.py`.

Python imports a module of this name at its start if the module is on PYTHONPATH, so the product has no code
for it. The process listens at the UNIX socket TRACE_SOCKETS/PID: "begin" forgets all calls, and "end"
returns them as JSON, {path: calls}, of the files below TRACE_ROOT. A coroutine or generator that is resumed
counts as a call; the body of a module or a class does not.
"""

import json
import os
import socket
import sys
import threading
from types import FrameType
from typing import Any

CO_OPTIMIZED = 1
"""Flag of the code of functions; bodies of modules and classes lack it (module inspect)."""

calls: dict[str, int] = {}
"""By the file's path. Not by code objects: equal functions of different files have equal ones."""


def count(frame: FrameType, event: str, argument: Any) -> None:
    """The hook: any thread calls it, at each call of a Python function."""
    if event == "call":
        code = frame.f_code
        if code.co_flags & CO_OPTIMIZED:
            calls[code.co_filename] = calls.get(code.co_filename, 0) + 1


def answer(listener: socket.socket, root: str) -> None:
    """Requests, one after the other, until the process ends."""
    while True:
        peer, _ = listener.accept()
        with peer:
            if peer.recv(16) == b"begin":
                calls.clear()
                peer.sendall(b"{}")
                continue
            below = {
                path[len(root) :]: number for path, number in calls.copy().items() if path.startswith(root)
            }
            peer.sendall(json.dumps(below).encode())


def start(folder: str, root: str) -> None:
    """Listens, and counts from now on; the thread that answers is not counted itself."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(folder, str(os.getpid())))
    listener.listen()
    threading.Thread(target=answer, args=(listener, root), daemon=True).start()
    threading.setprofile(count)
    sys.setprofile(count)


if "TRACE_SOCKETS" in os.environ:
    start(os.environ["TRACE_SOCKETS"], os.environ["TRACE_ROOT"])
