"""Last values: which message is the newest one of its key."""

from collections.abc import Callable
from typing import Final

from lightrail.shard.queue.keys import Key

_THIN_MIN: Final = 1_024
"""Keys below which nobody looks for those that are not needed any more."""


class LastValues:
    """The highest sequence of each key that is here, or was here while an older one was in flight.

    So an older message that comes back is replaced even if the newer one has been delivered already: nobody
    gets an old value after a new one.
    """

    __slots__ = ("_newest", "_thin_at")

    def __init__(self) -> None:
        self._newest: dict[Key, int] = {}
        self._thin_at = _THIN_MIN

    def note(self, key: Key, sequence: int) -> int:
        """A message with this key is ready; returns the sequence of the older of two, -1 if it is alone."""
        newest = self._newest.get(key, -1)
        if sequence < newest:
            return sequence
        self._newest[key] = sequence
        return newest if newest != sequence else -1

    def thin(self, held: Callable[[], set[Key]], present: Callable[[int], bool]) -> None:
        """Forgets keys of which nothing is `present` (asked by sequence) or `held` in flight, when many."""
        if len(self._newest) < self._thin_at:
            return
        keep = held()
        self._newest = {
            key: sequence for key, sequence in self._newest.items() if present(sequence) or key in keep
        }
        self._thin_at = max(_THIN_MIN, 2 * len(self._newest))
