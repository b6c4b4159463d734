"""Errors: why a change of the namespace is refused."""


class Refused(Exception):
    """The change can't be made as requested; the message says what was expected and what was found."""


class LimitExceeded(Refused):
    """The number of names, or of a router's subscriptions, is at its limit."""


class Taken(Refused):
    """The name has a role, or the subscription exists, already."""


class Missing(Refused):
    """The name has no role, or the subscription does not exist."""


class Changed(Refused):
    """The entry changed since the caller read it (the If-Match does not hold)."""
