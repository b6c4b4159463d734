"""Service: what is refused and why, who wins, and what goes with what."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from lightrail.cluster.coordinator import Write
from lightrail.cluster.map import MOVES
from lightrail.cluster.replica_sets import first
from lightrail.model import limits
from lightrail.model.names import InvalidNameError
from lightrail.model.policy import InvalidPolicyError, Role
from lightrail.namespace.listing import every_name
from lightrail.namespace.records import NAMES, Name, Right, policy_from
from lightrail.namespace.rights import ANYBODY, Caller, ForbiddenError, demand, resource_of
from lightrail.namespace.service import Service
from lightrail.namespace.statuses import LimitExceededError, MissingError, ServiceError, TakenError
from tests.support import work
from tests.support.services import Scene, policy, run


def test_a_queue_is_placed_when_it_is_made_and_forgotten_when_it_goes() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "q", policy())
        assert await scene.coordinator.placement("q") is not None
        await scene.one.drop(ANYBODY, "q")
        assert await scene.coordinator.placements() == {}
        with pytest.raises(MissingError, match="q has no role"):
            await scene.one.drop(ANYBODY, "q")

    run(check)


def test_a_name_is_given_a_role_once() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "q", policy(max_length=1))
        with pytest.raises(TakenError, match="q has role queue already"):
            await scene.two.give(ANYBODY, "q", policy("router"))
        assert scene.two.directory.get("q").policy["max_length"] == 1

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


async def with_replicas(scene: Scene, shard: int, replicas: int) -> None:
    found = first(shard, "d", "h", replicas=replicas, min_in_sync=1)
    await scene.coordinator.write([Write(found.key, found.encode())])


def test_a_policy_that_demands_more_replicas_than_a_shard_has_is_refused_with_what_to_do() -> None:
    async def check(scene: Scene) -> None:
        await scene.one.give(ANYBODY, "q", policy(max_length=5))
        for given, field in (
            (policy(replicas=3), "replicas"),
            (policy("none", template={"replicas": 3}), "template.replicas"),
            (policy("none", template={"template": {"replicas": 3}}), "template.template.replicas"),
        ):
            with pytest.raises(InvalidPolicyError) as refused:
                await scene.one.give(ANYBODY, "new", given)
            assert (refused.value.field, refused.value.found) == (field, 3)
            assert "a whole number from 1 to 1" in refused.value.allowed
            assert "`lightrail-admin shard replicas N --replicas 3`" in refused.value.allowed
        with pytest.raises(InvalidPolicyError):
            await scene.one.change(ANYBODY, "q", policy(replicas=2))
        assert scene.one.directory.find("new") is None
        assert scene.one.directory.get("q").policy["max_length"] == 5
        await with_replicas(scene, 1, 2)
        with pytest.raises(InvalidPolicyError, match="from 1 to 2"):
            await scene.one.give(ANYBODY, "new", policy(replicas=3))

    run(check)


def test_a_queue_that_demands_replicas_is_placed_on_a_shard_that_has_them_also_at_first_use() -> None:
    async def check(scene: Scene) -> None:
        await with_replicas(scene, 1, 3)
        for number in range(4):
            await scene.one.give(ANYBODY, f"q{number}", policy(replicas=2))
        await scene.one.give(ANYBODY, "below", policy("none", auto_create=True, template={"replicas": 3}))
        await scene.one.first_use("below/used")
        placements = await scene.coordinator.placements()
        assert {each.shard for each in placements.values()} == {1}
        assert placements.keys() >= {"q0", "below/used"}

    run(check)


def test_a_change_that_demands_replicas_moves_a_queue_that_lies_elsewhere() -> None:
    async def check(scene: Scene) -> None:
        await with_replicas(scene, 1, 3)
        shards = {}
        for name in ("a", "b", "c", "d"):
            await scene.one.give(ANYBODY, name, policy())
            shards[name] = (await scene.coordinator.place(name)).shard
        assert set(shards.values()) == {0, 1}
        for name in shards:
            await scene.one.change(ANYBODY, name, policy(replicas=3))
        moving = {each.key for each in await scene.coordinator.entries(MOVES)}
        assert moving == {MOVES + name for name, shard in shards.items() if shard == 0}

    run(check)


def test_a_demand_that_stands_does_not_hinder_other_changes_when_the_shard_has_fewer_members() -> None:
    async def check(scene: Scene) -> None:
        await with_replicas(scene, 1, 3)
        await scene.one.give(ANYBODY, "q", policy(replicas=3))
        await with_replicas(scene, 1, 2)
        await scene.one.change(ANYBODY, "q", policy(replicas=3, max_length=5))
        assert scene.one.directory.get("q").policy["max_length"] == 5

    run(check)
