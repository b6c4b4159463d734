"""NAME/$management: what it refuses, and with which status and condition."""

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.performatives import Accepted, Rejected
from lightrail.amqp.sections import Properties, with_annotations
from lightrail.amqp.values import Array, Long, Symbol, Timestamp, UInt
from lightrail.frontend.nodes import links
from lightrail.frontend.nodes.links import NODE_REQUEST_BYTES, NODE_REQUEST_BYTES_MAX
from lightrail.frontend.nodes.replies import REFUSED_REQUEST_BYTES
from lightrail.model import limits
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.scheduled import scheduled_queue
from lightrail.service_bus.nodes.management import LAST_MS, EntityManagement, node_at
from lightrail.wire.bodies import Answer
from tests.support.amqp.frontend_scene import Scene, play
from tests.support.amqp.requests import Requester
from tests.unit.amqp.peer import data

UUID = uuid.UUID(int=7)

FOREIGN = uuid.UUID(bytes_le=b"\xff" * 16)


async def made(scene: Scene, **policy: Any) -> None:
    await scene.frontend.service.give(ANYBODY, "q", Policy.parse({"role": "queue", **policy}))


def refused(operation: str, body: Any, status: int, condition: str, text: str, **policy: Any) -> None:
    """What a request is answered with."""

    async def test(scene: Scene) -> None:
        await made(scene, **policy)
        requester = await Requester.attach(scene.client(), "q/$management")
        answer = await requester.ask(body, operation=operation)
        found = answer.application
        assert text in found["statusDescription"]
        assert (found["statusCode"], found["errorCondition"]) == (status, condition)

    play(test)


ARGUMENT = "com.microsoft:argument-error"
PEEK, RENEW = "com.microsoft:peek-message", "com.microsoft:renew-lock"
SCHEDULE, CANCEL = "com.microsoft:schedule-message", "com.microsoft:cancel-scheduled-message"
DELETE = "com.microsoft:batch-delete-messages"
RECEIVE = "com.microsoft:receive-by-sequence-number"
STATE, SESSIONS = "com.microsoft:get-session-state", "com.microsoft:get-message-sessions"


