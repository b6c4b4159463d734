"""Messages with a delay on links that announce them: the queue's policy follows, and nothing overtakes."""

import asyncio
from typing import Any

from lightrail.amqp import events
from lightrail.amqp.events import ACCEPTED
from lightrail.amqp.link import DETACHED, Link
from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.performatives import Rejected, Source, Target
from lightrail.amqp.sections import Properties, with_annotations
from lightrail.amqp.values import Long, Symbol
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.frontend.links.scheduling import DELAYED_DELIVERY
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.wire.bodies import Answer
from lightrail.wire.frames import Kind
from tests.support.amqp.frontend_scene import Client, Scene, play


def plain(body: int, to: str | None = None) -> bytes:
    return write_message(Message(Properties(to=to), {}, body))


def late(body: int, to: str | None = None) -> bytes:
    return with_annotations(plain(body, to), {Symbol("x-opt-delivery-time"): Long(5_000_000)})


class Follower:
    """The shard's answers: it delays messages when `gate` is set."""

    def __init__(self, scene: Scene) -> None:
        self.gate = asyncio.Event()
        self.problem: Exception | None = None
        scene.frontend.ask_shard = self.ask  # type: ignore[method-assign]

    async def ask(self, queue: str, op: str, fields: dict[str, Any]) -> Answer:
        assert op == "queue"
        await self.gate.wait()
        if self.problem is not None:
            raise self.problem
        return Answer({"delays": True}, memoryview(b""))


async def attached(scene: Scene, target: str | None, announces: bool = True) -> tuple[Client, Link]:
    client = scene.client()
    session = await client.open()
    desired = [DELAYED_DELIVERY] if announces else None
    link = session.attach("s", True, Source(), Target(address=target), desired_capabilities=desired)
    await client.turn()
    scene.shard.ready()
    await client.turn()
    assert link.credit > 0
    return client, link


def delays(scene: Scene, queue: str = "q") -> bool:
    scene.frontend.directory.refresh()
    return bool(scene.frontend.directory.get(queue).policy["delay"])


def stored(scene: Scene) -> int:
    return sum(each.count for each in scene.shard.take(Kind.ENQUEUE))


def outcomes(client: Client) -> list[Any]:
    return [each.state for each in client.take(events.Outcome) for _ in range(each.last - each.first + 1)]


def test_a_message_with_a_delay_waits_for_the_shard_and_so_do_those_behind_it() -> None:
    async def test(scene: Scene) -> None:
        shard = Follower(scene)
        client, link = await attached(scene, "q")
        link.send_one(plain(1))
        await client.turn()
        assert (stored(scene), delays(scene)) == (1, False)
        link.send_one(late(2))
        await client.turn()
        link.send_one(plain(3))
        await client.turn()
        assert (stored(scene), delays(scene)) == (0, True)
        (producer,) = scene.shard.producers.values()
        assert producer.unanswered == 3
        shard.gate.set()
        await client.turn()
        assert stored(scene) == 2
        link.send_one(late(4))
        await client.turn()
        assert stored(scene) == 1
        producer.answered(1, 4)
        await client.turn()
        assert outcomes(client) == [ACCEPTED] * 4
        assert scene.frontend.counts.unanswered_bytes == 0

    play(test)


def test_without_the_capability_messages_are_not_looked_at() -> None:
    async def test(scene: Scene) -> None:
        client, link = await attached(scene, "q", announces=False)
        link.send_one(late(1))
        await client.turn()
        assert (stored(scene), delays(scene)) == (1, False)

    play(test)


def test_other_fields_of_the_policy_stay() -> None:
    async def test(scene: Scene) -> None:
        shard = Follower(scene)
        shard.gate.set()
        given = {"role": "queue", "priorities": 10, "max_length": 7}
        await scene.frontend.service.give(ANYBODY, "q", Policy.parse(given))
        client, link = await attached(scene, "q")
        link.send_one(late(1))
        await client.turn()
        assert stored(scene) == 1
        assert scene.frontend.directory.get("q").policy.to_json() == given | {"delay": True}

    play(test)


def test_what_waits_when_the_link_is_closed_is_stored() -> None:
    async def test(scene: Scene) -> None:
        shard = Follower(scene)
        client, link = await attached(scene, "q")
        link.send_one(late(1), 0, True)
        link.detach()
        await client.turn()
        assert (stored(scene), scene.shard.closed) == (0, [])
        shard.gate.set()
        await client.turn()
        assert stored(scene) == 1
        (producer,) = scene.shard.producers.values()
        producer.answered(1, 1)
        assert scene.shard.closed == [("producer", producer.number)]
        assert scene.frontend.counts.unanswered_bytes == 0

    play(test)


def test_where_the_policy_can_not_change_messages_with_a_delay_are_rejected_and_others_stored() -> None:
    async def test(scene: Scene) -> None:
        shard = Follower(scene)
        shard.problem = CoordinatorError("no coordinator")
        client, link = await attached(scene, "q")
        link.send_one(late(1))
        await client.turn()
        link.send_one(plain(2))
        await client.turn()
        shard.gate.set()
        await client.turn()
        assert stored(scene) == 1
        (rejected,) = outcomes(client)
        assert isinstance(rejected, Rejected)
        assert rejected.error is not None
        assert "can't be made to delay messages now" in str(rejected.error.description)
        assert link.state != DETACHED
        (producer,) = scene.shard.producers.values()
        producer.answered(1, 1)
        await client.turn()
        assert outcomes(client) == [ACCEPTED]

    play(test)


def test_a_link_without_a_target_delays_at_queues_and_says_that_routers_do_not() -> None:
    async def test(scene: Scene) -> None:
        shard = Follower(scene)
        shard.gate.set()
        await scene.frontend.service.give(ANYBODY, "t", Policy.parse({"role": "router"}))
        client, link = await attached(scene, None)
        link.send_one(late(1, "q"))
        await client.turn()
        assert (stored(scene), delays(scene)) == (1, True)
        link.send_one(late(2, "t"))
        await client.turn()
        (rejected,) = outcomes(client)
        assert isinstance(rejected, Rejected)
        assert rejected.error is not None
        assert rejected.error.condition == "amqp:not-implemented"
        assert "a router delays no messages" in str(rejected.error.description)

    play(test)


def test_a_message_that_begins_like_one_without_a_delay_up_to_its_annotations_is_looked_at() -> None:
    async def test(scene: Scene) -> None:
        shard = Follower(scene)
        shard.gate.set()
        client, link = await attached(scene, "q")
        for number in range(3):
            link.send_one(with_annotations(plain(number, "q"), {Symbol("x-opt-a"): Long(1)}))
            await client.turn()
        assert (stored(scene), delays(scene)) == (3, False)
        both = {Symbol("x-opt-a"): Long(1), Symbol("x-opt-delivery-delay"): Long(9)}
        link.send_one(with_annotations(plain(4, "q"), both))
        await client.turn()
        assert (stored(scene), delays(scene)) == (1, True)

    play(test)
