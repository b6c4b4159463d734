"""com.microsoft:receive-by-sequence-number: deferred messages with lock tokens, or removed at once."""

import uuid
from typing import Any

import pytest

from lightrail.amqp.decoder import decode
from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.sections import decode_annotations, decode_header, scan
from lightrail.amqp.values import Array, Long
from lightrail.model import limits
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.service_bus.nodes import sessions
from lightrail.service_bus.nodes.locks import key_of
from lightrail.service_bus.nodes.sessions import DEFERRED_BYTES_MAX, LOCKED_TOGETHER_MAX
from lightrail.shard.requests.lock_requests import DEFERRED_RECEIVED_MAX
from lightrail.shard_client.deadlines import left_ms
from lightrail.shard_client.peers.requests import LateError
from lightrail.wire.bodies import Answer
from tests.support.amqp.frontend_scene import Scene, play
from tests.support.amqp.requests import Requester

RECEIVE = "com.microsoft:receive-by-sequence-number"
MESSAGE = write_message(Message(body="m"))
UNTIL_MS = 1_060_000


def answer_for(scene: Scene, *sequences: int, is_settled: bool = True) -> list[tuple[str, dict[str, Any]]]:
    """The shard locks these messages; what it was asked is written down."""
    asked: list[tuple[str, dict[str, Any]]] = []

    async def ask(queue: str, op: str, fields: dict[str, Any]) -> Answer:
        asked.append((op, fields))
        if op == "settle_locks":
            return Answer({"found": [is_settled for _ in fields["locks"]]}, memoryview(b""))
        rows = [
            {
                "sequence": each,
                "attempts": 2,
                "enqueued_at_ms": 900_000,
                "expires_at_ms": None,
                "message_format": 0,
                "size": len(MESSAGE),
            }
            for each in sequences
        ]
        return Answer({"messages": rows, "locked_until_ms": UNTIL_MS}, memoryview(MESSAGE * len(rows)))

    scene.frontend.ask_shard = ask  # type: ignore[method-assign]
    return asked


async def receive(scene: Scene, *numbers: int, **fields: Any) -> Message:
    if scene.frontend.directory.find("q") is None:
        await scene.frontend.service.give(ANYBODY, "q", Policy.parse({"role": "queue"}))
    requester = await Requester.attach(scene.client(), "q/$management")
    body = {"sequence-numbers": Array([Long(number) for number in numbers], 0x81), **fields}
    return await requester.ask(body, operation=RECEIVE)


@pytest.mark.parametrize("fields", [{}, {"receiver-settle-mode": 1}])
def test_messages_come_with_the_tokens_of_their_locks(fields: dict[str, Any]) -> None:
    async def test(scene: Scene) -> None:
        asked = answer_for(scene, 3, 7)
        answer = await receive(scene, 8, 4, 8, **fields)
        assert answer.application["statusCode"] == 200
        ((op, said),) = asked
        assert (op, said["sequences"]) == ("receive_deferred", [7, 3])
        for sequence, found in zip((3, 7), answer.body["messages"], strict=True):
            notes = decode_annotations(found["message"])
            assert notes["x-opt-sequence-number"] == sequence + 1
            assert notes["x-opt-message-state"] == 1
            assert notes["x-opt-locked-until"] == UNTIL_MS
            assert decode_header(found["message"]).delivery_count == 2
            token = found["lock-token"]
            assert isinstance(token, uuid.UUID)
            area = scan(found["message"]).delivery_annotations
            assert area is not None
            section, _ = decode(found["message"], *area)
            assert section.value == {"x-opt-lock-token": token}
            assert key_of(token) == (said["key"], sequence)

    play(test)


def test_what_is_received_and_deleted_is_settled_before_the_answer() -> None:
    async def test(scene: Scene) -> None:
        asked = answer_for(scene, 3)
        answer = await receive(scene, 4, **{"receiver-settle-mode": 0})
        (found,) = answer.body["messages"]
        assert "x-opt-locked-until" not in decode_annotations(found["message"])
        assert [op for op, _ in asked] == ["receive_deferred", "settle_locks"]
        assert asked[1][1]["outcome"] == "accepted"

    play(test)


@pytest.mark.parametrize(
    ("here", "fields", "text"),
    [
        ((), {}, "found fewer"),
        ((3,), {}, "that 9 can't be read"),
        ((3, 8), {"receiver-settle-mode": 0}, "were not removed in time"),
    ],
)
def test_messages_that_are_not_there_are_not_found(
    here: tuple[int, ...], fields: dict[str, Any], text: str
) -> None:
    async def test(scene: Scene) -> None:
        answer_for(scene, *here, is_settled=False)
        found = (await receive(scene, 4, 9, **fields)).application
        assert (found["statusCode"], found["errorCondition"]) == (404, "com.microsoft:message-not-found")
        assert text in found["statusDescription"]

    play(test)


