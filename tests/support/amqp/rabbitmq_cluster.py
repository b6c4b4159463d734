"""Three nodes of RabbitMQ on loopback, as a cluster with quorum queues."""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support import wait
from tests.support.amqp.rabbitmq import START_TIME_S, RabbitMQ

NODES: Final = 3


class RabbitCluster:
    """A cluster whose nodes and files are removed when the block ends.

    Args:
        directory: for everything that the nodes write; it exists.
    """

    def __init__(self, directory: Path) -> None:
        self.nodes: list[RabbitMQ] = []
        for number in range(NODES):
            own = directory / str(number)
            own.mkdir()
            self.nodes.append(RabbitMQ(own, self.nodes[0] if self.nodes else None))
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for node in self.nodes:
                stack.enter_context(node)
            for node in self.nodes[1:]:
                node.join(self.nodes[0])
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes whose CPU time and children's is the cluster's."""
        return tuple(node.pid for node in self.nodes)

    def version(self) -> str:
        return self.nodes[0].version()

    def declare(self, queue: str) -> None:
        """Makes a quorum queue with a member on each node."""
        self.nodes[0].declare(queue, kind="quorum")

    def leader(self, queue: str) -> RabbitMQ:
        """The node whose member leads, as the first one that runs knows it."""
        names = {node.node: node for node in self.nodes}
        return names[self._running().leader(queue)]

    def _running(self) -> RabbitMQ:
        return next(node for node in self.nodes if node.process.poll() is None)

    def follower(self, queue: str) -> RabbitMQ:
        """A node that runs, and whose member does not lead."""
        leader = self.leader(queue)
        return next(node for node in self.nodes if node is not leader and node.process.poll() is None)

    def until_led_by_another(self, queue: str, former: RabbitMQ) -> None:
        wait.until(lambda: self.leader(queue) is not former, "another node leads", START_TIME_S)
