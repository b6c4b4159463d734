"""What happens to the members of simulated shards: faults alone and in pairs, as the seed draws them."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.support.sim.disk_faults import PAUSES_S, DiskFaults
from tests.support.sim.member import MemberLife
from tests.support.sim.members import SimMembers

Fault = Callable[[SimMembers], Awaitable[None]]


class MemberFaults(DiskFaults):
    """Faults of these kinds, one after the other."""

    kinds: tuple[str, ...] = ()
    at_once = 1

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
    "restored_disks",
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
