"""Transferring: passes on what is stored in queues that forward, by `forward_to` of their policies (ADR 66).

One consumer of each such queue is active over all gateways. It takes batches in their order, and settles and
sends each of them in one transaction: a message is in its queue, or where it is forwarded to, never in both
and never in neither. What the target refuses is moved to the dead letters of NAME/$transfer in the same way.
"""

import asyncio
import json
import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, Final

from lightrail.amqp.values import DecodeError, Symbol, Timestamp
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.gateway.forwarding.counts import ForwardingCounts
from lightrail.gateway.forwarding.forwarder import Forwarder, Pause, Roster
from lightrail.gateway.forwarding.next_queues import (
    TOO_MANY_HOPS,
    NextQueues,
    PostedCopies,
    RefusedError,
    parts_of,
)
from lightrail.gateway.forwarding.room import ForwardingRoom
from lightrail.gateway.forwarding.sink import moved, with_error
from lightrail.gateway.messages.sending import RouterSender
from lightrail.model import conditions, limits
from lightrail.model.names import dead_letter_name, transfer_name
from lightrail.model.policy import Role
from lightrail.namespace.records import Name, Right, refused_by_status
from lightrail.namespace.service import Service
from lightrail.namespace.statuses import LimitExceededError
from lightrail.namespace.transfer_queues import transfer_queue
from lightrail.shard_client.commits import CommitParts, CommitRefusedError, Request
from lightrail.shard_client.receiving.queue_consumer import Delivery
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.bodies import Refusal, SettleDetail
from lightrail.wire.frames import OutcomeCode

TRANSFERRED_AT_ONCE: Final[int] = 100
"""Messages of a queue that forwards which one transaction passes on."""
TRANSFERRED_WINDOW: Final[int] = 400
"""Messages of such a queue that a gateway holds."""
TRANSFER_PAUSE_MS: Final[int] = 100
"""Pause before a message that could neither be passed on nor moved to the dead letters is tried again; it
doubles up to TRANSFER_PAUSE_MS_MAX."""
TRANSFER_PAUSE_MS_MAX: Final[int] = 60_000

FINAL: Final = frozenset(
    (conditions.RESOURCE_LIMIT_EXCEEDED, conditions.MESSAGE_SIZE_EXCEEDED, conditions.NOT_ALLOWED)
)
"""Refusals of a shard that speak for the target. A queue that the directory has and its shard does not know
yet is none, nor is a delivery that the shard has given back."""

_RETURNED: Final = conditions.TRANSACTION_ROLLBACK
"""Refusal of a transaction some of whose deliveries are in their queue again, or settled by others."""

log = logging.getLogger("lightrail.gateway.forwarding.transferring")

_REASON: Final = Symbol("x-opt-dead-letter-reason")
_CONDITION: Final = Symbol("x-opt-dead-letter-condition")
_DESCRIPTION: Final = Symbol("x-opt-dead-letter-description")
_SOURCE: Final = Symbol("x-opt-dead-letter-source")
_TIME: Final = Symbol("x-opt-dead-letter-time")
_REJECTED: Final = Symbol("rejected")
"""As a shard writes them to a dead letter that a client has rejected."""


