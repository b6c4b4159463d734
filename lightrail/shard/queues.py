"""The queues of one shard by name: made when first asked for, written down, restored after a start."""

import logging
from collections.abc import Iterable, Iterator

from lightrail.model import limits
from lightrail.model.names import is_dead_letter
from lightrail.shard.dead_letters import merge_annotations
from lightrail.shard.figures import Figures
from lightrail.shard.journal import record
from lightrail.shard.journal.record import QueueEvent
from lightrail.shard.journal.store import RecoveredQueue, Store, StoreError
from lightrail.shard.queue import commands
from lightrail.shard.queue.effects import Reason
from lightrail.shard.queue.machine import Machine, Policy
from lightrail.telemetry.families import QueueFigures

log = logging.getLogger("lightrail.shard.queues")


class Queue:
    """One queue of this shard: its machine, its number in the journal, and what gathered in this step."""

    __slots__ = ("epoch", "id", "machine", "name", "removed", "resident")

    def __init__(self, id: int, name: str, machine: Machine) -> None:
        self.id = id
        self.name = name
        self.machine = machine
        self.epoch = 1
        self.resident = 0
        self.removed: dict[Reason, list[tuple[int, int]]] = {}
        """Sequences that left the queue in this step, by reason: ranges that become one Settle record."""


class Queues:
    """Every queue of the shard, by name; its numbers are those of the journal."""

    __slots__ = ("_by_name", "_max_delivery_count", "_next", "_store")

    def __init__(self, store: Store, max_delivery_count: int) -> None:
        self._store = store
        self._max_delivery_count = max_delivery_count
        self._by_name: dict[str, Queue] = {}
        self._next = 1

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._by_name.values())

    def find(self, name: str) -> Queue | None:
        """The queue of this name, if it is there."""
        return self._by_name.get(name)

    def get(self, name: str, now_ms: int) -> Queue | None:
        """The queue of this name; made, and written down, where it is not there yet.

        None when the shard has as many queues as it may have, or can't write one more down. A dead-letter
        queue comes with its queue and is not counted against the limit: what goes there has no other place.
        """
        queue = self._by_name.get(name)
        if queue is not None:
            return queue
        if len(self._by_name) >= limits.QUEUES_MAX and not is_dead_letter(name):
            return None
        number = self._next
        try:
            self._store.append(record.Queue(QueueEvent.DECLARED, number, name), now_ms)
        except StoreError as error:
            log.error("queue %s could not be written down: %s", name, error)
            return None
        return self._make(number, name)

    def restore(self, found: RecoveredQueue, now_ms: int) -> Queue:
        """A queue as recovery found it."""
        queue = self._make(found.queue, found.name)
        queue.machine.apply(commands.Restore(found.runs, found.next_sequence), now_ms)
        return queue

    def figures(self) -> Iterable[tuple[str, QueueFigures]]:
        """(name, figures) of every queue, for a scrape."""
        return [(name, Figures(queue.machine)) for name, queue in self._by_name.items()]

    def _make(self, number: int, name: str) -> Queue:
        dead = is_dead_letter(name)
        policy = Policy(max_delivery_count=0 if dead else self._max_delivery_count, dead_letter=not dead)
        queue = Queue(number, name, Machine(name, policy, merge_annotations))
        self._by_name[name] = queue
        self._next = max(self._next, number + 1)
        return queue
