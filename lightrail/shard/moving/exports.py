"""Exports: which queues of this shard are being copied to others."""

from lightrail.shard.effects.performer import Performer
from lightrail.shard.links.links import Links
from lightrail.shard.moving.exporting import Exporting, WhenSynced
from lightrail.shard.queues.shard_queue import Queue


class Exports:
    """The queues of this shard that are being copied to others.

    Args:
        identity: the identity of this start of the shard; it changes with every start.
        when_synced: see `WhenSynced`.
    """

    __slots__ = ("_began", "_by_queue", "_identity", "_links", "_performer", "_when_synced")

    def __init__(self, performer: Performer, links: Links, when_synced: WhenSynced, identity: str) -> None:
        self._performer = performer
        self._links = links
        self._when_synced = when_synced
        self._identity = identity
        self._began = 0
        self._by_queue: dict[Queue, Exporting] = {}

    def of(self, queue: Queue) -> Exporting:
        """The export of a queue; begins one if there is none."""
        found = self._by_queue.get(queue)
        if found is None:
            self._began += 1
            identity = f"{self._identity}-{self._began}"
            found = Exporting(queue, self._performer, self._links, self._when_synced, identity)
            self._by_queue[queue] = self._performer.exports[queue] = found
        return found

    def end(self, queue: Queue) -> None:
        """Ends the export of a queue, if there is one."""
        found = self._by_queue.pop(queue, None)
        if found is not None:
            found.end()
            del self._performer.exports[queue]
