"""Retries: the messages of one queue that wait after a failed delivery (ADR 53).

Like deferred messages (aside.py) they are in flight, under their sequences, at an internal consumer without a
link, and the time until which they wait is in their attempts. They are locked for this consumer until then:
the end of the lock makes them ready (outcomes.py).
"""

from collections.abc import Iterator
from typing import Final

from lightrail.model.attempts import waits_until_ms
from lightrail.shard.queue.lines.merging import whole
from lightrail.shard.queue.timed.aside import NOBODY_WITH_STATES, Aside
from lightrail.shard.queue.values.runs import Run

NOBODY_WITH_RETRIES: Final = NOBODY_WITH_STATES - 1
"""The number of the internal consumer that has the waiting messages."""


class Retries(Aside):
    """Waiting messages by sequence. Callers keep the sums of deliveries."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(NOBODY_WITH_RETRIES)

    def take_ended(self, first: int, last: int, now_ms: int) -> list[Run]:
        """Removes and returns the messages from `first` to before `last` that wait no longer than until now.

        Others have failed again since, or the policy has changed; another lock ends their wait.
        """
        ended: list[Run] = []
        for run in self.consumer.in_flight.take(first, last):
            self.count -= run.count
            if waits_until_ms(run.attempts) <= now_ms:
                ended.append(run)
            else:
                self.add(run)
        return ended


def ready_again(run: Run, *, singles: bool) -> Iterator[Run]:
    """The same messages, waiting no longer.

    Args:
        singles: whether messages whose sizes are not known become separate runs, as the queue needs them.
    """
    run = run.until(0)
    if singles and run.batch.ends is None:
        yield from (whole(run.cut(index, index + 1)) for index in range(run.count))
    else:
        yield run
