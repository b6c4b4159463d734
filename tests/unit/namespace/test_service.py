"""Service: what is refused and why, who wins, and what goes with what."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from lightrail.cluster.coordinator import WRITES_MAX, ConflictError, CoordinatorError, Write
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.model import limits
from lightrail.model.endpoint import Destinations
from lightrail.model.names import InvalidNameError
from lightrail.model.policy import InvalidPolicyError, Policy, Role
from lightrail.namespace import checks
from lightrail.namespace.directory import Directory
from lightrail.namespace.listing import every_name
from lightrail.namespace.records import NAMES, Name, Right, policy_from
from lightrail.namespace.rights import ANYBODY, Caller, ForbiddenError, demand, resource_of
from lightrail.namespace.scheduled import scheduled_queue
from lightrail.namespace.service import Service
from lightrail.namespace.statuses import (
    ChangedError,
    LimitExceededError,
    MissingError,
    ServiceError,
    TakenError,
)
from tests.support import work


class DyingCoordinator(MemoryCoordinator):
    """One whose process dies after a number of transactions; the others arrive when `arrive` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.lives_for: int | None = None
        self.sent: list[Sequence[Write]] = []
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        """Something that another process does before the next transaction arrives."""

    async def write(self, writes: Sequence[Write]) -> int:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        if self.lives_for == 0:
            self.sent.append(writes)
            raise CoordinatorError("the process has died")
        if self.lives_for is not None:
            self.lives_for -= 1
        return await super().write(writes)

    async def arrive(self) -> None:
        self.lives_for = None
        for writes in self.sent:
            with suppress(ConflictError):
                await super().write(writes)


class Scene:
    """Two services on one coordinator, as two processes have them."""

    def __init__(self, auto_create: bool = True) -> None:
        self.coordinator = DyingCoordinator()
        self.now_ms = 1_000
        self.one = self._service(auto_create)
        self.two = self._service(auto_create)

    def _service(self, auto_create: bool) -> Service:
        directory = Directory(self.coordinator, auto_create=auto_create, now_ms=lambda: self.now_ms)
        return Service(
            self.coordinator,
            directory,
            now_ms=lambda: self.now_ms,
            destinations=Destinations(("localhost",)),
        )


def run(check: Callable[[Scene], Awaitable[None]], auto_create: bool = True) -> None:
    async def checked() -> None:
        scene = Scene(auto_create)
        await scene.coordinator.set_shards(2)
        await check(scene)

    asyncio.run(checked())


def policy(role: str = "queue", **fields: Any) -> Policy:
    return Policy.parse({"role": role, **fields})


def test_a_queue_is_placed_when_it_is_made_and_forgotten_when_it_goes() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "q", policy())
        assert await scene.coordinator.placement("q") is not None
        await scene.one.drop(ANYBODY, "q")
        assert await scene.coordinator.placements() == {}
        with pytest.raises(MissingError, match="q has no role"):
            await scene.one.drop(ANYBODY, "q")

    run(check)


@pytest.mark.parametrize("lives_for", [0, 1, 2])
def test_a_late_deletion_spares_a_name_that_was_made_again(lives_for: int) -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "q", policy())
        scene.coordinator.lives_for = lives_for
        with suppress(CoordinatorError):
            await scene.one.drop(ANYBODY, "q")
        late, scene.coordinator.sent = scene.coordinator.sent, []
        scene.coordinator.lives_for = None
        with suppress(MissingError):
            await scene.two.drop(ANYBODY, "q")
        await scene.two.give(ANYBODY, "q", policy())
        placed = await scene.coordinator.placement("q")
        scene.coordinator.sent = late
        await scene.coordinator.arrive()
        assert placed is not None
        assert await scene.coordinator.placement("q") == placed
        assert scene.two.directory.get("q").role is Role.QUEUE

    run(check)


def test_a_name_is_given_a_role_once() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "q", policy(max_length=1))
        with pytest.raises(TakenError, match="q has role queue already"):
            await scene.two.give(ANYBODY, "q", policy("router"))
        assert scene.two.directory.get("q").policy["max_length"] == 1

    run(check)


