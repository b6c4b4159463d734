"""Which directory of a shard may serve, and the operator's word, on values and a coordinator in memory."""

import asyncio
from dataclasses import replace

import pytest

from lightrail.cluster import moves
from lightrail.cluster.coordinator import ConflictError, CoordinatorError, Write
from lightrail.cluster.entries import Entry
from lightrail.cluster.generations import (
    PREVIOUS_MAX,
    Generation,
    Mark,
    OutdatedError,
    accept_disk,
    check_accepted,
    check_extent,
    check_generation,
    key_of,
    last_generation,
    next_mark,
)
from lightrail.cluster.map import PLACEMENT, SHARD_SETS, Map, Move, Placed, ShardRecord
from lightrail.cluster.membership import MemberRefusedError
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.replica_sets import ReplicaSet, SetMember
from lightrail.journal.record import RANGE_RECORDS

LAST = Generation("d", 5, "e", boot=1, inode=77, segment=3, next_lsn=100)
CLOSED = Generation("d", 5, "e", boot=1, inode=77, segment=3, next_lsn=100, closed=True)


def check(last: Generation | None, mark: Mark | None, inode: int = 77, disk: str | None = "d") -> None:
    check_generation(3, last, mark, disk=disk, inode=inode, directory="dir")


def test_the_directory_of_the_last_start_may_serve_again() -> None:
    check(LAST, Mark(5, "e", ("c",)))
    check(CLOSED, Mark(5, "e"))


def test_a_directory_whose_process_died_before_the_coordinator_heard_may_serve() -> None:
    check(LAST, Mark(6, "f", ("e",)))
    check(LAST, Mark(8, "h", ("e", "g", "f")))


def test_a_directory_from_before_the_last_start_is_behind() -> None:
    for mark in (Mark(4, "d", ("c",)), Mark(5, "x", ("d",))):
        for last in (LAST, CLOSED):
            with pytest.raises(MemberRefusedError, match=r"generation 5; this.*outdated.*accept-disk 3"):
                check(last, mark)
    with pytest.raises(MemberRefusedError, match="before generations were kept"):
        check(LAST, None)


def test_an_outdated_directory_of_the_only_member_says_what_to_compare() -> None:
    with pytest.raises(
        OutdatedError, match=r"generations/3/m says .*shard promote 3.*accept-disk 3"
    ) as error:
        check_generation(3, LAST, Mark(4, "d"), member="m", disk="d", inode=77, directory="dir")
    assert error.value.found.endswith(
        "this directory (dir) has generation 4: an outdated copy or a restored backup"
    )


def test_a_directory_of_a_member_may_be_newer_than_an_etcd_that_was_set_back() -> None:
    check_generation(3, LAST, Mark(9, "x", ("y",)), member="m", disk="d", inode=77, directory="dir")
    with pytest.raises(OutdatedError, match="outdated copy"):
        check_generation(3, LAST, Mark(5, "x", ("y",)), member="m", disk="d", inode=77, directory="dir")


def accepted(next_lsn: int, *known: Generation, promoted_in: int = 0) -> None:
    check_accepted(3, "m", known, disk="d", promoted_in=promoted_in, next_lsn=next_lsn, directory="dir")


def test_a_member_in_sync_has_what_any_member_knew_to_be_accepted() -> None:
    more = replace(LAST, next_lsn=120)
    accepted(1)
    accepted(120, LAST, more)
    # Its messages were given up with the journal of before.
    accepted(1, replace(more, disk="another"))
    with pytest.raises(OutdatedError, match=r"up to 119 as generations/3/ says.*member m.* up to 118 in dir"):
        accepted(119, LAST, more)


def test_what_was_accepted_before_a_promotion_was_given_up() -> None:
    accepted(90, LAST, promoted_in=7)
    later = replace(LAST, next_lsn=7 * RANGE_RECORDS + 5)
    with pytest.raises(OutdatedError):
        accepted(90, LAST, later, promoted_in=7)
    accepted(later.next_lsn, LAST, later, promoted_in=7)


def test_a_directory_that_went_on_elsewhere_is_of_another_line() -> None:
    with pytest.raises(MemberRefusedError, match="generation 9 of another line"):
        check(LAST, Mark(9, "x", ("y",)))


def test_a_copy_of_a_running_owner_needs_a_word_after_a_crash_and_none_after_an_orderly_end() -> None:
    with pytest.raises(MemberRefusedError, match=r"did not end in order.*but a copy.*accept-disk 3"):
        check(LAST, Mark(5, "e"), inode=78)
    check(CLOSED, Mark(5, "e"), inode=78)
    # The coordinator is a file that was copied with it.
    check(LAST, Mark(5, "e"), inode=0)


