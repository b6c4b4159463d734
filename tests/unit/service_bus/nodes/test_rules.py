"""Rules over TOPIC/Subscriptions/NAME/$management: as clients send them, and as they are listed."""

from typing import Any

import pytest

from lightrail.amqp.messages import Message
from lightrail.amqp.values import Described, Int, ULong
from lightrail.model import limits
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY, Caller
from lightrail.namespace.rules import rules_of
from lightrail.service_bus.spelling import PART_CHARACTERS_MAX
from tests.support.amqp.frontend_scene import Scene, play
from tests.support.amqp.requests import Requester

NODE = "topic/Subscriptions/mine/$management"
ADD, REMOVE = "com.microsoft:add-rule", "com.microsoft:remove-rule"
LIST = "com.microsoft:enumerate-rules"
EMPTY = Described(ULong(0x13700000005), [])


async def requester_at(scene: Scene, node: str = NODE) -> Requester:
    service = scene.frontend.service
    await service.give(ANYBODY, "topic", Policy.parse({"role": "router"}))
    await service.give(ANYBODY, "q", Policy.parse({"role": "queue"}))
    await service.subscribe(ANYBODY, "topic", "q", id="mine")
    return await Requester.attach(scene.client(), node)


def stored(scene: Scene) -> Any:
    found = scene.frontend.directory.subscription("topic", "mine")
    assert found is not None
    return rules_of(found)


def rule(name: str, **description: Any) -> dict[str, Any]:
    """The body of add-rule; an underscore in a key stands for a hyphen."""
    described = {key.replace("_", "-"): value for key, value in description.items()}
    return {"rule-name": name, "rule-description": described}


def listed(answer: Message) -> list[Any]:
    assert answer.application["statusCode"] == 200, answer.application
    return [each["rule-description"] for each in answer.body["rules"]]


def test_rules_are_added_listed_and_removed() -> None:
    async def test(scene: Scene) -> None:
        requester = await requester_at(scene)
        correlation = {"label": "a", "to": None, "properties": {"n": Int(1)}}
        for body in (
            rule("sql", sql_filter={"expression": "a = 1"}, sql_rule_action={"expression": "SET b = A / 2"}),
            rule(
                "with",
                sql_filter={"expression": "a = @a", "parameters": {"@a": Int(1)}},
                sql_rule_action={"expression": "SET b = @b", "parameters": {"@b": "c"}},
            ),
            rule("equal", correlation_filter=correlation),
            rule("all", true_filter={}),
            rule("none", false_filter={}),
            rule("without"),
        ):
            assert (await requester.ask(body, operation=ADD)).application["statusCode"] == 200
        removed = await requester.ask({"rule-name": "$Default"}, operation=REMOVE)
        assert removed.application["statusCode"] == 200
        kept = {
            name: {key: rule[key] for key in ("filter", "action")} for name, rule in stored(scene).items()
        }
        assert kept == {
            "sql": {"filter": {"rule": {"sql": "a = 1"}}, "action": {"rule": {"sql": "SET b = A / 2"}}},
            "with": {
                "filter": {"rule": {"sql": "a = @a", "parameters": {"@a": {"int": "1"}}}},
                "action": {"rule": {"sql": "SET b = @b", "parameters": {"@b": "c"}}},
            },
            "equal": {
                "filter": {"rule": {"correlation": {"label": "a"}, "properties": {"n": {"int": "1"}}}},
                "action": None,
            },
            "all": {"filter": None, "action": None},
            "none": {"filter": {"sql": "1=0"}, "action": None},
            "without": {"filter": None, "action": None},
        }
        assert {rule["created_at_ms"] for rule in stored(scene).values()} == {scene.frontend.now_ms()}
        found = listed(await requester.ask({"top": 10, "skip": 0}, operation=LIST))
        assert {each.descriptor for each in found} == {0x13700000004}
        assert {each.value[3] for each in found} == {scene.frontend.now_ms()}
        shown = {each.value[2]: each.value[:2] for each in found}
        action = Described(ULong(0x13700000006), ["SET b = A / 2"])
        assert shown["sql"] == [Described(ULong(0x1370000006), ["a = 1"]), action]
        action = Described(ULong(0x13700000006), ["SET b = @b"])
        assert shown["with"] == [Described(ULong(0x1370000006), ["a = @a"]), action]
        fields = [None, None, None, None, "a", None, None, None, {"n": 1}]
        assert shown["equal"] == [Described(ULong(0x1370000009), fields), EMPTY]
        assert type(shown["equal"][0].value[8]["n"]) is Int
        assert shown["all"] == shown["without"] == [Described(ULong(0x1370000007), []), EMPTY]
        assert shown["none"] == [Described(ULong(0x1370000008), []), EMPTY]
        page = listed(await requester.ask({"top": 2, "skip": 1}, operation=LIST))
        assert [each.value[2] for each in page] == ["with", "equal"]

    play(test)


ARGUMENT = "com.microsoft:argument-error"


