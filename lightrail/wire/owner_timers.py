"""Timers of one owner (owner.py): when it looks again, gives up, or goes on without an answer.

All times are milliseconds of the clock whose readings the methods get.
"""

from lightrail.model import limits


class OwnerTimers:
    """What one owner waits for."""

    __slots__ = ("_checked_ms", "_late_ms", "_pause_ms", "_retry_ms", "_timed_out_ms", "unconfirmed_ms")

    def __init__(self) -> None:
        self.unconfirmed_ms: int | None = None
        """Since when no shard has confirmed that it owns the queue; None while one has."""
        self._timed_out_ms = 0
        self._checked_ms = 0
        self._retry_ms: int | None = None
        """When links are opened again at a shard that denied the queue."""
        self._late_ms: int | None = None
        """When links leave a shard that has not sent MOVED to all of them."""
        self._pause_ms = limits.OWNER_RETRY_MS

    @property
    def is_set(self) -> bool:
        """Whether anything is due some time, or senders wait."""
        return self.unconfirmed_ms is not None or self.is_soon

    @property
    def is_soon(self) -> bool:
        """Whether a retry, or leaving without an answer, is due."""
        return self._retry_ms is not None or self._late_ms is not None

    @property
    def retries(self) -> bool:
        """Whether links will be opened again at the same shard."""
        return self._retry_ms is not None

    def unconfirmed(self, now_ms: int) -> None:
        """No shard has confirmed the queue, from now on or for longer."""
        if self.unconfirmed_ms is None:
            self.unconfirmed_ms = self._timed_out_ms = self._checked_ms = now_ms

    def confirmed(self) -> None:
        """A shard has confirmed that it owns the queue."""
        self.unconfirmed_ms = None
        self._pause_ms = limits.OWNER_RETRY_MS

    def arrived(self) -> None:
        """The owner is at a shard: nothing of what it waited for is due."""
        self._retry_ms = self._late_ms = None

    def placed_anew(self) -> None:
        """The placement is another one; the first retry there is a quick one."""
        self._pause_ms = limits.OWNER_RETRY_MS

    def retry(self, now_ms: int) -> None:
        """Links are opened again after a pause that doubles each time."""
        if self._retry_ms is None:
            self._retry_ms = now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, limits.OWNER_RETRY_MS_MAX)

    def retry_once(self, now_ms: int) -> None:
        """Links are opened again after the shortest pause."""
        if self._retry_ms is None:
            self._retry_ms = now_ms + limits.OWNER_RETRY_MS

    def cancel_retry(self) -> None:
        self._retry_ms = None

    def expect_moved(self, now_ms: int) -> None:
        """A shard is to send MOVED within limits.OWNER_LATE_MS."""
        if self._late_ms is None:
            self._late_ms = now_ms + limits.OWNER_LATE_MS

    # --- what is due -----------------------------------------------------------------------------------

    def take_late(self, now_ms: int) -> bool:
        """Whether MOVED is overdue; True once."""
        if self._late_ms is None or now_ms < self._late_ms:
            return False
        self._late_ms = None
        return True

    def take_retry(self, now_ms: int) -> bool:
        """Whether links are to be opened again; True once."""
        if self._retry_ms is None or now_ms < self._retry_ms:
            return False
        self._retry_ms = None
        return True

    def take_check(self, now_ms: int) -> bool:
        """Whether to ask the coordinator if the queue still exists; True every limits.OWNER_LOST_MS."""
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
