"""Last consumers: queues that are deleted after their last consumer has detached, by their policy.

A consumer whose frontend was lost may attach again in a moment. So its queue waits for
limits.PEER_SILENCE_MS. The shard does not delete the name itself: it requests the deletion, and requests it
again if the name remains. From the request on no link is opened at the queue: a message that such a link
would send would be lost. Its frontend attaches it again, to the queue that is made anew.
"""

from lightrail.model import limits
from lightrail.namespace.records import Name
from lightrail.shard.links.closings import Closings
from lightrail.shard.queues.declarations import LAST_CONSUMER
from lightrail.shard.queues.shard_queue import Queue


class LastConsumers:
    """The queues without consumers, and the times to request their deletion."""

    __slots__ = ("_closings", "_due_ms", "_expired", "_replaced")

    def __init__(self, closings: Closings) -> None:
        self._closings = closings
        self._due_ms: dict[Queue, int] = {}
        self._replaced: dict[Queue, None] = {}
        """Queues with another consumer in the place of their last one, unless it was refused."""
        self._expired: list[Name] = []

    def left(self, queue: Queue, now_ms: int, *, lost: bool, replaced: bool = False) -> None:
        """Notes that a consumer has detached.

        Args:
            lost: whether its frontend was lost, so that the consumer may attach again in a moment.
            replaced: whether another one takes its place in this turn.
        """
        if queue.record.policy["lifetime"] == LAST_CONSUMER and not queue.view.competing:
            self._due_ms[queue] = now_ms + (limits.PEER_SILENCE_MS if lost else 0)
            if replaced:
                self._replaced[queue] = None
            else:
                # At once: a sender that attaches now would lose what it sends.
                self._look(queue, now_ms)

    def await_first(self, queue: Queue, now_ms: int) -> None:
        """Notes that a queue is served from now on, and that its consumers have yet to attach again."""
        self._due_ms[queue] = now_ms + limits.PEER_SILENCE_MS

    def forget(self, queue: Queue) -> None:
        """Removes a queue that is deleted here."""
        self._due_ms.pop(queue, None)

    def tick(self, now_ms: int) -> None:
        """Finds the queues whose time has ended."""
        for queue in list(self._due_ms):
            self._look(queue, now_ms)

    def _look(self, queue: Queue, now_ms: int) -> None:
        if not queue.is_serving:
            return
        if queue.view.competing or queue.record.policy["lifetime"] != LAST_CONSUMER:
            del self._due_ms[queue]
        elif self._due_ms[queue] <= now_ms and not queue.view.has_departed:
            # A consumer that has departed still has locked messages.
            self._due_ms[queue] = now_ms + limits.PEER_SILENCE_MS
            self._closings.close_for_shard(queue)
            self._expired.append(queue.record)

    def take_expired(self, now_ms: int) -> list[Name]:
        """Names to delete, each once, at the end of a turn."""
        while self._replaced:
            queue, _ = self._replaced.popitem()
            if queue in self._due_ms:
                self._look(queue, now_ms)
        found, self._expired = self._expired, []
        return found
