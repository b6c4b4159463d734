"""Owning: who is required, removed and added, whatever becomes of the writes and of the members."""

from dataclasses import replace

import pytest

from lightrail.shard.replicas.leases import BEAT_NS, LEASE_NS
from lightrail.shard.replicas.marks import MISSING
from lightrail.shard.replicas.member_watch import (
    ALONE_NS,
    KEPT_UP_NS,
    KEPT_UP_NS_MAX,
    SILENT_NS,
    SLOWNESS,
)
from lightrail.shard.replication.owning import HANGING_S, LATE_S
from tests.support.shard.owning import TICK_NS, World, run


@pytest.mark.parametrize("answers_beats", [True, False])
def test_a_silent_member_is_removed_and_keeps_up_before_it_is_added(answers_beats: bool) -> None:
    """One that answers beats is slow, and has three times as long as one that is lost."""
    silent_ns = SILENT_NS * SLOWNESS if answers_beats else SILENT_NS

    async def story() -> None:
        world = World("abc")
        for member in "bc":
            world.attach(member)
        await world.tick(2 * SILENT_NS)
        assert not world.coordinator.writes
        world.answering.remove("c")
        world.granting = {"c"} if answers_beats else set()
        await world.tick(silent_ns - TICK_NS)
        assert world.required == {"b", "c"}
        await world.tick(3 * TICK_NS)
        assert world.coordinator.entry.in_sync == {"a", "b"}
        assert world.required == {"b"}
        world.answering.add("c")
        await world.tick(KEPT_UP_NS - BEAT_NS)
        assert world.coordinator.entry.in_sync == {"a", "b"}
        await world.tick(2 * BEAT_NS)
        assert world.coordinator.entry.in_sync == {"a", "b", "c"}

    run(story)