def test_of_two_that_change_the_same_name_one_wins() -> None:
    async def check(scene: Scene) -> None:
        made = await scene.one.give(ANYBODY, "q", policy())
        changed = await scene.one.change(ANYBODY, "q", policy(max_length=1), made.revision)
        assert changed.created == made.created
        with pytest.raises(ChangedError, match="read it again"):
            await scene.two.change(ANYBODY, "q", policy(max_length=2), made.revision)
        with pytest.raises(ChangedError):
            await scene.two.drop(ANYBODY, "q", made.revision)
        await scene.two.drop(ANYBODY, "q", changed.revision)

    run(check)


def test_a_change_does_not_change_the_role() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "q", policy())
        with pytest.raises(ServiceError, match="delete it first"):
            await scene.one.change(ANYBODY, "q", policy("router"))

    run(check)


def test_system_names_and_bad_names_are_no_ones_to_give() -> None:
    async def check(scene: Scene) -> None:
        with pytest.raises(ServiceError, match="comes with its queue"):
            await scene.one.give(ANYBODY, "q/$dlq", policy())
        with pytest.raises(InvalidNameError):
            await scene.one.give(ANYBODY, "q//x", policy())
        with pytest.raises(InvalidPolicyError):
            policy_from("{")

    run(check)


def test_what_is_first_used_becomes_a_queue_where_that_is_allowed() -> None:
    async def check(scene: Scene) -> None:
        made = await scene.one.first_use("a/b")
        assert made.role is Role.QUEUE
        assert made.automatic
        assert (await scene.two.first_use("a/b")).created == made.created
        await scene.one.give(ANYBODY, "closed", policy("none", auto_create=False))
        assert (await scene.one.first_use("closed/q")).role is Role.NONE

    run(check)


def test_what_is_first_used_as_a_topic_becomes_a_router_that_drops() -> None:
    async def check(scene: Scene) -> None:
        made = await scene.one.first_use("a/t", role=Role.ROUTER)
        assert (made.role, made.policy["unroutable"], made.automatic) == (Role.ROUTER, "drop", True)
        # What is there stays what it is.
        assert (await scene.two.first_use("a/t")).role is Role.ROUTER
        template = {"max_message_bytes": 100, "lifetime": "link", "description": "from above"}
        await scene.one.give(ANYBODY, "b", policy("none", auto_create=True, template=template))
        made = await scene.one.first_use("b/t", role=Role.ROUTER)
        assert made.policy.given == {
            "unroutable": "drop",
            "max_message_bytes": 100,
            "description": "from above",
        }
        await scene.one.give(ANYBODY, "closed", policy("none", auto_create=False))
        assert (await scene.one.first_use("closed/t", role=Role.ROUTER)).role is Role.NONE

    run(check)


def test_what_goes_with_a_client_needs_one() -> None:
    async def check(scene: Scene) -> None:
        one = scene.one
        with pytest.raises(InvalidPolicyError, match="permanent or last_consumer"):
            await one.give(ANYBODY, "q", policy("queue", lifetime="session"))
        made = await one.give(ANYBODY, "q", policy("queue"))
        with pytest.raises(InvalidPolicyError, match="permanent or last_consumer"):
            await one.change(ANYBODY, "q", policy("queue", lifetime="link"))
        assert made.owner == ""
        for lifetime, owner in (("link", "f/b/1/2/3"), ("session", "f/b/1/2"), ("connection", "f/b/1")):
            template = {"lifetime": lifetime}
            await one.give(ANYBODY, lifetime, policy("none", auto_create=True, template=template))
            assert (await one.first_use(f"{lifetime}/q", "f/b/1/2/3")).owner == owner
            with pytest.raises(ServiceError, match=f"goes with the {lifetime} of the AMQP client"):
                await one.first_use(f"{lifetime}/http")
        assert (await one.change(ANYBODY, "link/q", policy("queue"))).owner == ""

    run(check)


def test_nothing_comes_into_being_where_it_is_off() -> None:
    async def check(scene: Scene) -> None:
        assert (await scene.one.first_use("a/b")).role is Role.NONE

    run(check, auto_create=False)


def test_a_name_whose_time_is_over_can_be_given_a_role_again() -> None:
    async def check(scene: Scene) -> None:
        first = await scene.one.give(ANYBODY, "q", policy(expires_at="1970-01-01T00:00:02Z"))
        scene.now_ms = 2_000
        again = await scene.two.give(ANYBODY, "q", policy("router"))
        assert again.role is Role.ROUTER
        assert again.created > first.created

    run(check)


