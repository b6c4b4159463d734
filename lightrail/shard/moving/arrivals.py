"""Arrivals: queues that move to this shard, each with its dead-letter queue, until they are opened."""

import logging
from dataclasses import dataclass, field
from typing import Any

from lightrail.model import names as rules
from lightrail.shard.effects.performer import Performer
from lightrail.shard.effects.receiving_link import Key, Origin
from lightrail.shard.journal.store import Store
from lightrail.shard.links.links import Links
from lightrail.shard.moving.importing import ImportFailedError, Importing
from lightrail.shard.queue.values.commands import Holder
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Queue
from lightrail.telemetry.shard import ShardCounts

log = logging.getLogger("lightrail.shard.moving.arrivals")


@dataclass(slots=True, eq=False, repr=False)
class Arrival:
    """One queue that moves to this shard."""

    name: str
    epoch: int
    """The epoch in which this shard will own the queue."""
    parts: dict[str, Importing] = field(default_factory=dict)
    """The copies of the queue and of its dead-letter queue, if there is one."""
    keys: list[Key] = field(default_factory=list)
    """The links of the queue's consumers at the source."""
    complete: bool = False
    """Whether the copy has everything that the source has after the freeze."""

    @property
    def next(self) -> dict[str, int]:
        """The sequence from which to request the next `export`, by queue."""
        return {name: part.next for name, part in self.parts.items()}


@dataclass(slots=True, eq=False, repr=False)
class Arrivals:
    """All arrivals, by name of the queue."""

    _queues: Queues
    _performer: Performer
    _store: Store
    _memory: Memory
    _links: Links
    _counts: ShardCounts
    _by_name: dict[str, Arrival] = field(default_factory=dict)
    _recovered: set[str] = field(default_factory=set)
    """Names of recovered copies, until they are opened or dropped."""

    def find(self, name: str) -> Arrival | None:
        """The arrival of this name; None if it was dropped, is open, or never began."""
        return self._by_name.get(name)

    # --- copying ---------------------------------------------------------------------------------------

    def begin(self, name: str, epoch: int, now_ms: int) -> Arrival:
        """Creates an empty copy and its record. Raises ImportFailedError and StoreError."""
        if name in self._by_name:
            raise ImportFailedError(f"{name} is being copied to this shard already")
        arrival = self._by_name[name] = Arrival(name, epoch)
        self._counted()
        try:
            self.add(arrival, name, now_ms)
        except Exception:
            self.drop(arrival, now_ms)
            raise
        return arrival

    def add(self, arrival: Arrival, name: str, now_ms: int) -> None:
        """Adds the copy of the queue's dead-letter queue. Raises as `begin`."""
        part = Importing(
            self._queues, self._performer, self._store, self._memory, self._links, name, arrival.epoch
        )
        part.begin(now_ms)
        arrival.parts[name] = part

    def take(
        self, arrival: Arrival, name: str, header: dict[str, Any], blob: bytes, now_ms: int
    ) -> int | None:
        """Adds a piece of one of its queues; returns the sequence of the next piece, or None at the end."""
        self._counts.move_bytes += len(blob)
        return arrival.parts[name].take(header, blob, now_ms)

    def expect(self, arrival: Arrival, keys: list[Key]) -> None:
        """Keeps frames of these links, whose consumers move with the queue, until it is opened."""
        arrival.keys += keys
        self._links.receiving.expect(keys)

    def finish(self, arrival: Arrival, states: list[tuple[str, dict[str, Any], bytes]], now_ms: int) -> None:
        """Applies the final states, after the last pieces. Raises ImportFailedError and StoreError."""
        for name, header, blob in states:
            arrival.parts[name].finish(header, blob, now_ms)
        arrival.complete = True

    # --- the end ---------------------------------------------------------------------------------------

    def recovered(self, queue: Queue, holders: list[Holder], origins: dict[int, Origin]) -> Arrival:
        """Adds a recovered copy, with consumers that the store has; the placement decides whether it is
        opened."""
        owner = rules.owner(queue.name)
        arrival = self._by_name.get(owner)
        if arrival is None:
            arrival = self._by_name[owner] = Arrival(owner, queue.epoch)
            arrival.complete = True
        arrival.parts[queue.name] = Importing.recovered(
            queue, self._queues, self._performer, self._store, self._memory, self._links
        )
        arrival.parts[queue.name].restored(holders, origins)
        self._recovered.add(owner)
        self._counted()
        return arrival

    def take_recovered(self) -> list[str]:
        """Removes and returns the names of recovered copies; the caller opens or drops them."""
        found = sorted(self._recovered)
        self._recovered.clear()
        return found

    def open(self, arrival: Arrival, now_ms: int) -> list[Queue]:
        """Serves a queue that is now placed at this shard; its consumers are awaited."""
        del self._by_name[arrival.name]
        self._counted()
        self._counts.moves_in += 1
        opened: list[Queue] = []
        for name, part in arrival.parts.items():
            part.open(self._queues.names.get(name), arrival.epoch, now_ms)
            queue = part.queue
            self._links.receiving.serve(queue, now_ms)
            self._performer.touch(queue)
            self._memory.update(queue)
            opened.append(queue)
        self._links.receiving.unexpect(arrival.keys)
        return opened

    def drop(self, arrival: Arrival, now_ms: int) -> None:
        """Drops the copies of a queue because its move ended or begins again."""
        if self._by_name.get(arrival.name) is not arrival:
            return
        del self._by_name[arrival.name]
        self._counted()
        self._links.receiving.unexpect(arrival.keys)
        for part in arrival.parts.values():
            part.drop(now_ms)

    def _counted(self) -> None:
        self._counts.queues_copying = len(self._by_name)
