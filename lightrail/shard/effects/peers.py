"""Peers: a frontend's producers and consumers at this shard, and the frames to send to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from lightrail.journal.record import Terminus
from lightrail.model import limits
from lightrail.wire.bodies import ConsumerOpen, Refusal
from lightrail.wire.frames import (
    HELD,
    IDENTITY,
    NOT_LOCKED,
    SEQUENCE,
    UNCERTAIN,
    UNKNOWN_SEQUENCE,
    VERSION,
    Kind,
    frame,
)
from lightrail.wire.versions import for_version

if TYPE_CHECKING:
    from lightrail.shard.queues.shard_queue import Queue

SEQUENCES_KEPT: Final[int] = 4_096
"""Batches of a producer that requested sequences whose first one is remembered for repeats."""


class NumberMissingError(Exception):
    """Batches of a sender's link are missing, and later ones arrived."""


@dataclass(slots=True, eq=False, repr=False)
class NumberedLink:
    """A sending link of a frontend, whose batches are numbered."""

    peer: "Peer"
    link: int
    id: int
    last_number: int
    next_number: int = 0
    """Number of the next new batch; 0 if the opening of the link does not have it. Batches that are sent
    again have lower numbers, with gaps for those that were answered."""
    sent_below: int = 0
    """See ProducerOpen."""
    refusing: bool = False
    """Whether a batch was refused. Later ones are refused, too, until one is marked AFRESH; otherwise a
    later number could confirm a batch whose refusal was lost."""
    ack_first: int = 0
    ack_count: int = 0

    def missed(self, number: int) -> None:
        """Checks a batch that is not the next one.

        Raises:
            NumberMissingError: earlier batches are missing, and its number would confirm them.
        """
        if self.next_number:
            raise NumberMissingError(
                f"expected batch {self.next_number} of its link {self.link}, found batch {number}"
            )

    def accept(self, number: int) -> None:
        """Accepts a stored batch; neighbouring numbers are answered with one frame."""
        if self.ack_count and number == self.ack_first + self.ack_count:
            self.ack_count += 1
            return
        self.flush()
        self.ack_first = number
        self.ack_count = 1
        self.peer.acking.append(self)

    def refuse(self, number: int, refusal: Refusal) -> None:
        """Refuses a batch, or all but its first messages."""
        self.peer.out.append(frame(Kind.REFUSED, link=self.link, number=number, body=refusal.encode()))

    def flush(self) -> None:
        if self.ack_count:
            flags = HELD if self.hold_credit() else 0
            self.peer.out.append(
                frame(Kind.ACCEPTED, flags=flags, link=self.link, count=self.ack_count, number=self.ack_first)
            )
            self.ack_count = 0

    def hold_credit(self) -> bool:
        """Whether accepted batches give the sender no new credit yet (pacing.py)."""
        return False


class Producer(NumberedLink):
    """A sending link to one queue."""

    __slots__ = ("client_link", "entered", "goes_on", "is_named", "is_routed", "part", "queue", "stored")

    keeps_tags: ClassVar = False
    """Whether delivery-tags are stored with its batches, so that all of them are for Admission, and every
    answer waits for a commit."""

    def __init__(self, peer: "Peer", link: int, queue: "Queue", id: int, last_number: int, part: int) -> None:
        super().__init__(peer, link, id, last_number)
        self.queue = queue
        self.entered = 0
        """Number of messages since the last answer."""
        self.is_named = bool(id & IDENTITY)
        """Whether its client named it: then its numbers outlive the link, and the client may continue on
        another link."""
        self.is_routed = False
        """See ProducerOpen."""
        self.part = part
        """Number of messages stored from a partially accepted last batch, else 0."""
        self.goes_on = False
        """Whether the rest of the partially accepted batch is stored in the next turn."""
        self.stored: dict[int, int] | None = None
        """The first sequence of each of the latest batches, if the link requested sequences."""
        self.client_link = ""
        """See ProducerOpen."""

    def records_of_tags(self, number: int, first: int, last: int) -> list[Terminus]:
        """Records of the delivery-tags of messages `first` to before `last` of a batch; see `keeps_tags`."""
        return []

    def hold_credit(self) -> bool:
        """See Numbered; batches since the last answer count, even if some have no answer yet."""
        count, self.entered = self.entered, 0
        pace = self.queue.pace
        if not pace.is_full(self.queue.view):
            return False
        pace.hold(self, count)
        return True

    @property
    def is_open(self) -> bool:
        """Whether the link is still attached to the queue."""
        return self.peer.producers.get(self.link) is self

    def free_credit(self, count: int) -> None:
        """Gives the sender credit that was held for `count` messages; 0 for all of it."""
        self.peer.out.append(frame(Kind.FREED, link=self.link, count=count))

    def note(self, number: int, sequence: int) -> None:
        """Stores the first sequence of a batch."""
        if self.stored is not None:
            self.stored[number] = sequence
            if len(self.stored) > SEQUENCES_KEPT:
                del self.stored[next(iter(self.stored))]

    def accept(self, number: int) -> None:
        """See `Numbered.accept`; a link that requested sequences gets an answer per batch."""
        if self.stored is None:
            super().accept(number)
            return
        body = SEQUENCE.pack(self.stored.get(number, UNKNOWN_SEQUENCE))
        self.peer.out.append(frame(Kind.STORED, link=self.link, number=number, body=body))


