"""A cluster that is being broken: two shards behind proxies, two frontends, a gateway, and queues in traffic.

    with ClusterScene(tmp_path) as scene:
        scene.warm()
        with scene.moving(FROZEN) as move:      # the move stands where the source has frozen the queue
            scene.source.kill()
        scene.source.start()
        scene.ended()
        scene.recovered()
        scene.finish()                          # applies the laws

Every shard reaches etcd, and is reached by everybody, through a `HoldingProxy` of its own. The queue that
moves has its clients at the first frontend; that of the bystanders stays, with clients at the second one.
Companions move whenever the queue does, each to the other shard from where it is.
"""

import time
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from proton import Message
from proton.utils import BlockingConnection

from tests.chaos.ledger import Calm, Ledger
from tests.chaos.traffic import Receiver, Sender, Worker, until_at_work
from tests.cluster.holding_proxy import Hold, HoldingProxy
from tests.cluster.island import Island
from tests.cluster.letters import make
from tests.support import wait
from tests.support.deploy.cluster import Cluster, Node
from tests.support.deploy.etcd import EtcdServer
from tests.support.http_client import Http
from tests.support.ports import free_ports

QUEUE = "moved"
BYSTANDERS = "stays"
WARM = 500
"""Messages that everybody sends and receives before anything is broken, and after."""
COUNT_MAX = 8_000_000
"""Messages of one sender; more than go in the time that a test has."""
RATE = 500.0
"""Messages per second of the bystanders."""
DEADLINE_S = 90.0
"""For moves to end and traffic to go on, on a machine that is busy."""
BALLAST = 30
"""Dead letters of the queue that moves: they make the copy long enough to be broken in the middle."""
BALLAST_BYTES = 150_000


@dataclass(frozen=True)
class Step:
    """A moment of a move, as the message that is about to pass then.

    Args:
        of: whose proxy it passes, ``source`` or ``destination``.
        way: ``wire`` or ``etcd``.
        said: it is the server behind the proxy who says it.
    """

    name: str
    of: str
    way: str
    patterns: tuple[bytes, ...]
    said: bool = False

    def __str__(self) -> str:
        return self.name


_EXPORT = rb'"op":"export","queue":"' + QUEUE.encode() + rb'"'
_EXPORT_LETTERS = rb'"op":"export","queue":"' + QUEUE.encode() + rb'/\$dlq"'
_PLACEMENT = b"placement/" + QUEUE.encode()

WAITING = Step("waiting", "source", "wire", (_EXPORT,))
"""The entry is there; nothing is copied yet."""
COPY = Step("copy", "source", "wire", (_EXPORT_LETTERS, _EXPORT_LETTERS))
CATCH_UP = Step("catch up", "source", "wire", (_EXPORT_LETTERS, _EXPORT))
FREEZE = Step("freeze", "destination", "etcd", (rb'"phase":"frozen"',))
"""The last moment at which the move could be cancelled."""
FREEZING = Step("freezing", "source", "wire", (rb'"op":"freeze"',))
"""Frozen, and the source does not know it."""
FROZEN = Step("frozen", "source", "wire", (rb'"states":\[',), said=True)
"""The queue stands still; the destination has not got the last of it."""
SWITCH = Step("switch", "destination", "etcd", (rb'"phase":"frozen"', _PLACEMENT))
"""The destination has everything, and etcd has not got the transaction. It froze the move before; a shard
that was cut off may still ask for the queue of the move before."""
SWITCHED = Step("switched", "destination", "etcd", (_PLACEMENT,), said=True)
"""The queue is the destination's, which does not know it."""
RETIRE = Step("retire", "source", "etcd", (_PLACEMENT,), said=True)
"""The queue is the destination's, and the source does not know it."""
STEPS = (WAITING, COPY, CATCH_UP, FREEZE, FREEZING, FROZEN, SWITCH, SWITCHED, RETIRE)


