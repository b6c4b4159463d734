"""Changes of single rules of a subscription, by several clients at once, and by those who may not."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lightrail.namespace.records import Subscription
from lightrail.namespace.rights import ANYBODY, Caller, ForbiddenError
from lightrail.namespace.rules import DEFAULT, rules_of
from lightrail.namespace.statuses import ChangedError, MissingError, TakenError
from lightrail.service_bus.rules import changes
from lightrail.service_bus.rules.changes import add_rule, remove_rule, replace_rule
from tests.support.routers import Graph

RED = {"filter": {"properties": {"application-properties.colour": "red"}}}
DEAR: dict[str, Any] = {"filter": {"sql": "price > 100"}, "action": {"set": {"subject": "dear"}}}


LATE: dict[str, Any] = {"filter": None, "action": {"rule": {"sql": "SET sys.ScheduledEnqueueTimeUtc = due"}}}
CANCELS: dict[str, Any] = {"filter": None, "action": {"rule": {"sql": "REMOVE sys.ScheduledEnqueueTimeUtc"}}}


def scene(check: Callable[[Graph], Awaitable[None]]) -> None:
    async def run() -> None:
        graph = Graph()
        await graph.coordinator.set_shards(1)
        await graph.queue("q")
        await graph.router("r")
        await graph.subscribe("r", "q", id="s")
        await check(graph)

    asyncio.run(run())


def found_in(graph: Graph) -> dict[str, Any]:
    found = graph.directory.subscription("r", "s")
    assert found is not None
    return rules_of(found)


def test_rules_come_and_go_one_by_one() -> None:
    async def check(graph: Graph) -> None:
        service = graph.service
        await add_rule(service, ANYBODY, "r", "s", "red", RED)
        await add_rule(service, ANYBODY, "r", "s", "dear", DEAR)
        assert list(found_in(graph)) == [DEFAULT, "red", "dear"]
        await replace_rule(service, ANYBODY, "r", "s", "red", DEAR)
        await remove_rule(service, ANYBODY, "r", "s", DEFAULT)
        assert found_in(graph) == {"red": DEAR, "dear": DEAR}
        with pytest.raises(TakenError):
            await add_rule(service, ANYBODY, "r", "s", "red", RED)
        with pytest.raises(MissingError):
            await remove_rule(service, ANYBODY, "r", "s", "none")
        with pytest.raises(MissingError):
            await replace_rule(service, ANYBODY, "r", "s", "none", RED)
        for name in ("red", "dear"):
            await remove_rule(service, ANYBODY, "r", "s", name)
        assert found_in(graph) == {}
        (entry,) = await graph.coordinator.entries("subscriptions/")
        assert Subscription.read(entry).rules == {}
        await add_rule(service, ANYBODY, "r", "s", DEFAULT, RED)
        found = graph.directory.subscription("r", "s")
        assert found is not None
        assert (found.filter, found.rules) == (RED["filter"], None)

    scene(check)


def test_two_changes_at_once_are_both_made() -> None:
    async def check(graph: Graph) -> None:
        await asyncio.gather(
            *(add_rule(graph.service, ANYBODY, "r", "s", f"r{number}", RED) for number in range(5))
        )
        assert len(found_in(graph)) == 6

    scene(check)


def test_who_does_not_manage_the_router_changes_no_rule() -> None:
    async def check(graph: Graph) -> None:
        with pytest.raises(ForbiddenError):
            await add_rule(graph.service, Caller("eve"), "r", "s", "red", RED)
        with pytest.raises(MissingError):
            await add_rule(graph.service, ANYBODY, "r", "none", "red", RED)

    scene(check)


def test_a_change_that_always_comes_too_late_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(graph: Graph) -> None:
        attempts = []

        async def late(*_: Any, **__: Any) -> Subscription:
            attempts.append(1)
            raise ChangedError("somebody else")

        monkeypatch.setattr(graph.service, "subscribe", late)
        with pytest.raises(ChangedError):
            await add_rule(graph.service, ANYBODY, "r", "s", "red", RED)
        assert len(attempts) == changes.ATTEMPTS

    scene(check)


@pytest.mark.parametrize("change", [add_rule, replace_rule])
def test_the_queue_of_a_rule_that_schedules_delays_messages_before_there_is_the_rule(
    change: Callable[..., Awaitable[Subscription]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(graph: Graph) -> None:
        def delays() -> bool:
            return bool(graph.directory.get("q").policy["delay"])

        await change(graph.service, ANYBODY, "r", "s", "new" if change is add_rule else DEFAULT, CANCELS)
        assert not delays()
        subscribe, change_policy, seen = graph.service.subscribe, graph.service.change, []

        async def subscribed(*args: Any, **options: Any) -> Subscription:
            seen.append(delays())
            return await subscribe(*args, **options)

        async def changed(*args: Any) -> Any:
            if len(seen) < 2:
                # Somebody else has changed the policy at the same time.
                seen.append(delays())
                raise ChangedError("somebody else")
            return await change_policy(*args)

        monkeypatch.setattr(graph.service, "subscribe", subscribed)
        monkeypatch.setattr(graph.service, "change", changed)
        await change(graph.service, ANYBODY, "r", "s", "late" if change is add_rule else DEFAULT, LATE)
        assert seen == [False, False, True]
        await remove_rule(graph.service, ANYBODY, "r", "s", "late" if change is add_rule else DEFAULT)
        assert delays()

    scene(check)


def test_who_may_not_add_a_rule_makes_no_queue_delay_messages() -> None:
    async def check(graph: Graph) -> None:
        with pytest.raises(ForbiddenError):
            await add_rule(graph.service, Caller("eve"), "r", "s", "late", LATE)
        assert not graph.directory.get("q").policy["delay"]
        await graph.router("inner")
        await graph.subscribe("r", "inner", id="t")
        await add_rule(graph.service, ANYBODY, "r", "t", "late", LATE)
        assert not graph.directory.get("inner").policy.to_json().get("delay")

    scene(check)
