"""Transactions over two shards with replicas, and links that are resumed, while owners are lost."""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.chaos.client_traffic import Mover, ResumingReceiver, ResumingSender
from tests.chaos.ledger import Calm, Ledger
from tests.chaos.traffic import Receiver, Sender, Traffic, until_at_work
from tests.cluster.letters import make
from tests.cluster.replicated import DEADLINE_S, Members, hold
from tests.cluster.test_lost_decisions import waiting
from tests.cluster.test_rebalance import admin
from tests.support import wait
from tests.support.deploy.cluster import Cluster

RATE = 100.0
AHEAD = 500
"""Messages that wait for transactions, at most."""
COUNT_MAX = 1_000_000
WARM = 40
ROUNDS = 9


class Scene:
    """Two shards with replicas; messages move from each to the other one in transactions.

    Each transaction settles a message at one shard and sends it to the other one, so that either shard
    decides some of them and takes part in the others.
    """

    def __init__(self, directory: Path) -> None:
        self.cluster = Cluster(directory)
        self.members = [Members(self.cluster, id) for id in range(2)]
        self.frontend = self.cluster.frontend()
        self.gateway = self.cluster.gateway()
        self.calm = Calm()
        self.moved: list[Ledger] = []
        self.resumed: list[Ledger] = []
        self.senders: list[Sender | ResumingSender] = []
        self.receivers: list[Mover | Receiver | ResumingReceiver] = []
        self.notes: list[str] = []
        self._stack = ExitStack()

    @property
    def workers(self) -> list[Traffic]:
        return [*self.senders, *self.receivers]

    def __enter__(self) -> "Scene":
        with ExitStack() as stack:
            stack.enter_context(self.cluster)
            for each in self.members:
                stack.callback(each.close)
                each.start()
            self.cluster.start(self.frontend, self.gateway)
            for each in self.members:
                each.until_in_sync()
            queues = self._queues()
            for id in range(2):
                self._give(id, queues[id].pop(), queues[1 - id].pop(), queues[id].pop())
            for worker in self.workers:
                stack.enter_context(worker)
            self._stack = stack.pop_all()
        self.warm()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            error.add_note(self.report())
        self._stack.close()

    def _queues(self) -> list[list[str]]:
        """New queues, three at least on each shard."""
        found: list[list[str]] = [[], []]
        for number in range(64):
            if min(map(len, found)) == 3:
                break
            name = f"q{number}"
            make(self.frontend.amqp, name)
            # A message may be in many transactions that are rolled back.
            done = admin(self.gateway, "names", "set", name, "role=queue", "max_delivery_count=100")
            assert done.returncode == 0, done.stderr
            found[self.cluster.placed(name).shard].append(name)
        return found

    def _give(self, id: int, source: str, target: str, resumed: str) -> None:
        """Traffic from a queue to one of the other shard, and over links that are resumed."""
        where: Callable[[], str] = lambda: self.frontend.served  # noqa: E731 - as workers want it
        moved, once = Ledger(self.calm, strict=False, moved=True), Ledger(self.calm, strict=False)
        self.moved.append(moved)
        self.resumed.append(once)
        sender = Sender(
            where,
            source,
            moved,
            number=id,
            count_max=COUNT_MAX,
            rate=RATE,
            room=lambda: AHEAD - (moved.accepted - (moved.arrivals - moved.again)),
        )
        resuming = ResumingSender(where, resumed, once, number=10 + id, count_max=COUNT_MAX, rate=RATE)
        self.senders += [sender, resuming]
        self.receivers += [
            Mover(where, source, target, number=id),
            Receiver(where, target, moved, number=id),
            ResumingReceiver(where, resumed, once, number=10 + id),
        ]

    def progress(self) -> list[int]:
        return [
            *(sender.page.accepted for sender in self.senders),
            *(receiver.received for receiver in self.receivers),
        ]

    def warm(self) -> None:
        """Waits until everybody has made progress from here on."""
        goals = [count + WARM for count in self.progress()]

        def late() -> list[str]:
            triples = zip(self.workers, self.progress(), goals, strict=True)
            return [worker.name for worker, count, goal in triples if count < goal]

        until_at_work(self.workers, late, DEADLINE_S)

    def finish(self) -> None:
        """Ends the senders, lets everything arrive, and applies the laws."""
        for sender in self.senders:
            sender.finish(DEADLINE_S)
        for ledger in (*self.moved, *self.resumed):
            wait.until_with(
                ledger, lambda each: not each.lost or each.complaints, "everything arrives", DEADLINE_S
            )
        wait.until(lambda: waiting(self.gateway) == 0, "every transaction is decided", DEADLINE_S)
        wait.until(
            lambda: all(time.monotonic() - each.latest_arrival > 0.3 for each in self.receivers),
            "nothing more arrives",
            DEADLINE_S,
        )
        for receiver in self.receivers:
            receiver.finish()
        print(self.report())
        for ledger in (*self.moved, *self.resumed):
            ledger.verdict()
            assert not ledger.unmarked, ledger.unmarked_ones
        for ledger in self.resumed:
            assert not ledger.again, f"received again: {ledger.summary()}"
        for node in self.cluster.nodes:
            said = node.log.read_text(errors="replace")
            assert "Traceback" not in said, f"{node.name}: a traceback:\n{said[-4000:]}"

    def report(self) -> str:
        lines = list(self.notes)
        for kind, ledgers in (("moved", self.moved), ("resumed", self.resumed)):
            lines += [f"{kind} {id}: {ledger.summary()}" for id, ledger in enumerate(ledgers)]
            lines += [f"  {complaint}" for ledger in ledgers for complaint in ledger.complaints]
        for worker in self.workers:
            lines.append(f"  {worker.name}: {worker.connections} connections, {dict(worker.losses)}")
        for node in self.cluster.nodes:
            with suppress(OSError):
                lines += [f"--- {node.name}", *node.log.read_text(errors="replace").splitlines()[-20:]]
        return "\n".join(lines)


@pytest.mark.soak
@pytest.mark.timeout(1_200)
def test_transactions_over_two_shards_are_whole_and_resumed_links_deliver_once(tmp_path: Path) -> None:
    """The owner of one shard is lost, or those of both, at once or one behind the other."""
    dice = random.Random(time.time_ns())
    with Scene(tmp_path) as scene:
        for round in range(ROUNDS):
            for each in scene.members:
                each.until_replaceable()
            scene.calm.disturb()
            victims = [each for bit, each in enumerate(scene.members) if (round % 3 + 1) >> bit & 1]
            dice.shuffle(victims)
            began = time.monotonic()
            former = []
            for members in victims:
                hold(dice.choice((0, dice.uniform(0, 1))))
                owner = members.owner()
                former.append((members, owner))
                if dice.random() < 0.6:
                    members.kill(owner)
                else:
                    members.terminate(owner)
            for members, owner in former:
                members.until_taken_over(owner)
                members.revive(owner)
            scene.warm()
            scene.notes.append(
                f"{round}: owners of {[members.id for members in victims]}, {time.monotonic() - began:.2f} s"
            )
            print(scene.notes[-1], flush=True)
            scene.calm.settle()
        for each in scene.members:
            each.until_in_sync(deadline_s=4 * DEADLINE_S)
        scene.finish()
