"""Transfer: sends the messages of one queue to other names, until the queue is empty.

Messages are consumed with drain, so the shard answers when the queue is empty. A message is settled only
after the sink has stored it. Messages that can't be sent, or arrived after the transfer began, stay locked
until the end: released earlier, they would be delivered to the transfer again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.filters.filter import compile_filter
from lightrail.filters.message import MessageView
from lightrail.gateway.forwarding.counts import ForwardingCounts
from lightrail.gateway.forwarding.sink import NotSentError, Sink, dead_letter_source, moved, redriven
from lightrail.gateway.messages.outgoing import Outgoing
from lightrail.model import conditions
from lightrail.model.names import InvalidNameError
from lightrail.namespace.rights import Caller, ForbiddenError
from lightrail.namespace.statuses import ServiceError
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.shard_client.receiving.queue_consumer import Delivery, QueueConsumer
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.bodies import ConsumerOpen, Refusal
from lightrail.wire.frames import OutcomeCode

TRANSFER_WINDOW: Final[int] = 1_000
"""Unanswered messages of a transfer at its sink."""
TRANSFER_WINDOW_FIRST: Final[int] = 16
"""The same while the size of the messages is unknown."""
TRANSFER_WINDOW_BYTES: Final[int] = 32 * 1024 * 1024
"""Bytes of the same, by the mean message size; one message at least."""
TRANSFER_HELD: Final[int] = 1_000
"""Messages that a transfer could not send, or received too late, after which it ends."""

log = logging.getLogger("lightrail.gateway.forwarding.transfer")

REASONS_SHOWN: Final = 3
"""Different reasons in the error of a failed transfer."""


class Mode(StrEnum):
    """Whether messages leave their source, and whether they are dead letters for another attempt."""

    MOVE = "move"
    COPY = "copy"
    REDRIVE = "redrive"


class TransferState(StrEnum):
    """State of a transfer."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Task:
    """The checked request for a transfer."""

    caller: Caller
    source: str
    target: str | None
    """None: each message goes to the queue that its annotation names."""
    mode: Mode
    count: int | None
    """Largest number of messages; None for all messages in the queue at the start."""
    filter: dict[str, Any] | None
    is_plain: bool
    """The queue delivers in the order of sequences."""
    check_target: Callable[[str], None]
    """Raises ServiceError, ForbiddenError or InvalidNameError for a name that the caller can't send to."""


