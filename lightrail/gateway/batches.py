"""Numbered batches over HTTP: POST /name/!batch stores each batch of a named producer once.

The body is u32 count, u32 ends[count] (little-endian, counted from the first byte of the first message), the
encoded messages. `LightRail-Producer` names the producer, `LightRail-Batch` numbers the batch. An answer of
200 says that the batch is where its queues' policies want it; whatever else comes, also nothing, the same
batch may be sent again under the same number, through any gateway.
"""

import asyncio
import random
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from aiohttp import web

from lightrail.amqp.sections import attributes, scan
from lightrail.amqp.types import DecodeError
from lightrail.gateway.asked import Asked, whole_number
from lightrail.gateway.errors import AGAIN, Problem, problem_of, refused
from lightrail.gateway.messages import used
from lightrail.gateway.numbered import Batch, Message, NumberedProducer, Stored
from lightrail.gateway.sending import Sender
from lightrail.gateway.shards import Shards
from lightrail.model import conditions, limits
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name, Right
from lightrail.namespace.routing import UNROUTABLE, Routing

PRODUCER: Final = "LightRail-Producer"
BATCH: Final = "LightRail-Batch"
_COUNT: Final = struct.Struct("<I")
_CHECKED_AT_ONCE: Final = 2_000
"""Messages that are looked at before other requests get their turn."""


async def store(asked: Asked) -> web.Response:
    """POST /name/!batch."""
    producer, number = _producer(asked), _number(asked)
    record = await used(asked, Right.SEND)
    sender = asked.gateway.sender
    most = max(limits.HTTP_BATCH_BYTES, asked.gateway.settings.max_message_bytes + 2 * _COUNT.size)
    reserved = min(asked.request.content_length or 0, most)
    sender.reserve(reserved)

    def taken(size: int) -> None:
        nonlocal reserved
        sender.reserve(size)
        reserved += size

    try:
        body = await asked.body(most, None if reserved else taken)
        messages = await _messages(body, asked.gateway.settings.max_message_bytes)
        batch = Batch(asked.caller.user, producer, number, messages)
        stored = await asked.gateway.batches.send(record, batch)
    finally:
        sender.release(reserved)
    asked.gateway.counts.sent += stored.messages
    return web.json_response({"stored": stored.messages, "duplicate": not stored.messages})


