"""Unproven clients: connections without a user, which have no right before they put a token at $cbs.

Clients of Azure Service Bus connect so. Every stranger can, too, so that such a connection may do little:
attach a few links to $cbs and to coordinators, within a time, and beside a bounded number of others of its
kind and of its source. The same holds when the last of its tokens has expired or was deleted.
"""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.amqp.link import Link
from lightrail.amqp.performatives import Coordinator, Source, Target
from lightrail.frontend.nodes import cbs
from lightrail.frontend.nodes.links import path_of
from lightrail.model import conditions
from lightrail.model.setting_values import format_duration

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend

UNPROVEN_MAX: Final[int] = 4_096
"""Open connections of a frontend that have put no token."""
UNPROVEN_OF_SOURCE: Final[int] = 512
"""Those of one source: a service whose processes all start at once behind one address has no more."""
UNPROVEN_SESSIONS_MAX: Final[int] = 32
"""Sessions that a connection may begin before its first token. Azure's clients begin one."""
UNPROVEN_LINKS_MAX: Final[int] = 8
"""Links to $cbs and coordinators that it may attach before: Azure's clients attach three."""


@dataclass(slots=True, eq=False, repr=False)
class Unproven:
    """The unproven connections of one frontend."""

    _frontend: "Frontend"
    _timers: "dict[ClientConnection, asyncio.TimerHandle]" = field(default_factory=dict)
    _by_source: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._timers)

    def follow(self, connection: "ClientConnection") -> None:
        """The connection has opened, or its tokens have changed: begins its time, or ends it."""
        if not connection.is_open or not connection.client.is_unproven:
            self.forget(connection)
        elif connection not in self._timers:
            self._begin(connection)

    def forget(self, connection: "ClientConnection") -> None:
        """The connection has a token, or has ended."""
        timer = self._timers.pop(connection, None)
        if timer is None:
            return
        timer.cancel()
        source = _source(connection)
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]

    def refuses(self, connection: "ClientConnection", link: Link) -> bool:
        """Whether the attach of a client is refused, because it has put no token; refuses it."""
        if not connection.client.is_unproven:
            return False
        amqp = connection.amqp
        assert amqp is not None
        links = sum(len(session.inputs) for session in amqp.sessions.values())
        # Azure's client for .NET declares a transaction before it puts the token of the first entity in it.
        # What a transaction contains comes over links that have a token.
        if not (_is_cbs(link) or (not link.is_sender and isinstance(link.target, Coordinator))):
            link.refuse(
                conditions.UNAUTHORIZED_ACCESS,
                "this connection has neither a user nor a token: log in, or put a token at $cbs first",
            )
        elif links > UNPROVEN_LINKS_MAX:
            link.refuse(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"expected at most {UNPROVEN_LINKS_MAX} links before the first token at $cbs",
            )
        else:
            return False
        self._frontend.counts.links_refused += 1
        connection.touch()
        return True

    def begun(self, connection: "ClientConnection", sessions: int) -> None:
        """The client has begun a session, and now has so many."""
        if sessions > UNPROVEN_SESSIONS_MAX and connection.client.is_unproven:
            connection.close(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"expected at most {UNPROVEN_SESSIONS_MAX} sessions before the first token at $cbs",
            )

    def _begin(self, connection: "ClientConnection") -> None:
        source = _source(connection)
        of_source = self._by_source.get(source, 0)
        if len(self) >= UNPROVEN_MAX or of_source >= UNPROVEN_OF_SOURCE:
            where = f"from {source}" if of_source >= UNPROVEN_OF_SOURCE else "here"
            self._frontend.counts.connections_refused += 1
            connection.close(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"too many connections {where} have put no token yet; connect again later",
            )
            return
        self._by_source[source] = of_source + 1
        wait_ms = self._frontend.settings.token_wait
        self._timers[connection] = self._frontend.timer(wait_ms, lambda: self._late(connection))

    def _late(self, connection: "ClientConnection") -> None:
        self.forget(connection)
        waited = format_duration(self._frontend.settings.token_wait)
        connection.close(
            conditions.UNAUTHORIZED_ACCESS,
            f"the connection has no user, and had no token at $cbs for {waited}; see the setting token_wait",
        )


def _source(connection: "ClientConnection") -> str:
    assert connection.sasl_exchange is not None, "an open connection was authenticated"
    return connection.sasl_exchange.source


def _is_cbs(link: Link) -> bool:
    terminus = link.source if link.is_sender else link.target
    if not isinstance(terminus, Source | Target) or terminus.dynamic or isinstance(link.target, Coordinator):
        return False
    return isinstance(terminus.address, str) and path_of(terminus.address) == cbs.ADDRESS
