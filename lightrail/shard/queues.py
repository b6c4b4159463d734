"""The queues of one shard by name: made on first use, declared in the journal, restored after a start."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from lightrail.filters.looks import Looks
from lightrail.journal import record
from lightrail.journal.record import QueueEvent
from lightrail.model import conditions, limits
from lightrail.model.names import is_dead_letter, owner
from lightrail.model.policy import Role
from lightrail.namespace.records import Name
from lightrail.shard.dead_letters import merge_annotations
from lightrail.shard.deadlines import Deadlines
from lightrail.shard.declarations import Names, shard_policy
from lightrail.shard.declared import declared_of, encode_declared
from lightrail.shard.delivery_marks import DeliveryMarks
from lightrail.shard.field_access import look
from lightrail.shard.journal.store import RecoveredQueue, Store, StoreError
from lightrail.shard.ownership import Event, Ownership, State
from lightrail.shard.queue import commands
from lightrail.shard.queue.effects import Effect
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.policy import Policy
from lightrail.shard.queue.work import Work
from lightrail.shard.shard_queue import Queue
from lightrail.shard.tenancy import Tenancy, moved
from lightrail.telemetry.queues import QueueFigures
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import EPOCHS

log = logging.getLogger("lightrail.shard.queues")


class Queues:
    """Every queue of the shard, by name; its numbers are those of the journal."""

    __slots__ = (
        "_by_name",
        "_captures",
        "_copies",
        "_max_delivery_count",
        "_next",
        "_retire",
        "_store",
        "_uncaptured",
        "deadlines",
        "looks",
        "marks",
        "names",
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
        retire: Callable[[QueueFigures], None] = lambda _: None,
    ) -> None:
        self._store = store
        self.marks = DeliveryMarks() if marks is None else marks
        self.names = names
        self.tenancy = tenancy
        self._max_delivery_count = max_delivery_count
        self._by_name: dict[str, Queue] = {}
        self._copies: dict[str, Queue] = {}
        """Queues that are COPYING; no name is in both."""
        self._next = 1
        self.deadlines = Deadlines()
        self.work = Work()
        """The work of all queues in one step, beside deliveries and frames of frontends."""
        self.looks = Looks()
        """Of the consumers of all queues, in one step."""
        self._captures = store.captures
        self._uncaptured: set[str] = set()
        """Queues that should be captured and can't be, which was logged."""
        self._retire = retire
        """Counts the figures of a queue that ends."""

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def stored(self) -> Iterator[Queue]:
        """All that has messages in the store."""
        yield from self._by_name.values()
        yield from self._copies.values()

    def has(self, queue: Queue) -> bool:
        """Whether this very queue, or copy, is still here."""
        return self._by_name.get(queue.name) is queue or self._copies.get(queue.name) is queue

    def find(self, name: str) -> Queue | None:
        """The queue of this name, in any state but COPYING, or None."""
        return self._by_name.get(name)

    def copy_of(self, name: str) -> Queue | None:
        """The copy of this name that is being made, or None."""
        return self._copies.get(name)

    @property
    def copying(self) -> list[str]:
        """Names of the queues that are being copied from other shards."""
        return list(self._copies)

    def open(self, name: str, now_ms: int, epoch: int = 0) -> Queue | Refusal:
        """The queue of a link; made if the name is one of a queue in the directory.

        Args:
            epoch: in which it expects the queue; 0 for any.
        """
        queue = self._by_name.get(name)
        if queue is not None and queue.is_serving and epoch & EPOCHS in (0, queue.epoch & EPOCHS):
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
        """Why a queue can't be opened at this shard in an epoch, or None if it can."""
        if name in self._copies or (queue is not None and queue.is_frozen):
            return moved(f"{name} is on its way between shards")
        return self.tenancy.refusal(name, epoch)

    def is_absent_dead_letter(self, name: str) -> bool:
        """Whether this is a dead-letter queue that is not made yet, of a queue that is here."""
        return is_dead_letter(name) and name not in self._by_name and owner(name) in self._by_name

    def look(self, name: str) -> Queue | Refusal:
        """The queue of a request; an empty one, which is not kept, if it has yet to be made."""
        queue = self._by_name.get(name)
        if queue is not None and queue.is_serving:
            return queue
        elsewhere = self._elsewhere(name, queue, 0)
        if elsewhere is not None:
            return elsewhere
        found = self.names.get(name)
        if found.role is not Role.QUEUE:
            return _no_queue(found)
        return self._new(0, found, Ownership(State.SERVING, 0))

    def get(self, name: str, now_ms: int) -> Queue | None:
        """The queue of this name; made, and written down, where it is not there yet.

        None when the shard has as many queues as it may have, or can't write one more down. A dead-letter
        queue does not count against the limit: dead letters can go to no other queue.
        """
        queue = self._by_name.get(name)
        if queue is not None:
            return queue
        if name in self._copies:
            # It is opened in a moment, with the queue that it belongs to: dead letters wait until then.
            return None
        if len(self._by_name) >= limits.QUEUES_MAX and not is_dead_letter(name):
            return None
        ownership = Ownership(State.SERVING, self.tenancy.epoch_of(name))
        queue = self._new(self._next, self.names.get(name), ownership)
        try:
            self._store.append(record.Queue(QueueEvent.DECLARED, queue.id, name, queue.declared), now_ms)
        except StoreError as error:
            log.error("queue %s could not be written down: %s", name, error)
            return None
        self._by_name[name] = queue
        self.remember(queue.id)
        return queue

    def restore(
        self,
        found: RecoveredQueue,
        ownership: Ownership,
        reserved: Mapping[int, Sequence[tuple[int, int]]],
        now_ms: int,
    ) -> Queue:
        """A queue as recovery found it, with the policy that its name has now.

        One that is MOVED or DELETED is not found by its name: its locations have to be released.
        """
        queue = self._new(found.queue, self.names.get(found.name), ownership)
        if ownership.state not in (State.MOVED, State.DELETED):
            self._by_name[found.name] = queue
            self.remember(found.queue)
        queue.machine.apply(commands.Restore(found.runs, found.next_sequence, found.ids, reserved), now_ms)
        self._mark_restored(queue, found)
        return queue

    def _mark_restored(self, queue: Queue, found: RecoveredQueue) -> None:
        mark = self.marks.before(found.queue)
        if self.marks.is_exact:
            # Missing messages with higher sequences were transient: new messages get these sequences.
            mark = min(mark, found.next_sequence)
        elif mark > found.next_sequence + limits.DELIVERED_LOST_MAX:
            mark = found.next_sequence
        # Sequences beyond those that were found are given again: few of them to what was delivered before its
        # commit and is sent again by its frontend, many of them to new messages after transient ones.
        if mark:
            queue.machine.contents.deliveries.seen_to = queue.redelivered_before = mark
            queue.mark_due = queue.mark_asked = mark
            self.marks.note(queue.id, mark)

    def kept(self) -> list[Queue]:
        """Queues that this shard keeps with their messages and does not serve; an operator decides."""
        return [queue for queue in self._by_name.values() if queue.state is State.UNOWNED]

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
        restore = commands.Restore(found.runs, found.next_sequence, found.ids, joins=False, is_copy=True)
        queue.machine.apply(restore, now_ms)
        self._mark_restored(queue, found)
        return queue

    def _copy(self, number: int, found: Name, epoch: int) -> Queue:
        plain = Policy(max_delivery_count=0, dead_letter=False)
        machine = Machine(found.name, plain, merge_annotations, look, self.work)
        ownership = Ownership(State.COPYING, epoch)
        queue = Queue(number, found, machine, ownership, captured=self._captured(found))
        self._copies[found.name] = queue
        return queue

    def drop_copy(self, queue: Queue) -> None:
        """The copy becomes no queue."""
        queue.ownership.apply(Event.DELETE)
        del self._copies[queue.name]
        self.marks.forget(queue.id)

    def open_copy(self, queue: Queue, found: Name, epoch: int) -> Policy:
        """The copy is the queue of that name from now on; returns the policy that its machine has to get."""
        queue.ownership.apply(Event.OPEN, epoch)
        del self._copies[queue.name]
        self._by_name[queue.name] = queue
        queue.record = found
        queue.captured = self._captured(found)
        return self.policy_of(found)

    def policy_of(self, found: Name) -> Policy:
        """The policy of a name, for a queue machine."""
        return shard_policy(found, self._max_delivery_count)

    def remember(self, number: int) -> None:
        """The number of a new queue; no number is used again, not even of deleted queues."""
        self._next = max(self._next, number + 1)

    def remove(self, queue: Queue) -> None:
        """The queue is no longer here."""
        if self._by_name.get(queue.name) is queue:
            del self._by_name[queue.name]
            self._uncaptured.discard(queue.name)
            self._retire(queue.figures())
            self.marks.forget(queue.id)

    def change(self, queue: Queue, found: Name, now_ms: int) -> list[Effect]:
        """Sets another policy of a queue and appends it to the journal; returns the machine's effects."""
        queue.record = found
        queue.captured = self._captured(found)
        policy = self.policy_of(found)
        changed: list[Effect] = []
        if policy != queue.machine.contents.policy:
            changed = queue.machine.apply(commands.Change(policy), now_ms)
        try:
            self.note(queue, now_ms)
        except StoreError as error:
            # It is read from the directory, and the map, again after a restart.
            log.error("the policy of queue %s could not be written down: %s", queue.name, error)
        return changed

    def figures(self, prefix: str) -> Sequence[tuple[str, Callable[[], QueueFigures]]]:
        """(name, function that reads its figures) of every queue whose name begins so, for a scrape."""
        return [(name, queue.figures) for name, queue in self._by_name.items() if name.startswith(prefix)]

    def mark(self, queue: Queue, now_ms: int) -> None:
        """More of the queue was delivered than its delivery mark covers, or soon will be.

        The faster it delivers, the further ahead the mark is written, so that deliveries cost next to
        nothing.
        """
        seen_to = queue.machine.contents.deliveries.seen_to
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
        """Appends a record of a queue's policy and owner. Raises StoreError."""
        self._note(queue, queue.declared, now_ms)

    def note_frozen(self, queue: Queue, now_ms: int) -> None:
        """Write a record of a queue that is about to be frozen. Raises StoreError."""
        self._note(queue, queue.declared_as(frozen=True), now_ms)

    def _note(self, queue: Queue, declared: str, now_ms: int) -> None:
        self._store.append(record.Queue(QueueEvent.POLICY, queue.id, queue.name, declared), now_ms)

    def _new(self, number: int, found: Name, ownership: Ownership) -> Queue:
        machine = Machine(found.name, self.policy_of(found), merge_annotations, look, self.work)
        return Queue(number, found, machine, ownership, captured=self._captured(found))

    def _captured(self, found: Name) -> bool:
        """Whether the journal has all events of its messages: the policy asks for it, and the store can do
        it."""
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
