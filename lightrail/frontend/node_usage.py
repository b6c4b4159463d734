"""Usage of dynamic nodes: their links and messages over all frontends, counted by the shards of their queues.

A queue is its own node. A topic is a router, which has no links and messages at a shard: its receivers and
messages are those of the queues of its subscriptions, and its senders are producers of a queue that stores
nothing (`names.senders_name`). So no process has to know the links of others.

A shard that was lost counts the links that frontends have opened again. While some may not have done so, the
usage is not known.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.model import limits, names
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.bodies import Answer

STATES: Final = ("ready", "delayed", "deferred", "in_flight", "parked", "promised")
"""Figures that together count the messages of a queue, with those that wait and those of transactions."""


class Usage(NamedTuple):
    """Links and messages of a node, over all frontends."""

    links: int
    messages: int


@dataclass(eq=False, repr=False)
class NodeUsage:
    """Requests the usage of nodes from shards.

    Args:
        ask: sends a request to the shard of a queue.
    """

    _directory: Directory
    _shards: ShardConnections
    _ask: Callable[[str, str, dict[str, Any]], Awaitable[Answer]]
    _now_ms: Callable[[], int]
    _counted: dict[str, tuple[object, int]] = field(default_factory=dict)
    """For each node the state of the shards that was seen last, and the time from which its links are
    counted."""

    def follow(self, name: str) -> None:
        """A node was created."""
        self._counted[name] = self._state(), 0

    def forget(self, name: str) -> None:
        """A node was deleted."""
        self._counted.pop(name, None)

    async def of(self, name: str, is_over: Callable[[Usage], bool]) -> Usage | None:
        """The usage of a followed node, or enough of it to know that it is not over; None if it is not known.

        Args:
            is_over: whether a node with this usage is to be deleted; more usage never makes it so.
        """
        return await self._count(name, is_over, {})

    async def close(
        self, node: Name, is_over: Callable[[Usage], bool], closes_without: Sequence[str]
    ) -> Usage | None:
        """Like `of`, and closes the node's queues; see shard/links/closings.py for what opens them again.

        A link that they opened would end with the node, and a message be deleted. If the answer is not a
        usage that is over, some queues are closed, perhaps, and others not.

        Args:
            node: its deletion has to be guarded by this revision.
            closes_without: what a node that is to be deleted has none of: `links`, `messages`.
        """
        fields = {"closes_without": [*closes_without], "revision": node.revision}
        return await self._count(node.name, is_over, fields)

    async def _count(
        self, name: str, is_over: Callable[[Usage], bool], fields: dict[str, Any]
    ) -> Usage | None:
        if not self._counts_all(name):
            return None
        total = Usage(0, 0)
        try:
            self._directory.refresh()
            for queue in self._queues(name):
                if self._shards.placement(queue) is None:
                    # It was deleted a moment ago, or is being created; a request would place it again.
                    return None
                found = (await self._ask(queue, "queue", fields)).fields
                links = int(found["consumer_count"]) + int(found["producer_count"])
                stores = queue != names.senders_name(name)
                messages = sum(int(found.get(state, 0)) for state in STATES) if stores else 0
                total = Usage(total.links + links, total.messages + messages)
                if not is_over(total):
                    return total
        except (CoordinatorError, ShardDownError, ShardRefusedError):
            return None
        return total if self._counts_all(name) else None

    def _queues(self, name: str) -> list[str]:
        """The queues whose links and messages are those of a node."""
        directory = self._directory
        if directory.get(name).role is not Role.ROUTER:
            return [name]
        own = f"{name}/{names.SUBSCRIPTIONS_SEGMENT}/"
        targets = (each.target for each in directory.subscriptions(name))
        return [names.senders_name(name), *(target for target in targets if target.startswith(own))]

    def _counts_all(self, name: str) -> bool:
        """Whether all frontends have opened their links again at shards that were lost, and at new owners."""
        before, counted_from_ms = self._counted.get(name, (None, 0))
        now_ms, state = self._now_ms(), self._state()
        if state != before:
            counted_from_ms = now_ms + limits.PEER_SILENCE_MS
            self._counted[name] = state, counted_from_ms
        return now_ms >= counted_from_ms

    def _state(self) -> object:
        """A value that changes when a shard is greeted again, or a queue has moved."""
        shards = self._shards
        return (shards.moved, *((peer.shard, peer.greetings) for peer in shards.peers.values()))
