"""com.microsoft:renew-lock and update-disposition: locks by their tokens, and what the shard is asked."""

import uuid
from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.encoder import encode
from lightrail.amqp.link import Link
from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.values import Array, Symbol
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.service_bus.messages import (
    BUS_REASON_CHARACTERS,
    DEAD_LETTERED,
)
from lightrail.service_bus.nodes.locks import token_of
from lightrail.wire.bodies import Answer
from tests.support.amqp.frontend_scene import Client, Scene, play
from tests.support.amqp.requests import Requester
from tests.unit.frontend.test_deliveries import slice_of

Asked = list[tuple[str, str, dict[str, Any]]]
RENEW, SETTLE = "com.microsoft:renew-lock", "com.microsoft:update-disposition"
VENDOR = {Symbol("com.microsoft:receiver-name"): "x"}


def answer_for(scene: Scene, here: set[int], locked_ms: int | None = 30_000) -> Asked:
    """The shard has locks with these numbers; what it was asked is written down."""
    asked: Asked = []

    async def ask(queue: str, op: str, fields: dict[str, Any]) -> Answer:
        asked.append((queue, op, fields))
        numbers = [int(lock.rpartition("-")[2]) for lock in fields["locks"]]
        found = {
            "locked_ms": [locked_ms if each in here else 0 for each in numbers],
            "found": [each in here for each in numbers],
        }
        return Answer(found, memoryview(b""))

    scene.frontend.ask_shard = ask  # type: ignore[method-assign]
    return asked


async def received(
    scene: Scene, client: Client, requester: Requester, name: str, count: int
) -> tuple[Link, list[uuid.UUID]]:
    """A receiver of one of Azure's clients gets so many messages; it, and their lock tokens."""
    await scene.frontend.service.first_use("q")
    link = await client.receiver(requester.session, name, properties=VENDOR)
    link.keep_tags()
    scene.shard.ready()
    await client.turn()
    link.grant(count)
    await client.turn()
    consumer = list(scene.shard.consumers.values())[-1]
    consumer.deliver(slice_of(0, [write_message(Message(body="m"))] * count), 0, count)
    await client.turn()
    tags = [tag for event in client.take(events.Transfers) if event.link is link for tag in event.tags or ()]
    return link, [uuid.UUID(bytes_le=bytes(tag)) for tag in tags]


async def ask(requester: Requester, operation: str, *tokens: uuid.UUID, **fields: Any) -> dict[str, Any]:
    """The application properties of the answer."""
    body = {"lock-tokens": Array(list(tokens), 0x98)}
    body |= {key.replace("_", "-"): value for key, value in fields.items()}
    answer = await requester.ask(body, operation=operation)
    return dict(answer.application)


def lock_of(token: uuid.UUID) -> str:
    return f"{token.bytes_le[:8].hex()}-{int.from_bytes(token.bytes_le[8:], 'big')}"


def test_messages_are_settled_by_the_keys_of_their_links_and_the_links_own_numbers() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        requester = await Requester.attach(client, "q/$management")
        _, first = await received(scene, client, requester, "one", 2)
        _, second = await received(scene, client, requester, "two", 3)
        asked = answer_for(scene, {0, 1, 2})
        tokens = (first[1], second[0], second[2], second[0])
        found = await ask(requester, SETTLE, *tokens, disposition_status="completed")
        assert found["statusCode"] == 200
        one, two = (each.options.lock_key for each in scene.shard.consumers.values())
        locks = [f"{one}-1", f"{two}-0", f"{two}-2"]
        assert asked == [("q", "settle_locks", {"locks": locks, "outcome": "accepted"})]

    play(test)


def test_a_message_that_is_settled_by_its_token_is_not_unsettled_on_its_link() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        requester = await Requester.attach(client, "q/$management")
        link, (token, other) = await received(scene, client, requester, "one", 2)
        (consumer,) = scene.shard.consumers.values()
        answer_for(scene, {0, 1})
        await ask(requester, SETTLE, token, disposition_status="suspended", deadletter_reason="why")
        assert not [each for each in client.take(events.Outcome) if each.link is link]
        assert consumer.settlements.count == 1
        answer_for(scene, {1})
        found = await ask(requester, SETTLE, token, disposition_status="completed")
        assert (found["statusCode"], found["errorCondition"]) == (410, "com.microsoft:message-lock-lost")
        assert consumer.settlements.count == 1
        await ask(requester, SETTLE, other, disposition_status="completed")
        assert consumer.settlements.count == 0

    play(test)


def test_who_may_listen_settles_and_renews_what_another_connection_received() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        requester = await Requester.attach(client, "q/$management")
        _, (token,) = await received(scene, client, requester, "one", 1)
        another = await Requester.attach(scene.client(), "q/$management")
        asked = answer_for(scene, {0})
        found = await ask(another, RENEW, token)
        assert found["statusCode"] == 200
        found = await ask(another, SETTLE, token, disposition_status="completed")
        assert found["statusCode"] == 200
        assert [(op, fields["locks"]) for _, op, fields in asked] == [
            ("renew_locks", [lock_of(token)]),
            ("settle_locks", [lock_of(token)]),
        ]

    play(test)


