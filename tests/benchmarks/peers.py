"""RabbitMQ, ActiveMQ Artemis and Apache Qpid Broker-J beside our broker, under the same load in turns."""

import os
import shutil
import subprocess
from typing import Final, Protocol

from tests.benchmarks.load import LoadError, bench
from tests.benchmarks.rates import MANY, PLAIN, REQUESTS, SERVE
from tests.benchmarks.row import Figures, Limit, Row, Workplace
from tests.support.amqp.artemis import LIBRARIES as ARTEMIS_LIBRARIES
from tests.support.amqp.artemis import Artemis
from tests.support.amqp.broker_j import LIBRARIES as BROKER_J_LIBRARIES
from tests.support.amqp.broker_j import BrokerJ
from tests.support.amqp.java_broker import JavaBroker
from tests.support.amqp.rabbitmq import PACKAGE, SERVER, RabbitMQ

OPEN: Final = "--duration 5s"
"""As fast as the broker lets the sender: RabbitMQ then takes in more than it gives out."""
SHORT: Final = "--duration 5s --backlog 2000"
"""What suits RabbitMQ best: it is at its fastest with so many messages under way."""
APPLICATION: Final = f"--durable --application {PLAIN}"
FIFTY: Final = "50 senders and 50 receivers on 50 queues"
APPLICATION_50: Final = f"{APPLICATION} {MANY} --queues 50"
WAITING: Final = "--senders 40 --unsettled 1 --durable --duration 5s"
REQUESTING: Final = "round trips of 20 requesters and 4 responders, durable"
CREDIT_1: Final = "--durable --receivers 10 --credit 1 --duration 5s --backlog 1000"
JVM_OPTIONS: Final = ("-Xms1g", "-Xmx4g")
"""Of both brokers in Java. All else is as a JVM has it by itself."""
JVM_WARM_UP: Final = ("--duration 20s --backlog 2000", "--durable --duration 30s --backlog 2000")
"""Before a broker in Java is measured: it is slow until the JVM has compiled what it runs often."""
ARTEMIS_FILE_BYTES: Final = 10 << 20
"""Of the journal, as Artemis has it by itself."""


class Peer(Protocol):
    """Another broker that runs."""

    @property
    def pid(self) -> int: ...

    def version(self) -> str: ...


class PeerMissingError(Exception):
    """Another broker is not installed; the text says how to."""


def install() -> None:
    """Install RabbitMQ when it is missing and we may; raises PeerMissingError."""
    if shutil.which("java") is None:
        raise PeerMissingError("expected Java, found none: run scripts/setup.sh test")
    jars = {"ActiveMQ Artemis": ARTEMIS_LIBRARIES, "Apache Qpid Broker-J": BROKER_J_LIBRARIES}
    for broker, libraries in jars.items():
        if not libraries.is_dir():
            raise PeerMissingError(f"expected {broker} in {libraries}, found none: run scripts/setup.sh test")
    if os.access(SERVER, os.X_OK):
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", PACKAGE]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise PeerMissingError(
            f"expected RabbitMQ at {SERVER}, found none; on Debian and Ubuntu: sudo {' '.join(command)}"
        )
    # RUNLEVEL=1 keeps the package from starting a server of its own.
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "update", "-q"], check=False, env=environ)
    if subprocess.run(command, env=environ).returncode or not os.access(SERVER, os.X_OK):
        raise PeerMissingError(f"{' '.join(command)} did not install it")


def rows_of_rabbitmq(rabbit: RabbitMQ) -> tuple[Row, ...]:
    """Comparisons with a running RabbitMQ."""
    loads = (
        ("rabbitmq", "100 bytes, transient, as fast as it goes", OPEN, 15.0),
        ("rabbitmq-short", "100 bytes, transient, 2,000 messages under way", SHORT, 15.0),
        ("rabbitmq-durable", "100 bytes, durable, 2,000 messages under way", f"--durable {SHORT}", 1.0),
        (
            "rabbitmq-application",
            "messages of applications, durable, 2,000 under way",
            f"--durable --application {SHORT}",
            1.0,
        ),
        ("rabbitmq-requests", REQUESTING, REQUESTS, 1.0),
    )
    return tuple(_row(rabbit, "RabbitMQ", f"{rabbit.url}//queue/bench", *load) for load in loads)