def test_cycles_are_refused_and_shown() -> None:
    async def check(scene: Scene) -> None:
        for router in ("a", "b", "c"):
            await scene.one.give(ANYBODY, router, policy("router"))
        await scene.one.subscribe(ANYBODY, "a", "b")
        await scene.one.subscribe(ANYBODY, "b", "c")
        with pytest.raises(ServiceError, match="c -> a -> b -> c"):
            await scene.two.subscribe(ANYBODY, "c", "a")
        with pytest.raises(ServiceError, match="cycle"):
            await scene.two.subscribe(ANYBODY, "a", "a")

    run(check)


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


def test_dead_letters_do_not_go_round() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "a", policy())
        await scene.one.give(ANYBODY, "b", policy(dead_letter="a"))
        with pytest.raises(InvalidPolicyError, match="dead_letter"):
            await scene.one.change(ANYBODY, "a", policy(dead_letter="b"))
        with pytest.raises(InvalidPolicyError, match="dead_letter"):
            await scene.one.change(ANYBODY, "a", policy(dead_letter="a"))

    run(check)


def test_who_has_no_right_is_told_which_and_how_to_get_it() -> None:
    async def check(scene: Scene) -> None:
        bob = Caller("bob")
        with pytest.raises(ForbiddenError, match="permission set bob q manage"):
            await scene.one.give(bob, "q", policy())
        with pytest.raises(ForbiddenError):
            await scene.one.permit(bob, "bob", "", frozenset(Right))
        await scene.one.permit(ANYBODY, "bob", "team", frozenset({Right.MANAGE}))
        made = await scene.two.give(bob, "team/q", policy())
        with pytest.raises(ForbiddenError, match="no right to send to team/q"):
            demand(scene.two.directory, bob, Right.SEND, made)
        with pytest.raises(ForbiddenError):
            await scene.two.permit(bob, "bob", "", frozenset(Right))
        await scene.two.permit(bob, "bob", "team/q", frozenset({Right.SEND}))
        demand(scene.two.directory, bob, Right.SEND, made)
        await scene.one.permit(ANYBODY, "bob", "team", frozenset())
        with pytest.raises(ForbiddenError):
            await scene.two.drop(bob, "team/q")

    run(check)


def test_a_token_allows_no_more_than_its_scope() -> None:
    async def check(scene: Scene) -> None:
        made = await scene.one.give(ANYBODY, "a/q", policy())
        narrow = Caller("root", everything=True, scope=(("a", frozenset({Right.LISTEN})),))
        demand(scene.one.directory, narrow, Right.LISTEN, made)
        with pytest.raises(ForbiddenError):
            demand(scene.one.directory, narrow, Right.SEND, made)
        other = await scene.one.give(ANYBODY, "ab", policy())
        with pytest.raises(ForbiddenError):
            demand(scene.one.directory, narrow, Right.LISTEN, other)

    run(check)


def test_a_policy_may_ask_for_tls_and_for_no_right() -> None:
    async def check(scene: Scene) -> None:
        safe = await scene.one.give(ANYBODY, "safe", policy(transport_protection="tls"))
        with pytest.raises(ForbiddenError, match="asks for TLS"):
            demand(scene.one.directory, ANYBODY, Right.SEND, safe)
        demand(scene.one.directory, Caller("x", everything=True, tls=True), Right.SEND, safe)
        drop_box = await scene.one.give(ANYBODY, "box", policy(authorization="listen"))
        demand(scene.one.directory, Caller("x"), Right.SEND, drop_box)
        with pytest.raises(ForbiddenError):
            demand(scene.one.directory, Caller("x"), Right.LISTEN, drop_box)

    run(check)


async def _names(service: Service, caller: Caller, prefix: str = "") -> AsyncIterator[str]:
    async for record in every_name(service.directory, lambda _: caller, prefix):
        yield record.name


def test_a_list_shows_what_the_caller_may_know_of() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "a", policy())
        await scene.one.give(ANYBODY, "a-b", policy())
        await scene.one.give(ANYBODY, "a/x", policy())
        await scene.one.give(ANYBODY, "a/hidden", policy(discoverability="managers"))
        await scene.one.permit(ANYBODY, "bob", "a", frozenset({Right.SEND}))
        assert [each async for each in _names(scene.one, Caller("bob"))] == ["a", "a/x"]
        assert [each async for each in _names(scene.one, ANYBODY)] == ["a", "a/hidden", "a/x", "a-b"]
        assert [each async for each in _names(scene.one, ANYBODY, "a")] == ["a", "a/hidden", "a/x"]
        assert [each async for each in _names(scene.one, Caller("eve"))] == []

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


