"""Counts: what this gateway did for HTTP clients; metrics.py shows them."""

from typing import Final

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
"""A stranger's method is no label: there would be no end to them."""


class Counts:
    """Counts that have no better place; the others are read from where they are kept."""

    __slots__ = ("handed_out", "requests", "sent")

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}
        """Answers by method and status."""
        self.sent = 0
        """Messages of requests that were stored."""
        self.handed_out = {"received": 0, "locked": 0, "released": 0}
        """Deliveries by what became of them: taken, locked, or given back because the client had gone."""

    def answered(self, method: str, status: int) -> None:
        key = (method if method in METHODS else "other", str(status))
        self.requests[key] = self.requests.get(key, 0) + 1
