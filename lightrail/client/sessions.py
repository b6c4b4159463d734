"""The sessions of a connection: another one begins whenever all have the largest number of links.

A broker limits the links of a session by handle-max of its begin (transport 2.7.2), so links are attached
after the first begin is answered. Further sessions are expected to have the same handle-max: their links do
not wait for the answer.
"""

from lightrail.amqp.connection import Connection as Engine
from lightrail.amqp.errors import EndedError, LocalError
from lightrail.amqp.session import Session
from lightrail.client.errors import ClientError


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
