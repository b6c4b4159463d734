"""The sessions of a connection: one, and another whenever the last has as many links as the broker takes.

A broker says how many links it takes on a session (handle-max of its begin, transport 2.7.2), so the first
one is answered before links are attached. Those that follow are expected to have the same handle-max: links
do not wait for their answers.
"""

from lightrail.amqp.connection import Connection as Engine
from lightrail.amqp.errors import LocalError
from lightrail.amqp.session import Session
from lightrail.client.errors import ClientError


class Sessions:
    """Those of one connection to a broker, from its open to its loss.

    Args:
        first: which the broker has answered.
    """

    def __init__(self, engine: Engine, first: Session) -> None:
        self._engine = engine
        self._handle_max = first.peer_handle_max
        self._all = [first]

    def with_room(self) -> Session:
        """One that takes another link; begun where there is none.

        Raises ClientError where the broker takes no more sessions.
        """
        # The newest has room, but where links have ended.
        for session in reversed(self._all):
            if len(session.outputs) <= session.peer_handle_max:
                return session
        try:
            session = self._engine.begin()
        except LocalError:
            raise ClientError(
                f"expected room for another link, and the broker takes {self._handle_max + 1} on each of "
                f"{len(self._all)} sessions, which are all in use: open another connection"
            ) from None
        session.peer_handle_max = self._handle_max
        self._all.append(session)
        return session
