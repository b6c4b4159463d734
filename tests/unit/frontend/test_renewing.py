"""renew-locks of $management: whose deliveries it renews, what it asks the shard, what it answers."""

from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.link import Link
from lightrail.amqp.messages import Message, write_message
from lightrail.frontend.nodes.requests import CAPABILITY
from lightrail.model import limits
from lightrail.wire.bodies import Answer
from tests.support.amqp.frontend_scene import Client, Scene, play
from tests.support.amqp.requests import Requester
from tests.unit.frontend.test_deliveries import slice_of

Asked = list[tuple[str, str, dict[str, Any]]]


def answer_for(scene: Scene, locked_ms: dict[int, int | None]) -> Asked:
    """The shard answers for these delivery numbers; what it was asked is written down."""
    asked: Asked = []

    async def ask(queue: str, op: str, fields: dict[str, Any]) -> Answer:
        asked.append((queue, op, fields))
        return Answer({"locked_ms": [locked_ms.get(each, 0) for each in fields["numbers"]]}, memoryview(b""))

    scene.frontend.ask_shard = ask  # type: ignore[method-assign]
    return asked


async def received(scene: Scene, client: Client, requester: Requester, name: str, count: int) -> list[bytes]:
    """A receiver of that name gets so many messages; their delivery-tags."""
    link = await client.receiver(requester.session, name)
    link.keep_tags()
    scene.shard.ready()
    await client.turn()
    link.grant(count)
    await client.turn()
    consumer = list(scene.shard.consumers.values())[-1]
    consumer.deliver(slice_of(0, [write_message(Message(body="m"))] * count), 0, count)
    await client.turn()
    return [tag for event in client.take(events.Transfers) if event.link is link for tag in event.tags or ()]


async def ask(requester: Requester, link: str, *tags: Any) -> Any:
    answer = await requester.ask({"delivery_tags": list(tags)}, operation="renew-locks", link=link)
    assert answer.application["statusCode"] == 200, answer.application["statusDescription"]
    return answer.body["locked_ms"]


def test_deliveries_are_named_by_link_and_tag_and_looked_for_by_the_links_own_numbers() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        requester = await Requester.attach(client)
        assert client.amqp.peer_open is not None
        assert CAPABILITY in (client.amqp.peer_open.offered_capabilities or ())
        first = await received(scene, client, requester, "one", 2)
        second = await received(scene, client, requester, "two", 3)
        asked = answer_for(scene, {0: 30_000, 2: None})
        assert await ask(requester, "two", *second) == [30_000, 0, None]
        number = list(scene.shard.consumers)[-1]
        assert asked == [("q", "renew_deliveries", {"link": number, "numbers": [0, 1, 2]})]
        # Of another link, of nobody, and no tag of ours: the shard is not asked.
        assert await ask(requester, "two", first[0], b"\xff\xff\xff\xff", b"", b"much too long") == [0] * 4
        assert len(asked) == 1

    play(test)


def test_what_was_settled_or_came_from_a_shard_that_is_dead_is_not_locked() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        requester = await Requester.attach(client)
        tags = await received(scene, client, requester, "one", 3)
        asked = answer_for(scene, {0: 10, 1: 10, 2: 10})
        (link,) = [each for each in requester.session.links if each.name == "one"]
        assert isinstance(link, Link)
        link.settle(1, 1)
        assert await ask(requester, "one", *tags) == [10, 0, 10]
        # The shard is started again.
        next(iter(scene.shard.consumers.values())).reopen()
        assert await ask(requester, "one", *tags) == [0, 0, 0]
        assert len(asked) == 1

    play(test)


def test_nobody_renews_what_another_connection_has_received() -> None:
    async def test(scene: Scene) -> None:
        client, other = scene.client(), scene.client()
        requester, stranger = await Requester.attach(client), await Requester.attach(other)
        tags = await received(scene, client, requester, "one", 1)
        asked = answer_for(scene, {0: 10})
        answer = await stranger.ask({"delivery_tags": tags}, operation="renew-locks", link="one")
        assert answer.application["statusCode"] == 404
        assert not asked
        assert await ask(requester, "one", *tags) == [10]

    play(test)


@pytest.mark.parametrize(
    ("link", "body", "status", "text"),
    [
        ("", {"delivery_tags": [b"\0\0\0\0"]}, 400, "the name of a receiver"),
        ("one", None, 400, "delivery_tags"),
        ("one", {"delivery_tags": []}, 400, "delivery_tags"),
        ("one", {"delivery_tags": ["text"]}, 400, "binaries"),
        ("one", {"delivery_tags": [b"\0\0\0\0"] * (limits.LOCKS_RENEWED_MAX + 1)}, 400, "1 to 500"),
        ("none", {"delivery_tags": [b"\0\0\0\0"]}, 404, "no receiver 'none'"),
        ("from $management", {"delivery_tags": [b"\0\0\0\0"]}, 404, "of a queue"),
    ],
)
def test_a_request_that_names_no_deliveries_says_what_was_expected(
    link: str, body: Any, status: int, text: str
) -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        requester = await Requester.attach(client)
        await received(scene, client, requester, "one", 1)
        answer = await requester.ask(body, operation="renew-locks", link=link)
        assert answer.application["statusCode"] == status
        assert text in answer.application["statusDescription"]

    play(test)
