"""A small program that stands for any role: it reports ready and writes down what happens to it.

``python -m tests.support.roles.ROLE --supervisor-fd N``; each appends lines ``ROLE-ID EVENT PID`` to
``DATA/events``. A file ``DATA/ROLE-ID.fail`` makes it end at once, ``DATA/ROLE-ID.unhealed`` end at once with
the status for errors that no other start helps, ``DATA/ROLE-ID.hang`` never be ready,
``DATA/ROLE-ID.wait`` say that it waits, for as long as it is there,
``DATA/ROLE-ID.deaf`` not obey SIGTERM nor the supervisor's end.
"""

import asyncio
import os
import signal

from lightrail.telemetry import process
from lightrail.telemetry.process import CannotServeError


def note(process: process.Process, event: str) -> None:
    """One line, written whole."""
    path = os.path.join(process.settings.data, "events")
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{process.name} {event} {os.getpid()}\n".encode())
    os.close(file)


def asked(process: process.Process, what: str) -> bool:
    return os.path.exists(os.path.join(process.settings.data, f"{process.name}.{what}"))


async def serve(process: process.Process) -> None:
    note(process, "start")
    if asked(process, "fail"):
        raise RuntimeError("asked to fail")
    if asked(process, "unhealed"):
        raise CannotServeError("asked to fail for good", heals=False)
    if asked(process, "deaf"):
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while asked(process, "wait"):
        process.wait_for("waiting for a file to go")
        note(process, "wait")
        await asyncio.sleep(0.05)
    if not asked(process, "hang"):
        note(process, "ready")
        process.report_ready(metrics="127.0.0.1:9")
    await process.until_stop()
    if asked(process, "deaf"):
        await asyncio.Event().wait()
    note(process, "stop")
