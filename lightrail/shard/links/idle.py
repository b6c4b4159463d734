"""Idle queues: those whose policy has max_idle leave when nobody has used them for that time.

A queue is in use while a receiver of it, or of its dead letters, has credit or unsettled deliveries, while
a message waits for its time, and while it forwards, or its dead letters wait for that. Each send, delivery,
settlement, peek, renewal and change of its name is a use; for the own queue of a subscription a change of its
rules is one, and a message of its topic is none. An open link alone is no use.

Nothing is done per message. A queue in use is looked at every IDLE_CHECK_MS: its counters are compared with
those of the last look. Between two looks `notes_use` lets the first step that changes the queue look as
well, so that a receiver which comes and goes in between is noticed. When nobody has used a queue for
IDLE_NOTED_MS, its Queue record gets `idle_since_ms`, which a use removes again in the step in which it
happens: the record is in the same commit as a durable message, and is synced at once after any other use.
So the time goes on over restarts, and moves with the queue. After a start, a move and a pause of the
process, clients have IDLE_AFTER_START_MS to return.

A queue whose time is over is LEAVING (retiring.py).
"""

import logging
from collections.abc import Container, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.model import limits
from lightrail.model import names as rules
from lightrail.model.clock import Timetable
from lightrail.model.policy import Role
from lightrail.namespace.deleting import topic_of
from lightrail.namespace.topic_uses import idle_s
from lightrail.shard.effects.performer import Performer
from lightrail.shard.journal.store import StoreError
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import CallWhenSynced, Queue, WhenSynced

if TYPE_CHECKING:
    from lightrail.namespace.records import Name
    from lightrail.shard.links.retiring import RetiringQueues

IDLE_CHECK_MS: Final[int] = 10_000
"""How often a queue in use is looked at; it is deleted at most that much later than its last use allows."""
IDLE_NOTED_MS: Final[int] = 60_000
"""Time without use after which a queue's record has it."""
IDLE_AFTER_START_MS: Final[int] = 300_000
"""No queue leaves sooner after this shard began to serve it, or was paused for longer than IDLE_PAUSE_MS."""
IDLE_PAUSE_MS: Final[int] = 60_000
IDLE_REFUSED_MS: Final[int] = 60_000
"""A queue whose deletion the coordinator has refused leaves again after this time."""
IDLE_LOOKS_OF_A_TICK: Final[int] = 250
"""Queues that are looked at in a tick, about 20 microseconds each. Others that are due follow in the next
one, and their last use counts from there."""
USES: Final = frozenset(
    (
        *("peek", "cancel", "delete", "purge", "receive_deferred", "are_locked"),
        *("renew", "renew_locks", "renew_deliveries", "settle", "settle_locks", "settle_deliveries"),
        *("renew_session", "session_state", "set_session_state", "sessions"),
    )
)
"""Requests that use the queue that they name; sends and transactions change its counters."""

log = logging.getLogger("lightrail.shard.links.idle")


@dataclass(slots=True, eq=False, repr=False)
class Watched:
    """A queue whose use is watched."""

    used_ms: int
    """When somebody was known to use it last."""
    from_ms: int
    """When this shard began to watch it."""
    seen: Hashable
    """Its counters and revisions at the last look."""
    is_own: bool
    """Whether it is the own queue of a subscription, of which sends are no use."""
    enqueued: int
    """Messages that it had got at the last look."""
    fed_ms: int = 0
    """When it was seen to have got another one, which is a use of its topic."""
    is_unwritten: bool = False
    """Whether its record has a use less than it had, as the store had no room."""


