"""RabbitMQ beside our broker, under the same load in turns."""

import os
import shutil
import subprocess
from typing import Final

from tests.benchmarks.load import bench
from tests.benchmarks.rates import SERVE
from tests.benchmarks.row import Figures, Limit, Row, Workplace
from tests.support.rabbitmq import PACKAGE, SERVER, RabbitMQ

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


def rows(rabbit: RabbitMQ) -> tuple[Row, ...]:
    """Comparisons with a running RabbitMQ."""
    return (
        _row(rabbit, "rabbitmq", "transient, as fast as it goes", OPEN, 15.0),
        _row(rabbit, "rabbitmq-short", "transient, 2,000 messages under way", SHORT, 15.0),
        _row(rabbit, "rabbitmq-durable", "durable, 2,000 messages under way", f"--durable {SHORT}", 1.0),
    )


def _row(rabbit: RabbitMQ, name: str, kind: str, flags: str, ratio: float) -> Row:
    def measure(place: Workplace) -> Figures:
        theirs = bench(f"{rabbit.url}//queue/bench", flags, (rabbit.pid,))
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
