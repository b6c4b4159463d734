"""Handing over: an owner that ends chooses a member that is to take over, and waits until it is ready."""

from collections.abc import Callable
from dataclasses import replace

from lightrail.shard.replication.stream import FollowerState
from tests.support.shard.owning import World, run


def preparing(world: World, is_ready: Callable[[list[str]], bool] = bool) -> list[str]:
    """Members that the owner requests to be ready, in this order; `is_ready` answers for the last one."""
    asked: list[str] = []

    async def prepare(member: str, until: float) -> bool:
        asked.append(member)
        return is_ready(asked)

    world.stream.prepare = prepare
    return asked


def test_an_owner_ends_when_an_operator_wants_another_member_to_own() -> None:
    async def story() -> None:
        world = World("abc")
        world.coordinator.entry = replace(world.owning.found.handed_over("c"), revision=11)
        world.news()
        await world.tick()
        assert world.deposed == ["member c is to own shard 0: it is handed over"]
        asked = preparing(world)
        world.attach("b")
        world.attach("c")
        await world.owning.prepare()
        # Where that one does not follow any more, another one does.
        del world.stream.followers["c"]
        await world.owning.prepare()
        del world.stream.followers["b"]
        await world.owning.prepare()
        assert (asked, world.owning.successor) == (["c", "b"], "")

    run(story)


def test_an_owner_that_ends_chooses_the_member_that_has_kept_up_longest() -> None:
    """A process that has just begun may have granted a lease before it began, and waits for its end."""

    async def story() -> None:
        world = World("abc")
        asked = preparing(world)
        world.attach("c")
        await world.tick()
        world.attach("b")
        await world.tick()
        await world.owning.prepare()
        # And one that has been live for so short a time that the owner has not looked since.
        del world.stream.followers["c"]
        world.answering.remove("c")
        await world.tick()
        world.attach("c")
        await world.owning.prepare()
        assert asked == ["c", "b"]

    run(story)


def test_an_owner_that_ends_chooses_another_member_if_the_first_one_attaches_again_or_is_removed() -> None:
    async def story() -> None:
        world = World("abc")

        def happens(asked: list[str]) -> bool:
            if len(asked) == 1:
                world.attach("b", FollowerState.ATTACHING)
                return False
            if len(asked) == 2:
                world.attach("b")
                world.owning.found = world.owning.found.removed("c")
            return True

        asked = preparing(world, happens)
        world.attach("b")
        await world.tick()
        world.attach("c")
        await world.tick()
        await world.owning.prepare()
        assert (asked, world.owning.successor) == (["b", "c", "b"], "b")

    run(story)
