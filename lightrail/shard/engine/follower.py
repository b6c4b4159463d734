"""The follower: applies changes of the directory and of placements to the queues of this shard.

When a name was dropped, or dropped and created again, its queue is deleted: links end, messages are freed,
and the journal gets a record. Queues that are missing in the directory after a start are kept and not served:
a lost directory must not delete messages. Only queues that the broker created (subscriptions, dynamic nodes)
are deleted. If the history of the coordinator has changed, no queue is deleted (cluster/history.py).
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.map import MapChanges, Placed
from lightrail.journal import record
from lightrail.journal.record import QueueEvent
from lightrail.model import conditions
from lightrail.model import names as rules
from lightrail.model.links import Ending
from lightrail.model.policy import Role
from lightrail.namespace.directory import Changes
from lightrail.namespace.records import Name
from lightrail.shard.effects.actions import Read
from lightrail.shard.effects.performer import Performer
from lightrail.shard.journal.store import RecoveredQueue, Store, StoreError
from lightrail.shard.links.links import Links
from lightrail.shard.links.receiving.restored_locks import lock_holders
from lightrail.shard.links.receiving.resuming import open_restored, receivers_of, report_kept
from lightrail.shard.links.relaying.relay import Relays
from lightrail.shard.moving.exporting import Exports
from lightrail.shard.moving.freezing import Freezing
from lightrail.shard.queue.values import commands
from lightrail.shard.queues.ownership import (
    Ownership,
    OwnershipEvent,
    OwnershipState,
    QueueVerdict,
    judge,
    judge_name,
    recovered,
)
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import CallWhenSynced, Queue
from lightrail.shard.queues.tenancy import moved
from lightrail.shard.upkeep.cleaner import Housekeeping
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.shard.moving.arrivals import Arrival, Arrivals

log = logging.getLogger("lightrail.shard.engine.follower")


@dataclass(slots=True, eq=False, repr=False)
class Follower:
    """Keeps the queues consistent with the directory and the placements."""

    _queues: Queues
    _performer: Performer
    _store: Store
    _house: Housekeeping
    _links: Links
    _relays: Relays
    _freezing: Freezing
    _exports: Exports
    _arrivals: "Arrivals"
    _when_synced: CallWhenSynced
    _now_ms: int = 0
    can_read: bool = True  # The coordinator answered at the last look.
    _undeleted: list[Queue] = field(default_factory=list)
    """Deleted queues for whose record the journal had no room yet."""

    def __post_init__(self) -> None:
        self._queues.names.listen(self._changed)
        self._queues.tenancy.map.listen(self._placed)

    # --- at the start ----------------------------------------------------------------------------------

    def restore(
        self,
        found: Iterable[RecoveredQueue],
        reserved: Callable[[str, int], commands.Restore],
        now_ms: int,
    ) -> None:
        """Adds recovered queues whose names still exist, and that this shard owns.

        Args:
            reserved: messages of a queue that prepared transactions have; see commands.Restore.
        """
        self._now_ms = now_ms
        unknown: list[Queue] = []
        for each in sorted(found, key=lambda each: rules.is_dead_letter(each.name)):  # behind their queues
            self._queues.remember(each.queue)
            declared = each.declared
            if declared.copy:
                # If its move was not committed, the move begins again.
                copy = self._queues.restore_copy(each, now_ms)
                self._house.memory.update(copy)
                self._links.sending.termini.restore(copy, each.termini)
                self._arrivals.recovered(copy, *receivers_of(each, self._queues, self._links.receiving))
                continue
            named = self._queues.names.get(each.name)
            placed = self._queues.tenancy.map.placed(each.name)
            history = self._queues.names.history
            ownership = Ownership(*recovered(declared, named, history, placed, self._queues.tenancy.shard))
            queue = self._restore(each, ownership, reserved(each.name, each.queue), now_ms)
            queue.idle_since_ms = declared.idle_since_ms
            if ownership.state is OwnershipState.MOVED:
                self._end(queue, moved(f"{each.name} is at another shard"))
            elif ownership.state is OwnershipState.DELETED:
                self._end(queue, _deleted(f"{each.name} was deleted"))
            elif ownership.is_serving:
                if declared.fields != queue.declared_fields(frozen=False):
                    self._change(queue, named)
                self._links.idle.follow(queue, now_ms)
                self._performer.touch(queue)
                self._links.last_consumers.await_first(queue, now_ms)
            else:
                self._house.memory.update(queue)
                if queue.is_frozen:
                    self._freezing.restored(queue, now_ms)
                if ownership.state is OwnershipState.LEAVING:
                    self._links.retiring.restored(queue, declared.leaving, now_ms)
                elif not queue.is_frozen or named.role is not Role.QUEUE:
                    unknown.append(queue)
        report_kept(unknown)
        self._links.idle.watch_all(now_ms)

    def _restore(
        self,
        found: RecoveredQueue,
        ownership: Ownership,
        reserved: commands.Restore,
        now_ms: int,
    ) -> Queue:
        """Adds a recovered queue, with the clients' links that are durable, and locks that outlive links."""
        queues, links = self._queues, self._links
        holders, origins = receivers_of(found, queues, links.receiving)
        locks = lock_holders(found, queues.kept_locks, holders, links.receiving.next_number, now_ms)
        if ownership.state in (OwnershipState.MOVED, OwnershipState.DELETED):
            holders = []
        queue = queues.restore(found, ownership, reserved, now_ms, is_copy=bool(holders))
        links.sending.termini.restore(queue, found.termini)
        if holders:
            open_restored(queue, holders, origins, locks, queues, links.receiving, self._performer, now_ms)
        return queue

    def _open_recovered(self) -> None:
        """Opens copies whose move was committed before this shard ended, and drops those without a move.

        While there is a move, its commit may still succeed: the mover decides on the copy.
        """
        for name in self._arrivals.take_recovered():
            self._open(name)
            if self._queues.names.get(name).role is not Role.QUEUE:
                self._drop_arrival(name)

    # --- later -----------------------------------------------------------------------------------------

    def refresh(self, now_ms: int) -> None:
        """Applies changes of the directory; while it can't be read, queues are served as before."""
        self._now_ms = now_ms
        try:
            # The names are at least as new as the placements, so the name of a placed queue exists.
            self._queues.tenancy.map.refresh()
            self._queues.names.refresh()
        except CoordinatorError as error:
            if self.can_read:
                log.error("names can't be read, known queues are served as before: %s", error)
            self.can_read = False
        else:
            self.can_read = True
            self._open_recovered()

    def _changed(self, changes: Changes) -> None:
        for name in changes.names:
            self._follow(name)
            if not rules.is_dead_letter(name):
                self._follow(rules.dead_letter_name(name))
                self._follow(rules.dead_letter_name(rules.transfer_name(name)))
            self._links.closings.node_changed(name, self._now_ms)
            self._relays.name_changed(name)
        self._links.idle.routers_changed(changes.routers, self._now_ms)

    def _follow(self, name: str) -> None:
        """Applies the change of a name."""
        queue = self._queues.find(name)
        found = self._queues.names.get(name)
        if queue is None:
            copy = self._queues.copy_of(name)
            if copy is not None and (found.role is not Role.QUEUE or found.created != copy.record.created):
                self._drop_arrival(name)
            self._links.idle.watch(name, self._now_ms)
            return
        self._links.retiring.serve_changed(queue, self._now_ms)
        placed = self._queues.tenancy.placed_here(name)
        history = self._queues.names.history
        verdict = judge_name(queue.ownership, queue.record, found, history, is_placed=placed is not None)
        if verdict is QueueVerdict.SERVE:
            assert placed is not None
            self._claim(queue, placed.epoch, found)
        elif verdict is QueueVerdict.CHANGE:
            self._change(queue, found)
        elif verdict is QueueVerdict.DELETE:
            again = " and created again" if found.role is Role.QUEUE else ""
            self._delete(queue, OwnershipEvent.DELETE, _deleted(f"{name} was deleted{again}"))
        elif verdict is QueueVerdict.KEEP:
            self._keep_unknown(queue)
        elif queue.is_serving:
            # Its deletion is guarded by the latest revision.
            queue.record = found
            self._links.idle.follow(queue, self._now_ms)

    def _keep_unknown(self, queue: Queue) -> None:
        """Keeps a queue whose name is missing as the coordinator was set back; a frozen one keeps links."""
        log.error(
            "the coordinator, which was set back, knows no queue %s, which has %d messages: it is kept, not "
            "served. Give the name the role queue to have them again",
            queue.name,
            queue.view.held,
        )
        if queue.is_serving or queue.state is OwnershipState.LEAVING:
            why = _deleted(f"the coordinator was set back and does not know {queue.name}")
            self._links.end_kept(queue, why, self._now_ms)
            queue.ownership.apply(OwnershipEvent.DISOWN)

    def _placed(self, changes: MapChanges) -> None:
        for name in changes.placements:
            for each in (name, rules.dead_letter_name(name)):
                self._follow_placement(each)
            self._open(name)
            self._links.idle.watch(name, self._now_ms)
        for name in changes.moves:
            if name not in self._queues.tenancy.map.moves:
                self._end_exports(name)
                self._open(name)

    def _open(self, name: str) -> None:
        """Opens complete copies of queues that are placed here; drops useless copies."""
        arrival = self._arrivals.find(name)
        if arrival is None:
            return
        placed = self._queues.tenancy.map.placed(name)
        verdict = judge(OwnershipState.COPYING, arrival.epoch, placed, self._queues.tenancy.shard)
        if verdict is QueueVerdict.SERVE and arrival.complete:
            self.committed(arrival, self._now_ms)
        elif verdict is not QueueVerdict.STAY or (arrival.complete and not self._is_coming(arrival)):
            self._drop_arrival(name)

    def _is_coming(self, arrival: "Arrival") -> bool:
        """Whether the move of a copy exists, so that its commit may succeed."""
        move = self._queues.tenancy.map.moves.get(arrival.name)
        return move is not None and (move.to, move.epoch + 1) == (self._queues.tenancy.shard, arrival.epoch)

    def committed(self, arrival: "Arrival", now_ms: int) -> None:
        """Serves a queue that moved here and is placed here, unless it is served already."""
        if self._arrivals.find(arrival.name) is not arrival:
            return
        for queue in self._arrivals.open(arrival, now_ms):
            self._links.last_consumers.await_first(queue, now_ms)
            self._links.idle.follow(queue, now_ms)
        log.info("queue %s is at this shard now, in epoch %d", arrival.name, arrival.epoch)

    def _drop_arrival(self, name: str) -> None:
        if (arrival := self._arrivals.find(rules.owner(name))) is not None:
            self._arrivals.drop(arrival, self._now_ms)

    def _end_exports(self, name: str) -> None:
        """Ends the exports of a queue that no longer moves."""
        for each in (name, rules.dead_letter_name(name)):
            queue = self._queues.find(each)
            if queue is not None and not queue.is_frozen:
                self._exports.end(queue)

    def _follow_placement(self, name: str) -> None:
        """Applies a changed placement of a queue."""
        queue = self._queues.find(name)
        placed = self._queues.tenancy.map.placed(name)
        if queue is None or placed is None:
            # A queue without a placement was deleted; its name shows that now or in a moment.
            return
        verdict = judge(queue.state, queue.epoch, placed, self._queues.tenancy.shard)
        if verdict is QueueVerdict.LEAVE:
            self._freezing.left(queue)
            self._delete(queue, OwnershipEvent.LEAVE, moved(f"{name} is at shard {placed.shard}"))
        elif verdict is QueueVerdict.KEEP:
            if self._is_current(queue):
                self._disown(queue, placed)
        elif verdict is QueueVerdict.SERVE and (queue.epoch != placed.epoch or not queue.is_serving):
            self._serve(queue, placed.epoch)

    def _is_current(self, queue: Queue) -> bool:
        """Whether the queue is there still, with the names as they are now.

        The placement of a name that was deleted, and perhaps created again, is often known before its name.
        """
        try:
            self._queues.names.refresh()
        except CoordinatorError as error:
            log.info("whether queue %s was deleted can't be read now: %s", queue.name, error)
        return self._queues.find(queue.name) is queue

    def _disown(self, queue: Queue, placed: Placed) -> None:
        """Keeps a queue that another shard owns without its messages at this shard."""
        if queue.state is OwnershipState.UNOWNED:
            return
        log.error(
            "queue %s is at shard %d in epoch %d according to the coordinator, and was here in epoch %d, "
            "with %d messages that did not move: it is kept, not served",
            queue.name,
            placed.shard,
            placed.epoch,
            queue.epoch,
            queue.view.held,
        )
        self._links.end_kept(queue, moved(f"{queue.name} is at shard {placed.shard}"), self._now_ms)
        queue.ownership.apply(OwnershipEvent.DISOWN)
        self._fetched(queue, self._freezing.forget(queue))
        self._performer.cancel_dispatch(queue)

    def _claim(self, queue: Queue, epoch: int, found: Name) -> None:
        """Serves a queue that was kept: deliveries of its links return only now, as it did not change."""
        queue.ownership.apply(OwnershipEvent.CLAIM, epoch)
        self._links.receiving.release_all(queue, self._now_ms)
        for id in queue.view.consumer_ids:
            self._performer.detach(queue, id, Ending.BY_BROKER, self._now_ms)
            self._links.last_consumers.left(queue, self._now_ms, lost=True)
        self._change(queue, found)

    def _fetched(self, queue: Queue, reads: Iterable[Read]) -> None:
        """Gives the machine messages that were read from disk while the queue was frozen."""
        for read in reads:
            self._performer.apply(queue, commands.Fetched(read.run.sequence, read.runs), self._now_ms)

    def _serve(self, queue: Queue, epoch: int) -> None:
        """Serves a queue that this shard owns, in another epoch than before."""
        found = self._queues.names.get(queue.name)
        self._exports.end(queue)
        if queue.is_frozen:
            log.info("queue %s stays at this shard, in epoch %d", queue.name, epoch)
            reads = self._freezing.thaw(queue, epoch, self._now_ms)
            self._change(queue, found if found.role is Role.QUEUE else queue.record)
            self._fetched(queue, reads)
        elif found.role is not Role.QUEUE:
            queue.ownership.apply(OwnershipEvent.RENEW, epoch)
        elif queue.state is OwnershipState.UNOWNED:
            self._claim(queue, epoch, found)
        else:
            queue.ownership.apply(OwnershipEvent.RENEW, epoch)
            self._change(queue, found)
        self._performer.touch(queue)

    def _change(self, queue: Queue, found: Name) -> None:
        """Applies the policy of its name to a queue."""
        effects = self._queues.change(queue, found, self._now_ms)
        self._performer.perform(queue, effects, self._now_ms)
        self._links.idle.follow(queue, self._now_ms)

    def _delete(self, queue: Queue, event: OwnershipEvent, why: Refusal) -> None:
        """Deletes a queue that this shard no longer owns."""
        queue.ownership.apply(event)
        self._end(queue, why)

    def _end(self, queue: Queue, why: Refusal) -> None:
        """Ends the links, releases the messages, and appends a record that the queue is deleted."""
        self._exports.end(queue)
        self._freezing.forget(queue)
        self._links.closings.forget(queue)
        self._links.end(queue, why)
        self._queues.remove(queue)
        self._house.memory.remove(queue)
        self._links.last_consumers.forget(queue)
        self._performer.forget(queue)
        self._performer.leaving.deleted(queue, queue.machine.surrender())
        self._write_deleted(queue)
        for waiter, number in queue.take_unanswered():
            self._when_synced(waiter, number)

    def _write_deleted(self, queue: Queue) -> None:
        try:
            self._store.append(record.Queue(QueueEvent.DELETED, queue.id, queue.name), self._now_ms)
        except StoreError as error:
            if queue not in self._undeleted:
                log.error("the deletion of queue %s could not be recorded yet: %s", queue.name, error)
            self._undeleted.append(queue)

    # --- time ------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Retries to record deletions of queues that could not be recorded."""
        self._now_ms = now_ms
        if self._undeleted:
            undeleted, self._undeleted = self._undeleted, []
            for queue in undeleted:
                self._write_deleted(queue)


def _deleted(why: str) -> Refusal:
    return Refusal(conditions.RESOURCE_DELETED, why)
