"""AnonymousLink: what was sent is stored, however the link ends; errors say which delivery is meant."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.events import ACCEPTED
from lightrail.amqp.link import Link
from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.performatives import AmqpError, Rejected, Source, Target
from lightrail.amqp.sections import Properties
from lightrail.amqp.values import Symbol
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.frontend.client import Claim, Claims
from lightrail.frontend.links.anonymous import ANONYMOUS_CREDIT_MAX
from lightrail.model import conditions
from lightrail.model.placement import Placement
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY, Caller
from lightrail.shard_client.owners.owner import Owner
from lightrail.wire.frames import Kind
from tests.support.amqp.frontend_scene import Client, Scene

TEMPLATE = Policy.parse({"role": "none", "auto_create": True, "template": {"lifetime": "connection"}})
TAG = Symbol("delivery-tag")
ENDS = pytest.mark.parametrize("end", ["detach", "end", "close", "lost"])


class Slow(MemoryCoordinator):
    """A coordinator that says where a queue is when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.breaks = False

    async def place(self, queue: str) -> Placement:
        await self.gate.wait()
        if self.breaks:
            raise OSError("no disk")
        return await super().place(queue)


def play(test: Callable[[Scene, Slow], Awaitable[None]]) -> None:
    async def run() -> None:
        coordinator = Slow()
        scene = await Scene.start(coordinator)
        try:
            await test(scene, coordinator)
        finally:
            scene.frontend.shard_connections.owners.close()
            scene.frontend.shard_connections.wiring.close()
            scene.frontend.deadlines.close()

    asyncio.run(run())


def letter(to: str | None, body: Any = 1) -> bytes:
    return write_message(Message(Properties(to=to), {}, body))


async def attached(client: Client, outcomes: list[str] | None = None) -> Link:
    session = await client.open()
    source = Source(outcomes=[Symbol(each) for each in outcomes] if outcomes else None)
    link = session.attach("s", True, source=source, target=Target())
    await client.turn()
    assert link.credit == ANONYMOUS_CREDIT_MAX
    return link


async def ended(client: Client, link: Link, end: str) -> None:
    if end == "detach":
        link.detach()
    elif end == "end":
        link.session.end()
    elif end == "close":
        client.amqp.close()
    else:
        client.transport.abort()
    await client.turn()


def stored(scene: Scene) -> int:
    """Messages that came to the shard since the last time."""
    return sum(each.count for each in scene.shard.take(Kind.ENQUEUE))


def answer_all(scene: Scene) -> None:
    for producer in list(scene.shard.producers.values()):
        producer.answered(1, 100)


# --- the end of a link -----------------------------------------------------------------------------------


@ENDS
@pytest.mark.parametrize("settled", [True, False])
def test_what_waits_for_its_address_when_the_link_ends_is_sent(end: str, settled: bool) -> None:
    async def test(scene: Scene, coordinator: Slow) -> None:
        client = scene.client()
        link = await attached(client)
        for number in range(5):
            link.send_one(letter(f"q{number % 2}", number), 0, settled)
        await client.turn()
        await ended(client, link, end)
        assert stored(scene) == 0
        coordinator.gate.set()
        await scene.settle()
        assert stored(scene) == 5
        # Each producer is closed when its last answer has come, and nothing is kept of the link.
        assert scene.shard.closed == []
        answer_all(scene)
        assert len(scene.shard.closed) == 2
        assert scene.frontend.counts.unanswered_bytes == 0
        assert scene.frontend.guard._by_name == {}
        assert scene.links_attached() == 0

    play(test)


def test_what_a_token_allowed_when_it_came_is_sent_after_the_connection_closed() -> None:
    async def test(scene: Scene, coordinator: Slow) -> None:
        client = scene.client()
        link = await attached(client)
        (connection,) = scene.frontend.connections
        connection.client.caller = Caller("nobody")
        claims = connection.client.claims = Claims(scene.frontend, lambda _: None)
        caller = Caller("alice", everything=True)
        claims.put("", Claim(caller, scene.time_ms + 60_000))
        link.send_one(letter("q"), 0, True)
        await client.turn()
        await ended(client, link, "lost")
        coordinator.gate.set()
        await scene.settle()
        assert stored(scene) == 1
        answer_all(scene)

    play(test)


@pytest.mark.parametrize("target", [None, "q"])
def test_who_loses_the_right_while_the_queue_is_looked_for_sends_nothing(
    monkeypatch: pytest.MonkeyPatch, target: str | None
) -> None:
    async def test(scene: Scene, coordinator: Slow) -> None:
        coordinator.gate.set()
        await scene.frontend.service.give(ANYBODY, "q", Policy.parse({"role": "queue"}))
        coordinator.gate.clear()
        place = scene.frontend.place

        async def slow(queue: str) -> Owner:
            await coordinator.gate.wait()
            return await place(queue)

        monkeypatch.setattr(scene.frontend, "place", slow)
        client = scene.client()
        link = await attached(client)
        (connection,) = scene.frontend.connections
        connection.client.caller = Caller("nobody")
        claims = connection.client.claims = Claims(scene.frontend, lambda _: None)
        claims.put("", Claim(Caller("alice", everything=True), scene.time_ms + 60_000))
        if target is None:
            link.send_one(letter("q"), 0, False)
        else:
            link.session.attach("to q", True, target=Target(address=target))
        await client.turn()
        claims.delete("")
        coordinator.gate.set()
        await client.turn()
        assert stored(scene) == 0
        if target is None:
            (outcome,) = client.take(events.Outcome)
            assert isinstance(outcome.state, Rejected)
            error = outcome.state.error
        else:
            (detached,) = client.take(events.Detached)
            error = detached.error
        assert error is not None
        assert error.condition == conditions.UNAUTHORIZED_ACCESS

    play(test)