def test_dead_letters_are_sent_only_where_their_manager_may_send() -> None:
    async def check(scene: Scene) -> None:
        ann = Caller("ann")
        await scene.one.permit(ANYBODY, "ann", "own", frozenset({Right.MANAGE}))
        away = policy(dead_letter="other/graves")
        with pytest.raises(ForbiddenError, match="send to other/graves"):
            await scene.one.give(ann, "own/q", away)
        await scene.one.give(ann, "own/q", policy())
        with pytest.raises(ForbiddenError, match="send to other/graves"):
            await scene.one.change(ann, "own/q", away)
        await scene.one.change(ANYBODY, "own/q", away)
        await scene.one.change(ann, "own/q", policy(dead_letter="other/graves", max_length=5))
        await scene.one.permit(ANYBODY, "ann", "other", frozenset({Right.SEND}))
        await scene.one.give(ann, "own/r", away)

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


COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


def test_a_new_name_is_in_composed_form() -> None:
    async def check(scene: Scene) -> None:
        one = scene.one
        await one.give(ANYBODY, COMPOSED, policy())
        with pytest.raises(ServiceError, match=r"composed form \(NFC\).*expected 'caf\\xe9'"):
            await one.give(ANYBODY, DECOMPOSED, policy())
        with pytest.raises(ServiceError, match="composed form"):
            await one.first_use(DECOMPOSED)
        with pytest.raises(ServiceError, match="composed form"):
            await one.give(ANYBODY, "q", policy(dead_letter=DECOMPOSED))
        await one.give(ANYBODY, "r", policy("router"))
        with pytest.raises(ServiceError, match="composed form"):
            await one.subscribe(ANYBODY, "r", COMPOSED, id=DECOMPOSED)
        with pytest.raises(ServiceError, match="composed form"):
            await one.permit(ANYBODY, "alice", DECOMPOSED, frozenset(Right))
        assert [each async for each in _names(one, ANYBODY)] == [COMPOSED, "r"]

    run(check)


def test_a_name_of_another_form_that_has_a_role_stays_what_it_is() -> None:
    async def check(scene: Scene) -> None:
        one = scene.one
        record = Name(DECOMPOSED, policy("router"), 0, 0, 1, 1)
        await scene.coordinator.write([Write(NAMES + DECOMPOSED, record.to_value(), 0)])
        await one.give(ANYBODY, "q", policy())
        assert (await one.first_use(DECOMPOSED)).role is Role.ROUTER
        await one.change(ANYBODY, DECOMPOSED, policy("router", description="old"))
        await one.subscribe(ANYBODY, DECOMPOSED, "q")
        await one.give(ANYBODY, f"{DECOMPOSED}/$subscriptions/key", policy())
        await one.permit(ANYBODY, "alice", DECOMPOSED, frozenset(Right))
        await one.drop(ANYBODY, DECOMPOSED)
        assert [each async for each in _names(one, ANYBODY)] == ["q"]

    run(check)


def test_a_right_to_all_names_that_is_missing_is_said_so() -> None:
    async def check(scene: Scene) -> None:
        with pytest.raises(ForbiddenError, match=r"to manage all names; .* permission set alice / manage$"):
            demand(scene.one.directory, Caller("alice"), Right.MANAGE, scene.one.directory.get(""))

    run(check)


def test_there_are_at_most_so_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NAMES_MAX", 2)

    async def check(scene: Scene) -> None:
        for name in ("a", "b"):
            await scene.one.give(ANYBODY, name, policy())
        with pytest.raises(LimitExceededError, match="there are 2 names with a role already"):
            await scene.two.give(ANYBODY, "c", policy())
        assert await scene.coordinator.placement("c") is None
        # What is there may change, and a name that goes makes room.
        await scene.one.change(ANYBODY, "a", policy(max_length=1))
        await scene.one.drop(ANYBODY, "b")
        await scene.one.give(ANYBODY, "c", policy())

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


