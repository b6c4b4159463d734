"""ActiveMQ Artemis from Maven Central: one broker in a process of its own, on loopback."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.amqp.java_broker import FAST_START, JavaBroker

HERE: Final = Path(__file__).parents[2] / "brokers" / "artemis"
LIBRARIES: Final = HERE / "target" / "lib"
USER: Final = "app"
PASSWORD: Final = "pencil"


class Artemis(JavaBroker):
    """A broker with a port and a user of its own.

    Args:
        directory: for everything that it writes, and the compiled class; it exists.
        options: of the JVM.
        file_bytes: of each file of its journal. Small ones start sooner: they are filled with zeros.
    """

    def __init__(
        self, directory: Path, *, options: Sequence[str] = FAST_START, file_bytes: int = 1 << 20
    ) -> None:
        super().__init__(
            "ActiveMQ Artemis", HERE, directory, [*options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        )
        self._file_bytes = file_bytes
        self.url = f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.port}"

    def words(self) -> Sequence[str]:
        data = str(self.directory / "data")
        return ["Artemis", data, str(self.port), USER, PASSWORD, str(self._file_bytes)]

    def version(self) -> str:
        return self._version_of("artemis-server")