class QueueForwarder(Forwarder):
    """Passes on the messages of one queue."""

    __slots__ = (
        "_batch",
        "_commits",
        "_host",
        "_is_paused",
        "_line",
        "_next_queues",
        "_shards",
        "_worker",
    )

    def __init__(
        self, queue: str, target: str, host: "QueueForwarders", lost: Callable[[Forwarder], None]
    ) -> None:
        label = f"forwarder to {target}"
        super().__init__(queue, window=TRANSFERRED_WINDOW, label=label, lost=lost, room=host.room)
        self._host = host
        shards = self._shards = host.shards
        self._next_queues = NextQueues(host.service.directory, host.routers, queue)
        self._commits = CommitParts(
            shards.owners,
            shards.boot << 32 | shards.next_link(),
            shards.now_ms,
            is_waiting=lambda: not self._is_closed,
        )
        self._line: deque[Delivery] = deque()
        self._batch: Sequence[Delivery] = ()
        """The deliveries of the transaction under way."""
        self._worker: asyncio.Task[None] | None = None
        self._is_paused = False

    @property
    def is_waiting(self) -> bool:
        """See MessageHolder."""
        return self._is_paused

    def give_back(self) -> None:
        """See MessageHolder. The first attempt after it comes before others that wait already."""
        self._is_paused = False
        super().give_back()

    @property
    def held(self) -> int:
        """Messages in flight."""
        return len(self._line) + len(self._batch)

    async def open(self, shards: ShardConnections) -> None:
        """See Forwarder. Also raises ServiceError: the queue was deleted."""
        try:
            await transfer_queue(self._host.service, self.queue)
        except LimitExceededError as error:
            log.warning("what %s can't forward waits there, without a place for it: %s", self.queue, error)
        await super().open(shards)

    def arrived(self, deliveries: list[Delivery]) -> None:
        """Adds deliveries to the line, which one task works through."""
        self._line.extend(deliveries)
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work_through())
        self._note_sizes(deliveries)
        self._hold(_size(deliveries))
        self._top_up()

    def _cancel(self) -> None:
        super()._cancel()
        self._line.clear()
        self._batch = ()
        if self._worker is not None:
            # The shard returns the deliveries of a transaction only if it has not applied it.
            self._worker.cancel()
            self._worker = None

    # --- batches ---------------------------------------------------------------------------------------

    async def _work_through(self) -> None:
        pause_ms = TRANSFER_PAUSE_MS
        while self._line:
            self._batch = self._next_batch()
            self._is_paused = False
            try:
                await self._pass_on(self._batch)
            except Exception as error:
                if self._is_closed:
                    # The look where messages go has shown that the queue forwards no more.
                    return
                # Nothing of what is left of the batch has happened.
                log.warning(
                    "messages of %s can't be forwarded now; this is tried again: %s", self.queue, error
                )
                if not isinstance(error, (CoordinatorError, CommitRefusedError)):
                    log.exception("forwarding from %s failed", self.queue)
                if isinstance(error, CommitRefusedError) and error.condition == _RETURNED:
                    self._begin_again()
                    return
                self._line.extendleft(reversed(self._batch))
                self._batch = ()
                self._is_paused = True
                self._hold(_size(self._line) - self._held_bytes)
                await self._host.pause(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, TRANSFER_PAUSE_MS_MAX)
            else:
                pause_ms = TRANSFER_PAUSE_MS
                self._batch = ()
                self._hold(_size(self._line) - self._held_bytes)
                self._widen()
                self._top_up()
        self._worker = None

    def _begin_again(self) -> None:
        """Opens another consumer after a pause: the shard does not have all deliveries of this one any more.

        Those that it has return to the queue, in their order.
        """
        self._worker = None
        self._leave()
        self._lost(self)

    def _next_batch(self) -> list[Delivery]:
        batch: list[Delivery] = []
        size = 0
        line = self._line
        while line and len(batch) < TRANSFERRED_AT_ONCE and (not batch or size < limits.JOINED_BYTES):
            size += len(line[0].message)
            batch.append(line.popleft())
        return batch

    async def _pass_on(self, batch: Sequence[Delivery]) -> None:
        """Passes messages on together, or, where a target refuses some of them, one by one.

        `_batch` has those that are left. Raises CommitRefusedError, CoordinatorError and others.
        """
        if len(batch) > 1:
            try:
                await self._transfer(batch)
            except (RefusedError, CommitRefusedError):
                pass
            else:
                return
        for at, delivery in enumerate(batch):
            self._batch = batch[at:]
            await self._pass_on_one(delivery)

    async def _pass_on_one(self, delivery: Delivery) -> None:
        refusal: Refusal | None = None
        for at_sources in (False, True):
            try:
                await self._transfer([delivery], at_sources=at_sources)
                return
            except RefusedError as error:
                refusal = error.refusal
                break
            except CommitRefusedError as error:
                if error.condition not in FINAL:
                    raise
                # The first refusal is that of the last queue.
                refusal = refusal or Refusal(error.condition, error.description)
        assert refusal is not None
        await self._give_up(delivery, refusal)
        self._host.counts.messages_not_forwarded += 1
        log.info("a message of %s is not forwarded: %s", self.queue, refusal.description)

    async def _give_up(self, delivery: Delivery, refusal: Refusal) -> None:
        """Makes a message a dead letter: of its queue after too many hops, else of what is not forwarded."""
        if refusal.condition == TOO_MANY_HOPS:
            detail = SettleDetail(refusal.condition, refusal.description)
            await self._commit([delivery], [], OutcomeCode.REJECTED, detail)
            return
        letter = self._letter(delivery, refusal)
        outgoing = moved(delivery)._replace(message=b"", expires_at_ms=0)
        name = dead_letter_name(transfer_name(self.queue))
        await transfer_queue(self._host.service, self.queue)
        await self._commit([delivery], [PostedCopies(frozenset((name,)), outgoing, [letter])])

    def _letter(self, delivery: Delivery, refusal: Refusal) -> bytes:
        """The message with the reason."""
        notes: dict[Symbol, Any] = {
            _REASON: _REJECTED,
            _CONDITION: Symbol(refusal.condition),
            _DESCRIPTION: refusal.description[:1024],
            _SOURCE: self.queue,
            _TIME: Timestamp(self._shards.now_ms()),
        }
        if delivery.message_format:
            return delivery.message
        try:
            return with_error(delivery.message, notes)
        except (DecodeError, ValueError):
            return delivery.message

    # --- transactions ----------------------------------------------------------------------------------

    async def _transfer(self, batch: Sequence[Delivery], *, at_sources: bool = False) -> None:
        """Settles and sends a batch. Raises RefusedError, CommitRefusedError: nothing has happened."""
        posts = await self._next_queues.posts(batch, self._shards.now_ms(), at_sources=at_sources)
        await self._commit(batch, posts)
        self._host.counts.messages_forwarded += len(batch)

    async def _commit(
        self,
        batch: Sequence[Delivery],
        posts: Sequence[PostedCopies],
        code: OutcomeCode = OutcomeCode.ACCEPTED,
        detail: SettleDetail | None = None,
    ) -> None:
        """Returns when all of it is on disk. Raises CommitRefusedError (no effect), CoordinatorError."""
        self._commits.begin()
        pause_ms = limits.OWNER_RETRY_MS
        while True:
            parts = await self._parts(batch, posts, code, detail)
            if await self._commits.commit(parts, 0, ""):
                return
            pause_ms = await self._shards.owners.change(pause_ms)

    async def _parts(
        self,
        batch: Sequence[Delivery],
        posts: Sequence[PostedCopies],
        code: OutcomeCode,
        detail: SettleDetail | None,
    ) -> dict[int, Request]:
        """The requests by shard."""
        queues = {self.queue, *(queue for post in posts for queue in post.queues)}
        shards = {queue: (await self._shards.find(queue)).shard for queue in queues}
        by_shard = parts_of(posts, shards)
        settles: list[list[Any]] = []
        assert self._source is not None, "a delivery has a source"
        for first, count in _ranges(batch):
            fields = {} if detail is None else json.loads(detail.encode())
            settles.append([self.queue, self._source.number, first, count, int(code), fields])
        own = shards[self.queue]
        return {
            shard: _request(by_shard.get(shard, ()), settles if shard == own else [])
            for shard in {own, *by_shard}
        }