@pytest.mark.parametrize(
    ("operation", "body", "status", "condition", "text"),
    [
        (ADD, rule("$Default"), 409, "com.microsoft:entity-already-exists", "already"),
        (REMOVE, {"rule-name": "none"}, 404, "amqp:not-found", "no rule 'none'"),
        (ADD, {"rule-name": "a", "rule-description": {"rule-name": "b"}}, 400, ARGUMENT, "expected 'a'"),
        (ADD, {"rule-name": "", "rule-description": {}}, 400, ARGUMENT, "the name of a rule"),
        (REMOVE, {}, 400, ARGUMENT, "the name of a rule"),
        (ADD, {"rule-name": "a"}, 400, ARGUMENT, "rule-description is None"),
        (ADD, rule("a", other_filter={}), 400, ARGUMENT, "expected one of sql-filter"),
        (ADD, rule("a", true_filter={}, false_filter={}), 400, ARGUMENT, "expected one of sql-filter"),
        (ADD, rule("a", sql_filter={}), 400, ARGUMENT, "a map with expression"),
        (ADD, rule("a", sql_filter="x"), 400, ARGUMENT, "a map with expression"),
        (ADD, rule("a", sql_filter={"expression": "a ="}), 400, ARGUMENT, "can't be used"),
        (ADD, rule("a", sql_rule_action={"expression": "SET a ="}), 400, ARGUMENT, "a constant"),
        (ADD, rule("a", sql_filter={"expression": "a = @b"}), 400, ARGUMENT, "can't be used"),
        (
            ADD,
            rule("a", sql_filter={"expression": "a = @b", "parameters": {"@c": 1}}),
            400,
            ARGUMENT,
            "a value for every parameter",
        ),
        (
            ADD,
            rule("a", sql_filter={"expression": "a = @b", "parameters": "x"}),
            400,
            ARGUMENT,
            "expected a map",
        ),
        (ADD, rule("a", correlation_filter="x"), 400, ARGUMENT, "expected a map"),
        (ADD, rule("a", correlation_filter={"properties": 1}), 400, ARGUMENT, "expected a map"),
        (ADD, rule("a", correlation_filter={}), 400, ARGUMENT, "at least one field"),
        (ADD, rule("a/b"), 400, ARGUMENT, "a name without a slash"),
        (LIST, {"top": -1}, 400, ARGUMENT, "top is -1"),
        (LIST, {"skip": "x"}, 400, ARGUMENT, "skip is 'x'"),
    ],
)
def test_what_cannot_be_done_says_why(
    operation: str, body: Any, status: int, condition: str, text: str
) -> None:
    async def test(scene: Scene) -> None:
        requester = await requester_at(scene)
        found = (await requester.ask(body, operation=operation)).application
        assert text in found["statusDescription"]
        assert (found["statusCode"], found["errorCondition"]) == (status, condition)
        assert list(stored(scene)) == ["$Default"]

    play(test)


@pytest.mark.parametrize(
    "node", [NODE, "q/$management", "topic/$management", "topic/Subscriptions/no/$management"]
)
def test_a_client_without_the_right_gets_no_information_about_subscriptions(node: str) -> None:
    async def test(scene: Scene) -> None:
        requester = await requester_at(scene, node)
        scene.connections[0].client.caller = Caller("eve")
        for operation in (ADD, REMOVE, LIST):
            found = (await requester.ask(rule("r"), operation=operation)).application
            assert (found["statusCode"], found["errorCondition"]) == (403, "amqp:unauthorized-access")

    play(test)


@pytest.mark.parametrize("node", ["q/$management", "topic/$management", "topic/Subscriptions/no/$management"])
def test_only_subscriptions_have_rules(node: str) -> None:
    async def test(scene: Scene) -> None:
        requester = await requester_at(scene, node)
        assert (await requester.ask({}, operation=LIST)).application["statusCode"] == 404

    play(test)


def test_the_name_of_a_rule_is_as_long_as_in_service_bus() -> None:
    async def test(scene: Scene) -> None:
        requester = await requester_at(scene)
        name = "r" * PART_CHARACTERS_MAX
        assert (await requester.ask(rule(name), operation=ADD)).application["statusCode"] == 200
        found = (await requester.ask(rule(f"{name}r"), operation=ADD)).application
        assert found["statusCode"] == 400
        assert f"at most {PART_CHARACTERS_MAX}" in found["statusDescription"]

    play(test)


def test_a_subscription_has_so_many_rules() -> None:
    async def test(scene: Scene) -> None:
        requester = await requester_at(scene)
        rules = {f"r{number}": {"filter": None} for number in range(limits.RULES_MAX)}
        service = scene.frontend.service
        await service.subscribe(ANYBODY, "topic", "q", id="mine", rules=rules, replace_it=True)
        found = (await requester.ask(rule("more"), operation=ADD)).application
        assert found["statusCode"] == 403
        assert found["errorCondition"] == "amqp:resource-limit-exceeded"
        assert f"at most {limits.RULES_MAX} rules" in found["statusDescription"]

    play(test)
