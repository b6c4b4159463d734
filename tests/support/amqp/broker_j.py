"""Apache Qpid Broker-J from Maven Central: one broker in a process of its own, on loopback.

Its configuration is tests/brokers/broker-j/configuration.json: AMQP 1.0 alone, no users, a queue for every
name that is used. Durable messages are in its BDB store, the default of its release, synced before accepted.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.amqp.java_broker import FAST_START, JavaBroker

HERE: Final = Path(__file__).parents[2] / "brokers" / "broker-j"
LIBRARIES: Final = HERE / "target" / "lib"


class BrokerJ(JavaBroker):
    """A broker with a port of its own.

    Args:
        directory: for everything that it writes, and the compiled class; it exists.
        options: of the JVM.
    """

    def __init__(self, directory: Path, *, options: Sequence[str] = FAST_START) -> None:
        # Derby, which is not used, writes its log to the working directory otherwise.
        derby = f"-Dderby.stream.error.file={directory / 'derby.log'}"
        super().__init__("Apache Qpid Broker-J", HERE, directory, [*options, derby])
        self.url = f"amqp://127.0.0.1:{self.port}"

    def words(self) -> Sequence[str]:
        data = str(self.directory / "data")
        return ["BrokerJ", str(HERE / "configuration.json"), data, str(self.port)]

    def version(self) -> str:
        return self._version_of("qpid-broker-core")
