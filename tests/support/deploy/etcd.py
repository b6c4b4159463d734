"""Real etcd servers for tests: one or three, killed, stopped, continued and started again.

Debian's etcd-server has to be there (`scripts/setup.sh test`). Nothing is synced to disk: a kill -9 of
the process loses nothing that the kernel has.
"""

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support import wait
from tests.support.ports import free_ports

PROGRAM = shutil.which("etcd") or "/usr/bin/etcd"
CONTROL = shutil.which("etcdctl") or "/usr/bin/etcdctl"


class EtcdServer:
    """One member, on ports that stay the same when it is started again."""

    def __init__(self, directory: Path, name: str, client: int, peer: int, options: tuple[str, ...]) -> None:
        self.name = name
        self.directory = directory
        self.port = client
        self.peer = peer
        self.cluster = f"{name}=http://127.0.0.1:{peer}"
        self._options = options
        self.scheme = "http"
        self.server_files: tuple[str, ...] = ()
        self.client_files: tuple[str, ...] = ()
        self.login = ""
        """``USER:PASSWORD`` of etcdctl."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """``HOST:PORT`` for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def runs(self) -> bool:
        """Whether it was started and not killed."""
        return self._process is not None

    def start(self) -> None:
        """Also again, with the data that it has; `EtcdCluster.ready` waits until it answers."""
        assert self._process is None, f"{self.name} runs already"
        self.directory.mkdir(parents=True, exist_ok=True)
        url, peer = f"{self.scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peer}"
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [PROGRAM, "--name", self.name, "--data-dir", str(self.directory / "data")]
                + ["--listen-client-urls", url, "--advertise-client-urls", url]
                + ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
                + ["--initial-cluster", self.cluster, "--unsafe-no-fsync", "--logger", "zap"]
                + ["--heartbeat-interval", "50", "--election-timeout", "500"]
                + [*self._options, *self.server_files],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """As by kill -9; nothing when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """SIGSTOP: its connections stay and say nothing."""
        assert self._process is not None
        wait.freeze(self._process.pid)

    def proceed(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def answers(self) -> bool:
        """Whether it serves reads that need a leader."""
        return self.control("get", "nothing").returncode == 0

    def control(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """etcdctl at this member."""
        return subprocess.run(
            [
                CONTROL,
                f"--endpoints={self.scheme}://{self.endpoint}",
                *("--command-timeout=2s", "--dial-timeout=1s"),
                *self.client_files,
                *((f"--user={self.login}",) if self.login else ()),
                *arguments,
            ],
            env={"ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            timeout=20,
        )

    def save(self, to: Path) -> None:
        """A snapshot of what there is now."""
        done = self.control("snapshot", "save", str(to))
        assert done.returncode == 0, done.stderr

    def restore(self, snapshot: Path) -> None:
        """Set back to a snapshot; it is killed where it runs, and has to be started again."""
        self.kill()
        shutil.rmtree(self.directory / "data")
        done = self.control("snapshot", "restore", str(snapshot), "--data-dir", str(self.directory / "data"))
        assert done.returncode == 0, done.stderr

    def compact(self) -> None:
        """Has the cluster forget all history up to now."""
        answer = self.control("get", "nothing", "--write-out=fields").stdout
        revision = next(line.split(" : ")[1] for line in answer.splitlines() if line.startswith('"Revision"'))
        done = self.control("compact", revision)
        assert done.returncode == 0, done.stderr


class EtcdCluster:
    """Members that run together."""

    def __init__(self, directory: Path, members: int = 1, *options: str) -> None:
        ports = free_ports(2 * members)
        self.servers = [
            EtcdServer(directory / f"etcd-{each}", f"m{each}", ports[2 * each], ports[2 * each + 1], options)
            for each in range(members)
        ]
        everybody = ",".join(server.cluster for server in self.servers)
        for server in self.servers:
            server.cluster = everybody

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(server.endpoint for server in self.servers)

    def secure(self, ca: str, certificate: str, key: str, client_certificate: str, client_key: str) -> None:
        """TLS for clients, which must have a certificate; before it is started."""
        for server in self.servers:
            server.scheme = "https"
            server.server_files = (
                *("--client-cert-auth", f"--trusted-ca-file={ca}"),
                *(f"--cert-file={certificate}", f"--key-file={key}"),
            )
            server.client_files = (f"--cacert={ca}", f"--cert={client_certificate}", f"--key={client_key}")

    def start(self) -> None:
        """Those that don't run; waits until all answer."""
        for server in self.servers:
            if not server.runs:
                server.start()
        self.ready()

    def ready(self) -> None:
        """Waits until every member answers."""
        for server in self.servers:
            wait.until(server.answers, f"etcd member {server.name} answers; its log is in {server.directory}")

    def leader(self) -> EtcdServer:
        """The member that leads now."""

        def found() -> EtcdServer | None:
            for server in self.servers:
                answer = server.control("endpoint", "status", "--write-out=fields").stdout
                fields = dict(line.split(" : ", 1) for line in answer.splitlines() if " : " in line)
                if fields and fields['"MemberID"'] == fields['"Leader"']:
                    return server
            return None

        return wait.until(found, "a leader")  # type: ignore[return-value]

    def close(self) -> None:
        """Kills everybody."""
        for server in self.servers:
            server.kill()


@contextlib.contextmanager
def etcd(directory: Path, members: int = 1, *options: str) -> Iterator[EtcdCluster]:
    """A cluster that runs and answers; its servers are killed in the end."""
    cluster = EtcdCluster(directory, members, *options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
