"""Rules of a subscription: their form, their bounds, and changes of single ones."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lightrail.filters.errors import FilterError
from lightrail.model import limits
from lightrail.namespace import rule_changes
from lightrail.namespace.errors import (
    ChangedError,
    LimitExceededError,
    MissingError,
    ServiceError,
    TakenError,
)
from lightrail.namespace.records import Subscription
from lightrail.namespace.rights import ANYBODY, Caller, ForbiddenError
from lightrail.namespace.rule_changes import add_rule, remove_rule, replace_rule
from lightrail.namespace.rules import DEFAULT, check_rules, fields_of, rules_of
from tests.support.routers import Graph

RED = {"filter": {"properties": {"application-properties.colour": "red"}}}
DEAR: dict[str, Any] = {"filter": {"sql": "price > 100"}, "action": {"set": {"subject": "dear"}}}


def test_one_filter_and_one_action_are_the_default_rule() -> None:
    found = Subscription("r", "s", "q", filter=DEAR["filter"], action=DEAR["action"])
    assert rules_of(found) == {DEFAULT: DEAR}
    assert fields_of(rules_of(found)) == {**DEAR, "rules": None}


@pytest.mark.parametrize("rules", [{}, {"red": RED}, {DEFAULT: RED, "dear": DEAR}])
def test_other_rules_are_stored_as_they_are(rules: dict[str, Any]) -> None:
    assert fields_of(rules) == {"filter": None, "action": None, "rules": rules}


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ([], "an object of rules by name"),
        ({"a": None}, "rules.'a': expected an object"),
        ({"a": {"else": 1}}, "no other keys"),
        ({"a": {"filter": {"sql": "a ="}}}, "rules.'a'.sql"),
        ({"a": {"action": {}}}, "1 to 64 fields"),
        ({"": {}}, "a name without a slash"),
        ({"a/b": {}}, "a name without a slash"),
        ({"!a": {}}, "a name without a slash"),
    ],
)
def test_rules_that_cannot_be_used_are_refused(rules: Any, text: str) -> None:
    with pytest.raises(FilterError, match=text):
        check_rules(rules)


def test_rules_are_bounded() -> None:
    check_rules({f"r{number}": {} for number in range(limits.RULES_MAX)})
    with pytest.raises(LimitExceededError, match="at most 100 rules"):
        check_rules({f"r{number}": {} for number in range(limits.RULES_MAX + 1)})
    large = {"filter": {"properties": {"application-properties.a": "x" * (limits.RULES_BYTES_MAX // 2)}}}
    check_rules({"one": large})
    with pytest.raises(LimitExceededError, match=f"at most {limits.RULES_BYTES_MAX} bytes"):
        check_rules({"one": large, "two": large})


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


def test_a_subscription_has_rules_or_a_filter() -> None:
    async def check(graph: Graph) -> None:
        with pytest.raises(ServiceError, match="found both"):
            await graph.subscribe("r", "q", filter={"subject": "a"}, rules={"red": RED})
        with pytest.raises(ServiceError, match=r"rules\.'red'"):
            await graph.subscribe("r", "q", rules={"red": {"filter": {}}})
        with pytest.raises(ChangedError):
            await graph.subscribe("r", "q", id="s", replace_it=True, revision=1)

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
        assert len(attempts) == rule_changes.ATTEMPTS

    scene(check)
