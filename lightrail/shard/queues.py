"""The queues of one shard by name: made when first asked for, written down, restored after a start."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from lightrail.filters.looks import Looks
from lightrail.journal import record
from lightrail.journal.record import QueueEvent
from lightrail.model import conditions, limits
from lightrail.model.names import is_dead_letter, owner
from lightrail.model.policy import Role
from lightrail.namespace.records import Name
from lightrail.shard.dead_letters import merge_annotations
from lightrail.shard.declarations import Names, declared_of, encode_declared, shard_policy
from lightrail.shard.delivery_marks import DeliveryMarks
from lightrail.shard.figures import Figures
from lightrail.shard.journal.store import RecoveredQueue, Store, StoreError
from lightrail.shard.looking import look
from lightrail.shard.moving.tenancy import Tenancy, moved
from lightrail.shard.pacing import Pace
from lightrail.shard.queue import commands
from lightrail.shard.queue.effects import Effect, Reason
from lightrail.shard.queue.machine import Machine, Policy
from lightrail.shard.queue.runs import Batch
from lightrail.shard.queue.work import Work
from lightrail.telemetry.queues import QueueFigures
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import EPOCHS

if TYPE_CHECKING:
    from lightrail.shard.moving.exporting import Exporting
    from lightrail.shard.peers import Consumer, Producer, Waiter

log = logging.getLogger("lightrail.shard.queues")


class Parked:
    """A batch that waits for room in its queue; its first `done` messages had their end already."""

    __slots__ = ("batch", "done", "number", "producer", "until_ms")

    def __init__(
        self, producer: "Producer", number: int, batch: Batch, done: int, until_ms: int | None
    ) -> None:
        self.producer = producer
        self.number = number
        self.batch = batch
        self.done = done
        self.until_ms = until_ms
        """When the overflow of the policy acts on the rest; None for never."""

    def waits(self, now_ms: int) -> bool:
        """Whether it still may wait."""
        return self.until_ms is None or now_ms < self.until_ms


class Queue:
    """One queue of this shard: its machine, its number in the journal, and what gathered in this step."""

    __slots__ = (
        "captured",
        "delivered",
        "due_ms",
        "epoch",
        "exporting",
        "id",
        "index",
        "machine",
        "mark_ahead",
        "mark_asked",
        "mark_due",
        "marked_ms",
        "name",
        "pace",
        "parked",
        "producers",
        "record",
        "redelivered_before",
        "removed",
        "resident",
        "sealed",
        "served",
        "unanswered",
    )

    def __init__(
        self, id: int, record: Name, machine: Machine, epoch: int = 1, *, captured: bool = False
    ) -> None:
        self.id = id
        self.name = record.name
        self.record = record
        """What the directory said of the name when it was last asked."""
        self.machine = machine
        self.pace = Pace()
        self.captured = captured
        """All that happens to its messages is written down, transient ones included."""
        self.epoch = epoch
        """In which this shard owns it; of a copy, in which it will."""
        self.sealed = False
        """It is on its way to another shard, or has gone there; then it stays sealed."""
        self.exporting: Exporting | None = None
        """While it is copied to another shard."""
        self.resident = 0
        self.index = 0
        self.parked: deque[Parked] | None = None
        """What waits for room, in the order it came; None for nothing."""
        self.removed: dict[Reason, list[tuple[int, int]]] = {}
        """Sequences that left the queue in this step, by reason: ranges that become one Settle record."""
        self.delivered: dict[Consumer, list[tuple[int, int]]] = {}
        """Of a captured queue: sequences that were delivered in this step, for one Delivered record each."""
        self.producers: dict[Producer, None] = {}
        self.due_ms: int | None = None
        """When it stands among the deadlines."""
        self.redelivered_before = 0
        """Sequences below it may have been delivered by a shard or frontend that died: delivering them is a
        redelivery, whatever their attempts are."""
        self.mark_asked = 0
        """Once a sequence from here on was delivered, it is looked whether the file has the mark for it."""
        self.mark_due = 0
        """Once a sequence from here on was delivered, the delivery mark of the queue is noted anew."""
        self.mark_ahead = 0
        """Messages by which the mark was ahead of what was delivered when it was noted last."""
        self.marked_ms = 0
        """When that was."""
        self.unanswered: list[tuple[int, Waiter, int]] = []
        """Who waits for outcomes that are deferred (queue/deferred.py): the number of the last, and of the
        answer."""
        self.served = True
        """False: its name is not a queue's (any more, or as far as the directory knows), or it is sealed,
        or not known to be this shard's."""

    @property
    def declared(self) -> str:
        """What a Queue record in the journal says of it."""
        return encode_declared(self.record, self.epoch, sealed=self.sealed)

    def answer_when_applied(self, waiter: "Waiter", number: int, before: int) -> bool:
        """Keeps an answer to a settlement until the outcomes that it deferred are applied.

        Args:
            before: `machine.deferred.number` before the settlement.

        Returns:
            Whether it is kept; where not, nothing of it was deferred.
        """
        last = self.machine.deferred.number
        if last == before:
            return False
        self.unanswered.append((last, waiter, number))
        return True

    def take_unanswered(self) -> list[tuple["Waiter", int]]:
        """All of the answers, of a queue that ends: so have its messages."""
        found = [(waiter, number) for _, waiter, number in self.unanswered]
        self.unanswered = []
        return found

    def take_applied(self) -> list[tuple["Waiter", int]]:
        """The answers for which all outcomes are applied now."""
        oldest = self.machine.deferred.oldest
        found = [(waiter, number) for last, waiter, number in self.unanswered if last < oldest]
        self.unanswered = [each for each in self.unanswered if each[0] >= oldest]
        return found

    def holder_lost(self) -> None:
        """A frontend died with messages of the queue: any that was delivered may have been one of them."""
        self.redelivered_before = self.machine.deliveries.seen_to

    @property
    def may_come_again_before(self) -> int:
        """Sequences below it may have been delivered, should they be delivered after an end of the shard."""
        deliveries = self.machine.deliveries
        return deliveries.seen_to if deliveries.count else self.redelivered_before

    def park(self, entry: Parked) -> None:
        """The batch waits behind those that came before."""
        if self.parked is None:
            self.parked = deque()
        self.parked.append(entry)

    @property
    def parked_count(self) -> int:
        """Messages that wait for room."""
        return sum(entry.batch.count - entry.done for entry in self.parked or ())

    def figures(self) -> QueueFigures:
        """As they are now, for a scrape."""
        return Figures(self)

    @property
    def next_deadline_ms(self) -> int | None:
        """When the queue wants a Tick: what is in it, or the first that waits for room."""
        due = self.machine.next_deadline_ms
        if self.parked:
            until_ms = self.parked[0].until_ms
            if until_ms is not None and (due is None or until_ms < due):
                return until_ms
        return due