def test_a_signature_reaches_no_second_name_without_one_for_it() -> None:
    async def check(scene: Scene) -> None:
        service = scene.one
        await service.permit(ANYBODY, "ann", "", frozenset(Right))
        for name, role in (("a", "queue"), ("b", "queue"), ("a/topic", "router"), ("topic", "router")):
            await service.give(ANYBODY, name, policy(role))
        of_a, of_b = (Caller("ann", resource=resource_of(f"sb://host/{name}")) for name in ("a", "b"))
        forwarding = policy(dead_letter="b")
        for act in (
            lambda: service.change(of_a, "a", forwarding),
            lambda: service.give(of_a, "a/new", forwarding),
            lambda: service.subscribe(of_a, "a/topic", "b"),
            lambda: service.subscribe(of_a, "topic", "a"),
            lambda: service.permit(of_a, "bob", "b", frozenset({Right.SEND})),
            lambda: service.permit(of_a, "bob", "", frozenset({Right.SEND})),
        ):
            with pytest.raises(ForbiddenError):
                await act()
        assert [each async for each in _names(service, of_a)] == ["a", "a/topic"]
        assert (await service.subscribe(of_a, "a/topic", "a")).target == "a"
        await service.permit(of_a, "bob", "a", frozenset({Right.SEND}))
        changed = await service.change(replace(of_a, supplements=(of_b,)), "a", forwarding)
        assert changed.policy["dead_letter"] == "b"
        of_another = Caller("ann", resource=resource_of("sb://host/c"))
        with pytest.raises(ForbiddenError, match="the signature is for 'a'"):
            await service.give(replace(of_a, supplements=(of_another,)), "a/new", forwarding)

    run(check)


def test_a_deletion_costs_the_same_among_many_names_and_subscriptions() -> None:
    async def cost(count: int) -> int:
        scene = Scene()
        service = scene.one
        await scene.coordinator.set_shards(1)
        for name in ("r", "gone"):
            await service.give(ANYBODY, name, policy("router"))
        await service.give(ANYBODY, "q", policy())
        for number in range(count):
            await service.give(ANYBODY, f"other/{number}", policy())
            await service.subscribe(ANYBODY, "r", f"other/{number}", id=f"s{number}")
        await service.subscribe(ANYBODY, "gone", "q", id="s")
        await service.subscribe(ANYBODY, "r", "q", id="s")
        service.directory.count("gone")

        def drop() -> None:
            with pytest.raises(StopIteration):
                service.drop(ANYBODY, "gone").__await__().send(None)
            with pytest.raises(StopIteration):
                service.drop(ANYBODY, "q").__await__().send(None)

        found = work.lines(drop)
        left = {(each.router, each.id) for each in service.directory.every_subscription()}
        assert left == {("r", f"s{number}") for number in range(count)}
        return found

    assert asyncio.run(cost(300)) < asyncio.run(cost(10)) + 200


# --- what depends on another name ------------------------------------------------------------------------


async def left(scene: Scene) -> set[str]:
    """Keys of the coordinator that are not about shards."""
    entries = await scene.coordinator.entries("")
    return {each.key for each in entries if each.key.startswith(("names/", "subscriptions/", "placement/"))}


@pytest.mark.parametrize(
    ("deleted", "target"),
    [("r", "q"), ("r", "q/$dlq"), ("r", "http://localhost/"), ("q", "q"), ("q", "q/$dlq")],
)
def test_no_subscription_stays_of_a_name_that_is_deleted_at_the_same_moment(
    deleted: str, target: str
) -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        await scene.one.give(ANYBODY, "q", policy())
        scene.coordinator.meanwhile = lambda: scene.two.drop(ANYBODY, deleted)
        with pytest.raises(MissingError):
            await scene.one.subscribe(ANYBODY, "r", target, id="s")
        assert not [key for key in await left(scene) if "//" in key or "$" in key]

    run(check)


@pytest.mark.parametrize("deleted", ["r", "q"])
def test_a_subscription_that_is_made_while_its_names_are_deleted_is_deleted_as_well(deleted: str) -> None:
    """It is written between the look of the deletion and its transaction."""

    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        await scene.one.give(ANYBODY, "q", policy())
        scene.coordinator.meanwhile = lambda: scene.two.subscribe(ANYBODY, "r", "q", id="s")
        await scene.one.drop(ANYBODY, deleted)
        assert not [key for key in await left(scene) if "//" in key]

    run(check)


