"""Last consumers: queues that are deleted after their last consumer has detached, by their policy.

A consumer whose frontend was lost may attach again in a moment. So its queue waits for
limits.PEER_SILENCE_MS. The shard does not delete the name itself: it requests the deletion, and requests it
again if the name remains.
"""

from lightrail.model import limits
from lightrail.namespace.records import Name
from lightrail.shard.declarations import LAST_CONSUMER
from lightrail.shard.shard_queue import Queue


class LastConsumers:
    """The queues without consumers, and the times to request their deletion."""

    __slots__ = ("_due_ms", "_expired")

    def __init__(self) -> None:
        self._due_ms: dict[Queue, int] = {}
        self._expired: list[Name] = []

    def left(self, queue: Queue, now_ms: int, *, lost: bool) -> None:
        """Notes that a consumer has detached.

        Args:
            lost: whether its frontend was lost, so that the consumer may attach again in a moment.
        """
        if (
            queue.record.policy["lifetime"] == LAST_CONSUMER
            and not queue.machine.contents.consumers.competing
        ):
            self._due_ms[queue] = now_ms + (limits.PEER_SILENCE_MS if lost else 0)

    def await_first(self, queue: Queue, now_ms: int) -> None:
        """Notes that a queue is served from now on, and that its consumers have yet to attach again."""
        self._due_ms[queue] = now_ms + limits.PEER_SILENCE_MS

    def forget(self, queue: Queue) -> None:
        """Removes a queue that is deleted here."""
        self._due_ms.pop(queue, None)

    def tick(self, now_ms: int) -> None:
        """Finds the queues whose time has ended."""
        for queue, due_ms in list(self._due_ms.items()):
            if not queue.is_serving:
                continue
            if queue.machine.contents.consumers.competing:
                del self._due_ms[queue]
            elif due_ms <= now_ms and not queue.machine.contents.consumers.departed:
                # The consumer that detached still has locked messages.
                self._due_ms[queue] = now_ms + limits.PEER_SILENCE_MS
                self._expired.append(queue.record)

    def take_expired(self) -> list[Name]:
        """Names to delete, each once."""
        found, self._expired = self._expired, []
        return found
