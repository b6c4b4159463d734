"""Stream and following: members get the owner's bytes, and what is accepted is on every required disk."""

import asyncio
import random
from collections.abc import Callable

import pytest

from lightrail.journal.record import SPILLED
from lightrail.shard.journal.record import Append
from lightrail.shard.queue.values.runs import batch_of
from lightrail.shard.replication.following import FollowingState
from lightrail.shard.replication.stream import (
    AHEAD_MAX,
    BEHIND_AHEAD,
    BEHIND_BYTES,
    ENCODED_AT_ONCE,
    FollowerState,
)
from tests.support.shard.replicated import (
    OwnerNode,
    World,
    accepted,
    check_equal,
    contents,
    declare,
    send,
    settle,
)


def test_a_commit_is_accepted_when_every_required_member_has_synced_it() -> None:
    world = World("bc", required="bc")
    owner = declare(world)
    world.settle_down()
    before = accepted(owner)
    send(owner, 0)
    owner.begin()
    owner.end()
    assert accepted(owner) == before
    for name in "bc":
        world.deliver(("", name))
        world.members[name].thread.run()
        assert accepted(owner) == before
    world.deliver(("b", ""))
    assert accepted(owner) == before
    world.deliver(("c", ""))
    assert accepted(owner) == before + 1
    check_equal(world)


def test_a_member_that_acknowledges_before_the_owner_has_synced_waits_for_the_owner() -> None:
    world = World("b", required="b")
    owner = declare(world)
    world.settle_down()
    before = accepted(owner)
    send(owner, 0)
    owner.begin()
    world.deliver(("", "b"))
    world.members["b"].thread.run()
    world.deliver(("b", ""))
    assert accepted(owner) == before
    owner.end()
    assert accepted(owner) == before + 1


def test_an_empty_member_gets_everything_that_was_written_before() -> None:
    world = World("b")
    owner = declare(world)
    for sequence in range(60):
        send(owner, sequence)
        owner.begin()
        owner.end()
    assert owner.journal.position.ended.segment > 3
    world.settle_down()
    check_equal(world)


@pytest.mark.parametrize("seed", range(12))
def test_members_become_equal_whatever_is_lost_on_the_way(seed: int) -> None:
    """Connections are lost, and machines of members stop, at any time; what is accepted is on each disk."""
    chance = random.Random(seed)
    world = World("bc", required="bc")
    owner = declare(world)
    world.settle_down(chance)
    for sequence in range(120):
        send(owner, sequence, chance.choice((10, 100, 700)))
        if sequence > 20 and chance.random() < 0.5:
            settle(owner, sequence - 20)
        for _ in range(chance.randrange(12)):
            world.attach_all()
            if events := world.events():
                chance.choice(events)()
        name = chance.choice("bc")
        if chance.random() < 0.06:
            world.disconnect(name)
        elif chance.random() < 0.06:
            known = world.members[name].following.mirror
            world.members[name].crash(chance.choice(("some", "none", "all")), chance.randrange(1 << 30))
            if known is not None:
                assert accepted(owner) <= known.synced_lsn
        for member in world.members.values():
            mirror = member.following.mirror
            if mirror is not None and not mirror.failure:
                assert mirror.accepted_lsn <= accepted(owner)
    world.settle_down(chance)
    assert accepted(owner) == owner.journal.position.ended.next_lsn - 1
    check_equal(world)


@pytest.mark.parametrize("seed", range(20))
def test_what_was_accepted_is_at_every_later_owner(seed: int) -> None:
    """The machine of the owner stops again and again, and a member in sync takes over."""
    chance = random.Random(seed)
    world = World("bc", required="bc")
    owner = declare(world)
    world.settle_down(chance)
    sequence = 0
    for _ in range(6):
        for _ in range(chance.randrange(4, 30)):
            sequence += 1
            send(owner, sequence, chance.choice((10, 100, 700)), chance.choice((0, SPILLED)))
            for _ in range(chance.randrange(8)):
                if events := world.events():
                    chance.choice(events)()
        end = (owner.journal.committed.segment, owner.journal.committed.end)
        before, lsn = contents(owner.files, end), accepted(owner)
        name = chance.choice("abc".replace(world.owner_name, ""))
        world.take_over(name, chance.choice(("some", "none")), seed, is_lost=chance.random() < 0.5)
        assert world.owner is not None
        owner = world.owner
        assert owner.recovered.lsn >= lsn
        assert contents(owner.files, end) == before
        world.settle_down(chance)
        check_equal(world)
        send(owner, 0)
        world.settle_down(chance)
        assert accepted(owner) == owner.journal.position.ended.next_lsn - 1


