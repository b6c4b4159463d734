"""Numbered batches sent to queues, directly or through routers."""

import asyncio
import random
from collections.abc import Mapping, Sequence

from lightrail.gateway.errors import AGAIN, ProblemError, problem_of, refused
from lightrail.gateway.links.numbered import Batch, Message, NumberedProducer, Stored
from lightrail.gateway.links.sending import Sender
from lightrail.model import conditions, limits
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name
from lightrail.namespace.routing import UNROUTABLE, Routing
from lightrail.shard_client.shard_connections import ShardConnections


class BatchSender:
    """Stores batches at queues, directly or through routers."""

    def __init__(
        self, shards: ShardConnections, directory: Directory, sender: Sender, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._shards = shards
        self._directory = directory
        self._sender = sender
        self._loop = loop
        self._routing = Routing(directory)

    async def send(self, record: Name, batch: Batch) -> Stored:
        """Stores a batch at a queue, or at every queue that a router chooses for messages of it.

        Raises ProblemError (only a part is stored, or nothing), CoordinatorError.
        """
        if record.role is Role.QUEUE:
            self._check_sizes(record, batch.messages)
            return await self._to_queue(record, batch)
        if record.role is Role.ROUTER:
            return await self._through(record, batch)
        raise ProblemError(501, f"batches can't be sent to a {record.role}; expected a queue or a router")

    async def _to_queue(self, record: Name, batch: Batch, age_ms: int | None = None) -> Stored:
        owner = await self._shards.route(record.name)
        producer = NumberedProducer(owner, self._shards.next_link(), batch, self._loop, age_ms=age_ms)
        wait_ms = limits.REQUEST_MS + (record.policy.milliseconds("enqueue_timeout") or 0)
        return await producer.send(self._shards.now_ms(), wait_ms)

    async def _through(self, record: Name, batch: Batch) -> Stored:
        """Each queue receives its share as a separate batch, with the same number.

        So each queue detects a repeated batch, even if it moved or other queues were subscribed meanwhile.
        """
        self._check_sizes(record, batch.messages)
        by_queue, ages_ms = await self._shares(record, batch)
        records = {queue: self._directory.get(queue) for queue in by_queue}
        for queue, messages in by_queue.items():
            self._check_sizes(records[queue], messages)
        turn = asyncio.Semaphore(limits.HTTP_BATCH_QUEUES_AT_ONCE)

        async def store(queue: str) -> Stored:
            async with turn:
                share = batch._replace(messages=by_queue[queue])
                return await self._to_queue(records[queue], share, ages_ms.get(queue))

        results = await asyncio.gather(*map(store, by_queue), return_exceptions=True)
        problems = []
        for error in [each for each in results if isinstance(each, BaseException)]:
            problem = problem_of(error) if isinstance(error, Exception) else None
            if problem is None:
                raise error
            problems.append(problem)
        if problems:
            raise self._failed(record.name, len(results), problems)
        return Stored(sum(each.messages for each in results if isinstance(each, Stored)))

    async def _shares(self, record: Name, batch: Batch) -> tuple[dict[str, list[Message]], Mapping[str, int]]:
        """Messages by queue, in order, and the ages at which they expire there, where there is one.

        The same batch has the same shares while the routing is unchanged.
        """
        plan = await self._sender.routers.plan(record, self._routing)
        if plan.problem:
            raise refused(conditions.RESOURCE_LIMIT_EXCEEDED, plan.problem)
        # A router that chooses one of its subscriptions chooses the same one when the batch is sent again.
        chance = random.Random(f"{batch.identity(record.name)}-{batch.number}")
        routers = self._sender.routers
        walk = plan.begin(
            [bytes(message.data) for message in batch.messages],
            routers.looks,
            lambda count: int(chance.random() * count),
        )
        groups, unroutable = await routers.walked(walk)
        if unroutable and plan.policy["unroutable"] == "reject":
            problem = UNROUTABLE.format(router=record.name)
            raise refused(
                conditions.NOT_FOUND,
                f"{problem}: {len(unroutable)} of {len(batch.messages)}, the first of them message "
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
        return by_queue, plan.ages_ms

    def _check_sizes(self, record: Name, messages: Sequence[Message]) -> None:
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
