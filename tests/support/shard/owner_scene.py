"""Owners between links of a frontend and model shards; the wire and the clock are in the test's hand."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from lightrail.amqp.events import Transfers
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.links.transfers import ProducerLink
from lightrail.model.placement import Placement
from lightrail.shard_client.owners.owner import Owner
from lightrail.shard_client.owners.owners import Owners
from lightrail.shard_client.peers.shards import ShardPeer
from lightrail.wire.bodies import ConsumerOpen
from tests.support.amqp.frontend_fakes import FakeConnection, FakeLink, Said
from tests.support.shard.model_shard import ModelQueue, ModelShard
from tests.support.shard.resolvers import FixedResolver
from tests.support.shard.wires import Wire, wiring_of


class HandWire(Wire):
    """A wire that also keeps what the frontend sends, for tests that look at frames."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.said: list[Said] = []
        """Everything but greetings and heartbeats, since the last look."""

    def send(self, parts: Sequence[bytes]) -> bool:
        if self.up:
            self.said += [Said(part) for part in parts if part[0] not in (1, 9, 15)]
        return super().send(parts)

    def close(self, linger_ms: int = 0) -> None:
        self.up = False


class HandLoop:
    """The running loop, but for timers, which ring when the test says."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_later(self, wait_s: float, call: Any) -> Any:
        entry = (wait_s, call)
        self.calls.append(entry)
        loop = self

        class Handle:
            def cancel(self) -> None:
                if entry in loop.calls:
                    loop.calls.remove(entry)

        return Handle()

    def ring(self) -> None:
        calls, self.calls = self.calls, []
        for _, call in calls:
            call()


class OwnerScene:
    """One frontend, its owners, and two shards or more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int = 2, *, shard_wait_ms: int = 0) -> None:
        self.now_ms = 1_000_000
        self.beats = HandLoop()
        self.timers = HandLoop()
        self.resolver = FixedResolver()
        self.owners = self.resolver.owners = Owners(
            cast(Any, self.resolver),
            self.timers,  # type: ignore[arg-type]
            now_ms=lambda: self.now_ms,
            shard_wait_ms=shard_wait_ms,
        )
        self.connection = FakeConnection()
        self.shards = [ModelShard(number) for number in range(count)]
        self.peers: list[ShardPeer] = []
        self._links = 0
        for number in range(count):
            self.add_peer(number)

    def add_peer(self, number: int) -> ShardPeer:
        peer = ShardPeer(
            self.beats,  # type: ignore[arg-type]
            wiring_of(HandWire),
            shard=number,
            address="inproc://nowhere",
            frontend="frontend-0",
            boot=7,
            now_ms=lambda: self.now_ms,
            schedule_flush=lambda: None,
            flush=lambda: None,
            watch=self.owners,
        )
        self.peers.append(peer)
        self.resolver.peers[number] = peer
        self.owners.joined(peer)
        return peer

    def wire(self, number: int) -> HandWire:
        wire = self.peers[number]._socket
        assert isinstance(wire, HandWire)
        return wire

    def next_link(self) -> int:
        self._links += 1
        return self._links

    # --- queues ----------------------------------------------------------------------------------------

    def queue(self, name: str, shard: int = 0) -> ModelQueue:
        """A queue that a shard serves and everybody knows of."""
        queue = ModelQueue(name)
        self.shards[shard].open(queue, 1)
        self.resolver.placements[name] = (shard, 1)
        return queue

    def owner(self, name: str = "q") -> Owner:
        return self.owners.at(name, Placement(*self.resolver.placements[name]))

    def placed(self, name: str, shard: int, epoch: int) -> None:
        """The placement is another one, and this process hears of it."""
        self.resolver.soon[name] = (shard, epoch)
        self.resolver.refresh()

    # --- links -----------------------------------------------------------------------------------------

    def sender(self, name: str = "q") -> "OwnerSender":
        return OwnerSender(self, name)

    def receiver(self, name: str = "q", **options: Any) -> "OwnerReceiver":
        return OwnerReceiver(self, name, **options)

    # --- time and the wire -----------------------------------------------------------------------------

    def up(self, number: int) -> None:
        """One message reaches a shard, if there is one."""
        self.peers[number].flush()
        wire = self.wire(number)
        if wire.to_shard and self.shards[number].up:
            self.shards[number].receive(wire.to_shard.popleft())

    def down(self, number: int) -> None:
        """What a shard has said reaches the frontend, one message of it."""
        wire = self.wire(number)
        said = self.shards[number].take()
        if said:
            wire.to_frontend.append(said)
        if wire.to_frontend:
            wire.receive(wire.to_frontend.popleft())
            self.peers[number].flush()

    async def settle(self, *, most: int = 1_000) -> None:
        """Everything that is under way arrives, and is answered."""
        for _ in range(200):
            busy = False
            for number, shard in enumerate(self.shards[: len(self.peers)]):
                wire = self.wire(number)
                self.peers[number].flush()
                while wire.to_shard and shard.up:
                    busy = True
                    self.up(number)
                if shard.up:
                    shard.commit()
                    shard.dispatch(most)
                busy = busy or bool(shard.out) or bool(wire.to_frontend)
                while shard.out or wire.to_frontend:
                    self.down(number)
            for _ in range(4):
                await asyncio.sleep(0)
            if not busy and not any(peer._out for peer in self.peers):
                return
        pytest.fail("it never ends")

    def tick(self, wait_ms: int = 10) -> None:
        """Time passes, and the owners look around."""
        self.now_ms += wait_ms
        self.timers.ring()

    def lose(self, number: int) -> None:
        """A shard's process dies; what was under way is gone."""
        wire = self.wire(number)
        self.shards[number].up = wire.up = False
        self.shards[number].restart()
        wire.to_shard.clear()
        wire.to_frontend.clear()
        self.peers[number].greet_again("it died")

    def revive(self, number: int) -> None:
        """It is there again, and is greeted."""
        self.shards[number].up = self.wire(number).up = True
        self.beats.ring()

    def said(self, number: int) -> list[Said]:
        """What the frontend has said to a shard since the last look, beyond greetings and counts."""
        self.peers[number].flush()
        wire = self.wire(number)
        said, wire.said = wire.said, []
        return said


