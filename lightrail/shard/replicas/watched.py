"""Watched: what an owner knows of another member, and whether to count it as lost.

A member is silent while it neither acknowledges nor grants leases. Only the time in which the owner itself
was at work counts. A member that was removed for that has to keep up for a while before it is added again.
"""

from dataclasses import dataclass
from typing import Final

SILENT_NS: Final[int] = 1_000_000_000
"""Time without an acknowledgement after which a member is removed."""
ALONE_NS: Final[int] = 5_000_000_000
"""The same if no member acknowledges: then it is the owner that is cut off, more likely than all of them."""
SLOWNESS: Final = 3
"""How many times longer one may be silent that answers beats: on a busy machine a disk takes a second."""
KEPT_UP_NS: Final[int] = 10_000_000_000
"""How long a member that was removed has to keep up before it is in sync again; doubled each time."""
KEPT_UP_NS_MAX: Final[int] = 600_000_000_000


@dataclass(slots=True, eq=False, repr=False)
class Watched:
    """One other member, as the owner watches it."""

    silent_ns: int = 0
    """For how long it has not reached `number`, `lsn`, or granted a lease, while this owner was at work."""
    quiet_ns: int = 0
    """For how long it has answered no beat, while this owner was at work."""
    lease_ns: int = 0
    """The end of its last lease."""
    number: int = 0
    """Of the last message that was sent to it when it had acknowledged all of the former ones."""
    lsn: int = 0
    """Of the last record that was on the owner's disk then."""
    live_ns: int | None = None
    """Since when it has kept up with every commit."""
    wait_ns: int = 0
    """How long it has to keep up before it is added."""

    @property
    def is_lost(self) -> bool:
        """Whether it is to be removed. One that answers beats is slow, more likely than lost."""
        limit_ns = SILENT_NS if self.quiet_ns >= SILENT_NS else SLOWNESS * SILENT_NS
        return self.silent_ns >= limit_ns

    def hold_back(self) -> None:
        """It has not kept up, and has to do so for longer."""
        self.wait_ns = min(KEPT_UP_NS_MAX, max(KEPT_UP_NS, 2 * self.wait_ns))
