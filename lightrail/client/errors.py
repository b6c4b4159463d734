"""Errors for applications. Their texts say what was expected, what was found, and what to do."""

from typing import TYPE_CHECKING, Any

from lightrail.model import conditions

if TYPE_CHECKING:
    from lightrail.amqp.performatives import AmqpError
    from lightrail.client.outcomes import Outcome


class ClientError(Exception):
    """Base of all errors of the client."""


class ConnectError(ClientError):
    """No address could be reached, or no broker opened the connection."""


class AuthenticationError(ConnectError):
    """The broker refused the credentials: the same credentials will be refused again."""


class ClosedError(ClientError):
    """The connection, sender or receiver was closed by the application."""


class ForkError(ClientError):
    """The object was opened by another process: open a connection in this one."""


class LinkError(ClientError):
    """The broker refused or ended a sender or receiver.

    Attributes:
        condition: of AMQP, as amqp:not-found.
        description: the broker's text.
        info: further fields of the broker's error.
    """

    def __init__(self, text: str, condition: str, description: str = "", info: Any = None) -> None:
        super().__init__(text)
        self.condition = condition
        self.description = description
        self.info = info or {}


class NotFoundError(LinkError):
    """The address does not exist."""


class NotAllowedError(LinkError):
    """The user lacks a right for the address."""


class LostError(ClientError):
    """The connection or link was lost; its unsettled messages are delivered again, to any receiver."""


class SendError(ClientError):
    """A message was not accepted.

    Attributes:
        outcome: rejected, released or modified; unknown where the connection was lost before the answer.
    """

    def __init__(self, text: str, outcome: "Outcome") -> None:
        super().__init__(text)
        self.outcome = outcome


class WindowFullError(ClientError):
    """The window of a sender is full of messages without an outcome: await one, or `send`."""


_CLASSES = {
    conditions.NOT_FOUND: NotFoundError,
    conditions.UNAUTHORIZED_ACCESS: NotAllowedError,
}


def link_error(what: str, error: "AmqpError | None") -> LinkError:
    """The exception for the error with which a broker refused or ended a link."""
    condition = conditions.DETACH_FORCED if error is None else str(error.condition)
    description = "" if error is None else error.description or ""
    text = f"{what}: {description or 'the broker gave no reason'} ({condition})"
    return _CLASSES.get(condition, LinkError)(text, condition, description, error and error.info)