class OwnerSender:
    """A client's link that sends."""

    def __init__(self, scene: OwnerScene, name: str) -> None:
        self.number = scene.next_link()
        self.link = FakeLink()
        self.sent = 0
        owner = scene.owner(name)
        self.producer = ProducerLink(
            scene.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            owner,
            number=self.number,
            queue=name,
        )
        owner.open_producer(self.producer)

    def send(self, count: int = 1, *, settled: bool = False) -> None:
        payloads = [b"<%d:%06d>" % (self.number, index) for index in range(self.sent, self.sent + count)]
        event = Transfers(self.link, self.sent, payloads, settled, 0, b"")  # type: ignore[arg-type]
        self.sent += count
        self.link.credit = max(0, self.link.credit - count)
        self.producer.transfers(event, 1_000_000)

    def outcomes(self) -> dict[int, Any]:
        """By delivery: its state. Nothing is told twice."""
        found: dict[int, Any] = {}
        for first, last, state in self.link.settled:
            for number in range(first, last + 1):
                assert number not in found, "a delivery has two outcomes"
                found[number] = state
        return found


class OwnerReceiver:
    """A client's link that receives."""

    def __init__(self, scene: OwnerScene, name: str, **options: Any) -> None:
        self.number = scene.next_link()
        self.link = FakeLink()
        self.settled: set[int] = set()
        owner = scene.owner(name)
        self.consumer = ConsumerLink(
            scene.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            owner,
            number=self.number,
            options=ConsumerOpen(name, **options),
        )
        self.consumer.start(0, False)
        owner.open_consumer(self.consumer)
