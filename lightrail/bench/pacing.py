"""Pacing: the time of each message, and waiting for it with less error than a timer."""

import ctypes
import select
import time
from typing import Final

SPIN_NS: Final = 80_000
"""The last part of a wait polls the clock, because timers wake late by about this much."""
_PR_SET_TIMERSLACK: Final = 29


class Pace:
    """Even intervals of one sender; the intervals of senders are shifted against each other."""

    __slots__ = ("interval_ns", "sent", "shift_ns", "start_ns")

    def __init__(self, rate: float, senders: int, number: int) -> None:
        self.interval_ns = senders / rate * 1e9
        self.shift_ns = number / rate * 1e9
        self.start_ns = 0
        self.sent = 0

    def intended_ns(self, sequence: int) -> int:
        """When the message with this number should be sent."""
        return self.start_ns + int(self.shift_ns + sequence * self.interval_ns)

    def due(self, now_ns: int) -> int:
        """Messages that are due and not sent yet."""
        past = now_ns - self.start_ns - self.shift_ns
        return int(past / self.interval_ns) + 1 - self.sent if past >= 0 else 0


class Waiter:
    """epoll with waits of microseconds."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._registered: set[int] = set()
        # Timers of this process may fire 1 ns late instead of 50 µs, where the system allows it.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def register(self, fileno: int, events: int = select.EPOLLIN) -> None:
        """Watch a socket, or change the events."""
        if fileno in self._registered:
            self._epoll.modify(fileno, events)
        else:
            self._registered.add(fileno)
            self._epoll.register(fileno, events)

    def wait(self, wake_ns: int, spin_ns: int = SPIN_NS) -> list[tuple[int, int]]:
        """Sockets with events, as (file number, events); returns at ``wake_ns`` at the latest, at once when
        it is past."""
        left = wake_ns - time.monotonic_ns() if wake_ns else 0
        if left <= 0:
            return self._epoll.poll(0)
        if left >= 50_000_000:
            return self._epoll.poll(left / 1e9)
        if left > spin_ns:
            ready, _, _ = select.select([self._epoll], [], [], (left - spin_ns) / 1e9)
            if ready:
                return self._epoll.poll(0)
        while time.monotonic_ns() < wake_ns:
            events = self._epoll.poll(0)
            if events:
                return events
        return []

    def sleep_until(self, moment_ns: int) -> None:
        """Return at a moment of the monotonic clock."""
        left = moment_ns - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)
