"""The history of one shard with members: what was accepted, by whom, and whether its disks keep that.

- Each epoch has one process that accepts. What it accepts after the first segment of a later epoch is in the
  journal of that epoch's owner before this segment: only the acknowledgement was late.
- What is accepted is on as many disks as operators have wanted at least.
- What was accepted is in the journal of every later owner, byte for byte, and on the disk of every member
  that is in sync, as etcd has it.
- A member counts no record as accepted that is not.
- Nobody delivers after the owner of a later epoch has.
"""

from typing import TYPE_CHECKING

from lightrail.cluster.replica_sets import ReplicaSet, key_of
from lightrail.shard.journal.commit import Reached
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.segment import name_of, numbers

if TYPE_CHECKING:
    from tests.support.sim.disk import SimFiles
    from tests.support.sim.member import MemberLife, SimMember
    from tests.support.sim.members import SimMembers


FAULT_S = 40.0
"""Time after the fault of a disk in which acknowledgements from before may arrive: longer than each pause."""


class BrokenHistoryError(AssertionError):
    """A law of replication does not hold."""


class History:
    """What was accepted by one shard."""

    def __init__(self, shard: "SimMembers") -> None:
        self._shard = shard
        self.bytes: dict[int, bytearray] = {}
        """By segment: its accepted bytes."""
        self.end = (0, 0)
        """Segment and offset behind the last accepted record."""
        self.lsn = 0
        """Of that record."""
        self.oldest = 0
        """Segments before this one were dropped by an owner that accepted later records."""
        self._begun: list[tuple[int, int, SimMember]] = []
        """Epoch, number of its first segment, and owner, for each epoch whose first segment was on a disk."""
        self.acceptances = 0
        self.doubted: set[SimMember] = set()
        """Members of which etcd may say that they are in sync, as it was set back: until they are."""
        self._delivering = 0
        """The newest epoch in which messages were delivered."""
        self._owners: dict[int, str] = {}
        """By epoch: the process that accepts."""

    # --- from owners -----------------------------------------------------------------------------------

    def takes_over(self, life: "MemberLife", found: ReplicaSet) -> None:
        """A process is about to open the journal as the owner."""
        self._shard.note(f"{life.name} takes over in epoch {found.epoch}")
        owner = self._owners.setdefault(found.epoch, life.name)
        if owner != life.name:
            self._broken(f"{owner} and {life.name} both own in epoch {found.epoch}")

    def begun(self, life: "MemberLife", journal: Journal) -> None:
        """The first segment of a new owner is on its disk."""
        self._begun.append((life.epoch, journal.current.number, life.member))
        if life.member.is_faulty:
            life.member.is_faulty = bool(self._lacks(life.member.files, durable=False))
        lacks = self._lacks(life.member.files, durable=False)
        # One whose disk was slow, while another one has claimed the shard and serves it, accepts nothing.
        if lacks and life.epoch == self._shard.entry.epoch:
            self._broken(f"{life.name} owns in epoch {life.epoch}: {lacks}")

    def accepted(self, life: "MemberLife", reached: Reached) -> None:
        """An owner has accepted everything up to here."""
        later = [begun for begun in self._begun if life.epoch and begun[0] > life.epoch]
        for epoch, first, _ in later:
            if reached.segment >= first:
                self._broken(
                    f"{life.name} accepts in epoch {life.epoch} records of segment {reached.segment}, found "
                    f"that {first} is the first segment of epoch {epoch}"
                )
        self.acceptances += 1
        end = reached.segment, reached.end
        if end <= self.end:
            # After a take-over: the first acceptance may be older than the last one.
            known = self.bytes.get(end[0], b"")[: end[1]]
            if known and life.member.files.inodes[name_of(end[0])].live[: len(known)] != known:
                self._broken(f"{life.name} accepts other bytes in segment {end[0]} than were accepted before")
            return
        files = life.member.files
        since, self.end, self.lsn = self.end, end, reached.next_lsn - 1
        for number in numbers(files):
            if since[0] <= number <= end[0]:
                data = files.inodes[name_of(number)].live
                stop = end[1] if number == end[0] else len(data)
                known = self.bytes.setdefault(number, bytearray())
                if data[: len(known)] != known:
                    self._broken(f"{life.name} has other bytes in segment {number} than were accepted")
                known += data[len(known) : stop]
        self.oldest = max(self.oldest, min(numbers(files)))
        for number in [number for number in self.bytes if number < self.oldest]:
            del self.bytes[number]
        self.check_set(since[0])
        self._check_minimum(life, since[0])
        for epoch, _, member in later[-1:]:
            if not member.is_faulty and (lacks := self._lacks(member.files, durable=False)):
                self._broken(f"{life.name} accepts what the owner of epoch {epoch} does not have: {lacks}")

    def delivers(self, life: "MemberLife") -> None:
        """An owner sends deliveries."""
        if life.epoch < self._delivering:
            self._broken(f"{life.name} delivers in epoch {life.epoch}, after {self._delivering} did")
        self._delivering = max(self._delivering, life.epoch)

    # --- disks -----------------------------------------------------------------------------------------

    def in_sync(self) -> "list[SimMember]":
        """The members that etcd names as in sync at this moment."""
        entry = self._shard.cluster.etcd.entries[key_of(self._shard.id)]
        found = ReplicaSet.decode(entry)
        return [member for member in self._shard.members if member.id in found.in_sync]

    def check_set(self, since: int = 0) -> None:
        """Every member in sync has everything that was accepted, on its disk."""
        for member in self.in_sync():
            if member.is_faulty:
                member.is_faulty = not self._is_restored(member)
            elif member in self.doubted:
                if self._is_known() and self._is_restored(member):
                    self.doubted.discard(member)
            elif lacks := self._lacks(member.files, durable=True, since=since):
                self._broken(f"member {member.place} is in sync: {lacks}")

    def _check_minimum(self, life: "MemberLife", since: int) -> None:
        """What is accepted now is on as many disks as operators want.

        An acknowledgement from before the fault of a disk may arrive seconds later.
        """
        shard = self._shard
        if shard.cluster.loop.time() < shard.disk_fault_s + FAULT_S:
            return
        have = [
            each.place for each in shard.members if not self._lacks(each.files, durable=True, since=since)
        ]
        if len(have) < shard.minimum:
            self._broken(f"{life.name} accepts what {have} have, expected {shard.minimum} members")

    def etcd_is_set_back(self) -> None:
        """What etcd says of members is that of another time."""
        self.doubted = set(self._shard.members)
        for member in self.doubted:
            member.owes = None

    def _is_known(self) -> bool:
        """Whether etcd says of the set what its owner goes by."""
        life, entry = self._shard.life, self._shard.entry
        # An older owner that was paused goes by what etcd was set back to, while a later one has accepted.
        if any(epoch > entry.epoch for epoch, _, _ in self._begun):
            return False
        return life is not None and life.owning is not None and life.owning.found == entry

    def _is_restored(self, member: "SimMember") -> bool:
        """Whether a disk has everything that its owner had written when it was seen first after its fault.

        Less does not suffice: an acknowledgement from before the fault may arrive seconds later.
        """
        life = self._shard.life
        if life is None or life.journal is None:
            return False
        if life.member is member:
            return member in self.doubted
        if member.owes is None or member.owes[0] != life.epoch:
            # Also what its owner is still writing may have been acknowledged before.
            written = {each: life.member.files.inodes[name_of(each)] for each in numbers(life.member.files)}
            ends = {number: len(inode.live.rstrip(b"\0")) for number, inode in written.items()}
            newest = max(number for number, end in ends.items() if end)
            member.owes = life.epoch, newest, ends[newest]
            return False
        _, newest, end = member.owes
        for number in numbers(life.member.files):
            if number <= newest:
                theirs = life.member.files.inodes[name_of(number)].live
                mine = member.files._durable.get(name_of(number))
                length = end if number == newest else len(theirs)
                if mine is None or mine.durable[:length] != theirs[:length]:
                    return False
        return not self._lacks(member.files, durable=True)

    def _lacks(self, files: "SimFiles", *, durable: bool, since: int = 0) -> str:
        """What a disk has not of the accepted bytes; empty if it has everything."""
        inodes = files._durable if durable else files.inodes
        for number, known in self.bytes.items():
            if number < max(since, self.oldest):
                continue
            inode = inodes.get(name_of(number))
            if inode is None:
                oldest = min(numbers(files), default=0)
                if number < oldest and since < oldest:
                    # Its removal was accepted, or will be: then it is written again behind.
                    continue
                return (
                    f"segment {number} is missing, of which {len(known)} bytes were accepted: found "
                    f"{numbers(files)}, accepted {self.oldest} to {self.end}"
                )
            data = inode.durable if durable else inode.live
            if data[: len(known)] != known:
                pairs = enumerate(zip(data, known, strict=False))
                equal = next((index for index, (one, other) in pairs if one != other), len(data))
                return f"segment {number} is equal up to {equal} only, and {len(known)} bytes were accepted"
        return ""

    def check_marks(self) -> None:
        """No member counts a record as accepted that is not, or differs from the accepted bytes before it."""
        for member in self._shard.members:
            replica = None if member.life is None else member.life.replica
            mirror = None if replica is None else replica._following.mirror
            if mirror is None or mirror.failure or member.is_faulty:
                continue
            if mirror.accepted_lsn > self.lsn:
                self._broken(
                    f"{member.place} counts {mirror.accepted_lsn} as accepted, found {self.lsn} accepted"
                )

    def _broken(self, what: str) -> None:
        self._shard.cluster.errors.append(f"shard {self._shard.id}: {what}")
        raise BrokenHistoryError(what)
