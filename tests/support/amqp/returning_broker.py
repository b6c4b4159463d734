"""A broker that comes back at the same address and with the same data."""

from pathlib import Path

from tests.support.broker import Broker


class ReturningBroker:
    """Started at once; `stop` ends it for good."""

    def __init__(self, data: Path, *flags: str) -> None:
        self.data = data
        self.flags = flags
        self.broker = Broker(data, *flags).until_ready()
        self.url = self.broker.amqp

    def kill(self) -> None:
        """kill -9 of all of its processes."""
        self.broker.kill_everything()
        self.broker.stop()

    def start(self) -> None:
        """Returns when it is ready."""
        self.broker = Broker(self.data, "--amqp", self.url, *self.flags).until_ready()

    def stop(self) -> None:
        self.broker.stop()
