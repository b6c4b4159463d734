"""Routing by rules: how many messages a queue gets of one that several rules of its subscription match."""

from proton import Message

from lightrail.namespace.rules import Compiled
from tests.unit.namespace.test_routing import Scene, message, run

COLOUR = {"filter": {"properties": {"application-properties.colour": "red"}}}
PRICE = {"filter": {"sql": "price > 100"}}
DEAR = {**PRICE, "action": {"set": {"subject": "dear"}}}
RED = {**COLOUR, "action": {"set": {"subject": "red"}}}


def test_a_queue_gets_a_message_once_for_all_rules_without_an_action() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.queue("a", "b")
        await scene.subscribe("r", "a", rules={"colour": COLOUR, "price": PRICE})
        await scene.subscribe("r", "b")
        both, red, neither = message(colour="red", price=200), message(colour="red"), message()
        found = scene.route(both, red, neither)
        assert found == {"a": [both, red], "b": [both, red, neither]}

    run(check)


def test_each_rule_with_an_action_makes_a_message_of_its_own() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.queue("a")
        await scene.subscribe("r", "a", rules={"plain": COLOUR, "dear": DEAR, "red": RED})
        found = scene.route(message(colour="red", price=200), message(price=200), message())
        subjects = []
        for payload in found["a"]:
            decoded = Message()
            decoded.decode(payload)
            subjects.append(decoded.subject)
        assert sorted(subjects, key=str) == [None, "dear", "dear", "red"]
        assert len(found["nobody"]) == 1

    run(check)


def test_without_any_rule_nothing_matches() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.queue("a")
        await scene.subscribe("r", "a", rules={})
        assert scene.route(message()) == {"nobody": [message()]}

    run(check)


def test_rules_lead_to_routers_as_well() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.router("inner")
        await scene.queue("a")
        await scene.subscribe("r", "inner", rules={"colour": COLOUR, "price": PRICE})
        await scene.subscribe("inner", "a", filter={"sql": "number = 1"})
        one, other = message(colour="red", number=1), message(colour="red", number=2)
        assert scene.route(one, other) == {"a": [one], "nobody": [other]}

    run(check)


def test_a_changed_subscription_compiles_what_has_changed_alone() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.queue("a")
        rules = {f"n{number}": {"filter": {"sql": f"number = {number}"}} for number in range(3)}
        made = await scene.subscribe("r", "a", id="s", rules=rules)
        before = Compiled(made)
        more = {**rules, "n1": {"filter": {"sql": "number = 7"}}, "n3": COLOUR}
        changed = await scene.subscribe("r", "a", id="s", rules=more, replace_it=True)
        after = Compiled(changed, before)
        assert [one is other for one, other in zip(before.rules, after.rules, strict=False)] == [
            True,
            False,
            True,
        ]
        assert 0 < after.new_weight < before.new_weight
        assert scene.route(message(number=7), message(colour="red"), message(number=1))["a"] == [
            message(number=7),
            message(colour="red"),
        ]

    run(check)
