"""Counts: requests and messages of HTTP clients of this gateway; metrics.py shows them."""

from typing import Final

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
"""Other methods share one label, so that clients can't create an unlimited number of series."""


class Counts:
    """Counts of requests and messages; others are read from the services that keep them."""

    __slots__ = ("handed_out", "requests", "sent")

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}
        """Answers by method and status."""
        self.sent = 0
        """Messages of requests that are stored."""
        self.handed_out = {"received": 0, "locked": 0, "released": 0}
        """Deliveries to clients: received, locked, or released since the client had closed its connection."""

    def answered(self, method: str, status: int) -> None:
        key = (method if method in METHODS else "other", str(status))
        self.requests[key] = self.requests.get(key, 0) + 1