@pytest.mark.parametrize(
    ("operation", "body", "status", "condition", "text"),
    [
        ("READ", {}, 400, ARGUMENT, "begins with com.microsoft:"),
        (
            "com.microsoft:other",
            {},
            501,
            "amqp:not-implemented",
            "there are add-rule, batch-delete-messages, cancel-scheduled-message",
        ),
        (PEEK, [], 400, ARGUMENT, "with a map"),
        (PEEK, {}, 400, ARGUMENT, "from-sequence-number is None"),
        (PEEK, {"from-sequence-number": 1, "message-count": 0}, 400, ARGUMENT, "message-count is 0"),
        (PEEK, {"from-sequence-number": True}, 400, ARGUMENT, "from-sequence-number is True"),
        (PEEK, {"session-id": 1}, 400, ARGUMENT, "session-id is 1; expected a string"),
        (RENEW, {}, 400, ARGUMENT, f"1 to {limits.LOCKS_RENEWED_MAX} UUIDs"),
        (RENEW, {"lock-tokens": []}, 400, ARGUMENT, "lock-tokens"),
        (RENEW, {"lock-tokens": ["x"]}, 400, ARGUMENT, "lock-tokens"),
        (RENEW, {"lock-tokens": [UUID] * (limits.LOCKS_RENEWED_MAX + 1)}, 400, ARGUMENT, "lock-tokens"),
        (RECEIVE, {}, 400, ARGUMENT, "sequence-numbers"),
        (RECEIVE, {"sequence-numbers": [1], "receiver-settle-mode": 2}, 400, ARGUMENT, "from 0 to 1"),
        (
            RECEIVE,
            {"sequence-numbers": [1], "session-id": "s"},
            410,
            "com.microsoft:session-lock-lost",
            "found 's'",
        ),
        (STATE, {"session-id": "s"}, 410, "com.microsoft:session-lock-lost", "found 's'"),
        (STATE, {}, 400, ARGUMENT, "session-id is None; expected a string"),
        (SESSIONS, {"skip": 0, "top": 0}, 400, ARGUMENT, "top is 0"),
        (SESSIONS, {"skip": 0, "top": 1}, 400, ARGUMENT, "last-updated-time is None"),
        (SCHEDULE, {"messages": []}, 400, ARGUMENT, "expected messages"),
        (SCHEDULE, {"messages": ["x"]}, 400, ARGUMENT, "a map with an encoded message"),
        (SCHEDULE, {"messages": [{"message": b"\0\0"}]}, 400, ARGUMENT, "can't be read"),
        (CANCEL, {}, 400, ARGUMENT, "sequence-numbers"),
        (
            DELETE,
            {"message-count": 0, "enqueued-time-utc": Timestamp(1)},
            400,
            ARGUMENT,
            "message-count is 0",
        ),
        (DELETE, {"message-count": 1}, 400, ARGUMENT, "enqueued-time-utc is None"),
        (DELETE, {"message-count": 1, "session-id": "s"}, 501, "amqp:not-implemented", "of one session"),
        (CANCEL, {"sequence-numbers": [-1]}, 400, ARGUMENT, "from 0 on"),
        (CANCEL, {"sequence-numbers": []}, 400, ARGUMENT, "sequence-numbers"),
    ],
)
def test_a_bad_request_says_what_was_expected(
    operation: str, body: Any, status: int, condition: str, text: str
) -> None:
    refused(operation, body, status, condition, text, delay=True)


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        (PEEK, {"from-sequence-number": 1, "message-count": 1}),
        (SCHEDULE, {"messages": [{"message": data(b"")}]}),
        (CANCEL, {"sequence-numbers": Array([Long(1)], 0x81)}),
        (RECEIVE, {"sequence-numbers": Array([Long(1)], 0x81)}),
        (SESSIONS, {"skip": 0, "top": 1, "last-updated-time": Timestamp(0)}),
    ],
)
def test_nothing_is_found_at_a_name_that_is_not_there(operation: str, body: Any) -> None:
    async def test(scene: Scene) -> None:
        requester = await Requester.attach(scene.client(), "none/$management")
        found = (await requester.ask(body, operation=operation)).application
        assert (found["statusCode"], found["errorCondition"]) == (404, "amqp:not-found")
        assert found["statusDescription"] == "there is no queue none"

    play(test)


def test_a_queue_without_delays_schedules_nothing() -> None:
    body = {"messages": [{"message": data(b"")}]}
    refused(SCHEDULE, body, 501, "amqp:not-implemented", "field delay to true")


def test_a_dead_letter_is_not_dead_lettered_again_by_its_lock_token() -> None:
    async def test(scene: Scene) -> None:
        await made(scene)
        requester = await Requester.attach(scene.client(), "q/$dlq/$management")
        body = {"lock-tokens": [FOREIGN], "disposition-status": "suspended"}
        answer = await requester.ask(body, operation="com.microsoft:update-disposition")
        assert (answer.application["statusCode"], answer.application["errorCondition"]) == (
            400,
            "amqp:not-allowed",
        )
        assert "a dead letter, which can't be dead-lettered again" in answer.application["statusDescription"]

    play(test)


def test_messages_are_deleted_before_a_time_and_none_is_no_content() -> None:
    async def test(scene: Scene) -> None:
        await made(scene)
        asked: list[Any] = []

        async def ask(queue: str, op: str, fields: dict[str, Any]) -> Answer:
            asked.append((queue, op, fields))
            return Answer({"deleted": 5 * (len(asked) == 1)}, memoryview(b""))

        scene.frontend.ask_shard = ask  # type: ignore[method-assign]
        requester = await Requester.attach(scene.client(), "q/$management")
        body = {"message-count": 7, "enqueued-time-utc": Timestamp(1_000)}
        answer = await requester.ask(body, operation=DELETE)
        assert (answer.application["statusCode"], answer.body) == (200, {"message-count": 5})
        assert asked == [("q", "delete", {"count": 7, "before_ms": 1_000})]
        answer = await requester.ask(body, operation=DELETE)
        assert answer.application["statusCode"] == 204

    play(test)


