"""The follower: what changes in the directory happens to the queues of this shard.

A name that was dropped, or dropped and made again, takes its queue with it: links end, messages are freed,
the journal is told. What the directory does not know after a start is kept and not served, because a
directory that was lost must not take messages with it; only the broker's own queues (subscriptions, dynamic
nodes) go. In another history of the coordinator than before, nothing goes at all (cluster/history.py).
"""

import logging
from collections.abc import Callable, Iterable

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.map import MapChanges
from lightrail.journal import record
from lightrail.journal.record import QueueEvent
from lightrail.model import conditions, limits
from lightrail.model import names as rules
from lightrail.model.policy import Role
from lightrail.namespace.directory import Changes
from lightrail.namespace.records import Name
from lightrail.shard.declarations import LAST_CONSUMER, declared_of
from lightrail.shard.housekeeping import Housekeeping
from lightrail.shard.journal.store import RecoveredQueue, Store, StoreError
from lightrail.shard.links import Links
from lightrail.shard.moving.arrivals import Arrival, Arrivals
from lightrail.shard.moving.awaited import AwaitedConsumers
from lightrail.shard.moving.sealing import Sealing
from lightrail.shard.moving.tenancy import Judgement, judge, moved
from lightrail.shard.peers import Waiter
from lightrail.shard.performer import Performer
from lightrail.shard.queue import commands
from lightrail.shard.queues import Queue, Queues
from lightrail.shard.relays import Relays
from lightrail.wire.bodies import Refusal

log = logging.getLogger("lightrail.shard.follower")


