"""Errors of the client library, as Kombu expects them: of the connection, or of what was asked on it."""

from lightrail.client import ClosedError, LinkError, LostError, ManagementError, SendError


class ConnectionGoneError(ConnectionError):
    """The connection to the broker is lost, or could not be made: Kombu and Celery make another one."""


CONNECTION_ERRORS: tuple[type[Exception], ...] = (
    ConnectionGoneError,
    ConnectionError,
    LostError,
    ClosedError,
)
"""After these another connection may help. A refused log-in (AuthenticationError) is none of them."""
CHANNEL_ERRORS: tuple[type[Exception], ...] = (LinkError, SendError, ManagementError)
"""The broker refused a consumer, a message, or a declaration; the connection is well."""
