"""Messages of a queue that exceed the max-message-size of one receiver: they stay for other receivers."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightrail.telemetry.frontend import FrontendCounts
from lightrail.wire.bodies import ConsumerOpen

if TYPE_CHECKING:
    from lightrail.amqp.link import Link

log = logging.getLogger("lightrail.frontend.links")


class TooLarge:
    """The messages of one link that the engine passes over."""

    __slots__ = ("_counts", "_link", "_options", "_warned")

    def __init__(self, link: "Link", options: ConsumerOpen, counts: FrontendCounts) -> None:
        link.passed_over = []
        self._link = link
        self._options = options
        self._counts = counts
        self._warned = False
        """Whether the log has a line about the first one."""

    def take(self) -> Sequence[int]:
        """The numbers of deliveries that were passed over since the last call; counts them."""
        large = self._link.passed_over
        if not large:
            return ()
        if not self._warned:
            self._warned = True
            log.warning(
                "a message of %d bytes was not sent to %s, a receiver of %s: it accepts up to %d bytes "
                "(max-message-size); the message stays in the queue for other receivers",
                large[0][1],
                self._options.label,
                self._options.queue,
                self._link.peer_max_message_size,
            )
        self._counts.messages_too_large += len(large)
        numbers = [number for number, _ in large]
        large.clear()
        return numbers
