"""A queue of this shard: its machine, its owner, its number in the journal, and its results of this step.

Beside it: what waits for its records (`Waiter`), and its figures for telemetry, under the names of metrics.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lightrail.namespace.records import Name
from lightrail.shard.journal.record import encode_fields, fields_of
from lightrail.shard.queue.footprint import NO_SIZES, Footprint, Sizes
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.effects import Reason
from lightrail.shard.queue.view import View
from lightrail.shard.queues.ownership import Ownership, OwnershipState
from lightrail.shard.queues.pacing import Pace

if TYPE_CHECKING:
    from lightrail.shard.links.ingress.parking import Parked


class Waiter(Protocol):
    """A producer, a request, or a sync that waits for the disk."""

    def accept(self, number: int) -> None:
        """The records are on disk.

        Args:
            number: number of a producer's batch; other waiters choose its meaning.
        """


CallWhenSynced = Callable[[Waiter, int], None]
"""Calls a waiter with this number when the records so far are on disk."""


@dataclass(slots=True, eq=False, repr=False)
class WhenSynced:
    """Makes a call when the records so far are on disk."""

    _call: Callable[[], None]

    def accept(self, _: int) -> None:
        """The records are on disk."""
        self._call()


class Figures:
    """A queue's counts at the time of the scrape.

    Args:
        parked: messages that wait for room in the queue.
    """

    def __init__(self, view: View, parked: int) -> None:
        counters = view.counters
        gauges = view.gauges
        self.enqueued = counters.enqueued
        self.delivered = counters.delivered
        self.redelivered = counters.redelivered
        self.accepted = counters.accepted
        self.rejected = counters.rejected
        self.released = counters.released
        self.modified = counters.modified
        self.expired = counters.expired
        self.dead_lettered = sum(counters.dead_lettered.values())
        self.purged = counters.purged
        self.ready = gauges.ready
        self.delayed = gauges.delayed
        self.in_flight = gauges.in_flight
        self.deferred = gauges.deferred
        self.bytes = gauges.bytes
        self.consumers = view.consumers.competing
        self.duplicates = counters.duplicates
        self.discarded = counters.dropped + counters.discarded.get(Reason.DISCARDED, 0)
        self.refused = counters.refused
        self.locks_expired = counters.locks_expired
        self.unannotated = counters.unannotated
        self.parked = parked
        self.locked = view.locked_count


class Closing(NamedTuple):
    """A deletion under way that closes a queue."""

    node: str
    revision: int
    """Of the node; the deletion is guarded by it."""
    history: str
    """Of the coordinator; revisions of different ones can't be compared."""
    to_messages: bool
    """Whether new messages wait as well: an accepted one would be deleted with the queue."""
    frontend: bytes
    """Identity of the peer that deletes the node."""