def rows_of_artemis(artemis: Artemis) -> tuple[Row, ...]:
    """Comparisons with a running Artemis."""
    loads = (
        ("artemis", "100 bytes, transient", PLAIN, 1.0),
        ("artemis-durable", "100 bytes, durable", f"--durable {PLAIN}", 1.0),
        ("artemis-application", "messages of applications, durable", APPLICATION, 1.7),
        ("artemis-application-50", f"messages of applications, durable, {FIFTY}", APPLICATION_50, 2.5),
        ("artemis-waiting", "40 senders that wait for each acceptance, durable", WAITING, 2.0),
        ("artemis-credit-1", "10 receivers with credit 1, durable", CREDIT_1, 1.0),
        ("artemis-requests", REQUESTING, REQUESTS, 1.0),
    )
    url = f"{artemis.url}/bench"
    return tuple(_row(artemis, "Artemis", url, *load, warm_up=JVM_WARM_UP) for load in loads)


def rows_of_broker_j(broker_j: BrokerJ) -> tuple[Row, ...]:
    """Comparisons with a running Broker-J."""
    loads = (
        ("brokerj", "100 bytes, transient", PLAIN, 1.0),
        ("brokerj-durable", "100 bytes, durable (BDB store)", f"--durable {PLAIN}", 1.0),
        ("brokerj-application", "messages of applications, durable (BDB store)", APPLICATION, 1.0),
        (
            "brokerj-application-50",
            f"messages of applications, durable (BDB store), {FIFTY}",
            APPLICATION_50,
            1.0,
        ),
        ("brokerj-waiting", "40 senders that wait for each acceptance, durable (BDB store)", WAITING, 1.0),
        ("brokerj-credit-1", "10 receivers with credit 1, durable (BDB store)", CREDIT_1, 1.0),
        ("brokerj-requests", f"{REQUESTING} (BDB store)", REQUESTS, 1.0),
    )
    url = f"{broker_j.url}/bench"
    return tuple(_row(broker_j, "Broker-J", url, *load, warm_up=JVM_WARM_UP) for load in loads)


def warm_up(broker: JavaBroker) -> None:
    """Run the loads of JVM_WARM_UP on a running broker; raises LoadError."""
    for flags in JVM_WARM_UP:
        bench(f"{broker.url}/bench", flags)


def _row(
    peer: Peer,
    broker: str,
    url: str,
    name: str,
    kind: str,
    flags: str,
    ratio: float,
    *,
    warm_up: tuple[str, ...] = (),
) -> Row:
    key = broker.lower().replace("-", "")

    def measure(workplace: Workplace) -> Figures:
        theirs = bench(url, flags, (peer.pid,))
        workplace.say(f"{broker} {theirs['received_per_s']:,.0f} messages/s")
        with workplace.broker() as own:
            ours = bench(f"amqp://{own.amqp}/bench", flags, (own.process.pid,))
        if not (theirs["latency_us"] and ours["latency_us"]):
            raise LoadError("expected messages both sent and received while it was measured, found none")
        return {
            "ratio": ours["received_per_s"] / theirs["received_per_s"],
            "lightrail_per_s": ours["received_per_s"],
            f"{key}_per_s": theirs["received_per_s"],
            "lightrail_cpu_us": ours["server_cpu_us"],
            f"{key}_cpu_us": theirs["server_cpu_us"],
            "lightrail_p50_ms": ours["latency_us"]["p50"] / 1e3,
            f"{key}_p50_ms": theirs["latency_us"]["p50"] / 1e3,
        }

    limit = Limit("ratio", ratio, "times", at_least=True)
    title = f"rate to that of {broker} {peer.version()}, {kind}"
    address = url.partition("://")[2].partition("/")[2]
    commands = (
        key,
        *(f"lightrail bench --url amqp://…/{address} {load}" for load in warm_up),
        f"lightrail bench --url amqp://…/{address} {flags} --pids …",
        SERVE,
        f"lightrail bench {flags} --pids …",
    )
    return Row(name, title, commands, (limit,), measure)
