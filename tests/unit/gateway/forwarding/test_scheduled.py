"""Scheduled messages of a router: each gets to the queues that the router has when it is due."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from lightrail.amqp.sections import decode_header
from lightrail.gateway.forwarding.forwarding import ScheduledForwarders
from lightrail.gateway.forwarding.sink import NotSentError
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.scheduled import scheduled_queue
from lightrail.wire.frames import OutcomeCode
from tests.support.amqp.letters import message as letter
from tests.support.turns import until
from tests.unit.gateway.forwarding.forwarder_scene import ForwarderScene


class Scene(ForwarderScene):
    """A namespace with a router, whose queue of scheduled messages has what is due."""

    def __init__(self) -> None:
        super().__init__(ScheduledForwarders, "r/$scheduled")

    def outcomes(self) -> list[tuple[OutcomeCode, Any]]:
        return list(self.queue.outcomes.values())


def run(check: Callable[[Scene], Awaitable[None]]) -> None:
    async def checked() -> None:
        scene = Scene()
        await scene.coordinator.set_shards(1)
        await scene.service.give(ANYBODY, "r", Policy.parse({"role": "router"}))
        await check(scene)
        scene.forwarders.close()

    asyncio.run(checked())


def test_what_is_due_is_sent_to_the_router_and_its_ttl_begins() -> None:
    async def check(scene: Scene) -> None:
        first, second = letter(b"1", ttl=5_000), letter(b"2", priority=7)
        scene.queue.add(first, second)
        await scheduled_queue(scene.service, "r")
        await until(lambda: len(scene.outcomes()) == 2)
        assert [code for code, _ in scene.outcomes()] == [OutcomeCode.ACCEPTED] * 2
        assert scene.sink.messages("r") == [first, second]
        assert decode_header(first).ttl == 5_000
        now_ms = scene.links.now_ms()
        assert [each.expires_at_ms for each in scene.sink.letters["r"]] == [now_ms + 5_000, 0]
        assert scene.sink.letters["r"][1].priority == 7
        assert (scene.counts.schedulers, scene.counts.scheduled_routed) == (1, 2)

    run(check)


def test_what_a_queue_refuses_is_tried_again_with_what_the_earlier_attempt_stored() -> None:
    async def check(scene: Scene) -> None:
        attempts: list[set[tuple[bytes, str]]] = []
        times: set[int] = set()

        async def route(
            _router: str, message: Any, carried: set[tuple[bytes, str]], came_ms: int
        ) -> NotSentError | None:
            attempts.append(set(carried))
            times.add(came_ms)
            carried.add((message.message, f"queue {len(attempts)}"))
            return NotSentError("amqp:resource-limit-exceeded", "full") if len(attempts) < 4 else None

        scene.sink.route = route  # type: ignore[method-assign, assignment]
        message = letter(b"x")
        scene.queue.add(message)
        await scheduled_queue(scene.service, "r")
        for attempt in range(1, 4):
            await until(partial(scene.has_paused, attempt))
            assert scene.outcomes() == []
            scene.go_on.release()
        await until(lambda: len(scene.outcomes()) == 1)
        assert scene.pauses == [1.0, 2.0, 4.0]
        assert len(times) == 1
        assert attempts == [{(message, f"queue {n}") for n in range(1, count)} for count in range(1, 5)]
        assert (scene.counts.scheduled_refused, scene.counts.scheduled_routed) == (3, 1)

    run(check)


def test_what_the_router_rejects_for_good_becomes_a_dead_letter_with_the_reason() -> None:
    async def check(scene: Scene) -> None:
        problem = NotSentError("amqp:not-found", "nobody subscribes", is_final=True)
        scene.sink.refuse = lambda _router, _message: problem
        scene.queue.add(letter(b"x"))
        await scheduled_queue(scene.service, "r")
        await until(lambda: len(scene.outcomes()) == 1)
        ((code, detail),) = scene.outcomes()
        assert code is OutcomeCode.REJECTED
        assert (detail.condition, detail.description) == ("amqp:not-found", "nobody subscribes")
        assert scene.pauses == []

    run(check)


def test_a_forwarder_ends_with_its_router() -> None:
    async def check(scene: Scene) -> None:
        await scheduled_queue(scene.service, "r")
        assert scene.counts.schedulers == 1
        await scene.service.drop(ANYBODY, "r")
        assert scene.counts.schedulers == 0

    run(check)
