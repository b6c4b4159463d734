"""Routing by rules: how many messages a queue gets of one that several rules of its subscription match."""

from typing import Any

from proton import Message

from lightrail.amqp.sections import decode_header
from lightrail.namespace.ages import NEVER, OWN, life_of_copy
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


def test_each_action_of_service_bus_makes_a_message_with_the_name_of_its_rule() -> None:
    """Documented by Service Bus: five matching rules, two of them with actions, make three messages."""
    same = {**COLOUR, "action": {"rule": {"sql": "SET x = 1"}}}
    removes = {**COLOUR, "action": {"rule": {"sql": "REMOVE colour"}}}
    named = {**COLOUR, "action": {"rule": {"sql": "SET RuleName = 'mine'"}}}
    empty = {**COLOUR, "action": {"rule": {"sql": ""}}}

    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.queue("a")
        rules = {"plain": COLOUR, "empty": empty, "a": same, "b": same, "gone": removes, "own": named}
        await scene.subscribe("r", "a", rules=rules)
        properties = []
        for payload in scene.route(message(colour="red"))["a"]:
            decoded = Message()
            decoded.decode(payload)
            properties.append(decoded.properties)
        assert properties == [
            {"colour": "red"},
            {"colour": "red", "RuleName": "a", "x": 1},
            {"colour": "red", "RuleName": "b", "x": 1},
            {"RuleName": "gone"},
            {"colour": "red", "RuleName": "mine"},
        ]

    run(check)


def test_a_message_that_has_the_name_of_a_rule_already_is_stored_as_often_as_one_without() -> None:
    """A client sends again what it got from the subscription; the actions change nothing of it."""
    rules = {name: {"filter": None, "action": {"rule": {"sql": "SET RuleName = 'a'"}}} for name in "ab"}

    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.router("inner")
        await scene.queue("a", "b")
        await scene.subscribe("r", "a", rules={"plain": {"filter": None}, **rules})
        await scene.subscribe("r", "inner", rules=rules)
        for target in ("b", "b"):
            await scene.subscribe("inner", target)
        first, again, same = scene.route(message())["a"]
        assert (first, again) == (message(), same)
        assert scene.route(again) == {"a": [again] * 3, "b": [again] * 2}

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


def statements(text: str, sql: str | None = None) -> dict[str, Any]:
    """A rule of Azure Service Bus with an action, and perhaps a filter."""
    filter = None if sql is None else {"rule": {"sql": sql}}
    return {"filter": filter, "action": {"rule": {"sql": text}}}


def test_copies_that_live_differently_are_groups_of_their_own_and_keep_the_order_of_their_queue() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.queue("a", "b")
        short = statements("SET sys.TimeToLive = '00:00:01'", "number = 1")
        long = statements("SET sys.TimeToLive = '00:00:02'", "number = 2")
        await scene.subscribe("r", "a", rules={"short": short, "long": long, "rest": RED})
        await scene.subscribe("r", "b")
        sent = [message(number=each, colour="red" if each == 0 else "blue") for each in (1, 1, 2, 0, 1)]
        groups, unroutable = scene.plan().route(sent)
        assert not unroutable
        of_a = [each for each in groups if each.queues == {"a"}]
        assert [each.indices for each in of_a] == [[0, 1], [2], [3], [4]]
        lives = [[life_of_copy(payload) for payload in each.payloads] for each in of_a]
        assert lives == [[1_000, 1_000], [2_000], [None], [1_000]]
        assert [decode_header(each.payloads[0]).ttl for each in of_a] == [1_000, 2_000, None, 1_000]
        of_b = [payload for each in groups if each.queues == {"b"} for payload in each.payloads]
        assert of_b == sent
        assert {life_of_copy(payload) for payload in of_b} == {None}
        assert scene.plan().ages_ms == {"a": OWN, "a/$dlq": NEVER}

    run(check)


def test_an_action_of_a_second_router_keeps_the_time_to_live_that_the_first_has_set() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.router("inner")
        await scene.queue("a", "b", "c", "d")
        await scene.subscribe("r", "inner", rules={"it": statements("SET sys.TimeToLive = '00:00:01'")})
        await scene.subscribe("inner", "a")
        await scene.subscribe("inner", "b", rules={"it": RED})
        await scene.subscribe("inner", "c", rules={"it": statements("SET a = 1; REMOVE sys.TimeToLive")})
        await scene.subscribe("inner", "d", rules={"it": statements("SET a = 1 / number")})
        found = scene.route(message(colour="red", number=0))
        lives = {queue: [life_of_copy(each) for each in payloads] for queue, payloads in found.items()}
        assert lives == {"a": [1_000], "b": [1_000], "c": [NEVER], "d/$dlq": [None]}
        ages = scene.plan().ages_ms
        assert {queue: ages[queue] for queue in "abcd"} == dict.fromkeys("abcd", OWN)
        assert ages["d/$dlq"] == NEVER

    run(check)


def test_a_message_that_can_not_be_read_lives_as_its_sender_said() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.queue("a")
        await scene.subscribe("r", "a", rules={"it": statements("SET sys.TimeToLive = '00:00:01'")})
        (payload,) = scene.route(b"no message")["a"]
        assert (payload, life_of_copy(payload)) == (b"no message", None)

    run(check)
