"""What happens to the members of simulated shards: faults alone and in pairs, as the seed draws them."""

import asyncio
from collections.abc import Awaitable, Callable

from lightrail.shard.journal.segment import name_of, numbers
from tests.support.sim.disk import SimFiles
from tests.support.sim.member import MemberLife, SimMember
from tests.support.sim.members import MembersCluster, SimMembers
from tests.support.sim.scripts import Script

DOWN_S = (0.05, 0.5, 2.0, 6.0, 15.0)
"""How long a member is down."""
PAUSES_S = (0.2, 1.2, 2.7, 6.0, 14.0)
FLIPPED_BYTES = 3_000
"""Length of the tail in which a bit is flipped."""

Fault = Callable[[SimMembers], Awaitable[None]]


class MemberFaults(Script):
    """Faults of these kinds, one after the other."""

    cluster: MembersCluster
    kinds: tuple[str, ...] = ()
    at_once = 1

    def __init__(self, cluster: MembersCluster, steps: int = 4) -> None:
        super().__init__(cluster, steps)

    async def step(self) -> None:
        cluster = self.cluster
        shard = cluster.chance.choice(cluster.shards)
        kinds = cluster.chance.sample(self.kinds, min(self.at_once, len(self.kinds)))
        faults: list[Fault] = [getattr(self, kind) for kind in kinds]
        cluster.note(f"shard {shard.id}: {' and '.join(kinds)}")
        await asyncio.gather(*(self._later(fault, shard) for fault in faults))
        await asyncio.sleep(cluster.chance.choice((0.0, 0.3, 1.0, 4.0)))

    async def _later(self, fault: Fault, shard: SimMembers) -> None:
        self.cluster.busy_until_s = self.cluster.loop.time() + 0.5
        await asyncio.sleep(self.cluster.chance.choice((0.0, 0.01, 0.4, 1.5)))
        await fault(shard)
        self.cluster.busy_until_s = self.cluster.loop.time() + 0.3

    # --- processes and machines --------------------------------------------------------------------------

    def _some(self, shard: SimMembers) -> SimMember:
        """A member, the owner in half of the cases."""
        owner = shard.owner
        if owner is not None and self.cluster.chance.random() < 0.4:
            return owner
        return self.cluster.chance.choice(shard.members)

    async def _down(self, member: SimMember) -> None:
        await asyncio.sleep(self.cluster.chance.choice(DOWN_S))
        member.start()

    async def crash(self, shard: SimMembers) -> None:
        member = self._some(shard)
        member.crash()
        await self._down(member)

    async def kill(self, shard: SimMembers) -> None:
        member = self._some(shard)
        member.kill()
        await self._down(member)

    async def blackout(self, shard: SimMembers) -> None:
        """All machines stop, and start at different times."""
        members = self.cluster.chance.sample(shard.members, len(shard.members))
        for member in members:
            member.crash()
        await asyncio.gather(*(self._down(member) for member in members))

    async def drift(self, shard: SimMembers) -> None:
        """The machine of a member starts again with a clock that is fast or slow."""
        member = self._some(shard)
        member.crash()
        member.clock_rate = self.cluster.chance.choice((0.9, 1.0, 1.1))
        await self._down(member)

    async def stop(self, shard: SimMembers) -> None:
        """A process is asked to end in order."""
        life = self._some(shard).life
        if life is not None:
            life.process.fail("an operator stops it")

    async def pause(self, shard: SimMembers) -> None:
        """A process, or its machine, does nothing for a while."""
        life = self._some(shard).life
        if life is None or life.host.turns.is_paused:
            return
        self.cluster.note(f"{life.name} is paused")
        life.host.turns.is_paused = True
        await asyncio.sleep(self.cluster.chance.choice(PAUSES_S))
        self._resume(life)

    def _resume(self, life: MemberLife) -> None:
        if not life.is_over and life.host.turns.is_paused:
            self.cluster.note(f"{life.name} goes on")
            self.cluster.loop.resume(life.host.turns)

    # --- the network -------------------------------------------------------------------------------------

    async def partition(self, shard: SimMembers) -> None:
        """Nothing arrives on some ways between members and frontends."""
        chance = self.cluster.chance
        places = [member.place for member in shard.members] + [
            frontend.host.place for frontend in self.cluster.frontends
        ]
        one = self._some(shard).place
        others = [place for place in places if place != one]
        others = chance.choice((others, [chance.choice(others)], chance.sample(others, 2)))
        ways = {(one, other) for other in others}, {(other, one) for other in others}
        blocked = chance.choice((ways[0], ways[1], ways[0] | ways[1]))
        self.cluster.note(f"blocked: {sorted(blocked)}")
        self.cluster.network.blocked |= blocked
        await asyncio.sleep(chance.choice(PAUSES_S))
        self.cluster.network.unblock(blocked, broken=chance.random() < 0.5)
        self.cluster.note("unblocked")

    async def isolate(self, shard: SimMembers) -> None:
        """The owner and its members do not reach each other, or not one way; clients reach all of them."""
        owner, chance = shard.owner, self.cluster.chance
        if owner is None:
            return
        others = [member.place for member in shard.members if member is not owner]
        ways = {(owner.place, other) for other in others}, {(other, owner.place) for other in others}
        blocked = chance.choice((ways[0], ways[1], ways[0] | ways[1]))
        self.cluster.note(f"blocked: {sorted(blocked)}")
        self.cluster.network.blocked |= blocked
        await asyncio.sleep(chance.choice(PAUSES_S))
        self.cluster.network.unblock(blocked, broken=chance.random() < 0.5)
        self.cluster.note("unblocked")

    async def break_connections(self, _: SimMembers) -> None:
        self.cluster.network.break_some(self.cluster.chance.choice((0.2, 0.5, 1.0)))

    async def alone(self, shard: SimMembers) -> None:
        """A process is cut off from everything, etcd too."""
        life = self._some(shard).life
        if life is None:
            return
        self.cluster.note(f"{life.name} is cut off")
        self.cluster.network.cut_off(life.host)
        await asyncio.sleep(self.cluster.chance.choice(PAUSES_S))
        if not life.is_over:
            self.cluster.network.heal(life.host, broken=self.cluster.chance.random() < 0.5)

    # --- etcd ----------------------------------------------------------------------------------------------

    async def lose_etcd(self, shard: SimMembers) -> None:
        """One process, or none, reaches etcd, or hears it."""
        cluster, chance = self.cluster, self.cluster.chance
        life = self._some(shard).life
        if life is not None and chance.random() < 0.7:
            life.host.etcd = chance.choice(("mute", "deaf"))
            cluster.note(f"{life.name} is {life.host.etcd} towards etcd")
            await asyncio.sleep(chance.choice(PAUSES_S))
            life.host.etcd = ""
            return
        cluster.etcd.is_down = True
        await asyncio.sleep(chance.choice(PAUSES_S))
        cluster.etcd.is_down = False

    async def late_etcd(self, _: SimMembers) -> None:
        """Transactions arrive late, and answers do not, while members fail."""
        cluster, chance = self.cluster, self.cluster.chance
        cluster.etcd.late = chance.choice((0.3, 0.9))
        cluster.etcd.answers_lost = chance.choice((0.0, 0.5))
        await asyncio.sleep(chance.choice(PAUSES_S))
        cluster.etcd.late = cluster.etcd.answers_lost = 0.0

    async def set_back_etcd(self, shard: SimMembers) -> None:
        """Etcd is restored from a snapshot, while all run; later an operator puts back what it has lost.

        Some members fail before, so that there is something to lose, or meanwhile.
        """
        await self._set_back_etcd(shard, deaf=0.0)

    async def forgotten_etcd(self, shard: SimMembers) -> None:
        """The same, and gateways may not know what etcd has lost, so that nobody can put it back.

        What only they could put back, such as placements, must not change meanwhile.
        """
        await self._set_back_etcd(shard, deaf=0.7)

    async def _set_back_etcd(self, shard: SimMembers, deaf: float) -> None:
        cluster, chance = self.cluster, self.cluster.chance
        saved = cluster.etcd.save()
        for _ in range(chance.choice((0, 1, 1, 2))):
            if deaf and chance.random() < deaf:
                self._reach_etcd("deaf")
            await self._kill_briefly(shard)
        await asyncio.sleep(chance.choice((0.0, 0.3, 4.0)))
        cluster.etcd.is_down = True
        await asyncio.sleep(chance.choice((0.05, 2.0)))
        cluster.set_etcd_back(saved)
        self._reach_etcd("")
        cluster.etcd.is_down = False
        if chance.random() < 0.3:
            await self._kill_briefly(shard)
        await asyncio.sleep(chance.choice(PAUSES_S))
        await cluster.put_back()

    def _reach_etcd(self, how: str) -> None:
        """How gateways reach etcd, see Host."""
        for frontend in self.cluster.frontends:
            frontend.host.etcd = how

    async def _kill_briefly(self, shard: SimMembers) -> None:
        member, chance = self._some(shard), self.cluster.chance
        member.kill()
        await asyncio.sleep(chance.choice((0.05, 0.5, 4.0)))
        member.start()
        await asyncio.sleep(chance.choice((0.3, 3.0)))

    # --- disks ---------------------------------------------------------------------------------------------

    def _may_fail(self, shard: SimMembers) -> bool:
        """Whether the laws survive a disk that loses something: one at a time, and not the only copy."""
        return (
            not shard.lacks()
            and shard.entry.min_in_sync > 1
            and not any(member.is_faulty for member in shard.members)
        )

    async def lose_disk(self, shard: SimMembers) -> None:
        """A directory is lost; the member starts with an empty one."""
        if not self._may_fail(shard):
            return
        member = self._some(shard)
        member.crash()
        self.cluster.note(f"the disk of {member.place} is lost")
        member.empty()
        await self._down(member)

    async def slow_learner(self, shard: SimMembers) -> None:
        """A member that is out of sync comes back, its disk is slow, and just then the owner ends."""
        owner, chance = shard.owner, self.cluster.chance
        if owner is None or not self._may_fail(shard):
            return
        member = chance.choice([each for each in shard.members if each is not owner])
        member.crash()
        if chance.random() < 0.3:
            self.cluster.note(f"the disk of {member.place} is lost")
            member.empty()
        await asyncio.sleep(chance.choice((1.5, 4.0)))
        owner.kill()
        wait_s = chance.choice((0.0, 0.1, 0.5))
        if wait_s:
            member.start()
            await asyncio.sleep(wait_s)
        member.files.slow = chance.choice((100.0, 300.0, 1_000.0))
        self.cluster.note(f"the disk of {member.place} is slow: {member.files.slow:g}")
        member.start()
        await asyncio.sleep(chance.choice((4.0, 25.0)))
        owner.start()
        member.files.slow = 1.0

    async def set_back_disk(self, shard: SimMembers) -> None:
        """A disk comes back with what it had some seconds ago."""
        if not self._may_fail(shard):
            return
        member = self._some(shard)
        then = member.files.copy()
        await asyncio.sleep(self.cluster.chance.choice((0.05, 0.5, 3.0)))
        if self._may_fail(shard):
            self._set_back(member, then)
            await self._down(member)

    def _set_back(self, member: SimMember, then: SimFiles) -> None:
        member.crash()
        self.cluster.note(f"the disk of {member.place} is set back")
        member.files = then
        member.fail()

    async def set_back_successor(self, shard: SimMembers) -> None:
        """The disk of a follower is set back, and just then the machine of the owner stops."""
        owner, chance = shard.owner, self.cluster.chance
        if owner is None or not self._may_fail(shard):
            return
        member = chance.choice([each for each in shard.members if each is not owner])
        then = member.files.copy()
        await asyncio.sleep(chance.choice((0.05, 0.5)))
        if self._may_fail(shard):
            self._set_back(member, then)
            owner.crash()
            member.start()
            await self._down(owner)

    async def flip(self, shard: SimMembers) -> None:
        """The machine stops, and a bit of its newest records is another one afterwards."""
        if not self._may_fail(shard):
            return
        member, chance = self._some(shard), self.cluster.chance
        member.crash()
        inode = member.files.inodes[name_of(numbers(member.files)[-1])]
        end = len(inode.live.rstrip(b"\0"))
        if end > 100:
            at = chance.randrange(max(80, end - FLIPPED_BYTES), end)
            for data in (inode.live, inode.durable):
                data[at] ^= 1 << chance.randrange(8)
            self.cluster.note(f"a bit of the disk of {member.place} is flipped")
            member.fail()
        await self._down(member)

    async def slow_disk(self, shard: SimMembers) -> None:
        member, chance = self._some(shard), self.cluster.chance
        files = member.files
        files.slow = chance.choice((20.0, 300.0, 3_000.0))
        self.cluster.note(f"the disk of {member.place} is slow: {files.slow:g}")
        await asyncio.sleep(chance.choice(PAUSES_S))
        files.slow = 1.0

    # --- operators -----------------------------------------------------------------------------------------

    async def move(self, _: SimMembers) -> None:
        if len(self.cluster.shards) > 1:
            await self.cluster.ask_move()
            await asyncio.sleep(self.cluster.chance.choice((0.0, 0.01, 0.05, 0.3)))

    async def minimum(self, shard: SimMembers) -> None:
        """An operator wants another number of members in sync."""
        wanted = self.cluster.chance.choice((1, 2, 2, 3))
        if self.cluster.change(shard, lambda found: found.sized(found.replicas, wanted)):
            self.cluster.note(f"shard {shard.id}: minimum {wanted}")


KINDS = (
    "crash",
    "kill",
    "stop",
    "drift",
    "pause",
    "partition",
    "isolate",
    "break_connections",
    "alone",
    "lose_etcd",
    "late_etcd",
    "lose_disk",
    "slow_learner",
    "set_back_disk",
    "set_back_successor",
    "flip",
    "slow_disk",
    "blackout",
    "move",
    "minimum",
    "set_back_etcd",
    "forgotten_etcd",
)
COMBINED = tuple(kind for kind in KINDS if kind != "forgotten_etcd")
"""Kinds that come together with others: with an older etcd no disk may fail as well (ADR 73)."""


def script_of(*kinds: str, at_once: int = 1) -> type[MemberFaults]:
    """A script with faults of these kinds."""
    return type("Faults", (MemberFaults,), {"kinds": kinds, "at_once": at_once})


MEMBER_SCRIPTS: dict[str, type[MemberFaults]] = {
    **{kind: script_of(kind) for kind in KINDS},
    "single": script_of(*COMBINED),
    "pairs": script_of(*COMBINED, at_once=2),
}
