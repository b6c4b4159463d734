"""The service manager of the chaos tests: keeps ``lightrail serve`` running on one directory and port."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import wait
from tests.support.broker import Broker

RESTART_PAUSE_S = 0.1
STARTS_MAX = 200


def parent_of(pid: int) -> int:
    """0 when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def children(pid: int) -> dict[tuple[str, int], int]:
    """(role, id) of the broker's processes below a supervisor, and their pids."""
    found: dict[tuple[str, int], int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or parent_of(int(entry)) != pid:
            continue
        with suppress(OSError):
            words = Path(f"/proc/{entry}/cmdline").read_bytes().decode().split("\0")
            if "--id" in words and "-m" in words:
                role = words[words.index("-m") + 1].split(".")[1]
                found[role, int(words[words.index("--id") + 1])] = int(entry)
    return found


def resident_bytes(pid: int) -> int:
    """What a process holds in memory; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


class Service:
    """A broker that is started again, on the same port, whenever it ends; until ``stop``."""

    def __init__(self, data: Path, *flags: str, environ: dict[str, str] | None = None) -> None:
        self.data = data
        self.flags = flags
        self.environ = environ
        self.starts = 0
        self.exits: list[int] = []
        self.address = ""
        self.gateway = ""
        """``HOST:PORT`` of HTTP, the same after each start."""
        self.broker = self._start()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="service", daemon=True)

    def _start(self) -> Broker:
        where = ("--amqp", self.address, "--http", self.gateway) if self.address else ()
        self.starts += 1
        return Broker(self.data, *self.flags, *where, environ=self.environ)

    def _keep(self) -> None:
        while not self._stopping.is_set() and self.starts < STARTS_MAX:
            self.exits.append(self.broker.process.wait())
            if self._stopping.wait(RESTART_PAUSE_S):
                return
            self.broker.stop()
            self.broker = self._start()

    def __enter__(self) -> Self:
        self.broker.until_ready()
        self.address = self.broker.amqp
        self.gateway = self.broker.http
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self.broker.stop()
        self._thread.join(wait.DEADLINE_S)
        if error is not None:
            error.add_note(f"the broker said:\n{self.said()[-6000:]}")

    def where(self) -> str:
        """``HOST:PORT``, for clients."""
        return self.address

    def said(self) -> str:
        """Everything on stderr, of all starts."""
        return Path(f"{self.data}.log").read_text(errors="replace")

    # --- its processes ---------------------------------------------------------------------------------

    @property
    def supervisor(self) -> int:
        """The process that looks after the others now; waits while it is being started anew."""
        return wait.until(self._supervisor, "a supervisor runs")

    def _supervisor(self) -> int:
        pid = self.broker.process.pid
        return 0 if wait.gone(pid) else pid

    def find(self, role: str, id: int = 0) -> int:
        """The process of a role now; waits while it is being started."""
        return wait.until(lambda: children(self.supervisor).get((role, id), 0), f"{role}-{id} runs")

    def everyone(self) -> list[int]:
        return [self.supervisor, *children(self.supervisor).values()]

    def kill(self, role: str, id: int = 0) -> None:
        """kill -9 of one process; returns when it is gone."""
        pid = self.supervisor if role == "supervisor" else self.find(role, id)
        with suppress(ProcessLookupError):
            # It may have ended by itself, as a child of a supervisor that was killed just before.
            os.kill(pid, signal.SIGKILL)
        wait.until(lambda: wait.gone(pid), f"{role} {pid} is gone")

    def kill_everything(self) -> None:
        """kill -9 of all at once, as if the machine had lost its power but not its disk cache."""
        supervisor = self.supervisor
        with suppress(ProcessLookupError, FileNotFoundError):
            wait.freeze(supervisor)
        pids = [supervisor, *children(supervisor).values()]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            wait.until_with(pid, lambda pid: wait.gone(pid), f"{pid} is gone")

    @contextmanager
    def frozen(self, role: str, id: int = 0) -> Iterator[int]:
        """SIGSTOP of one process for as long as the block runs."""
        pid = self.find(role, id)
        with suppress(ProcessLookupError, FileNotFoundError):
            wait.freeze(pid)
        try:
            yield pid
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
