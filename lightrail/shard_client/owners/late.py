"""Late requests: requests about locks under a key, of links that have ended, until their shard serves again.

Frames of a link are dropped while its shard is lost, since a shard that has started knows no link. But locks
under a key outlive the process of their shard (ADR 68), and what no client has got must not stay locked.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError

LATE_REQUESTS_MAX: Final[int] = 10_000
"""Late requests of one process that wait; beyond them the locks end by time."""

log = logging.getLogger("lightrail.shard_client.owners.late")

Fields = dict[str, Any]


@dataclass(slots=True, eq=False, repr=False)
class LateRequests:
    """The requests of one process, in order for each queue.

    Args:
        ask: sends a request to the shard of a queue. Raises ShardDownError, ShardRefusedError,
            CoordinatorError.
        spawn: runs a coroutine in the background.
    """

    _ask: Callable[[str, str, Fields], Awaitable[object]]
    _spawn: Callable[[Coroutine[Any, Any, None]], None]
    count: int = 0
    """Requests that wait."""
    _by_queue: dict[str, deque[tuple[str, Fields]]] = field(default_factory=dict)
    _sending: dict[str, bool] = field(default_factory=dict)
    """Queues whose requests are being sent, and whether `retry` was called meanwhile."""

    def add(self, queue: str, operation: str, fields: Fields) -> None:
        """Sends a request now, or when the shard serves again."""
        if self.count >= LATE_REQUESTS_MAX:
            log.warning(
                "locks of %s last until their time: %d requests wait for lost shards already",
                *(queue, LATE_REQUESTS_MAX),
            )
            return
        self.count += 1
        self._by_queue.setdefault(queue, deque()).append((operation, fields))
        self._send(queue)

    def retry(self) -> None:
        """A shard serves again, or a queue has another one."""
        for queue in list(self._by_queue):
            self._send(queue)

    def _send(self, queue: str) -> None:
        if queue in self._sending:
            self._sending[queue] = True
        else:
            self._sending[queue] = False
            self._spawn(self._send_all(queue))

    async def _send_all(self, queue: str) -> None:
        waiting = self._by_queue[queue]
        try:
            while waiting:
                self._sending[queue] = False
                try:
                    await self._ask(queue, *waiting[0])
                except (ShardDownError, CoordinatorError):
                    if self._sending[queue]:
                        continue
                    return
                except ShardRefusedError as error:
                    # The queue was deleted, or the shard is of a former version.
                    log.info("locks of %s last until their time: %s", queue, error)
                waiting.popleft()
                self.count -= 1
            del self._by_queue[queue]
        finally:
            del self._sending[queue]
