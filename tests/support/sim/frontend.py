"""A frontend of a simulated cluster: real shard connections and owners, and links that do as clients do."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from lightrail.model.links import Ending
from lightrail.shard_client.links import Consumer, MissingDeliveriesError, Producer
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.bodies import ConsumerOpen, ProducerOpen, Refusal
from lightrail.wire.frames import ASKED, Kind, OutcomeCode, frame
from lightrail.wire.sockets.wiring import Wiring
from tests.support.shard.life import Id, id_of, message
from tests.support.shard.scene import batch, delivered

if TYPE_CHECKING:
    from lightrail.shard_client.owners.owner import Owner
    from tests.support.sim.cluster import Cluster

WINDOW: int = 12
"""Batches of a sender that may be unanswered, and the credit of a receiver."""


class Sender(Producer):
    """Sends numbered messages to one queue, as ProducerLink does."""

    def __init__(self, frontend: "SimFrontend", queue: str, owner: "Owner") -> None:
        self.number = frontend.next_link()
        self.id = frontend.cluster.next_link()
        self.queue = queue
        self.owner = owner
        self.frontend = frontend
        self.unanswered: dict[int, bytes] = {}
        self.counts: dict[int, int] = {}
        self.next = 1

    def send(self) -> None:
        if len(self.unanswered) >= WINDOW:
            return
        cluster = self.frontend.cluster
        number = self.next
        self.next += 1
        count = cluster.chance.randint(1, 4)
        durable = cluster.chance.random() < 0.8
        ids = [(self.id, number, index) for index in range(count)]
        part = batch(
            self.number,
            number,
            [message(id, cluster.chance.choice((10, 40, 200))) for id in ids],
            durable=durable,
            afresh=not self.unanswered,
        )
        self.counts[number] = count
        cluster.ledger.sent(ids, durable, self.queue)
        self.unanswered[number] = part
        self.owner.post(part)

    def reopen(self) -> None:
        body = ProducerOpen(self.queue).encode()
        self.owner.post(
            frame(Kind.PRODUCER_OPEN, link=self.number, epoch=self.owner.epoch, number=self.next, body=body)
        )
        for part in self.unanswered.values():
            self.owner.post(part)

    def ready(self) -> None:
        """Nobody waits for it."""

    def answered(self, number: int, count: int) -> None:
        for key in range(number, number + count):
            if self.unanswered.pop(key, None) is not None:
                self.frontend.cluster.ledger.accepted(
                    [(self.id, key, index) for index in range(self.counts[key])]
                )

    def refused(self, number: int, refusal: Refusal) -> None:
        raise AssertionError(f"batch {number} of {self.queue} was refused: {refusal}")

    def ended(self, refusal: Refusal) -> None:
        raise AssertionError(f"a sender of {self.queue} was sent away: {refusal}")


class Receiver(Consumer):
    """Receives from one queue and settles in its own time, as ConsumerLink does."""

    def __init__(self, frontend: "SimFrontend", queue: str, owner: "Owner") -> None:
        self.number = frontend.next_link()
        self.queue = queue
        self.owner = owner
        self.frontend = frontend
        self.options = ConsumerOpen(queue, default_outcome=int(OutcomeCode.RELEASED))
        self.sent = 0
        self.base = 0
        self.held: dict[int, Id] = {}
        self.asked: dict[int, Id] = {}
        """Accepted ones whose settlement is to be answered, by number of the delivery."""
        self.closed = False

    def reopen(self) -> None:
        if self.closed:
            return
        self.options.first = self.sent
        self.options.resume = self.owner.resumes(self.number)
        if not self.options.resume:
            self.base = self.sent
            for id in self.held.values():
                self.frontend.cluster.ledger.returned(id)
            self.held.clear()
            self.asked.clear()
        self.owner.post(
            frame(Kind.CONSUMER_OPEN, link=self.number, epoch=self.owner.epoch, body=self.options.encode())
        )
        self._credit()

    def _credit(self) -> None:
        limit = self.sent + WINDOW
        self.owner.post(frame(Kind.CREDIT, link=self.number, epoch=self.owner.epoch, number=limit))

    def ready(self) -> None:
        """Nobody waits for it."""

    def deliver(self, part: bytes | memoryview, number: int, count: int) -> None:
        assert not self.closed
        if number != self.sent:
            raise MissingDeliveriesError(f"expected delivery {self.sent} of {self.queue}, found {number}")
        for each in delivered(part):
            id = id_of(each.message)
            self.held[each.number] = id
            self.frontend.cluster.ledger.delivered(self.queue, id, each.sequence, each.attempts)
        self.sent = number + count

    def settle(self) -> None:
        """Some of what it holds is accepted or released; then there is more credit."""
        chance = self.frontend.cluster.chance
        if self.held:
            first = chance.choice(list(self.held))
            count = 0
            while first + count in self.held and count < 6:
                count += 1
            code = OutcomeCode.ACCEPTED if chance.random() < 0.9 else OutcomeCode.RELEASED
            ids = [self.held.pop(number) for number in range(first, first + count)]
            for id in ids:
                if code == OutcomeCode.ACCEPTED:
                    self.frontend.cluster.ledger.taken(id)
                else:
                    self.frontend.cluster.ledger.returned(id)
            cluster = self.frontend.cluster
            asks = cluster.asks and code == OutcomeCode.ACCEPTED
            if asks:
                self.asked.update(enumerate(ids, first))
            self.owner.post(
                frame(
                    Kind.SETTLE,
                    flags=code,
                    asked=ASKED if asks else 0,
                    link=self.number,
                    epoch=self.owner.epoch,
                    count=count,
                    number=first,
                )
            )
        if len(self.held) < WINDOW // 2:
            self._credit()

    def settled(self, number: int, count: int, is_certain: bool) -> None:
        for delivery in range(number, number + count):
            id = self.asked.pop(delivery, None)
            if id is not None and is_certain:
                self.frontend.cluster.ledger.settled(id)

    def close(self) -> None:
        """The client goes; what it holds returns."""
        self.closed = True
        for id in self.held.values():
            self.frontend.cluster.ledger.returned(id)
        self.held.clear()
        self.owner.close_consumer(self.number, Ending.BY_CLIENT)

    def drained(self, number: int) -> None:
        raise AssertionError("nobody drains")

    def ended(self, refusal: Refusal) -> None:
        raise AssertionError(f"a receiver of {self.queue} was sent away: {refusal}")


class SimFrontend:
    """One process with clients."""

    def __init__(self, cluster: "Cluster", id: int) -> None:
        self.cluster = cluster
        self.id = id
        self.host, context = cluster.network.host(f"frontend-{id}")
        wiring = Wiring(cluster.loop)
        wiring._context = context  # type: ignore[assignment]
        self.coordinator = cluster.coordinator(self.host)
        self._links = 0
        self.shard_connections = ShardConnections(
            self.coordinator,
            cluster.loop,
            wiring,
            name=f"frontend-{id}",
            boot=7_000_000 + cluster.next_link(),
            now_ms=cluster.now_ms,
            schedule_flush=self._schedule_flush,
            flush=self._flush,
        )
        self.senders: list[Sender] = []
        self.receivers: list[Receiver] = []
        self.is_dead = False
        self.shard_connections.refresh()
        self.coordinator.on_news(self._look)
        self._beat()

    def next_link(self) -> int:
        self._links += 1
        return self._links

    def _look(self) -> None:
        if not self.is_dead:
            self.shard_connections.refresh()

    def _beat(self) -> None:
        if not self.is_dead:
            self.shard_connections.refresh()
            self.cluster.loop.call_later(0.05, self._beat)

    def _schedule_flush(self) -> None:
        self.cluster.loop.call_soon(self._flush)

    def _flush(self) -> None:
        for peer in self.shard_connections.peers.values():
            peer.flush()

    async def owner(self, queue: str) -> "Owner":
        return self.shard_connections.owners.at(queue, await self.shard_connections.place(queue))

    async def add_sender(self, queue: str) -> None:
        sender = Sender(self, queue, await self.owner(queue))
        self.senders.append(sender)
        sender.owner.open_producer(sender)

    async def add_receiver(self, queue: str) -> None:
        receiver = Receiver(self, queue, await self.owner(queue))
        self.receivers.append(receiver)
        receiver.owner.open_consumer(receiver)

    def work(self) -> None:
        """One of its clients does something."""
        chance = self.cluster.chance
        acts: list[Callable[[], None]] = []
        if not self.cluster.is_draining:
            acts += [sender.send for sender in self.senders]
        acts += [receiver.settle for receiver in self.receivers]
        if acts:
            chance.choice(acts)()

    def die(self) -> None:
        self.is_dead = True
        self.shard_connections.close()
        self.coordinator.die()
