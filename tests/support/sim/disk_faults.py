"""What happens to the disks of members of simulated shards, as the seed draws it."""

import asyncio

from lightrail.cluster.generations import Generation, key_of
from lightrail.shard.journal.segment import name_of, numbers
from lightrail.shard.startup.start import EXTENT_REPORT_MS
from tests.support.sim.disk import SimFiles
from tests.support.sim.member import SimMember
from tests.support.sim.members import MembersCluster, SimMembers
from tests.support.sim.scripts import Script

DOWN_S = (0.05, 0.5, 2.0, 6.0, 15.0)
"""How long a member is down."""
PAUSES_S = (0.2, 1.2, 2.7, 6.0, 14.0)
REPORTED_S = 2 * EXTENT_REPORT_MS / 1000 + 1
"""Time in which an owner has reported, twice, how far records are accepted."""
FLIPPED_BYTES = 3_000
"""Length of the tail in which a bit is flipped."""


class DiskFaults(Script):
    """Faults of the disks of one shard; each ends when the member runs again."""

    cluster: MembersCluster

    def __init__(self, cluster: MembersCluster, steps: int = 4) -> None:
        super().__init__(cluster, steps)

    def _some(self, shard: SimMembers) -> SimMember:
        """A member, the owner in half of the cases."""
        owner = shard.owner
        if owner is not None and self.cluster.chance.random() < 0.4:
            return owner
        return self.cluster.chance.choice(shard.members)

    async def _down(self, member: SimMember) -> None:
        await asyncio.sleep(self.cluster.chance.choice(DOWN_S))
        member.start()

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

    async def restored_disks(self, shard: SimMembers) -> None:
        """All machines stop, and the followers start first on what they had some time ago: on copies of their
        directories, or on volumes that were set back to a state of before the owner's last report."""
        owner, chance = shard.owner, self.cluster.chance
        if owner is None or not self._may_fail(shard):
            return
        followers = [each for each in shard.members if each is not owner]
        copies = [each.files.copy() for each in followers]
        ids = [each.id for each in followers]
        end = max(self._end(each) for each in followers)
        is_copied = chance.random() < 0.5
        await asyncio.sleep(chance.choice((0.05, 0.5, 3.0)) if is_copied else REPORTED_S)
        is_reported = self._reported(shard, owner) > end
        if shard.owner is not owner or not self._may_fail(shard) or not (is_copied or is_reported):
            return
        if [each.id for each in followers] != ids:
            # One has lost its disk meanwhile, and is another member. With a copy of the former one it would
            # be away for good while it counts as in sync: the owner waits for an operator.
            return
        owner.crash()
        for member, then in zip(followers, copies, strict=True):
            then.directory_inode += is_copied
            self._set_back(member, then)
        for member in followers:
            member.start()
        await self._down(owner)

    def _end(self, member: SimMember) -> int:
        """The end of the journal of a member that follows."""
        assert member.life is not None
        assert member.life.replica is not None
        mirror = member.life.replica._following.mirror
        assert mirror is not None
        return mirror.next_lsn

    def _reported(self, shard: SimMembers, owner: SimMember) -> int:
        """The end of the accepted records that the owner has reported."""
        entry = self.cluster.etcd.entries.get(key_of(shard.id, owner.id))
        return 0 if entry is None else Generation.decode(entry).next_lsn

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