def test_a_disk_that_was_set_back_counts_for_nothing_until_it_has_everything_again() -> None:
    world = World("b", required="b")
    owner = declare(world)
    world.settle_down()
    yesterday = world.members["b"].files.after_crash(0, "none")
    for sequence in range(3):
        send(owner, sequence)
        world.settle_down()
    assert accepted(owner) == owner.journal.position.ended.next_lsn - 1
    member = world.members["b"]
    world.disconnect("b")
    member.files = yesterday
    member.start()
    before = accepted(owner)
    send(owner, 9)
    owner.begin()
    owner.end()
    member.following.attach(world.epoch)
    while (
        member.following.mirror is None
        or member.following.mirror.synced_lsn < owner.journal.position.ended.next_lsn - 1
    ):
        assert accepted(owner) == before
        world.events()[0]()
    world.settle_down()
    assert accepted(owner) == before + 1


def test_the_mark_of_a_member_that_attaches_is_not_behind_the_end_of_its_journal() -> None:
    """Its directory may have been set back: an owner adds who has everything that it has accepted."""
    world = World("b")
    owner = declare(world)
    world.settle_down()
    yesterday = world.members["b"].files.after_crash(0, "none")
    for sequence in range(3):
        send(owner, sequence)
        world.settle_down()
    marks, ended = owner.journal.marks, owner.journal.position.ended.next_lsn - 1
    assert marks.mark("b") == ended
    member = world.members["b"]
    world.disconnect("b")
    member.files = yesterday
    member.start()
    member.following.attach(world.epoch)
    followers = owner.stream.followers
    while "b" not in followers or followers["b"].state is not FollowerState.LIVE:
        world.events()[0]()
    assert member.following.mirror is not None
    assert marks.mark("b") == member.following.mirror.synced_lsn == ended - 3
    world.settle_down()
    assert marks.mark("b") == ended
    # One that attaches again has not lost what it had.
    world.disconnect("b")
    member.following.attach(world.epoch)
    world.settle_down()
    assert marks.mark("b") == ended


def test_a_round_is_heard_when_every_required_member_has_answered_a_later_message() -> None:
    world = World("bc", required="bc")
    owner = declare(world)
    world.settle_down()
    number = owner.stream.begin_round()
    for name in "bc":
        assert owner.stream.heard < number
        world.deliver(("", name))
        world.members[name].thread.run()
        world.deliver((name, ""))
    assert owner.stream.heard == number


def test_a_round_is_not_heard_before_what_was_sent_earlier_is_on_disk() -> None:
    world = World("b", required="b")
    owner = declare(world)
    world.settle_down()
    send(owner, 0)
    owner.begin()
    number = owner.stream.begin_round()
    # The disk of the member hangs: nothing runs in its thread.
    for _ in range(2):
        world.deliver(("", "b"))
    assert not world.wires["b", ""]
    assert owner.stream.heard < number
    assert owner.stream.followers["b"].ahead > 0
    world.settle_down()
    assert owner.stream.heard >= number
    assert owner.stream.followers["b"].ahead == 0


def test_an_owner_without_required_members_hears_at_once() -> None:
    world = World("")
    assert world.owner is not None
    number = world.owner.stream.begin_round()
    assert world.owner.stream.heard == number


