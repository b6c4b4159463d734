"""Last values: the newest message of each key."""

from collections.abc import Callable

from lightrail.model import limits
from lightrail.shard.queue.values.keys import Key


class LastValues:
    """The highest sequence of each key in the queue, or formerly in it while an older message was in flight
    or delayed.

    So an older message that returns, or becomes ready after its delay, is replaced even if the newer message
    was delivered already: no old value is delivered after a new one.
    """

    __slots__ = ("_newest", "_thin_at")

    def __init__(self) -> None:
        self._newest: dict[Key, int] = {}
        self._thin_at = limits.STALE_RANGES_MIN

    def __len__(self) -> int:
        return len(self._newest)

    def note(self, key: Key, sequence: int) -> int:
        """A message with this key is ready; returns the sequence of the older of two, -1 if it is alone."""
        newest = self._newest.get(key, -1)
        if sequence < newest:
            return sequence
        self._newest[key] = sequence
        return newest if newest != sequence else -1

    def newest(self, key: Key) -> int:
        """The highest sequence of a key; -1 for an unknown key."""
        return self._newest.get(key, -1)

    @property
    def many(self) -> bool:
        """Whether there are enough keys for `thin` to be worth its cost."""
        return len(self._newest) >= self._thin_at

    def thin(self, held: set[Key], looked: int, present: Callable[[int], bool]) -> None:
        """Forgets keys without a message that is `present` (by sequence), in flight or delayed (`held`).

        `looked` messages were read to find the held keys: the same number of keys may be added until the next
        call, so that reading costs every message as little as one key.
        """
        self._newest = {
            key: sequence for key, sequence in self._newest.items() if present(sequence) or key in held
        }
        left = len(self._newest)
        self._thin_at = max(limits.STALE_RANGES_MIN, 2 * left, left + looked)
