"""The follower: what changes in the directory happens to the queues of this shard.

A name that was dropped, or dropped and made again, takes its queue with it: links end, messages are freed,
the journal is told. What the directory does not know after a start is kept and not served, because a
directory that was lost must not take messages with it; only the broker's own queues (subscriptions, dynamic
nodes) go.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.model import conditions, limits
from lightrail.model import names as rules
from lightrail.model.policy import Role
from lightrail.namespace.directory import Changes
from lightrail.namespace.records import Name
from lightrail.shard.declarations import LAST_CONSUMER, declared_of, encode_declared
from lightrail.shard.housekeeping import Housekeeping
from lightrail.shard.journal import record
from lightrail.shard.journal.record import QueueEvent
from lightrail.shard.journal.store import RecoveredQueue, Store, StoreError
from lightrail.shard.links import Links
from lightrail.shard.performer import Performer
from lightrail.shard.queues import Queue, Queues
from lightrail.shard.relays import Relays
from lightrail.wire.messages import Refusal

log = logging.getLogger("lightrail.shard.follower")

_NAMED_IN_LOG: Final = 20
"""So many queues that nobody knows are named one by one."""


class Follower:
    """Keeps the queues as the directory says they are."""

    __slots__ = (
        "_failed",
        "_house",
        "_links",
        "_lonely",
        "_now_ms",
        "_performer",
        "_queues",
        "_relays",
        "_store",
        "_undeleted",
        "_wish_dropped",
    )

    def __init__(
        self,
        queues: Queues,
        performer: Performer,
        store: Store,
        house: Housekeeping,
        links: Links,
        relays: Relays,
        wish_dropped: Callable[[Name], None],
    ) -> None:
        self._queues = queues
        self._performer = performer
        self._store = store
        self._house = house
        self._links = links
        self._relays = relays
        self._wish_dropped = wish_dropped
        self._now_ms = 0
        self._failed = False
        self._undeleted: list[Queue] = []
        """Deleted, which the journal had no room for yet."""
        self._lonely: dict[Queue, int] = {}
        """Queues that go with their last consumer, which has gone: when to ask for their end."""
        links.consumer_left = self.consumer_left
        queues.names.listen(self._changed)

    # --- at the start ----------------------------------------------------------------------------------

    def restore(self, found: Iterable[RecoveredQueue], now_ms: int) -> None:
        """Takes in what recovery found, as far as the names are still the same ones."""
        self._now_ms = now_ms
        unknown: list[Queue] = []
        for each in found:
            self._queues.remember(each.queue)
            if declared_of(each.policy).copy:
                # Whoever moves queues here says whether it is complete.
                self._house.memory.update(self._queues.restore_copy(each, now_ms))
                continue
            named = self._queues.names.get(each.name)
            created = declared_of(each.policy).created
            if named.role is Role.QUEUE and (created is None or named.created <= created):
                # A revision before the one that the journal has: the directory was set back to a copy of
                # former times, and nobody dropped the queue.
                queue = self._queues.restore(each, now_ms)
                if each.policy != encode_declared(named, queue.epoch):
                    self._change(queue, named)
                self._performer.touched[queue] = None
                if named.policy["lifetime"] == LAST_CONSUMER and rules.is_system(each.name):
                    # A shared subscription: its links open it again in a moment, or they ended with the
                    # broker and it would gather messages for ever. A user's queue may have had none yet.
                    self._lonely[queue] = now_ms + limits.PEER_SILENCE_MS
                continue
            gone = named.role is Role.QUEUE or rules.is_system(rules.owner(each.name))
            queue = self._queues.restore(each, now_ms, known=not gone)
            queue.served = False
            if gone:
                self._delete(queue, f"{each.name} was dropped")
            else:
                unknown.append(queue)
                self._house.memory.update(queue)
        self._tell_unknown(unknown)

    def _tell_unknown(self, unknown: list[Queue]) -> None:
        for queue in unknown[:_NAMED_IN_LOG]:
            log.warning(
                "the coordinator knows no queue %s, which has %d messages: it is kept, not served. Give the "
                "name the role queue to have them again, and drop it after that to be rid of them",
                queue.name,
                queue.machine.gauges.ready,
            )
        if len(unknown) > _NAMED_IN_LOG:
            log.warning("so are %d further queues", len(unknown) - _NAMED_IN_LOG)

    # --- later -----------------------------------------------------------------------------------------

    def refresh(self, now_ms: int) -> None:
        """Takes in what changed; when the directory can't be read, what is known goes on."""
        self._now_ms = now_ms
        try:
            self._queues.names.refresh()
        except CoordinatorError as error:
            if not self._failed:
                log.error("names can't be read, what is known goes on: %s", error)
            self._failed = True
        else:
            self._failed = False

    def _changed(self, changes: Changes) -> None:
        for name in changes.names:
            self._follow(name)
            if not rules.is_dead_letter(name):
                self._follow(rules.dead_letter_name(name))
            self._relays.name_changed(name)

    def _follow(self, name: str) -> None:
        queue = self._queues.find(name)
        if queue is None:
            return
        found = self._queues.names.get(name)
        if not queue.served:
            if found.role is Role.QUEUE:
                queue.served = True
                self._change(queue, found)
                self._performer.touched[queue] = None
        elif found.role is not Role.QUEUE:
            self._delete(queue, f"{name} was dropped")
        elif found.created != queue.record.created:
            self._delete(queue, f"{name} was dropped and made again")
        elif found.policy != queue.record.policy:
            self._change(queue, found)
            self._performer.touched[queue] = None

    def _change(self, queue: Queue, found: Name) -> None:
        effects = self._queues.change(queue, found, self._now_ms)
        self._performer.perform(queue, effects, self._now_ms)

    def _delete(self, queue: Queue, why: str) -> None:
        """Links end, messages are freed, the journal is told."""
        queue.served = False
        self._links.end(queue, Refusal(conditions.RESOURCE_DELETED, why))
        self._queues.remove(queue)
        self._house.memory.remove(queue)
        self._lonely.pop(queue, None)
        self._performer.forget(queue)
        for run in queue.machine.runs():
            if run.batch.place is not None:
                self._store.release(run.batch.place.segment, run.size)
        self._write_deleted(queue)

    def _write_deleted(self, queue: Queue) -> None:
        try:
            self._store.append(record.Queue(QueueEvent.DELETED, queue.id, queue.name), self._now_ms)
        except StoreError as error:
            if queue not in self._undeleted:
                log.error("the end of queue %s could not be written down yet: %s", queue.name, error)
            self._undeleted.append(queue)

    # --- queues that go with their last consumer ----------------------------------------------------------

    def consumer_left(self, queue: Queue, lost: bool) -> None:
        """A consumer has gone; one whose frontend only lost its way (`lost`) may be back in a moment."""
        if queue.record.policy["lifetime"] == LAST_CONSUMER and not queue.machine.consumers.competing:
            self._lonely[queue] = self._now_ms + (limits.PEER_SILENCE_MS if lost else 0)

    def tick(self, now_ms: int) -> None:
        """Time has passed: ends that could not be written down, and wishes."""
        self._now_ms = now_ms
        if self._undeleted:
            undeleted, self._undeleted = self._undeleted, []
            for queue in undeleted:
                self._write_deleted(queue)
        if self._lonely:
            self.wish(now_ms)

    def wish(self, now_ms: int) -> None:
        """Asks for the end of queues without consumers; again after a while where nothing came of it."""
        for queue, due_ms in list(self._lonely.items()):
            if queue.machine.consumers.competing:
                del self._lonely[queue]
            elif due_ms <= now_ms and not queue.machine.consumers.departed:
                # What one that left still has under a timed lock is not forsaken yet.
                self._lonely[queue] = now_ms + limits.PEER_SILENCE_MS
                self._wish_dropped(queue.record)
