"""A cluster under test: real etcd servers, shards, frontends and gateways, each a process of its own.

    with Cluster(tmp_path) as cluster:
        shard, frontend = cluster.shard(), cluster.frontend()     # not started yet
        cluster.start(shard, frontend)                            # both at once; returns when they are ready
        ...
        shard.kill()
        shard.start().until_ready()

Ports are of the system's choice and stay a process's own when it is started again. Each process has a data
directory of its own, as on a machine of its own; whoever leaves the ``with`` block leaves no process behind.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from lightrail.cluster.entries import Entry
from lightrail.cluster.map import PLACEMENT, Placed
from tests.support import wait
from tests.support.broker import ROOT
from tests.support.deploy.etcd import EtcdCluster
from tests.support.ports import free_ports


class Node:
    """One process; `flags` come behind those that the cluster gives everybody."""

    def __init__(
        self,
        cluster: "Cluster",
        role: str,
        name: str,
        flags: Sequence[str],
        data: Path,
        environ: dict[str, str] | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        self.role = role
        self.name = name
        self.data = data
        self.flags = tuple(flags)
        self.source = ROOT
        """The folder with the program that it runs."""
        self.log = cluster.directory / f"{name}.log"
        (metrics, port) = free_ports(2)
        self.metrics = f"127.0.0.1:{metrics}"
        """``HOST:PORT`` of its own /healthz, /readyz and /metrics."""
        self.served = f"127.0.0.1:{port}"
        """``HOST:PORT`` of AMQP of a frontend, of HTTP of a gateway."""
        self.ready: dict[str, str] = {}
        """What its ready line says."""
        self._cluster = cluster
        self._environ = environ or {}
        self._inside = tuple(inside)
        self._begin = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def id(self) -> int:
        """Its number, once it is ready."""
        return int(self.ready["id"])

    @property
    def amqp(self) -> str:
        return f"amqp://{self.served}"

    @property
    def http(self) -> str:
        return f"http://{self.served}"

    def command(self) -> list[str]:
        """What starts it."""
        own = {"frontend": ["--amqp", self.served], "gateway": ["--http", self.served]}
        given = [*self._cluster.flags, "--data", str(self.data), "--metrics", self.metrics]
        return [
            *(*self._inside, sys.executable, "-m", "lightrail.cli.main", self.role),
            *given,
            *own.get(self.role, []),
            *self.flags,
        ]

    def start(self) -> Self:
        """Starts it; it may take a while until it serves."""
        assert self.process is None, f"{self.name} runs already"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LIGHTRAIL_")}
        self._begin = self.log.stat().st_size if self.log.exists() else 0
        self.ready = {}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.source,
                env=clean | self._environ,
            )
        return self

    def until_ready(self, deadline_s: float = wait.DEADLINE_S) -> Self:
        """Waits for the line that it writes when it serves and is registered."""

        def found() -> bool:
            for line in self.said().splitlines():
                _, marked, said = line.partition(" ready: ")
                if marked:
                    self.ready = dict(part.split(" ", 1) for part in said.split(", "))
                    return True
            assert self.running, f"{self.name} ended before it was ready:\n{self.said()}"
            return False

        wait.until(found, f"{self.name} is ready; it said:\n{self.said()}", deadline_s)
        return self

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def said(self) -> str:
        """Everything on stderr since it was last started."""
        with open(self.log, "rb") as file:
            file.seek(self._begin)
            return file.read().decode(errors="replace")

    def asked(self, path: str) -> tuple[int, str]:
        """(status, text) of a page at its metrics address; status 0 while nobody listens."""
        return get(f"http://{self.metrics}{path}")

    def ended(self, deadline_s: float = wait.DEADLINE_S) -> int:
        """Waits until it ends by itself; its exit status."""
        assert self.process is not None
        try:
            status = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs; it said:\n{self.said()}") from None
        self.process = None
        return status

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """SIGSTOP: its connections stay and say nothing."""
        wait.freeze(self.pid)

    def proceed(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> int:
        """SIGTERM, and its exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.ended()

    def restart(self) -> Self:
        """SIGTERM, and started again; returns when it serves."""
        assert self.terminate() == 0, self.said()
        return self.start().until_ready()


