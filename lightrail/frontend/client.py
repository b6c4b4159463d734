"""The client of a connection: its address, user, rights, and the owner ids of its names.

Its rights are those of its user, and at some names those of the tokens that it has put at $cbs (`Claims`).
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.amqp.values import Symbol
from lightrail.model import names
from lightrail.model.endpoint import is_loopback
from lightrail.namespace.rights import Caller
from lightrail.wire.forwarded import Forwarded

if TYPE_CHECKING:
    from lightrail.amqp.performatives import Open
    from lightrail.amqp.session import Session
    from lightrail.frontend.engine import Frontend

CLAIM_BYTES: Final[int] = 512
"""Bytes that a token counts for beside its texts: its objects take 480."""
CLAIM_SCOPE_BYTES: Final[int] = 512
"""Bytes that a prefix of a token's scope counts for beside its text."""
CLAIMS_BYTES_MAX: Final[int] = 4 * 1024 * 1024
"""Bytes of a connection's tokens. Azure's clients put one for each entity on one connection: these are 7,000
entities."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The grant of one token: the caller, and its expiry in milliseconds since 1970."""

    caller: Caller
    expires_ms: int

    @property
    def size(self) -> int:
        """Bytes that it counts for, beside its audience."""
        caller = self.caller
        scope = sum(CLAIM_SCOPE_BYTES + len(prefix) for prefix, _ in caller.scope or ())
        rule = 0 if caller.by_rule is None else len(caller.by_rule.rule) + len(caller.by_rule.entity)
        return CLAIM_BYTES + scope + rule + (0 if caller.resource is None else len(caller.resource.path))


class TooManyTokensError(Exception):
    """The connection's tokens would be larger than CLAIMS_BYTES_MAX."""


@dataclass(slots=True, eq=False, repr=False)
class Claims:
    """The tokens of one connection by audience: a name, for itself and all below, or "" for every name.

    Args:
        changed: called with the audiences whose tokens were put or deleted, or have expired: rights at them
            and at names below are checked again.
    """

    _clock: "Frontend"
    _changed: Callable[[Collection[str]], None]
    _by_audience: dict[str, Claim] = field(default_factory=dict)
    _size: int = 0
    """Bytes of all tokens."""
    _timer: asyncio.TimerHandle | None = None
    _due_ms: int = 0
    """When the timer fires."""

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
        former = self._by_audience.get(audience)
        grown = claim.size - (-len(audience) if former is None else former.size)
        if self._size + grown > CLAIMS_BYTES_MAX and grown > 0:
            raise TooManyTokensError
        self._by_audience[audience] = claim
        self._size += grown
        self._arm(claim.expires_ms)
        self._changed((audience,))

    def __len__(self) -> int:
        return len(self._by_audience)

    def delete(self, audience: str) -> bool:
        """Deletes a token; returns False if there is none."""
        former = self._by_audience.pop(audience, None)
        if former is None:
            return False
        self._size -= len(audience) + former.size
        self._changed((audience,))
        return True

    def close(self) -> None:
        """The connection has closed. Its tokens stay valid for messages that it had sent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due_ms: int) -> None:
        """Sets one timer for the token that expires next.

        A token that was deleted or replaced may leave an earlier one, which finds nothing expired.
        """
        if self._timer is not None and self._due_ms <= due_ms:
            return
        self.close()
        self._due_ms = due_ms
        self._timer = self._clock.timer(max(1, due_ms - self._clock.now_ms()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_ms = self._clock.now_ms()
        expired = [audience for audience, claim in self._by_audience.items() if claim.expires_ms <= now_ms]
        for audience in expired:
            self._size -= len(audience) + self._by_audience.pop(audience).size
        # If none has expired, the clock was set back, or the timer fired too early.
        if self._by_audience:
            self._arm(min(claim.expires_ms for claim in self._by_audience.values()))
        if expired:
            self._changed(expired)


UNKNOWN = Caller("")
PROTON_CHANNEL_MAX: Final = 32_767
PROTON_MAX_FRAME_SIZES: Final = (16 * 1024, 32 * 1024)
"""Of former versions, and of the present one."""
PRODUCT: Final = Symbol("product")


@dataclass(slots=True, eq=False, repr=False)
class Client:
    """The client; some fields are known when the socket is accepted, the others after the client's open."""

    owner: str
    """Owner id of names that are deleted with the connection."""
    peer: str = ""
    """Address of the client's socket."""
    websocket: bool = False
    """Whether the client uses AMQP over WebSocket."""
    forwarded: bool = False
    """Whether a gateway forwards the client; `peer`, `loopback` and `tls` are those at the gateway."""
    loopback: bool = True
    """Whether the client is on this machine."""
    tls: bool = False
    user: str | None = None
    """The authenticated user; None without SASL."""
    caller: Caller = UNKNOWN
    """The caller at names without a token."""
    was_refused: bool = False
    """Whether the log names a bound at which the connection was refused something."""
    claims: Claims | None = None
    """Tokens that the client has put; None before the first."""

    def accept(self, address: object, *, tls: bool) -> None:
        """Sets the address of an accepted socket; that of a Unix socket is no tuple."""
        self.peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)
        self.loopback = is_loopback(address[0]) if isinstance(address, tuple) else True
        self.tls = tls

    def forward(self, forwarded: Forwarded) -> None:
        """Sets the address of a client that a gateway forwards."""
        self.forwarded = True
        self.peer = f"{forwarded.host}:{forwarded.port}"
        self.loopback = is_loopback(forwarded.host)
        self.tls = forwarded.tls

    @property
    def user_name(self) -> str:
        """The user for display; `anonymous` without one."""
        return self.user or "anonymous"

    @property
    def is_unproven(self) -> bool:
        """Whether the client has neither a user nor a token that is good now."""
        return self.caller.unproven and not self.claims

    def caller_for(self, name: str) -> Caller:
        """The caller at a name: that of the token for that name, or the user without a token."""
        found = None if self.claims is None else self.claims.caller_for(name)
        return self.caller if found is None else found

    def user_at(self, name: str) -> str:
        """The user towards whose share of a shard the links to a name count; `anonymous` without one."""
        return self.caller_for(name).user or self.user_name

    def session_owner(self, session: "Session") -> str:
        """Owner id of names that are deleted with a session.

        Its number is not used again: links of a former session on its channel may end later.
        """
        return f"{self.owner}/{session.context}"

    def owns(self, owner: str) -> bool:
        """Whether names of this owner are deleted with the connection, or with a part of it."""
        return owner == self.owner or owner.startswith(self.owner + "/")


def is_deaf_after_close(opened: "Open | None") -> bool:
    """Whether a client does not answer a close with amqp:connection:forced, nor read its socket: Qpid Proton.

    Its container for Python takes such a close for the end of the socket, and does not look whether that has
    ended: it connects again when a write fails, or after its idle time-out (ADR 49). The end of the socket
    without a close makes it connect at once. Proton is recognised by its defaults, and by the lack of the
    product that other clients with such defaults have in the properties of their open.
    """
    return (
        opened is not None
        and opened.channel_max == PROTON_CHANNEL_MAX
        and opened.max_frame_size in PROTON_MAX_FRAME_SIZES
        and PRODUCT not in (opened.properties or ())
    )
