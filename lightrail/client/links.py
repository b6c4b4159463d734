"""The open links of a connection: attached on each new connection, and again if the broker ended one.

The sessions of a connection: another one begins whenever all have the largest number of links.

A broker limits the links of a session by handle-max of its begin (transport 2.7.2), so links are attached
after the first begin is answered. Further sessions are expected to have the same handle-max: their links do
not wait for the answer.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from lightrail.amqp.connection import Connection as Engine
from lightrail.amqp.errors import EndedError, LocalError
from lightrail.amqp.performatives import AmqpError
from lightrail.amqp.session import Session
from lightrail.client.errors import ClientError, link_error
from lightrail.client.link import Link
from lightrail.client.options import ReconnectPolicy, pause_s
from lightrail.client.wire import Wire
from lightrail.model import conditions

if TYPE_CHECKING:
    from lightrail.client.connection import Connection


class Sessions:
    """The sessions of one connection to a broker, from its open to its loss.

    Args:
        first: a session that the broker has answered.
    """

    def __init__(self, engine: Engine, first: Session) -> None:
        self._engine = engine
        self._handle_max = first.peer_handle_max
        self._all = [first]

    def with_room(self) -> Session:
        """A session with room for another link, begun if there is none.

        Raises ClientError if the broker accepts no more sessions, EndedError after the end of the connection.
        """
        # Usually the newest has room; older ones have room after links ended.
        for session in reversed(self._all):
            if len(session.outputs) <= session.peer_handle_max:
                return session
        try:
            session = self._engine.begin()
        except EndedError:
            raise
        except LocalError:
            raise ClientError(
                f"expected room for another link, and the broker accepts {self._handle_max + 1} on each of "
                f"{len(self._all)} sessions, which are all in use: open another connection"
            ) from None
        session.peer_handle_max = self._handle_max
        self._all.append(session)
        return session


_FINAL: Final = frozenset(
    (
        conditions.NOT_FOUND,
        conditions.UNAUTHORIZED_ACCESS,
        conditions.NOT_ALLOWED,
        conditions.NOT_IMPLEMENTED,
        conditions.INVALID_FIELD,
        conditions.RESOURCE_DELETED,
        conditions.PRECONDITION_FAILED,
    )
)
"""Permanent conditions: another attempt to attach would get the same one."""

LinkType = TypeVar("LinkType", bound=Link)


class Links:
    """Senders and receivers that are open."""

    def __init__(self, connection: "Connection", policy: ReconnectPolicy) -> None:
        self._connection = connection
        self._policy = policy
        self._open: dict[Link, None] = {}
        self._attempts: dict[Link, int] = {}
        """Failed attempts to attach links again that the broker ended."""
        self._wire: Wire | None = None
        self._sessions: Sessions | None = None

    @property
    def connected(self) -> bool:
        """Whether links can be attached now."""
        return self._sessions is not None

    @property
    def healthy(self) -> bool:
        """Whether all open links are attached."""
        return self.connected and all(link.healthy for link in self._open)

    @property
    def all(self) -> list[Link]:
        """The open links."""
        return list(self._open)

    def add(self, link: LinkType) -> LinkType:
        """Opens a link. Raises ClientError if the broker accepts no more links."""
        if self._wire is not None and self._sessions is not None:
            try:
                # After an end of the connection that is handled in this turn, the next one attaches it.
                with suppress(EndedError):
                    link.attach(self._wire, self._sessions.with_room())
            except (ClientError, LocalError) as error:
                raise ClientError(f"{link.address}: {error}") from None
        self._open[link] = None
        return link

    def forget(self, link: Link) -> None:
        """Removes a link that has ended."""
        self._open.pop(link, None)
        self._attempts.pop(link, None)

    def connect(self, wire: Wire, sessions: Sessions) -> None:
        """Attaches all links on a new connection."""
        self._wire = wire
        self._sessions = sessions
        self._attempts.clear()
        for link in self.all:
            self._attach(link, wire, sessions)
        wire.touch()

    def lost(self) -> None:
        """Resets all links after the loss of the connection."""
        self._wire = self._sessions = None
        for link in self.all:
            link.lost()

    def end(self, error: Exception) -> None:
        """Ends all links, because the connection ended."""
        for link in self.all:
            link.end(error)

    def link_lost(self, link: Link, what: str, error: AmqpError | None) -> None:
        """Attaches a link again that the broker ended; ends it if the broker refused it permanently."""
        found = link_error(what, error)
        self._connection.report("link-lost", link.address or "", str(found))
        if self._connection.is_token_missing(found):
            return
        attempt = self._attempts.get(link, 0)
        if not link.was_opened or found.condition in _FINAL or attempt == self._policy.attempts:
            link.end(found)
            return
        self._attempts[link] = attempt + 1
        pause = pause_s(self._policy, attempt)
        self._connection.loop.call_later(pause, self._attach_again, link, self._wire)

    def link_attached(self, link: Link) -> None:
        """Resets the attempts of a link that the broker has opened."""
        if self._attempts.pop(link, 0):
            self._connection.report("link-attached", link.address or "")

    def _attach(self, link: Link, wire: Wire, sessions: Sessions) -> None:
        try:
            with suppress(EndedError):
                link.attach(wire, sessions.with_room())
        except (ClientError, LocalError) as error:
            # This broker may accept fewer links than the previous one.
            link.end(ClientError(f"{link.address}: {error}"))

    def _attach_again(self, link: Link, wire: Wire | None) -> None:
        if link in self._open and wire is self._wire and wire is not None and self._sessions is not None:
            self._attach(link, wire, self._sessions)
