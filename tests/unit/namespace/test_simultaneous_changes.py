"""Simultaneous changes of names and subscriptions: what is left is as if one came after the other."""

from collections.abc import Sequence
from contextlib import suppress

import pytest

from lightrail.cluster.coordinator import WRITES_MAX, CoordinatorError, CoordinatorFullError, Write
from lightrail.cluster.map import PLACEMENT, Map, Placed
from lightrail.model.policy import InvalidPolicyError, Role
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.statuses import ChangedError, LimitExceededError, MissingError, TakenError
from tests.support.services import Scene, left, policy, run


@pytest.mark.parametrize("lives_for", [0, 1, 2])
def test_a_late_deletion_spares_a_name_that_was_made_again(lives_for: int) -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "q", policy())
        scene.coordinator.lives_for = lives_for
        with suppress(CoordinatorError):
            await scene.one.drop(ANYBODY, "q")
        late, scene.coordinator.sent = scene.coordinator.sent, []
        scene.coordinator.lives_for = None
        with suppress(MissingError):
            await scene.two.drop(ANYBODY, "q")
        await scene.two.give(ANYBODY, "q", policy())
        placed = await scene.coordinator.placement("q")
        scene.coordinator.sent = late
        await scene.coordinator.arrive()
        assert placed is not None
        assert await scene.coordinator.placement("q") == placed
        assert scene.two.directory.get("q").role is Role.QUEUE

    run(check)


def test_a_late_deletion_spares_a_queue_that_another_shard_has_by_then() -> None:
    """Its shard has sent it and is lost with its disk; what was accepted since is another shard's."""

    async def check(scene: Scene) -> None:
        record = await scene.one.give(ANYBODY, "q", policy())
        map = Map(scene.coordinator)
        map.refresh()
        placed = map.placed("q")
        assert placed is not None
        scene.coordinator.lives_for = 0
        with pytest.raises(CoordinatorError, match="the process has died"):
            await scene.one.expire(record, {PLACEMENT + "q": placed.revision})
        late, scene.coordinator.sent = scene.coordinator.sent, []
        scene.coordinator.lives_for = None
        value = Placed.encode(1, placed.epoch + 1, placed.epoch)
        await scene.coordinator.write([Write(PLACEMENT + "q", value, placed.revision)])
        scene.coordinator.sent = late
        await scene.coordinator.arrive()
        scene.two.directory.refresh()
        assert scene.two.directory.get("q").role is Role.QUEUE
        found = await scene.coordinator.placement("q")
        assert found is not None
        assert found.shard == 1

    run(check)


def test_of_two_that_change_the_same_name_one_wins() -> None:
    async def check(scene: Scene) -> None:
        made = await scene.one.give(ANYBODY, "q", policy())
        changed = await scene.one.change(ANYBODY, "q", policy(max_length=1), made.revision)
        assert changed.created == made.created
        with pytest.raises(ChangedError, match="read it again"):
            await scene.two.change(ANYBODY, "q", policy(max_length=2), made.revision)
        with pytest.raises(ChangedError):
            await scene.two.drop(ANYBODY, "q", made.revision)
        await scene.two.drop(ANYBODY, "q", changed.revision)

    run(check)


@pytest.mark.parametrize(
    ("deleted", "target"),
    [("r", "q"), ("r", "q/$dlq"), ("r", "http://localhost/"), ("q", "q"), ("q", "q/$dlq")],
)
def test_no_subscription_stays_of_a_name_that_is_deleted_at_the_same_moment(
    deleted: str, target: str
) -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        await scene.one.give(ANYBODY, "q", policy())
        scene.coordinator.meanwhile = lambda: scene.two.drop(ANYBODY, deleted)
        with pytest.raises(MissingError):
            await scene.one.subscribe(ANYBODY, "r", target, id="s")
        assert not [key for key in await left(scene) if "//" in key or "$" in key]

    run(check)


@pytest.mark.parametrize("deleted", ["r", "q"])
def test_a_subscription_that_is_made_while_its_names_are_deleted_is_deleted_as_well(deleted: str) -> None:
    """It is written between the look of the deletion and its transaction."""

    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        await scene.one.give(ANYBODY, "q", policy())
        scene.coordinator.meanwhile = lambda: scene.two.subscribe(ANYBODY, "r", "q", id="s")
        await scene.one.drop(ANYBODY, deleted)
        assert not [key for key in await left(scene) if "//" in key]

    run(check)


def test_a_deletion_that_fails_after_the_name_is_deleted_is_none_that_was_refused() -> None:
    """A shard serves a queue again whose deletion was refused."""

    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        made = await scene.one.give(ANYBODY, "q", policy())
        write = scene.coordinator.write

        async def then_full(writes: Sequence[Write]) -> int:
            if await scene.coordinator.entry(f"names/{made.name}") is None:
                raise CoordinatorFullError("no space")
            return await write(writes)

        scene.coordinator.meanwhile = lambda: scene.two.subscribe(ANYBODY, "r", "q", id="s")
        scene.coordinator.write = then_full  # type: ignore[method-assign]
        with pytest.raises(CoordinatorFullError) as failed:
            await scene.one.expire(made)
        assert failed.value.may_be_written

    run(check)


