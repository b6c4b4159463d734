"""Links: the interfaces of producers and consumers to the connection to their shard, and frames for them."""

from collections.abc import Callable
from typing import Final

from lightrail.wire.bodies import Refusal, SettleDetail
from lightrail.wire.columns import Range, decode_suspended, decode_tags
from lightrail.wire.frames import DURABILITY_SHIFT, HEADER, KEPT, NOT_LOCKED, SEQUENCE, UNCERTAIN, Kind, Part


class Producer:
    """A sender to a queue, a set of queues or a relay; each has the methods of the first group."""

    __slots__ = ("number",)

    number: int
    """Of the link, unique over the life of this process."""

    def reopen(self) -> None:
        """Opens the producer at the shard, and sends unanswered batches again."""
        raise NotImplementedError

    def ready(self) -> None:
        """The shard opened the producer."""
        raise NotImplementedError

    def answered(self, number: int, count: int) -> None:
        """The batches number .. number+count-1 are stored."""
        raise NotImplementedError

    def credit_held(self) -> None:
        """The batches of the next `answered` return no credit before `credit_freed`."""

    def credit_freed(self, count: int) -> None:
        """Consumers have caught up by `count` messages; 0: with all messages."""

    def refused(self, number: int, refusal: Refusal) -> None:
        """One batch could not be stored, or only a part of it."""
        raise NotImplementedError

    def ended(self, refusal: Refusal) -> None:
        """The shard refuses, or has ended, this producer."""
        raise NotImplementedError

    def stored(self, number: int, sequence: int) -> None:
        """One batch is stored, from this sequence on: only for producers that requested sequences."""

    def unsettled(self, tags: list[bytes], is_kept: bool, durability: int, attach: int) -> None:
        """Called before `ready`: stored messages that the client's link may not have settled.

        Args:
            durability: how much of that is in the shard's store (model/links.py).
            attach: number of the client's attach at the queue, which later openings of it have.
        """

    def granted(self, limit: int) -> None:
        """A relay's listeners accept messages numbered below `limit`, counted over the link's lifetime."""

    def outcome(self, number: int, first: int, count: int, code: int, detail: SettleDetail) -> None:
        """The outcome of messages `first` to before `first + count` of a batch, by a relay's listener."""

    def disconnected(self) -> None:
        """Frames that are posted from now on reach no shard, until the producer is reopened."""

    def timed_out(self) -> None:
        """The shard was lost for longer than senders wait: unanswered batches are answered now."""

    def reconnected(self) -> None:
        """The shard serves again and has opened this producer."""


class Consumer:
    """A receiver from a queue or relay."""

    __slots__ = ("number",)

    number: int
    """Of the link, unique over the life of this process."""

    def reopen(self) -> None:
        """Opens the consumer at the shard, with the remaining credit."""
        raise NotImplementedError

    def ready(self) -> None:
        """The shard opened the consumer."""
        raise NotImplementedError

    def deliver(self, part: Part, number: int, count: int) -> None:
        """A slice of the queue: a DELIVER frame, its first delivery number and its messages.

        A large frame is a view of memory that ZeroMQ received, which lives as long as the view.
        """
        raise NotImplementedError

    def drained(self, number: int) -> None:
        """All messages below this number were delivered, and no credit is left."""
        raise NotImplementedError

    def larger(self, number: int, size: int) -> None:
        """The next message has up to `size` bytes, more than the rest of the exact credit, which ends now."""

    def ended(self, refusal: Refusal) -> None:
        """The shard refuses, or has ended, this consumer."""
        raise NotImplementedError

    def settled(self, number: int, count: int, is_certain: bool) -> None:
        """The outcomes of deliveries number .. number+count-1 are on disk: only for a SETTLE with ASKED.

        Unless it is certain, some of them may be delivered again after a restart of the shard.
        """

    def not_locked(self, number: int, count: int) -> None:
        """Such a SETTLE changed nothing for these deliveries: their locks have ended, or others have settled
        them by the key of the locks."""

    def recovered(self, terminus: int, number: int, ranges: list[Range], durability: int) -> None:
        """Called before `ready` for a link that may be resumed: its unsettled deliveries of a former attach.

        Args:
            terminus: prefix of its delivery-tags.
            number: of its next delivery.
            durability: see Producer.unsettled.
        """

    def accepted(self, session: str, locked_ms: int) -> None:
        """The consumer has this session now: only for consumers that requested one.

        Args:
            locked_ms: milliseconds for which the session is locked; 0 as long as the consumer is open.
        """

    def resent(self, number: int) -> None:
        """Of the deliveries to be sent again, those below this number have arrived, or are lost."""


class MissingDeliveriesError(Exception):
    """A slice does not follow the one before: the link would settle the wrong deliveries."""


def _refused(producer: Producer, part: Part) -> None:
    producer.refused(HEADER.unpack_from(part)[6], Refusal.decode(memoryview(part)[HEADER.size :]))


def _stored(producer: Producer, part: Part) -> None:
    producer.stored(HEADER.unpack_from(part)[6], SEQUENCE.unpack_from(part, HEADER.size)[0])


def _unsettled(producer: Producer, part: Part) -> None:
    _, flags, _, _, _, _, attach = HEADER.unpack_from(part)
    tags = decode_tags(memoryview(part)[HEADER.size :])
    producer.unsettled(tags, bool(flags & KEPT), flags >> DURABILITY_SHIFT, attach)


def _granted(producer: Producer, part: Part) -> None:
    producer.granted(HEADER.unpack_from(part)[6])


def _outcome(producer: Producer, part: Part) -> None:
    _, code, _, first, _, count, number = HEADER.unpack_from(part)
    body = memoryview(part)[HEADER.size :]
    producer.outcome(number, first, count, code, SettleDetail.decode(body) if body else SettleDetail())


def _larger(consumer: Consumer, part: Part) -> None:
    _, _, _, _, _, count, number = HEADER.unpack_from(part)
    consumer.larger(number, count << 10)


def _settled(consumer: Consumer, part: Part) -> None:
    _, flags, _, _, _, count, number = HEADER.unpack_from(part)
    if flags & NOT_LOCKED:
        consumer.not_locked(number, count)
    else:
        consumer.settled(number, count, not flags & UNCERTAIN)


def _recovered(consumer: Consumer, part: Part) -> None:
    flags = HEADER.unpack_from(part)[1]
    terminus, number, ranges = decode_suspended(memoryview(part)[HEADER.size :])
    consumer.recovered(terminus, number, ranges, flags >> DURABILITY_SHIFT)


def _accepted(consumer: Consumer, part: Part) -> None:
    session = str(memoryview(part)[HEADER.size :], "utf-8", "surrogatepass")
    consumer.accepted(session, HEADER.unpack_from(part)[6])


def _resent(consumer: Consumer, part: Part) -> None:
    consumer.resent(HEADER.unpack_from(part)[6])


TO_PRODUCERS: Final[dict[int, Callable[[Producer, Part], None]]] = {
    Kind.REFUSED: _refused,
    Kind.STORED: _stored,
    Kind.GRANT: _granted,
    Kind.UNSETTLED: _unsettled,
    Kind.OUTCOME: _outcome,
}
"""Methods of a producer that the less frequent kinds of frames call."""
TO_CONSUMERS: Final[dict[int, Callable[[Consumer, bytes | memoryview], None]]] = {
    Kind.LARGER: _larger,
    Kind.SETTLED: _settled,
    Kind.UNSETTLED: _recovered,
    Kind.RESENT: _resent,
    Kind.SESSION: _accepted,
}
"""Methods of a consumer that they call."""