class BatchSender:
    """Brings batches to queues, and through routers to the queues behind them."""

    def __init__(
        self, shards: Shards, directory: Directory, sender: Sender, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._shards = shards
        self._directory = directory
        self._sender = sender
        self._loop = loop
        self._routing = Routing(directory)

    async def send(self, record: Name, batch: Batch) -> Stored:
        """Stores a batch at a queue, or at every queue that a router gives messages of it to.

        Raises Problem: not all of it is stored. Raises CoordinatorError.
        """
        if record.role is Role.QUEUE:
            self._check_sizes(record, batch.messages)
            return await self._to_queue(record, batch)
        if record.role is Role.ROUTER:
            return await self._through(record, batch)
        raise Problem(501, f"batches can't be sent to a {record.role}; expected a queue or a router")

    async def _to_queue(self, record: Name, batch: Batch) -> Stored:
        owner = await self._shards.route(record.name)
        producer = NumberedProducer(owner, self._shards.next_link(), batch, self._loop)
        wait_ms = limits.REQUEST_MS + (record.policy.milliseconds("enqueue_timeout") or 0)
        return await producer.send(self._shards.now_ms(), wait_ms)

    async def _through(self, record: Name, batch: Batch) -> Stored:
        """Each queue gets its share as a batch of its own, under the same number.

        So what a queue has stored is known there, wherever it is and whatever else was subscribed meanwhile.
        """
        self._check_sizes(record, batch.messages)
        by_queue = await self._shares(record, batch)
        records = {queue: self._directory.get(queue) for queue in by_queue}
        for queue, messages in by_queue.items():
            self._check_sizes(records[queue], messages)
        turn = asyncio.Semaphore(limits.HTTP_BATCH_QUEUES_AT_ONCE)

        async def bring(queue: str) -> Stored:
            async with turn:
                return await self._to_queue(records[queue], batch._replace(messages=by_queue[queue]))

        results = await asyncio.gather(*map(bring, by_queue), return_exceptions=True)
        problems = []
        for error in [each for each in results if isinstance(each, BaseException)]:
            problem = problem_of(error) if isinstance(error, Exception) else None
            if problem is None:
                raise error
            problems.append(problem)
        if problems:
            raise self._failed(record.name, len(results), problems)
        return Stored(sum(each.messages for each in results if isinstance(each, Stored)))

    async def _shares(self, record: Name, batch: Batch) -> dict[str, list[Message]]:
        """Messages by queue, in order; the same for the same batch as long as the routing is the same."""
        plan = await self._sender.routers.plan(record, self._routing)
        if plan.problem:
            raise refused(conditions.RESOURCE_LIMIT_EXCEEDED, plan.problem)
        # Routers that choose one of their subscriptions choose the same one when the batch comes again.
        chance = random.Random(f"{batch.identity(record.name)}-{batch.number}")
        routers = self._sender.routers
        walk = plan.begin(
            [bytes(message.data) for message in batch.messages],
            routers.looks,
            lambda count: int(chance.random() * count),
        )
        groups, unroutable = await routers.walked(walk)
        if unroutable and plan.policy["unroutable"] == "reject":
            said = UNROUTABLE.format(router=record.name)
            raise refused(
                conditions.NOT_FOUND,
                f"{said}: {len(unroutable)} of {len(batch.messages)}, the first of them message "
                f"{unroutable[0]}; nothing of the batch is stored",
            )
        by_queue: dict[str, list[Message]] = {}
        for group in groups:
            found = [
                batch.messages[index]._replace(data=payload)
                for index, payload in zip(group.indices, group.payloads, strict=True)
            ]
            for queue in sorted(group.queues):
                by_queue.setdefault(queue, []).extend(found)
        return by_queue

    def _check_sizes(self, record: Name, messages: Sequence[Message]) -> None:
        """Nothing of a batch is stored of which one message will never be taken."""
        most = record.policy["max_message_bytes"] if record.role in (Role.QUEUE, Role.ROUTER) else None
        if most is None:
            return
        for index, message in enumerate(messages):
            if len(message.data) > most:
                raise refused(
                    conditions.MESSAGE_SIZE_EXCEEDED,
                    f"message {index} has {len(message.data)} bytes; {record.name} takes at most {most}. "
                    "Nothing of the batch is stored",
                )

    def _failed(self, router: str, queues: int, problems: Sequence[Problem]) -> Problem:
        """Told of the first failure; a queue that went away is one that the router no longer feeds."""
        first = problems[0]
        passes = all(problem.status in (404, 503) for problem in problems)
        return Problem(
            503 if passes else next(each.status for each in problems if each.status not in (404, 503)),
            f"{first.detail}. {queues - len(problems)} of {queues} queues behind {router} have all of the "
            "batch: send it again, under the same number, for the others",
            headers=AGAIN if passes else None,
            queues=queues,
            queues_failed=len(problems),
        )


# --- the request --------------------------------------------------------------------------------------


def _producer(asked: Asked) -> str:
    text = asked.request.headers.get(PRODUCER, "")
    if not text or not text.isprintable() or len(text.encode(errors="replace")) > limits.HTTP_PRODUCER_BYTES:
        raise Problem(
            400,
            f"the header {PRODUCER} is {text[:80]!a}; expected a name for the producer, of 1 to "
            f"{limits.HTTP_PRODUCER_BYTES} bytes: the batches of one are told apart by their numbers",
            field=PRODUCER,
        )
    return text


def _number(asked: Asked) -> int:
    return whole_number(BATCH, asked.request.headers.get(BATCH, ""), 0, limits.HTTP_BATCH_NUMBER_MAX)


async def _messages(body: bytes, most: int) -> list[Message]:
    """The messages of a body, each looked at. Raises Problem: nothing is stored then."""
    view = memoryview(body)
    ends = _ends(view)
    base = _COUNT.size * (1 + len(ends))
    messages = []
    start = 0
    for index, end in enumerate(ends):
        if end - start > most:
            raise refused(
                conditions.MESSAGE_SIZE_EXCEEDED,
                f"message {index} has {end - start} bytes; this broker takes at most {most}. Nothing of the "
                "batch is stored",
            )
        messages.append(_message(index, view[base + start : base + end]))
        start = end
        if index % _CHECKED_AT_ONCE == _CHECKED_AT_ONCE - 1:
            await asyncio.sleep(0)
    return messages


def _ends(view: memoryview) -> Sequence[int]:
    layout = "u32 count, u32 ends[count], the messages; little-endian"
    if len(view) < _COUNT.size:
        raise Problem(400, f"the body has {len(view)} bytes; expected {layout}")
    (count,) = _COUNT.unpack_from(view)
    base = _COUNT.size * (1 + count)
    if not 1 <= count <= limits.HTTP_BATCH_MESSAGES:
        raise Problem(
            400, f"the batch says that it has {count} messages; expected 1 to {limits.HTTP_BATCH_MESSAGES}"
        )
    if len(view) < base:
        raise Problem(400, f"the body has {len(view)} bytes and says {count} messages; expected {layout}")
    ends = struct.unpack_from(f"<{count}I", view, _COUNT.size)
    if ends[-1] != len(view) - base or any(a > b for a, b in pairwise(ends)):
        raise Problem(
            400,
            f"the ends of the messages do not rise to {len(view) - base}, the bytes behind them; expected "
            f"{layout}",
        )
    return ends


def _message(index: int, data: memoryview) -> Message:
    """Who sends batches wants them kept: a message is durable where no header says otherwise."""
    try:
        if not data:
            raise DecodeError("it has no bytes")
        # Without a body it may be: qpid-proton sends those, and so does who replays them.
        sections = scan(data)
        durable, priority, ttl_ms, expires_at_ms = attributes(data)
    except DecodeError as error:
        raise Problem(
            422, f"message {index} of the batch is no AMQP message: {error}; nothing of the batch is stored"
        ) from None
    return Message(data, durable or sections.header is None, priority, ttl_ms, expires_at_ms)