def test_the_queue_of_a_subscription_does_not_outlive_its_router() -> None:
    async def check(scene: Scene) -> None:
        queue = "r/$subscriptions/s"
        with pytest.raises(MissingError, match="expected a router"):
            await scene.one.give(ANYBODY, queue, policy())
        for first in (scene.one, scene.two):
            await scene.one.give(ANYBODY, "r", policy("router"))
            if first is scene.one:
                scene.coordinator.meanwhile = lambda: scene.two.drop(ANYBODY, "r")
                with pytest.raises(MissingError, match="expected a router"):
                    await scene.one.give(ANYBODY, queue, policy())
            else:
                scene.coordinator.meanwhile = lambda: scene.two.give(ANYBODY, queue, policy())
                await scene.one.drop(ANYBODY, "r")
            assert await left(scene) == set()

    run(check)


def test_a_router_that_was_made_again_meanwhile_keeps_its_own_subscriptions() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        await scene.one.give(ANYBODY, "q", policy())
        await scene.one.subscribe(ANYBODY, "r", "q", id="s")
        write = scene.coordinator.write

        async def then_made_again(writes: Sequence[Write]) -> int:
            revision = await write(writes)
            scene.coordinator.write = write  # type: ignore[method-assign]
            await scene.two.give(ANYBODY, "r", policy("router"))
            await scene.two.subscribe(ANYBODY, "r", "q", id="t")
            return revision

        scene.coordinator.write = then_made_again  # type: ignore[method-assign]
        await scene.one.drop(ANYBODY, "r")
        assert [each.id for each in scene.one.directory.subscriptions("r")] == ["t"]

    run(check)


def test_a_router_whose_policy_is_changed_meanwhile_is_subscribed_to_all_the_same() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        await scene.one.give(ANYBODY, "q", policy())
        scene.coordinator.meanwhile = lambda: scene.two.change(
            ANYBODY, "r", policy("router", max_subscribers=9)
        )
        await scene.one.subscribe(ANYBODY, "r", "q", id="s")
        scene.coordinator.meanwhile = lambda: scene.two.change(
            ANYBODY, "r", policy("router", max_subscribers=1)
        )
        with pytest.raises(LimitExceededError):
            await scene.one.subscribe(ANYBODY, "r", "q", id="t")
        scene.coordinator.meanwhile = lambda: scene.two.unsubscribe(ANYBODY, "r", "s")
        with pytest.raises(ChangedError):
            await scene.one.subscribe(ANYBODY, "r", "q", id="s", replace_it=True)

    run(check)


def test_of_two_that_make_a_subscription_at_once_one_finds_that_it_exists() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        await scene.one.give(ANYBODY, "q", policy())
        scene.coordinator.meanwhile = lambda: scene.two.subscribe(ANYBODY, "r", "q", id="s")
        with pytest.raises(TakenError, match="s of r was made by somebody else"):
            await scene.one.subscribe(ANYBODY, "r", "q", id="s")
        assert scene.one.directory.subscription("r", "s") is not None

    run(check)


@pytest.mark.parametrize("how", ["give", "change"])
def test_dead_letters_do_not_go_round_by_two_changes_at_once(how: str) -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "b", policy())
        if how == "change":
            await scene.one.give(ANYBODY, "a", policy())
        call = getattr(scene.one, how)
        scene.coordinator.meanwhile = lambda: scene.two.change(ANYBODY, "b", policy(dead_letter="a"))
        with pytest.raises(InvalidPolicyError, match="do not end in a"):
            await call(ANYBODY, "a", policy(dead_letter="b"))
        await scene.two.change(ANYBODY, "b", policy())
        scene.coordinator.meanwhile = lambda: scene.two.change(ANYBODY, "b", policy(dead_letter="c"))
        made = await call(ANYBODY, "a", policy(dead_letter="b"))
        assert made.policy["dead_letter"] == "b"
        await scene.one.give(ANYBODY, "own", policy(dead_letter="own/$dlq"))

    run(check)


def test_a_deletion_in_several_transactions_is_not_applied_late_to_a_router_that_was_kept() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "r", policy("router"))
        for number in range(WRITES_MAX):
            await scene.one.give(ANYBODY, f"r/$subscriptions/{number}", policy())
        scene.coordinator.lives_for = 0
        with pytest.raises(CoordinatorError):
            await scene.one.drop(ANYBODY, "r")
        late, scene.coordinator.sent = scene.coordinator.sent, []
        scene.coordinator.lives_for = None
        await scene.two.keep(scene.two.directory.get("r"))
        scene.two.directory.refresh()
        await scene.two.keep(scene.two.directory.get("r"))
        scene.coordinator.sent = late
        await scene.coordinator.arrive()
        scene.two.directory.refresh()
        assert scene.two.directory.count("r") == WRITES_MAX + 1

    run(check)
