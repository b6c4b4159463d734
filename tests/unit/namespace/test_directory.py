"""Directory: the view follows the coordinator, what is over is gone at once, names above decide."""

import asyncio
from collections.abc import Awaitable, Callable
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.cluster.coordinator import Write
from lightrail.cluster.history import begin
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.model import names
from lightrail.model.policy import QUEUE, Policy, Role
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.records import NAMES, Name, Permission, Right, Subscription
from tests.support import work


class Scene:
    """A coordinator, a directory that follows it, and a clock."""

    def __init__(self, auto_create: bool = True) -> None:
        self.coordinator = MemoryCoordinator()
        self.now_ms = 1_000
        self.directory = Directory(self.coordinator, auto_create=auto_create, now_ms=lambda: self.now_ms)
        self.told: list[Changes] = []
        self.directory.listen(self.told.append)

    async def give(self, name: str, **fields: object) -> None:
        policy = Policy.parse({"role": "queue", **fields})
        await self.coordinator.write([Write(NAMES + name, Name(name, policy).to_value())])

    async def drop(self, name: str) -> None:
        await self.coordinator.write([Write(NAMES + name, None)])


def run(check: Callable[[Scene], Awaitable[None]], auto_create: bool = True) -> None:
    async def checked() -> None:
        await check(Scene(auto_create))

    asyncio.run(checked())


def test_every_name_exists_and_has_role_none() -> None:
    directory = Scene().directory
    directory.refresh()
    assert directory.get("any/name").role is Role.NONE
    assert directory.find("any/name") is None


def test_a_refresh_takes_in_what_changed_and_says_so() -> None:
    async def check(scene: Scene) -> None:
        await scene.give("a", max_length=3)
        assert scene.directory.get("a").role is Role.NONE
        scene.directory.refresh()
        assert scene.directory.get("a").policy["max_length"] == 3
        assert list(scene.told[0].names) == ["a"]
        await scene.drop("a")
        scene.directory.refresh()
        assert scene.directory.find("a") is None
        before = scene.told[1].names["a"]
        assert before is not None
        assert before.policy["max_length"] == 3
        scene.directory.refresh()
        assert len(scene.told) == 2

    run(check)


def test_a_name_that_was_made_again_is_another_one() -> None:
    async def check(scene: Scene) -> None:
        await scene.give("a")
        scene.directory.refresh()
        first = scene.directory.get("a").created
        await scene.drop("a")
        await scene.give("a")
        scene.directory.refresh()
        assert scene.directory.get("a").created > first

    run(check)


def test_a_name_whose_time_is_over_is_gone_until_it_is_renewed() -> None:
    async def check(scene: Scene) -> None:
        await scene.give("a", expires_at="1970-01-01T00:00:02Z")
        scene.directory.refresh()
        scene.now_ms = 1_999
        scene.directory.refresh()
        assert scene.directory.get("a").role is Role.QUEUE
        scene.now_ms = 2_000
        scene.directory.refresh()
        assert scene.directory.get("a").role is Role.NONE
        assert [name.name for name in scene.directory.expired()] == ["a"]
        assert "a" in scene.told[-1].names
        await scene.give("a", expires_at="1970-01-01T00:00:09Z")
        scene.directory.refresh()
        assert scene.directory.get("a").role is Role.QUEUE
        assert scene.directory.expired() == []

    run(check)


def test_a_dead_letter_queue_is_there_with_its_queue() -> None:
    async def check(scene: Scene) -> None:
        await scene.give("a", authorization="none", max_length=1)
        scene.directory.refresh()
        dead = scene.directory.get("a/$dlq")
        assert dead.role is Role.QUEUE
        assert dead.policy["authorization"] == "none"
        assert dead.policy["max_length"] is None
        assert scene.directory.get("b/$dlq").role is Role.NONE

    run(check)


def test_the_nearest_name_above_that_says_so_decides_what_comes_into_being() -> None:
    async def check(scene: Scene) -> None:
        await scene.coordinator.write(
            [
                Write(NAMES + name, Name(name, Policy.parse({"role": "none", **fields})).to_value())
                for name, fields in (
                    ("a", {"auto_create": True, "template": {"max_length": 9}}),
                    ("a/b", {"auto_create": False}),
                    ("a/b/c", {"auto_create": True}),
                )
            ]
        )
        scene.directory.refresh()
        template = scene.directory.template("a/x/y")
        assert template is not None
        assert template["max_length"] == 9
        assert scene.directory.template("a/b/x") is None
        below = scene.directory.template("a/b/c/x")
        assert below is not None
        assert below["max_length"] == 9
        assert scene.directory.template("elsewhere") is None

    run(check, auto_create=False)