def _size(deliveries: Iterable[Delivery]) -> int:
    """Bytes of messages."""
    return sum(len(each.message) for each in deliveries)


def _ranges(batch: Sequence[Delivery]) -> list[tuple[int, int]]:
    """First number and count of consecutive deliveries."""
    found: list[tuple[int, int]] = []
    for delivery in batch:
        if found and delivery.number == found[-1][0] + found[-1][1]:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((delivery.number, 1))
    return found


def _request(posts: Iterable[PostedCopies], settles: list[list[Any]]) -> Request:
    """The fields and the blob of `transact` and `prepare` (docs/formats/wire.md)."""
    rows: list[list[Any]] = []
    blob: list[bytes] = []
    for queues, outgoing, payloads in posts:
        ends = array("I", accumulate(map(len, payloads)))
        _, durable, priority, expires_at_ms, message_format = outgoing
        rows.append(
            [sorted(queues), durable, priority, expires_at_ms, message_format, len(payloads), ends[-1]]
        )
        blob += (ends.tobytes(), *payloads)
    return {"posts": rows, "settles": settles}, b"".join(blob)


class QueueForwarders:
    """A forwarder for each queue whose policy has `forward_to`; follows the directory.

    Args:
        pause: waits the given number of seconds.
    """

    def __init__(
        self,
        service: Service,
        shards: ShardConnections,
        routers: RouterSender,
        counts: ForwardingCounts,
        room: ForwardingRoom,
        *,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self.service = service
        self.shards = shards
        self.routers = routers
        self.counts = counts
        self.room = room
        self.pause = pause
        self._roster: Roster[str] = Roster(
            shards, lambda queue, target, lost: QueueForwarder(queue, target, self, lost)
        )

    def start(self) -> None:
        """Opens a forwarder for every queue that forwards; `changed` follows later changes."""
        self.changed(record.name for record in self.service.directory.below(""))

    def changed(self, changed: Iterable[str]) -> None:
        """Follows names that may have been created or deleted, or whose policy may have changed."""
        for name in changed:
            self._roster.want(name, _target(self.service.directory.find(name)))
        self.counts.forwarding_queues = len(self._roster)

    def close(self) -> None:
        """Stops; what no transaction has passed on stays in its queue."""
        self._roster.close()


def _target(record: Name | None) -> str | None:
    """The name to which a queue forwards; None also while nobody receives from it, by its status."""
    if record is None or record.role is not Role.QUEUE or refused_by_status(record.policy, Right.LISTEN):
        return None
    target: str | None = record.policy["forward_to"]
    return target
