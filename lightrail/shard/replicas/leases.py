"""Leases: until when an owner may deliver, and from when on its successor may.

Answers of an owner wait for acknowledgements, so no clock can make one of them wrong. Deliveries can't pay
that: an owner sends them while every required member grants it a lease. The owner's lease runs from the
moment at which it sent the beat; a member's grant runs from its arrival, and is longer:

    owner     beat ──────────── LEASE ───────────|
    member         beat arrives ────────────── GRANT ─────────────|  delivers, if it is the owner now

So two owners deliver at the same time only if the speeds of their clocks differ by more than GRANT to LEASE,
or if a process pauses between the check and the send; then messages are delivered twice, as at-least-once
allows. Times are nanoseconds of a clock that counts while the machine sleeps; the module is pure.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

BEAT_NS: Final[int] = 500_000_000
"""Time between two beats of an owner."""
LEASE_NS: Final[int] = 2_000_000_000
GRANT_NS: Final[int] = 2_500_000_000
"""A quarter more than a lease, for clocks of different speeds."""
BEATS_MAX: Final[int] = 16
"""Beats that may be answered; older ones would grant a lease that has ended."""


@dataclass(slots=True, eq=False, repr=False)
class OwnersLeases:
    """The leases of one owner, by the member that grants them."""

    _sent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=BEATS_MAX))
    """Number and time of the latest beats."""
    _until: dict[str, int] = field(default_factory=dict)
    _number: int = 0

    def beat(self, now_ns: int) -> int:
        """The number of a beat that is sent now."""
        self._number += 1
        self._sent.append((self._number, now_ns))
        return self._number

    def granted(self, member: str, number: int) -> None:
        """A member has answered a beat; an answer to one that is too old grants nothing."""
        sent_ns = next((sent for beat, sent in self._sent if beat == number), None)
        if sent_ns is not None:
            self._until[member] = max(self._until.get(member, 0), sent_ns + LEASE_NS)

    def may_deliver(self, required: Iterable[str], now_ns: int) -> bool:
        """Whether each of these members, all required ones but the owner, grants a lease now."""
        until = self._until
        return all(until.get(member, 0) > now_ns for member in required)

    def until_ns(self, member: str) -> int:
        """The end of the lease that a member grants; it moves with each answer to a beat."""
        return self._until.get(member, 0)

    def return_all(self) -> None:
        """Ends all leases, before the owner hands over: it delivers nothing more."""
        self._until.clear()
        self._sent.clear()


class Grant:
    """What one member has granted: for that time it delivers nothing if it becomes the owner.

    Each owner has its own: one that returns its leases says nothing of those of the owner before it.

    Args:
        now_ns: the start of the process, which may have granted a whole lease just before.
    """

    __slots__ = ("_until", "epoch")

    def __init__(self, now_ns: int) -> None:
        self.epoch = 0
        """The newest epoch whose owner has a grant."""
        self._until = {0: now_ns + GRANT_NS}
        """By epoch; 0: what a former process of this member has granted."""

    def give(self, epoch: int, now_ns: int) -> bool:
        """A beat of the owner of an epoch has arrived; False if a newer epoch is known."""
        if epoch < self.epoch:
            return False
        self.epoch = epoch
        self._until = {each: until for each, until in self._until.items() if until > now_ns}
        self._until[epoch] = now_ns + GRANT_NS
        return True

    def give_back(self, epoch: int) -> None:
        """The owner of an epoch has returned its leases: it delivers nothing more in this epoch."""
        self._until.pop(epoch, None)

    def remaining_ns(self, now_ns: int) -> int:
        """How long another owner may still deliver; 0 if none may."""
        return max(0, max(self._until.values(), default=0) - now_ns)
