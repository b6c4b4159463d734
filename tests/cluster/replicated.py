"""A shard with replicas that is being broken: its members, clients in traffic, and the law at the end.

    with ReplicaScene(tmp_path) as scene:
        scene.warm()
        with scene.fault():
            scene.kill(scene.owner())
        scene.finish()                    # everything accepted has arrived

A member that ends by itself is started again, as by the service manager of its machine; one that a test has
killed stays away until the test starts it.
"""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.chaos.ledger import Calm, Ledger
from tests.chaos.traffic import Receiver, Sender, Worker
from tests.cluster.holding_proxy import HoldingProxy
from tests.cluster.island import Island
from tests.support import wait
from tests.support.deploy.cluster import Cluster, Node

MEMBERS = 3
RATE = 200.0
"""Messages per second of each sender."""
WARM = 100
"""Messages that each client sends or receives before anything is broken, and after."""
DEADLINE_S = 60.0
LOOK_S = 0.05


class Members:
    """The processes of one shard with replicas, each with a directory of its own.

    Args:
        island: where the first of them runs, which reaches etcd through `etcd`.
        environs: of each process; fewer are filled up with empty ones.
    """

    def __init__(
        self,
        cluster: Cluster,
        id: int = 0,
        *flags: str,
        count: int = MEMBERS,
        island: Island | None = None,
        environs: Sequence[dict[str, str]] = (),
        data: Sequence[Path] = (),
    ) -> None:
        self.cluster = cluster
        self.id = id
        self.etcd: HoldingProxy | None = None
        self.nodes: list[Node] = []
        for index in range(count):
            own = ["--id", str(id), "--replicas", str(MEMBERS), "--replica-host", f"host-{index}", *flags]
            inside: tuple[str, ...] = ()
            if island is not None and index == 0:
                host, port = cluster.etcd.endpoints[0].split(":")
                self.etcd = HoldingProxy((host, int(port)), (island.here, 0))
                own += ["--etcd", self.etcd.address, "--wire", f"{island.there}:0", "--insecure-wire"]
                inside = island.inside
            elif island is not None:
                own += ["--wire", f"{island.here}:0", "--insecure-wire"]
            name = f"member-{id}-{index}"
            environ = environs[index] if index < len(environs) else None
            where = data[index] if index < len(data) else None
            node = cluster.node("shard", *own, name=name, environ=environ, inside=inside, data=where)
            self.nodes.append(node)
        self.away: set[Node] = set(self.nodes)
        """Processes that nobody starts again."""
        self.restarts = 0
        """Of processes that have ended by themselves."""
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._manager = threading.Thread(target=self._manage, daemon=True)
        self._manager.start()

    def _manage(self) -> None:
        while not self._ends.wait(LOOK_S):
            with self._lock:
                for node in self.nodes:
                    if node not in self.away and node.process is not None and not node.running:
                        node.process = None
                        node.start()
                        self.restarts += 1

    def start(self, *nodes: Node) -> None:
        """Starts these, or all, one after the other; returns when they are ready."""
        chosen = nodes or self.nodes
        for node in chosen:
            with self._lock:
                if not node.running:
                    node.process = None
                    node.start()
            node.until_ready(DEADLINE_S)
            self.away.discard(node)

    def revive(self, *nodes: Node) -> None:
        """Starts these, and waits for nothing."""
        for node in nodes or self.nodes:
            with self._lock:
                node.start()
                self.away.discard(node)

    def kill(self, *nodes: Node) -> None:
        """kill -9, all at once."""
        with self._lock:
            self.away |= set(nodes)
            for node in nodes:
                if node.process is not None:
                    node.process.kill()
            for node in nodes:
                node.kill()

    def terminate(self, node: Node) -> None:
        """SIGTERM; returns when the process has ended in order."""
        self.away.add(node)
        assert node.terminate() == 0, node.said()

    def close(self) -> None:
        self._ends.set()
        self._manager.join()
        if self.etcd is not None:
            self.etcd.close()

    # --- what etcd says of them --------------------------------------------------------------------------

    def entry(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cluster.keys("replicas/")[f"replicas/{self.id}"])
        return found

    def epoch(self) -> int:
        return int(self.entry()["epoch"])

    def in_sync(self) -> set[Node]:
        entry = self.entry()
        return {self._node(entry, member) for member in entry["in_sync"]}

    def until_in_sync(self, count: int = MEMBERS, deadline_s: float = DEADLINE_S) -> None:
        wait.until(lambda: len(self.entry()["in_sync"]) == count, f"{count} members are in sync", deadline_s)

    def until_replaceable(self) -> None:
        """Waits until another member may take over; the third one may take long on a busy machine."""
        wait.until(lambda: len(self.entry()["in_sync"]) > 1, "two members are in sync", DEADLINE_S)

    def until_out(self, node: Node) -> None:
        wait.until(lambda: node not in self.in_sync(), f"{node.name} is out of sync", DEADLINE_S)

    def owner(self) -> Node:
        entry = self.entry()
        return self._node(entry, entry["owner"])

    def followers(self) -> list[Node]:
        owner = self.owner()
        return [node for node in self.nodes if node is not owner]

    def until_taken_over(self, former: Node) -> None:
        wait.until(lambda: self.owner() is not former, f"{former.name} is replaced", DEADLINE_S)

    def _node(self, entry: dict[str, Any], member: str) -> Node:
        return self.nodes[int(entry["members"][member]["host"].rpartition("-")[2])]


