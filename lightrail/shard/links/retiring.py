"""Retiring queues: those that are LEAVING, since their names are about to be deleted.

A queue that nobody has used for its `max_idle` leaves by itself (idle.py), and so does one whose last
consumer has detached, if its lifetime ends with that (closings.py). At the request of a gateway that deletes
its name, a queue without messages leaves, and one of a topic that nobody has used. A queue that is LEAVING
changes no more, and its links and requests wait as at a freeze. When its record is synced, the shard requests
the deletion of its name, guarded by the revisions of the name, of its subscription and of its placement, or
answers the gateway, which does the same without the placement. Then the queue is deleted, or the name or the
subscription has a later revision, with which it is served again: so no accepted message is deleted.

A deletion whose answer was lost may be applied late, so no time ends LEAVING. Where the coordinator has
refused every attempt, as one does that can only be read, none can be applied: then the queue is served again,
and leaves later. Otherwise the shard requests the deletion again, also after a start. For a gateway that has
not deleted the name in limits.PEER_SILENCE_MS it requests that the name is kept, which makes the later
revision. Which of both it is, shows `idle_since_ms` of the queue's record: 0 for a gateway's, except for a
queue that ends with its last consumer. If the record has a topic, the gateway deletes that, and the revision
of the topic counts as well: the shard requests after LEAVES_WITH_MS that the topic is kept.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.map import PLACEMENT
from lightrail.model import limits
from lightrail.model import names as rules
from lightrail.model.policy import Role
from lightrail.namespace.deleting import has_own_queue, owner_of
from lightrail.namespace.records import Name, Subscription
from lightrail.shard.effects.performer import Performer
from lightrail.shard.journal.record import Declared
from lightrail.shard.journal.store import StoreError
from lightrail.shard.queue.values import commands
from lightrail.shard.queues.declarations import LAST_CONSUMER, ExpiredName
from lightrail.shard.queues.ownership import OwnershipEvent, OwnershipState
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import CallWhenSynced, Queue, WhenSynced

if TYPE_CHECKING:
    from lightrail.shard.links.links import Links

LEAVING_QUEUES_MAX: Final[int] = 100
"""Queues that leave at a time as they are idle or empty; others follow when these are deleted."""
LEAVES_WITH_MS: Final[int] = 10_000
"""How long queues of a topic wait for its deletion before their shards request that it is kept."""

log = logging.getLogger("lightrail.shard.links.retiring")

ServeAgain = Callable[[Queue, int], None]
"""Notes that a queue is served again, and the time in milliseconds; its `idle_since_ms` is 0 after a use."""


@dataclass(slots=True, eq=False, repr=False)
class RetiringQueues:
    """The queues that leave."""

    _queues: Queues
    _performer: Performer
    _links: "Links"
    _when_synced: CallWhenSynced
    _leaving: dict[Queue, int] = field(default_factory=dict)
    """Queues that leave, and the time to request again that they are deleted or kept."""
    _asked: dict[Queue, list[ExpiredName]] = field(default_factory=dict)
    """Attempts to delete a queue's name that have not ended, since it leaves."""
    _uncertain: set[Queue] = field(default_factory=set)
    """Queues of which a deletion may be applied late."""
    expired: list[ExpiredName] = field(default_factory=list)
    """Names to delete at the end of this turn."""
    may_leave: bool = True
    """Whether the coordinator answers, so that a queue which leaves does not wait for its deletion."""
    when_returned: ServeAgain = lambda queue, now_ms: None

    # --- queues and their names ------------------------------------------------------------------------

    def family(self, queue: Queue) -> list[Queue]:
        """A queue, and its dead-letter queue if there is one."""
        dead_letters = self._queues.find(f"{queue.name}/{rules.DEAD_LETTER_SEGMENT}")
        return [queue] if dead_letters is None else [queue, dead_letters]

    def subscription(self, queue: Queue) -> Subscription | None:
        """The subscription of which this is the own queue."""
        router, id = owner_of(queue.name)
        found = self._queues.names.subscription(router, id) if router else None
        return found if found is not None and has_own_queue(found) else None

    @staticmethod
    def router_of(queue: Queue) -> str:
        """The router of the subscription whose own queue has this name; an empty text for other names."""
        return owner_of(queue.name)[0]

    def revision(self, queue: Queue) -> int:
        """The revision that guards the deletion."""
        subscription = self.subscription(queue)
        return max(queue.record.revision, 0 if subscription is None else subscription.revision)

    def _guards(self, queue: Queue) -> dict[str, int]:
        """What the deletion of the name depends on besides the name; see ExpiredName."""
        guards: dict[str, int] = {}
        router, id = owner_of(queue.name)
        if router:
            found = self._queues.names.subscription(router, id) or Subscription(router, id, queue.name)
            guards[found.key] = found.revision
        placed = self._queues.tenancy.placed_here(queue.name)
        if placed is not None:
            guards[PLACEMENT + queue.name] = placed.revision
        return guards

    # --- leaving ---------------------------------------------------------------------------------------

    def retire_idle(self, queue: Queue, now_ms: int) -> bool:
        """Lets a queue leave that nobody has used for its time; returns whether it does."""
        if len(self._leaving) >= LEAVING_QUEUES_MAX or not self._retire(queue, self.revision(queue), now_ms):
            return False
        log.info(
            "queue %s is deleted, with %d messages: nobody has used it for its max_idle, %g seconds",
            *(queue.name, queue.view.held, queue.record.policy["max_idle"]),
        )
        self._when_synced(WhenSynced(lambda: self._request(queue)), 0)
        return True

    def retire_left(self, queue: Queue, now_ms: int) -> bool:
        """Lets a queue leave whose last consumer has detached; returns whether it does."""
        if not self._retire(queue, self.revision(queue), now_ms):
            return False
        self._when_synced(WhenSynced(lambda: self._request(queue)), 0)
        return True

    def retire_with(self, queue: Queue, topic: Name, now_ms: int) -> bool:
        """Lets a queue leave for a gateway, which deletes its topic; returns whether it does."""
        queue.leaves_with = topic.name
        if self._retire(queue, max(self.revision(queue), topic.revision), now_ms):
            self._leaving[queue] = now_ms + LEAVES_WITH_MS
            return True
        queue.leaves_with = ""
        return False

    def retire_empty(self, queue: Queue, revision: int, now_ms: int) -> bool:
        """Lets a queue without messages leave for a gateway, which deletes its name; returns whether it does.

        Args:
            revision: the latest one that the gateway has read, of the name and of its subscription.
        """
        if revision < self.revision(queue) or queue.closings or not self._is_empty(queue):
            return False
        if len(self._leaving) >= LEAVING_QUEUES_MAX:
            return False
        before_ms, queue.idle_since_ms = queue.idle_since_ms, 0
        if not self._retire(queue, revision, now_ms):
            queue.idle_since_ms = before_ms
            return False
        log.info("queue %s, which is empty, is about to be deleted by a gateway", queue.name)
        return True

    def _is_empty(self, queue: Queue) -> bool:
        family = self.family(queue)
        for each in family:
            view = each.view
            if view.held or view.in_flight_count or view.is_returning or view.deferring:
                return False
            if each.promised or each.parked or self._performer.leaving.has(each):
                return False
        return not any(source in family for source, _ in self._performer.dead_letters.unwritten)

    def _retire(self, queue: Queue, revision: int, now_ms: int) -> bool:
        """Lets a queue leave, unless it moves, a transaction with messages of it is not decided, or its
        deletion would have to wait for the coordinator, and messages of its topic with it; returns whether it
        does."""
        if not queue.is_serving or queue.name in self._queues.tenancy.map.moves or not self.may_leave:
            return False
        family = self.family(queue)
        if any(each.promised for each in family):
            return False
        try:
            for each in reversed(family):  # The record of the queue itself decides after a start.
                self._performer.journal_removed(each, now_ms)
                each.leaving, each.leaves_with = revision, queue.leaves_with
                self._queues.note(each, now_ms)
        except StoreError as error:
            log.error("that queue %s is about to be deleted could not be recorded: %s", queue.name, error)
            for each in family:
                each.leaving, each.leaves_with = 0, ""
            return False
        for each in family:
            each.notes_use = False
            each.ownership.apply(OwnershipEvent.RETIRE)
            self._links.send_away(each)
            self._performer.cancel_dispatch(each)
        self._leaving[queue] = now_ms + limits.PEER_SILENCE_MS
        return True

    def restored(self, queue: Queue, declared: Declared, now_ms: int) -> None:
        """Adds a queue that was LEAVING before this process started, by its record."""
        owner = self._queues.find(rules.owner(queue.name))
        if owner is not None and owner.is_serving:
            # Dead letters leave with their queue, which has a later record.
            queue.ownership.apply(OwnershipEvent.RETURN)
            self._performer.touch(queue)
            return
        queue.leaving, queue.leaves_with = declared.leaving, declared.leaves_with
        if not rules.is_dead_letter(queue.name):
            self._leaving[queue] = now_ms
            self._uncertain.add(queue)
            self.serve_changed(queue, now_ms)

    # --- the end of leaving ----------------------------------------------------------------------------

    def serve_changed(self, queue: Queue, now_ms: int) -> None:
        """Serves a queue again whose deletion fails, as its name or its subscription was changed.

        Its consumers are awaited, as after a freeze.
        """
        if queue not in self._leaving:
            return
        found, subscription = self._queues.names.get(queue.name), self.subscription(queue)
        if found.role is not Role.QUEUE or found.is_another(queue.record):
            return
        revision = max(found.revision, 0 if subscription is None else subscription.revision)
        if queue.leaves_with:
            revision = max(revision, self._queues.names.get(queue.leaves_with).revision)
        if revision <= queue.leaving and found.history == queue.record.history:
            return
        log.info("queue %s was changed as it was about to be deleted: it stays", queue.name)
        queue.idle_since_ms = 0
        self._serve(queue, now_ms)

    def deletion_ended(self, attempt: ExpiredName, error: CoordinatorError | None, now_ms: int) -> None:
        """An attempt to delete a name has ended; serves the queue again if none of them can be applied."""
        name = attempt.record.name
        queue = self._queues.find(name)
        asked = [] if queue is None else self._asked.get(queue, [])
        if queue is None or not any(each is attempt for each in asked):
            # It was served since, and may be leaving again.
            return
        self._asked[queue] = [each for each in asked if each is not attempt]
        if error is None:
            return
        if error.may_be_written:
            self._uncertain.add(queue)
        elif not self._asked[queue] and queue not in self._uncertain and queue in self._leaving:
            log.warning("queue %s stays for now, as the coordinator refuses its deletion: %s", name, error)
            self._serve(queue, now_ms)

    def _serve(self, queue: Queue, now_ms: int) -> None:
        self._forget(queue)
        for each in self.family(queue):
            if each.state is OwnershipState.LEAVING:
                for id in each.view.consumer_ids:
                    each.machine.apply(commands.Credit(id, 0), now_ms)
                each.leaving, each.leaves_with = 0, ""
                each.ownership.apply(OwnershipEvent.RETURN)
                self._links.await_sent_away(each, now_ms)
                self._performer.touch(each)
                try:
                    self._queues.note(each, now_ms)
                except StoreError as error:
                    # After a start, the later revision shows that it stays.
                    log.error("that queue %s stays could not be recorded yet: %s", each.name, error)
        self._when_synced(WhenSynced(_nothing), 0)
        self.when_returned(queue, now_ms)

    def routers_changed(self, routers: Collection[str], now_ms: int) -> None:
        """Some routers, or their subscriptions, have changed."""
        for queue in list(self._leaving):
            if queue.leaves_with in routers or self.router_of(queue) in routers:
                self.serve_changed(queue, now_ms)

    def forget(self, queue: Queue) -> None:
        """The queue is not at this shard any more."""
        queue.leaving, queue.leaves_with = 0, ""
        self._forget(queue)

    def _forget(self, queue: Queue) -> None:
        self._leaving.pop(queue, None)
        self._asked.pop(queue, None)
        self._uncertain.discard(queue)

    def tick(self, now_ms: int) -> None:
        """Requests again what was neither deleted nor kept."""
        for queue, again_ms in list(self._leaving.items()):
            if again_ms <= now_ms:
                self._leaving[queue] = now_ms + limits.PEER_SILENCE_MS
                self._request(queue)

    def _request(self, queue: Queue) -> None:
        if queue not in self._leaving:
            return
        is_left = queue.record.policy["lifetime"] == LAST_CONSUMER
        if (queue.idle_since_ms or is_left) and not queue.leaves_with:
            attempt = ExpiredName(queue.record, self._guards(queue))
            self._asked.setdefault(queue, []).append(attempt)
            self.expired.append(attempt)
            return
        found = self._queues.names.get(queue.leaves_with or queue.name)
        if found.role is not Role.NONE:
            self._links.closings.kept[found.name] = found

    def take_expired(self) -> list[ExpiredName]:
        """Names to delete, at the end of a turn."""
        found, self.expired = self.expired, []
        return found


def _nothing() -> None:
    """The commit is all that is wanted."""
