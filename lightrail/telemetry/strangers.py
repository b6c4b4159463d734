"""Strangers: clients that speak another protocol than a listener's, named in the log, not once for each."""

import logging
from typing import Final

from lightrail.model import protocols

PAUSE_MS: Final = 60_000
"""Between two lines about the same protocol."""
KINDS_MAX: Final = 64
"""Protocols and unknown beginnings that are told apart; past it nothing is logged for PAUSE_MS."""


class Strangers:
    """Those of one listener.

    Args:
        expected: what is spoken there, such as ``AMQP 1.0 is served here``.
    """

    __slots__ = ("_expected", "_log", "_told")

    def __init__(self, log: logging.Logger, expected: str) -> None:
        self._log = log
        self._expected = expected
        self._told: dict[str, tuple[int, int]] = {}
        """When a protocol was last logged, and how many clients spoke it since."""

    def heard(self, first: bytes, peer: str, now_ms: int) -> None:
        """A client began with these bytes."""
        self.spoke(protocols.described(first), peer, now_ms)

    def spoke(self, what: str, peer: str, now_ms: int) -> None:
        """A client speaks this."""
        before = self._told.get(what)
        if before is not None and now_ms - before[0] < PAUSE_MS:
            self._told[what] = before[0], before[1] + 1
            return
        if before is None and len(self._told) >= KINDS_MAX:
            self._told = {key: each for key, each in self._told.items() if now_ms - each[0] < PAUSE_MS}
            if len(self._told) >= KINDS_MAX:
                return
        self._told[what] = now_ms, 0
        others = f" (and {before[1]} others since the last such line)" if before and before[1] else ""
        self._log.warning("the client %s speaks %s%s; %s", peer, what, others, self._expected)