class ReplicaScene:
    """A cluster with one shard with replicas, a frontend, and pairs of senders and receivers.

    Args:
        pairs: queues, each with a sender and a receiver of its own.
    """

    def __init__(
        self,
        directory: Path,
        *flags: str,
        pairs: int = 2,
        rate: float = RATE,
        island: Island | None = None,
        environs: Sequence[dict[str, str]] = (),
        data: Sequence[Path] = (),
        cluster_flags: Sequence[str] = (),
    ) -> None:
        self.cluster = Cluster(directory, *cluster_flags)
        self.members = Members(self.cluster, 0, *flags, island=island, environs=environs, data=data)
        beside = ("--wire", f"{island.here}:0", "--insecure-wire") if island is not None else ()
        self.frontend = self.cluster.frontend(*beside)
        self.calm = Calm()
        self.ledgers = [Ledger(self.calm, strict=False) for _ in range(pairs)]
        self.senders = [
            Sender(self._served, f"q{number}", ledger, number=number, rate=rate)
            for number, ledger in enumerate(self.ledgers)
        ]
        self.receivers = [
            Receiver(self._served, f"q{number}", ledger, number=number)
            for number, ledger in enumerate(self.ledgers)
        ]
        self.notes: list[str] = []
        self._stack = ExitStack()

    def _served(self) -> str:
        return self.frontend.served

    @property
    def workers(self) -> list[Worker]:
        return [*self.senders, *self.receivers]

    def __enter__(self) -> Self:
        try:
            self._stack.enter_context(self.cluster)
            self._stack.callback(self.members.close)
            self.members.start()
            self.cluster.start(self.frontend)
            self.members.until_in_sync()
            for worker in self.workers:
                self._stack.enter_context(worker)
            self.warm()
        except BaseException as error:
            error.add_note(self.report())
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if error is not None:
            error.add_note(self.report())
        return self._stack.__exit__(kind, error, trace)

    def warm(self, count: int = WARM) -> None:
        """Waits until every pair has done some work."""
        for sender in self.senders:
            sender.until_accepted(count, DEADLINE_S)
        for receiver in self.receivers:
            receiver.until_received(count, DEADLINE_S)

    @contextmanager
    def fault(self, name: str = "fault") -> Iterator[None]:
        """Something is broken within; afterwards everybody works again."""
        self.calm.disturb()
        for sender in self.senders:
            sender.slowest_answer = 0.0
        began = time.monotonic()
        yield
        self.warm()
        took = time.monotonic() - began
        slowest = max(sender.slowest_answer for sender in self.senders)
        self.notes.append(f"{name}: {took:.2f} s until all work again, slowest answer {slowest:.2f} s")
        self.calm.settle()

    def pause_s(self) -> float:
        """The slowest answer since the last fault began."""
        return max(sender.slowest_answer for sender in self.senders)

    def finish(self) -> None:
        """Ends the senders, lets everything arrive, and applies the law."""
        for sender in self.senders:
            sender.finish(DEADLINE_S)
        for ledger in self.ledgers:
            wait.until_with(
                ledger, lambda each: not each.lost or each.complaints, "everything arrives", DEADLINE_S
            )
        wait.until(
            lambda: all(time.monotonic() - each.latest_arrival > 0.3 for each in self.receivers),
            "nothing more arrives",
        )
        for receiver in self.receivers:
            receiver.finish()
        print(self.report())
        for ledger in self.ledgers:
            ledger.verdict()
            # What comes twice is marked: the former owner may have delivered it.
            assert not ledger.unmarked, ledger.unmarked_ones
        for node in self.members.nodes:
            said = node.log.read_text(errors="replace")
            assert "Traceback" not in said, f"{node.name}: a traceback:\n{said[-4000:]}"

    def report(self) -> str:
        lines = [*self.notes, f"{self.members.restarts} processes ended by themselves"]
        with suppress(Exception):
            lines.append(json.dumps(self.members.entry()))
        for ledger, sender, receiver in zip(self.ledgers, self.senders, self.receivers, strict=True):
            lines.append(f"{sender.queue}: {ledger.summary()}; slowest answer {sender.slowest_answer:.2f} s")
            for worker in (sender, receiver):
                lines.append(f"  {worker.name}: {worker.connections} connections, {dict(worker.losses)}")
            if sender.rejections:
                lines.append(f"  rejected: {dict(sender.rejections)}")
            lines += [f"  {complaint}" for complaint in ledger.complaints]
        for node in self.members.nodes:
            with suppress(OSError):
                lines += [f"--- {node.name}", *node.log.read_text(errors="replace").splitlines()[-25:]]
        return "\n".join(lines)


def hold(seconds: float) -> None:
    """Lets real time pass where it is the subject: how long a process stands still."""
    threading.Event().wait(seconds)
