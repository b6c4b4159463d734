"""Timers of one owner (owner.py): for retries, time-outs, and continuing without an answer.

All times are milliseconds of the clock whose readings the methods get.
"""

from dataclasses import dataclass
from typing import Final

from lightrail.model import limits

OWNER_LATE_MS: Final[int] = 2_000
"""How long a former owner of a queue, by the placement, may take to send MOVED; then its links are opened at
the new owner without it."""


@dataclass(slots=True, eq=False, repr=False)
class OwnerTimers:
    """The pending times of one owner."""

    unconfirmed_ms: int | None = None
    """Time since which no shard has confirmed that it owns the queue; None while a shard has."""
    _timed_out_ms: int = 0
    _checked_ms: int = 0
    _denied_ms: int = 0
    """Time at which the latest retry was set."""
    _retry_ms: int | None = None
    """Time to open links again at a shard that denied the queue."""
    _late_ms: int | None = None
    """Time at which links leave a shard that has not sent MOVED to all of them."""
    _pause_ms: int = limits.OWNER_RETRY_MS

    @property
    def is_set(self) -> bool:
        """Whether any timer is set, or senders wait."""
        return self.unconfirmed_ms is not None or self.is_soon

    @property
    def is_soon(self) -> bool:
        """Whether a retry is set, or leaving a shard without an answer."""
        return self._retry_ms is not None or self._late_ms is not None

    @property
    def retries(self) -> bool:
        """Whether links will be opened again at the same shard."""
        return self._retry_ms is not None

    def unconfirmed(self, now_ms: int) -> None:
        """No shard has confirmed the queue, since now or since an earlier call."""
        if self.unconfirmed_ms is None:
            self.unconfirmed_ms = self._timed_out_ms = self._checked_ms = now_ms

    def confirmed(self) -> None:
        """A shard has confirmed that it owns the queue."""
        self.unconfirmed_ms = None
        self._pause_ms = limits.OWNER_RETRY_MS

    def arrived(self) -> None:
        """The owner is at a shard: clears the timers."""
        self._retry_ms = self._late_ms = None

    def placed_anew(self) -> None:
        """The placement has changed; the first retry there has the shortest pause."""
        self._pause_ms = limits.OWNER_RETRY_MS

    def retry(self, now_ms: int) -> None:
        """Links are opened again after a pause that doubles each time."""
        if self._retry_ms is None:
            self._denied_ms = now_ms
            self._retry_ms = now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, limits.OWNER_RETRY_MS_MAX)

    def retry_once(self, now_ms: int) -> None:
        """Links are opened again after the shortest pause."""
        if self._retry_ms is None:
            self._denied_ms = now_ms
            self._retry_ms = now_ms + limits.OWNER_RETRY_MS

    def cancel_retry(self) -> None:
        self._retry_ms = None

    def expect_moved(self, now_ms: int) -> None:
        """A shard is to send MOVED within OWNER_LATE_MS."""
        if self._late_ms is None:
            self._late_ms = now_ms + OWNER_LATE_MS

    # --- what is due -----------------------------------------------------------------------------------

    def take_late(self, now_ms: int) -> bool:
        """Whether MOVED is overdue; True once."""
        if self._late_ms is None or now_ms < self._late_ms:
            return False
        self._late_ms = None
        return True

    def take_retry(self, now_ms: int, is_frozen: bool) -> bool:
        """Whether links are to be opened again; True once.

        Args:
            is_frozen: whether the shard has frozen the queue, as far as is known. It refuses links until the
                placement changes; only in case this is outdated, it is tried after the longest pause.
        """
        if self._retry_ms is None or now_ms < self._retry_ms:
            return False
        if now_ms < self._denied_ms + limits.OWNER_RETRY_MS_MAX and is_frozen:
            return False
        self._retry_ms = None
        return True

    def take_check(self, now_ms: int) -> bool:
        """Whether to check at the coordinator that the queue exists; True every limits.OWNER_LOST_MS."""
        if now_ms - self._checked_ms < limits.OWNER_LOST_MS:
            return False
        self._checked_ms = now_ms
        return True

    def take_time_out(self, now_ms: int, wait_ms: int) -> bool:
        """Whether senders have waited for `wait_ms`; True every `wait_ms`."""
        if self.unconfirmed_ms is None or now_ms - self._timed_out_ms < wait_ms:
            return False
        self._timed_out_ms = now_ms
        return True
