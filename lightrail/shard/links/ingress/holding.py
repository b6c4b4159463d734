"""Holding: routed batches that wait until each queue of their set has room, in order per sending link.

A full queue whose policy lets senders wait delays the links that send to it and no others: later batches of
such a link wait as well and are not answered, and the sender runs out of credit. A batch that is larger than
the queue waits until the queue is empty, and is then accepted partially.
"""

from collections import deque
from typing import NamedTuple

from lightrail.shard.effects.peers import RouteProducer
from lightrail.shard.links.ingress.admission import waits_until
from lightrail.shard.links.ingress.selection import fitting
from lightrail.shard.queue.values.runs import Batch
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.shard_queue import Queue


class Wait(NamedTuple):
    """The wait of a batch: its latest end in milliseconds since 1970, or None for no limit."""

    until_ms: int | None


class Held(NamedTuple):
    """A ROUTE frame that waits."""

    part: bytes
    wait: Wait | None
    """None for a frame that waits only because another one is before it."""


def wait_of(targets: list[Queue], batch: Batch, now_ms: int, memory: Memory) -> Wait | None:
    """Whether a batch should wait for room in one of its queues."""
    untils: list[int | None] = []
    for queue in targets:
        if memory.must_wait(queue):
            untils.append(None)
            continue
        until_ms = waits_until(queue.view.policy, now_ms)
        if until_ms is not None and until_ms <= now_ms:
            continue
        if queue.held and fitting(queue, batch, now_ms)[0] < batch.count:
            untils.append(until_ms)
    if not untils:
        return None
    return Wait(min((until for until in untils if until is not None), default=None))


class Holding:
    """The lines of frames that wait, by sending link; their bytes count as those of parked batches."""

    __slots__ = ("_memory", "lines")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.lines: dict[RouteProducer, deque[Held]] = {}

    def add(self, producer: RouteProducer, part: bytes, wait: Wait | None) -> bool:
        """Adds a frame at the end of its line; False if too many bytes wait already."""
        memory = self._memory
        if memory.parked + len(part) > memory.parked_max:
            return False
        memory.park(len(part))
        self.lines.setdefault(producer, deque()).append(Held(part, wait))
        return True

    def begin(self, producer: RouteProducer, wait: Wait) -> None:
        """Begins the time of the head of a line, which waits for room itself."""
        line = self.lines[producer]
        line[0] = Held(line[0].part, wait)

    def take(self, producer: RouteProducer) -> None:
        """Removes the head of a line."""
        line = self.lines[producer]
        self._memory.park(-len(line.popleft().part))
        if not line:
            del self.lines[producer]

    def drop(self, producer: RouteProducer) -> list[Held]:
        """Removes a whole line because its link is closed, or a batch before it was refused."""
        line = list(self.lines.pop(producer, ()))
        self._memory.park(-sum(len(held.part) for held in line))
        return line

    @property
    def next_ms(self) -> int | None:
        """The earliest end of a batch's wait."""
        if not self.lines:
            return None
        heads = [line[0].wait for line in self.lines.values()]
        return min((w.until_ms for w in heads if w is not None and w.until_ms is not None), default=None)