@pytest.mark.parametrize(
    ("status", "condition", "policy"),
    [
        (403, "com.microsoft:entity-disabled", {"status": "receive_disabled"}),
        (400, "amqp:not-allowed", {"forward_to": "target"}),
    ],
)
def test_nothing_is_deleted_where_nobody_receives(
    status: int, condition: str, policy: dict[str, Any]
) -> None:
    async def test(scene: Scene) -> None:
        await scene.frontend.service.give(ANYBODY, "target", Policy.parse({"role": "queue"}))
        await made(scene, **policy)
        requester = await Requester.attach(scene.client(), "q/$management")
        body = {"message-count": 7, "enqueued-time-utc": Timestamp(1_000)}
        found = (await requester.ask(body, operation=DELETE)).application
        assert (found["statusCode"], found["errorCondition"]) == (status, condition)

    play(test)


def test_what_was_not_cancelled_is_not_found() -> None:
    async def test(scene: Scene) -> None:
        await made(scene)
        asked: list[Any] = []

        async def ask(queue: str, op: str, fields: dict[str, Any]) -> Answer:
            asked.append((queue, op, fields))
            return Answer({"cancelled": 1}, memoryview(b""))

        scene.frontend.ask_shard = ask  # type: ignore[method-assign]
        requester = await Requester.attach(scene.client(), "q/$management")
        numbers = Array([Long(1), Long(3)], 0x81)
        answer = await requester.ask({"sequence-numbers": numbers}, operation=CANCEL)
        assert answer.application["statusCode"] == 404
        assert asked == [("q", "cancel", {"sequences": [0, 2]})]
        answer = await requester.ask({"sequence-numbers": Array([Long(1)], 0x81)}, operation=CANCEL)
        assert answer.application["statusCode"] == 200

    play(test)


def test_answers_meet_their_requests_at_the_node_of_one_name() -> None:
    async def test(scene: Scene) -> None:
        await made(scene)
        client = scene.client()
        one = await Requester.attach(client, "q/$management")
        two = await Requester.attach(client, "q2/$management", session=one.session)
        for requester in (one, two):
            answer = await requester.ask({}, operation="com.microsoft:add-rule")
            assert answer.application["statusCode"] == 404

    play(test)


def test_the_node_is_below_a_name() -> None:
    node = node_at("q/$management")
    assert isinstance(node, EntityManagement)
    cases = (UInt(1_500), 1_500), (0, LAST_MS), (-1, None), ("1", None), (True, None), (None, None)
    # That for Go writes the prefix to schedule and to cancel alone.
    for name in ("com.microsoft:server-timeout", "server-timeout"):
        for given, found in cases:
            application = {} if given is None else {name: given}
            assert node.wait_ms(write_message(Message(Properties(), application, None))) == found
    assert node.wait_ms(b"com.microsoft:server-timeout") is None
    assert node_at("$management") is None
    assert node_at("/$management") is None
    assert not node.silent(b"")


def scheduled(body: bytes, due_ms: int) -> bytes:
    """An encoded message for this time."""
    annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(due_ms)}
    return with_annotations(data(body), annotations)


def of_topic(check: Callable[[Scene, Requester], Awaitable[None]], **policy: Any) -> None:
    """Runs a check with the management node of a router."""

    async def test(scene: Scene) -> None:
        await scene.frontend.service.give(ANYBODY, "t", Policy.parse({"role": "router", **policy}))
        await check(scene, await Requester.attach(scene.client(), "t/$management"))

    play(test)


