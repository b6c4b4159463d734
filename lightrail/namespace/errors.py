"""Errors: why a change of the namespace is refused."""


class ServiceError(Exception):
    """The change can't be made as requested; the message has what was expected and what was found."""


class LimitExceededError(ServiceError):
    """The number of names, or of a router's subscriptions, is at its limit."""


class TakenError(ServiceError):
    """The name has a role, or the subscription exists, already."""


class MissingError(ServiceError):
    """The name has no role, or the subscription does not exist."""


class ChangedError(ServiceError):
    """The entry changed since the caller read it (the If-Match does not hold)."""
