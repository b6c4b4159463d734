"""Resuming links on which clients receive (2.6.13): lists unsettled deliveries, and sends messages again.

After a start, the durable receivers of a recovered queue are consumers without a link that may be resumed in
the same way.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from lightrail.filters.errors import FilterError
from lightrail.model.links import Durability
from lightrail.model.policy import Role
from lightrail.shard.effects.actions import Read
from lightrail.shard.effects.peers import Consumer, Peer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.effects.receiving_link import Key, Origin
from lightrail.shard.journal.store import RecoveredQueue
from lightrail.shard.links.receiving.consumer_options import options_of
from lightrail.shard.links.receiving.durable_receivers import DurableReceivers
from lightrail.shard.links.receiving.restored_locks import Lock
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.commands import Holder
from lightrail.shard.queue.values.runs import Run
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.columns import Range, decode_ranges, encode_suspended
from lightrail.wire.frames import DURABILITY_SHIFT, HEADER, HEADER_SIZE, Kind, Part, WireError, deliver, frame

if TYPE_CHECKING:
    from lightrail.shard.links.receiving.receiving_links import ReceivingLinks

RESENT_BYTES: Final[int] = 1024 * 1024
"""Bytes of deliveries that a shard sends again at once to a resumed link, which requests more when its
client has read them."""
RESENT_MESSAGES: Final[int] = 500
"""The same in messages: the frontend writes each by itself, in 15 us."""


def unsettled(consumer: Consumer) -> list[Range]:
    """The numbers of a consumer's unsettled deliveries, as (first, count) of neighbours."""
    found: list[Range] = []
    for number, run in _in_flight(consumer, 0, 1 << 62):
        if found and found[-1][0] + found[-1][1] == number:
            found[-1] = (found[-1][0], found[-1][1] + run.count)
        else:
            found.append((number, run.count))
    return found


def _in_flight(consumer: Consumer, first: int, last: int) -> Iterator[tuple[int, Run]]:
    """Unsettled deliveries from number `first` to before `last`: runs, with the number of their first."""
    attached = consumer.queue.view.consumer(consumer.id)
    if attached is None:
        return
    line = attached.in_flight
    index = line.index(first)
    while index < len(line.runs) and line.keys[index] < last:
        number, run = line.keys[index], line.runs[index]
        index += 1
        low, high = max(first - number, 0), min(last - number, run.count)
        if high > low:
            yield number + low, run.cut(low, high)


@dataclass(slots=True, eq=False, repr=False)
class Recovery:
    """Sends the list of unsettled deliveries of an opened link when all records are on disk; a Waiter.

    So the list has every delivery whose outcome would be lost in a crash of the shard.
    """

    _consumer: Consumer
    _receivers: DurableReceivers

    def accept(self, number: int) -> None:
        """See Waiter."""
        consumer = self._consumer
        peer, opened = consumer.peer, consumer.opened
        attached = consumer.queue.view.consumer(consumer.id)
        if peer.consumers.get(consumer.link) is not consumer or opened is None or attached is None:
            return
        body = encode_suspended(opened.terminus, attached.next, unsettled(consumer))
        durability = Durability.UNSETTLED_STATE if self._receivers.is_durable(consumer) else Durability.NONE
        flags = durability << DURABILITY_SHIFT
        peer.out += (
            frame(Kind.UNSETTLED, flags=flags, link=consumer.link, body=body),
            frame(Kind.CONSUMER_READY, link=consumer.link),
        )


