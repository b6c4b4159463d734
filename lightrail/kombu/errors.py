"""Errors of the client library in the groups of Kombu: errors of the connection, and of a channel."""

from lightrail.client import ClosedError, LinkError, LostError, ManagementError, SendError


class ConnectionGoneError(ConnectionError):
    """The connection to the broker is lost, or could not be opened: Kombu and Celery open another one."""


CONNECTION_ERRORS: tuple[type[Exception], ...] = (
    ConnectionGoneError,
    ConnectionError,
    LostError,
    ClosedError,
)
"""Errors after which another connection may work; not a refused log-in (AuthenticationError)."""
CHANNEL_ERRORS: tuple[type[Exception], ...] = (LinkError, SendError, ManagementError)
"""Errors for a refused consumer, message or declaration; the connection remains usable."""
