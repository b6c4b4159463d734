"""A Docker engine of the tests' own: Debian's dockerd on a socket, with data and network settings apart.

What is built stays in a cache outside the repository, so that the next run finds it; containers and volumes
do not. Nothing of the machine's network is changed: no rules of a packet filter, no forwarding, no bridge
that stays.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import wait

PROGRAMS = ("dockerd", "containerd", "runc", "docker", "iptables", "debootstrap", "setpriv")
FLAGS = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")
START_S = 60.0
LOCK_S = 600.0


class NoEngineError(Exception):
    """Why no engine can run here."""


def cache_directory() -> Path:
    """Where what is expensive to make is kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = Path(os.environ.get("LIGHTRAIL_TEST_CACHE") or Path(base) / "lightrail-tests")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """One run at a time; another one waits for its turn."""
    with open(cache_directory() / f"{name}.lock", "w") as file:

        def taken() -> bool:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        wait.until(taken, f"another run holds {file.name}", LOCK_S)
        yield


class Engine:
    """A running dockerd; leaving the ``with`` block ends it, its containers, and removes its volumes."""

    def __init__(self, scratch: Path) -> None:
        """``scratch`` is for what lives as long as the engine. Raises NoEngineError."""
        if os.geteuid() != 0:
            raise NoEngineError("only root can start dockerd")
        absent = [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]
        if absent:
            raise NoEngineError(f"not installed: {', '.join(absent)}; scripts/setup.sh compose installs them")
        if _bridges_are_filtered():
            raise NoEngineError(
                "the packet filter drops what bridges forward, so containers can't reach each other: "
                "another engine runs here, or has left its rules (`iptables -P FORWARD ACCEPT` lets them)"
            )
        self.data = cache_directory() / "engine"
        self.scratch = scratch
        self.socket = scratch / "docker.sock"
        self.log = scratch / "dockerd.log"
        self.environ = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("DOCKER_", "LIGHTRAIL_"))
            },
            "PATH": search_path(),
            "DOCKER_HOST": f"unix://{self.socket}",
            "DOCKER_CONFIG": str(scratch),
        }

    def __enter__(self) -> Self:
        for driver in ("overlay2", "vfs"):
            self._start(driver)
            with contextlib.suppress(AssertionError):
                wait.until(lambda: self._answers() or self.process.poll() is not None, "dockerd", START_S)
            if self._answers():
                self._sweep()
                return self
            self._end()
        last = self.log.read_text(errors="replace").strip().splitlines()[-3:]
        raise NoEngineError("dockerd does not start here: " + " | ".join(last))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            self._sweep()
        finally:
            self._end()

    def docker(
        self, *arguments: str, input: bytes | None = None, check: bool = True, time_s: float = 300
    ) -> str:
        """What ``docker ARGUMENTS`` prints, stderr included; asserts that it succeeds."""
        return self.run("docker", *arguments, input=input, check=check, time_s=time_s)

    def run(
        self,
        *command: str,
        input: bytes | None = None,
        check: bool = True,
        time_s: float = 300,
        environ: dict[str, str] | None = None,
        directory: Path | None = None,
    ) -> str:
        """What a program prints that speaks with this engine."""
        done = subprocess.run(
            command,
            input=input,
            stdin=None if input is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environ | (environ or {}),
            cwd=directory,
            timeout=time_s,
            check=False,
        )
        printed = done.stdout.decode(errors="replace")
        assert not check or done.returncode == 0, (
            f"{' '.join(command)} ended with {done.returncode}:\n{printed}"
        )
        return printed

    def label(self, image: str, name: str) -> str:
        """A label of an image; empty when there is no such image or label."""
        form = '{{index .Config.Labels "' + name + '"}}'
        found = self.docker("image", "inspect", "--format", form, image, check=False).strip()
        return "" if "No such image" in found or found == "<no value>" else found

    def _start(self, driver: str) -> None:
        command = [
            # Whatever becomes of the test, the engine ends with it.
            "setpriv", "--pdeathsig", "TERM",
            "dockerd", f"--data-root={self.data}", f"--exec-root={self.scratch / 'exec'}",
            f"--host=unix://{self.socket}", f"--pidfile={self.scratch / 'dockerd.pid'}",
            f"--storage-driver={driver}", *FLAGS,
        ]  # fmt: skip
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environ
            )

    def _answers(self) -> bool:
        return "Storage Driver" in self.docker("info", check=False)

    def _sweep(self) -> None:
        """Nothing of an earlier run, nor of this one, is left but images."""
        containers = self.docker("ps", "--all", "--quiet").split()
        if containers:
            self.docker("rm", "--force", "--volumes", *containers)
        volumes = self.docker("volume", "ls", "--quiet").split()
        if volumes:
            self.docker("volume", "rm", "--force", *volumes)
        self.docker("network", "prune", "--force")

    def _end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # dockerd leaves the mount of its network namespace behind.
        for line in Path("/proc/self/mounts").read_text().splitlines():
            if line.split()[1].startswith((f"{self.scratch}/", f"{self.data}/")):
                self.run("umount", line.split()[1])


def _bridges_are_filtered() -> bool:
    """What another engine does on the whole machine."""
    switch = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if not switch.exists() or switch.read_text().strip() == "0":
        return False
    asked = ("iptables", "-S", "FORWARD")
    listed = subprocess.run(asked, capture_output=True, check=False, env={"PATH": search_path()})
    return b"-P FORWARD DROP" in listed.stdout


def search_path() -> str:
    """Programs of the administrator and of Go are found, too."""
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/local/go/bin"
