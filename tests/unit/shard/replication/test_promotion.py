"""A promoted member goes on in another range of record numbers, and nobody is cut to its journal."""

import pytest

from lightrail.journal.layout import GAP
from lightrail.journal.record import RANGE_RECORDS, range_of
from lightrail.journal.scan import Scan
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.standby import Standby
from lightrail.shard.replication.following import FollowingState
from tests.support.shard.fake_files import Crash, FakeFiles
from tests.support.shard.replicated import (
    SEGMENT_BYTES,
    OwnerNode,
    World,
    accepted,
    check_equal,
    declare,
    send,
)


def write(owner: OwnerNode, first: int, count: int) -> None:
    for sequence in range(first, first + count):
        send(owner, sequence)
        owner.begin()
        owner.end()


def messages(owner: OwnerNode) -> int:
    return sum(run.count for queue in owner.recovered.queues for run in queue.runs)


def promoted() -> World:
    """a, b and c had 3 messages, a and b had 2 more; c, which lacks these, is promoted, and a is back."""
    world = World("bc", required="b")
    owner = declare(world)
    write(owner, 0, 3)
    world.settle_down()
    world.disconnect("c")
    write(owner, 3, 2)
    while events := world.events():
        events[0]()
    world.promote("c")
    return world


def gaps(journal: Journal) -> list[int]:
    """Numbers of the Gaps of a journal, read from its files."""
    found = []
    for segment in journal.segments():
        first = segment.index.first_lsn
        scan = Scan(segment.file, journal.salt, SEGMENT_HEADER_SIZE, segment.end, first)
        for each in scan:
            if each.code == GAP:
                found.append(each.lsn)
                scan.skip_to(int.from_bytes(each.view[each.start + 40 : each.start + 48], "little"))
    return found


def attach(world: World, name: str) -> None:
    """One attempt of a member."""
    world.members[name].following.attach(world.epoch)
    while world.wires[name, ""] or world.wires["", name] or world.members[name].thread.waiting:
        if world.members[name].thread.waiting:
            world.members[name].thread.run()
        for wire in ((name, ""), ("", name)):
            if world.wires[wire]:
                world.deliver(wire)


def test_the_first_record_of_a_promoted_owner_is_in_the_range_of_the_promotion() -> None:
    world = promoted()
    owner = world.owner
    assert owner is not None
    assert messages(owner) == 3
    assert (world.promoted_in, world.epoch) == (2, 3)
    before = accepted(owner)
    assert before == 2 * RANGE_RECORDS - 1
    write(owner, 3, 1)
    assert accepted(owner) == 2 * RANGE_RECORDS
    # Numbers that nobody used are no records of a commit.
    assert owner.journal.usage().records < 10
    assert owner.recovered.lost == [(gaps(owner.journal)[0], 2 * RANGE_RECORDS)]


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_member_with_records_that_the_promoted_one_lacks_keeps_its_journal_and_does_not_follow(
    name: str,
) -> None:
    world = promoted()
    owner, member = world.owner, world.members[name]
    assert owner is not None
    write(owner, 3, 30)
    attach(world, name)
    assert member.following.state is FollowingState.DETACHED
    assert member.broken is None
    assert owner.ended == ""
    mirror = member.following.mirror
    assert mirror is not None
    before, kept = mirror.lineage, mirror.next_lsn
    assert range_of(kept) == 0
    # Also when the owner has dropped the Gap with its segment.
    while range_of(next(iter(owner.journal.segments())).index.first_lsn) == 0:
        owner.journal.drop(owner.journal.segments()[0].number)
        while owner.journal.pending:
            owner.begin()
            owner.end()
    attach(world, name)
    assert member.following.state is FollowingState.DETACHED
    assert (mirror.lineage, mirror.next_lsn) == (before, kept)
    assert owner.ended == ""


def test_members_with_nothing_that_would_be_cut_get_the_gap_and_what_follows() -> None:
    world = World("bcd", required="b")
    owner: OwnerNode | None = declare(world)
    assert owner is not None
    write(owner, 0, 3)
    world.settle_down()
    # d stays with a part of what c has, b is emptied.
    world.promote("c")
    world.members["b"].files = FakeFiles()
    world.members["b"].start()
    del world.members["a"]
    owner = world.owner
    assert owner is not None
    write(owner, 3, 3)
    world.settle_down()
    check_equal(world)
    write(owner, 6, 3)
    world.settle_down()
    check_equal(world)
    world.members["b"].crash("all", 0)
    world.settle_down()
    check_equal(world)
    # One of them takes over, and begins no range again.
    world.take_over("b", "all", 0)
    owner = world.owner
    assert owner is not None
    assert messages(owner) == 9
    write(owner, 9, 1)
    world.settle_down()
    check_equal(world)
    assert len(gaps(owner.journal)) == 1


def test_each_promotion_begins_a_range_of_its_own() -> None:
    world = promoted()
    assert world.owner is not None
    write(world.owner, 3, 3)
    world.promote("b")
    assert world.owner is not None
    assert world.promoted_in == 4
    assert accepted(world.owner) == 4 * RANGE_RECORDS - 1
    assert messages(world.owner) == 5


def test_wherever_a_promoted_process_ends_the_range_is_begun_once() -> None:
    world = World("b")
    write(declare(world), 0, 3)
    world.settle_down()
    world.members["b"].stop()
    ends = 0
    for left in range(0, 2_000, 3):
        files = world.members["b"].files.after_crash(0, "all")
        files.steps_left = left
        try:
            recovering(files).recover(0, 1, 3)
        except Crash:
            ends += 1
        else:
            break
        for keep in ("none", "some", "all"):
            found = files.after_crash(left, keep)
            for epoch in (4, 5):
                journal = recovering(found)
                journal.recover(0, 1, epoch)
                count = len(gaps(journal))
                journal.close()
            assert count == 1
    else:
        raise AssertionError("expected the recovery to end within these steps")
    assert ends > 20


def recovering(files: FakeFiles) -> Journal:
    journal = Journal(files, "test", 0, segment_bytes=SEGMENT_BYTES)
    journal.promoted_in = 2
    return journal


def test_a_standby_reads_over_the_gap() -> None:
    world = promoted()
    owner = world.owner
    assert owner is not None
    write(owner, 3, 20)
    standby = Standby(owner.files, owner.journal.salt)
    while standby.replay(accepted(owner)):
        pass
    assert standby.lsn == accepted(owner)
