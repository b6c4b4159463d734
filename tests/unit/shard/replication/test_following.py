"""Following: a member refuses older owners, is cut to the owner's journal, and knows whether it is whole."""

from lightrail.shard.journal.identity import load_extent
from lightrail.shard.replication.following import EXTENT_BEATS, FollowingState
from lightrail.wire.replication import Reach
from tests.support.shard.replicated import World, accepted, declare, send


def test_a_look_waits_for_a_cut_that_is_under_way() -> None:
    world = World("b")
    owner = declare(world)
    world.settle_down()
    member = world.members["b"]
    reaches: list[Reach] = []
    send(owner, 0)
    owner.begin()
    owner.end()
    world.deliver(("", "b"))
    member.following.look(reaches.append)
    assert not reaches
    member.thread.run()
    member.thread.run()
    assert reaches == [Reach(1, owner.journal.position.ended.next_lsn)]


def test_a_member_has_the_accepted_end_on_its_disk_after_some_beats() -> None:
    world = World("b", required="b")
    owner = declare(world)
    world.settle_down()
    send(owner, 0)
    for _ in range(EXTENT_BEATS):
        owner.stream.beat(world.now_ns)
        world.settle_down()
    known = load_extent(world.members["b"].files, owner.journal.salt)
    assert known.next_lsn == owner.journal.committed.next_lsn


def test_a_member_that_has_granted_a_newer_owner_refuses_the_former_one() -> None:
    world = World("b", required="b")
    owner = declare(world)
    world.settle_down()
    member = world.members["b"]
    assert member.grant.give(2, world.now_ns)
    number = owner.stream.begin_round()
    world.settle_down()
    assert owner.stream.heard < number
    assert "epoch 2" in owner.ended
    send(owner, 0)
    before = accepted(owner)
    world.settle_down()
    assert accepted(owner) == before


def test_a_member_that_attaches_again_still_has_what_it_had() -> None:
    world = World("bc", required="bc")
    owner = declare(world)
    world.settle_down()
    send(owner, 0)
    world.settle_down()
    following = world.members["c"].following
    assert (following.whole_in, following.whole_lsn) == (1, accepted(owner))
    world.disconnect("c")
    following.attach(1)
    until_cut(world)
    assert following.whole_in == 1
    # Its new owner ends before it has accepted anything.
    world.take_over("b", "all", 0)
    following.attach(2)
    until_cut(world)
    assert (following.whole_in, following.whole_lsn) == (1, accepted(owner))


def test_a_member_that_is_cut_is_whole_as_soon_as_the_owner_has_accepted_something() -> None:
    world = World("bc", required="bc")
    owner = declare(world)
    world.settle_down()
    send(owner, 0)
    owner.begin()
    owner.end()
    # The message reaches one member alone.
    world.wires["", "b"].clear()
    following = world.members["c"].following
    world.deliver(("", "c"))
    world.members["c"].thread.run()
    assert following.whole_in == 1
    world.take_over("b", "all", 0)
    following.attach(2)
    until_cut(world)
    assert (following.whole_in, following.whole_lsn) == (0, 0)
    world.settle_down()
    new = world.owner
    assert new is not None
    assert following.whole_in == 0
    for sequence in range(2):
        send(new, sequence)
        world.settle_down()
    assert (following.whole_in, following.whole_lsn) == (2, accepted(new))


def until_cut(world: World) -> None:
    """Until member c, which attaches, has become like the owner."""
    following = world.members["c"].following
    while following.state is not FollowingState.FOLLOWING:
        world.events()[0]()


def test_a_new_owner_is_not_silent_because_the_one_before_it_was() -> None:
    """Two members wait for one silent owner. The second one would take over from the first one at once."""
    world = World("b")
    following = world.members["b"].following
    since_ns = following.heard_ns
    for epoch, later_ns, silent_ns in ((1, 0, 0), (1, 9, 9), (2, 9, 0), (2, 12, 3), (3, 12, 0), (2, 13, 0)):
        world.now_ns = since_ns + later_ns
        assert following.silent_ns(epoch) == silent_ns