class Machine:
    """A shard behind its proxies.

    Args:
        near: the address that everybody reaches it at, and at which it reaches etcd.
        far: its own address where it is on an island; it is reached there, past the proxy.
    """

    def __init__(self, cluster: Cluster, id: int, near: str, far: Island | None = None) -> None:
        host, port = cluster.etcd.endpoints[0].split(":")
        self.etcd = HoldingProxy((host, int(port)), (near, 0))
        (wire,) = free_ports(1)
        # Who binds one address of the loopback network leaves the same port of others to the proxy.
        self.wire = HoldingProxy(("127.0.0.1", wire), (near, wire))
        flags = ["--id", str(id), "--etcd", self.etcd.address]
        if far is None:
            flags += ["--wire", f"127.0.0.1:{wire}", "--advertise", near]
        else:
            flags += ["--wire", f"{far.there}:{wire}", "--insecure-wire"]
        self.node = cluster.shard(*flags, inside=far.inside if far else ())

    def close(self) -> None:
        self.etcd.close()
        self.wire.close()


class ClusterScene:
    """See above.

    Args:
        strict: of the ledger; not where a frontend with clients goes.
        rate: messages per second to the queue that moves; as many as go where it is None.
        island: where the second shard runs.
        companions: queues that move as well, at the same time.
    """

    def __init__(
        self,
        directory: Path,
        *,
        strict: bool = True,
        rate: float | None = None,
        island: Island | None = None,
        companions: int = 0,
    ) -> None:
        self.cluster = Cluster(directory)
        near = (island.here, island.here) if island else ("127.0.0.2", "127.0.0.3")
        self.machines = [Machine(self.cluster, 0, near[0]), Machine(self.cluster, 1, near[1], island)]
        self.frontends = [self.cluster.frontend() for _ in range(2)]
        self.gateway = self.cluster.gateway()
        self.companions = [f"companion-{number}" for number in range(companions)]
        self.queues = (QUEUE, BYSTANDERS, *self.companions)
        self.ledgers = [Ledger(Calm(), strict=strict) for _ in self.queues]
        self.senders = [
            Sender(
                partial(self._served, number % 2),
                queue,
                self.ledgers[number],
                number=number,
                count_max=COUNT_MAX,
                rate=RATE if number else rate,
            )
            for number, queue in enumerate(self.queues)
        ]
        self.receivers = [
            Receiver(
                partial(self._served, number % 2),
                queue,
                self.ledgers[number],
                number=number,
            )
            for number, queue in enumerate(self.queues)
        ]
        self.notes: list[str] = []
        """What was done and how long it took, for people."""
        self._stack = ExitStack()
        self._source = 0
        self._placed: dict[str, Any] = {}

    def _served(self, number: int) -> str:
        return self.frontends[number].served

    # --- life ------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for each in self.machines:
                stack.callback(each.close)
            stack.enter_context(self.cluster)
            self.cluster.start()
            make(self.frontends[0].amqp, *self.queues)
            self._load()
            for worker in self.workers:
                stack.enter_context(worker)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if error is not None:
            error.add_note(self.report())
            for node in self.cluster.nodes:
                error.add_note(f"--- {node.name} said:\n{node.log.read_text(errors='replace')[-4000:]}")
        for machine in self.machines:
            for proxy in (machine.etcd, machine.wire):
                if proxy.hold is not None:
                    proxy.hold.release()
        return self._stack.__exit__(kind, error, trace)

    @property
    def workers(self) -> list[Worker]:
        return [*self.senders, *self.receivers]

    def _load(self) -> None:
        """Dead letters for the queue that moves."""
        connection = BlockingConnection(self.frontends[0].amqp, timeout=wait.DEADLINE_S)
        try:
            sender = connection.create_sender(QUEUE)
            receiver = connection.create_receiver(QUEUE)
            for number in range(BALLAST):
                sender.send(Message(body=bytes(BALLAST_BYTES), id=f"letter-{number}", durable=True))
                receiver.receive(wait.DEADLINE_S)
                receiver.reject()
        finally:
            connection.close()

    def _letters(self) -> list[str]:
        """The dead letters, in their order; they are gone then."""
        connection = BlockingConnection(self.frontends[1].amqp, timeout=wait.DEADLINE_S)
        try:
            receiver = connection.create_receiver(f"{QUEUE}/$dlq")
            found = []
            for _ in range(BALLAST):
                found.append(str(receiver.receive(wait.DEADLINE_S).id))
                receiver.accept()
            return found
        finally:
            connection.close()

    # --- moves -----------------------------------------------------------------------------------------

    @property
    def source(self) -> Node:
        """Where the queue was when the last move began."""
        return self.machines[self._source].node

    @property
    def destination(self) -> Node:
        return self.machines[1 - self._source].node

    def placement(self, queue: str = QUEUE) -> dict[str, int]:
        """As etcd has it."""
        placed = self.cluster.placed(queue)
        return {"shard": placed.shard, "epoch": placed.epoch}

    def begin(self) -> None:
        """Asks for the queue, and its companions, to be moved to the other shard."""

        def asked() -> bool:
            self._placed = self.placement()
            self._source = self._placed["shard"]
            wanted = [{"queue": QUEUE, "from": self._source, "to": 1 - self._source}]
            for queue in self.companions:
                at = self.placement(queue)["shard"]
                wanted.append({"queue": queue, "from": at, "to": 1 - at})
            status, answer = self.http("POST", "/!moves", {"moves": wanted})
            if status == 202 and len(answer["begun"]) == len(wanted):
                return True
            # A gateway that was started just now may not know yet who is there.
            assert status in (0, 202, 409, 422, 503), answer
            return False

        wait.until(asked, f"a move of {QUEUE} begins", DEADLINE_S)

    def expect(self, step: Step) -> Hold:
        """Has the next move stand at a step."""
        source = self.placement()["shard"]
        machine = self.machines[source if step.of == "source" else 1 - source]
        proxy = machine.etcd if step.way == "etcd" else machine.wire
        return proxy.expect(*step.patterns, said=step.said, wide=step.way == "etcd")

    @contextmanager
    def moving(self, step: Step) -> Iterator[None]:
        """A move that stands at this step as long as the block runs."""
        hold = self.expect(step)
        try:
            self.begin()
            hold.until_reached(DEADLINE_S)
            yield
        finally:
            hold.release()

    def over(self) -> None:
        """Waits until there is no move."""
        wait.until(lambda: not self.cluster.keys("moves/"), "every move ends", DEADLINE_S)

    def ended(self) -> str:
        """Waits until all moves are over: QUEUE's is done, or cancelled and the queue where it was."""
        self.over()
        now = self.placement()
        if now["shard"] != self._source:
            assert now["epoch"] == self._placed["epoch"] + 1
            return "done"
        assert now["epoch"] in (self._placed["epoch"], self._placed["epoch"] + 2)
        return "cancelled"

    def http(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """(status, answer) of the gateway; status 0 while nobody listens."""
        try:
            with Http(self.gateway.served) as http:
                answer = http(method, path, body)
                return answer.status, answer.json()
        except (OSError, urllib.error.URLError):
            return 0, None

    # --- faults ----------------------------------------------------------------------------------------

    def victim(self, party: str) -> Node | EtcdServer:
        """Who plays this part in the move that was begun last; ``frontend`` is that of the moving queue."""
        if party == "etcd":
            return self.cluster.etcd.servers[0]
        return {
            "source": self.source,
            "destination": self.destination,
            "frontend": self.frontends[0],
            "gateway": self.gateway,
        }[party]

    def back(self, party: str) -> None:
        """Starts again who was killed; returns when it serves."""
        victim = self.victim(party)
        if isinstance(victim, Node):
            victim.start().until_ready(DEADLINE_S)
        else:
            self.cluster.etcd.start()

    def disturb(self, *, holds_moved: bool) -> None:
        """From here on, until all is well again, messages may come twice.

        Args:
            holds_moved: also those of the queue that moves: what its clients hold is lost sight of.
        """
        for ledger in self.ledgers if holds_moved else self.ledgers[1:]:
            ledger.calm.disturb()

    # --- laws ------------------------------------------------------------------------------------------

    def warm(self, more: int = WARM) -> None:
        """Waits until everybody sends and receives (again)."""
        counts = (more, *(more // 5 for _ in self.queues[1:]))
        sent = [each.page.accepted + count for each, count in zip(self.senders, counts, strict=True)]
        got = [each.received + count for each, count in zip(self.receivers, counts, strict=True)]

        def late() -> list[str]:
            slow = [s.name for s, goal in zip(self.senders, sent, strict=True) if s.page.accepted < goal]
            return slow + [r.name for r, goal in zip(self.receivers, got, strict=True) if r.received < goal]

        until_at_work(self.workers, late, DEADLINE_S)

    def verified(self) -> None:
        """Waits until every queue is served by exactly the shard where it is placed."""
        found: list[tuple[int, Any]] = []

        def fine() -> bool:
            found[:] = [self.http("GET", "/!verify")]
            status, answer = found[0]
            return status == 200 and not answer["problems"]

        try:
            wait.until(fine, "nothing is wrong with any queue", DEADLINE_S)
        except AssertionError as error:
            error.add_note(f"the gateway says {found}")
            raise

    def settled(self) -> None:
        """All is well: from here on nothing comes twice."""
        for ledger in self.ledgers:
            ledger.calm.settle()

    def recovered(self) -> None:
        """Everybody is at work again, the move has ended, and every queue is served once."""
        began = time.monotonic()
        result = self.ended()
        ended = time.monotonic()
        self.warm()
        warm = time.monotonic()
        self.verified()
        self.settled()
        self.notes.append(
            f"  {result} after {ended - began:.2f} s, traffic after {warm - began:.2f} s, "
            f"verified after {time.monotonic() - began:.2f} s"
        )

    def finish(self) -> None:
        """One more move goes through; then the senders end, everything arrives, and the laws are applied."""
        self.begin()
        assert self.ended() == "done"
        self.warm()
        self.verified()
        for sender in self.senders:
            sender.finish(DEADLINE_S)
        for ledger in self.ledgers:
            wait.until_with(
                ledger,
                lambda ledger: not ledger.lost or ledger.complaints,
                "everything arrives",
                DEADLINE_S,
            )
        wait.until(
            lambda: all(time.monotonic() - one.latest_arrival > 0.3 for one in self.receivers),
            "nothing more arrives",
        )
        wait.until(self._is_empty, "nothing is left in any queue, nor held by anybody", DEADLINE_S)
        for receiver in self.receivers:
            receiver.finish()
        print(self.report())
        for ledger in self.ledgers:
            ledger.verdict()
        assert self._letters() == [f"letter-{number}" for number in range(BALLAST)]
        for node in self.cluster.nodes:
            said = node.log.read_text(errors="replace")
            assert "Traceback" not in said, f"a traceback on stderr of {node.name}:\n{said[-4000:]}"

    def _is_empty(self) -> bool:
        for queue in self.queues:
            status, figures = self.http("GET", f"/{queue}/!figures")
            if status != 200 or any(figures[key] for key in ("ready", "delayed", "in_flight")):
                return False
        return True

    def undisturbed(self, *workers: Worker) -> None:
        """These have had one connection and nothing that went wrong."""
        for worker in workers:
            assert worker.connections == 1, f"{worker.name}: {dict(worker.losses)}"
        for sender in self.senders:
            if sender in workers:
                assert not sender.rejections, dict(sender.rejections)
                assert sender.page.accepted == sender.page.sent, self.report()

    def report(self) -> str:
        lines = list(self.notes)
        for ledger, sender, receiver in zip(self.ledgers, self.senders, self.receivers, strict=True):
            lines.append(f"{sender.queue}: {ledger.summary()}; slowest answer {sender.slowest_answer:.2f} s")
            for worker in (sender, receiver):
                lines.append(f"  {worker.name}: {worker.connections} connections, {dict(worker.losses)}")
            lines += [f"  {complaint}" for complaint in ledger.complaints]
        return "\n".join(lines)
