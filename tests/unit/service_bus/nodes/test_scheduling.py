"""Messages that are scheduled over $management: all or none, with the numbers of equal ones; cancelling."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lightrail.amqp.composite import write_composite
from lightrail.amqp.sections import Header, Properties
from lightrail.amqp.values import Array, Long, UInt
from lightrail.frontend.nodes.posting import Posting, PostingError
from lightrail.model import conditions, limits
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.service_bus.nodes import scheduling
from lightrail.service_bus.nodes.scheduling import (
    CANCELLED_TOGETHER_MAX,
    FIRST_PAGES_MAX,
    STORED_TOGETHER_MAX,
)
from lightrail.shard_client.deadlines import left_ms
from lightrail.shard_client.peers.requests import ShardRefusedError
from lightrail.shard_client.sending.window import Attributes
from lightrail.wire.bodies import Answer
from lightrail.wire.frames import UNKNOWN_SEQUENCE
from tests.support.amqp.frontend_scene import Scene, play
from tests.support.amqp.requests import Requester
from tests.unit.amqp.peer import data

SCHEDULE, CANCEL = "com.microsoft:schedule-message", "com.microsoft:cancel-scheduled-message"


def message(id: str | None = None, size: int = 1, priority: int = 4) -> bytes:
    head = write_composite(Header(priority=priority)) + write_composite(Properties(message_id=id))
    return head + data(b"x" * size)


class Queue:
    """A queue that stores messages by their ids, as its shard does."""

    def __init__(self, scene: Scene, *, room: int = 1 << 30, remembers: bool) -> None:
        self.stored: list[bytes | None] = []
        self.frames: list[int] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.room = room
        self.remembers = remembers
        scene.frontend.ask_shard = self.ask  # type: ignore[method-assign]

    async def store(self, _posting: Any, messages: Sequence[bytes], _attributes: Attributes) -> int:
        self.frames.append(len(messages))
        new = [each for each in messages if not (self.remembers and each in self.stored)]
        new = list(dict.fromkeys(new)) if self.remembers else new
        if len(self.stored) + len(new) > self.room:
            raise PostingError(conditions.RESOURCE_LIMIT_EXCEEDED, "it is full")
        first = len(self.stored)
        self.stored += new
        return first if new else UNKNOWN_SEQUENCE

    async def ask(self, queue: str, op: str, fields: dict[str, Any]) -> Answer:
        self.asked.append((op, fields))
        if op == "cancel":
            for each in fields["sequences"]:
                self.stored[each] = None
            return Answer({"cancelled": len(fields["sequences"])}, memoryview(b""))
        assert op == "peek"
        first, last = fields["from"], fields["from"] + fields["count"]
        found = [(at, each) for at, each in enumerate(self.stored) if first <= at < last and each is not None]
        rows = [{"sequence": at, "size": len(each), "message_format": 0} for at, each in found]
        blob = b"".join(each for _, each in found)
        following = last if last < len(self.stored) else None
        return Answer({"messages": rows, "next": following}, memoryview(blob))


def scheduling_at(
    monkeypatch: pytest.MonkeyPatch,
    check: Callable[[Queue, Requester], Any],
    *,
    room: int = 1 << 30,
    **policy: Any,
) -> None:
    async def test(scene: Scene) -> None:
        await scene.frontend.service.give(
            ANYBODY, "q", Policy.parse({"role": "queue", "delay": True, **policy})
        )
        queue = Queue(scene, room=room, remembers="duplicate_window" in policy)
        monkeypatch.setattr(Posting, "store", lambda *given: queue.store(*given))
        await check(queue, await Requester.attach(scene.client(), "q/$management"))

    play(test)


async def schedule(requester: Requester, *messages: bytes) -> Any:
    """The numbers of messages; or the condition of an error."""
    answer = await requester.ask({"messages": [{"message": each} for each in messages]}, operation=SCHEDULE)
    if answer.application["statusCode"] == 200:
        return list(answer.body["sequence-numbers"])
    return str(answer.application["errorCondition"])


def test_equal_messages_are_stored_together_and_have_neighbouring_numbers(monkeypatch: Any) -> None:
    async def check(queue: Queue, requester: Requester) -> None:
        count = STORED_TOGETHER_MAX + 5
        assert await schedule(requester, *[message()] * count) == list(range(1, count + 1))
        assert queue.frames == [STORED_TOGETHER_MAX, 5]
        assert not queue.asked

    scheduling_at(monkeypatch, check)


def test_a_message_that_was_stored_before_has_the_number_of_the_first(monkeypatch: Any) -> None:
    async def check(queue: Queue, requester: Requester) -> None:
        assert await schedule(requester, message("a")) == [1]
        assert not queue.asked
        assert await schedule(requester, message("a")) == [1]
        assert await schedule(requester, message("b"), message("a"), message("c"), message("b")) == [
            2,
            1,
            3,
            2,
        ]
        assert await schedule(requester, message(None), message("d"), message(None, 2)) == [4, 5, 6]
        assert queue.frames == [1, 1, 4, 1, 1, 1]

    scheduling_at(monkeypatch, check, duplicate_window=60)


def test_a_first_message_that_was_received_meanwhile_has_no_number(monkeypatch: Any) -> None:
    async def check(queue: Queue, requester: Requester) -> None:
        await schedule(requester, message("a"))

        async def store(*_: Any) -> int:
            return UNKNOWN_SEQUENCE

        monkeypatch.setattr(queue, "store", store)
        queue.stored[0] = None
        assert await schedule(requester, message("a")) == [0]
        answer = await requester.ask({"sequence-numbers": Array([Long(0)], 0x81)}, operation=CANCEL)
        assert answer.application["errorCondition"] == "com.microsoft:message-not-found"

    scheduling_at(monkeypatch, check, duplicate_window=60)


def test_the_first_message_is_looked_for_in_so_many_pages(monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "MANAGEMENT_PAGE_MAX", 2)
    monkeypatch.setattr(scheduling, "FIRST_PAGES_MAX", 3)
    assert FIRST_PAGES_MAX * 500 >= 50_000

    async def check(queue: Queue, requester: Requester) -> None:
        for number in range(7):
            await schedule(requester, message(f"{number}"))
        assert await schedule(requester, message("5")) == [6]
        assert await schedule(requester, message("6")) == [0]
        assert len(queue.asked) == 6

    scheduling_at(monkeypatch, check, duplicate_window=60)


def test_a_list_is_stored_as_a_whole_or_not_at_all(monkeypatch: Any) -> None:
    async def check(queue: Queue, requester: Requester) -> None:
        assert await schedule(requester, *[message(priority=n) for n in (1, 1, 2, 3)]) == (
            conditions.RESOURCE_LIMIT_EXCEEDED
        )
        assert queue.stored == [None] * 3
        assert queue.asked == [("cancel", {"sequences": [0, 1, 2]})]
        assert await schedule(requester, message(size=10), message(size=100)) == (
            conditions.MESSAGE_SIZE_EXCEEDED
        )
        assert len(queue.stored) == 3

    scheduling_at(monkeypatch, check, room=3, max_message_bytes=50)


def test_what_was_stored_is_cancelled_also_when_the_time_of_its_client_is_over(monkeypatch: Any) -> None:
    async def check(queue: Queue, requester: Requester) -> None:
        times_ms: list[int] = []

        async def ask(queue_name: str, op: str, fields: dict[str, Any]) -> Answer:
            times_ms.append(left_ms(limits.REQUEST_MS))
            return await queue.ask(queue_name, op, fields)

        monkeypatch.setattr(requester.client.scene.frontend, "ask_shard", ask)
        body = {"messages": [{"message": message(priority=each)} for each in (1, 2)]}
        over = {"operation": SCHEDULE, "com.microsoft:server_timeout": UInt(0)}
        answer = await requester.ask(body, **over)
        assert answer.application["errorCondition"] == conditions.RESOURCE_LIMIT_EXCEEDED
        assert (queue.stored, times_ms) == ([None], [limits.REQUEST_MS])

    scheduling_at(monkeypatch, check, room=1)


def test_what_a_queue_remembers_stays_and_the_repeated_list_has_its_numbers(monkeypatch: Any) -> None:
    async def check(queue: Queue, requester: Requester) -> None:
        messages = [message("a", priority=1), message("b", priority=2)]
        assert await schedule(requester, *messages) == conditions.RESOURCE_LIMIT_EXCEEDED
        assert queue.stored == messages[:1]
        queue.room = 2
        assert await schedule(requester, *messages) == [1, 2]

    scheduling_at(monkeypatch, check, room=1, duplicate_window=60)


def test_a_shard_that_does_not_answer_is_no_reason_to_slow_the_client_down(monkeypatch: Any) -> None:
    async def check(queue: Queue, requester: Requester) -> None:
        async def store(*_: Any) -> int:
            raise PostingError(conditions.INTERNAL_ERROR, "the shard did not answer")

        monkeypatch.setattr(queue, "store", store)
        assert await schedule(requester, message()) == "com.microsoft:timeout"

    scheduling_at(monkeypatch, check)


def test_what_a_transaction_cancels_is_tried_again_until_it_is_decided(monkeypatch: Any) -> None:
    async def check(queue: Queue, requester: Requester) -> None:
        await schedule(requester, message())

        async def locked(*_: Any) -> Any:
            raise ShardRefusedError(conditions.RESOURCE_LOCKED, "a transaction cancels it")

        monkeypatch.setattr(requester.client.scene.frontend, "ask_shard", locked)
        answer = await requester.ask({"sequence-numbers": Array([Long(1)], 0x81)}, operation=CANCEL)
        assert answer.application["statusCode"] == 503
        assert answer.application["errorCondition"] == conditions.TIMEOUT

    scheduling_at(monkeypatch, check)


def test_so_many_are_cancelled_by_one_request_to_the_shard(monkeypatch: Any) -> None:
    async def check(queue: Queue, requester: Requester) -> None:
        count = CANCELLED_TOGETHER_MAX + 2
        await schedule(requester, *[message()] * count)
        numbers = Array([Long(each) for each in range(1, count + 1)], 0x81)
        answer = await requester.ask({"sequence-numbers": numbers}, operation=CANCEL)
        assert answer.application["statusCode"] == 200
        assert [len(fields["sequences"]) for _, fields in queue.asked] == [CANCELLED_TOGETHER_MAX, 2]

    scheduling_at(monkeypatch, check)