def test_nothing_is_cancelled_at_a_router_without_scheduled_messages() -> None:
    async def check(_scene: Scene, requester: Requester) -> None:
        answer = await requester.ask({"sequence-numbers": Array([Long(1)], 0x81)}, operation=CANCEL)
        found = answer.application
        assert (found["statusCode"], found["errorCondition"]) == (404, "com.microsoft:message-not-found")
        assert (
            "0 of 1 messages were cancelled; the others are not scheduled in t" in found["statusDescription"]
        )

    of_topic(check)


def test_what_is_cancelled_at_a_router_waits_in_its_queue_of_scheduled_messages() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        await scheduled_queue(scene.frontend.service, "t")
        asked: list[Any] = []

        async def ask(queue: str, op: str, fields: dict[str, Any]) -> Answer:
            asked.append((queue, op, fields))
            return Answer({"cancelled": 2}, memoryview(b""))

        scene.frontend.ask_shard = ask  # type: ignore[method-assign]
        numbers = Array([Long(1), Long(3)], 0x81)
        answer = await requester.ask({"sequence-numbers": numbers}, operation=CANCEL)
        assert answer.application["statusCode"] == 200
        assert asked == [("t/$scheduled", "cancel", {"sequences": [0, 2]})]

    of_topic(check)


def test_a_message_that_is_too_large_for_a_router_is_not_scheduled() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        body = {"messages": [{"message": scheduled(b"x" * 100, 1 << 50)}]}
        found = (await requester.ask(body, operation=SCHEDULE)).application
        condition = "amqp:link:message-size-exceeded"
        assert (found["statusCode"], found["errorCondition"]) == (413, condition)
        assert "t accepts at most 100" in found["statusDescription"]
        scene.frontend.directory.refresh()
        assert scene.frontend.directory.find("t/$scheduled") is None

    of_topic(check, max_message_bytes=100)


@pytest.mark.parametrize(
    ("size", "waiting", "status", "condition"),
    [
        (NODE_REQUEST_BYTES, NODE_REQUEST_BYTES_MAX, 413, "amqp:link:message-size-exceeded"),
        (10_000, 5_000, 503, "com.microsoft:timeout"),
    ],
)
def test_a_request_with_too_many_bytes_is_answered_and_its_link_goes_on(
    monkeypatch: pytest.MonkeyPatch, size: int, waiting: int, status: int, condition: str
) -> None:
    monkeypatch.setattr(links, "NODE_REQUEST_BYTES_MAX", waiting)

    async def test(scene: Scene) -> None:
        await made(scene)
        requester = await Requester.attach(scene.client(), "q/$management")
        answer = await requester.ask({"x": b"x" * size}, operation=PEEK)
        assert (answer.application["statusCode"], answer.application["errorCondition"]) == (status, condition)
        assert requester.outcomes() == [Accepted()]
        (connection,) = scene.connections
        assert connection.node_links is not None
        assert connection.node_links.request_bytes == 0
        answer = await requester.ask({}, operation=PEEK)
        assert answer.application["errorCondition"] == ARGUMENT

    play(test)


def test_of_a_request_with_too_many_bytes_no_large_ids_are_kept() -> None:
    async def test(scene: Scene) -> None:
        await made(scene)
        requester = await Requester.attach(scene.client(), "q/$management")
        node_links = scene.connections[0].node_links
        assert node_links is not None
        for size, outcome in ((1, Accepted), (REFUSED_REQUEST_BYTES, Rejected)):
            properties = Properties(message_id="m" * size, reply_to="me")
            requester.sender.send_one(
                write_message(Message(properties, {"operation": PEEK}, {"x": b"x" * NODE_REQUEST_BYTES}))
            )
            kept = 0
            for _ in range(20):
                await requester.client.turn()
                kept = max(kept, node_links.request_bytes)
            assert kept < REFUSED_REQUEST_BYTES
            assert [type(each) for each in requester.outcomes()] == [outcome]
            assert node_links.request_bytes == 0

    play(test)