def test_locks_that_have_ended_are_named_and_the_other_messages_are_settled() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        requester = await Requester.attach(client, "q/$management")
        _, tokens = await received(scene, client, requester, "one", 3)
        answer_for(scene, {0, 2})
        foreign = uuid.UUID(bytes_le=b"\xff" * 16)
        found = await ask(requester, SETTLE, *tokens, foreign, disposition_status="completed")
        assert (found["statusCode"], found["errorCondition"]) == (410, "com.microsoft:message-lock-lost")
        assert "found 2 of locks that have ended" in found["statusDescription"]
        for token in (tokens[1], foreign):
            assert str(token) in found["statusDescription"]
        (consumer,) = scene.shard.consumers.values()
        assert consumer.settlements.count == 1

    play(test)


@pytest.mark.parametrize(
    ("status", "fields", "outcome"),
    [
        ("completed", {}, {"outcome": "accepted"}),
        ("abandoned", {}, {"outcome": "modified", "delivery_failed": True, "annotations": ""}),
        ("defered", {}, {"outcome": "modified", "delivery_failed": False, "deferred": True}),
        (
            "abandoned",
            {"properties-to-modify": {"x-opt-a": 1}},
            {"outcome": "modified", "annotations": encode({Symbol("x-opt-a"): 1}).hex()},
        ),
        (
            "suspended",
            {"deadletter-reason": "why", "deadletter-description": "x" * 2 * BUS_REASON_CHARACTERS},
            {"outcome": "rejected", "condition": str(DEAD_LETTERED)},
        ),
        ("suspended", {}, {"outcome": "rejected", "condition": str(DEAD_LETTERED)}),
    ],
)
def test_a_disposition_becomes_an_outcome(
    status: str, fields: dict[str, Any], outcome: dict[str, Any]
) -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        requester = await Requester.attach(client, "q/$management")
        _, (token,) = await received(scene, client, requester, "one", 1)
        asked = answer_for(scene, {0})
        found = await ask(requester, SETTLE, token, disposition_status=status, **fields)
        assert found["statusCode"] == 200
        ((_, _, said),) = asked
        assert {**said, **outcome} == said
        if "deadletter-reason" in fields:
            notes = bytes.fromhex(said["annotations"])
            assert b"x-opt-deadletter-reason" in notes
            assert notes.count(b"x") < BUS_REASON_CHARACTERS + 10

    play(test)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "expected one of abandoned, completed, defered"),
        ({"disposition-status": "lost"}, "disposition-status is 'lost'"),
        ({"disposition-status": "completed", "lock-tokens": []}, "expected lock-tokens"),
        ({"disposition-status": "abandoned", "properties-to-modify": 5}, "expected a map"),
    ],
)
def test_a_bad_disposition_says_what_was_expected(fields: dict[str, Any], text: str) -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        requester = await Requester.attach(client, "q/$management")
        await received(scene, client, requester, "one", 1)
        found = await ask(requester, SETTLE, uuid.UUID(int=1), **fields)
        assert (found["statusCode"], found["errorCondition"]) == (400, "com.microsoft:argument-error")
        assert text in found["statusDescription"]

    play(test)


def test_a_token_of_a_deferred_message_names_its_lock_at_the_shard() -> None:
    async def test(scene: Scene) -> None:
        requester = await Requester.attach(scene.client(), "q/$management")
        await scene.frontend.service.give(ANYBODY, "q", Policy.parse({"role": "queue"}))
        asked = answer_for(scene, {5})
        token, other = (token_of(bytes(range(8)), sequence) for sequence in (5, 6))
        lock = {"locks": ["0001020304050607-5"]}
        found = await ask(requester, SETTLE, token, disposition_status="completed")
        assert found["statusCode"] == 200
        assert asked.pop() == ("q", "settle_locks", {**lock, "outcome": "accepted"})
        await ask(requester, SETTLE, token, disposition_status="defered")
        _, _, fields = asked.pop()
        assert (fields["outcome"], fields["deferred"]) == ("modified", True)
        found = await ask(requester, RENEW, token)
        assert found["statusCode"] == 200
        assert asked.pop() == ("q", "renew_locks", lock)
        for operation in (SETTLE, RENEW):
            found = await ask(requester, operation, other, disposition_status="completed")
            assert found["errorCondition"] == "com.microsoft:message-lock-lost"

    play(test)


def test_a_token_of_another_queue_is_no_lock_of_this_one() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        requester = await Requester.attach(client, "other/$management")
        _, (token,) = await received(scene, client, requester, "one", 1)
        await client.receiver(requester.session, "two", "other")
        asked = answer_for(scene, set())
        for operation in (RENEW, SETTLE):
            found = await ask(requester, operation, token, disposition_status="completed")
            assert found["errorCondition"] == "com.microsoft:message-lock-lost"
        assert {queue for queue, _, _ in asked} == {"other"}

    play(test)
