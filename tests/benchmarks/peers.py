"""RabbitMQ beside our broker: as Debian packages it, with its AMQP 1.0 plugin, in a scratch directory."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lightrail.bench.engine import Connection, PeerError
from lightrail.bench.url import parse_url
from tests.benchmarks.load import LoadFailed, bench
from tests.benchmarks.rates import SERVE
from tests.benchmarks.row import Figures, Limit, Row, Workplace
from tests.support.ports import free_ports

SERVER: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""The script that Debian's own wrapper calls; the wrapper insists on root or the user rabbitmq."""
PACKAGE: Final = "rabbitmq-server"
START_TIME_S: Final = 90.0
OPEN: Final = "--duration 5s"
"""As fast as the broker lets the sender: RabbitMQ then takes in more than it gives out."""
SHORT: Final = "--duration 5s --backlog 2000"
"""What suits RabbitMQ best: it is at its fastest with so many messages under way."""


class PeerMissing(Exception):
    """The other broker is not installed; the text says how to."""


def install() -> None:
    """Install RabbitMQ when it is missing and we may; raises PeerMissing."""
    if os.access(SERVER, os.X_OK):
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", PACKAGE]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise PeerMissing(
            f"expected RabbitMQ at {SERVER}, found none; on Debian and Ubuntu: sudo {' '.join(command)}"
        )
    # RUNLEVEL=1 keeps the package from starting a server of its own.
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "update", "-q"], check=False, env=environ)
    if subprocess.run(command, env=environ).returncode or not os.access(SERVER, os.X_OK):
        raise PeerMissing(f"{' '.join(command)} did not install it")


class RabbitMQ:
    """A RabbitMQ node on loopback with ports of its own; gone when the block ends."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.port, distribution, self._mapper = free_ports(3)
        (self.directory / "plugins").write_text("[rabbitmq_amqp1_0].\n")
        place = str(self.directory)
        self._environ = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": place,
            "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": f"{place}/mnesia",
            "RABBITMQ_LOG_BASE": f"{place}/log",
            "RABBITMQ_LOGS": f"{place}/log/node.log",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{place}/plugins",
            "RABBITMQ_CONFIG_FILE": f"{place}/none",
            "RABBITMQ_PID_FILE": f"{place}/pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._mapper),
        }
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//queue/bench"

    def __enter__(self) -> Self:
        with open(self.directory / "output", "wb") as output:
            self.process = subprocess.Popen(
                [SERVER],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environ,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIME_S
        while not self._serves():
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = (self.directory / "output").read_text(errors="replace")[-500:]
                self._stop()
                raise LoadFailed(f"RabbitMQ did not serve within {START_TIME_S:g} s: {said}")
            time.sleep(0.2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        """The process whose CPU time and children's is the broker's."""
        return self.process.pid

    def version(self) -> str:
        """As the package manager has it."""
        query = ["dpkg-query", "-W", "-f", "${Version}", PACKAGE]
        return subprocess.run(query, capture_output=True, text=True).stdout.strip() or "of unknown version"

    def _serves(self) -> bool:
        try:
            Connection(parse_url(self.url), "is-it-up").close()
        except PeerError:
            return False
        return True

    def _stop(self) -> None:
        """End the node in order, then what it started: the session is its own."""
        for number, time_s in ((signal.SIGTERM, 30.0), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(time_s)
                break
        environ = self._environ
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(["epmd", "-kill"], env=environ, capture_output=True, timeout=10)


def rows(rabbit: RabbitMQ) -> tuple[Row, ...]:
    """Comparisons with a running RabbitMQ."""
    return (
        _row(rabbit, "rabbitmq", "transient, as fast as it goes", OPEN, 15.0),
        _row(rabbit, "rabbitmq-short", "transient, 2,000 messages under way", SHORT, 15.0),
        _row(rabbit, "rabbitmq-durable", "durable, 2,000 messages under way", f"--durable {SHORT}", 1.0),
    )


def _row(rabbit: RabbitMQ, name: str, kind: str, flags: str, ratio: float) -> Row:
    def measure(place: Workplace) -> Figures:
        theirs = bench(rabbit.url, flags, (rabbit.pid,))
        place.say(f"RabbitMQ {theirs['received_per_s']:,.0f} messages/s")
        with place.broker() as broker:
            ours = bench(f"amqp://{broker.amqp}/bench", flags, (broker.process.pid,))
        return {
            "ratio": ours["received_per_s"] / theirs["received_per_s"],
            "lightrail_per_s": ours["received_per_s"],
            "rabbitmq_per_s": theirs["received_per_s"],
            "lightrail_cpu_us": ours["server_cpu_us"],
            "rabbitmq_cpu_us": theirs["server_cpu_us"],
        }

    limit = Limit("ratio", ratio, "times", at_least=True)
    title = f"rate to that of RabbitMQ {rabbit.version()} with its AMQP 1.0 plugin, 100 bytes, {kind}"
    commands = (
        "rabbitmq-server",
        f"lightrail bench --url amqp://guest:guest@…//queue/bench {flags} --pids …",
        SERVE,
        f"lightrail bench {flags} --pids …",
    )
    return Row(name, title, commands, (limit,), measure)
