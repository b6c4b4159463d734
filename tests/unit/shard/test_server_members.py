"""The server of a shard with other members: when commits begin, and how many turns they cost."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import zmq

from lightrail.model.clock import wall_ms
from lightrail.shard.engine.engine import Engine
from lightrail.shard.engine.server import Server
from lightrail.shard.journal.commit_thread import CommitThread
from lightrail.shard.journal.journal import Journal
from lightrail.shard.replicas.leases import OwnersLeases
from lightrail.shard.replicas.marks import Marks
from lightrail.shard.replication.stream import Stream
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import ProducerOpen
from lightrail.wire.frames import Kind, frame
from lightrail.wire.replication import JournalEnds
from lightrail.wire.sockets.wiring import Wiring
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.replicated import Jobs
from tests.support.shard.scene import batch
from tests.support.shard.server_scene import Frontend


@dataclass
class OwnerServer:
    """A server whose journal has the required member b, and a frontend that has a link to a queue."""

    server: Server
    journal: Journal
    frontend: Frontend
    disk: Jobs
    """The thread of commits."""
    turns: int = 0
    """Turns other than those after frames."""
    pings: int = 0

    def __post_init__(self) -> None:
        turn = self.server.turn

        def counted() -> None:
            self.turns += 1
            turn()

        self.server.turn = counted  # type: ignore[method-assign]

    async def send(self, number: int) -> None:
        """Sends a batch; returns when the server has received it, and sent what it has for the frontend."""
        self.frontend.say(batch(1, number, [b"a"]), frame(Kind.PING))
        self.pings += 1
        await self.frontend.until(Kind.PONG, self.pings)

    def acknowledge(self) -> None:
        """The member has synced all that is on the owner's disk."""
        self.journal.marks.synced("b", self.journal.position.synced_lsn)
        self.journal.accept()
        self.server.accepted()

    @property
    def answered(self) -> list[int]:
        """Number of the first batch in each answer."""
        return [number for kind, _, number in self.frontend.heard if kind is Kind.ACCEPTED]


def play(test: Callable[[OwnerServer], Awaitable[None]], tmp_path: Path) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        journal = Journal(FakeFiles(), marks=Marks(frozenset("b")))
        recovered = journal.recover(1 << 30, 1, 1)
        counts = ShardCounts()
        engine = Engine(
            shard=0,
            boot=1,
            store=journal,
            recovered=recovered,
            counts=counts,
            memory_mark=1 << 30,
            max_delivery_count=10,
            now_ms=wall_ms(),
        )
        address = f"ipc://{tmp_path}/shard"
        server = Server(loop, engine, journal, counts, Wiring(loop), address)
        stream = Stream(
            journal,
            1,
            JournalEnds("a", 1),
            OwnersLeases(),
            is_member=lambda _: True,
            send=lambda *_: True,
            run_on_loop=loop.call_soon_threadsafe,
            on_accepted=server.accepted,
            on_ended=lambda reason: None,
        )
        server.stream_to(stream, lambda: True)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        frontend = Frontend(context, address)
        committer, disk = server._committer, Jobs()
        try:
            await frontend.greet()
            frontend.say(frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()))
            await frontend.until(Kind.PRODUCER_READY)
            await server._idle.wait()
            server._committer = CommitThread(loop, disk, journal)
            owner = OwnerServer(server, journal, frontend, disk)
            owner.acknowledge()
            await test(owner)
        finally:
            journal.marks.require()
            while disk.waiting:
                disk.run()
            server._committer = committer
            await server.close()
            frontend.socket.close()
            context.term()

    asyncio.run(run())


def test_an_answer_waits_for_members_and_the_next_commit_does_not(tmp_path: Path) -> None:
    async def test(owner: OwnerServer) -> None:
        for number in (1, 2, 3):
            await owner.send(number)
        assert len(owner.disk.waiting) == 1
        owner.disk.run()
        # The commit of what arrived meanwhile.
        assert len(owner.disk.waiting) == 1
        owner.disk.run()
        assert not owner.disk.waiting
        await owner.send(4)
        assert len(owner.disk.waiting) == 1
        assert not owner.answered
        owner.acknowledge()
        await owner.frontend.until(Kind.ACCEPTED)
        owner.disk.run()
        owner.acknowledge()
        await owner.frontend.until(Kind.ACCEPTED, 2)
        assert owner.answered == [1, 4]

    play(test, tmp_path)


def test_a_commit_has_one_turn_when_members_have_it_and_none_at_its_end(tmp_path: Path) -> None:
    async def test(owner: OwnerServer) -> None:
        await owner.send(1)
        await owner.send(2)
        owner.turns = 0
        owner.disk.run()
        owner.disk.run()
        assert owner.turns == 0
        # Also if the acknowledgements of several members arrive at once.
        owner.acknowledge()
        owner.acknowledge()
        await owner.frontend.until(Kind.ACCEPTED)
        assert owner.turns == 1

    play(test, tmp_path)


def test_a_commit_that_members_have_already_has_a_turn_at_its_end(tmp_path: Path) -> None:
    async def test(owner: OwnerServer) -> None:
        await owner.send(1)
        owner.journal.marks.synced("b", owner.journal.position.lsn)
        owner.turns = 0
        owner.disk.run()
        assert owner.turns == 1
        await owner.frontend.until(Kind.ACCEPTED)

    play(test, tmp_path)
