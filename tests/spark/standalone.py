"""A standalone Spark of one master and some workers, and the project's wheel in an environment of its own."""

import os
import socket
import subprocess
import sysconfig
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import wait
from tests.support.deploy.wheels import build, install_alone


def environment(folder: Path) -> Path:
    """A venv with nothing but the wheel, which finds what it depends on in this one; gives its Python."""
    return install_alone(build(folder), folder / "venv")


class Standalone:
    """Leaving the ``with`` block ends the master, the workers, and every executor."""

    def __init__(self, folder: Path, python: Path, workers: int = 2) -> None:
        self._folder = folder
        self._workers = workers
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.master = f"spark://127.0.0.1:{port}"
        clean = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
        self.environ = clean | {
            "SPARK_HOME": self._home(),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
        }
        self._port = port
        self._processes: list[subprocess.Popen[bytes]] = []

    @staticmethod
    def _home() -> str:
        return str(Path(sysconfig.get_path("purelib")) / "pyspark")

    def _start(self, name: str, *words: str) -> Path:
        log = self._folder / f"{name}.log"
        with log.open("wb") as file:
            self._processes.append(
                subprocess.Popen(
                    [f"{self._home()}/bin/spark-class", *words],
                    cwd=self._folder,
                    env=self.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
            )
        return log

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), 1).close()
        except OSError:
            return False
        return True

    def __enter__(self) -> Self:
        where = ("--host", "127.0.0.1", "--webui-port", "0")
        package = "org.apache.spark.deploy"
        self._start("master", f"{package}.master.Master", *where, "--port", str(self._port))
        wait.until(self._listens, "the master of Spark listens", 60)
        for number in range(self._workers):
            size = ("--cores", "1", "--memory", "700m", "--work-dir", str(self._folder / f"work-{number}"))
            self._start(f"worker-{number}", f"{package}.worker.Worker", *where, *size, self.master)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A worker that is told to end takes its executors along.
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
