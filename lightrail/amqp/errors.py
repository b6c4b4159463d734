"""Errors of the engine: wrong commands of the caller, and errors of the peer, grouped by the endpoint that
they end: link, session or connection.

As in h11, local and remote errors are distinct. `LocalError` is raised to the caller of a command, and so is
`EndedError`, for a command that came too late. The others are raised and caught inside the engine, which
answers them with close, end or detach.
"""

from lightrail.model import conditions


class LocalError(Exception):
    """A command that is not allowed in this state; nothing has been written."""


class EndedError(LocalError):
    """A command to a link, session or connection that either side has ended; nothing has been written.

    The caller does not know of the end yet: its event is among those that are still to be handled.
    """


class ProtocolError(Exception):
    """An error of the peer: a condition of the specification, and what was expected and found."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition
        self.description = description


class ConnectionProtocolError(ProtocolError):
    """Closes the connection."""


class FramingError(ConnectionProtocolError):
    """Closes the connection at once: what follows in the stream can't be cut into frames."""

    def __init__(self, description: str) -> None:
        super().__init__(conditions.FRAMING_ERROR, description)


class SessionProtocolError(ProtocolError):
    """Ends the session that the frame belongs to."""


class LinkProtocolError(ProtocolError):
    """Detaches the link that the frame belongs to."""
