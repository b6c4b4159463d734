"""Replica: members that attach while it takes over, and news of the entry of its shard."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from lightrail.cluster.coordinator import Write
from lightrail.cluster.map import Map
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.replica_sets import MEMBERS_MAX, ReplicaSet, SetMember, key_of
from lightrail.shard.replication.replica import Replica
from lightrail.wire.replication import JournalEnds, MemberMessage, MessageKind, decode
from lightrail.wire.sockets.wiring import Wiring
from tests.support.shard.replicated import World

SHARD, EPOCH = 4, 7
FOUND = ReplicaSet(SHARD, EPOCH, "a", frozenset("ab"), {each: SetMember(each) for each in "abc"}, 3, 2)


class Scene:
    """Member "a", which does not run: the test calls what its socket and its coordinator would."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator()
        self.sent: list[tuple[bytes, MessageKind]] = []
        settings = SimpleNamespace(wire=SimpleNamespace(host="127.0.0.1"))
        process = SimpleNamespace(
            id=SHARD,
            boot=1,
            settings=settings,
            running=SimpleNamespace(show=lambda families, counts: None),
            fail=self.sent.clear,
        )
        joining: Any = SimpleNamespace(
            process=process,
            coordinator=self.coordinator,
            new_wiring=lambda: Wiring(asyncio.get_running_loop()),
        )
        self.map = Map(self.coordinator)
        directory: Any = SimpleNamespace(directory=None)
        start: Any = SimpleNamespace(member="a")
        self.replica = Replica(joining, directory, self.map, start, "test")
        self.replica.socket.send = self._send  # type: ignore[assignment, method-assign]

    def _send(self, identity: bytes, parts: list[bytes]) -> bool:
        self.sent.append((identity, decode(parts).kind))
        return True

    def attach(self, number: int) -> None:
        body = JournalEnds("b", number).encode()
        parts = MemberMessage(MessageKind.ATTACH, EPOCH, body=body).encode()
        self.replica._inbox.receive(b"%d" % number, parts)

    async def own(self) -> None:
        """It has recovered its journal."""
        owner = World("").owner
        assert owner is not None
        server: Any = SimpleNamespace(
            accepted=lambda: None, stream_to=lambda stream, may_deliver: None, disk=SimpleNamespace(age_s=abs)
        )
        owning = self.replica.own(FOUND, owner.journal, server)
        await owning.close()

    async def close(self) -> None:
        await self.replica._end_following()
        await self.replica.close()


def test_members_that_attach_during_a_take_over_are_answered_when_the_member_owns() -> None:
    async def story() -> None:
        scene = Scene()
        scene.replica.map.replica_sets[SHARD] = FOUND
        scene.attach(0)
        assert scene.sent.pop() == (b"0", MessageKind.REFUSED)
        scene.replica.epoch, scene.replica._inbox.keeps_attaches = EPOCH, True
        for number in range(MEMBERS_MAX):
            scene.attach(number)
        assert not scene.sent
        # More of them than there can be members: that one attaches again.
        scene.attach(MEMBERS_MAX)
        assert scene.sent.pop() == (b"%d" % MEMBERS_MAX, MessageKind.REFUSED)
        await scene.own()
        assert scene.sent[:MEMBERS_MAX] == [(b"%d" % each, MessageKind.ENDS) for each in range(MEMBERS_MAX)]
        await scene.close()

    asyncio.run(story())


def test_a_member_looks_at_the_entry_of_its_shard_as_soon_as_it_has_changed() -> None:
    async def story() -> None:
        scene = Scene()
        for shard, is_news in ((SHARD + 1, False), (SHARD, True)):
            found = replace(FOUND, shard=shard)
            await scene.coordinator.write([Write(key_of(shard), found.encode(), 0)])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert scene.replica._news.is_set() == is_news
        await scene.close()

    asyncio.run(story())
