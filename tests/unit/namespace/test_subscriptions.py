"""Subscriptions at the service: what they need, what goes with them, and how many there may be."""

from typing import Any

import pytest

from lightrail.cluster.coordinator import WRITES_MAX
from lightrail.model.policy import Role
from lightrail.namespace import checks
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.scheduled import scheduled_queue
from lightrail.namespace.statuses import LimitExceededError, MissingError, ServiceError, TakenError
from tests.support.services import Scene, policy, run


def test_subscriptions_go_with_their_router_and_their_target() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        await scene.one.give(ANYBODY, "q", policy())
        await scene.one.subscribe(ANYBODY, "r", "q")
        await scene.one.subscribe(ANYBODY, "r", "q/$dlq")
        pushed = await scene.one.subscribe(ANYBODY, "r", "https://localhost/hook")
        assert len(pushed.secret) == 64
        assert "secret" not in pushed.shown()
        await scene.one.drop(ANYBODY, "q")
        assert [each.id for each in scene.one.directory.subscriptions("r")] == [pushed.id]
        await scene.one.drop(ANYBODY, "r")
        assert list(scene.one.directory.every_subscription()) == []

    run(check)


def test_a_subscription_needs_a_router_a_target_and_room() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router", max_subscribers=1))
        await scene.one.give(ANYBODY, "q", policy())
        with pytest.raises(MissingError, match="expected a router"):
            await scene.one.subscribe(ANYBODY, "q", "r")
        with pytest.raises(MissingError, match="expected a queue, a router or a URL"):
            await scene.one.subscribe(ANYBODY, "r", "nothing")
        with pytest.raises(ServiceError, match="colour"):
            await scene.one.subscribe(ANYBODY, "r", "q", filter={"colour": "red"})
        with pytest.raises(ServiceError, match="expected"):
            await scene.one.subscribe(ANYBODY, "r", "q", action={"set": {"body": 1}})
        made = await scene.one.subscribe(ANYBODY, "r", "q", id="s")
        with pytest.raises(TakenError):
            await scene.one.subscribe(ANYBODY, "r", "q", id="s")
        with pytest.raises(ServiceError, match="max_subscribers"):
            await scene.one.subscribe(ANYBODY, "r", "q")
        changed = await scene.one.subscribe(
            ANYBODY, "r", "q", id="s", filter={"subject": "a"}, replace_it=True
        )
        assert changed.revision > made.revision
        await scene.one.unsubscribe(ANYBODY, "r", "s")
        with pytest.raises(MissingError, match="no subscription s"):
            await scene.one.unsubscribe(ANYBODY, "r", "s")

    run(check)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"filter": {"sql": "colour ="}}, "expected .*, found the end of the expression"),
        ({"filter": {"colour": "red"}}, "no other keys than"),
        ({"action": {"set": {"durable": True}}}, "set: expected"),
        ({"expires_at": "tomorrow"}, "expires_at is 'tomorrow'"),
    ],
)
def test_a_subscription_that_can_not_be_used_is_refused_with_the_reason(
    fields: dict[str, Any], says: str
) -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        await scene.one.give(ANYBODY, "q", policy())
        with pytest.raises(ServiceError, match=says):
            await scene.one.subscribe(ANYBODY, "r", "q", **fields)
        assert scene.one.directory.subscriptions("r") == []

    run(check)


def test_a_router_has_one_queue_of_scheduled_messages() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        made = await scheduled_queue(scene.one, "r")
        assert (made.name, made.role, made.policy["delay"]) == ("r/$scheduled", Role.QUEUE, True)
        assert await scene.coordinator.placement("r/$scheduled") is not None
        scene.two.directory.refresh()
        assert (await scheduled_queue(scene.two, "r")).revision == made.revision
        await scene.one.change(ANYBODY, "r/$scheduled", policy())
        with pytest.raises(ServiceError, match="expected a queue whose policy has delay"):
            await scheduled_queue(scene.one, "r")

    run(check)


def test_no_queue_of_scheduled_messages_stays_behind_without_its_router() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "q", policy())
        with pytest.raises(MissingError, match="no router"):
            await scheduled_queue(scene.one, "q")
        assert [record.name for record in scene.one.directory.below("")] == ["q"]
        assert set(await scene.coordinator.placements()) == {"q"}

    run(check)


def test_a_router_takes_the_queues_of_its_subscriptions_along() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        for name in ("q", "r/$subscriptions/k"):
            await scene.one.give(ANYBODY, name, policy())
            await scene.one.subscribe(ANYBODY, "r", name)
        await scheduled_queue(scene.one, "r")
        await scene.one.drop(ANYBODY, "r")
        assert [record.name for record in scene.one.directory.below("")] == ["q"]
        assert list(scene.one.directory.every_subscription()) == []
        assert set(await scene.coordinator.placements()) == {"q"}

    run(check)


