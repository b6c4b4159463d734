"""In flight: the deliveries of one consumer that are not settled, by delivery number."""

from lightrail.shard.queue.line import Line
from lightrail.shard.queue.runs import Run


class InFlight(Line):
    """Runs under the delivery number of their first message.

    Each is locked by the link it went to, until that settles or detaches; locks by a timer would be a
    deadline beside the key.
    """

    __slots__ = ()

    def everything(self) -> list[Run]:
        """Takes out all of them, in order of delivery."""
        runs = self.runs[self.head :]
        self.keys.clear()
        self.runs.clear()
        self.head = 0
        return runs