@dataclass(slots=True, eq=False, repr=False)
class Queue:
    """One queue of this shard: its machine, its number in the journal, and its results of this step."""

    id: int
    record: Name
    """The last read record of the name in the directory."""
    machine: Machine
    ownership: Ownership
    _: KW_ONLY
    captured: bool = False
    """Whether all events of its messages are recorded, also of transient ones."""
    pace: Pace = field(default_factory=Pace)
    closings: tuple[Closing, ...] = ()
    """While there is one, the queue opens no link, as it is about to be deleted; see closings.py."""
    notes_use: bool = False
    """Whether the next step that changes it looks whether somebody uses it; set by links/idle.py."""
    idle_since_ms: int = 0
    """Since when nobody has used it, as its Queue record has it; 0 for a queue in use."""
    leaving: int = 0
    """While the queue is LEAVING, the revision of its name that guards the deletion."""
    leaves_with: str = ""
    """While it is LEAVING because a topic is deleted, the topic."""
    sizes: Sizes = NO_SIZES
    """Of its footprint, as the memory of the shard has counted them; see Footprint.sizes."""
    parked: "Sequence[Parked] | None" = None
    """Batches that wait for room, in order; None for none. Set by parking.py."""
    promised: int = 0
    """Number of undecided transactions with messages of this queue; it can't move before they end."""
    promised_messages: int = 0
    """Number of messages that these transactions send to the queue; they count against its bounds."""
    promised_bytes: int = 0
    removed: dict[Reason, list[tuple[int, int]]] = field(default_factory=dict)
    """Sequences that left the queue in this step, by reason: ranges that become one Settle record."""
    delivered: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """For a captured queue: sequences that were delivered in this step, by consumer (`boot << 32 |
    link`), for one Delivered record each."""
    due_ms: int | None = None
    """The time of its entry in the deadlines."""
    redelivered_before: int = 0
    """Sequences below it may have been delivered by a shard or frontend that ended: their delivery is a
    redelivery, whatever their attempts."""
    may_have_lost: bool = False
    """Whether a shard that was killed may have delivered messages that it had not stored."""
    recovered_to: int = 0
    """Messages with lower sequences were there after such an end, and may have been buried before."""
    mark_asked: int = 0
    """The first sequence whose delivery must check the mark in the file."""
    mark_due: int = 0
    """The first sequence whose delivery notes a new delivery mark."""
    mark_ahead: int = 0
    """Number of messages by which the last noted mark was ahead of the deliveries."""
    marked_ms: int = 0
    """Time at which the mark was last noted."""
    unanswered: list[tuple[int, Waiter, int]] = field(default_factory=list)
    """Waiters for deferred outcomes (memory/deferred.py): number of the last outcome, waiter, and number
    of the answer."""
    name: str = field(init=False)
    view: View = field(init=False)
    footprint: Footprint = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.record.name
        self.view = self.machine.view
        self.footprint = self.machine.footprint

    @property
    def resident(self) -> int:
        """Bytes in memory of its messages and their index, as counted last."""
        return self.sizes[0]

    @property
    def state(self) -> OwnershipState:
        """The state of ownership."""
        return self.ownership.state

    @property
    def epoch(self) -> int:
        """The epoch in which this shard owns the queue, or will own it if it is a copy."""
        return self.ownership.epoch

    @property
    def is_serving(self) -> bool:
        """Whether links attach to it, and messages are stored and delivered."""
        return self.ownership.is_serving

    @property
    def is_frozen(self) -> bool:
        """Whether another shard is about to own it."""
        return self.ownership.state is OwnershipState.FROZEN

    @property
    def is_away(self) -> bool:
        """Whether its links and requests wait elsewhere, until it is served here, at another shard, or
        nowhere."""
        return self.ownership.state in (OwnershipState.FROZEN, OwnershipState.LEAVING)

    @property
    def declared(self) -> str:
        """The policy text of its Queue record in the journal."""
        return self.declared_as(frozen=self.is_frozen)

    def declared_as(self, *, frozen: bool) -> str:
        """Like `declared`, for a state that the queue is about to have."""
        return encode_fields(self.declared_fields(frozen=frozen))

    def declared_fields(self, *, frozen: bool) -> dict[str, Any]:
        """The fields of `declared_as`."""
        idle = self.idle_since_ms, self.leaving, self.leaves_with
        return fields_of(self.record, self.epoch, *idle, frozen=frozen)

    def answer_when_applied(self, waiter: Waiter, number: int, before: int) -> bool:
        """Keeps an answer to a settlement until the outcomes that it deferred are applied.

        Args:
            before: `view.deferred_number` before the settlement.

        Returns:
            Whether the answer is kept; if not, no outcome was deferred.
        """
        last = self.view.deferred_number
        if last == before:
            return False
        self.unanswered.append((last, waiter, number))
        return True

    def take_unanswered(self) -> list[tuple[Waiter, int]]:
        """Removes and returns all answers, for a queue that ends with its messages."""
        found = [(waiter, number) for _, waiter, number in self.unanswered]
        self.unanswered = []
        return found

    def take_applied(self) -> list[tuple[Waiter, int]]:
        """Removes and returns the answers whose outcomes are all applied."""
        oldest = self.view.deferred_oldest
        found = [(waiter, number) for last, waiter, number in self.unanswered if last < oldest]
        self.unanswered = [each for each in self.unanswered if each[0] >= oldest]
        return found

    def holder_lost(self) -> None:
        """Notes that a frontend ended with unknown deliveries: any delivered message may be one of them."""
        self.redelivered_before = self.view.deliveries.seen_to

    def repeated(self, count: int) -> None:
        """Notes that the next messages come again: a killed shard may have delivered them, and lost them."""
        if self.may_have_lost:
            before = self.view.next_sequence + count
            self.redelivered_before = max(self.redelivered_before, before)

    @property
    def redelivered_after_start_before(self) -> int:
        """The sequence below which deliveries after the next start may be redeliveries."""
        return self.view.deliveries.seen_to if self.view.in_flight_count else self.redelivered_before

    @property
    def held(self) -> int:
        """Number of messages that count against the bounds, with those of undecided transactions."""
        return self.view.held + self.promised_messages

    @property
    def held_bytes(self) -> int:
        """Bytes of the messages that count against the bounds."""
        return self.view.held_bytes + self.promised_bytes

    @property
    def parked_count(self) -> int:
        """Number of messages that wait for room."""
        return sum(entry.batch.count - entry.done for entry in self.parked or ())

    def figures(self) -> Figures:
        """The current figures, for a scrape."""
        return Figures(self.view, self.parked_count)

    @property
    def next_deadline_ms(self) -> int | None:
        """Time of the next Tick: for messages, or for the first batch that waits."""
        due = self.machine.next_deadline_ms
        if self.parked:
            until_ms = self.parked[0].until_ms
            if until_ms is not None and (due is None or until_ms < due):
                due = until_ms
        return due


@dataclass(slots=True, eq=False, repr=False)
class QueueDeadlines:
    """Queues by the time of their next Tick, so that a step need not check all; entries may be stale."""

    _heap: list[tuple[int, int, Queue]] = field(default_factory=list)
    _order: int = 0

    @property
    def next_ms(self) -> int | None:
        """The earliest time, or None; skips queues that no longer need a Tick."""
        heap = self._heap
        while heap:
            due_ms, order, queue = heap[0]
            if due_ms != queue.due_ms:
                heappop(heap)
                continue
            true_ms = queue.next_deadline_ms if queue.ownership.is_serving else None
            if true_ms == due_ms:
                return due_ms
            queue.due_ms = true_ms
            if true_ms is None:
                heappop(heap)
            else:
                heapreplace(heap, (true_ms, order, queue))
        return None

    def note(self, queue: Queue) -> None:
        """Notes the deadline of a changed queue, which may be earlier than before."""
        due_ms = queue.next_deadline_ms if queue.parked else queue.machine.next_deadline_ms
        if due_ms is None or not queue.ownership.is_serving:
            return
        if queue.due_ms is None or due_ms < queue.due_ms:
            queue.due_ms = due_ms
            self._order += 1
            heappush(self._heap, (due_ms, self._order, queue))

    def due(self, now_ms: int) -> list[Queue]:
        """Removes and returns the queues that need a Tick now."""
        found: list[Queue] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            due_ms, _, queue = heappop(heap)
            if due_ms != queue.due_ms:
                continue
            queue.due_ms = None
            if not queue.ownership.is_serving:
                continue
            later_ms = queue.next_deadline_ms
            if later_ms is not None and later_ms <= now_ms:
                found.append(queue)
            else:
                self.note(queue)
        return found
