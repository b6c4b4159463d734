"""A shard is killed while a router feeds its queues: what was accepted is in every one of them."""

from pathlib import Path
from typing import Self

import pytest

from tests.chaos.ledger import shared
from tests.chaos.scene import Scene
from tests.chaos.traffic import Receiver
from tests.support.namespace import give, subscribe

pytestmark = pytest.mark.timeout(150)


class RoutedScene(Scene):
    """One sender to a router, and a receiver at each of the queues that it feeds."""

    def __init__(self, data: Path, *flags: str, queues: int, rate: float) -> None:
        super().__init__(data, *flags, pairs=1, rate=rate)
        (sender,) = self.senders
        sender.queue = "router"
        where = self.service.where
        self.queues = [f"q{number}" for number in range(queues)]
        self.ledgers = [shared(self.ledgers[0], sender.page, sender.number) for _ in self.queues]
        self.receivers = [
            Receiver(where, queue, ledger, number=number)
            for number, (queue, ledger) in enumerate(zip(self.queues, self.ledgers, strict=True))
        ]

    def __enter__(self) -> Self:
        self._stack.enter_context(self.service)
        give(self.service.data, "router", role="router")
        for queue in self.queues:
            give(self.service.data, queue, role="queue")
            subscribe(self.service.data, "router", queue)
        for worker in self.workers:
            self._stack.enter_context(worker)
        return self

    def report(self) -> str:
        (sender,) = self.senders
        lines = [
            f"recovered after {self.recoveries}; sender: {dict(sender.losses)} {dict(sender.rejections)}"
        ]
        for queue, ledger in zip(self.queues, self.ledgers, strict=True):
            lines.append(f"{queue}: {ledger.summary()}")
            lines += [f"  {complaint}" for complaint in ledger.complaints]
        return "\n".join(lines)


@pytest.mark.parametrize("shards", [1, 2])
def test_what_a_router_accepted_is_in_every_queue_when_a_shard_was_killed(
    tmp_path: Path, shards: int
) -> None:
    with RoutedScene(tmp_path / "data", "--shards", str(shards), queues=4, rate=8_000) as scene:
        scene.warm()
        for _ in range(2):
            scene.calm.disturb()
            scene.service.kill("shard")
            scene.recovered()
        scene.finish()
        (sender,) = scene.senders
        assert sender.connections == 1
        assert not sender.rejections


def test_what_a_router_accepted_is_in_every_queue_when_a_frontend_was_killed(tmp_path: Path) -> None:
    with RoutedScene(tmp_path / "data", "--shards", "2", queues=4, rate=8_000) as scene:
        scene.warm()
        scene.calm.disturb()
        scene.service.kill("frontend")
        scene.recovered()
        scene.finish()
