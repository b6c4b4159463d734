"""The ways in which a conversation goes wrong: the peer's faults by what they end, and our own misuse.

As in h11, "you erred" and "the peer erred" are distinct. `LocalError` is raised to the caller of a command;
the three peer faults are raised and caught inside the engine only, where they become close, end or detach.
"""

from lightrail.model import conditions


class LocalError(Exception):
    """A command that the caller may not give in this state; nothing has been written."""


class PeerFault(Exception):
    """What the peer did wrong, with the condition of the specification and what was expected and found."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition
        self.description = description


class ConnectionFault(PeerFault):
    """Ends the connection."""


class FramingFault(ConnectionFault):
    """Ends the connection at once: what follows in the stream can't be cut into frames any more."""

    def __init__(self, description: str) -> None:
        super().__init__(conditions.FRAMING_ERROR, description)


class SessionFault(PeerFault):
    """Ends the session that the frame belongs to."""


class LinkFault(PeerFault):
    """Detaches the link that the frame belongs to."""
