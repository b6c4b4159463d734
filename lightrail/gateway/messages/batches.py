"""Numbered batches of named producers: stored once, however often they are sent.

A shard keeps the last number of each producer in its journal, and transfers it when a queue moves. The
producer is not a link but a name chosen by the client, per queue and user, so the same batch may be sent
again through any gateway. Batches of one producer are sent one after the other, with rising numbers.

Messages that differ in durability, priority or time to live are sent in separate frames, in order. The number
of a frame is (batch + 1) << 16 | index, so the same batch always has the same frames.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from typing import Final, NamedTuple

from lightrail.gateway.errors import AGAIN, ProblemError, problem_of, refused
from lightrail.gateway.messages.sending import NameSender
from lightrail.model import conditions, limits
from lightrail.model.policy import Role
from lightrail.namespace.ages import NEVER, earlier_expiry, expiry, life_of_copy
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name
from lightrail.namespace.routing import UNROUTABLE
from lightrail.shard_client.owners.owner import Owner
from lightrail.shard_client.sending.queue_producer import BatchAnswer, Part, QueueProducer
from lightrail.shard_client.sending.window import MAYBE_STORED, NOT_STORED, Attributes
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import IDENTITY

HTTP_BATCH_QUEUES_AT_ONCE: Final[int] = 16
"""Queues of a router that a numbered batch is sent to at a time."""
_INDEX_BITS: Final = 16


class BatchMessage(NamedTuple):
    """An encoded message, and the fields of its header and properties that a frame needs."""

    data: bytes | memoryview
    durable: bool
    priority: int
    ttl_ms: int | None
    expires_at_ms: int | None


def _changed(message: BatchMessage, data: bytes) -> BatchMessage:
    """What actions have made of a message."""
    life_ms = life_of_copy(data)
    if life_ms is None:
        return message._replace(data=data)
    return message._replace(data=data, ttl_ms=None if life_ms == NEVER else life_ms, expires_at_ms=None)


class RequestBatch(NamedTuple):
    """The messages of one request for one queue."""

    user: str
    producer: str
    number: int
    messages: Sequence[BatchMessage]

    def identity(self, queue: str) -> int:
        """The producer's id at the shard of a queue.

        The id depends on the user, so that batches of two users are never taken for the same batch.
        """
        text = "\0".join((self.user, self.producer, queue)).encode(errors="surrogatepass")
        return int.from_bytes(blake2b(text, digest_size=8).digest()) | IDENTITY

    def parts(self, now_ms: int, age_ms: int | None) -> Iterator[Part]:
        """Its frames. They stay the same whatever the age, so that a repeated batch has the same frames."""
        for (durable, priority, ttl_ms, expires), run in groupby(self.messages, key=lambda each: each[1:]):
            expires_at_ms = now_ms + ttl_ms if ttl_ms is not None else 0
            if expires is not None:
                expires_at_ms = max(1, earlier_expiry(expires_at_ms, expires))
            if age_ms is not None:
                expires_at_ms = expiry(expires_at_ms, now_ms, age_ms)
            yield Attributes(durable, priority, expires_at_ms, 0), [message.data for message in run]


async def store(
    owner: Owner,
    number: int,
    batch: RequestBatch,
    *,
    now_ms: int,
    wait_ms: int,
    age_ms: int | None = None,
    is_routed: bool = False,
) -> int:
    """Stores a batch at its queue; returns once all of it is stored as the policy requires.

    Returns how many of its messages this request stored; the others were stored before.

    Args:
        number: of the link, which is open until the batch is answered.
        age_ms: at which messages expire at the latest, by the policies of routers; None for no bound.
        is_routed: whether a router chose the queue.

    Raises ProblemError: only a part of the batch is stored, or the shard did not answer in time.
    """
    producer = QueueProducer(
        owner,
        number,
        label="http batch",
        sequences=True,
        is_routed=is_routed,
        identity=batch.identity(owner.queue),
        first=batch.number + 1 << _INDEX_BITS,
    )
    try:
        sent = await producer.send(list(batch.parts(now_ms, age_ms)), wait_ms)
    finally:
        producer.close()
    if sent.refusal is not None:
        raise _not_stored(batch, owner.queue, sent, sent.refusal)
    return sent.new


def _not_stored(batch: RequestBatch, queue: str, sent: BatchAnswer, refusal: Refusal) -> ProblemError:
    if refusal is NOT_STORED or refusal is MAYBE_STORED:
        return ProblemError(
            503,
            f"the shard of {queue} has not answered in time: the batch may or may not be stored; send it "
            "again, under the same number",
            headers=AGAIN,
        )
    why = refused(refusal.condition, refusal.description)
    if refusal.condition == conditions.STOLEN:
        return ProblemError(
            503,
            f"another request of the producer {batch.producer!a} reached {queue} while this one was under "
            "way; send the batch again, under the same number",
            headers=AGAIN,
            condition=refusal.condition,
        )
    if sent.is_ended:
        return why
    detail = (
        f"{why.detail}; the first {sent.stored} of {len(batch.messages)} messages are stored in {queue}: "
        "send the batch again, under the same number, and the rest will be"
    )
    members = why.members | {"stored": sent.stored, "messages": len(batch.messages)}
    return ProblemError(why.status, detail, headers=why.headers, **members)


@dataclass(eq=False, repr=False)
class BatchSender:
    """Stores batches at queues, directly or through routers."""

    _shards: ShardConnections
    _directory: Directory
    _sender: NameSender
    _loop: asyncio.AbstractEventLoop

    async def send(self, record: Name, batch: RequestBatch) -> int:
        """Stores a batch at a queue, or at every queue that a router chooses for messages of it: see `store`.

        Raises ProblemError (only a part is stored, or nothing), CoordinatorError.
        """
        if record.role is Role.QUEUE:
            self._check_sizes(record, batch.messages)
            return await self._to_queue(record, batch)
        if record.role is Role.ROUTER:
            return await self._through(record, batch)
        raise ProblemError(501, f"batches can't be sent to a {record.role}; expected a queue or a router")

    async def _to_queue(
        self, record: Name, batch: RequestBatch, age_ms: int | None = None, *, is_routed: bool = False
    ) -> int:
        owner = await self._shards.route(record.name)
        wait_ms = limits.REQUEST_MS + (record.policy.milliseconds("enqueue_timeout") or 0)
        now_ms, number = self._shards.now_ms(), self._shards.next_link()
        return await store(
            owner, number, batch, now_ms=now_ms, wait_ms=wait_ms, age_ms=age_ms, is_routed=is_routed
        )

    async def _through(self, record: Name, batch: RequestBatch) -> int:
        """Each queue receives its share as a separate batch, with the same number.

        So each queue detects a repeated batch, even if it moved or other queues were subscribed meanwhile.
        """
        self._check_sizes(record, batch.messages)
        by_queue, ages_ms = await self._shares(record, batch)
        records = {queue: self._directory.get(queue) for queue in by_queue}
        for queue, messages in by_queue.items():
            self._check_sizes(records[queue], messages)
        turn = asyncio.Semaphore(HTTP_BATCH_QUEUES_AT_ONCE)

        async def store(queue: str) -> int:
            async with turn:
                share = batch._replace(messages=by_queue[queue])
                return await self._to_queue(records[queue], share, ages_ms.get(queue), is_routed=True)

        results = await asyncio.gather(*map(store, by_queue), return_exceptions=True)
        problems = []
        for error in [each for each in results if isinstance(each, BaseException)]:
            problem = problem_of(error) if isinstance(error, Exception) else None
            if problem is None:
                raise error
            problems.append(problem)
        if problems:
            raise self._failed(record.name, len(results), problems)
        return sum(each for each in results if isinstance(each, int))

    async def _shares(
        self, record: Name, batch: RequestBatch
    ) -> tuple[dict[str, list[BatchMessage]], Mapping[str, int]]:
        """Messages by queue, in order, and the ages at which they expire there, where there is one.

        The same batch has the same shares while the routing is unchanged.
        """
        routers = self._sender.routers
        plan = await routers.plan(record)
        if plan.problem:
            raise refused(plan.problem.condition, plan.problem.description)
        # A router that chooses one of its subscriptions chooses the same one when the batch is sent again.
        chance = random.Random(f"{batch.identity(record.name)}-{batch.number}")
        walk = plan.begin(
            [bytes(message.data) for message in batch.messages],
            routers.routers.looks,
            self._shards.now_ms(),
            lambda count: int(chance.random() * count),
        )
        groups, unroutable = await routers.routers.routed(walk)
        if unroutable and plan.policy["unroutable"] == "reject":
            problem = UNROUTABLE.format(router=record.name)
            raise refused(
                conditions.NOT_FOUND,
                f"{problem}: {len(unroutable)} of {len(batch.messages)}, the first of them message "
                f"{unroutable[0]}; nothing of the batch is stored",
            )
        by_queue: dict[str, list[BatchMessage]] = {}
        for group in groups:
            found = [
                _changed(batch.messages[index], payload)
                for index, payload in zip(group.indices, group.payloads, strict=True)
            ]
            # Always the sources: a batch that is sent again has the same queues, whatever has refused it.
            for queue in sorted(plan.at_sources(group.queues)):
                by_queue.setdefault(queue, []).extend(found)
        return by_queue, plan.ages_ms

    def _check_sizes(self, record: Name, messages: Sequence[BatchMessage]) -> None:
        """Raises ProblemError for a message that is too large; then nothing of the batch is stored."""
        most = record.policy["max_message_bytes"] if record.role in (Role.QUEUE, Role.ROUTER) else None
        if most is None:
            return
        for index, message in enumerate(messages):
            if len(message.data) > most:
                raise refused(
                    conditions.MESSAGE_SIZE_EXCEEDED,
                    f"message {index} has {len(message.data)} bytes; {record.name} accepts at most {most}. "
                    "Nothing of the batch is stored",
                )

    def _failed(self, router: str, queues: int, problems: Sequence[ProblemError]) -> ProblemError:
        """The first failure. A deleted queue does not fail again: the router no longer feeds that queue."""
        first = problems[0]
        passes = all(problem.status in (404, 503) for problem in problems)
        return ProblemError(
            503 if passes else next(each.status for each in problems if each.status not in (404, 503)),
            f"{first.detail}. {queues - len(problems)} of {queues} queues behind {router} have all of the "
            "batch: send it again, under the same number, for the others",
            headers=AGAIN if passes else None,
            queues=queues,
            queues_failed=len(problems),
        )
