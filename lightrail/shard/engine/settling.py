"""Settling: SETTLE and CREDIT frames of consumers, and the return of deliveries of closing consumers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lightrail.model.links import Ending
from lightrail.shard.effects.answers import Answers
from lightrail.shard.effects.peers import Peer, Settlement
from lightrail.shard.effects.performer import Performer
from lightrail.shard.effects.receiving_link import outcome_in
from lightrail.shard.links.receiving.receiving_links import ReceivingLinks
from lightrail.shard.links.relaying.relay import Relays
from lightrail.shard.links.takeovers import Takeovers
from lightrail.shard.moving.freezing import Freezing
from lightrail.shard.queue.changes.outcomes import is_much
from lightrail.shard.queue.changes.removals import fails_oldest, outcome_of_rest
from lightrail.shard.queue.values import commands
from lightrail.shard.queues.shard_queue import Queue
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.frames import DRAIN, ENDING, EXACT, HEADER, HEADER_SIZE, REPEATED, Kind, Part

SETTLE_SLICE: Final[int] = 4_000
"""Runs of deliveries that a range settles, or a closing consumer returns, in one turn."""
SETTLE_SLICE_REWRITTEN: Final[int] = 1_000
"""The same where each run returns to the queue, or is rewritten."""
SETTLE_SLICE_MESSAGES: Final[int] = 2_000
"""Delivery numbers in the same, however few runs they are."""
SETTLE_SLICE_BYTES: Final[int] = 8 * 1024 * 1024
"""Bytes of the same: those of the settlement, annotations included, for each message it is written into."""


@dataclass(slots=True, eq=False, repr=False)
class Settling:
    """Applies the frames of consumers."""

    _performer: Performer
    _relays: Relays
    _receiving: ReceivingLinks
    _freezing: Freezing
    _answers: Answers
    _counts: ShardCounts
    takeovers: Takeovers
    """Links whose CREDIT has to wait until they are open."""

    def credit(self, peer: Peer, part: Part, now_ms: int) -> None:
        """Sets the credit of a consumer or a listener."""
        _, flags, _, _, link, kib, number = HEADER.unpack_from(part)
        consumer = peer.consumers.get(link)
        if consumer is None:
            if not self.takeovers.credit(peer, link, part):
                self._relays.credit(peer, part, now_ms)
            return
        queue = consumer.queue
        size = kib << 10 if kib else commands.UNBOUNDED
        credit = commands.Credit(consumer.id, number, bool(flags & DRAIN), size, bool(flags & EXACT))
        self._performer.apply(queue, credit, now_ms)

    def settle(self, peer: Peer, part: Part, now_ms: int) -> bytes | None:
        """Settles a range of deliveries; returns a frame for the rest if there are too many."""
        _kind, code, asked, _epoch, link, count, number = HEADER.unpack_from(part)
        consumer = peer.consumers.get(link)
        if consumer is None:
            if self._relays.has_listener(peer, link):
                if asked:
                    self._answers.when_synced(self._settlement(peer, link, count), number)
                self._relays.settle(peer, part)
            else:
                self.stray(peer, part, now_ms)
            return None
        outcome = commands.ACCEPTED if code == 0 else outcome_in(part, code)
        queue = consumer.queue
        rest = None
        # Annotations are written into every message, so a turn of the same length has fewer of them.
        most = min(SETTLE_SLICE_MESSAGES, max(1, SETTLE_SLICE_BYTES // len(part)))
        if count > (min(most, SETTLE_SLICE_REWRITTEN) if code else SETTLE_SLICE):
            rest, count = _sliced(queue, consumer.id, part, code, number, count, most)
        # The settlement counts failures of the store from here on.
        answer = None
        if asked:
            # What was sent before may have settled them then, unless this shard has never had them.
            lost = () if asked & REPEATED else _not_locked(queue, consumer.id, number, number + count)
            is_known = number >= consumer.unknown_below
            answer = self._settlement(peer, link, count, lost, is_known=is_known)
        deferred = queue.view.deferred_number if asked else 0
        command = commands.Settle(consumer.id, number, number + count, outcome)
        self._performer.apply(queue, command, now_ms)
        if answer is not None and not queue.answer_when_applied(answer, number, deferred):
            self._answers.when_synced(answer, number)
        return rest

    def stray(self, peer: Peer, part: Part, now_ms: int) -> None:
        """Applies a frame for a consumer that is awaited, or whose queue moved to another shard."""
        if not self._receiving.stray(peer, part, now_ms):
            self._freezing.bounce(peer, part)

    def return_piece(self, peer: Peer, part: Part, now_ms: int) -> bytes | None:
        """Returns some of the deliveries of a closing consumer, if they are many.

        Returns:
            A frame that closes the consumer in later turns; None to close it now.
        """
        kind, flags, reserved, epoch, link, count, number = HEADER.unpack_from(part)
        consumer = peer.consumers.get(link)
        if consumer is None or (consumer.opened is not None and consumer.opened.suspended_ms):
            # A client may resume the link: few or no deliveries are returned.
            return None
        found = consumer.queue.view.consumer(consumer.id)
        if found is None or found.keeps_locks or not is_much(found):
            return None
        ending = Ending(flags & ENDING)
        self._performer.mark(consumer.queue, consumer.id, ending)
        line = found.in_flight
        first = line.keys[line.head]
        last = first + SETTLE_SLICE_MESSAGES
        if len(line) > SETTLE_SLICE_REWRITTEN:
            last = min(last, line.keys[line.head + SETTLE_SLICE_REWRITTEN])
        outcome = outcome_of_rest(found.options.default_outcome, ending)
        if fails_oldest(found.options.default_outcome, ending):
            # The oldest delivery counts; those behind it return as after an end by the broker.
            last, outcome, flags = first + 1, commands.FAILED, flags & ~ENDING | Ending.BY_BROKER
        for command in (
            commands.Credit(consumer.id, found.next),
            commands.Settle(consumer.id, first, last, outcome),
        ):
            self._performer.apply(consumer.queue, command, now_ms)
        return HEADER.pack(kind, flags, reserved, epoch, link, count, number)

    def _settlement(
        self,
        peer: Peer,
        link: int,
        count: int,
        not_locked: Sequence[tuple[int, int]] = (),
        *,
        is_known: bool = True,
    ) -> Settlement:
        """The answer by which the frontend confirms settlements to its client once they are on disk."""
        return Settlement(
            peer, link, count, lambda: self._counts.store_failures, not_locked, is_known=is_known
        )


def _not_locked(queue: Queue, consumer: int, first: int, last: int) -> Sequence[tuple[int, int]]:
    """Deliveries of a consumer whose locks have a key that are locked no longer: their locks have ended, or
    they were settled by the key."""
    found = queue.view.consumer(consumer)
    return () if found is None or not found.options.lock_key else found.in_flight.missing(first, last)


def _sliced(
    queue: Queue, consumer: int, part: Part, code: int, number: int, count: int, messages: int
) -> tuple[bytes | None, int]:
    """A frame that settles the range behind a piece, and the size of the piece.

    Args:
        messages: largest number of deliveries of a piece whose messages may have to be rewritten.
    """
    found = queue.view.consumer(consumer)
    if found is None:
        return None, count
    line = found.in_flight
    if not len(line):
        return None, count
    end = min(number + count, line.keys[-1] + line.runs[-1].count)
    most = SETTLE_SLICE_REWRITTEN if code else SETTLE_SLICE
    first = line.index(number)
    index = first + most
    left = line.keys[index] if index < len(line.keys) else end
    if code and first < len(line.keys):
        # Each message may have to be rewritten, as a dead letter or with annotations.
        left = min(left, max(number, line.keys[first]) + messages)
    if left >= end:
        return None, count
    _, flags, reserved, epoch, link, _, _ = HEADER.unpack_from(part)
    header = HEADER.pack(Kind.SETTLE, flags, reserved, epoch, link, end - left, left)
    return header + part[HEADER_SIZE:], left - number