@ENDS
def test_a_name_that_is_made_for_what_waited_goes_with_the_connection(end: str) -> None:
    """It is made by the first use, which comes after the end of what its lifetime is tied to."""

    async def test(scene: Scene, coordinator: Slow) -> None:
        service = scene.frontend.service
        await service.give(ANYBODY, "of", TEMPLATE)
        client = scene.client()
        link = await attached(client)
        made = service.first_use
        gate = asyncio.Event()

        async def later(*asked: Any, **more: Any) -> Any:
            await gate.wait()
            return await made(*asked, **more)

        service.first_use = later  # type: ignore[method-assign]
        link.send_one(letter("of/this"), 0, True)
        await client.turn()
        await ended(client, link, end)
        gate.set()
        coordinator.gate.set()
        await scene.settle()
        if end in ("detach", "end"):
            assert stored(scene) == 1
            answer_all(scene)
            client.transport.abort()
        await scene.settle()
        await scene.settle()
        scene.frontend.directory.refresh()
        assert scene.frontend.directory.find("of/this") is None

    play(test)


def test_an_address_that_can_not_be_opened_is_an_error_and_the_next_message_asks_anew() -> None:
    async def test(scene: Scene, coordinator: Slow) -> None:
        coordinator.breaks = True
        coordinator.gate.set()
        client = scene.client()
        link = await attached(client)
        link.send_one(letter("q"))
        await client.turn()
        (outcome,) = client.take(events.Outcome)
        assert isinstance(outcome.state, Rejected)
        assert outcome.state.error is not None
        assert outcome.state.error.condition == conditions.INTERNAL_ERROR
        coordinator.breaks = False
        link.send_one(letter("q"))
        await client.turn()
        assert stored(scene) == 1
        answer_all(scene)
        await client.turn()
        assert [each.state for each in client.take(events.Outcome)] == [ACCEPTED]

    play(test)


# --- what has nowhere to go (Anonymous Terminus 2.2.2) -----------------------------------------------------


@pytest.mark.parametrize("outcomes", [None, ["amqp:accepted:list", "amqp:rejected:list"]])
def test_what_can_not_be_routed_is_rejected_and_its_error_says_which_delivery(
    outcomes: list[str] | None,
) -> None:
    async def test(scene: Scene, coordinator: Slow) -> None:
        coordinator.gate.set()
        client = scene.client()
        link = await attached(client, outcomes)
        for address in ("q", "$temporary/none", "$temporary/none", None):
            link.send_one(letter(address))
        await client.turn()
        answer_all(scene)
        await client.turn()
        found = {each.first: each.state for each in client.take(events.Outcome)}
        assert found.pop(0) == ACCEPTED
        for number, state in found.items():
            assert isinstance(state, Rejected)
            assert state.error is not None
            assert state.error.condition == conditions.NOT_FOUND
            assert state.error.info == {TAG: number.to_bytes(4, "big")}
        assert sorted(found) == [1, 2, 3]
        link.send_one(letter("q"))
        await client.turn()
        assert stored(scene) == 2

    play(test)


@pytest.mark.parametrize("settled", [True, False])
def test_where_rejected_can_not_be_sent_the_link_is_detached_with_the_reason(settled: bool) -> None:
    """A message that came settled has no outcome; a source that lists others does not support rejected."""

    async def test(scene: Scene, coordinator: Slow) -> None:
        coordinator.gate.set()
        client = scene.client()
        link = await attached(client, ["amqp:accepted:list", "amqp:released:list"] if not settled else None)
        for address in ("q", "$temporary/none", "q"):
            link.send_one(letter(address), 0, settled)
        await client.turn()
        (detached,) = client.take(events.Detached)
        assert detached.closed
        error: AmqpError | None = detached.error
        assert error is not None
        assert error.condition == conditions.NOT_FOUND
        assert error.info == {TAG: (1).to_bytes(4, "big")}
        # What came settled is nobody's to send again: it is stored, whatever became of its neighbour.
        assert stored(scene) >= (2 if settled else 1)
        answer_all(scene)
        assert scene.links_attached() == 0

    play(test)


def test_a_message_that_came_settled_and_is_too_large_for_its_address_ends_the_link() -> None:
    async def test(scene: Scene, coordinator: Slow) -> None:
        coordinator.gate.set()
        small = Policy.parse({"role": "queue", "max_message_bytes": 100})
        await scene.frontend.service.give(ANYBODY, "small", small)
        client = scene.client()
        link = await attached(client)
        link.send_one(letter("small", b"x" * 200), 0, True)
        await client.turn()
        (detached,) = client.take(events.Detached)
        assert detached.error is not None
        assert detached.error.condition == conditions.MESSAGE_SIZE_EXCEEDED
        assert detached.error.info == {TAG: bytes(4)}

    play(test)


def test_each_of_many_messages_in_a_row_has_its_own_tag_in_its_error() -> None:
    """Most of them are read by comparison with the first, not by the complete decoder."""

    async def test(scene: Scene, coordinator: Slow) -> None:
        coordinator.gate.set()
        client = scene.client()
        link = await attached(client)
        for number in range(400):
            link.send_one(letter("$temporary/none", b"x" * (number % 3)))
        await client.turn()
        outcomes = client.take(events.Outcome)
        assert [each.first for each in outcomes] == list(range(400))
        for each in outcomes:
            assert each.state.error.info == {TAG: each.first.to_bytes(4, "big")}

    play(test)
