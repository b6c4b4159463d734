"""Leaving queues: those that change no more, as this shard has requested the deletion of their names.

A queue leaves when nobody has used it for its max_idle (idle.py), or when its last consumer has detached and
its lifetime ends with that (closings.py). Its links and requests wait as at a freeze, so that nothing is
accepted that would be deleted. When its record is synced, the shard requests the deletion, guarded by the
revisions of the name and of the subscription whose own queue it is. Then the queue is deleted, or one of the
two has a later revision, with which it is served again.

It also leaves at the request of a gateway, which deletes its topic when all queues of that leave. Then the
revision of the topic guards the deletion as well, and the shard requests after LEAVES_WITH_MS that the topic
is kept, by a later revision, since the gateway may have been lost.

The deletion is a write to the coordinator that can seem lost and be applied late. So no time ends this state,
and a restarted shard continues with it.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.model import limits
from lightrail.model import names as rules
from lightrail.model.policy import Role
from lightrail.namespace.deleting import has_own_queue, owner_of
from lightrail.shard.effects.performer import Performer
from lightrail.shard.journal.record import Declared
from lightrail.shard.journal.store import StoreError
from lightrail.shard.queue.values import commands
from lightrail.shard.queues.declarations import ExpiredName
from lightrail.shard.queues.ownership import OwnershipEvent, OwnershipState
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import CallWhenSynced, Queue, Waiter, WhenSynced

if TYPE_CHECKING:
    from lightrail.namespace.records import Name, Subscription
    from lightrail.shard.links.links import Links

LEAVES_WITH_MS: Final[int] = 10_000
"""How long queues of a topic wait for its deletion before their shards request that it is kept."""

log = logging.getLogger("lightrail.shard.links.leaving_queues")


@dataclass(slots=True, eq=False, repr=False)
class LeavingQueues:
    """The queues of this shard that are LEAVING, without those of dead letters, which leave with theirs."""

    _queues: Queues
    _performer: Performer
    _links: "Links"
    _when_synced: CallWhenSynced
    _again_ms: dict[Queue, int] = field(default_factory=dict)
    """By queue, the time to request its deletion again, or that its topic is kept."""
    _unwritten: dict[Queue, None] = field(default_factory=dict)
    """Queues that are served again, for whose record the store had no room yet."""
    expired: list[ExpiredName] = field(default_factory=list)
    """Names to delete at the end of this turn."""
    may_begin: bool = True
    """Whether the coordinator answers, so that a queue which leaves does not wait for its deletion."""

    def __len__(self) -> int:
        return len(self._again_ms)

    def retire(
        self,
        queue: Queue,
        now_ms: int,
        why: str,
        *,
        topic: "Name | None" = None,
        waiter: Waiter | None = None,
        number: int = 0,
    ) -> bool:
        """Lets a queue leave, unless it moves, or its deletion would have to wait for the coordinator.

        Args:
            why: for the log, the reason of the deletion.
            topic: that a gateway deletes with the queue; without it the shard requests the deletion.
            waiter: gets this number when the queue leaves and its record is synced; needed with a topic.

        Returns:
            Whether the queue leaves; otherwise nothing has changed.
        """
        if queue.name in self._queues.tenancy.map.moves or not self.may_begin:
            return False
        family = self._queues.family(queue)
        subscription = self.subscription(queue)
        revision = max(queue.record.revision, 0 if subscription is None else subscription.revision)
        if topic is not None:
            revision = max(revision, topic.revision)
        try:
            for each in reversed(family):  # The record of the queue itself decides after a start.
                self._performer.journal_removed(each, now_ms)
                each.leaving = revision
                each.leaves_with = "" if topic is None else topic.name
                self._queues.note(each, now_ms)
        except StoreError as error:
            log.error("that queue %s is about to be deleted could not be recorded: %s", queue.name, error)
            for each in family:
                each.leaving, each.leaves_with = 0, ""
            return False
        for each in family:
            each.ownership.apply(OwnershipEvent.RETIRE)
            self._links.send_away(each)
            self._performer.cancel_dispatch(each)
        log.info("queue %s is deleted, with %d messages: %s", queue.name, queue.view.held, why)
        self._unwritten.pop(queue, None)
        self._again_ms[queue] = now_ms + (limits.PEER_SILENCE_MS if topic is None else LEAVES_WITH_MS)
        self._when_synced(waiter or WhenSynced(lambda: self._request(queue)), number)
        return True

    def restored(self, queue: Queue, declared: Declared, now_ms: int) -> bool:
        """Adds a queue that was LEAVING before this process started, by its record.

        Returns:
            False if it is served, as its deletion fails, or its dead letters, as it stays.
        """
        owner = self._queues.find(rules.owner(queue.name))
        queue.leaving, queue.leaves_with = declared.leaving, declared.leaves_with
        is_kept = owner is not None and owner.is_serving
        if is_kept or self._is_changed(queue):
            queue.leaving, queue.leaves_with = 0, ""
            queue.ownership.apply(OwnershipEvent.RETURN)
            self._performer.touch(queue)
            return False
        if not rules.is_dead_letter(queue.name):
            self._again_ms[queue] = now_ms
        return True

    def serve_changed(self, queue: Queue, now_ms: int) -> bool:
        """Serves a queue again whose deletion fails, as its name or its subscription was changed.

        Its consumers are awaited, as after a freeze.

        Returns:
            Whether it was LEAVING and is served now.
        """
        if queue not in self._again_ms or not self._is_changed(queue):
            return False
        log.info("queue %s was changed as it was about to be deleted: it stays", queue.name)
        del self._again_ms[queue]
        for each in self._queues.family(queue):
            if each.state is OwnershipState.LEAVING:
                for id in each.view.consumer_ids:
                    each.machine.apply(commands.Credit(id, 0), now_ms)
                each.leaving = each.idle_since_ms = 0
                each.leaves_with = ""
                each.ownership.apply(OwnershipEvent.RETURN)
                self._links.await_sent_away(each, now_ms)
                self._performer.touch(each)
                self._write(each, now_ms)
        return True

    def _is_changed(self, queue: Queue) -> bool:
        """Whether the deletion of a queue fails, as its name or its subscription has a later revision."""
        found, subscription = self._queues.names.get(queue.name), self.subscription(queue)
        if found.role is not Role.QUEUE or found.is_another(queue.record):
            return False
        revision = max(found.revision, 0 if subscription is None else subscription.revision)
        if queue.leaves_with:
            revision = max(revision, self._queues.names.get(queue.leaves_with).revision)
        return revision > queue.leaving or found.history != queue.record.history

    def _write(self, queue: Queue, now_ms: int) -> None:
        try:
            self._queues.note(queue, now_ms)
        except StoreError as error:
            if queue not in self._unwritten:
                log.error("that queue %s is served again could not be recorded yet: %s", queue.name, error)
            self._unwritten[queue] = None
        else:
            self._unwritten.pop(queue, None)
            self._when_synced(WhenSynced(_nothing), 0)

    def of_routers(self, routers: Collection[str]) -> list[Queue]:
        """The queues that may be own queues of subscriptions of some routers, or leave with them."""
        leaving = self._again_ms
        return [each for each in leaving if each.leaves_with in routers or owner_of(each.name)[0] in routers]

    def subscription(self, queue: Queue) -> "Subscription | None":
        """The subscription whose own queue this is."""
        router, id = owner_of(queue.name)
        found = self._queues.names.subscription(router, id) if router else None
        return found if found is not None and has_own_queue(found) else None

    def forget(self, queue: Queue) -> None:
        """The queue is not at this shard any more."""
        queue.leaving, queue.leaves_with = 0, ""
        self._again_ms.pop(queue, None)
        self._unwritten.pop(queue, None)

    def tick(self, now_ms: int, *, may_begin: bool) -> None:
        """Requests again what was not deleted.

        Args:
            may_begin: whether the coordinator answers.
        """
        self.may_begin = may_begin
        for queue, again_ms in list(self._again_ms.items()):
            if again_ms <= now_ms:
                self._again_ms[queue] = now_ms + limits.PEER_SILENCE_MS
                self._request(queue)
        for queue in list(self._unwritten):
            self._write(queue, now_ms)

    def _request(self, queue: Queue) -> None:
        if queue.leaves_with:
            topic = self._queues.names.get(queue.leaves_with)
            if topic.role is Role.ROUTER:
                self._links.closings.kept[topic.name] = topic
        elif queue in self._again_ms:
            self.expired.append(ExpiredName(queue.record, self.subscription(queue)))

    def take_expired(self) -> list[ExpiredName]:
        """Names to delete, at the end of a turn."""
        found, self.expired = self.expired, []
        return found


def _nothing() -> None:
    """The commit is all that is wanted."""