class Transfer:
    """One transfer; `start` it, then look at `state`, `moved`, `total`, `error`, or wait for `done`."""

    def __init__(
        self, id: str, task: Task, shards: ShardConnections, sink: Sink, counts: ForwardingCounts
    ) -> None:
        self.id = id
        self.task = task
        self.state = TransferState.RUNNING
        self.moved = 0
        """Messages that the sink has stored and the source has settled."""
        self.total: int | None = task.count
        """Messages to move; None while unknown, with a filter and without a count."""
        self.error: str | None = None
        self.started_at_ms = shards.now_ms()
        self.ended_at_ms: int | None = None
        self._shards = shards
        self._sink = sink
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._source: QueueConsumer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._end_sequence = 1 << 63
        """Messages from this sequence on arrived after the start."""
        self._under_way: dict[int, int] = {}
        """First sequence of each slice that the sink has not answered, by number of the slice."""
        self._slices = 0
        self._in_flight = 0
        """Messages of this generation that the sink has not answered."""
        self._held = 0
        """Messages of this generation that stay in the source."""
        self._failed: Counter[str] = Counter()
        self._is_draining = False
        self._is_over = False
        """No more messages are consumed; those in flight are still sent."""
        self._is_cancelled = False
        self._seen_to = 0
        """Messages with a lower sequence need not be copied again."""
        self._mean_bytes = 0.0
        self._matches = None if task.filter is None else compile_filter(task.filter).matches

    def start(self) -> None:
        """Starts; returns at once."""
        self._counts.transfers_started += 1
        self._spawn(self._begin())

    def cancel(self) -> None:
        """Consumes no more messages; ends when the messages in flight are stored."""
        if self.state is TransferState.RUNNING:
            self._is_cancelled = self._is_over = True
            self._grant_or_end()

    def abandon(self) -> None:
        """Stops at once; messages in flight may be stored at their target and stay in the source as well."""
        for task in self._tasks:
            task.cancel()
        if self.state is TransferState.RUNNING:
            self._end(TransferState.CANCELLED, "the gateway ended")

    def shown(self) -> dict[str, Any]:
        """The transfer as JSON."""
        task = self.task
        return {
            "id": self.id,
            "from": task.source,
            "to": task.target,
            "mode": task.mode,
            "count": task.count,
            "filter": task.filter,
            "user": task.caller.user,
            "state": self.state,
            "moved": self.moved,
            "total": self.total,
            "failed": sum(self._failed.values()),
            "error": self.error,
            "started_at_ms": self.started_at_ms,
            "ended_at_ms": self.ended_at_ms,
        }

    # --- the source ------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        task = self.task
        try:
            figures = (await self._shards.request(task.source, "queue", {})).fields
            owner = await self._shards.route(task.source)
        except (ShardDownError, ShardRefusedError, CoordinatorError) as error:
            self._end(TransferState.FAILED, f"{task.source} can't be read now: {error}")
            return
        self._end_sequence = int(figures["next_sequence"])
        if task.filter is None:
            there = int(figures["ready"])
            self.total = there if task.count is None else min(task.count, there)
        options = ConsumerOpen(
            task.source,
            browse=task.mode is Mode.COPY,
            filter=task.filter,
            label=f"transfer {self.id}",
            user=task.caller.user,
        )
        self._source = QueueConsumer(owner, self._shards.next_link(), options, self, self._shards.now_ms)
        if self.state is TransferState.RUNNING:
            self._source.open()

    def opened(self, generation: int) -> None:
        """Earlier deliveries are repeated; a copy starts again and skips what it has copied."""
        if self._under_way:
            self._seen_to = min(self._seen_to, *self._under_way.values())
        self._under_way.clear()
        self._in_flight = self._held = 0
        self._is_draining = False
        self._is_over = self._is_cancelled
        if generation > 1:
            log.info("transfer %s continues after a restart of its shard", self.id)
            if self.task.mode is not Mode.COPY:
                self._failed.clear()
        self._grant_or_end()

    def arrived(self, deliveries: list[Delivery]) -> None:
        """Sends the messages of a slice that belong to the transfer; others stay locked or are skipped."""
        size = sum(len(each.message) for each in deliveries) / len(deliveries)
        self._mean_bytes = max(size, 0.75 * self._mean_bytes + 0.25 * size)
        if self._is_over:
            self._hold(len(deliveries))
            return
        fresh = [each for each in deliveries if each.sequence < self._end_sequence]
        if len(fresh) < len(deliveries) and (self.task.is_plain or self.task.mode is Mode.COPY):
            self._is_over = True
        if self._matches is not None:
            # The shard filters as well; a message that it delivers by mistake must not be moved.
            fresh = [each for each in fresh if self._matches(MessageView(each.message))]
        self._hold(len(deliveries) - len(fresh))
        if self.task.mode is Mode.COPY:
            fresh = [each for each in fresh if each.sequence >= self._seen_to]
            if fresh:
                self._seen_to = fresh[-1].sequence + 1
        if fresh:
            self._slices += 1
            self._under_way[self._slices] = fresh[0].sequence
            self._in_flight += len(fresh)
            self._spawn(self._forward(self._slices, fresh))
        self._grant_or_end()

    def drained(self, is_empty: bool) -> None:
        """The grant is used up, or the queue is empty."""
        if self._is_draining:
            self._is_draining = False
            self._is_over = self._is_over or is_empty
            self._grant_or_end()

    def ended(self, refusal: Refusal) -> None:
        """The queue was deleted, or refuses (another) consumer."""
        self._end(TransferState.FAILED, f"{self.task.source}: {refusal.description or refusal.condition}")

    # --- the sink --------------------------------------------------------------------------------------

    async def _forward(self, slice: int, deliveries: list[Delivery]) -> None:
        """Sends a slice and settles the messages that were stored."""
        results = await self._send(deliveries)
        if self._under_way.pop(slice, None) is None or self.state is not TransferState.RUNNING:
            # The shard restarted meanwhile: the whole slice is in its queue again and is delivered once more.
            return
        self._in_flight -= len(deliveries)
        sent = [each for each, problem in zip(deliveries, results, strict=True) if problem is None]
        assert self._source is not None, "a delivery has a source"
        if self.task.mode is not Mode.COPY:
            self._source.settle(sent, OutcomeCode.ACCEPTED)
        self.moved += len(sent)
        self._counts.transferred[self.task.mode] += len(sent)
        if self.total is not None:
            self.total = max(self.total, self.moved)
        if len(sent) < len(deliveries):
            reasons = [str(problem) for problem in results if problem is not None]
            self._failed.update(reasons)
            self._counts.transfers_refused += len(reasons)
            self._hold(len(reasons))
        self._grant_or_end()

    async def _send(self, deliveries: list[Delivery]) -> Sequence[NotSentError | None]:
        task = self.task
        now_ms = self._shards.now_ms()
        messages = [
            redriven(each, now_ms) if task.mode is Mode.REDRIVE else moved(each) for each in deliveries
        ]
        if task.target is not None:
            return await self._send_to(task.target, messages)
        by_name: dict[str, list[int]] = {}
        results: list[NotSentError | None] = [None] * len(deliveries)
        for index, delivery in enumerate(deliveries):
            name = dead_letter_source(delivery)
            if name is None:
                results[index] = NotSentError(
                    conditions.NOT_FOUND, "the message does not name the queue of its origin; name one in to"
                )
            else:
                by_name.setdefault(name, []).append(index)
        for name, problem in ((name, self._problem(name)) for name in list(by_name)):
            if problem is not None:
                for index in by_name.pop(name):
                    results[index] = problem
        answers = await asyncio.gather(
            *(self._send_to(name, [messages[index] for index in found]) for name, found in by_name.items())
        )
        for found, answer in zip(by_name.values(), answers, strict=True):
            for index, result in zip(found, answer, strict=True):
                results[index] = result
        return results

    async def _send_to(self, name: str, messages: list[Outgoing]) -> Sequence[NotSentError | None]:
        try:
            return await self._sink.send(name, messages)
        except Exception as error:
            log.exception("transfer %s could not send to %s", self.id, name)
            problem = NotSentError(conditions.INTERNAL_ERROR, f"sending to {name} failed: {error}")
            return [problem] * len(messages)

    def _problem(self, name: str) -> NotSentError | None:
        """Why this transfer may not send to the name in a message's annotation; None if it may."""
        if name == self.task.source:
            return NotSentError(
                conditions.NOT_ALLOWED, f"the message is a dead letter of {name}; name another queue in to"
            )
        try:
            self.task.check_target(name)
        except ForbiddenError as error:
            return NotSentError(conditions.UNAUTHORIZED_ACCESS, str(error))
        except (ServiceError, InvalidNameError) as error:
            return NotSentError(conditions.NOT_FOUND, str(error))
        return None

    # --- progress --------------------------------------------------------------------------------------

    def _grant_or_end(self) -> None:
        """Grants credit for more messages, or ends."""
        if self.state is not TransferState.RUNNING:
            return
        count = self.task.count
        left = TRANSFER_WINDOW if count is None else count - self.moved - self._in_flight
        if self._is_over or left <= 0:
            if not self._in_flight and (self._is_over or not self._is_draining):
                self._finish()
            return
        if self._is_draining or self._source is None:
            return
        window = TRANSFER_WINDOW if self._mean_bytes else TRANSFER_WINDOW_FIRST
        window = min(window, max(1, int(TRANSFER_WINDOW_BYTES / (self._mean_bytes or 1))))
        room = window - self._in_flight
        # A nearly full window is not refilled message by message.
        if room > 0 and (room >= window // 4 or room >= left):
            self._is_draining = True
            self._source.grant(min(room, left), drain=True)

    def _hold(self, count: int) -> None:
        if self.task.mode is Mode.COPY:
            return
        self._held += count
        if self._held >= TRANSFER_HELD:
            self._is_over = True

    def _finish(self) -> None:
        if self._is_cancelled:
            self._end(TransferState.CANCELLED, self._why())
        else:
            self._end(TransferState.FAILED if self._failed else TransferState.DONE, self._why())

    def _why(self) -> str | None:
        if not self._failed:
            return None
        total = sum(self._failed.values())
        reasons = [f"{count} x {reason}" for reason, count in self._failed.most_common(REASONS_SHOWN)]
        more = len(self._failed) - len(reasons)
        text = "; ".join(reasons) + (f"; and {more} other reasons" if more else "")
        stays = f"{total} messages could not be sent"
        return (
            f"{stays}: {text}"
            if self.task.mode is Mode.COPY
            else f"{stays} and stay in {self.task.source}: {text}"
        )

    def _end(self, state: TransferState, error: str | None) -> None:
        if self.state is not TransferState.RUNNING:
            return
        self.state = state
        self.error = error
        self.ended_at_ms = self._shards.now_ms()
        self._counts.transfers_ended[state] += 1
        if self._source is not None:
            self._source.close()
        log.info(
            "transfer %s of %s is %s: %d moved%s",
            self.id,
            self.task.source,
            state,
            self.moved,
            f", {error}" if error else "",
        )
        self.done.set_result(None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
