"""Lane: the unanswered batches of one sending link of a router at one shard, and their answers.

Each ROUTE frame is for a set of queues, which has a number at the shard (TARGETS). Sets are declared when
they are first used, and again after each greeting. If a shard refuses a frame, it refuses all unanswered
frames behind it, for any queues; these are sent again, in order, when the last answer has arrived
(window.py). If a shard refuses a frame because a queue has moved to another shard, this frame and all behind
it return to the caller, in order, to be sent to that shard.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, auto
from itertools import accumulate
from typing import Any, Final

from lightrail.model import conditions, limits
from lightrail.shard_client.links import Producer
from lightrail.shard_client.peers.shards import ShardPeer
from lightrail.shard_client.sending.window import Attributes, OrderedWindow
from lightrail.wire.bodies import ProducerOpen, Refusal, Targets
from lightrail.wire.frames import AFRESH, HEADER, HEADER_SIZE, Kind, enqueue, frame

ROUTE: Final = int(Kind.ROUTE)
QUEUE_MISSING: Final = frozenset({conditions.NOT_FOUND, conditions.RESOURCE_DELETED})
"""Refusals of a set with a queue that the shard does not have, or no longer has."""


class Again(Enum):
    """How messages that a shard did not store are sent again."""

    ELSEWHERE = auto()
    """A queue has moved: after a pause, to the shards where the queues are then, as often as it takes."""
    ANEW = auto()
    """A queue was deleted: once, to those queues of the present plan that have not stored them."""
    NEVER = auto()


def again(refusal: Refusal, *, is_repeated: bool = False) -> Again:
    """How messages are sent again after a refusal.

    Args:
        is_repeated: whether they were sent ANEW before. A shard that lacks the queue of a present plan does
            not know of it yet, or lost it: its sender is to decide.
    """
    if refusal.condition == conditions.MOVED:
        return Again.ELSEWHERE
    # Where some messages are stored, others would be stored behind later ones.
    is_void = refusal.condition in QUEUE_MISSING and not refusal.accepted and not is_repeated
    return Again.ANEW if is_void else Again.NEVER


@dataclass(slots=True, eq=False, repr=False)
class Load:
    """Messages for queues of one shard, in one frame."""

    batch: Any
    """A value of the caller."""
    queues: frozenset[str]
    indices: Sequence[int]
    """Indices of the messages in their batch."""
    is_repeated: bool = False
    """Whether the load was refused once, and resolved again."""
    payloads: Sequence[bytes] = ()
    """The messages, as actions of subscriptions have changed them."""
    part: bytes = b""
    number_of_set: int = 0
    accepted: int = 0
    """Number of its first messages that are stored, though the load was displaced."""
    may_be_stored: bool = False
    """Whether the load may have reached a shard that was lost later."""


@dataclass(slots=True, eq=False, repr=False)
class Lane(Producer):
    """The connection of one sending link to one shard.

    Args:
        number: of the lane; unique among the lanes to all shards.
        on_stored: called with loads that are stored.
        on_refused: called with a load that is not stored, or only its first `refusal.accepted` messages.
        on_displaced: called with loads, in order, that are not stored: a queue of the first has moved.
        on_time_out: called with loads that have waited for a shard for too long; they are never sent again.
        on_reconnect: called when the shard serves again.
    """

    peer: ShardPeer
    """The connection to the lane's shard."""
    number: int
    _: KW_ONLY
    label: str
    on_stored: Callable[[list[Load]], None]
    on_refused: Callable[[Load, Refusal], None]
    on_displaced: Callable[[list[Load]], None]
    on_time_out: Callable[[list[Load]], None] | None = None
    on_reconnect: Callable[[], None] | None = None
    _is_open: bool = False
    _is_abandoned: bool = False
    _window: OrderedWindow[Load] = field(default_factory=OrderedWindow)
    _is_displaced: bool = False
    """Whether the refused load is for another shard."""
    _sets: dict[frozenset[str], int] = field(default_factory=dict)
    _declared: dict[int, frozenset[str]] = field(default_factory=dict)
    """The sets by their numbers at the shard."""
    _next_set: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether every load was answered."""
        return not self._window and not self._window.is_refusing

    def sets_under_way(self) -> set[frozenset[str]]:
        """Sets of queues of unanswered loads."""
        return {load.queues for load in self._window.everything()}

    def send(self, load: Load, payloads: Sequence[bytes], attributes: Attributes) -> None:
        """Sends messages to the queues of a load."""
        ends = array("I", accumulate(map(len, payloads)))
        number_of_set = self._sets.get(load.queues)
        if number_of_set is None:
            number_of_set = self._declare(load.queues)
        load.number_of_set = number_of_set
        load.payloads = payloads
        window = self._window
        load.part = enqueue(
            self.number,
            number_of_set,
            window.next,
            ends.tobytes(),
            payloads,
            durable=attributes.durable,
            afresh=not window,
            priority=attributes.priority,
            expires_at_ms=attributes.expires_at_ms,
            message_format=attributes.message_format,
            size=ends[-1],
            kind=ROUTE,
        )
        if window.is_refusing:
            window.wait(load)
            return
        window.add(window.next, load)
        if not self._is_open:
            # Opening sends all unanswered loads, including this one.
            self._is_open = True
            self.peer.open_producer(self)
        else:
            self.peer.post(load.part)

    def abandon(self) -> None:
        """The link has ended before every load was answered: no load waits for room any longer."""
        self._is_abandoned = True
        if self._is_open:
            self.peer.post(frame(Kind.PRODUCER_ABANDON, link=self.number))

    def close(self) -> None:
        """The link has ended, and every load was answered."""
        if self._is_open:
            self._is_open = False
            self.peer.close_producer(self.number)

    # --- sets ------------------------------------------------------------------------------------------

    def forget_sets(self) -> None:
        """Names have changed: loads that are sent from now on are for the queues that exist now.

        A shard resolves names when a set is declared. It may not have seen yet that a queue was deleted and
        created again, and would continue to store in the queue that is about to be dropped.
        """
        self._declared.clear()
        self._sets.clear()

    def _declare(self, queues: frozenset[str]) -> int:
        """A number for a set of queues. If there are too many, the oldest number is used again: frames for
        its former set are before the declaration, or are sent again with their own declaration."""
        number = self._next_set = self._next_set % limits.ROUTE_SETS_MAX + 1
        self._declare_as(number, queues)
        return number

    def _declare_as(self, number: int, queues: frozenset[str]) -> None:
        former = self._declared.get(number)
        if former is not None:
            self._sets.pop(former, None)
        self._declared[number] = queues
        self._sets[queues] = number
        if self._is_open:
            body = Targets(sorted(queues)).encode()
            self.peer.post(frame(Kind.TARGETS, link=self.number, number=number, body=body))

    # --- from the shard --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Opens this lane at the shard and sends unanswered loads again, in order."""
        body = ProducerOpen("", label=self.label, sent_below=self._window.sent_below).encode()
        self.peer.post(frame(Kind.PRODUCER_OPEN, link=self.number, number=self._window.next, body=body))
        self._declared.clear()
        self._sets.clear()
        for load in self._window:
            load.may_be_stored = True
            if self._declared.get(load.number_of_set) != load.queues:
                self._declare_as(load.number_of_set, load.queues)
            self.peer.post(load.part)
        self._window.mark_sent()
        if self._is_abandoned:
            self.peer.post(frame(Kind.PRODUCER_ABANDON, link=self.number))

    def ready(self) -> None:
        """No action: frames are sent with the opening."""

    def answered(self, number: int, count: int) -> None:
        """The frames number .. number+count-1 are stored."""
        stored = self._window.answer_run(number, count)
        if self._window.is_refusing:
            self._send_waiting()
        if stored:
            self.on_stored(stored)

    def refused(self, number: int, refusal: Refusal) -> None:
        """One frame could not be stored, or only a part of it."""
        load = self._window.answer(number)
        if load is None:
            return
        if refusal.condition in QUEUE_MISSING:
            self.forget_sets()
        is_displaced = again(refusal) is Again.ELSEWHERE
        if is_displaced:
            # Neither this load nor the loads that are refused behind it are stored.
            self.forget_sets()
            load.accepted = refusal.accepted
            self._is_displaced = True
        goes_again = self._window.refused(load, is_displaced=is_displaced)
        self._send_waiting()
        if not goes_again:
            self.on_refused(load, refusal)

    def ended(self, refusal: Refusal) -> None:
        """The shard has ended this lane; it is opened again for the next load."""
        self._is_open = self._is_displaced = False
        for load in self._window.clear():
            self.on_refused(load, refusal)

    # --- while the shard is lost -----------------------------------------------------------------------

    def disconnected(self) -> None:
        """See Producer."""
        self._window.mark_sent()
        for load in self._window:
            load.may_be_stored = True

    def timed_out(self) -> None:
        """See Producer; a lane without `on_time_out` continues to wait."""
        if self.on_time_out is None:
            return
        self._is_displaced = False
        loads = self._window.clear()
        if loads:
            self.on_time_out(loads)

    def reconnected(self) -> None:
        """See Producer."""
        if self.on_reconnect is not None:
            self.on_reconnect()

    def _send_waiting(self) -> None:
        """Once the last answer after a refusal has arrived, sends the waiting loads under new numbers."""
        again = self._window.take_waiting()
        if self._is_displaced and again:
            self._is_displaced = False
            self.on_displaced(again)
            return
        for load in again:
            if self._declared.get(load.number_of_set) != load.queues:
                load.number_of_set = self._sets.get(load.queues) or self._declare(load.queues)
            kind, flags, priority, _, link, count, _ = HEADER.unpack_from(load.part)
            flags = flags & ~AFRESH if self._window else flags | AFRESH
            number = self._window.next
            load.part = (
                HEADER.pack(kind, flags, priority, load.number_of_set, link, count, number)
                + load.part[HEADER_SIZE:]
            )
            self._window.add(number, load)
            self.peer.post(load.part)