@dataclass(slots=True, eq=False, repr=False)
class Resending:
    """Sends unsettled deliveries again to links that request them.

    Deliveries without a message, because the lock has expired or the bytes can't be read, are skipped.
    """

    _performer: Performer

    def resend(self, peer: Peer, part: Part, now_ms: int) -> None:
        """Applies a RESEND frame; answered with DELIVER frames, and RESENT behind them."""
        consumer = peer.consumers.get(HEADER.unpack_from(part)[4])
        if consumer is not None:
            self._send(consumer, decode_ranges(memoryview(part)[HEADER_SIZE:]), now_ms)

    def _send(self, consumer: Consumer, ranges: Iterable[Range], now_ms: int) -> None:
        """Sends messages within the limits, up to the first one that is not in memory."""
        end = size = 0
        left = RESENT_MESSAGES
        for first, count in ranges:
            for number, run in _in_flight(consumer, first, first + count):
                if size >= RESENT_BYTES or not left:
                    self._answer(consumer, number)
                    return
                if run.batch.data is None:
                    # As many messages as may be sent at once, according to the known size.
                    few = max(1, min(left, run.count * RESENT_BYTES // max(1, run.size)))
                    then = partial(self._came, consumer, number, now_ms)
                    self._performer.read(consumer.queue, run.cut(0, min(run.count, few)), then)
                    return
                part = run.cut(0, min(run.count, left))
                _deliver(consumer, number, part, now_ms)
                size += part.size
                left -= part.count
                if part.count < run.count:
                    self._answer(consumer, number + part.count)
                    return
            end = first + count
        self._answer(consumer, end)

    def _came(self, consumer: Consumer, number: int, now_ms: int, read: Read) -> None:
        """Sends messages that were read, from delivery `number` on."""
        if consumer.peer.consumers.get(consumer.link) is not consumer:
            return
        wanted = read.run
        for piece in read.runs:
            low, high = max(piece.sequence, wanted.sequence), min(piece.end, wanted.end)
            if low >= high:
                continue
            message = piece.cut(low - piece.sequence, high - piece.sequence)
            at = number + low - wanted.sequence
            # Some of the messages may have been settled meanwhile.
            for there, run in [*_in_flight(consumer, at, at + message.count)]:
                part = message.cut(there - at, there - at + run.count)
                part = Run(part.batch, part.first, part.last, part.sequence, wanted.attempts)
                _deliver(consumer, there, part, now_ms)
        self._answer(consumer, number + wanted.count)

    def _answer(self, consumer: Consumer, number: int) -> None:
        consumer.peer.out.append(frame(Kind.RESENT, link=consumer.link, number=number))


def _deliver(consumer: Consumer, number: int, run: Run, now_ms: int) -> None:
    batch = run.batch
    ends = batch.ends
    assert ends is not None
    base = ends[run.first - 1] if run.first else 0
    consumer.peer.out.append(
        deliver(
            consumer.link,
            consumer.queue.epoch,
            number,
            run.count,
            now_ms,
            run.sequence,
            run.attempts,
            batch.expires_at_ms or 0,
            batch.enqueued_at_ms,
            batch.message_format,
            base,
            ends[run.first : run.last],
            batch.blob(run.first, run.last),
            batch.durable,
        )
    )


LOG_NAMES_MAX: Final[int] = 20
"""Queues that the log names; the others are counted."""

log = logging.getLogger("lightrail.shard.links.receiving.resuming")


def receivers_of(
    found: RecoveredQueue, queues: Queues, receiving: "ReceivingLinks"
) -> tuple[list[Holder], dict[int, Origin]]:
    """The consumers of a recovered queue with their deliveries, and the origin of each by its number.

    A receiver whose opening can't be read is skipped, and its messages are ready.
    """
    holders: list[Holder] = []
    origins: dict[int, Origin] = {}
    for each in found.receivers:
        try:
            opened = ConsumerOpen.decode(each.opening)
            options = options_of(opened, queues.looks)
        except (WireError, FilterError) as error:
            log.error("a suspended link of queue %s can't be restored: %s", found.name, error)
            continue
        id = receiving.next_number()
        holders.append(Holder(id, replace(options, first=each.next), each.next, each.runs))
        origins[id] = Origin(_key_of(opened), opened, has_ended=True)
    return holders, origins


def open_restored(
    queue: Queue,
    holders: list[Holder],
    origins: dict[int, Origin],
    locks: list[Lock],
    queues: Queues,
    receiving: "ReceivingLinks",
    performer: Performer,
    now_ms: int,
) -> None:
    """Opens a queue that was restored as a copy, with suspended consumers that have these deliveries, and
    those whose locks outlive their links."""
    seen_to = queue.view.deliveries.seen_to
    opened = commands.Open(queues.policy_of(queue.record), holders, locks, seen_to=seen_to)
    # The machine ends links of sessions at once if the queue has none any more.
    receiving.add(queue, origins, {each.consumer: each.deliveries for each in holders})
    performer.apply(queue, opened, now_ms)
    receiving.restore(queue, now_ms)


def report_kept(unknown: list[Queue]) -> None:
    """Logs queues that are kept and not served after a start."""
    for queue in unknown[:LOG_NAMES_MAX]:
        if queue.record.role is Role.QUEUE:
            log.warning(
                "queue %s, which has %d messages, has no placement at this shard in the coordinator: it "
                "is kept, not served",
                queue.name,
                queue.view.held,
            )
            continue
        log.warning(
            "the coordinator knows no queue %s, which has %d messages: it is kept, not served. Give the "
            "name the role queue to have them again, and drop it after that to be rid of them",
            queue.name,
            queue.view.held,
        )
    if len(unknown) > LOG_NAMES_MAX:
        log.warning("%d further queues are kept, not served", len(unknown) - LOG_NAMES_MAX)


def _key_of(opened: ConsumerOpen) -> Key:
    """The frontend's link that was the first one of a client's link, for a consumer without a later one."""
    return opened.terminus >> 32, opened.terminus & 0xFFFF_FFFF
