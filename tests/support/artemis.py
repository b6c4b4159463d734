"""ActiveMQ Artemis from Maven Central: one broker in a process of its own, on loopback."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support import wait
from tests.support.ports import free_ports

HERE: Final = Path(__file__).parents[1] / "brokers" / "artemis"
LIBRARIES: Final = HERE / "target" / "lib"
USER: Final = "app"
PASSWORD: Final = "pencil"
START_TIME_S: Final = 60.0
OPTIONS: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Of a JVM that starts fast."""


class Artemis:
    """A broker with a port and a user of its own; it is gone when the block ends.

    Args:
        directory: for everything that it writes, and the compiled class; it exists.
        options: of the JVM.
        file_bytes: of each file of its journal. Small ones start sooner: they are filled with zeros.
    """

    def __init__(
        self, directory: Path, *, options: Sequence[str] = OPTIONS, file_bytes: int = 1 << 20
    ) -> None:
        self.directory = directory
        self._options = [*options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        self._file_bytes = file_bytes
        (self.port,) = free_ports(1)
        self.url = f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.port}"
        libraries = sorted(LIBRARIES.glob("*.jar"))
        assert libraries, "ActiveMQ Artemis is not there: run scripts/setup.sh test"
        self._path = os.pathsep.join(map(str, libraries))
        sources = map(str, sorted((HERE / "src").glob("*.java")))
        command = ["javac", "--release", "17", "-cp", self._path, "-d", str(directory), *sources]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when it serves."""
        path = os.pathsep.join([str(self.directory), self._path])
        words = [str(self.directory / "data"), str(self.port), USER, PASSWORD, str(self._file_bytes)]
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                ["java", *self._options, "-cp", path, "Artemis", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
            )
        assert self.process.stdout is not None
        line = wait.line(self.process.stdout, START_TIME_S)
        assert line, f"Artemis ended before it was ready:\n{(self.directory / 'log').read_text()[-2_000:]}"

    @property
    def pid(self) -> int:
        """The process whose CPU time is the broker's."""
        return self.process.pid

    def version(self) -> str:
        """Of the jar that runs."""
        (jar,) = LIBRARIES.glob("artemis-server-[0-9]*.jar")
        return jar.stem.removeprefix("artemis-server-")

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self._wait()

    def stop(self) -> None:
        """Ends it in order: it follows the pipe to it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._wait()

    def _wait(self) -> None:
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