class Cluster:
    """etcd and processes; `flags` are given to each process, behind those that say where etcd is."""

    def __init__(
        self, directory: Path, *flags: str, members: int = 1, etcd_options: Sequence[str] = ()
    ) -> None:
        self.directory = directory
        self.etcd = EtcdCluster(directory, members, *etcd_options)
        self.flags = ("--etcd", ",".join(self.etcd.endpoints), *flags)
        self.nodes: list[Node] = []

    def node(
        self,
        role: str,
        *flags: str,
        data: Path | None = None,
        name: str | None = None,
        environ: dict[str, str] | None = None,
        inside: Sequence[str] = (),
    ) -> Node:
        """A process that is not started yet, with a data directory of its own unless `data` says another.

        Args:
            inside: what its command begins with, such as the network namespace that it is to run in.
        """
        if name is None:
            name = f"{role}-{sum(each.role == role for each in self.nodes)}"
        made = Node(self, role, name, flags, data or self.directory / name, environ, inside)
        self.nodes.append(made)
        return made

    def shard(self, *flags: str, data: Path | None = None, inside: Sequence[str] = ()) -> Node:
        return self.node("shard", *flags, data=data, inside=inside)

    def frontend(self, *flags: str, data: Path | None = None) -> Node:
        return self.node("frontend", *flags, data=data)

    def gateway(self, *flags: str, data: Path | None = None) -> Node:
        return self.node("gateway", *flags, data=data)

    def start(self, *nodes: Node) -> None:
        """Starts these, or all that don't run; returns when they serve."""
        chosen = nodes or tuple(each for each in self.nodes if not each.running)
        for each in chosen:
            each.start()
        for each in chosen:
            each.until_ready()

    def admin(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``lightrail-admin`` with the etcd of this cluster."""
        return subprocess.run(
            [sys.executable, "-m", "lightrail.cli.admin", *self.flags[:2], *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=wait.DEADLINE_S,
            stdin=subprocess.DEVNULL,
        )

    def placed(self, queue: str) -> Placed:
        """Where a queue is, asked of etcd itself."""
        key = f"/lightrail/lightrail/{PLACEMENT}{queue}"
        found = self.etcd.servers[0].control("get", key, "--write-out=json")
        (pair,) = json.loads(found.stdout)["kvs"]
        value = base64.b64decode(pair["value"]).decode()
        return Placed.decode(
            Entry(PLACEMENT + queue, value, int(pair["create_revision"]), int(pair["mod_revision"]))
        )

    def keys(self, prefix: str = "") -> dict[str, str]:
        """What etcd has below the cluster's prefix, asked of etcd itself: values by key."""
        found = self.etcd.servers[0].control(
            "get", "--prefix", f"/lightrail/lightrail/{prefix}", "--write-out=simple"
        )
        lines = found.stdout.splitlines()
        return {
            key.removeprefix("/lightrail/lightrail/"): value
            for key, value in zip(lines[::2], lines[1::2], strict=True)
        }

    def __enter__(self) -> Self:
        try:
            self.etcd.start()
        except BaseException:
            self.etcd.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            stack.callback(self.etcd.close)
            for each in self.nodes:
                stack.callback(each.kill)
            # First in order, all at once: it is quicker, and shows who can't.
            for each in self.nodes:
                if each.process is not None:
                    each.process.send_signal(signal.SIGCONT)
                    each.process.terminate()
            for each in self.nodes:
                if each.process is not None:
                    each.ended()


def get(url: str) -> tuple[int, str]:
    """(status, text) of a page; status 0 while nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=wait.DEADLINE_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return 0, ""