def test_without_a_word_above_the_installation_decides() -> None:
    assert Scene(auto_create=True).directory.template("a/b") == QUEUE
    assert Scene(auto_create=False).directory.template("a/b") is None


def test_rights_at_a_name_and_above_it_add_up() -> None:
    async def check(scene: Scene) -> None:
        for prefix, rights in (("", {Right.LISTEN}), ("a/b", {Right.SEND}), ("a/bc", {Right.MANAGE})):
            permission = Permission("eve/x", prefix, frozenset(rights))
            await scene.coordinator.write([Write(permission.key, permission.to_value())])
        scene.directory.refresh()
        assert scene.directory.rights("eve/x", "a/b/c") == {Right.LISTEN, Right.SEND}
        assert scene.directory.rights("eve/x", "a") == {Right.LISTEN}
        assert scene.directory.rights("eve/x", "a/bc") == {Right.LISTEN, Right.MANAGE}
        assert scene.directory.rights("eve", "a/b") == frozenset()
        assert scene.told[-1].users == {"eve/x"}
        await scene.coordinator.write([Write(Permission("eve/x", "").key, None)])
        scene.directory.refresh()
        assert scene.directory.rights("eve/x", "a") == frozenset()

    run(check)


def test_subscriptions_are_found_by_router() -> None:
    async def check(scene: Scene) -> None:
        made = Subscription("r/x", "1", "q", {"subject": "a.*"}, None, None)
        await scene.coordinator.write([Write(made.key, made.to_value())])
        scene.directory.refresh()
        (found,) = scene.directory.subscriptions("r/x")
        assert found.target == "q"
        assert found.filter == {"subject": "a.*"}
        assert scene.directory.subscription("r/x", "1") == found
        assert scene.told[-1].routers == {"r/x"}
        await scene.coordinator.write([Write(made.key, None)])
        scene.directory.refresh()
        assert scene.directory.subscriptions("r/x") == []

    run(check)


def test_what_can_not_be_read_stays_out_and_stops_nothing() -> None:
    async def check(scene: Scene) -> None:
        await scene.coordinator.write([Write(NAMES + "bad", "{"), Write(NAMES + "worse", '{"policy":{}}')])
        await scene.give("good")
        scene.directory.refresh()
        assert [record.name for record in scene.directory.below("")] == ["good"]

    run(check)


def test_a_router_that_was_given_capture_before_it_had_a_meaning_is_read_without_it() -> None:
    async def run() -> None:
        scene = Scene()
        value = '{"policy":{"role":"router","capture":true,"distribution":"one"}}'
        await scene.coordinator.write([Write(NAMES + "r", value)])
        scene.directory.refresh()
        assert scene.directory.get("r").policy.to_json() == {"role": "router", "distribution": "one"}

    asyncio.run(run())


def test_the_retries_of_a_queue_are_those_of_its_dead_letters() -> None:
    async def check(scene: Scene) -> None:
        await scene.give("a", retry_delay=2, retry_growth=3, retry_delay_max=9)
        scene.directory.refresh()
        dead = scene.directory.get("a/$dlq").policy
        assert [dead[name] for name in ("retry_delay", "retry_growth", "retry_delay_max")] == [2, 3, 9]

    run(check)


def test_dead_letters_are_captured_with_their_queue() -> None:
    async def run() -> None:
        scene = Scene()
        for capture in (True, False):
            await scene.give("q", capture=capture, max_length=3)
            scene.directory.refresh()
            assert scene.directory.get("q/$dlq").policy["capture"] is capture
            assert scene.directory.get("q/$dlq").policy["max_length"] is None

    asyncio.run(run())


def test_a_new_history_is_known_of_every_name_before_anybody_hears_of_a_change() -> None:
    async def check(scene: Scene) -> None:
        await scene.give("a")
        scene.directory.refresh()
        assert scene.directory.get("a").history == ""
        heard: list[tuple[str, str]] = []
        scene.directory.listen(
            lambda changes: heard.extend((name, scene.directory.get(name).history) for name in changes.names)
        )
        await scene.give("b")
        await begin(scene.coordinator)
        scene.directory.refresh()
        history = scene.directory.history
        assert history
        assert sorted(heard) == [("a", history), ("b", history)]
        assert scene.directory.get("a/$dlq").history == history
        # Who reads everything at once knows the same.
        other = Directory(scene.coordinator)
        other.refresh()
        assert (other.history, other.get("a").history) == (history, history)

    run(check)


def test_a_refresh_costs_the_same_among_many_names_that_expire_later() -> None:
    async def cost(count: int) -> int:
        scene = Scene()
        for number in range(count):
            await scene.give(f"n{number}", expires_at="1970-01-01T01:00:00Z")
        scene.directory.refresh()
        return work.lines(scene.directory.refresh)

    assert asyncio.run(cost(200)) < asyncio.run(cost(5)) + 50