class RouteProducer(NumberedLink):
    """A sending link to sets of queues, which its frontend has numbered."""

    __slots__ = ("abandoned", "part", "sets")

    def __init__(self, peer: "Peer", link: int, id: int, last_number: int, part: int) -> None:
        super().__init__(peer, link, id, last_number)
        self.abandoned = False
        """Whether its client has disconnected, so that its batches no longer wait for room."""
        self.part = part
        """Number of messages stored from a partially accepted last batch, else 0."""
        self.sets: dict[int, list[Queue] | Refusal] = {}


@dataclass(slots=True, eq=False, repr=False)
class Consumer:
    """A receiving link of a frontend; `id` is its number in the queue machine, never used twice."""

    peer: "Peer"
    link: int
    queue: "Queue"
    id: int
    label: str = ""
    """Description of the consumer for operators."""
    since_ms: int = 0
    opened: ConsumerOpen | None = None
    """The options of its opening, needed if its queue moves."""
    unknown_below: int = 0
    """Deliveries below this number are of a link that was to go on here, and that this shard did not get: the
    former shard of the queue was lost before it had handed the link over."""

    def accept_session(self, session: str, locked_ms: int) -> None:
        """Notifies the frontend of the session that the consumer owns; `locked_ms` as in SessionAccepted."""
        if self.opened is not None:
            self.opened.session, self.opened.any_session = session, False
        body = session.encode("utf-8", "surrogatepass")
        self.peer.out.append(frame(Kind.SESSION, link=self.link, number=locked_ms, body=body))


class Settlement:
    """A SETTLE that has to be answered; a Waiter.

    Args:
        failures: returns the number of failures of the store so far.
        not_locked: ranges of deliveries that were not locked for the link, as (first, behind the last).
        is_known: whether this shard knows what has become of the deliveries.
    """

    __slots__ = ("_before", "_count", "_failures", "_is_known", "_link", "_not_locked", "_peer")

    def __init__(
        self,
        peer: "Peer",
        link: int,
        count: int,
        failures: Callable[[], int],
        not_locked: Sequence[tuple[int, int]] = (),
        *,
        is_known: bool = True,
    ) -> None:
        self._peer = peer
        self._link = link
        self._count = count
        self._failures = failures
        self._before = failures()
        self._not_locked = not_locked
        self._is_known = is_known

    def accept(self, number: int) -> None:
        """See Waiter: the outcomes from this number on are on disk, unless the store had no room for them."""
        flags = 0 if self._is_known and self._failures() == self._before else UNCERTAIN
        last = number + self._count
        for start, stop in self._not_locked:
            self._answer(number, start, flags)
            self._answer(start, stop, NOT_LOCKED)
            number = stop
        self._answer(number, last, flags)

    def _answer(self, first: int, last: int, flags: int) -> None:
        if first < last:
            self._peer.out.append(
                frame(Kind.SETTLED, flags=flags, link=self._link, count=last - first, number=first)
            )


@dataclass(slots=True, eq=False, repr=False)
class Peer:
    """One frontend process, from its greeting to its goodbye, its silence or its successor's greeting."""

    identity: bytes
    frontend: str
    boot: int
    attempt: int
    heard_ms: int
    version: int = VERSION
    """Version of the wire."""
    heard: int = 0
    """Number of ZeroMQ messages from it since its greeting (docs/formats/wire.md)."""
    said: int = 0
    producers: dict[int, Producer] = field(default_factory=dict)
    routers: dict[int, RouteProducer] = field(default_factory=dict)
    consumers: dict[int, Consumer] = field(default_factory=dict)
    moved: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Queue and epoch of consumers whose queue moved, by link: their SETTLEs are BOUNCED."""
    out: list[bytes] = field(default_factory=list)
    acking: list[NumberedLink] = field(default_factory=list)

    def end_link(self, link: int, refusal: Refusal) -> None:
        """Sends a GONE frame for a link that was refused or has ended."""
        self.out.append(frame(Kind.GONE, link=link, body=refusal.encode()))

    def send_away(self, link: int, queue: str, epoch: int, *, consumer: bool) -> None:
        """Sends MOVED to a link, which then looks for the owner of its queue."""
        self.out.append(frame(Kind.MOVED, epoch=epoch, link=link))
        if consumer:
            self.moved.pop(link, None)
            self.moved[link] = (queue, epoch)
            if len(self.moved) > limits.MOVED_LINKS_MAX:
                del self.moved[next(iter(self.moved))]

    def take(self) -> list[bytes]:
        """Removes and returns the frames to send now, in order."""
        if self.acking:
            for producer in self.acking:
                producer.flush()
            self.acking.clear()
        out, self.out = self.out, []
        self.said += 1
        return out if self.version == VERSION else for_version(out, self.version)
