"""Last consumers: queues that are deleted after their last consumer has detached, by their policy.

A consumer whose frontend was lost may attach again in a moment. So its queue waits for
limits.PEER_SILENCE_MS. The shard does not delete the name by itself: it asks for it, and asks again where
nothing follows.
"""

from lightrail.model import limits
from lightrail.namespace.records import Name
from lightrail.shard.declarations import LAST_CONSUMER
from lightrail.shard.shard_queue import Queue


class LastConsumers:
    """The queues without consumers, and when to ask for their deletion."""

    __slots__ = ("_due_ms", "_expired")

    def __init__(self) -> None:
        self._due_ms: dict[Queue, int] = {}
        self._expired: list[Name] = []

    def left(self, queue: Queue, now_ms: int, *, lost: bool) -> None:
        """A consumer has detached.

        Args:
            lost: its frontend was lost; the consumer may attach again in a moment.
        """
        if (
            queue.record.policy["lifetime"] == LAST_CONSUMER
            and not queue.machine.contents.consumers.competing
        ):
            self._due_ms[queue] = now_ms + (limits.PEER_SILENCE_MS if lost else 0)

    def await_first(self, queue: Queue, now_ms: int) -> None:
        """The queue is served from now on, and its consumers have yet to attach again."""
        self._due_ms[queue] = now_ms + limits.PEER_SILENCE_MS

    def forget(self, queue: Queue) -> None:
        """The queue is deleted here."""
        self._due_ms.pop(queue, None)

    def tick(self, now_ms: int) -> None:
        """Find the queues whose time is over."""
        for queue, due_ms in list(self._due_ms.items()):
            if not queue.is_serving:
                continue
            if queue.machine.contents.consumers.competing:
                del self._due_ms[queue]
            elif due_ms <= now_ms and not queue.machine.contents.consumers.departed:
                # Messages under a timed lock still belong to the consumer that detached.
                self._due_ms[queue] = now_ms + limits.PEER_SILENCE_MS
                self._expired.append(queue.record)

    def take_expired(self) -> list[Name]:
        """Names to delete, each once."""
        found, self._expired = self._expired, []
        return found
