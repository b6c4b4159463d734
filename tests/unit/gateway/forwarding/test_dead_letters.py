"""Dead letters get to the name that the policy says, however long it refuses them."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from lightrail.amqp.dead_letters import COUNT as DEAD_LETTER_COUNT
from lightrail.amqp.dead_letters import HOPS
from lightrail.amqp.sections import decode_annotations, with_annotations
from lightrail.amqp.values import UInt
from lightrail.filters.dead_letters import NOTED_DESCRIPTION, NOTED_REASON, service_bus_reason
from lightrail.gateway.forwarding import forwarder
from lightrail.gateway.forwarding.counts import ForwardingCounts
from lightrail.gateway.forwarding.forwarder import (
    FORWARD_WINDOW,
    FORWARDER_WINDOW_BYTES,
    FORWARDER_WINDOW_FIRST,
)
from lightrail.gateway.forwarding.forwarding import (
    DEAD_LETTER_HOPS_MAX,
    DEAD_LETTERINGS_PLAIN,
    DeadLetterForwarders,
)
from lightrail.gateway.forwarding.next_queues import TOO_MANY_HOPS
from lightrail.gateway.forwarding.room import ForwardingRoom
from lightrail.gateway.forwarding.sink import NotSentError, redriven
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.shard_client.receiving.queue_consumer import Delivery
from lightrail.wire.frames import OutcomeCode
from tests.support.amqp.letters import dead_letter
from tests.support.turns import until
from tests.unit.gateway.forwarding.forwarder_scene import ForwarderScene
from tests.unit.gateway.forwarding.test_room import Source


class Scene(ForwarderScene):
    """A namespace with a queue that has dead letters."""

    def __init__(self) -> None:
        super().__init__(DeadLetterForwarders, "q/$dlq")

    async def give(self, name: str, **policy: Any) -> None:
        await self.service.give(ANYBODY, name, Policy.parse({"role": "queue"} | policy))


def run(check: Callable[[Scene], Awaitable[None]]) -> None:
    async def checked() -> None:
        scene = Scene()
        await scene.coordinator.set_shards(1)
        await check(scene)
        scene.forwarders.close()

    asyncio.run(checked())


def test_dead_letters_are_forwarded_as_they_are_and_in_order() -> None:
    async def check(scene: Scene) -> None:
        letters = [dead_letter(b"%d" % number, "q", priority=number % 10) for number in range(250)]
        scene.queue.add(*letters)
        await scene.give("q", dead_letter="graves")
        await until(lambda: len(scene.queue.outcomes) == 250)
        assert scene.sink.messages("graves") == letters
        assert [each.priority for each in scene.sink.letters["graves"]][:12] == [*range(10), 0, 1]
        assert {code for code, _ in scene.queue.outcomes.values()} == {OutcomeCode.ACCEPTED}
        assert (scene.counts.forwarders, scene.counts.forwarded) == (1, 250)

    run(check)


def test_a_dead_letter_that_returns_is_counted_and_set_aside_in_the_end() -> None:
    async def check(scene: Scene) -> None:
        await scene.give("q", dead_letter="graves")
        returned = with_annotations(
            dead_letter(b"x", "q"),
            {
                DEAD_LETTER_COUNT: UInt(DEAD_LETTERINGS_PLAIN + 1),
                NOTED_REASON: "broken",
                NOTED_DESCRIPTION: "",
            },
        )
        aside = "q/$transfer/$dlq"
        for hops in range(1, DEAD_LETTER_HOPS_MAX + 2):
            scene.queue.add(returned)
            await until(lambda hops=hops: len(scene.queue.outcomes) == hops)  # type: ignore[misc]
            if hops <= DEAD_LETTER_HOPS_MAX:
                returned = scene.sink.messages("graves")[-1]
                assert decode_annotations(returned)[HOPS] == hops
        assert len(scene.sink.messages("graves")) == DEAD_LETTER_HOPS_MAX
        (rests,) = scene.sink.messages(aside)
        notes = decode_annotations(rests)
        assert notes["x-opt-dead-letter-condition"] == TOO_MANY_HOPS
        assert notes["x-opt-dead-letter-source"] == "q"
        # Service Bus' clients do not find the reason of the receiver that rejected it before.
        assert service_bus_reason(notes.get) == (TOO_MANY_HOPS, notes["x-opt-dead-letter-description"])
        # A redrive begins anew.
        delivery = Delivery(1, 0, 0, 0, 0, 0, 0, rests)
        assert HOPS not in decode_annotations(redriven(delivery, 0).message)

    run(check)


def test_a_dead_letter_that_the_target_does_not_take_is_tried_again_more_and_more_slowly() -> None:
    async def check(scene: Scene) -> None:
        full = True
        scene.sink.refuse = lambda _name, _letter: (
            NotSentError("amqp:resource-limit-exceeded", "") if full else None
        )
        scene.queue.add(dead_letter(b"x", "q"))
        await scene.give("q", dead_letter="graves")
        for attempt in range(1, 10):
            await until(partial(scene.has_paused, attempt))
            scene.go_on.release()
        await until(lambda: len(scene.pauses) == 10)
        assert scene.pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]
        assert scene.queue.outcomes == {}
        full = False
        scene.go_on.release()
        await until(lambda: len(scene.queue.outcomes) == 1)
        assert scene.counts.forwards_refused == 10

    run(check)


def test_what_a_target_refuses_holds_up_no_more_than_a_window() -> None:
    async def check(scene: Scene) -> None:
        scene.sink.refuse = lambda _name, letter: (
            NotSentError("amqp:x", "") if letter.message[-1:] == b"!" else None
        )
        scene.queue.add(*(dead_letter(b"%d!" % number, "q") for number in range(FORWARD_WINDOW - 1)))
        scene.queue.add(*(dead_letter(b"%d" % number, "q") for number in range(50)))
        await scene.give("q", dead_letter="graves")
        await until(lambda: len(scene.sink.letters.get("graves", ())) == 50)
        scene.queue.add(*(dead_letter(b"%d!" % number, "q") for number in range(100)))
        scene.links.peer.flush()
        await until(lambda: len(scene.pauses) == FORWARD_WINDOW)
        assert scene.queue.ready == 99

    run(check)


def test_forwarders_follow_the_policies() -> None:
    async def check(scene: Scene) -> None:
        await scene.give("q")
        assert scene.counts.forwarders == 0
        await scene.service.change(ANYBODY, "q", Policy.parse({"role": "queue", "dead_letter": "one"}))
        scene.queue.add(dead_letter(b"1", "q"))
        scene.links.peer.flush()
        await until(lambda: len(scene.queue.outcomes) == 1)
        await scene.service.change(ANYBODY, "q", Policy.parse({"role": "queue", "dead_letter": "two"}))
        scene.queue.add(dead_letter(b"2", "q"))
        await until(lambda: len(scene.queue.outcomes) == 2)
        assert {name: len(found) for name, found in scene.sink.letters.items()} == {"one": 1, "two": 1}
        await scene.service.change(ANYBODY, "q", Policy.parse({"role": "queue", "description": "x"}))
        assert (scene.counts.forwarders, scene.links.peer.consumers) == (0, {})
        await scene.give("r", dead_letter="r/$dlq")
        assert scene.counts.forwarders == 0, "they are there already"
        await scene.service.change(ANYBODY, "q", Policy.parse({"role": "queue", "dead_letter": "one"}))
        await until(lambda: len(scene.links.peer.consumers) == 1)
        await scene.service.drop(ANYBODY, "q")
        assert (scene.counts.forwarders, scene.links.peer.consumers) == (0, {})

    run(check)


def test_those_who_are_there_at_the_start_are_found_and_a_queue_that_is_away_is_asked_again(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(forwarder, "FORWARDER_OPEN_PAUSE_MS", 0)

    async def check(scene: Scene) -> None:
        await scene.give("q", dead_letter="graves")
        late = DeadLetterForwarders(
            scene.directory,
            cast(Any, scene.links),
            cast(Any, scene.sink),
            ForwardingCounts(),
            ForwardingRoom(),
            pause=scene.pause,
        )
        scene.forwarders.close()
        scene.links.peer.delete("q/$dlq")
        late.start()
        before = scene.links.peer.opened_ever
        await until(lambda: scene.links.peer.opened_ever >= before + 3)
        scene.links.peer.create("q/$dlq")
        scene.queue.add(dead_letter(b"x", "q"))
        await until(lambda: len(scene.queue.outcomes) == 1)
        late.close()

    run(check)


def test_after_a_restart_of_the_shard_everything_that_was_not_settled_comes_again() -> None:
    async def check(scene: Scene) -> None:
        scene.sink.gate = asyncio.Event()
        scene.queue.add(*(dead_letter(b"%d" % number, "q") for number in range(20)))
        await scene.give("q", dead_letter="graves")
        await until(lambda: scene.sink.waiting == 20)
        scene.links.peer.reconnect()
        scene.sink.gate.set()
        await until(lambda: len(scene.queue.outcomes) == 20)
        assert len(scene.sink.letters["graves"]) == 40
        assert len(set(scene.sink.messages("graves"))) == 20
        await until(lambda: scene.links.peer.credit_limits[1] == 20 + FORWARD_WINDOW)

    run(check)


def test_dead_letters_that_wait_are_given_back_where_there_is_no_room(monkeypatch: Any) -> None:
    monkeypatch.setattr(forwarder, "FORWARDER_OPEN_PAUSE_MS", 0)

    async def check(scene: Scene) -> None:
        full = True
        scene.sink.refuse = lambda _name, _letter: NotSentError("amqp:x", "") if full else None
        other = scene.links.peer.queue("r/$dlq")
        sent = [dead_letter(b"%d" % number, "q") for number in range(10)]
        scene.room.__init__(12 * len(sent[0]))  # type: ignore[misc]
        for queue in (scene.queue, other):
            queue.add(*sent)
        await scene.give("q", dead_letter="graves")
        await scene.give("r", dead_letter="graves")
        await until(lambda: len(scene.pauses) > 20)
        assert scene.room.held <= 12 * len(sent[0])
        full = False
        for _ in range(100):
            scene.go_on.release()
        await until(lambda: len(scene.queue.outcomes) + len(other.outcomes) == 20)
        assert sorted(scene.sink.messages("graves")) == sorted(2 * sent)
        assert scene.room.held == 0

    run(check)


def test_what_was_given_back_is_tried_before_others_that_wait_still(monkeypatch: Any) -> None:
    monkeypatch.setattr(forwarder, "FORWARDER_OPEN_PAUSE_MS", 0)

    async def check(scene: Scene) -> None:
        scene.sink.refuse = lambda _name, _letter: NotSentError("amqp:x", "") if not scene.pauses else None
        sent = dead_letter(b"large" * 100, "q")
        scene.room.__init__(len(sent) + 10)  # type: ignore[misc]
        scene.queue.add(sent)
        await scene.give("q", dead_letter="graves")
        await until(lambda: len(scene.pauses) == 1)
        # Another source, whose target refuses all, has less. It would have the room for as long.
        other = Source(scene.room, is_waiting=True, held=1)
        other.hold(len(sent) - 10)
        await until(lambda: len(scene.queue.outcomes) == 1)
        assert other.given_back == 1
        assert scene.room.held == 0

    run(check)


def test_large_messages_are_held_a_few_at_a_time() -> None:
    async def check(scene: Scene) -> None:
        scene.sink.gate = asyncio.Event()
        large = FORWARDER_WINDOW_BYTES // 4
        scene.queue.add(*(dead_letter(b"x" * large, "q") for _ in range(30)))
        await scene.give("q", dead_letter="graves")
        await until(lambda: scene.sink.waiting == FORWARDER_WINDOW_FIRST)
        assert scene.queue.ready == 30 - FORWARDER_WINDOW_FIRST
        scene.sink.gate.set()
        await until(lambda: len(scene.queue.outcomes) == FORWARDER_WINDOW_FIRST)
        scene.sink.gate.clear()
        await until(lambda: scene.sink.waiting > FORWARDER_WINDOW_FIRST)
        assert sum(scene.queue.delivered.values()) - len(scene.queue.outcomes) <= 3
        scene.sink.gate.set()
        await until(lambda: len(scene.queue.outcomes) == 30)

    run(check)
