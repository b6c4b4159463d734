"""Claims: the tokens that a connection has put at $cbs, and the callers that they grant at names."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightrail.model import limits, names
from lightrail.namespace.rights import Caller

if TYPE_CHECKING:
    from lightrail.frontend.engine import Frontend


@dataclass(frozen=True, slots=True)
class Claim:
    """The grant of one token: the caller, and its expiry in milliseconds since 1970."""

    caller: Caller
    expires_ms: int


class TooManyTokensError(Exception):
    """The connection has put limits.CBS_TOKENS_MAX tokens already."""


class Claims:
    """The tokens of one connection by audience: a name, for itself and all below, or "" for every name.

    Args:
        changed: called when a token was put, deleted, or has expired: rights are checked again.
    """

    __slots__ = ("_by_audience", "_changed", "_clock", "_timer")

    def __init__(self, clock: "Frontend", changed: Callable[[], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._by_audience: dict[str, Claim] = {}
        self._timer: asyncio.TimerHandle | None = None

    def caller_for(self, name: str) -> Caller | None:
        """The caller at a name by the token of the nearest audience; None if no token is for the name."""
        now_ms = self._clock.now_ms()
        for audience in (name, *names.above(name), ""):
            claim = self._by_audience.get(audience)
            if claim is not None and claim.expires_ms > now_ms:
                return claim.caller
        return None

    def put(self, audience: str, claim: Claim) -> None:
        """Stores a token, replacing that of the same audience. Raises TooManyTokensError."""
        if audience not in self._by_audience and len(self._by_audience) >= limits.CBS_TOKENS_MAX:
            raise TooManyTokensError
        self._by_audience[audience] = claim
        self._arm()
        self._changed()

    def delete(self, audience: str) -> bool:
        """Deletes a token; returns False if there is none."""
        there = self._by_audience.pop(audience, None) is not None
        if there:
            self._arm()
            self._changed()
        return there

    def close(self) -> None:
        """The connection has closed. Its tokens stay valid for messages that it had sent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        """Sets one timer for the token that expires next."""
        self.close()
        if self._by_audience:
            next_ms = min(claim.expires_ms for claim in self._by_audience.values())
            self._timer = self._clock.timer(max(1, next_ms - self._clock.now_ms()), self._expire)

    def _expire(self) -> None:
        now_ms = self._clock.now_ms()
        expired = [audience for audience, claim in self._by_audience.items() if claim.expires_ms <= now_ms]
        for audience in expired:
            del self._by_audience[audience]
        # If none has expired, the clock was set back, or the timer fired too early.
        self._arm()
        if expired:
            self._changed()
