"""Departed: detached consumers with deliveries that are still locked, and which may have messages in memory.

There may be very many, each with few messages that are soon on disk alone: eviction looks at the others.
"""

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightrail.shard.queue.lines.consumers import Consumer, Consumers


class Departed(dict[int, "Consumer"]):
    """By number."""

    __slots__ = ("in_memory",)

    def __init__(self) -> None:
        super().__init__()
        self.in_memory: dict[int, Consumer] = {}
        """Those that may have messages in memory."""

    def __setitem__(self, identity: int, consumer: "Consumer") -> None:
        super().__setitem__(identity, consumer)
        self.in_memory[identity] = consumer

    def __delitem__(self, identity: int) -> None:
        super().__delitem__(identity)
        self.in_memory.pop(identity, None)

    def take(self, identity: int) -> "Consumer | None":
        """Removes one, if it is there."""
        self.in_memory.pop(identity, None)
        return self.pop(identity, None)

    def look_again(self) -> None:
        """Each may have messages in memory."""
        self.in_memory = dict(self)

    def resident(self) -> "list[Consumer]":
        """Those that may have messages in memory; those that have none are left out from now on."""
        gone = [identity for identity, each in self.in_memory.items() if each.in_flight.is_evicted]
        for identity in gone:
            del self.in_memory[identity]
        return list(self.in_memory.values())


def resident(consumers: "Consumers") -> "Iterator[Consumer]":
    """Consumers of all kinds that may have messages in memory."""
    return chain(consumers.by_id.values(), consumers.departed.resident(), consumers.internal)
