"""Claims: the tokens that a connection has put at $cbs, and who it therefore is at which names."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightrail.model import limits, names
from lightrail.namespace.rights import Caller

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection


@dataclass(frozen=True, slots=True)
class Claim:
    """What one token says: who acts, and until when, in milliseconds since 1970."""

    caller: Caller
    expires_ms: int


class TooMany(Exception):
    """The connection has put limits.CBS_TOKENS_MAX tokens already."""


class Claims:
    """The tokens of one connection by audience: a name, for itself and all below, or "" for everything.

    When one has run out and no other was put in its place, links that have no right without it are detached.
    """

    __slots__ = ("_by_audience", "_connection", "_timer")

    def __init__(self, connection: "ClientConnection") -> None:
        self._connection = connection
        self._by_audience: dict[str, Claim] = {}
        self._timer: asyncio.TimerHandle | None = None

    def caller_for(self, name: str) -> Caller | None:
        """Who acts on a name by the token of the nearest audience; None where no token is for it."""
        now_ms = self._connection.frontend.now_ms()
        for audience in (name, *names.above(name), ""):
            claim = self._by_audience.get(audience)
            if claim is not None and claim.expires_ms > now_ms:
                return claim.caller
        return None

    def put(self, audience: str, claim: Claim) -> None:
        """A token, in the place of the one that this audience had. Raises TooMany."""
        if audience not in self._by_audience and len(self._by_audience) >= limits.CBS_TOKENS_MAX:
            raise TooMany
        self._by_audience[audience] = claim
        self._changed()

    def delete(self, audience: str) -> bool:
        """Forget a token; False when there is none."""
        there = self._by_audience.pop(audience, None) is not None
        if there:
            self._changed()
        return there

    def close(self) -> None:
        """The connection has closed. Its tokens stay: what it sent before is still sent in their name."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _changed(self) -> None:
        self._arm()
        self._connection.frontend.guard.recheck(self._connection)

    def _arm(self) -> None:
        """One timer for the token that runs out next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._by_audience:
            next_ms = min(claim.expires_ms for claim in self._by_audience.values())
            frontend = self._connection.frontend
            self._timer = frontend.timer(max(1, next_ms - frontend.now_ms()), self._ring)

    def _ring(self) -> None:
        now_ms = self._connection.frontend.now_ms()
        over = [audience for audience, claim in self._by_audience.items() if claim.expires_ms <= now_ms]
        for audience in over:
            del self._by_audience[audience]
        if over:
            self._changed()
        else:
            # The clock was set back, or the timer rang a moment early.
            self._arm()