SPELLINGS = ("orders", "Orders", "ORDERS", "orders/A", "orders/a", "\u212alein", "klein")
CHANGES = st.lists(
    st.tuples(st.sampled_from(SPELLINGS), st.sampled_from(["give", "drop", "expire"])), max_size=30
)


@given(CHANGES)
def test_case_alone_never_leads_to_another_name_than_the_only_one(changes: list[tuple[str, str]]) -> None:
    async def check(scene: Scene) -> None:
        there: set[str] = set()
        for name, change in changes:
            if change == "give":
                await scene.give(name)
                there.add(name)
            elif change == "expire":
                await scene.give(name, expires_at="1970-01-01T00:00:02Z")
                there.add(name)
            else:
                await scene.drop(name)
                there.discard(name)
        for now_ms in (1_000, 3_000):
            scene.now_ms = now_ms
            scene.directory.refresh()
            if now_ms == 3_000:
                there = {name for name in there if scene.directory.find(name) is not None}
            for asked in (*SPELLINGS, "oRDERS", "other"):
                alike = sorted(name for name in there if names.folded(name) == names.folded(asked))
                assert sorted(scene.directory.spelled(asked)) == alike
                if asked not in there and len(alike) > 1:
                    with pytest.raises(names.InvalidNameError, match="without regard to case"):
                        scene.directory.resolve(asked)
                    continue
                meant = asked if asked in there or not alike else alike[0]
                assert scene.directory.resolve(asked) == meant
                assert scene.directory.resolve(f"{asked}/$dlq") == f"{meant}/$dlq"

    run(check)


def test_a_policy_for_names_below_is_no_name_that_a_client_means() -> None:
    async def check(scene: Scene) -> None:
        await scene.give("Shop", role="none", auto_create=True)
        scene.directory.refresh()
        assert scene.directory.resolve("SHOP") == "SHOP"
        await scene.give("shop")
        scene.directory.refresh()
        for asked in ("shop", "Shop", "SHOP"):
            assert scene.directory.resolve(asked) == "shop"
            assert scene.directory.resolve(f"{asked}/$dlq") == "shop/$dlq"

    run(check)


def test_case_is_that_of_ascii_alone() -> None:
    assert names.folded("\u212aLEIN/\u00c4") == "\u212alein/\u00c4"


def test_the_id_of_a_subscription_is_found_without_regard_to_case() -> None:
    async def check(scene: Scene) -> None:
        for id in ("Billing", "audit", "Audit"):
            made = Subscription("topic", id, "q")
            await scene.coordinator.write([Write(made.key, made.to_value())])
        scene.directory.refresh()
        found = scene.directory.resolve_subscription
        assert [found("topic", id) for id in ("billing", "audit", "none")] == ["Billing", "audit", "none"]
        with pytest.raises(names.InvalidNameError, match="Audit and audit"):
            found("topic", "AUDIT")

    run(check)


def test_subscriptions_of_routers_that_differ_in_case_are_not_mixed_and_deleted_ones_are_forgotten() -> None:
    async def check(scene: Scene) -> None:
        for router, id in (("topic", "ONE"), ("Topic", "One"), ("Topic", "two")):
            made = Subscription(router, id, "q")
            await scene.coordinator.write([Write(made.key, made.to_value())])
        scene.directory.refresh()
        found = scene.directory.resolve_subscription
        assert [found("topic", "one"), found("Topic", "one"), found("Topic", "TWO")] == ["ONE", "One", "two"]
        await scene.coordinator.write([Write(Subscription("topic", "ONE", "q").key, None)])
        scene.directory.refresh()
        assert [found("topic", "one"), found("Topic", "one")] == ["one", "One"]

    run(check)


def test_an_id_that_nothing_has_costs_the_same_however_many_subscriptions_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(scene: Scene) -> None:
        for number in range(300):
            made = Subscription("topic", f"S{number}", "q")
            await scene.coordinator.write([Write(made.key, made.to_value())])
        scene.directory.refresh()
        fold = Mock(wraps=names.folded)
        monkeypatch.setattr(names, "folded", fold)
        assert scene.directory.resolve_subscription("topic", "missing") == "missing"
        assert fold.call_count <= 2

    run(check)


def test_a_name_that_is_wanted_explicitly_is_made_by_policies_alone() -> None:
    async def check(scene: Scene) -> None:
        await scene.give("made", auto_create=True)
        await scene.give("never", auto_create=False)
        scene.directory.refresh()
        template = scene.directory.template
        for name, explicit, default in (
            ("q", False, True),
            ("made/q", True, True),
            ("never/q", False, False),
        ):
            assert (template(name, explicit=True) is not None) is explicit
            assert (template(name) is not None) is default

    run(check)