class Deadlines:
    """When which queue wants a Tick, so that nobody has to ask all of them; entries may be stale."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Queue]] = []
        self._order = 0

    @property
    def next_ms(self) -> int | None:
        """The earliest, or None; a queue that has no reason to be looked at any more is passed over."""
        heap = self._heap
        while heap:
            due_ms, order, queue = heap[0]
            if due_ms != queue.due_ms:
                heappop(heap)
                continue
            true_ms = queue.next_deadline_ms if queue.served else None
            if true_ms == due_ms:
                return due_ms
            queue.due_ms = true_ms
            if true_ms is None:
                heappop(heap)
            else:
                heapreplace(heap, (true_ms, order, queue))
        return None

    def note(self, queue: Queue) -> None:
        """The queue changed: its next deadline may be earlier."""
        due_ms = queue.next_deadline_ms if queue.parked else queue.machine.next_deadline_ms
        if due_ms is not None and queue.served and (queue.due_ms is None or due_ms < queue.due_ms):
            queue.due_ms = due_ms
            self._order += 1
            heappush(self._heap, (due_ms, self._order, queue))

    def due(self, now_ms: int) -> list[Queue]:
        """Takes out the queues that want a Tick now; the others are asked when their time has come."""
        found: list[Queue] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            due_ms, _, queue = heappop(heap)
            if due_ms != queue.due_ms:
                continue
            queue.due_ms = None
            if not queue.served:
                continue
            later_ms = queue.next_deadline_ms
            if later_ms is not None and later_ms <= now_ms:
                found.append(queue)
            else:
                self.note(queue)
        return found


class Queues:
    """Every queue of the shard, by name; its numbers are those of the journal."""

    __slots__ = (
        "_by_name",
        "_captures",
        "_max_delivery_count",
        "_next",
        "_store",
        "_uncaptured",
        "copies",
        "deadlines",
        "looks",
        "marks",
        "names",
        "retired",
        "tenancy",
        "work",
    )

    def __init__(
        self,
        store: Store,
        names: Names,
        tenancy: Tenancy,
        max_delivery_count: int,
        marks: DeliveryMarks | None = None,
    ) -> None:
        self._store = store
        self.marks = DeliveryMarks() if marks is None else marks
        self.names = names
        self.tenancy = tenancy
        self._max_delivery_count = max_delivery_count
        self._by_name: dict[str, Queue] = {}
        self._next = 1
        self.copies: dict[str, Queue] = {}
        """Queues that are being copied from other shards: none of the others, and served to nobody."""
        self.deadlines = Deadlines()
        self.work = Work()
        """Of all queues, in one step, beside deliveries and what frontends say."""
        self.looks = Looks()
        """Of the consumers of all queues, in one step."""
        self._captures = store.captures
        self._uncaptured: set[str] = set()
        """Queues that should be captured and can't be, which was said."""
        self.retired: Callable[[QueueFigures], None] = lambda _: None
        """Is given the figures of each queue that goes."""

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def stored(self) -> Iterator[Queue]:
        """All that has messages in the store."""
        yield from self._by_name.values()
        yield from self.copies.values()

    def has(self, queue: Queue) -> bool:
        """Whether this very queue, or copy, is still here."""
        return self._by_name.get(queue.name) is queue or self.copies.get(queue.name) is queue

    def find(self, name: str) -> Queue | None:
        """The queue of this name, if it is there; it may be one that is not served."""
        return self._by_name.get(name)

    def open(self, name: str, now_ms: int, epoch: int = 0) -> Queue | Refusal:
        """The queue that a link asks for, made where the directory says that it is one.

        Args:
            epoch: in which it expects the queue; 0 for any.
        """
        queue = self._by_name.get(name)
        if queue is not None and queue.served and epoch & EPOCHS in (0, queue.epoch & EPOCHS):
            return queue
        elsewhere = self._elsewhere(name, queue, epoch)
        if elsewhere is not None:
            return elsewhere
        found = self.names.get(name)
        if found.role is not Role.QUEUE:
            return _no_queue(found)
        queue = self.get(name, now_ms)
        if queue is None:
            return Refusal(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"this shard has no room for one more queue: it has {limits.QUEUES_MAX}, or its disk is full",
            )
        return queue

    def _elsewhere(self, name: str, queue: Queue | None, epoch: int) -> Refusal | None:
        """Why somebody has to look again where a queue is, or None where it may be opened here."""
        if name in self.copies or (queue is not None and queue.sealed):
            return moved(f"{name} is on its way between shards")
        return self.tenancy.refusal(name, epoch)

    def is_absent_dead_letter(self, name: str) -> bool:
        """Whether this is the dead-letter queue of a queue that is here, and has not come into being."""
        return is_dead_letter(name) and name not in self._by_name and owner(name) in self._by_name

    def look(self, name: str) -> Queue | Refusal:
        """The queue that somebody asks about; an empty one, kept nowhere, where it has yet to be made."""
        queue = self._by_name.get(name)
        if queue is not None and queue.served:
            return queue
        elsewhere = self._elsewhere(name, queue, 0)
        if elsewhere is not None:
            return elsewhere
        found = self.names.get(name)
        return self._new(0, found, 0) if found.role is Role.QUEUE else _no_queue(found)

    def get(self, name: str, now_ms: int) -> Queue | None:
        """The queue of this name; made, and written down, where it is not there yet.

        None when the shard has as many queues as it may have, or can't write one more down. A dead-letter
        queue comes with its queue and is not counted against the limit: what goes there has no other place.
        """
        queue = self._by_name.get(name)
        if queue is not None:
            return queue
        if name in self.copies:
            # Opened in a moment, with the queue that it belongs to: what is to go there waits until then.
            return None
        if len(self._by_name) >= limits.QUEUES_MAX and not is_dead_letter(name):
            return None
        queue = self._new(self._next, self.names.get(name), self.tenancy.epoch_of(name))
        try:
            self._store.append(record.Queue(QueueEvent.DECLARED, queue.id, name, queue.declared), now_ms)
        except StoreError as error:
            log.error("queue %s could not be written down: %s", name, error)
            return None
        self._by_name[name] = queue
        self.remember(queue.id)
        return queue

    def restore(self, found: RecoveredQueue, epoch: int, now_ms: int, *, known: bool = True) -> Queue:
        """A queue as recovery found it, with the policy that its name has now.

        One that is not `known` here is nobody's any more: it only says what it still holds.
        """
        named = self.names.get(found.name)
        queue = self._new(found.queue, named, epoch)
        if known:
            self._by_name[found.name] = queue
            self.remember(found.queue)
        queue.machine.apply(commands.Restore(found.runs, found.next_sequence, found.ids), now_ms)
        self._mark_restored(queue, found)
        return queue

    def _mark_restored(self, queue: Queue, found: RecoveredQueue) -> None:
        mark = self.marks.before(found.queue)
        if self.marks.is_exact:
            # What is missing beyond them was transient: new messages get those sequences.
            mark = min(mark, found.next_sequence)
        elif mark > found.next_sequence + limits.DELIVERED_LOST_MAX:
            mark = found.next_sequence
        # Sequences beyond those that were found are given again: few of them to what was delivered before its
        # commit and is sent again by its frontend, many of them to new messages after transient ones.
        if mark:
            queue.machine.deliveries.seen_to = queue.redelivered_before = mark
            queue.mark_due = queue.mark_asked = mark
            self.marks.note(queue.id, mark)

    def kept(self) -> list[Queue]:
        """Queues that are here with their messages and served by nobody, for an operator to decide."""
        return [queue for queue in self._by_name.values() if not (queue.served or queue.sealed)]

    # --- copies of queues of other shards ----------------------------------------------------------------

    def begin_copy(self, found: Name, epoch: int, now_ms: int) -> Queue:
        """An empty copy, written down as one. Raises StoreError."""
        number = self._next
        text = encode_declared(found, epoch, copy=True)
        self._store.append(record.Queue(QueueEvent.DECLARED, number, found.name, text), now_ms)
        self.remember(number)
        return self._copy(number, found, epoch)

    def restore_copy(self, found: RecoveredQueue, now_ms: int) -> Queue:
        """A copy as recovery found it; `queue.epoch` is the one that it was made for."""
        self.remember(found.queue)
        epoch = declared_of(found.policy).epoch
        queue = self._copy(found.queue, self.names.get(found.name), epoch)
        restore = commands.Restore(found.runs, found.next_sequence, found.ids, joins=False)
        queue.machine.apply(restore, now_ms)
        self._mark_restored(queue, found)
        return queue

    def _copy(self, number: int, found: Name, epoch: int) -> Queue:
        plain = Policy(max_delivery_count=0, dead_letter=False)
        machine = Machine(found.name, plain, merge_annotations, look, self.work)
        queue = Queue(number, found, machine, epoch, captured=self._captured(found))
        queue.served = False
        self.copies[found.name] = queue
        return queue

    def drop_copy(self, queue: Queue) -> None:
        """The copy becomes no queue."""
        del self.copies[queue.name]
        self.marks.forget(queue.id)

    def open_copy(self, queue: Queue, found: Name, epoch: int) -> Policy:
        """The copy is the queue of that name from now on; returns the policy that its machine has to get."""
        del self.copies[queue.name]
        self._by_name[queue.name] = queue
        queue.record = found
        queue.captured = self._captured(found)
        queue.epoch = epoch
        queue.served = True
        return self.policy_of(found)

    def policy_of(self, found: Name) -> Policy:
        """What the policy of a name is for a queue machine."""
        return shard_policy(found, self._max_delivery_count)

    def remember(self, number: int) -> None:
        """A number that the journal knows is not given again, not even after its queue has gone."""
        self._next = max(self._next, number + 1)

    def remove(self, queue: Queue) -> None:
        """The queue is no longer here."""
        if self._by_name.get(queue.name) is queue:
            del self._by_name[queue.name]
            self._uncaptured.discard(queue.name)
            self.retired(queue.figures())
            self.marks.forget(queue.id)

    def change(self, queue: Queue, found: Name, now_ms: int) -> list[Effect]:
        """The name has another policy; the journal is told, too. What the machine wants done is returned."""
        queue.record = found
        queue.captured = self._captured(found)
        policy = self.policy_of(found)
        changed: list[Effect] = []
        if policy != queue.machine.policy:
            changed = queue.machine.apply(commands.Change(policy), now_ms)
        try:
            self.note(queue, now_ms)
        except StoreError as error:
            # It is read from the directory, and the map, again after a restart.
            log.error("the policy of queue %s could not be written down: %s", queue.name, error)
        return changed

    def figures(self, prefix: str) -> Sequence[tuple[str, Callable[[], QueueFigures]]]:
        """(name, what reads its figures) of every queue whose name begins so, for a scrape."""
        return [(name, queue.figures) for name, queue in self._by_name.items() if name.startswith(prefix)]

    def mark(self, queue: Queue, now_ms: int) -> None:
        """More of the queue was delivered than its delivery mark covers, or soon will be.

        The faster it goes, the further ahead the mark is written, so that deliveries pay next to nothing.
        """
        seen_to = queue.machine.deliveries.seen_to
        if seen_to > queue.mark_due:
            if 0 <= now_ms - queue.marked_ms < limits.DELIVERY_MARK_PAUSE_MS:
                ahead = min(max(1, 2 * queue.mark_ahead), limits.DELIVERY_MARK_AHEAD_MAX)
            else:
                ahead = 0
            queue.marked_ms, queue.mark_ahead, queue.mark_due = now_ms, ahead, seen_to + ahead // 2
            self.marks.note(queue.id, seen_to + ahead)
        there = self.marks.there(queue.id)
        if seen_to > there:
            self.marks.hold(queue.id, seen_to)
        # Until the new mark is there, the old one is as far as deliveries may go unasked.
        queue.mark_asked = max(seen_to, min(queue.mark_due, there))

    def note(self, queue: Queue, now_ms: int) -> None:
        """Writes down what a queue is now. Raises StoreError."""
        self._store.append(record.Queue(QueueEvent.POLICY, queue.id, queue.name, queue.declared), now_ms)

    def _new(self, number: int, found: Name, epoch: int) -> Queue:
        machine = Machine(found.name, self.policy_of(found), merge_annotations, look, self.work)
        return Queue(number, found, machine, epoch, captured=self._captured(found))

    def _captured(self, found: Name) -> bool:
        """Whether what happens to its messages is written down: the policy says so, and the store can."""
        wanted: bool = found.policy["capture"]
        if wanted and not self._captures and found.name not in self._uncaptured:
            self._uncaptured.add(found.name)
            log.warning(
                "queue %s should be captured, says its policy, and the store of this shard keeps no journal: "
                "nothing of it is captured. Start with --store journal, or take capture out of the policy",
                found.name,
            )
        return wanted and self._captures


def _no_queue(found: Name) -> Refusal:
    what = "nobody has given it a role" if found.role is Role.NONE else f"it has role {found.role}"
    return Refusal(
        conditions.NOT_FOUND, f"{found.name} is no queue: {what}; give it a policy of role queue first"
    )