class Follower:
    """Keeps the queues as the directory says they are."""

    __slots__ = (
        "_arrivals",
        "_awaited",
        "_failed",
        "_house",
        "_links",
        "_lonely",
        "_now_ms",
        "_performer",
        "_queues",
        "_recovered",
        "_relays",
        "_sealing",
        "_store",
        "_tenancy",
        "_undeleted",
        "_when_synced",
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
        sealing: Sealing,
        arrivals: Arrivals,
        awaited: AwaitedConsumers,
        wish_dropped: Callable[[Name], None],
        when_synced: Callable[[Waiter, int], None],
    ) -> None:
        self._queues = queues
        self._performer = performer
        self._store = store
        self._house = house
        self._links = links
        self._relays = relays
        self._sealing = sealing
        self._arrivals = arrivals
        self._awaited = awaited
        self._tenancy = queues.tenancy
        self._wish_dropped = wish_dropped
        self._when_synced = when_synced
        self._now_ms = 0
        self._failed = False
        self._recovered = False
        """There are copies of a former life, and nobody has decided yet what becomes of them."""
        self._undeleted: list[Queue] = []
        """Deleted, which the journal had no room for yet."""
        self._lonely: dict[Queue, int] = {}
        """Queues that go with their last consumer, which has gone: when to ask for their end."""
        links.consumer_left = self.consumer_left
        awaited.left = self.consumer_left
        queues.names.listen(self._changed)
        self._tenancy.places.listen(self._placed)

    # --- at the start ----------------------------------------------------------------------------------

    def restore(self, found: Iterable[RecoveredQueue], now_ms: int) -> None:
        """Takes in what recovery found, as far as the names are still the same ones, and the queues ours."""
        self._now_ms = now_ms
        unknown: list[Queue] = []
        for each in found:
            self._queues.remember(each.queue)
            said = declared_of(each.policy)
            if said.copy:
                # Where it was not committed, its move begins anew.
                copy = self._queues.restore_copy(each, now_ms)
                self._house.memory.update(copy)
                self._arrivals.recovered(copy)
                continue
            named = self._queues.names.get(each.name)
            # In another history than the journal's, no revision says that the queue was dropped.
            comparable = said.history == self._queues.names.history
            placed = self._tenancy.places.placed(each.name)
            judged = judge(placed, self._tenancy.shard, said.epoch, copy=False, sealed=said.sealed)
            is_same = not comparable or said.created is None or named.created <= said.created
            if named.role is Role.QUEUE and is_same:
                # A revision before the one that the journal has: the directory was set back to a copy of
                # former times, and nobody dropped the queue.
                if judged is Judgement.DROPPED:
                    queue = self._queues.restore(each, said.epoch, now_ms, known=False)
                    self._delete(queue, moved(f"{each.name} is at another shard"))
                    continue
                queue = self._queues.restore(each, said.epoch, now_ms)
                if judged is Judgement.SERVED and placed is not None:
                    queue.epoch = placed.epoch
                    if each.policy != queue.declared:
                        self._change(queue, named)
                    self._performer.touched[queue] = None
                    if named.policy["lifetime"] == LAST_CONSUMER and rules.is_system(each.name):
                        # A shared subscription: its links open it again in a moment, or they ended with the
                        # broker and it would gather messages for ever. A user's queue may have had none yet.
                        self._lonely[queue] = now_ms + limits.PEER_SILENCE_MS
                    continue
                queue.served = False
                self._house.memory.update(queue)
                if judged is Judgement.STAYS:
                    self._sealing.restored(queue, now_ms)
                else:
                    unknown.append(queue)
                continue
            gone = comparable and (named.role is Role.QUEUE or rules.is_system(rules.owner(each.name)))
            queue = self._queues.restore(each, said.epoch, now_ms, known=not gone)
            queue.served = False
            if gone:
                self._delete(queue, _dropped(f"{each.name} was dropped"))
            else:
                unknown.append(queue)
                self._house.memory.update(queue)
                if said.sealed:
                    self._sealing.restored(queue, now_ms)
        self._recovered = bool(self._queues.copies)
        self._tell_unknown(unknown)

    def _open_recovered(self) -> None:
        """Copies that were committed, and not opened before this shard went down; the others go."""
        for name in sorted({rules.owner(name) for name in self._queues.copies}):
            found = self._queues.names.get(name)
            self._open(name)
            arrival = self._arrivals.find(name)
            if arrival is not None or found.role is not Role.QUEUE:
                self._drop_arrival(name)

    def _tell_unknown(self, unknown: list[Queue]) -> None:
        for queue in unknown[: limits.LOG_NAMES_MAX]:
            if queue.record.role is Role.QUEUE:
                log.warning(
                    "the coordinator does not say that queue %s, which has %d messages, is at this shard: it "
                    "is kept, not served",
                    queue.name,
                    queue.machine.gauges.ready,
                )
                continue
            log.warning(
                "the coordinator knows no queue %s, which has %d messages: it is kept, not served. Give the "
                "name the role queue to have them again, and drop it after that to be rid of them",
                queue.name,
                queue.machine.gauges.ready,
            )
        if len(unknown) > limits.LOG_NAMES_MAX:
            log.warning("so are %d further queues", len(unknown) - limits.LOG_NAMES_MAX)

    # --- later -----------------------------------------------------------------------------------------

    def refresh(self, now_ms: int) -> None:
        """Takes in what changed; when the directory can't be read, what is known goes on."""
        self._now_ms = now_ms
        try:
            # The names are as new as the places at least: what is placed has its name here.
            self._tenancy.places.refresh()
            self._queues.names.refresh()
        except CoordinatorError as error:
            if not self._failed:
                log.error("names can't be read, what is known goes on: %s", error)
            self._failed = True
        else:
            self._failed = False
            if self._recovered:
                self._recovered = False
                self._open_recovered()

    def _changed(self, changes: Changes) -> None:
        for name in changes.names:
            self._follow(name)
            if not rules.is_dead_letter(name):
                self._follow(rules.dead_letter_name(name))
            self._relays.name_changed(name)

    def _follow(self, name: str) -> None:
        queue = self._queues.find(name)
        found = self._queues.names.get(name)
        if queue is None:
            copy = self._queues.copies.get(name)
            if copy is not None and (found.role is not Role.QUEUE or found.created != copy.record.created):
                self._drop_arrival(name)
            return
        if not (queue.served or queue.sealed):
            if found.role is Role.QUEUE and self._is_ours(queue):
                queue.served = True
                self._change(queue, found)
                self._performer.touched[queue] = None
        elif self._queues.names.history != queue.record.history:
            self._follow_history(queue, found)
        elif found.role is not Role.QUEUE:
            self._delete(queue, _dropped(f"{name} was dropped"))
        elif found.created != queue.record.created:
            self._delete(queue, _dropped(f"{name} was dropped and made again"))
        elif queue.sealed:
            # It has the new policy where it goes on.
            return
        elif found.policy != queue.record.policy:
            self._change(queue, found)
            self._performer.touched[queue] = None

    def _follow_history(self, queue: Queue, found: Name) -> None:
        """The coordinator was set back: what it lacks was not dropped, and what is there is taken for the
        same.
        """
        if found.role is Role.QUEUE:
            if not queue.sealed:
                self._change(queue, found)
                self._performer.touched[queue] = None
            return
        log.error(
            "the coordinator, which was set back, knows no queue %s, which has %d messages: it is "
            "kept, not served. "
            "Give the name the role queue to have them again",
            queue.name,
            queue.machine.gauges.ready,
        )
        self._links.end(queue, _dropped(f"the coordinator was set back and does not know {queue.name}"))
        queue.served = False

    def _placed(self, changes: MapChanges) -> None:
        for name in changes.placements:
            for each in (name, rules.dead_letter_name(name)):
                self._follow_place(each)
            self._open(name)
        for name in changes.moves:
            if name not in self._tenancy.places.moves:
                self._end_exports(name)

    def _open(self, name: str) -> None:
        """Where the placement says so, a complete copy becomes the queue; one that is of no use goes."""
        arrival = self._arrivals.find(name)
        if arrival is None:
            return
        placed = self._tenancy.places.placed(name)
        judged = judge(placed, self._tenancy.shard, arrival.epoch, copy=True, sealed=False)
        if judged is Judgement.SERVED and arrival.complete:
            self.committed(arrival, self._now_ms)
        elif judged is not Judgement.STAYS:
            self._drop_arrival(name)

    def committed(self, arrival: Arrival, now_ms: int) -> None:
        """A queue that came is this shard's by its placement: it is served, unless it is already."""
        if self._arrivals.find(arrival.name) is not arrival:
            return
        for queue in self._arrivals.open(arrival, now_ms):
            if queue.record.policy["lifetime"] == LAST_CONSUMER and rules.is_system(queue.name):
                self._lonely[queue] = now_ms + limits.PEER_SILENCE_MS
        log.info("queue %s is here now, in epoch %d", arrival.name, arrival.epoch)

    def _drop_arrival(self, name: str) -> None:
        arrival = self._arrivals.find(rules.owner(name))
        if arrival is not None:
            self._arrivals.drop(arrival, self._now_ms)

    def _end_exports(self, name: str) -> None:
        """Nobody moves the queue any more."""
        for each in (name, rules.dead_letter_name(name)):
            queue = self._queues.find(each)
            if queue is not None and queue.exporting is not None and not queue.sealed:
                queue.exporting.end()

    def _is_ours(self, queue: Queue) -> bool:
        placed = self._tenancy.placed_here(queue.name)
        if placed is None:
            return False
        queue.epoch = placed.epoch
        return True

    def _follow_place(self, name: str) -> None:
        """The placement of a queue changed."""
        queue = self._queues.find(name)
        placed = self._tenancy.places.placed(name)
        if queue is None or placed is None:
            # One that is nowhere was dropped, and its name says so, or will in a moment.
            return
        judged = judge(placed, self._tenancy.shard, queue.epoch, copy=False, sealed=queue.sealed)
        found = self._queues.names.get(name)
        if judged is Judgement.DROPPED:
            queue.sealed = True
            self._sealing.left(queue)
            self._delete(queue, moved(f"{name} is at shard {placed.shard}"))
        elif judged is Judgement.KEPT:
            if queue.served or queue.sealed:
                log.error(
                    "queue %s is at shard %d in epoch %d, says the coordinator, and was here in "
                    "epoch %d, with %d "
                    "messages that did not move: it is kept, not served",
                    name,
                    placed.shard,
                    placed.epoch,
                    queue.epoch,
                    queue.machine.gauges.ready,
                )
            self._links.end(queue, moved(f"{name} is at shard {placed.shard}"))
            queue.served = False
            queue.sealed = False
            self._sealing.gone(queue)
        elif judged is Judgement.SERVED and (queue.epoch != placed.epoch or not queue.served):
            self._take(queue, placed.epoch, found)

    def _take(self, queue: Queue, epoch: int, found: Name) -> None:
        """The queue is this shard's, in another epoch than before."""
        queue.epoch = epoch
        if queue.exporting is not None:
            queue.exporting.end()
        if queue.sealed:
            log.info("queue %s was given back, in epoch %d", queue.name, epoch)
            reads = self._sealing.given_back(queue, self._now_ms)
            self._change(queue, found if found.role is Role.QUEUE else queue.record)
            for read in reads:
                fetched = commands.Fetched(read.run.sequence, read.runs)
                self._performer.perform(queue, queue.machine.apply(fetched, self._now_ms), self._now_ms)
        elif found.role is Role.QUEUE:
            queue.served = True
            self._change(queue, found)
        self._performer.touched[queue] = None

    def _change(self, queue: Queue, found: Name) -> None:
        effects = self._queues.change(queue, found, self._now_ms)
        self._performer.perform(queue, effects, self._now_ms)

    def _delete(self, queue: Queue, why: Refusal) -> None:
        """Links end, messages are freed, the journal is told."""
        queue.served = False
        if queue.exporting is not None:
            queue.exporting.end()
        self._sealing.gone(queue)
        self._awaited.forget(queue)
        self._links.end(queue, why)
        self._queues.remove(queue)
        self._house.memory.remove(queue)
        self._lonely.pop(queue, None)
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
            if not queue.served:
                continue
            if queue.machine.consumers.competing:
                del self._lonely[queue]
            elif due_ms <= now_ms and not queue.machine.consumers.departed:
                # What one that left still has under a timed lock is not forsaken yet.
                self._lonely[queue] = now_ms + limits.PEER_SILENCE_MS
                self._wish_dropped(queue.record)


def _dropped(why: str) -> Refusal:
    return Refusal(conditions.RESOURCE_DELETED, why)