def test_so_many_messages_are_locked_together_and_none_if_one_is_missing(monkeypatch: Any) -> None:
    monkeypatch.setattr(sessions, "LOCKED_TOGETHER_MAX", 2)
    assert LOCKED_TOGETHER_MAX <= DEFERRED_RECEIVED_MAX, "the shard answers a page"

    async def test(scene: Scene) -> None:
        asked = answer_for(scene, 3, 8)
        answer = await receive(scene, 4, 9, 4 + 10)
        assert answer.application["statusCode"] == 200
        locked = [fields for _, fields in asked]
        assert [each["sequences"] for each in locked] == [[3, 8], [13]]
        assert locked[0]["key"] != locked[1]["key"]
        assert key_of(answer.body["messages"][0]["lock-token"]) == (locked[0]["key"], 3)

        async def ask(queue: str, op: str, fields: dict[str, Any]) -> Answer:
            asked.append((op, fields))
            if op == "settle_locks":
                return Answer({"found": [True for _ in fields["locks"]]}, memoryview(b""))
            rows = [
                {"sequence": each, "size": 0, "message_format": 0} for each in fields["sequences"] if each
            ]
            return Answer({"messages": rows if len(rows) == 2 else []}, memoryview(b""))

        scene.frontend.ask_shard = ask  # type: ignore[method-assign]
        asked.clear()
        found = (await receive(scene, 4, 9, 1)).application
        assert found["errorCondition"] == "com.microsoft:message-not-found"
        (released,) = (fields for op, fields in asked if op == "settle_locks")
        assert [lock.partition("-")[2] for lock in released["locks"]] == ["3", "8"]
        assert released["outcome"] == "released"

    play(test)


@pytest.mark.parametrize("fails", ["receive_deferred", "settle_locks"])
def test_no_message_stays_locked_for_a_request_whose_time_is_over(monkeypatch: Any, fails: str) -> None:
    monkeypatch.setattr(sessions, "LOCKED_TOGETHER_MAX", 1)

    async def test(scene: Scene) -> None:
        released: list[str] = []

        async def ask(queue: str, op: str, fields: dict[str, Any]) -> Answer:
            if op == "settle_locks" and fields["outcome"] == "released":
                assert left_ms(limits.REQUEST_MS) == limits.REQUEST_MS
                released.extend(lock.partition("-")[2] for lock in fields["locks"])
                return Answer({"found": [True]}, memoryview(b""))
            if op == fails and fields.get("sequences") != [3]:
                raise LateError("it came too late")
            (sequence,) = fields["sequences"]
            row = {"sequence": sequence, "size": 0, "message_format": 1}
            return Answer({"messages": [row], "locked_until_ms": UNTIL_MS}, memoryview(b""))

        scene.frontend.ask_shard = ask  # type: ignore[method-assign]
        answer = await receive(scene, 4, 9, **{"receiver-settle-mode": 0})
        assert answer.application["errorCondition"] == "com.microsoft:timeout"
        # Of the second one, the answer of the shard may have been lost.
        assert released == ["3", "8"]

    play(test)


def test_what_was_removed_is_answered_also_if_more_was_not(monkeypatch: Any) -> None:
    monkeypatch.setattr(sessions, "LOCKED_TOGETHER_MAX", 1)

    async def test(scene: Scene) -> None:
        async def ask(queue: str, op: str, fields: dict[str, Any]) -> Answer:
            if op == "settle_locks":
                (lock,) = fields["locks"]
                if lock.endswith("-9"):
                    raise LateError("it came too late")
                return Answer({"found": [not lock.endswith("-8")]}, memoryview(b""))
            (sequence,) = fields["sequences"]
            row = {"sequence": sequence, "size": len(MESSAGE), "message_format": 1}
            return Answer({"messages": [row], "locked_until_ms": UNTIL_MS}, memoryview(MESSAGE))

        scene.frontend.ask_shard = ask  # type: ignore[method-assign]
        answer = await receive(scene, 4, 9, 10, **{"receiver-settle-mode": 0})
        assert answer.application["statusCode"] == 200
        assert [key_of(each["lock-token"])[1] for each in answer.body["messages"]] == [3]

    play(test)


def test_an_answer_with_deferred_messages_is_no_larger_than_a_message(monkeypatch: Any) -> None:
    monkeypatch.setattr(sessions, "DEFERRED_BYTES_MAX", len(MESSAGE) - 1)
    assert DEFERRED_BYTES_MAX == limits.MAX_MESSAGE_BYTES

    async def test(scene: Scene) -> None:
        asked = answer_for(scene, 3)
        found = (await receive(scene, 4)).application
        assert (found["statusCode"], found["errorCondition"]) == (413, "amqp:link:message-size-exceeded")
        assert asked[-1][0] == "settle_locks"

    play(test)
