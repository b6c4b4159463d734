"""Links of clients, as all parts name them.

Durability of a terminus: what of its state is stored durably (terminus-durability, messaging 3.5.5).

Ends of locks: whether the locks of a link of a client of Azure Service Bus outlive it (ADR 68).

Endings: how the link of a receiver ended, which decides how its unsettled deliveries return (ADR 5).
"""

from enum import IntEnum, StrEnum


class LockEnding(StrEnum):
    """What ends the locks of a link that has a key for them, beside outcomes; policies and frames name it."""

    ALWAYS_BY_TIME = ""
    """Time, whatever becomes of the link; each end by time counts as a failed delivery."""
    BY_TIME = "time"
    """Time, whatever becomes of the link; after its end they count by the rule of whose fault that is."""
    BY_LINK = "link"
    """Time, and the end of the link."""


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
