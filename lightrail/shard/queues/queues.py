"""The queues of one shard by name: created on first use, declared in the journal, restored after a start."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from lightrail.filters.matcher import Looks
from lightrail.journal import record
from lightrail.journal.record import QueueEvent
from lightrail.model import conditions, limits
from lightrail.model.names import is_dead_letter, owner
from lightrail.model.policy import Policy as NamePolicy
from lightrail.model.policy import Role
from lightrail.namespace.records import Name
from lightrail.shard.journal.record import encode_declared
from lightrail.shard.journal.store import RecoveredQueue, Store, StoreError
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.counters import TurnWork
from lightrail.shard.queue.values.effects import Effect
from lightrail.shard.queue.values.policy import Policy, admitting_none
from lightrail.shard.queues.dead_letters import field_reader, merge_annotations
from lightrail.shard.queues.declarations import Names, shard_policy
from lightrail.shard.queues.delivery_marks import DeliveryMarks
from lightrail.shard.queues.lock_file import KeptLocks
from lightrail.shard.queues.ownership import Ownership, OwnershipEvent, OwnershipState
from lightrail.shard.queues.shard_queue import Figures, Queue, QueueDeadlines
from lightrail.shard.queues.tenancy import Tenancy, moved, no_room
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import EPOCHS

DELIVERY_MARK_PAUSE_MS: Final[int] = 10
"""A delivery mark that is due again sooner than this is written further ahead."""
DELIVERY_MARK_PAUSES: Final = 10
"""How many pauses it is ahead while a fast queue goes on."""
DELIVERY_MARK_AHEAD_MAX: Final[int] = 16_384
"""Most messages by which a delivery mark is ahead of the deliveries; it is rewritten after half as many.
After a crash up to this number of undelivered messages may count as delivered."""

log = logging.getLogger("lightrail.shard.queues.queues")


@dataclass(slots=True, eq=False, repr=False)
class Queues:
    """All queues of the shard, by name; the number of a queue is that in the journal."""

    _store: Store
    names: Names
    tenancy: Tenancy
    _max_delivery_count: int
    marks: DeliveryMarks = field(default_factory=DeliveryMarks)
    kept_locks: KeptLocks = field(default_factory=KeptLocks)
    _retire: Callable[[Figures], None] = lambda _: None
    """Adds the figures of a deleted queue to the totals."""
    queues_max: int = limits.QUEUES_MAX
    """No further queue is created beyond."""
    _policies: dict[tuple[int, bool], tuple[NamePolicy, Policy]] = field(default_factory=dict)
    """Policies of machines by those of names, found by identity, and whether it is a dead-letter
    queue."""
    _by_name: dict[str, Queue] = field(default_factory=dict)
    _copies: dict[str, Queue] = field(default_factory=dict)
    """Queues that are COPYING; no name is in both."""
    _next: int = 1
    deadlines: QueueDeadlines = field(default_factory=QueueDeadlines)
    work: TurnWork = field(default_factory=TurnWork)
    """The work of all queues in one step, beside deliveries and frames of frontends."""
    looks: Looks = field(default_factory=Looks)
    """The looks of the consumers of all queues, in one step."""
    _uncaptured: set[str] = field(default_factory=set)
    """Queues for which it was logged that they can't be captured."""

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def stored(self) -> Iterator[Queue]:
        """All queues and copies with messages in the store."""
        yield from self._by_name.values()
        yield from self._copies.values()

    def has(self, queue: Queue) -> bool:
        """Whether this queue or copy still exists."""
        return self._by_name.get(queue.name) is queue or self._copies.get(queue.name) is queue

    def find(self, name: str) -> Queue | None:
        """The queue of this name, in any state but COPYING, or None."""
        return self._by_name.get(name)

    def copy_of(self, name: str) -> Queue | None:
        """The copy of this name that is under way, or None."""
        return self._copies.get(name)

    @property
    def copying(self) -> list[str]:
        """Names of the queues that are being copied from other shards."""
        return list(self._copies)

    def open(self, name: str, now_ms: int, epoch: int = 0) -> Queue | Refusal:
        """The queue of a link; created if the name has the role queue in the directory.

        Args:
            epoch: the epoch that the link expects; 0 for any.
        """
        queue = self._by_name.get(name)
        if queue is not None and queue.is_serving and epoch & EPOCHS in (0, queue.epoch & EPOCHS):
            if queue.closings:
                return Refusal(conditions.RESOURCE_DELETED, f"{name} is being deleted; attach again")
            return queue
        elsewhere = self._elsewhere(name, queue, epoch)
        if elsewhere is not None:
            return elsewhere
        found = self.names.get(name)
        if found.role is not Role.QUEUE:
            return _no_queue(found)
        queue = self.get(name, now_ms)
        if queue is None:
            return no_room(self.queues_max)
        return queue

    def _elsewhere(self, name: str, queue: Queue | None, epoch: int) -> Refusal | None:
        """Why a queue can't be opened at this shard in an epoch, or None if it can."""
        if name in self._copies:
            return moved(f"{name} is moving between shards")
        # Without a dead-letter queue, its queue says where one is made.
        found = queue or self._by_name.get(owner(name))
        if found is not None and found.is_away:
            return moved(f"{found.name} is {found.state.value}; it is served, or not found, in a moment")
        return self.tenancy.refusal(name, epoch)

    def is_absent_dead_letter(self, name: str) -> bool:
        """Whether this is a dead-letter queue that does not exist yet, of a queue of this shard."""
        return is_dead_letter(name) and name not in self._by_name and owner(name) in self._by_name

    def for_request(self, name: str) -> Queue | Refusal:
        """The queue of a request; a temporary empty one if it does not exist yet."""
        queue = self._by_name.get(name)
        if queue is not None and queue.is_serving:
            return queue
        elsewhere = self._elsewhere(name, queue, 0)
        if elsewhere is not None:
            return elsewhere
        found = self.names.get(name)
        if found.role is not Role.QUEUE:
            return _no_queue(found)
        return self._new(0, found, Ownership(OwnershipState.SERVING, 0))

    def get(self, name: str, now_ms: int) -> Queue | None:
        """The queue of this name; created and recorded if it does not exist yet.

        None if the shard has reached its limit of queues, or can't record another one. The limit does not
        apply to dead-letter queues, because dead letters have no other queue.
        """
        queue = self._by_name.get(name)
        if queue is not None:
            return queue
        if name in self._copies:
            # It will be opened in a moment, together with its queue; dead letters wait until then.
            return None
        if len(self._by_name) >= self.queues_max and not is_dead_letter(name):
            return None
        ownership = Ownership(OwnershipState.SERVING, self.tenancy.epoch_of(name))
        queue = self._new(self._next, self.names.get(name), ownership)
        above = self._by_name.get(owner(name))
        queue.notes_use = above is not None and above.notes_use
        try:
            self._store.append(record.Queue(QueueEvent.DECLARED, queue.id, name, queue.declared), now_ms)
        except StoreError as error:
            log.error("queue %s could not be recorded: %s", name, error)
            return None
        self._by_name[name] = queue
        self.remember(queue.id)
        return queue

    def restore(
        self,
        found: RecoveredQueue,
        ownership: Ownership,
        reserved: commands.Restore,
        now_ms: int,
        *,
        is_copy: bool = False,
    ) -> Queue:
        """Adds a recovered queue with the current policy of its name.

        A queue that is MOVED or DELETED is not found by its name; it is only needed to release its locations.

        Args:
            reserved: has the messages of the queue that prepared transactions have.
            is_copy: whether the caller opens it with its consumers, as the copy of a queue that moves.
        """
        record = self.names.get(found.name)
        queue = (
            self._plain(found.queue, record, ownership)
            if is_copy
            else self._new(found.queue, record, ownership)
        )
        if ownership.state not in (OwnershipState.MOVED, OwnershipState.DELETED):
            self._by_name[found.name] = queue
            self.remember(found.queue)
        restore = reserved._replace(
            runs=found.runs,
            next_sequence=found.next_sequence,
            ids=found.ids,
            joins=not is_copy,
            is_copy=is_copy,
        )
        self._restore(queue, found, restore, now_ms)
        return queue

    def _restore(self, queue: Queue, found: RecoveredQueue, restore: commands.Restore, now_ms: int) -> None:
        mark = self.marks.before(found.queue)
        # Sequences beyond the recovered ones are used again: for new messages, and for those that were
        # delivered before their commit and come again (`Queue.repeated`).
        if self.marks.is_after_kill:
            queue.recovered_to = found.next_sequence
            queue.may_have_lost = mark > found.next_sequence
        mark = min(mark, found.next_sequence)
        queue.machine.apply(restore._replace(seen_to=mark), now_ms)
        if mark:
            queue.redelivered_before = mark
            queue.mark_due = queue.mark_asked = mark
            self.marks.note(queue.id, mark)

    def kept(self) -> list[Queue]:
        """Queues that this shard keeps with their messages and does not serve; an operator decides."""
        return [queue for queue in self._by_name.values() if queue.state is OwnershipState.UNOWNED]

    # --- copies of queues of other shards ----------------------------------------------------------------

    def begin_copy(self, found: Name, epoch: int, now_ms: int) -> Queue:
        """Creates an empty copy and its record. Raises StoreError."""
        number = self._next
        text = encode_declared(found, epoch, copy=True)
        self._store.append(record.Queue(QueueEvent.DECLARED, number, found.name, text), now_ms)
        self.remember(number)
        return self._copy(number, found, epoch)

    def restore_copy(self, found: RecoveredQueue, now_ms: int) -> Queue:
        """Adds a recovered copy; `queue.epoch` is the epoch after its move."""
        self.remember(found.queue)
        epoch = found.declared.epoch
        queue = self._copy(found.queue, self.names.get(found.name), epoch)
        restore = commands.Restore(found.runs, found.next_sequence, found.ids, joins=False, is_copy=True)
        self._restore(queue, found, restore, now_ms)
        return queue

    def _copy(self, number: int, found: Name, epoch: int) -> Queue:
        queue = self._copies[found.name] = self._plain(
            number, found, Ownership(OwnershipState.COPYING, epoch)
        )
        return queue

    def _plain(self, number: int, found: Name, ownership: Ownership) -> Queue:
        """A queue whose machine has no policy until it is opened."""
        plain = Policy(max_delivery_count=0, dead_letter=False)
        machine = self._machine(number, found.name, plain)
        return Queue(number, found, machine, ownership, captured=self._captured(found))

    def drop_copy(self, queue: Queue) -> None:
        """Removes a copy."""
        queue.ownership.apply(OwnershipEvent.DELETE)
        del self._copies[queue.name]
        self.marks.forget(queue.id)

    def open_copy(self, queue: Queue, found: Name, epoch: int) -> Policy:
        """Makes the copy the queue of its name; returns the policy that its machine must get."""
        queue.ownership.apply(OwnershipEvent.OPEN, epoch)
        del self._copies[queue.name]
        self._by_name[queue.name] = queue
        queue.record = found
        queue.captured = self._captured(found)
        return self.policy_of(found)

    def policy_of(self, found: Name) -> Policy:
        """The policy of a name, for a queue machine."""
        given = found.policy
        key = (id(given), is_dead_letter(found.name))
        known = self._policies.get(key)
        if known is None:
            if len(self._policies) >= limits.EQUAL_VALUES_MAX:
                self._policies.clear()
            known = self._policies[key] = given, shard_policy(found, self._max_delivery_count)
        return known[1]

    def remember(self, number: int) -> None:
        """Notes the number of a queue; numbers are not used again, not even those of deleted queues."""
        self._next = max(self._next, number + 1)

    def remove(self, queue: Queue) -> None:
        """Removes a queue."""
        if self._by_name.get(queue.name) is queue:
            del self._by_name[queue.name]
            self._uncaptured.discard(queue.name)
            self._retire(queue.figures())
            self.marks.forget(queue.id)

    def change(self, queue: Queue, found: Name, now_ms: int) -> list[Effect]:
        """Sets another policy of a queue and appends it to the journal; returns the machine's effects."""
        queue.record = found
        queue.captured = self._captured(found)
        changed = self.apply_policy(queue, now_ms)
        try:
            self.note(queue, now_ms)
        except StoreError as error:
            # After a restart the policy is read from the directory, and the owner from the map.
            log.error("the policy of queue %s could not be recorded: %s", queue.name, error)
        return changed

    def apply_policy(self, queue: Queue, now_ms: int) -> list[Effect]:
        """Gives the machine the policy of the queue, open or closed to messages; returns the effects."""
        policy = self.policy_of(queue.record)
        if any(each.to_messages for each in queue.closings):
            policy = admitting_none(policy)
        if policy == queue.view.policy:
            return []
        return queue.machine.apply(commands.Change(policy), now_ms)

    def figures(self, prefix: str) -> Sequence[tuple[str, Callable[[], Figures]]]:
        """(name, function that reads its figures) of every queue with this prefix, for a scrape."""
        return [(name, queue.figures) for name, queue in self._by_name.items() if name.startswith(prefix)]

    def mark(self, queue: Queue, now_ms: int) -> None:
        """Writes a new delivery mark, because deliveries have reached the former one, or soon will.

        The faster the queue delivers, the further ahead the mark is written, so that the cost per delivery is
        very small.
        """
        seen_to = queue.view.deliveries.seen_to
        if seen_to > queue.mark_due:
            passed_ms = now_ms - queue.marked_ms
            if 0 <= passed_ms < DELIVERY_MARK_PAUSE_MS:
                ahead = min(max(1, 2 * queue.mark_ahead), DELIVERY_MARK_AHEAD_MAX)
            elif passed_ms > 0 and queue.mark_ahead:
                # Half of a large mark lasts longer in a fast queue, too.
                delivered = seen_to - queue.mark_due + queue.mark_ahead // 2
                in_a_pause = delivered * DELIVERY_MARK_PAUSE_MS // passed_ms
                ahead = min(DELIVERY_MARK_PAUSES * in_a_pause, DELIVERY_MARK_AHEAD_MAX)
            else:
                ahead = 0
            queue.marked_ms, queue.mark_ahead, queue.mark_due = now_ms, ahead, seen_to + ahead // 2
            self.marks.note(queue.id, seen_to + ahead)
        there = self.marks.there(queue.id)
        if seen_to > there:
            self.marks.hold(queue.id, seen_to)
        # Until the new mark is in the file, deliveries beyond the old one must check the file.
        queue.mark_asked = max(seen_to, min(queue.mark_due, there))

    def note(self, queue: Queue, now_ms: int) -> None:
        """Appends a record of a queue's policy and owner. Raises StoreError."""
        self._note(queue, queue.declared, now_ms)

    def note_frozen(self, queue: Queue, now_ms: int) -> None:
        """Appends a record that a queue is frozen, before its state changes. Raises StoreError."""
        self._note(queue, queue.declared_as(frozen=True), now_ms)

    def _note(self, queue: Queue, declared: str, now_ms: int) -> None:
        self._store.append(record.Queue(QueueEvent.POLICY, queue.id, queue.name, declared), now_ms)

    def _new(self, number: int, found: Name, ownership: Ownership) -> Queue:
        machine = self._machine(number, found.name, self.policy_of(found))
        queue = Queue(number, found, machine, ownership, captured=self._captured(found))
        queue.may_have_lost = self.marks.lost_one(number)
        return queue

    def _machine(self, number: int, name: str, policy: Policy) -> Machine:
        changes = self.kept_locks.changes_of(number)
        return Machine(name, policy, merge_annotations, field_reader, self.work, changes)

    def _captured(self, found: Name) -> bool:
        """Whether events of messages are captured: the policy requests it, and the store supports it."""
        wanted: bool = found.policy["capture"]
        if wanted and not self._store.captures and found.name not in self._uncaptured:
            self._uncaptured.add(found.name)
            log.warning(
                "the policy of queue %s has capture, and the store of this shard is no journal: the queue is "
                "not captured. Start with --store journal, or remove capture from the policy",
                found.name,
            )
        return wanted and self._store.captures


def _no_queue(found: Name) -> Refusal:
    what = "it has no role" if found.role is Role.NONE else f"it has role {found.role}"
    text = f"{found.name} is no queue: {what}; give it a policy of role queue first"
    return Refusal(conditions.NOT_FOUND, text)