def test_directories_of_older_programs_and_other_disks_may_serve() -> None:
    check(None, None)
    check(None, Mark(2, "b", ("a",)))
    check(LAST, None, disk="another")
    check(LAST, None, disk=None)


def test_an_operator_has_the_last_word() -> None:
    accepted = Generation("d", 5, "e", boot=1, inode=77, next_lsn=100, accepted=True)
    check(accepted, Mark(2, "b"), inode=1)
    check(accepted, None)
    check_extent(3, accepted, disk="d", next_lsn=7, directory="dir")


def test_a_journal_that_is_shorter_than_was_reported_is_behind() -> None:
    check_extent(3, LAST, disk="d", next_lsn=100, directory="dir")
    check_extent(3, LAST, disk="another", next_lsn=1, directory="dir")
    check_extent(3, None, disk="d", next_lsn=1, directory="dir")
    with pytest.raises(MemberRefusedError, match=r"record 99 in segment 3.*ends with record 98.*accept-disk"):
        check_extent(3, LAST, disk="d", next_lsn=99, directory="dir")


def test_each_start_has_a_number_of_its_own_and_remembers_whom_the_coordinator_may_know() -> None:
    assert next_mark(None, None, "a") == Mark(1, "a")
    assert next_mark(LAST, Mark(5, "e", ("d",)), "f") == Mark(6, "f", ("e",))
    assert next_mark(LAST, Mark(6, "f", ("e",)), "g") == Mark(7, "g", ("e", "f"))
    assert next_mark(LAST, Mark(9, "x"), "g").number == 10
    mark = None
    for token in "abcdefghijklmnop":
        mark = next_mark(LAST, mark, token)
        check(LAST, mark)
        assert len(mark.previous) <= PREVIOUS_MAX


def test_entries_say_it_and_those_of_newer_programs_are_read() -> None:
    entry = Entry(key_of(3), CLOSED.encode(), 1, 2)
    assert Generation.decode(entry) == CLOSED
    assert Generation.decode(Entry("k", '{"more":1,' + CLOSED.encode()[1:], 1, 1)) == CLOSED
    for broken in ("", "[]", "{}", "null"):
        with pytest.raises(CoordinatorError, match="can't be read"):
            Generation.decode(Entry("k", broken, 1, 1))


def test_a_disk_is_accepted_of_a_shard_that_has_served() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        with pytest.raises(MemberRefusedError, match="has not served yet"):
            await accept_disk(coordinator, 3)
        await coordinator.write([Write(key_of(3), LAST.encode())])
        assert (await accept_disk(coordinator, 3)).accepted
        found, _ = await last_generation(coordinator, 3)
        assert found is not None
        assert found.accepted
        assert found.token == LAST.token

    asyncio.run(story())


def test_no_directory_is_accepted_while_another_member_has_everything() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        members = {"a": SetMember("h1"), "b": SetMember("h2")}
        both = ReplicaSet(3, 5, "a", frozenset(members), members, 2, 1)
        await coordinator.write([Write(both.key, both.encode()), Write(key_of(3, "a"), LAST.encode())])
        with pytest.raises(MemberRefusedError, match=r"2 members of shard 3.*a on h1, b on h2.*Start one"):
            await accept_disk(coordinator, 3)
        # The one that has everything, and not the one that owned: its directory was set back.
        await coordinator.write([Write(both.key, both.withdrawn("a").encode())])
        record = ShardRecord(3, "d")
        await coordinator.write([Write(f"{SHARD_SETS}3", record.encode())])
        await accept_disk(coordinator, 3)
        found, _ = await last_generation(coordinator, 3, "b")
        assert found == Generation("d", 0, "", boot=0, accepted=True)
        # What others know to be accepted does not count any more.
        former, _ = await last_generation(coordinator, 3, "a")
        assert former == replace(LAST, segment=0, next_lsn=0)

    asyncio.run(story())


def test_an_accepted_disk_has_no_moves_to_it_because_it_may_lack_their_copies() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        moving = Move("q", 0, 3, 1, phase="frozen")
        await coordinator.write(
            [
                Write(key_of(3), LAST.encode()),
                Write(f"{PLACEMENT}q", Placed.encode(0, 1)),
                Write(moving.key, moving.encode()),
            ]
        )
        map = Map(coordinator)
        map.refresh()
        sent, placed = map.moves["q"], map.placements()["q"]
        await accept_disk(coordinator, 3)
        with pytest.raises(ConflictError):
            await moves.commit(coordinator, sent, placed)

    asyncio.run(story())
