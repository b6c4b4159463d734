"""Errors: why a change of the namespace is refused."""


class Refused(Exception):
    """What was asked can't be done as it is; the message says what was expected and what was found."""


class LimitExceeded(Refused):
    """There are as many names, or subscriptions, as there may be."""


class Taken(Refused):
    """The name has a role already, or the subscription is there already."""


class Missing(Refused):
    """The name has no role, or there is no such subscription."""


class Changed(Refused):
    """Somebody else changed it since it was read (the If-Match does not hold)."""