@pytest.mark.parametrize("what", ["number", "mark", "lease"])
def test_a_member_is_silent_that_lacks_messages_or_records_or_grants_no_lease(what: str) -> None:
    async def story() -> None:
        world = World("abc")
        world.attach("b")
        follower = world.attach("c")
        await world.tick(SILENT_NS)
        world.answering.remove("c")
        for _ in range(2 * (LEASE_NS + SLOWNESS * SILENT_NS) // TICK_NS):
            # The next tick finds all but one of these.
            follower.heard = 0 if what == "number" else world.stream.number + 1
            world.marks.synced("c", 0 if what == "mark" else world.journal.position.synced_lsn + 1)
            if what != "lease":
                world.leases.granted("c", world.leases._number)
            await world.tick()
        assert world.coordinator.entry.in_sync == {"a", "b"}

    run(story)


def test_a_member_that_keeps_up_takes_the_place_of_a_silent_one_at_the_minimum_at_once() -> None:
    async def story() -> None:
        world = World("abc")
        world.attach("b")
        world.attach("c")
        await world.tick()
        world.answering.remove("c")
        await world.tick(2 * SILENT_NS)
        assert world.coordinator.entry.in_sync == {"a", "b"}
        world.answering = {"c"}
        await world.tick(2 * SILENT_NS)
        assert world.coordinator.entry.in_sync == {"a", "c"}

    run(story)


def test_an_owner_with_nobody_in_sync_accepts_nothing_before_it_is_with_the_first_that_has_everything() -> (
    None
):
    async def story() -> None:
        world = World("")
        await world.tick(2 * ALONE_NS)
        assert not world.coordinator.writes
        assert MISSING in world.required
        world.attach("c")
        await world.tick(2 * SILENT_NS)
        assert [found.in_sync for found in world.coordinator.writes] == [{"a", "c"}]
        assert world.required == {"c"}

    run(story)


def test_an_owner_with_nobody_in_sync_is_alone_in_sync_if_one_is_enough() -> None:
    async def story() -> None:
        world = World("", min_in_sync=1)
        assert world.required == {MISSING}
        await world.tick()
        assert [found.in_sync for found in world.coordinator.writes] == [{"a"}]
        assert not world.required

    run(story)


def test_an_owner_that_hears_nobody_is_probably_the_one_that_is_cut_off() -> None:
    async def story() -> None:
        world = World("abc", min_in_sync=1)
        await world.tick(ALONE_NS - TICK_NS)
        assert not world.coordinator.writes
        await world.tick(2 * TICK_NS)
        assert world.coordinator.entry.in_sync == {"a"}

    run(story)


def test_a_pause_of_the_owner_itself_removes_nobody() -> None:
    async def story() -> None:
        world = World("abc", min_in_sync=1)
        for member in "bc":
            world.attach(member)
        await world.tick(SILENT_NS)
        world.now_ns += 2 * ALONE_NS
        world.owning.follow(world.now_ns)
        assert world.owning._changing is None
        await world.tick(2 * SILENT_NS)
        assert not world.coordinator.writes

    run(story)


def test_an_owner_whose_own_disk_is_late_removes_nobody() -> None:
    async def story() -> None:
        world = World("abc")
        for member in "bc":
            world.attach(member)
        await world.tick(SILENT_NS)
        world.answering.remove("c")
        world.age_s = LATE_S
        await world.tick(10 * SILENT_NS)
        assert world.coordinator.entry.in_sync == frozenset("abc")
        world.age_s = LATE_S / 2
        await world.tick(2 * SILENT_NS)
        assert world.coordinator.entry.in_sync == frozenset("ab")

    run(story)


def test_the_former_owner_is_removed_at_once_unless_it_follows() -> None:
    async def story() -> None:
        for follows in (False, True):
            world = World("abc", former="c")
            world.attach("b")
            if follows:
                world.attach("c")
            await world.tick()
            assert world.coordinator.entry.in_sync == ({"a", "b", "c"} if follows else {"a", "b"})

    run(story)


def test_the_former_owner_is_not_removed_while_the_others_may_be_lost() -> None:
    """The member that would stay with this one never comes, and the former owner is about to."""

    async def story() -> None:
        world = World("abc", former="c")
        await world.tick(2 * TICK_NS)
        assert world.coordinator.entry.in_sync == {"a", "b", "c"}
        world.attach("c")
        await world.tick(2 * SILENT_NS)
        assert world.coordinator.entry.in_sync == {"a", "c"}

    run(story)


def test_a_learner_is_added_when_it_has_what_former_owners_may_have_accepted() -> None:
    """The owner has accepted nothing yet, and has sent everything to a member whose disk is slow."""

    async def story() -> None:
        world = World("ab", recovered_lsn=100)
        follower = world.attach("c")
        world.answering.remove("c")
        world.granting = {"c"}
        for mark in (40, 99):
            world.marks.synced("c", mark)
            await world.tick(2 * TICK_NS)
            assert "c" in world.required
            assert not world.coordinator.writes
        follower.heard = world.stream.number + 2
        world.answering.add("c")
        await world.tick(2 * TICK_NS)
        assert "c" in world.coordinator.entry.in_sync

    run(story)


def test_a_learner_that_ends_when_it_is_demanded_is_not_waited_for() -> None:
    async def story() -> None:
        world = World("ab")
        world.attach("b")
        world.attach("c")
        await world.tick()
        assert world.required == {"b", "c"}
        world.answering.remove("c")
        del world.stream.followers["c"]
        await world.tick()
        assert world.required == {"b"}
        assert not world.coordinator.writes
        # It has to keep up first when it comes back.
        world.attach("c")
        await world.tick(2 * SILENT_NS)
        assert world.required == {"b"}

    run(story)


def test_a_learner_that_may_be_in_sync_stays_required_until_the_entry_is_written_again() -> None:
    async def story() -> None:
        world = World("ab")
        world.attach("b")
        world.attach("c")
        await world.tick()
        world.coordinator.is_lost = True
        await world.tick()
        assert world.coordinator.entry.in_sync == {"a", "b", "c"}
        assert world.required == {"b", "c"}
        # It dies: this owner does not know that it is in sync.
        world.answering.remove("c")
        del world.stream.followers["c"]
        await world.tick(2 * SILENT_NS)
        assert world.required == {"b", "c"}
        world.coordinator.is_lost = False
        await world.tick(SILENT_NS)
        assert world.required == {"b", "c"}
        world.news()
        await world.tick(2 * SILENT_NS)
        assert world.required == {"b"}
        assert world.coordinator.entry.in_sync == {"a", "b"}

    run(story)


def test_a_learner_that_is_not_in_sync_by_a_lost_write_is_given_up_by_the_next_one() -> None:
    async def story() -> None:
        world = World("ab")
        world.attach("b")
        world.attach("c")
        await world.tick()
        world.coordinator.is_lost = True
        before = world.coordinator.entry
        await world.tick()
        # The write did not reach etcd.
        world.coordinator.entry, world.coordinator.is_lost = before, False
        world.answering.remove("c")
        del world.stream.followers["c"]
        await world.tick()
        assert world.coordinator.entry == replace(before, revision=before.revision + 1)
        assert world.coordinator.entry.revision > before.revision
        assert world.required == {"b"}

    run(story)


def test_whose_addition_is_unknown_is_required_while_another_one_is_removed() -> None:
    async def story() -> None:
        world = World("ab", min_in_sync=1)
        world.attach("b")
        world.attach("c")
        await world.tick()
        world.coordinator.is_lost = True
        await world.tick()
        assert world.coordinator.entry.in_sync == {"a", "b", "c"}
        world.answering.remove("b")
        del world.stream.followers["b"]
        await world.tick(2 * ALONE_NS)
        assert world.required >= {"c"}

    run(story)


def test_the_time_for_which_a_member_has_to_keep_up_is_doubled_up_to_a_limit() -> None:
    world = World("ab")
    world.owning.follow(world.now_ns)
    for _ in range(20):
        world.owning._watched["c"].hold_back()
    assert world.owning._watched["c"].wait_ns == KEPT_UP_NS_MAX


def test_an_owner_ends_whose_disk_hangs_while_that_of_another_member_answers() -> None:
    async def story() -> None:
        world = World("abc")
        for member in "bc":
            world.attach(member)
        await world.tick()
        world.marks.synced("b", 7)
        assert world.journal.position.synced_lsn < 7
        for age_s, hangs in ((0.0, False), (HANGING_S / 2, False), (HANGING_S, True)):
            world.age_s = age_s
            assert world.owning.hangs() is hangs
        # No disk has more than this one: all may be one storage.
        world.marks.synced("b", world.journal.position.synced_lsn)
        assert not world.owning.hangs()

    run(story)


def test_an_owner_that_was_replaced_ends() -> None:
    async def story() -> None:
        world = World("abc")
        world.map.replica_sets[0] = replace(world.coordinator.entry, owner="b", epoch=6, revision=11)
        await world.tick()
        assert world.deposed == ["member b owns shard 0 in epoch 6"]

    run(story)


def test_an_entry_that_was_put_back_guards_the_next_change() -> None:
    """Revisions of the etcd that was set back are lower than those that the owner knows."""

    async def story() -> None:
        world = World("abc")
        world.attach("b")
        world.attach("c")
        await world.tick()
        world.coordinator.set_back = "revision 3"
        world.answering.remove("c")
        await world.tick(2 * SLOWNESS * SILENT_NS)
        assert not world.coordinator.writes
        world.coordinator.entry = replace(world.coordinator.entry, revision=4)
        world.coordinator.set_back, world.map.history = None, "put back"
        world.news()
        await world.tick()
        assert [sorted(each.in_sync) for each in world.coordinator.writes] == [["a", "b"]]
        assert (world.owning.found.revision, world.deposed) == (5, [])

    run(story)


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_owner_replaces_an_entry_of_an_earlier_epoch_that_was_put_back(is_lost: bool) -> None:
    async def story() -> None:
        world = World("ab")
        world.attach("b")
        known = world.owning.found
        older = replace(known, owner="b", epoch=3, in_sync=frozenset("abc"), revision=4)
        world.coordinator.entry, world.map.history = older, "put back"
        world.coordinator.is_lost = is_lost
        world.news()
        await world.tick()
        assert (world.coordinator.entry, world.deposed) == (known, [])
        world.coordinator.is_lost = False
        world.news()
        # It goes on from there.
        world.answering.remove("b")
        world.attach("c")
        await world.tick(2 * SLOWNESS * SILENT_NS)
        assert sorted(world.coordinator.writes[-1].in_sync) != ["a", "b"]
        assert world.deposed == []

    run(story)


def test_an_entry_of_an_earlier_epoch_is_not_replaced_where_a_later_one_is_written() -> None:
    async def story() -> None:
        world = World("ab")
        world.attach("b")
        known = world.owning.found
        world.map.history = "put back"
        world.map.replica_sets[0] = replace(known, owner="b", epoch=3, revision=4)
        world.coordinator.entry = replace(known, owner="b", epoch=7, revision=6)
        await world.tick()
        assert (world.coordinator.writes, world.deposed) == ([], [])
        world.news()
        await world.tick()
        assert len(world.deposed) == 1

    run(story)


def test_a_member_that_ends_in_order_is_removed_at_once_and_back_as_soon_as_it_has_everything() -> None:
    async def story() -> None:
        world = World("abc")
        for member in "bc":
            world.attach(member)
        await world.tick()
        # It says so, and its connection is closed.
        world.answering.remove("c")
        world.stream.left.add("c")
        del world.stream.followers["c"]
        await world.tick()
        assert [sorted(each.in_sync) for each in world.coordinator.writes] == [["a", "b"]]
        world.stream.left.remove("c")
        world.attach("c")
        await world.tick(6 * TICK_NS)
        assert sorted(world.coordinator.entry.in_sync) == ["a", "b", "c"]

    run(story)


def test_a_member_that_has_withdrawn_is_required_no_longer_and_added_when_it_keeps_up() -> None:
    """With fewer than the minimum nothing is accepted until then."""

    async def story() -> None:
        world = World("abc")
        for left, required in (("ac", {"c"}), ("a", {MISSING})):
            (member,) = world.owning.found.in_sync - set(left)
            changed = world.owning.found.withdrawn(member)
            world.coordinator.entry = replace(changed, revision=world.owning.found.revision + 1)
            world.news()
            await world.tick()
            assert world.marks.others == required
        assert world.deposed == []
        world.attach("b")
        await world.tick(4 * TICK_NS)
        assert world.coordinator.entry.in_sync == frozenset("ab")
        assert world.marks.others == {"b"}

    run(story)


def test_an_owner_whose_other_members_all_end_in_order_goes_on_at_once() -> None:
    async def story() -> None:
        world = World("ab", min_in_sync=1)
        world.attach("b")
        await world.tick()
        world.answering.remove("b")
        world.stream.left.add("b")
        del world.stream.followers["b"]
        await world.tick()
        assert [sorted(each.in_sync) for each in world.coordinator.writes] == [["a"]]

    run(story)


def test_a_disk_that_is_slow_keeps_no_member_out_that_it_would_keep_in() -> None:
    """Each commit takes it longer than a second, and beats are answered."""

    async def story() -> None:
        world = World("ab")
        world.attach("b")
        slow = world.attach("c")
        world.answering.remove("c")
        world.granting = {"c"}
        await world.tick()
        world.owning._watched["c"].hold_back()
        for _ in range(12):
            await world.tick(SILENT_NS + TICK_NS)
            slow.heard = world.stream.number
            world.marks.synced("c", world.journal.position.synced_lsn)
        assert "c" in world.coordinator.entry.in_sync

    run(story)
