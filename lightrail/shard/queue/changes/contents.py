"""Contents: the messages of one queue, their places, and their numbers.

They are ready, delayed, waiting, deferred, or in flight at a consumer; in memory or on disk. Messages enter
in machine.py, and leave in outcomes.py and removals.py.

When a backlog has built up, small batches at the tail of the ready line become one run (`Joining`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import InitVar, dataclass, field
from heapq import merge
from typing import TYPE_CHECKING, Final

from lightrail.model import limits
from lightrail.model.attempts import waits_until_ms
from lightrail.shard.queue.lines.consumers import Consumers
from lightrail.shard.queue.lines.line import GONE, Line
from lightrail.shard.queue.lines.merging import join_neighbours
from lightrail.shard.queue.lines.ready import Ready, one_run, rejoined
from lightrail.shard.queue.memory.deferred import Deferred
from lightrail.shard.queue.memory.eviction import Eviction
from lightrail.shard.queue.order.deliveries import Deliveries
from lightrail.shard.queue.timed.aside import NOBODY_WITH_STATES, Aside, Retries
from lightrail.shard.queue.timed.lock_changes import LockChanges
from lightrail.shard.queue.timed.locks import Locks
from lightrail.shard.queue.timed.windows import Deadlines, Duplicates
from lightrail.shard.queue.values.commands import Peek
from lightrail.shard.queue.values.counters import Counters, TurnWork
from lightrail.shard.queue.values.effects import Peeked, PeekedState
from lightrail.shard.queue.values.policy import PLAIN, Policy
from lightrail.shard.queue.values.runs import Run

if TYPE_CHECKING:
    from lightrail.shard.queue.order.ordering import Ordering
    from lightrail.shard.queue.order.sessions import Sessions

JOIN_BACKLOG_BYTES: Final[int] = 8 * limits.JOINED_BYTES
"""Ready bytes below which batches are not joined: they will be delivered before joining pays."""


@dataclass(slots=True, eq=False, repr=False)
class Joining:
    """How far the ready line of one queue is joined."""

    bytes: int = 0
    """Number of bytes enqueued since the tail was last joined."""
    _joined_to: int = 0
    known_to: int = 0
    """Messages with lower sequences are from earlier steps, so the engine has set their locations."""

    def begin(self, next_sequence: int) -> None:
        """Notes that all messages below a sequence were recovered or moved here."""
        self._joined_to = self.known_to = next_sequence

    def join(self, ready: Ready, special: "Ordering | None") -> None:
        """Joins neighbours among the messages of earlier steps."""
        self.bytes = 0
        if ready.bytes < JOIN_BACKLOG_BYTES or (special is not None and special.singles):
            return
        start = ready.index(self._joined_to)
        self._joined_to = self.known_to
        stop = ready.index(self.known_to)
        # The last run of the former call may have room left.
        start = max(start - 1, ready.head)
        runs = ready.runs[start:stop]
        if special is not None:
            runs = [run for run in runs if run is not GONE]
        joined = join_neighbours(runs)
        if len(joined) < len(runs):
            ready.swap(start, stop, joined)


_NOTHING: Final = Ready()
"""The delayed messages of a queue without delays."""


@dataclass(slots=True, eq=False, repr=False)
class Contents:
    """The messages of one queue, its consumers, and their sums."""

    work: TurnWork
    """The rest of this turn's budget of work."""
    lock_changes: InitVar[LockChanges | None] = None
    policy: Policy = PLAIN
    next_sequence: int = 0
    """The sequence of the next message that is enqueued."""
    ready: Ready = field(default_factory=Ready)
    consumers: Consumers = field(default_factory=Consumers)
    deadlines: Deadlines = field(default_factory=Deadlines)
    counters: Counters = field(default_factory=Counters)
    aside: Aside = field(default_factory=Aside)
    """Deferred messages; the sums of `deliveries` count them."""
    states: Aside = field(default_factory=lambda: Aside(NOBODY_WITH_STATES))
    """States of sessions; the sums of `deliveries` count them."""
    retries: Retries | None = None
    """Messages that wait after a failed delivery; the sums of `deliveries` count them. None before the
    first."""
    duplicates: Duplicates | None = None
    """The message-ids of the window of duplicates, if the policy has one."""
    special: "Ordering | None" = None
    """Handles new messages of a queue that delivers in another order than that of sequences."""
    eviction: Eviction = field(init=False)
    locks: Locks = field(init=False)
    deferred: Deferred = field(init=False)
    deliveries: Deliveries = field(init=False)

    def __post_init__(self, lock_changes: LockChanges | None) -> None:
        self.eviction = Eviction(self.ready)
        self.locks = Locks(self.consumers, lock_changes)
        self.deferred = Deferred(self.eviction)
        self.deliveries = Deliveries(
            self.ready, self.consumers, self.eviction, self.counters, self.locks, self.work
        )

    # --- every message ----------------------------------------------------------------------------------

    def waiting(self) -> list[Run]:
        """All ready and delayed messages, by sequence."""
        return self.ready.waiting() if self.special is None else self.special.waiting()

    def expiring(self) -> list[Run]:
        """All messages that may expire: ready, delayed, waiting and deferred ones."""
        return [*self.waiting(), *(run for each in self.set_apart for run in each)]

    @property
    def set_apart(self) -> tuple[Aside, ...]:
        """Messages of the queue that are set aside: deferred and waiting ones."""
        return (self.aside,) if self.retries is None else (self.aside, self.retries)

    @property
    def spares_all(self) -> bool:
        """Whether no message expires now; see Ordering."""
        return self.special is not None and self.special.spares_all

    @property
    def lowest_apart(self) -> int | None:
        """The lowest sequence of `set_apart`; None if there is none."""
        lowest = [each.lowest for each in self.set_apart] if self.aside.count or self.retries else []
        return min((each for each in lowest if each is not None), default=None)

    def set_aside(self, run: Run) -> None:
        """Adds deferred or waiting messages, or states, that are in no line."""
        if run.waits:
            retries = self.retries = Retries() if self.retries is None else self.retries
            retries.add(run)
            self.consumers.retries = retries.consumer
            self.locks.add(retries.consumer, run.sequence, run.end, waits_until_ms(run.attempts))
        elif run.is_state:
            self.states.add(run)
            self.consumers.states = self.states.consumer
        else:
            self.aside.add(run)
            self.consumers.aside = self.aside.consumer
        self.deliveries.take_over(run)
        self.deadlines.add(run)

    def runs(self) -> list[Run]:
        """Every run, ready or in flight."""
        return list(self._all_runs())

    def surrender(self) -> list[Run]:
        """Removes and returns all messages, because the queue ends."""
        runs = self.ready.clear() if self.special is None else self.special.clear()
        for consumer in self.consumers:
            runs += consumer.in_flight.everything()
        return runs

    def _all_runs(self) -> Iterable[Run]:
        yield from rejoined(self.waiting()) if self.special is not None else self.waiting()
        for consumer in self.consumers:
            yield from consumer.in_flight.runs[consumer.in_flight.head :]

    def peek(self, command: Peek) -> Peeked:
        """Some messages that are ready, delayed, waiting or deferred, by sequence."""
        found: list[Run] = []
        states: list[PeekedState] = []
        wanted = command.count
        lines = [_from(self.ready, command.from_sequence, PeekedState.READY)]
        if self.special is not None and self.special.delays is not None:
            lines.append(_from(self.special.delays.line, command.from_sequence, PeekedState.DELAYED))
        for apart, state in zip(self.set_apart, (PeekedState.DEFERRED, PeekedState.DELAYED), strict=False):
            lines.append(_from(apart.consumer.in_flight, command.from_sequence, state))
        for run, its_state in merge(*lines, key=lambda each: each[0].sequence):
            if wanted <= 0:
                break
            skipped = max(command.from_sequence - run.sequence, 0)
            run = run.cut(skipped, min(run.count, skipped + wanted))
            wanted -= run.count
            if found and states[-1] is its_state and one_run(found[-1], run):
                before = found[-1]
                found[-1] = Run(run.batch, before.first, run.last, before.sequence, run.attempts, run.barred)
            else:
                found.append(run)
                states.append(its_state)
        return Peeked(found, states)

    # --- figures ----------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Number of messages that count against the bounds: ready, delayed, in flight and set apart."""
        return self.ready.count + self.deliveries.count + self.delayed.count

    @property
    def held_bytes(self) -> int:
        """Bytes of the messages that count against the bounds."""
        return self.ready.bytes + self.deliveries.bytes + self.delayed.bytes

    @property
    def in_flight_count(self) -> int:
        """Number of messages that are delivered and not settled."""
        return self.deliveries.count - self.aside.count - self.states.count - self.retries_count

    @property
    def retries_count(self) -> int:
        """Number of messages that wait after a failed delivery."""
        return 0 if self.retries is None else self.retries.count

    @property
    def resident_message_bytes(self) -> int:
        """Bytes in memory of the messages alone."""
        ready, delayed = self.ready, self.delayed
        size = ready.bytes - ready.evicted_bytes + self.deliveries.bytes - self.deliveries.evicted_bytes
        return size if delayed is _NOTHING else size + delayed.bytes - delayed.evicted_bytes

    @property
    def sessions(self) -> "Sessions | None":
        """The sessions of a queue whose policy has groups."""
        return None if self.special is None else self.special.sessions

    @property
    def delayed(self) -> Ready:
        """The line of delayed messages."""
        special = self.special
        return _NOTHING if special is None or special.delays is None else special.delays.line


def _from(line: Line, first: int, state: PeekedState) -> Iterator[tuple[Run, PeekedState]]:
    """The runs of a line that end above a sequence."""
    runs = line.runs
    for index in range(line.index(first), len(runs)):
        if runs[index].last > runs[index].first:
            yield runs[index], state
