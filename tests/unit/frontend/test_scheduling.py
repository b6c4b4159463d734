"""Scheduled messages for a router wait in a queue of the router, and all others are routed at once."""

import asyncio
from collections.abc import Awaitable, Callable

from lightrail.amqp.encoder import encode
from lightrail.amqp.events import ACCEPTED, Transfers
from lightrail.amqp.sections import with_annotations
from lightrail.amqp.values import Symbol, Timestamp
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.frontend.links.batched import BATCHED
from lightrail.frontend.links.scheduling import SchedulingRouterLink
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.wire.bodies import Refusal
from tests.support.amqp.router_links import Rig, RouterFrontend, fan_out, message
from tests.support.routers import Graph

SCHEDULED = "r/$scheduled"


class SchedulingRig(Rig):
    """The rig of routers, with a link that schedules messages."""

    frontend: RouterFrontend

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.frontend.service = graph.service  # type: ignore[attr-defined]
        self.router = SchedulingRouterLink(
            self.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            number=5,
            router="r",
            label="me",
        )
        self.router.start()


def run(check: Callable[[SchedulingRig], Awaitable[None]], **policy: object) -> None:
    async def checked() -> None:
        graph = Graph()
        await graph.coordinator.set_shards(2)
        await graph.router("r", **policy)
        await check(SchedulingRig(graph))

    asyncio.run(checked())


def at(due_ms: object, name: str = "x") -> bytes:
    """A message with this time in its annotation."""
    return with_annotations(message(name), {Symbol("x-opt-scheduled-enqueue-time"): due_ms})


def later(rig: SchedulingRig, name: str = "x") -> bytes:
    """A message for the next second."""
    return at(Timestamp(rig.graph.now_ms + 1000), name)


def test_a_scheduled_message_is_stored_in_the_queue_that_is_created_for_it() -> None:
    async def check(rig: SchedulingRig) -> None:
        await fan_out(rig, "a")
        one, two = later(rig, "1"), later(rig, "2")
        await rig.send(one)
        await rig.send(two)
        assert rig.graph.directory.get(SCHEDULED).policy["delay"]
        assert rig.said() == [([SCHEDULED], [one]), ([SCHEDULED], [two])]
        rig.answer(1, 2)
        assert rig.outcomes() == ["accepted"] * 2
        assert rig.router.unanswered == 0

    run(check)


def test_only_a_time_that_has_not_come_schedules_a_message() -> None:
    async def check(rig: SchedulingRig) -> None:
        await fan_out(rig, "a")
        # The name alone, in a body, schedules nothing either.
        plain = [
            at(Timestamp(rig.graph.now_ms)),
            at("tomorrow"),
            at(True),
            b"x-opt-scheduled-enqueue-time",
        ]
        await rig.send(*plain)
        assert rig.said() == [(["a"], plain)]
        assert rig.graph.directory.find(SCHEDULED) is None

    run(check)


def test_a_mixed_batch_is_stored_in_parts_and_each_message_has_its_outcome() -> None:
    async def check(rig: SchedulingRig) -> None:
        await fan_out(rig, "a")
        await rig.send(later(rig))
        rig.said()
        rig.answer(1)
        first, second, third = message("1"), later(rig, "2"), message("3")
        await rig.send(first, second, third)
        assert rig.said() == [(["a"], [first]), ([SCHEDULED], [second]), (["a"], [third])]
        await rig.refuse(3, Refusal("amqp:precondition-failed"))
        rig.answer(2)
        rig.answer(4)
        assert rig.outcomes() == ["accepted", "accepted", "amqp:precondition-failed", "accepted"]

    run(check)


def test_a_list_with_scheduled_messages_has_one_outcome() -> None:
    async def check(rig: SchedulingRig) -> None:
        await fan_out(rig, "a")
        first, second, third = message("1"), later(rig, "2"), message("3")
        payload = b"".join(b"\x00\x53\x75" + encode(each) for each in (first, second, third))
        rig.link.credit -= 1
        event = Transfers(rig.link, 0, [payload], False, BATCHED)  # type: ignore[arg-type]
        rig.router.transfers(event, rig.graph.now_ms)
        await rig.settle()
        assert rig.said() == [(["a"], [first]), ([SCHEDULED], [second]), (["a"], [third])]
        rig.answer(1)
        rig.answer(2)
        assert rig.link.settled == []
        rig.answer(3)
        assert rig.link.settled == [(0, 0, ACCEPTED)]

    run(check)


def test_a_scheduled_message_needs_no_subscription_yet() -> None:
    async def check(rig: SchedulingRig) -> None:
        await rig.send(later(rig))
        assert rig.said()[0][0] == [SCHEDULED]
        assert rig.frontend.counts.messages_unroutable == 0

    run(check, buffer_timeout=60)


def test_a_message_is_rejected_with_the_reason_when_it_cannot_be_scheduled() -> None:
    async def check(rig: SchedulingRig) -> None:
        await fan_out(rig, "a")
        await rig.graph.service.give(ANYBODY, SCHEDULED, Policy.parse({"role": "router"}))
        await rig.send(later(rig))
        assert rig.outcomes() == ["amqp:precondition-failed"]
        await rig.graph.drop(SCHEDULED)

        async def broken(*_: object, **__: object) -> None:
            raise CoordinatorError("no quorum")

        write, rig.graph.coordinator.write = rig.graph.coordinator.write, broken  # type: ignore[assignment]
        await rig.send(later(rig))
        assert rig.outcomes() == ["amqp:precondition-failed", "amqp:internal-error"]
        rig.graph.coordinator.write = write  # type: ignore[method-assign]
        await rig.send(later(rig))
        assert rig.said()[0][0] == [SCHEDULED]

    run(check)


def test_what_a_deleted_queue_does_not_store_is_rejected_and_not_routed_early() -> None:
    async def check(rig: SchedulingRig) -> None:
        await fan_out(rig, "a")
        await rig.send(later(rig))
        rig.said()
        await rig.refuse(1, Refusal("amqp:resource-deleted", "deleted"))
        assert rig.outcomes() == ["amqp:resource-deleted"]
        assert rig.said() == []

    run(check)