@dataclass(slots=True, eq=False, repr=False)
class IdleQueues:
    """The watched queues."""

    _queues: Queues
    _performer: Performer
    _when_synced: CallWhenSynced
    _retiring: "RetiringQueues"
    _watched: dict[Queue, Watched] = field(default_factory=dict)
    _due: Timetable[Queue] = field(default_factory=Timetable)
    """When each of them is looked at next."""
    _by_router: dict[str, dict[Queue, None]] = field(default_factory=dict)
    """The same ones by the router of which they may be own queues of subscriptions; the others by ""."""
    _unmade: dict[str, None] = field(default_factory=dict)
    """Names of queues that nobody has used yet, for which this shard had no room."""
    _ticked_ms: int = 0
    _paused_ms: int = 0

    # --- which queues are watched ----------------------------------------------------------------------

    def watch(self, name: str, now_ms: int) -> None:
        """Watches a queue that is placed here, though nobody may have used it yet: then it is made."""
        self._unmade.pop(name, None)
        queue = self._queues.find(name)
        if queue is not None:
            self._retiring.serve_changed(queue, now_ms)
            return
        found = self._queues.names.get(name)
        if found.role is not Role.QUEUE or not self._is_watched(found):
            return
        if self._queues.tenancy.placed_here(name) is None:
            return
        if self._queues.copy_of(name) is None:
            queue = self._queues.get(name, now_ms)
            if queue is None:
                self._unmade[name] = None
            else:
                self.follow(queue, now_ms)

    def watch_all(self, now_ms: int) -> None:
        """Watches all queues that are placed here."""
        for name in self._queues.tenancy.map.queues_of(self._queues.tenancy.shard):
            self.watch(name, now_ms)

    def watch_families(self, topics: Container[str], now_ms: int) -> None:
        """Watches the queues of topics that have a max_idle from now on, or no longer."""
        for name in self._queues.tenancy.map.queues_of(self._queues.tenancy.shard):
            if topic_of(name) in topics:
                queue = self._queues.find(name)
                if queue is None:
                    self.watch(name, now_ms)
                elif queue.is_serving:
                    self.follow(queue, now_ms)

    def _is_watched(self, found: "Name") -> bool:
        """Whether a queue is deleted when nobody uses it, or the topic of its subscription."""
        return found.policy["max_idle"] is not None or (
            "/" in found.name and self._has_idle_topic(found.name)
        )

    def _has_idle_topic(self, queue: str) -> bool:
        topic = topic_of(queue)
        return bool(topic) and idle_s(self._queues.names.get(topic)) is not None

    def follow(self, queue: Queue, now_ms: int) -> None:
        """A queue is served here from now on, or its name has changed."""
        if not self._is_watched(queue.record) or rules.is_dead_letter(queue.name):
            self.forget(queue)
            queue.idle_since_ms = 0
            return
        watched = self._watched.get(queue)
        if watched is not None:
            if self._is_used(queue, watched):
                self._used(queue, watched, now_ms)
            return
        changed_ms = min(queue.record.changed_at_ms, now_ms)
        since_ms = min(queue.idle_since_ms, now_ms)
        watched = self._begin(queue, since_ms or now_ms, now_ms)
        if since_ms and changed_ms > since_ms:
            self._used(queue, watched, changed_ms)
        self._note_uses(queue, True)
        # Many queues that are restored at once are not looked at in one tick.
        self._due.set(queue, now_ms + IDLE_CHECK_MS + queue.id % IDLE_CHECK_MS)

    def _begin(self, queue: Queue, used_ms: int, now_ms: int) -> Watched:
        is_own = self._retiring.subscription(queue) is not None
        enqueued = queue.view.counters.enqueued
        watched = self._watched[queue] = Watched(used_ms, now_ms, self._uses(queue), is_own, enqueued)
        self._by_router.setdefault(self._retiring.router_of(queue), {})[queue] = None
        return watched

    def routers_changed(self, routers: Iterable[str], now_ms: int) -> None:
        """The subscriptions of some routers have changed."""
        for router in routers:
            for queue in list(self._by_router.get(router, ())):
                self._watched[queue].is_own = self._retiring.subscription(queue) is not None
                if queue.is_serving:
                    self.follow(queue, now_ms)

    def forget(self, queue: Queue) -> None:
        """The queue is not at this shard any more, or has no max_idle."""
        if self._watched.pop(queue, None) is None:
            return
        self._due.drop(queue)
        self._note_uses(queue, False)
        router = self._retiring.router_of(queue)
        del self._by_router[router][queue]
        if not self._by_router[router]:
            del self._by_router[router]

    # --- uses ------------------------------------------------------------------------------------------

    def touched(self, queue: Queue, now_ms: int) -> None:
        """A step changes a queue with `notes_use`."""
        owner = self._queues.find(rules.owner(queue.name))
        watched = None if owner is None else self._watched.get(owner)
        if owner is None or watched is None:
            queue.notes_use = False
        elif watched.is_own and not (queue.view.consumers.by_id or queue.view.in_flight_count):
            # Most steps bring messages of its topic.
            return
        elif owner.is_serving and self._is_used(owner, watched):
            self._used(owner, watched, now_ms)

    def requested(self, name: str, now_ms: int) -> None:
        """Somebody makes one of the requests of `USES`."""
        queue = self._queues.find(rules.owner(name))
        if queue is not None and queue.notes_use:
            self._used(queue, self._watched[queue], now_ms)

    def _used(self, queue: Queue, watched: Watched, now_ms: int, *, notes_next: bool = False) -> None:
        watched.used_ms = now_ms
        watched.seen = self._uses(queue)
        self._note_uses(queue, notes_next)
        self._due.set(queue, now_ms + IDLE_CHECK_MS)
        if queue.idle_since_ms:
            queue.idle_since_ms = 0
            self._write(queue, watched, now_ms)

    def _write(self, queue: Queue, watched: Watched, now_ms: int) -> None:
        """Writes whether a queue is in use, at once."""
        try:
            self._queues.note(queue, now_ms)
        except StoreError as error:
            if not watched.is_unwritten:
                log.error("whether queue %s is in use could not be recorded yet: %s", queue.name, error)
            watched.is_unwritten = True
        else:
            watched.is_unwritten = False
            self._when_synced(WhenSynced(_nothing), 0)

    def returned(self, queue: Queue, now_ms: int) -> None:
        """A queue that was LEAVING is served again."""
        watched = self._watched.get(queue)
        if watched is None:
            self.follow(queue, now_ms)
        elif queue.idle_since_ms:
            self._note_uses(queue, True)
            self._due.set(queue, now_ms + IDLE_REFUSED_MS)
        else:
            self._used(queue, watched, now_ms)

    def _note_uses(self, queue: Queue, wanted: bool) -> None:
        for each in self._retiring.family(queue):
            each.notes_use = wanted

    def _uses(self, queue: Queue) -> Hashable:
        """Values that each use changes, besides those of `_is_in_use`."""
        subscription = self._retiring.subscription(queue)
        found = [queue.record.revision, 0 if subscription is None else subscription.revision]
        for each in self._retiring.family(queue):
            counts = each.view.counters
            found += (counts.delivered, counts.browsed, counts.accepted, counts.released, counts.modified)
            found += (counts.rejected, counts.purged, counts.cancelled)
            if each is queue and subscription is None:
                found += (counts.enqueued, counts.duplicates, counts.dropped, counts.refused)
        return tuple(found)

    def _is_used(self, queue: Queue, watched: Watched) -> bool:
        return self._uses(queue) != watched.seen or self._is_in_use(queue)

    def _is_in_use(self, queue: Queue) -> bool:
        policy = queue.record.policy
        if policy["forward_to"] is not None or queue.view.gauges.delayed:
            return True
        for each in self._retiring.family(queue):
            view = each.view
            if view.in_flight_count or view.is_returning or view.deferring or each.promised or each.parked:
                return True
            if self._performer.leaving.has(each):
                return True
            is_forwarded = each is not queue and policy["dead_letter"] is not None
            if is_forwarded and view.held:
                # They are for another queue, and wait for the gateway.
                return True
            if not is_forwarded and any(consumer.limit > consumer.next for consumer in view.attached):
                return True
        return False

    # --- time ------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Looks at the queues that are due."""
        if self._ticked_ms and now_ms - self._ticked_ms > IDLE_PAUSE_MS:
            self._paused_ms = now_ms
        self._ticked_ms = now_ms
        for queue in self._due.take_due(now_ms, IDLE_LOOKS_OF_A_TICK):
            self._look(queue, self._watched[queue], now_ms)
        for name in list(self._unmade):
            self.watch(name, now_ms)
            if name in self._unmade:
                break

    def _look(self, queue: Queue, watched: Watched, now_ms: int) -> None:
        next_ms = now_ms + IDLE_CHECK_MS
        self._note_fed(queue, watched, now_ms)
        if queue.is_serving:
            if watched.is_unwritten:
                self._write(queue, watched, now_ms)
            if not queue.notes_use or self._is_used(queue, watched):
                self._used(queue, watched, now_ms, notes_next=True)
            if not queue.idle_since_ms and now_ms - watched.used_ms >= IDLE_NOTED_MS:
                queue.idle_since_ms = watched.used_ms
                self._write(queue, watched, now_ms)
            max_ms = queue.record.policy.milliseconds("max_idle")
            if queue.idle_since_ms and max_ms is not None:
                over_ms = self._over_ms(watched, max_ms)
                if now_ms >= over_ms and self._retiring.retire_idle(queue, now_ms):
                    return
                next_ms = max(over_ms, now_ms + limits.HEARTBEAT_MS)
        self._due.set(queue, next_ms)

    def over_ms(self, queue: Queue, max_ms: int, now_ms: int) -> int:
        """When nobody will have used a queue of a topic for so long, unless somebody uses it until then."""
        watched = self._watched.get(queue)
        if watched is None:
            return now_ms + max_ms
        self._note_fed(queue, watched, now_ms)
        if self._is_used(queue, watched):
            self._used(queue, watched, now_ms)
        return max(self._over_ms(watched, max_ms), watched.fed_ms + max_ms)

    def _note_fed(self, queue: Queue, watched: Watched, now_ms: int) -> None:
        enqueued = queue.view.counters.enqueued
        if enqueued != watched.enqueued:
            watched.enqueued, watched.fed_ms = enqueued, now_ms

    def _over_ms(self, watched: Watched, max_ms: int) -> int:
        """When the time of a queue is over."""
        back_ms = max(watched.from_ms, self._paused_ms)
        return max(watched.used_ms + max_ms, back_ms + IDLE_AFTER_START_MS)


def _nothing() -> None:
    """The commit is all that is wanted."""