def test_a_subscription_to_a_url_has_a_queue_of_its_own() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        made = await scene.one.subscribe(ANYBODY, "r", "http://localhost/hook")
        queue = f"r/$subscriptions/{made.id}"
        found = scene.one.directory.get(queue)
        assert found.policy.to_json()["max_delivery_count"] == 0
        assert await scene.coordinator.placement(queue) is not None
        changed = await scene.one.subscribe(
            ANYBODY, "r", "http://localhost/other", id=made.id, replace_it=True
        )
        assert changed.secret == made.secret
        assert scene.one.directory.get(queue).revision == found.revision
        await scene.one.unsubscribe(ANYBODY, "r", made.id)
        assert scene.one.directory.find(queue) is None
        assert await scene.coordinator.placements() == {}

    run(check)


def test_a_pushed_subscription_and_its_queue_go_together() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        one = await scene.one.subscribe(ANYBODY, "r", "http://localhost/1")
        await scene.one.drop(ANYBODY, f"r/$subscriptions/{one.id}")
        assert scene.one.directory.subscriptions("r") == []
        two = await scene.one.subscribe(ANYBODY, "r", "http://localhost/2", id="two")
        await scene.one.drop(ANYBODY, "r")
        assert scene.one.directory.find(f"r/$subscriptions/{two.id}") is None

    run(check)


def test_a_url_is_called_only_where_the_operator_allows_it() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        await scene.one.give(ANYBODY, "q", policy())
        for url in ("https://example.org/hook", "http://10.0.0.1/", "http://a:b@localhost/"):
            with pytest.raises(ServiceError):
                await scene.one.subscribe(ANYBODY, "r", url)
        with pytest.raises(ServiceError, match="push_allow"):
            await scene.one.subscribe(ANYBODY, "r", "https://example.org/hook")
        assert scene.one.directory.subscriptions("r") == []
        made = await scene.one.subscribe(ANYBODY, "r", "http://localhost/hook")
        with pytest.raises(ServiceError, match="a URL can't become a name"):
            await scene.one.subscribe(ANYBODY, "r", "q", id=made.id, replace_it=True)

    run(check)


def test_a_router_with_more_subscriptions_than_a_transaction_takes_goes_with_all_of_them() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        await scene.one.give(ANYBODY, "q", policy())
        for number in range(2 * WRITES_MAX + 1):
            await scene.one.subscribe(ANYBODY, "r", "q", id=f"s{number}")
        scene.two.directory.refresh()
        await scene.one.drop(ANYBODY, "r")
        assert [each.key for each in await scene.coordinator.entries("names/")] == ["names/q"]
        assert await scene.coordinator.entries("subscriptions/") == []

    run(check)


def test_a_router_has_at_most_so_many_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SUBSCRIPTIONS_MAX", 2)

    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        await scene.one.give(ANYBODY, "q", policy())
        for id in ("a", "b"):
            await scene.one.subscribe(ANYBODY, "r", "q", id=id)
        with pytest.raises(LimitExceededError, match="r has 2 subscriptions"):
            await scene.one.subscribe(ANYBODY, "r", "q", id="c")
        await scene.one.subscribe(ANYBODY, "r", "q", id="b", replace_it=True)

    run(check)


def test_filters_of_all_subscriptions_have_at_most_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "FILTERS_BYTES_MAX", 200)

    def sql(length: int) -> dict[str, str]:
        """Of so many bytes as JSON, in the list in which it is counted."""
        return {"sql": "a='" + "x" * (length - 17) + "'"}

    async def check(scene: Scene) -> None:
        for router in "rs":
            await scene.one.give(ANYBODY, router, policy("router"))
        await scene.one.give(ANYBODY, "q", policy())
        await scene.one.subscribe(ANYBODY, "r", "q", id="one", filter=sql(100))
        await scene.one.subscribe(ANYBODY, "s", "q", id="two", rules={"a": {"filter": sql(60)}})
        with pytest.raises(LimitExceededError) as caught:
            await scene.two.subscribe(ANYBODY, "r", "q", id="three", filter=sql(40))
        assert str(caught.value) == (
            "filters, actions and rules of all subscriptions have at most 200 bytes as JSON: these have 40, "
            "and all others 179"
        )
        # One without a filter is made, and one that becomes smaller is replaced.
        await scene.two.subscribe(ANYBODY, "r", "q", id="all")
        await scene.two.subscribe(ANYBODY, "r", "q", id="one", filter=sql(80), replace_it=True)
        await scene.two.unsubscribe(ANYBODY, "s", "two")
        await scene.one.subscribe(ANYBODY, "r", "q", id="three", filter=sql(120))
        assert scene.one.directory.filter_bytes == 200
        await scene.one.drop(ANYBODY, "r")
        assert scene.one.directory.filter_bytes == 0

    run(check)