def test_the_queue_of_a_subscription_does_not_outlive_its_router() -> None:
    async def check(scene: Scene) -> None:
        queue = "r/$subscriptions/s"
        with pytest.raises(MissingError, match="expected a router"):
            await scene.one.give(ANYBODY, queue, policy())
        for first in (scene.one, scene.two):
            await scene.one.give(ANYBODY, "r", policy("router"))
            if first is scene.one:
                scene.coordinator.meanwhile = lambda: scene.two.drop(ANYBODY, "r")
                with pytest.raises(MissingError, match="expected a router"):
                    await scene.one.give(ANYBODY, queue, policy())
            else:
                scene.coordinator.meanwhile = lambda: scene.two.give(ANYBODY, queue, policy())
                await scene.one.drop(ANYBODY, "r")
            assert await left(scene) == set()

    run(check)


def test_a_router_that_was_made_again_meanwhile_keeps_its_own_subscriptions() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        await scene.one.give(ANYBODY, "q", policy())
        await scene.one.subscribe(ANYBODY, "r", "q", id="s")
        write = scene.coordinator.write

        async def then_made_again(writes: Sequence[Write]) -> int:
            revision = await write(writes)
            scene.coordinator.write = write  # type: ignore[method-assign]
            await scene.two.give(ANYBODY, "r", policy("router"))
            await scene.two.subscribe(ANYBODY, "r", "q", id="t")
            return revision

        scene.coordinator.write = then_made_again  # type: ignore[method-assign]
        await scene.one.drop(ANYBODY, "r")
        assert [each.id for each in scene.one.directory.subscriptions("r")] == ["t"]

    run(check)


def test_a_router_whose_policy_is_changed_meanwhile_is_subscribed_to_all_the_same() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        await scene.one.give(ANYBODY, "q", policy())
        scene.coordinator.meanwhile = lambda: scene.two.change(
            ANYBODY, "r", policy("router", max_subscribers=9)
        )
        await scene.one.subscribe(ANYBODY, "r", "q", id="s")
        scene.coordinator.meanwhile = lambda: scene.two.change(
            ANYBODY, "r", policy("router", max_subscribers=1)
        )
        with pytest.raises(LimitExceededError):
            await scene.one.subscribe(ANYBODY, "r", "q", id="t")
        scene.coordinator.meanwhile = lambda: scene.two.unsubscribe(ANYBODY, "r", "s")
        with pytest.raises(ChangedError):
            await scene.one.subscribe(ANYBODY, "r", "q", id="s", replace_it=True)

    run(check)


def test_of_two_that_make_a_subscription_at_once_one_finds_that_it_exists() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        await scene.one.give(ANYBODY, "q", policy())
        scene.coordinator.meanwhile = lambda: scene.two.subscribe(ANYBODY, "r", "q", id="s")
        with pytest.raises(TakenError, match="s of r was made by somebody else"):
            await scene.one.subscribe(ANYBODY, "r", "q", id="s")
        assert scene.one.directory.subscription("r", "s") is not None

    run(check)


@pytest.mark.parametrize("how", ["give", "change"])
def test_dead_letters_do_not_go_round_by_two_changes_at_once(how: str) -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "b", policy())
        if how == "change":
            await scene.one.give(ANYBODY, "a", policy())
        call = getattr(scene.one, how)
        scene.coordinator.meanwhile = lambda: scene.two.change(ANYBODY, "b", policy(dead_letter="a"))
        with pytest.raises(InvalidPolicyError, match="do not end in a"):
            await call(ANYBODY, "a", policy(dead_letter="b"))
        await scene.two.change(ANYBODY, "b", policy())
        scene.coordinator.meanwhile = lambda: scene.two.change(ANYBODY, "b", policy(dead_letter="c"))
        made = await call(ANYBODY, "a", policy(dead_letter="b"))
        assert made.policy["dead_letter"] == "b"
        await scene.one.give(ANYBODY, "own", policy(dead_letter="own/$dlq"))

    run(check)


def test_a_deletion_in_several_transactions_is_not_applied_late_to_a_router_that_was_kept() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        for number in range(WRITES_MAX):
            await scene.one.give(ANYBODY, f"r/$subscriptions/{number}", policy())
        scene.coordinator.lives_for = 0
        with pytest.raises(CoordinatorError):
            await scene.one.drop(ANYBODY, "r")
        late, scene.coordinator.sent = scene.coordinator.sent, []
        scene.coordinator.lives_for = None
        await scene.two.keep(scene.two.directory.get("r"))
        scene.two.directory.refresh()
        await scene.two.keep(scene.two.directory.get("r"))
        scene.coordinator.sent = late
        await scene.coordinator.arrive()
        scene.two.directory.refresh()
        assert scene.two.directory.count("r") == WRITES_MAX + 1

    run(check)
