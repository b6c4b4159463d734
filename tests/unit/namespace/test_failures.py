"""Failures of rules: a message for which one has no result becomes a dead letter, or is dropped."""

from typing import Any
from uuid import uuid4

import pytest

from lightrail.amqp.sections import decode_annotations
from lightrail.filters.errors import EvaluationError
from lightrail.filters.rules.rule_action import compile_rule_action
from lightrail.model import limits
from lightrail.model.policy import Policy
from lightrail.namespace.ages import NEVER, expiry
from lightrail.namespace.failures import FAILURE_CHARACTERS_MAX, REASON, noted
from lightrail.namespace.rights import ANYBODY
from tests.unit.namespace.test_routing import Scene, message, run

FILTER = {"filter": {"rule": {"sql": "10 / price = 5"}}}
ACTION = {"filter": None, "action": {"rule": {"sql": "SET share = 10 / price"}}}


def notes_of(payload: bytes) -> dict[str, Any]:
    found = decode_annotations(payload)
    return {str(key).removeprefix("x-opt-dead-letter-"): value for key, value in found.items()}


@pytest.mark.parametrize("rule", [FILTER, ACTION])
def test_a_message_without_a_result_is_a_dead_letter_of_the_queue(rule: Any) -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.queue("a", "b")
        await scene.subscribe("r", "a", rules={"it": rule})
        await scene.subscribe("r", "b")
        bad, good = message(price=0), message(price=2)
        found = scene.route(bad, good)
        assert found.keys() == {"a", "b", "a/$dlq"}
        assert found["b"] == [bad, good]
        assert len(found["a"]) == 1
        (dead,) = found["a/$dlq"]
        notes = notes_of(dead)
        assert notes["reason"] == REASON
        assert notes["source"] == "a"
        assert "division by zero" in notes["description"]
        assert notes["time"] > 0
        # Other rules of the subscription, and other subscriptions, are evaluated as ever.
        assert dead.endswith(bad[-6:])

    run(check)


@pytest.mark.parametrize("rule", [FILTER, ACTION])
def test_a_subscription_may_drop_them(rule: Any) -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.queue("a")
        await scene.subscribe("r", "a", rules={"it": rule}, drop_failed=True)
        bad = message(price=0)
        assert scene.route(bad) == {"nobody": [bad]}
        assert len(scene.route(message(price=2))["a"]) == 1

    run(check)


@pytest.mark.parametrize("rule", [FILTER, ACTION])
def test_they_wait_in_the_queues_own_dead_letters_for_the_gateway_that_forwards_those(rule: Any) -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.router("failed")
        await scene.queue("c", "d")
        for queue, target in (("a", "c"), ("b", "failed")):
            policy = Policy.parse({"role": "queue", "dead_letter": target})
            await scene.service.give(ANYBODY, queue, policy)
        await scene.subscribe("failed", "d")
        await scene.subscribe("r", "a", rules={"it": rule})
        await scene.subscribe("r", "b", rules={"it": rule})
        found = scene.route(message(price=0))
        sources = {queue: notes_of(each[0])["source"] for queue, each in found.items()}
        assert sources == {"a/$dlq": "a", "b/$dlq": "b"}

    run(check)


def test_a_message_that_returns_is_counted_as_a_dead_letter_each_time() -> None:
    first = noted(message(), "a", "x")
    assert [notes_of(each)["count"] for each in (first, noted(first, "a", "x"))] == [1, 2]


def test_what_cannot_fail_makes_no_edge_for_failures() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.queue("a")
        await scene.subscribe("r", "a", rules={"it": {"filter": {"rule": {"sql": "Price = 2"}}}})
        assert scene.route(message(price=2)) == {"a": [message(price=2)]}
        plan = scene.plan("r")
        assert not plan.ages_ms
        assert plan.names == {"r", "a"}

    run(check)


@pytest.mark.parametrize("is_forwarded", [False, True])
def test_what_an_action_makes_too_large_for_its_queue_is_a_dead_letter_and_no_refusal(
    is_forwarded: bool,
) -> None:
    """Its queue would refuse it, when others have stored the message already."""

    async def check(scene: Scene) -> None:
        await scene.router("r")
        small = {"role": "queue", "max_message_bytes": 200}
        name = "end" if is_forwarded else "a"
        if is_forwarded:
            await scene.service.give(ANYBODY, "end", Policy.parse(small))
            small = {"role": "queue", "forward_to": "end"}
        await scene.service.give(ANYBODY, "a", Policy.parse(small))
        await scene.queue("b")
        text = "SET note = '{}'".format("x" * 120)
        await scene.subscribe("r", "a", rules={"it": {"filter": None, "action": {"rule": {"sql": text}}}})
        await scene.subscribe("r", "b")
        fits, large = message(price=2), message(price=2, text="y" * 60)
        found = scene.route(fits, large)
        assert [len(each) for each in found[name]] == [len(found[name][0])]
        assert len(found[name][0]) <= 200
        assert found["b"] == [fits, large]
        (dead,) = found["a/$dlq"]
        assert "bytes; its queue takes at most 200" in notes_of(dead)["description"]

    run(check)


