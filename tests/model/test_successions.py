"""Owners follow one another in any order, and members have any part of what each wrote: what all had stays.

A record is accepted when all three members have it. Any of them takes over, with what it has.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail.journal.record import CONTINUED
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE
from lightrail.shard.journal.commit import Reached
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.mirror import Mirror
from lightrail.shard.replicas.marks import Marks
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.journal_writer import Writer, script
from tests.support.shard.mirrored import SALT, SEGMENT_BYTES, equalise, opened, records, segments

Record = tuple[int, int, bytes, int]
"""(segment, offset, bytes, number)"""


def records_of(mirror: Mirror, files: FakeFiles) -> list[Record]:
    return [
        (segment, offset, record, next_lsn - 1)
        for segment, data in sorted(segments(files, mirror.lineage).items())
        for offset, record, next_lsn in records(data, SALT, SEGMENT_HEADER_SIZE)
    ]


class Group:
    """Three members of a shard, all of which are required."""

    def __init__(self) -> None:
        self.members = [FakeFiles() for _ in range(3)]
        self.accepted = 0
        self.epoch = 0

    def own(self, owner: int, seed: int) -> None:
        """A member takes over, serves, and is killed."""
        self.epoch += 1
        self.opened(owner).close()
        files = self.members[owner]
        marks: Marks[Reached] = Marks(frozenset({"the others"}))
        journal = Journal(files, "test", 0, segment_bytes=SEGMENT_BYTES, marks=marks)
        writer = Writer(journal)
        writer.adopt(journal.recover(1 << 30, 1, self.epoch), journal)
        writer.run([*[op for op in script(seed, 8) if op[0] != "clean"], ("commit",)])
        self.members[owner] = files.after_crash(0, "all")

    def opened(self, member: int) -> Mirror:
        mirror = opened(self.members[member])
        mirror.accept(self.accepted)
        assert mirror.accepted_lsn == self.accepted
        return mirror

    def follow(self, owner: int, fetched: dict[int, int]) -> list[Mirror]:
        """Members attach to the owner, and fetch so many records of what they lack."""
        mirrors = {owner: self.opened(owner)}
        lineage = mirrors[owner].lineage
        data = segments(self.members[owner], lineage)
        for member, most in fetched.items():
            mirrors[member] = self.opened(member)
            equalise(mirrors[member], data, lineage, most)
        if len(mirrors) == 3:
            least = min(mirror.synced_lsn for mirror in mirrors.values())
            whole = [
                lsn
                for *_, record, lsn in records_of(mirrors[owner], self.members[owner])
                if lsn <= least and not record[9] & CONTINUED
            ]
            self.accepted = max([self.accepted, *whole])
            for mirror in mirrors.values():
                mirror.accept(self.accepted)
        for mirror in mirrors.values():
            mirror.close()
        return list(mirrors.values())

    def what_is_accepted(self) -> list[list[Record]]:
        """The accepted records, as each member has them."""
        found = []
        for member, files in enumerate(self.members):
            mirror = self.opened(member)
            found.append([each for each in records_of(mirror, files) if each[3] <= self.accepted])
            mirror.close()
        return found


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_succession_of_owners_keeps_what_was_accepted(data: st.DataObject) -> None:
    group = Group()
    before: list[Record] = []
    for _ in range(data.draw(st.integers(1, 5))):
        owner = data.draw(st.integers(0, 2))
        group.own(owner, data.draw(st.integers(0, 99)))
        others = [member for member in range(3) if member != owner]
        attached = [member for member in others if data.draw(st.sampled_from((True, True, False)))]
        group.follow(owner, {member: data.draw(st.integers(0, 30)) for member in attached})
        first, second, third = group.what_is_accepted()
        assert first == second == third
        assert first[: len(before)] == before
        assert len(first) == group.accepted
        before = first
    owner = data.draw(st.integers(0, 2))
    group.own(owner, 100)
    mirrors = group.follow(owner, {member: 1 << 30 for member in range(3) if member != owner})
    assert mirrors[0].lineage == mirrors[1].lineage == mirrors[2].lineage
    everything = [segments(files, mirrors[0].lineage) for files in group.members]
    assert everything[0] == everything[1] == everything[2]
    assert group.accepted == max(each[3] for each in group.what_is_accepted()[0])
