"""Consumers: each receives from one queue into the connection's inbox, with a limit of unsettled messages."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

from lightrail.client import ClientError
from lightrail.client.sync import Delivery, Receiver

UNLIMITED: Final = 100
"""Messages that the broker sends ahead without a prefetch_count; then they count until they are delivered."""
BATCH: Final = 100
ALL: Final = 1 << 31
"""More than any credit."""


class Consumer:
    """A consumer of a channel; `start` begins, `close` returns unsettled messages to the queue."""

    def __init__(
        self,
        receiver: Receiver,
        tag: str,
        callback: Callable[[Any], Any],
        *,
        deliver: "Callable[[Consumer, Delivery], None]",
        no_ack: bool,
        prefetch: int,
    ) -> None:
        self.tag = tag
        self.callback = callback
        self.no_ack = no_ack
        self.closed = False
        self.cancelled = False
        self._unsettled = 0
        self._receiver = receiver
        self._deliver = deliver
        self._prefetch = prefetch
        self._due = 0
        """Messages that may be requested; below 0 while there are more than a lowered limit allows."""
        self._lock = threading.Lock()

    @property
    def _limit(self) -> int:
        return UNLIMITED if self.no_ack or not self._prefetch else self._prefetch

    @property
    def counts_unsettled(self) -> bool:
        return not self.no_ack and bool(self._prefetch)

    def start(self, inbox: "Inbox") -> None:
        self._receiver.opened()
        self._grant(self._limit)
        threading.Thread(
            target=self._pump, args=(inbox,), name=f"lightrail.kombu {self.tag}", daemon=True
        ).start()

    def prefetch(self, count: int) -> None:
        """Changes the prefetch_count at once."""
        before, self._prefetch = self._limit, count
        self._grant(self._limit - before)

    def deliver(self, delivery: Delivery) -> None:
        """Passes a message to the channel, which calls the callback."""
        self._deliver(self, delivery)

    def delivered(self) -> None:
        """Counts a message that is delivered to the application."""
        if not self.no_ack:
            with self._lock:
                self._unsettled += 1
        if not self.counts_unsettled:
            self._grant(1)

    def settled(self) -> None:
        """Counts a message that has its outcome."""
        with self._lock:
            self._unsettled -= 1
            last = self.cancelled and not self._unsettled
        if last:
            self.close()
        elif self.counts_unsettled:
            self._grant(1)

    def cancel(self) -> None:
        """Stops receiving. The link stays until all delivered messages are settled, because running tasks are
        acknowledged on it.
        """
        with self._lock:
            self.cancelled = True
            idle = not self._unsettled
        if idle:
            self.close()
        else:
            self._receiver.grant(-ALL)

    def _grant(self, more: int) -> None:
        with self._lock:
            self._due += more
            # In halves of the limit: credit for one message at a time would cost a frame for each message.
            if self._due <= 0 or self._due < self._limit // 2:
                return
            due, self._due = self._due, 0
        if not (self.closed or self.cancelled):
            self._receiver.grant(due)

    def _pump(self, inbox: "Inbox") -> None:
        try:
            while True:
                for delivery in self._receiver.receive(BATCH):
                    inbox.put((self, delivery))
        except (ClientError, RuntimeError) as error:
            if not self.closed:
                inbox.put((self, error))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._receiver.close()


Arrival = tuple[Consumer, Delivery | Exception]
Inbox = SimpleQueue[Arrival | None]
"""Received messages of all consumers of one connection; None wakes a waiting `drain_events`."""