def test_a_member_that_does_not_acknowledge_attaches_again_before_it_uses_much_memory() -> None:
    world = World("b")
    owner = declare(world)
    world.settle_down()
    size = 1 << 20
    for sequence in range(AHEAD_MAX // size + 1):
        send(owner, sequence, size)
        owner.begin()
        owner.end()
        assert sum(len(part) for parts in world.wires["", "b"] for part in parts) < AHEAD_MAX + 2 * size
    assert "b" not in owner.stream.followers
    world.settle_down()
    check_equal(world)


def test_a_member_that_is_behind_gets_a_few_large_messages_at_a_time() -> None:
    world = World("b")
    owner = declare(world)
    for sequence in range(4 * BEHIND_AHEAD):
        send(owner, sequence, BEHIND_BYTES // 2)
        owner.begin()
        owner.end()
    world.attach_all()
    seen = 0
    while events := world.events():
        waiting = [part for parts in world.wires["", "b"] for part in parts]
        assert len(world.wires["", "b"]) <= BEHIND_AHEAD + 1
        seen = max(seen, len(waiting))
        assert all(len(part) < 2 * BEHIND_BYTES for part in waiting)
        events[-1]()
    assert seen > 2
    check_equal(world)


def test_a_member_keeps_what_it_has_of_segments_that_wait_to_be_dropped() -> None:
    """They are dropped when what replaces them is accepted: until then the owner has them as well."""
    world = World("bc", required="bc")
    owner = declare(world)
    send(owner, 0)
    settle(owner, 0)
    world.settle_down()
    mirror = world.members["b"].following.mirror
    assert mirror is not None
    lineage, before = mirror.lineage, accepted(owner)
    world.disconnect("b")
    newest = owner.journal.current.number
    assert owner.journal.seal(1)
    for segment in range(owner.journal.segments()[0].number, newest + 1):
        owner.journal.drop(segment)
    owner.begin()
    owner.end()
    assert accepted(owner) == before
    assert owner.journal.segments()[0].number > newest
    world.settle_down()
    assert mirror.cut_records == 0
    assert accepted(owner) > before
    assert mirror.lineage[0].segment > lineage[0].segment
    send(owner, 1)
    world.settle_down()
    check_equal(world)
    assert [each.segment for each in mirror.lineage] == [
        each.number for each in owner.journal.segments()[::-1]
    ]


@pytest.mark.parametrize("required", ["b", ""])
def test_a_member_whose_bytes_are_of_another_owner_of_the_same_epoch_is_refused(required: str) -> None:
    """Etcd was set back, and two owners without a common member had epoch 2: their lineages are equal."""
    world = World("b", required="b")
    declare(world)
    world.settle_down()
    assert world.owner is not None
    files = world.owner.files.after_crash(0, "all")
    member = world.members["b"]
    world.disconnect("b")
    other = OwnerNode(world, member.files.after_crash(0, "all"), 2, frozenset())
    world.owner = owner = OwnerNode(world, files, 2, frozenset(required))
    world.epoch = 2
    for sequence, each in enumerate((other, owner)):
        send(each, sequence)
        each.begin()
        each.end()
    assert other.journal.position.ended == owner.journal.position.ended
    member.files = other.files.after_crash(0, "all")
    member.start()
    member.following.attach(2)
    while events := world.events():
        events[0]()
    assert member.following.state is FollowingState.DETACHED
    assert "b" not in owner.stream.followers
    assert ("two owners had epoch 2" in owner.ended) == bool(required)
    send(owner, 2)
    before = accepted(owner)
    owner.begin()
    owner.end()
    assert (accepted(owner) > before) != bool(required)


def test_a_member_that_ends_in_order_says_so_until_it_attaches_again() -> None:
    world = World("bc")
    owner = declare(world)
    world.settle_down()
    world.members["b"].following.leave()
    world.deliver(("b", ""))
    assert (owner.stream.left, [*owner.stream.followers]) == ({"b"}, ["c"])
    world.settle_down()
    assert not owner.stream.left
    check_equal(world)


def test_large_commits_are_encoded_beside_the_loop() -> None:
    world = World("b", required="b")
    owner = declare(world)
    world.settle_down()
    calls: list[Callable[[], None]] = []
    owner.stream._run_on_loop = calls.append
    for size, is_late in ((ENCODED_AT_ONCE // 2, False), (ENCODED_AT_ONCE, True)):
        number = owner.stream.number
        owner.journal.append(Append([(1, size)], 0, 0, batch_of([b"x" * size], durable=True), 0, 1), 0)
        owner.commit = owner.journal.begin_commit()
        work = owner.stream.begun(owner.commit)
        assert (owner.stream.number == number) == (work is not None) == is_late
        (work or owner.commit.perform)()
        if is_late:
            assert owner.stream.number == number
            calls.pop()()
        assert owner.stream.number == number + 1
        owner.journal.end_commit(owner.commit)
        owner.stream.end(owner.commit)
        owner.commit = None
        world.settle_down()
        check_equal(world)


@pytest.mark.parametrize("end", ["prepared", "lost", "attached again", "late"])
def test_a_member_is_prepared_or_lost_before_an_owner_ends(end: str) -> None:
    async def story() -> None:
        world = World("b", required="b")
        owner = declare(world)
        world.settle_down()
        asked: list[None] = []
        member = world.members["b"].following
        member._on_prepare = lambda: asked.append(None)
        now = asyncio.get_running_loop().time()
        until = now if end == "late" else now + 3600
        waiting = asyncio.ensure_future(owner.stream.prepare("b", until))
        await asyncio.sleep(0)
        world.settle_down()
        assert (len(asked), waiting.done()) == (1, False)
        if end == "lost":
            owner.stream.lost(b"b")
        elif end == "attached again":
            member.detach()
            world.settle_down()
        elif end == "prepared":
            member.prepared()
            world.settle_down()
        assert await waiting == (end == "prepared")

    asyncio.run(story())


def test_an_owner_that_ends_waits_for_the_acceptance_of_what_it_has_written() -> None:
    async def story() -> None:
        world = World("b", required="b")
        owner = declare(world)
        world.settle_down()
        assert not await owner.stream.until_accepted()
        send(owner, 0)
        owner.begin()
        owner.end()
        waiting = asyncio.ensure_future(owner.stream.until_accepted())
        await asyncio.sleep(0)
        assert not waiting.done()
        world.settle_down()
        assert await waiting
        assert not await owner.stream.until_accepted()

    asyncio.run(story())
