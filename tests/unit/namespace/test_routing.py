"""Routing: who gets which message of a batch, and when a plan is void."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proton import Message

from lightrail.cluster.coordinator import Write
from lightrail.filters.matcher import Looks
from lightrail.model import conditions
from lightrail.model.policy import Policy
from lightrail.namespace.records import Subscription
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.router_plan import Plan
from lightrail.namespace.routing import ROUTE_PATHS_MAX, Routing
from tests.support.routers import Graph


class Scene(Graph):
    """Routers, and a choice that follows a list."""

    def __init__(self) -> None:
        super().__init__()
        self.choices: list[int] = []
        self.routing = Routing(self.directory, self.choose)

    def choose(self, count: int) -> int:
        return self.choices.pop(0) % count if self.choices else 0

    def plan(self, router: str = "r") -> Plan:
        self.directory.refresh()
        plan = self.routing.plan(router, self.now_ms)
        assert plan is not None
        return plan

    def route(self, *payloads: bytes, router: str = "r") -> dict[str, list[bytes]]:
        """What each queue gets, in its order."""
        found: dict[str, list[bytes]] = {}
        routed = self.plan(router).route(list(payloads))
        for group in routed.groups:
            for queue in group.queues:
                found.setdefault(queue, []).extend(group.payloads)
        if routed.unroutable:
            found["nobody"] = [payloads[index] for index in routed.unroutable]
        return found


def run(check: Callable[[Scene], Awaitable[None]]) -> None:
    async def checked() -> None:
        scene = Scene()
        await scene.coordinator.set_shards(2)
        await check(scene)

    asyncio.run(checked())


def message(subject: str = "", **properties: object) -> bytes:
    encoded: bytes = Message(subject=subject or None, properties=properties or None, body="x").encode()
    return encoded


def test_without_filters_a_batch_is_one_group_and_no_message_is_looked_into() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.router("inner")
        await scene.queue("a", "b", "c")
        for target in ("a", "inner"):
            await scene.subscribe("r", target)
        for target in ("b", "c", "a"):
            await scene.subscribe("inner", target)
        payloads = [b"no message", b"neither"]
        (group,), unroutable = scene.plan().route(payloads)
        assert (group.queues, group.indices) == (frozenset("abc"), [0, 1])
        assert group.payloads is payloads
        assert not unroutable

    run(check)


def test_all_gives_a_message_to_every_subscription_whose_filter_matches() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.queue("red", "big", "sub", "every")
        await scene.subscribe("r", "red", filter={"properties": {"application-properties.colour": "red"}})
        await scene.subscribe("r", "big", filter={"sql": "size > 10"})
        await scene.subscribe("r", "sub", filter={"subject": "orders.*"})
        one = message("orders.new", colour="red", size=3)
        two = message("orders", colour="blue", size=30)
        three = message("other", colour="green")
        assert scene.route(one, two, three) == {"red": [one], "sub": [one], "big": [two], "nobody": [three]}
        await scene.subscribe("r", "every")
        assert scene.route(three) == {"every": [three]}

    run(check)


def test_one_gives_a_message_to_one_of_those_that_match() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r", distribution="one")
        await scene.queue("a", "b", "c")
        for target in "ab":
            await scene.subscribe("r", target)
        await scene.subscribe("r", "c", filter={"properties": {"subject": "c"}})
        plain, for_c = message("x"), message("c")
        scene.choices = [1, 0, 2, 5]
        routed = scene.plan().route([plain, plain, for_c, for_c])
        assert [(set(group.queues), group.indices) for group in routed.groups] == [
            ({"b"}, [0]),
            ({"a"}, [1]),
            ({"c"}, [2, 3]),
        ]

    run(check)


def test_one_takes_another_router_only_if_it_would_send_the_message_on() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r", distribution="one")
        await scene.router("inner")
        await scene.router("empty")
        await scene.queue("a", "b")
        await scene.subscribe("r", "inner")
        await scene.subscribe("r", "empty")
        await scene.subscribe("inner", "b", filter={"properties": {"subject": "b"}})
        assert scene.route(message("x")) == {"nobody": [message("x")]}
        await scene.subscribe("r", "a")
        scene.choices = [0, 0, 0]
        assert scene.route(message("x"), message("b")) == {"a": [message("x")], "b": [message("b")]}

    run(check)


def test_a_router_behind_a_router_has_both_filters() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.router("inner")
        await scene.queue("a", "b")
        await scene.subscribe("r", "inner", filter={"sql": "size > 10"})
        await scene.subscribe("inner", "a", filter={"properties": {"application-properties.colour": "red"}})
        await scene.subscribe("inner", "b")
        small, red, blue = message(size=1), message(size=11, colour="red"), message(size=11, colour="blue")
        assert scene.route(small, red, blue) == {"nobody": [small], "a": [red], "b": [red, blue]}

    run(check)


def test_audit_beside_competing_processors() -> None:
    """The picture of the seed: everything is audited, and one processor gets each message."""

    async def check(scene: Scene) -> None:
        await scene.router("jobs")
        await scene.router("workers", distribution="one")
        await scene.queue("audit", "w1", "w2")
        await scene.subscribe("jobs", "audit")
        await scene.subscribe("jobs", "workers")
        for worker in ("w1", "w2"):
            await scene.subscribe("workers", worker)
        jobs = [message(str(number)) for number in range(5)]
        scene.choices = [0, 1, 1, 0, 1]
        assert scene.route(*jobs, router="jobs") == {
            "audit": jobs,
            "w1": [jobs[0], jobs[3]],
            "w2": [jobs[1], jobs[2], jobs[4]],
        }

    run(check)


def test_an_action_rewrites_the_message_for_what_lies_behind_it_only() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.router("inner")
        await scene.queue("plain", "changed", "never")
        await scene.subscribe("r", "plain")
        await scene.subscribe("r", "inner", action={"set": {"subject": "new"}})
        await scene.subscribe("inner", "changed", filter={"properties": {"subject": "new"}})
        await scene.subscribe("inner", "never", filter={"properties": {"subject": "old"}})
        old = message("old")
        found = scene.route(old)
        assert found["plain"] == [old]
        assert set(found) == {"plain", "changed"}
        (changed,) = found["changed"]
        again = Message()
        again.decode(changed)
        assert (again.subject, again.body) == ("new", "x")

    run(check)


def test_a_queue_gets_each_content_of_a_message_once() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.queue("q")
        await scene.subscribe("r", "q")
        await scene.subscribe("r", "q", filter={"properties": {"subject": "x"}})
        for id in ("a1", "a2"):
            await scene.subscribe("r", "q", id=id, action={"set": {"to": "there"}})
        first, same = message("x"), message("y")
        found = scene.route(first, same)["q"]
        assert len(found) == 4
        assert found.count(first) == found.count(same) == 1
        assert len(set(found)) == 4

    run(check)


def test_an_action_that_changes_nothing_makes_no_second_message() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.queue("q")
        await scene.subscribe("r", "q")
        await scene.subscribe("r", "q", action={"remove": ["reply-to"]})
        assert scene.route(b"no message") == {"q": [b"no message"]}

    run(check)


def test_what_changes_on_the_way_makes_a_plan_void() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.router("inner")
        await scene.queue("a", "b")
        await scene.subscribe("r", "inner")
        assert scene.plan().is_empty
        found = await scene.subscribe("inner", "a")
        first = scene.plan()
        await scene.queue("unrelated")
        assert scene.plan() is first
        assert scene.route(b"m") == {"a": [b"m"]}
        await scene.subscribe("inner", "b")
        assert set(scene.route(b"m")) == {"a", "b"}
        await scene.drop("b")
        assert set(scene.route(b"m")) == {"a"}
        await scene.unsubscribe(found)
        assert scene.route(b"m") == {"nobody": [b"m"]}
        await scene.drop("r")
        scene.directory.refresh()
        assert scene.routing.plan("r", scene.now_ms) is None

    run(check)


def test_an_expired_subscription_does_not_count() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.queue("a", "b")
        await scene.subscribe("r", "a", expires_at="1970-01-01T00:00:02Z")
        await scene.subscribe("r", "b", expires_at="1970-01-01T00:00:03Z")
        assert set(scene.route(b"m")) == {"a", "b"}
        scene.now_ms = 2_000
        assert set(scene.route(b"m")) == {"b"}
        scene.now_ms = 3_000
        assert set(scene.route(b"m")) == {"nobody"}

    run(check)


def test_a_pushed_subscription_goes_to_its_own_queue() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.subscribe("r", "https://localhost/hook", id="web")
        assert scene.route(b"m") == {"r/$subscriptions/web": [b"m"]}

    run(check)


def test_a_name_that_is_no_router_has_no_plan() -> None:
    async def check(scene: Scene) -> None:
        await scene.queue("q")
        assert scene.routing.plan("q", 0) is None
        assert scene.routing.plan("nothing", 0) is None

    run(check)


def test_two_that_subscribe_to_one_another_at_once_do_not_go_round(caplog: pytest.LogCaptureFixture) -> None:
    async def check(scene: Scene) -> None:
        for name in ("r", "s"):
            await scene.router(name)
        await scene.queue("q")
        await scene.subscribe("s", "q")
        made = [Subscription("r", "1", "s"), Subscription("s", "2", "r")]
        await scene.coordinator.write([Write(each.key, each.to_value()) for each in made])
        assert scene.route(b"m") == {"q": [b"m"]}
        assert "feeds itself" in caplog.text

    run(check)


@pytest.mark.parametrize("status", ["disabled", "send_disabled"])
def test_a_disabled_router_routes_nothing_of_its_senders_and_what_another_one_sends_it(status: str) -> None:
    async def check(scene: Scene) -> None:
        await scene.queue("q")
        await scene.router("r")
        await scene.router("inner", status=status)
        await scene.subscribe("r", "inner")
        await scene.subscribe("inner", "q")
        problem = scene.plan("inner").problem
        assert problem is not None
        assert problem.condition == conditions.ENTITY_DISABLED
        plan = scene.plan("r")
        assert plan.problem is None
        assert not plan.is_empty
        await scene.router("listened", status="receive_disabled")
        await scene.subscribe("listened", "q")
        assert scene.plan("listened").problem is None

    run(check)


def test_too_many_ways_are_a_problem_that_is_said() -> None:
    async def check(scene: Scene) -> None:
        await scene.queue("q")
        await scene.router("r")
        behind = "q"
        for level in range(17):
            name = f"r{level}"
            await scene.router(name)
            for _ in range(2):
                await scene.subscribe(name, behind)
            behind = name
        await scene.subscribe("r", behind)
        plan = scene.plan()
        assert plan.is_empty
        assert plan.problem is not None
        assert plan.problem.condition == conditions.RESOURCE_LIMIT_EXCEEDED
        assert str(ROUTE_PATHS_MAX) in plan.problem.description

    run(check)


@given(
    st.lists(st.sampled_from(["a", "b", "c", "ab", "bc", "abc", ""]), max_size=40),
    st.lists(st.integers(0, 2), max_size=40),
)
def test_every_queue_gets_what_is_for_it_once_and_in_order(kinds: list[str], choices: list[int]) -> None:
    async def check(scene: Scene) -> None:
        scene.choices = choices
        await scene.router("r")
        await scene.router("any", distribution="one")
        await scene.queue("a", "b", "c", "x", "y")
        for name in "abc":
            await scene.subscribe("r", name, filter={"selector": f"kind LIKE '%{name}%'"})
        await scene.subscribe("r", "any", filter={"selector": "kind <> ''"})
        for name in "xy":
            await scene.subscribe("any", name)
        payloads = [message(str(index), kind=kind) for index, kind in enumerate(kinds)]
        found = scene.route(*payloads)
        for name in "abc":
            wanted = [payload for payload, kind in zip(payloads, kinds, strict=True) if name in kind]
            assert found.get(name, []) == wanted
        for name in "xy":
            assert found.get(name, []) == sorted(found.get(name, []), key=payloads.index)
        chosen = found.get("x", []) + found.get("y", [])
        assert sorted(chosen) == sorted(p for p, kind in zip(payloads, kinds, strict=True) if kind)
        assert found.get("nobody", []) == [p for p, kind in zip(payloads, kinds, strict=True) if not kind]

    run(check)


# --- what a turn may cost -------------------------------------------------------------------------------


def test_a_batch_stops_where_the_looks_are_used_up_and_comes_to_the_same_end() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        for number in range(40):
            await scene.queue(f"q{number}")
            expression = " OR ".join(f"x = {number + 40 * n}" for n in range(50))
            await scene.subscribe("r", f"q{number}", filter={"sql": f"{expression} OR y LIKE '%{number}_z%'"})
        payloads = [message(x=number % 2_000, y="z" * 2_000) for number in range(300)]
        plan = scene.plan()
        looks = Looks()
        walk = plan.begin(payloads, looks, 0)
        turns = 0
        while not walk.route_more():
            assert looks.left > -50_000
            looks.begin()
            turns += 1
        assert turns > 20
        assert walk.routed is not None
        whole = plan.route(payloads)
        assert [(each.queues, each.indices) for each in walk.routed.groups] == [
            (each.queues, each.indices) for each in whole.groups
        ]
        assert list(walk.routed.unroutable) == list(whole.unroutable)

    run(check)


def test_one_message_and_ten_thousand_filters_take_many_turns() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.queue("q")
        expression = " OR ".join(f"x = {n}" for n in range(20))
        for number in range(600):
            await scene.subscribe("r", "q", filter={"sql": f"{expression} OR x = {number + 100}"})
        looks = Looks()
        assert not scene.routing.prepare("r", scene.now_ms, looks)
        turns = 1
        while not scene.routing.prepare("r", scene.now_ms, looks):
            looks.begin()
            turns += 1
        assert turns > 5
        plan = scene.plan()
        looks.begin()
        walk = plan.begin([message(x=699)] * 10, looks, 0)
        steps = 1
        while not walk.route_more():
            assert looks.left > -2_000
            looks.begin()
            steps += 1
        assert steps > 1
        assert walk.routed is not None
        assert [group.queues for group in walk.routed.groups] == [{"q"}]

    run(check)


def test_a_filter_is_compiled_once_as_long_as_its_subscription_stays() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("r")
        await scene.queue("q")
        first = await scene.subscribe("r", "q", filter={"sql": "x = 1"})
        scene.plan()
        compiled = scene.routing._compiled_of(scene.directory.subscriptions("r")[0])
        second = await scene.subscribe("r", "q", filter={"sql": "x = 2"})
        scene.plan()
        assert scene.routing._compiled_of(scene.directory.subscriptions("r")[0]) is compiled
        await scene.unsubscribe(first)
        await scene.unsubscribe(second)
        scene.directory.refresh()
        assert not scene.routing._compiled

    run(check)


def test_a_plan_has_the_age_of_each_queue_behind_routers_with_one() -> None:
    async def check(scene: Scene) -> None:
        await scene.router("plain")
        await scene.router("r")
        await scene.router("short", max_age=5)
        await scene.queue("a", "b", "c")
        await scene.subscribe("r", "a")
        await scene.subscribe("r", "short")
        await scene.subscribe("short", "b")
        await scene.subscribe("plain", "c")
        assert scene.plan("plain").ages_ms == {}
        assert scene.plan().ages_ms == {"b": 5_000}
        # Of the routers on one path the least age counts, and of several paths the greatest.
        r = await scene.service.change(ANYBODY, "r", Policy.parse({"role": "router", "max_age": 7}))
        assert scene.plan().ages_ms == {"a": 7_000, "b": 5_000}
        await scene.subscribe("r", "b")
        assert scene.plan().ages_ms == {"a": 7_000, "b": 7_000}
        await scene.service.change(ANYBODY, "short", Policy.parse({"role": "router", "max_age": 9}))
        assert scene.plan("short").ages_ms == {"b": 9_000}
        assert scene.plan().ages_ms == {"a": 7_000, "b": 7_000}
        await scene.service.change(ANYBODY, "r", Policy.parse({"role": "router"}), r.revision)
        assert scene.plan().ages_ms == {}

    run(check)
