"""Closings: queues that are closed because their node is about to be deleted.

A closed queue opens no link. If its node is deleted because it has no messages, the queue admits none either:
they wait as if the queue were full. The deletion is a write to the coordinator that can seem lost and be
applied late, so no time opens the queue: a message that was accepted until then would be deleted with it.

The deletion is guarded by the revision of the node with which its queues were closed. A later revision opens
them, because the deletion can't be applied after it. The frontend that closed them either deletes the node or
keeps it, which makes that later revision (Service.keep). If this frontend is lost, the shard requests from
the coordinator that the node is kept.

Last consumers: queues that are deleted after their last consumer has detached, by their policy.

A consumer whose frontend was lost may attach again in a moment. So its queue waits for
limits.PEER_SILENCE_MS. At the end of that time, or of the turn in which the last consumer has detached, the
queue is LEAVING (retiring.py): what a sender or receiver sends from then on waits, and is for the queue
that is made anew, or is refused.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightrail.model import limits
from lightrail.model import names as rules
from lightrail.model.policy import Role
from lightrail.namespace.records import Name
from lightrail.shard.effects.peers import Peer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.queues.declarations import LAST_CONSUMER
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Closing, Queue

if TYPE_CHECKING:
    from lightrail.shard.links.retiring import RetiringQueues


@dataclass(slots=True, eq=False, repr=False)
class Closings:
    """The closed queues by node, and the nodes to be kept."""

    _queues: Queues
    _performer: Performer
    _by_node: dict[str, dict[Queue, None]] = field(default_factory=dict)
    _due_ms: dict[str, int] = field(default_factory=dict)
    """Nodes whose frontend was lost, and the time to request again that they are kept."""
    kept: dict[str, Name] = field(default_factory=dict)
    """Nodes to keep in the directory, at the end of this turn."""

    def close(
        self, queue: Queue, now_ms: int, peer: Peer, revision: int | None, *, to_messages: bool
    ) -> None:
        """Closes a queue for a frontend, unless the node has a later revision already.

        Args:
            revision: of the node, which guards its deletion; None for that in the directory.
            to_messages: also to messages, those of open links and of transactions.
        """
        node = rules.router_of(queue.name) or queue.name
        names = self._queues.names
        known = names.get(node).revision
        if revision is None:
            revision = known
        if revision >= known:
            self._add(queue, Closing(node, revision, names.history, to_messages, peer.identity))
            self._apply_policy(queue, now_ms)

    def _add(self, queue: Queue, closing: Closing) -> None:
        others = tuple(each for each in queue.closings if each.node != closing.node)
        for each in queue.closings:
            if each.node == closing.node:
                to_messages = closing.to_messages or each.to_messages
                closing = closing._replace(to_messages=to_messages)
        queue.closings = (*others, closing)
        self._by_node.setdefault(closing.node, {})[queue] = None

    def node_changed(self, node: str, now_ms: int) -> None:
        """Opens the queues of a node whose deletion can't be applied any more."""
        found = self._queues.names.get(node)
        if found.role is Role.NONE:
            # It was deleted, and so are its queues.
            return
        for queue in [*self._by_node.get(node, ())]:
            for each in queue.closings:
                if each.node == node and (found.revision > each.revision or found.history != each.history):
                    self._remove(queue, each)
                    self._apply_policy(queue, now_ms)

    def forget(self, queue: Queue) -> None:
        """The queue is not at this shard any more."""
        for each in queue.closings:
            self._remove(queue, each)

    def _remove(self, queue: Queue, closing: Closing) -> None:
        queue.closings = tuple(each for each in queue.closings if each is not closing)
        of_node = self._by_node[closing.node]
        del of_node[queue]
        if not of_node:
            del self._by_node[closing.node]
            self._due_ms.pop(closing.node, None)

    def lost(self, peer: Peer, now_ms: int) -> None:
        """A frontend was lost: nodes that it closed are kept, unless it has deleted them."""
        for queues in self._by_node.values():
            for queue in queues:
                for each in queue.closings:
                    if each.frontend == peer.identity:
                        self._due_ms[each.node] = now_ms
        self.tick(now_ms)

    def tick(self, now_ms: int) -> None:
        """Requests again that nodes are kept: the coordinator may not have answered."""
        for node, due_ms in self._due_ms.items():
            found = self._queues.names.get(node)
            if due_ms <= now_ms and found.role is not Role.NONE:
                self._due_ms[node] = now_ms + limits.PEER_SILENCE_MS
                self.kept[node] = found

    def take_kept(self) -> list[Name]:
        """Nodes to keep in the directory, at the end of a turn."""
        found = list(self.kept.values())
        self.kept.clear()
        return found

    def _apply_policy(self, queue: Queue, now_ms: int) -> None:
        if queue.is_serving:
            self._performer.perform(queue, self._queues.apply_policy(queue, now_ms), now_ms)


@dataclass(slots=True, eq=False, repr=False)
class LastConsumers:
    """The queues without consumers, and the times at which they leave."""

    _retiring: "RetiringQueues"
    _due_ms: dict[Queue, int] = field(default_factory=dict)
    left_queues: dict[Queue, None] = field(default_factory=dict)
    """Queues whose last consumer has detached in this turn, and may have been replaced."""

    def left(self, queue: Queue, now_ms: int, *, lost: bool) -> None:
        """Notes that a consumer has detached.

        Args:
            lost: whether its frontend was lost, so that the consumer may attach again in a moment.
        """
        if queue.record.policy["lifetime"] == LAST_CONSUMER and not queue.view.consumers.competing:
            self._due_ms[queue] = now_ms + (limits.PEER_SILENCE_MS if lost else 0)
            self.left_queues[queue] = None

    def await_first(self, queue: Queue, now_ms: int) -> None:
        """Notes that a queue is served from now on, and that its consumers have yet to attach again.

        That of a shared subscription would gather messages for ever if its links have ended with the broker.
        A user's queue may not have had a consumer yet.
        """
        if queue.record.policy["lifetime"] == LAST_CONSUMER and rules.is_system(queue.name):
            self._due_ms[queue] = now_ms + limits.PEER_SILENCE_MS

    def forget(self, queue: Queue) -> None:
        """The queue is not at this shard any more."""
        self._due_ms.pop(queue, None)
        self.left_queues.pop(queue, None)

    def tick(self, now_ms: int) -> None:
        """Lets the queues leave whose time has ended."""
        for queue in list(self._due_ms):
            self._retire_if_due(queue, now_ms)

    def retire(self, now_ms: int) -> None:
        """Lets the queues leave that have lost their last consumer in this turn."""
        left, self.left_queues = self.left_queues, {}
        for queue in left:
            if queue in self._due_ms:
                self._retire_if_due(queue, now_ms)

    def _retire_if_due(self, queue: Queue, now_ms: int) -> None:
        if not queue.is_serving:
            return
        if queue.view.consumers.competing or queue.record.policy["lifetime"] != LAST_CONSUMER:
            del self._due_ms[queue]
        elif self._due_ms[queue] > now_ms or queue.view.has_departed:
            return  # Messages of former consumers are still locked.
        elif self._retiring.retire_left(queue, now_ms):
            del self._due_ms[queue]
