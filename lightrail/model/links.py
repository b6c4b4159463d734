"""Links of clients, as all parts name them.

Durability of a terminus: what of its state is stored durably (terminus-durability, messaging 3.5.5).

Endings: how the link of a receiver ended, which decides how its unsettled deliveries return (ADR 5).
"""

from enum import IntEnum


class Ending(IntEnum):
    """The ways in which a link ends; the values are sent between processes (CONSUMER_CLOSE)."""

    BY_CLIENT = 0
    """In order: a detach, end or close without an error. The client has settled what it worked on."""
    BY_BROKER = 1
    """By the broker, while the client did nothing wrong: a deleted name, a stolen link, a restart."""
    FAILED = 2
    """The client failed: its socket was lost or silent, it broke the protocol, or it reported an error. The
    oldest delivery may be the reason; those behind it waited."""


class Durability(IntEnum):
    """The values of the specification."""

    NONE = 0
    CONFIGURATION = 1
    """That the terminus exists, and for how long."""
    UNSETTLED_STATE = 2
    """Its unsettled deliveries as well."""
