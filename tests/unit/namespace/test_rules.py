"""Rules of a subscription: their form and their bounds."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lightrail.filters.errors import FilterError
from lightrail.model import limits
from lightrail.namespace.records import Subscription
from lightrail.namespace.rules import DEFAULT, RULES_BYTES_MAX, check_rules, created_at, fields_of, rules_of
from lightrail.namespace.statuses import ChangedError, LimitExceededError, ServiceError
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
    with pytest.raises(LimitExceededError, match=f"at most {limits.RULES_MAX} rules"):
        check_rules({f"r{number}": {} for number in range(limits.RULES_MAX + 1)})
    large = {"filter": {"properties": {"application-properties.a": "x" * (RULES_BYTES_MAX // 2)}}}
    check_rules({"one": large})
    with pytest.raises(LimitExceededError, match=f"at most {RULES_BYTES_MAX} bytes"):
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


def test_a_subscription_has_rules_or_a_filter() -> None:
    async def check(graph: Graph) -> None:
        with pytest.raises(ServiceError, match="found both"):
            await graph.subscribe("r", "q", filter={"subject": "a"}, rules={"red": RED})
        with pytest.raises(ServiceError, match=r"rules\.'red'"):
            await graph.subscribe("r", "q", rules={"red": {"filter": {}}})
        with pytest.raises(ChangedError):
            await graph.subscribe("r", "q", id="s", replace_it=True, revision=1)

    scene(check)


def test_rules_that_were_checked_are_not_checked_again() -> None:
    # What was stored by another version may be kept, and is no obstacle to a change of another rule.
    strange = {"filter": {"of a later version": 1}}
    check_rules({"strange": strange, "new": {"filter": None}}, {"strange": dict(strange)})
    with pytest.raises(FilterError, match=r"rules\.'strange'"):
        check_rules({"strange": strange, "new": {"filter": None}}, {"strange": {"filter": None}})


def test_a_rule_may_say_when_it_was_created() -> None:
    rule = {"filter": None, "created_at_ms": 5}
    check_rules({"a": rule})
    assert (created_at(rule, 1), created_at({"filter": None}, 1)) == (5, 1)
    assert fields_of({"$Default": rule})["rules"] == {"$Default": rule}
    for bad in (-1, "x", True, 1 << 53):
        with pytest.raises(FilterError, match="created_at_ms"):
            check_rules({"a": {**rule, "created_at_ms": bad}})
