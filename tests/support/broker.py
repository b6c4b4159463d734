"""A broker under test: ``lightrail serve`` as a process, on ports of the system's choice."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support import wait

ROOT = Path(__file__).parents[2]


class Broker:
    """A started broker; leaving the ``with`` block ends it and everything it started."""

    def __init__(
        self,
        data: Path | str,
        *flags: str,
        command: tuple[str, ...] = ("-m", "lightrail.cli.main", "serve"),
        environ: dict[str, str] | None = None,
        root: Path = ROOT,
        python: str = sys.executable,
    ) -> None:
        self.data = Path(data)
        arguments = ["--data", str(data), "--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json", *flags]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LIGHTRAIL_")}
        self.log = open(f"{data}.log", "ab+")  # noqa: SIM115 - closed by stop()
        self.process = subprocess.Popen(
            [python, *command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            bufsize=0,
            cwd=root,
            env=clean | (environ or {}),
        )
        self.ready: dict[str, Any] = {}

    @property
    def amqp(self) -> str:
        """``HOST:PORT``"""
        return str(self.ready["amqp"])

    @property
    def http(self) -> str:
        """``HOST:PORT``"""
        return str(self.ready["http"])

    def pid(self, role: str, id: int = 0) -> int:
        """The process of a role when the broker got ready; see ``processes`` of the line for more."""
        (found,) = [one["pid"] for one in self.ready["processes"] if (one["role"], one["id"]) == (role, id)]
        return int(found)

    def until_ready(self, deadline_s: float = wait.DEADLINE_S) -> Self:
        """Wait for the line that ``--json`` prints; a broker that is not ready in time is stopped."""
        assert self.process.stdout is not None
        try:
            line = wait.line(self.process.stdout, deadline_s)
        except AssertionError:
            self.stop()
            raise
        assert line, f"the broker ended before it was ready:\n{self.said()}"
        self.ready = json.loads(line)
        return self

    def said(self) -> str:
        """Everything on stderr so far."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def kill(self) -> None:
        """kill -9 of the supervisor alone."""
        self.process.kill()
        self.process.wait()

    def kill_everything(self) -> None:
        """kill -9 of all processes of the broker, as if the machine had stopped."""
        # Stopped first: it starts no child again, and no child sees the pipe to it close before its own end.
        wait.freeze(self.process.pid)
        for one in self.ready["processes"]:
            os.kill(one["pid"], signal.SIGKILL)
        self.kill()
        # From then on their sockets are closed, which clients are to notice.
        for one in self.ready["processes"]:
            wait.until(partial(wait.gone, one["pid"]), f"{one} ends", 10.0)

    def terminate(self, deadline_s: float = wait.DEADLINE_S) -> int:
        """SIGTERM, and wait for the end; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(deadline_s)

    def stop(self) -> None:
        """End it, in order if it still can, and make sure that nothing is left."""
        if self.process.poll() is None:
            try:
                self.terminate()
            except subprocess.TimeoutExpired:
                self.kill()
        for one in self.ready.get("processes", ()):
            if not wait.gone(one["pid"]):
                with contextlib.suppress(AssertionError):
                    wait.until(partial(wait.gone, one["pid"]), f"{one} ends", 10.0)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()

    def __enter__(self) -> Self:
        return self.until_ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
