"""Chains of queues that forward: where messages stop, and who may make them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from lightrail.model import names
from lightrail.model.policy import InvalidPolicyError, Policy, Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.forwarding import HOPS_MAX, chain_of
from lightrail.namespace.records import Right
from lightrail.namespace.rights import ANYBODY, Caller, ForbiddenError, resource_of
from lightrail.namespace.routing import Routing
from lightrail.namespace.service import Service
from lightrail.namespace.statuses import MissingError, ServiceError
from lightrail.namespace.transfer_queues import transfer_queue
from tests.support.routers import Graph


class Scene(Graph):
    def __init__(self) -> None:
        super().__init__()
        self.routing = Routing(self.directory)

    async def put(self, name: str, **fields: Any) -> None:
        """A queue with this policy, made or changed."""
        policy = Policy.parse({"role": "queue", **fields})
        if self.directory.get(name).role is Role.NONE:
            await self.service.give(ANYBODY, name, policy)
        else:
            await self.service.change(ANYBODY, name, policy)

    async def chain(self, count: int) -> None:
        """q0 forwards to q1, and so on; the last one of so many does not forward."""
        await self.put(f"q{count - 1}")
        for number in reversed(range(count - 1)):
            await self.put(f"q{number}", forward_to=f"q{number + 1}")

    def ends(self, router: str = "r") -> set[str]:
        """The queues that store what is sent to a router."""
        self.directory.refresh()
        plan = self.routing.plan(router, self.now_ms)
        assert plan is not None
        (group,) = plan.route([b""]).groups
        return set(group.queues)


def run(check: Callable[[Scene], Awaitable[None]]) -> None:
    async def checked() -> None:
        scene = Scene()
        await scene.coordinator.set_shards(1)
        await check(scene)

    asyncio.run(checked())


def test_a_chain_ends_at_the_last_queue_after_so_many_hops() -> None:
    async def check(scene: Scene) -> None:
        await scene.chain(HOPS_MAX + 2)
        whole = chain_of(scene.directory, "q1")
        assert (whole.last, whole.hops, whole.is_complete) == (f"q{HOPS_MAX + 1}", HOPS_MAX, True)
        cut = chain_of(scene.directory, "q0")
        assert (cut.last, cut.hops, cut.is_complete) == (f"q{HOPS_MAX}", HOPS_MAX, False)

    run(check)


@pytest.mark.parametrize(
    "of_last", [{"status": "disabled"}, {"status": "send_disabled"}, None], ids=["disabled", "send", "router"]
)
def test_a_chain_ends_before_what_takes_no_messages_or_is_no_queue(of_last: dict[str, Any] | None) -> None:
    async def check(scene: Scene) -> None:
        if of_last is None:
            await scene.router("q2")
        else:
            await scene.put("q2", **of_last)
        await scene.put("q1", forward_to="q2")
        await scene.put("q0", forward_to="q1")
        found = chain_of(scene.directory, "q0")
        assert (found.last, found.is_complete) == ("q1", False)

    run(check)


def test_copies_for_a_source_are_in_the_last_queue_and_come_into_the_source_if_that_refuses_them() -> None:
    async def check(scene: Scene) -> None:
        await scene.chain(3)
        await scene.queue("sibling")
        await scene.router("r")
        await scene.subscribe("r", "q0")
        await scene.subscribe("r", "sibling")
        assert scene.ends() == {"q2", "sibling"}
        plan = scene.routing.plan("r", scene.now_ms)
        assert plan is not None
        assert plan.at_sources(frozenset({"q2", "sibling"})) == {"q0", "sibling"}
        assert plan.forwards({"q2"})
        assert not plan.forwards({"sibling", "q0"})
        # The plan follows each queue of the chain.
        await scene.put("q1")
        assert scene.ends() == {"q1", "sibling"}

    run(check)


@pytest.mark.parametrize(
    "fields", [{"duplicate_window": 60}, {"status": "disabled"}, {"status": "receive_disabled"}]
)
def test_a_source_that_looks_for_duplicates_or_is_disabled_stores_its_copies(fields: dict[str, Any]) -> None:
    async def check(scene: Scene) -> None:
        await scene.queue("target")
        await scene.put("source", forward_to="target", **fields)
        await scene.router("r")
        await scene.subscribe("r", "source")
        assert scene.ends() == {"source"}

    run(check)


def test_messages_expire_by_the_least_age_of_their_chain() -> None:
    async def check(scene: Scene) -> None:
        await scene.queue("q2")
        await scene.put("q1", forward_to="q2", max_age=5)
        await scene.put("q0", forward_to="q1", max_age=60)
        await scene.router("r", max_age=30)
        await scene.subscribe("r", "q0")
        plan = scene.routing.plan("r", scene.now_ms)
        assert plan is not None
        # In the source itself, by the router alone: its own age is known to its shard.
        assert plan.ages_ms == {"q2": 5_000, "q0": 30_000}

    run(check)


def test_a_target_exists_and_is_nothing_of_the_brokers_own() -> None:
    async def check(scene: Scene) -> None:
        await scene.queue("q")
        for target in ("missing", "q/$dlq"):
            with pytest.raises(InvalidPolicyError, match="a queue or router that exists"):
                await scene.put("source", forward_to=target)
        for fields in ({"groups": True}, {"lifetime": "last_consumer"}):
            with pytest.raises(InvalidPolicyError, match=f"null beside {next(iter(fields))}"):
                await scene.put("source", forward_to="q", **fields)

    run(check)


def test_queues_of_the_brokers_own_forward_nothing() -> None:
    async def check(scene: Scene) -> None:
        await scene.queue("q", "target")
        await scene.router("r")
        made = await transfer_queue(scene.service, "q")
        for name in ("r/$subscriptions/key", "r/$scheduled", "$temporary/key", made.name):
            with pytest.raises(InvalidPolicyError, match="null for a queue of the broker's own"):
                await scene.put(name, forward_to="target")

    run(check)


def test_messages_do_not_return_by_queues_nor_by_subscriptions() -> None:
    async def check(scene: Scene) -> None:
        await scene.chain(3)
        await scene.router("r")
        with pytest.raises(InvalidPolicyError, match="q2 -> q0 -> q1 -> q2"):
            await scene.put("q2", forward_to="q0")
        with pytest.raises(InvalidPolicyError, match="q0 -> q0"):
            await scene.put("q0", forward_to="q0")
        await scene.put("q2", forward_to="r")
        with pytest.raises(ServiceError, match="r -> q0 -> q1 -> q2 -> r"):
            await scene.subscribe("r", "q0")

    run(check)


@pytest.mark.parametrize(("field", "back"), [("dead_letter", "forward_to"), ("forward_to", "dead_letter")])
def test_dead_letters_do_not_return_by_queues_that_forward(field: str, back: str) -> None:
    async def check(scene: Scene) -> None:
        await scene.queue("a", "b", "c")
        await scene.router("r")
        await scene.put("b", **{back: "r"})
        await scene.subscribe("r", "c")
        await scene.put("c", dead_letter="a")
        with pytest.raises(InvalidPolicyError, match="a -> b -> r -> c -> a") as refused:
            await scene.put("a", forward_to="b")
        assert refused.value.field == "forward_to"
        await scene.put("c")
        await scene.put("b", **{back: "a"})
        with pytest.raises(InvalidPolicyError, match="a -> b -> a") as refused:
            await scene.put("a", **{field: "b"})
        assert refused.value.field == field

    run(check)


def test_dead_letters_may_return_by_subscriptions_but_not_through_a_queue_that_forwards() -> None:
    async def check(scene: Scene) -> None:
        await scene.queue("work", "wait")
        await scene.router("again")
        await scene.subscribe("again", "wait")
        await scene.put("work", dead_letter="again")
        await scene.put("wait", dead_letter="work")
        await scene.drop("wait")
        await scene.put("wait", forward_to="work")
        with pytest.raises(ServiceError, match="again -> wait -> work -> again"):
            await scene.subscribe("again", "wait")

    run(check)


@pytest.mark.parametrize("field", ["forward_to", "dead_letter"])
def test_of_two_that_close_a_cycle_at_once_one_is_refused(field: str) -> None:
    async def check(scene: Scene) -> None:
        await scene.queue("a", "b")
        other = Service(scene.coordinator, Directory(scene.coordinator, now_ms=lambda: scene.now_ms))
        other.directory.refresh()
        results = await asyncio.gather(
            scene.service.change(ANYBODY, "a", Policy.parse({"role": "queue", field: "b"})),
            other.change(ANYBODY, "b", Policy.parse({"role": "queue", "forward_to": "a"})),
            return_exceptions=True,
        )
        assert sum(isinstance(each, InvalidPolicyError) for each in results) == 1

    run(check)


def test_a_signature_for_the_source_reaches_the_target_only_with_one_for_it() -> None:
    async def check(scene: Scene) -> None:
        await scene.queue("a", "b")
        await scene.service.permit(ANYBODY, "ann", "", frozenset(Right))
        of_a, of_b = (Caller("ann", resource=resource_of(f"sb://host/{name}")) for name in ("a", "b"))
        policy = Policy.parse({"role": "queue", "forward_to": "b"})
        with pytest.raises(ForbiddenError, match="the signature is for 'a'"):
            await scene.service.change(of_a, "a", policy)
        changed = await scene.service.change(replace(of_a, supplements=(of_b,)), "a", policy)
        assert changed.policy["forward_to"] == "b"
        # A change of something else needs no signature for the target.
        described = Policy.parse({"role": "queue", "forward_to": "b", "description": "x"})
        await scene.service.change(of_a, "a", described)

    run(check)


def test_what_a_subscription_leaves_out_of_its_own_container_others_bring_to_its_target() -> None:
    async def check(scene: Scene) -> None:
        await scene.chain(2)
        await scene.router("r")
        await scene.subscribe("r", "q0", no_local="container")
        await scene.subscribe("r", "q1")
        plan = scene.routing.plan("r", scene.now_ms)
        assert plan is not None
        assert plan.no_local == {"q0": "container"}
        assert scene.ends() == {"q0", "q1"}

    run(check)


@pytest.mark.parametrize("field", ["forward_to", "dead_letter"])
def test_a_template_forwards_to_what_its_maker_may_send_to(field: str) -> None:
    async def check(scene: Scene) -> None:
        await scene.queue("target")
        await scene.service.permit(ANYBODY, "ann", "mine", frozenset(Right))
        ann = Caller("ann")
        policy = Policy.parse({"role": "none", "auto_create": True, "template": {field: "target"}})
        with pytest.raises(ForbiddenError, match="send to target"):
            await scene.service.give(ann, "mine", policy)
        plain = Policy.parse({"role": "none", "auto_create": True})
        await scene.service.give(ann, "mine", plain)
        with pytest.raises(ForbiddenError, match="send to target"):
            await scene.service.change(ann, "mine", policy)
        await scene.service.change(ANYBODY, "mine", policy)
        # Somebody else may have given the target: a change of something else needs no right there.
        described = Policy.parse({**policy.to_json(), "description": "x"})
        assert (await scene.service.change(ann, "mine", described)).policy["description"] == "x"

    run(check)


def test_a_source_whose_target_was_deleted_may_be_changed_otherwise() -> None:
    async def check(scene: Scene) -> None:
        await scene.chain(2)
        await scene.drop("q1")
        await scene.put("q0", forward_to="q1", status="receive_disabled")
        assert scene.directory.get("q0").policy["status"] == "receive_disabled"
        with pytest.raises(InvalidPolicyError, match="a queue or router that exists"):
            await scene.put("q0", forward_to="q2")

    run(check)


def test_a_transfer_queue_goes_with_its_queue() -> None:
    async def check(scene: Scene) -> None:
        await scene.chain(2)
        made = await transfer_queue(scene.service, "q0")
        assert made.name == names.transfer_name("q0")
        assert (await transfer_queue(scene.service, "q0")).created == made.created
        assert scene.directory.get(names.dead_letter_name(made.name)).role is Role.QUEUE
        await scene.drop("q0")
        assert scene.directory.find(made.name) is None
        with pytest.raises(MissingError):
            await transfer_queue(scene.service, "q0")
        assert scene.directory.find(made.name) is None

    run(check)


def test_dead_letters_of_transfers_are_as_protected_as_those_of_the_queue() -> None:
    async def check(scene: Scene) -> None:
        await scene.chain(2)
        made = await transfer_queue(scene.service, "q0")
        letters = names.dead_letter_name(made.name)
        assert scene.directory.get(letters).policy["transport_protection"] == "none"
        await scene.put("q0", forward_to="q1", transport_protection="tls", discoverability="managers")
        for field, value in (("transport_protection", "tls"), ("discoverability", "managers")):
            assert scene.directory.get(letters).policy[field] == value
            assert scene.directory.get("q0/$dlq").policy[field] == value
        assert scene.directory.get(letters).created == made.created

    run(check)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("q/$Transfer/$DeadLetterQueue", "q/$transfer/$dlq"),
        ("q/$transfer/$deadletterqueue", "q/$transfer/$dlq"),
        ("q/$transfer/$dlq", "q/$transfer/$dlq"),
    ],
)
def test_dead_letters_of_transfers_have_the_path_of_service_bus(address: str, name: str) -> None:
    assert names.queue_name(address) == name