LARGER = {"filter": None, "action": {"rule": {"sql": "SET note = '{}'".format("x" * 120)}}}


@pytest.mark.parametrize("drops", [False, True])
def test_each_queue_behind_a_second_router_takes_what_an_action_has_made_or_not(drops: bool) -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.router("inner")
        await scene.router("small_router", max_message_bytes=150)
        for name, most in (("small", 200), ("large", 1_000)):
            await scene.service.give(
                ANYBODY, name, Policy.parse({"role": "queue", "max_message_bytes": most})
            )
        await scene.queue("other", "behind", "beside")
        await scene.subscribe("r", "inner", rules={"it": LARGER})
        await scene.subscribe("r", "small_router", rules={"it": LARGER})
        await scene.subscribe("r", "beside")
        for name in ("small", "large", "other"):
            await scene.subscribe("inner", name, drop_failed=drops)
        await scene.subscribe("small_router", "behind", drop_failed=drops)
        sent = message(price=2, text="y" * 60)
        found = scene.route(sent)
        lost = set() if drops else {"small/$dlq", "behind/$dlq"}
        assert found.keys() == {"large", "other", "beside"} | lost
        assert found["beside"] == [sent]
        for name, most in (("small", 200), ("behind", 150)):
            for dead in found.get(f"{name}/$dlq", ()):
                # The message as it came, and not what the action has made of it.
                assert b"x" * 120 not in dead
                assert f"its queue takes at most {most}" in notes_of(dead)["description"]
        # A message that is as large without an action is none of these.
        await scene.subscribe("r", "small")
        assert scene.route(message(text="z" * 300))["small"] == [message(text="z" * 300)]

    run(check)


def test_of_several_ways_to_a_queue_the_widest_counts_and_each_router_of_a_way() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        for name, most in (("small", 150), ("behind", 1_000)):
            await scene.router(name, max_message_bytes=most)
        await scene.queue("a", "b")
        await scene.subscribe("r", "small", rules={"it": LARGER})
        await scene.subscribe("small", "behind")
        await scene.subscribe("behind", "a")
        await scene.subscribe("behind", "b")
        await scene.subscribe("r", "a", rules={"it": LARGER})
        bounds = scene.plan("r").bounds
        assert {queue: each.bytes_max for queue, each in bounds.items()} == {"b": 150}
        found = scene.route(message(price=2, text="y" * 60))
        assert found.keys() == {"a", "b/$dlq"}
        assert len(found["a"][0]) > 150

    run(check)


def test_without_an_action_of_a_rule_no_queue_is_bounded_here() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.service.give(ANYBODY, "a", Policy.parse({"role": "queue", "max_message_bytes": 200}))
        await scene.subscribe("r", "a", rules={"it": FILTER})
        assert scene.plan("r").bounds == {}

    run(check)


def test_no_action_makes_a_message_larger_than_the_broker_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    action = compile_rule_action(
        {"sql": "SET b = a; " + "; ".join(f"SET c{n} = a" for n in range(60))}, uuid4
    )
    sent = bytes(message(a="x" * 1_000))
    assert len(action.apply(sent, 0)) > 60_000
    monkeypatch.setattr(limits, "MAX_MESSAGE_BYTES", 5_000)
    with pytest.raises(EvaluationError, match=r"makes a message of \d+ bytes; expected at most 5000"):
        action.apply(sent, 0)
    monkeypatch.setattr(limits, "MAX_MESSAGE_BYTES", 10)
    # What was larger before may become smaller.
    removing = compile_rule_action({"sql": "REMOVE a"}, uuid4)
    assert len(removing.apply(sent, 0)) < 100
    # What counts is the message in the end, and not what it is between two statements.
    renaming = compile_rule_action({"sql": "SET b = a; REMOVE a"}, uuid4)
    assert len(renaming.apply(sent, 0)) == len(sent)


def test_failures_of_rules_do_not_expire() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r", max_age=5)
        await scene.queue("a")
        await scene.subscribe("r", "a", rules={"it": FILTER})
        assert scene.plan("r").ages_ms == {"a": 5_000, "a/$dlq": NEVER}

    run(check)
    assert [expiry(9_000, 1_000, age) for age in (None, 5_000, 20_000, NEVER)] == [9_000, 6_000, 9_000, 0]
    assert expiry(0, 1_000, 5_000) == 6_000


def test_a_description_is_bounded_and_malformed_messages_stay() -> None:
    found = notes_of(noted(message(), "a", "x" * 5_000))
    assert len(found["description"]) == FAILURE_CHARACTERS_MAX
    assert noted(b"\x00\x53\x74", "a", "x") == b"\x00\x53\x74"
