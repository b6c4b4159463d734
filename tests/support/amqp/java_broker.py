"""Another project's broker as one Java process on loopback, compiled and started by the tests."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support import wait
from tests.support.ports import free_ports

START_TIME_S: Final = 60.0
COMPILE_TIME_S: Final = 120.0
STOP_TIME_S: Final = 20.0
FAST_START: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""JVM options for a short start."""


class JavaBroker:
    """A broker on a port of its own, stopped when the block ends.

    Its main class prints the port on standard output when it is ready, and stops the broker when its standard
    input is closed.

    Args:
        name: of the broker, in messages.
        home: its project: ``src`` has the main class, ``target/lib`` the jars, which scripts/setup.sh copies.
        directory: for everything that it writes, and the compiled class; it exists.
        options: of the JVM.
    """

    url: str
    """Where clients connect, without an address."""

    def __init__(self, name: str, home: Path, directory: Path, options: Sequence[str]) -> None:
        self.name = name
        self.directory = directory
        (self.port,) = free_ports(1)
        self._options = options
        self._libraries = home / "target" / "lib"
        libraries = sorted(self._libraries.glob("*.jar"))
        assert libraries, f"expected {name} in {self._libraries}, found no jars: run scripts/setup.sh test"
        self._path = os.pathsep.join([str(directory), *map(str, libraries)])
        sources = map(str, sorted((home / "src").glob("*.java")))
        command = ["javac", "--release", "17", "-cp", self._path, "-d", str(directory), *sources]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIME_S)
        assert done.returncode == 0, done.stderr

    def words(self) -> Sequence[str]:
        """The main class and its arguments."""
        raise NotImplementedError

    def version(self) -> str:
        """The version of the jars that run."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when the broker is ready."""
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                ["java", *self._options, "-cp", self._path, *self.words()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
            )
        assert self.process.stdout is not None
        line = wait.line(self.process.stdout, START_TIME_S)
        log_end = (self.directory / "log").read_text()[-2_000:]
        assert line, f"{self.name} ended before it was ready:\n{log_end}"

    @property
    def pid(self) -> int:
        """The process whose CPU time is the broker's."""
        return self.process.pid

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self._wait()

    def stop(self) -> None:
        """Stop the broker in order; kill it when that takes too long."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(STOP_TIME_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._wait()

    def _wait(self) -> None:
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _version_of(self, jar: str) -> str:
        """From the name of a jar that is there once."""
        (found,) = self._libraries.glob(f"{jar}-[0-9]*.jar")
        return found.stem.removeprefix(f"{jar}-")
