"""Resuming links over the loss of a connection (AMQP 1.0 transport 2.6.13): options, and what is common.

A link keeps its name, and its connection the container-id. An attach after a loss has the `unsettled` map of
the client, and its answer that of the broker; together they tell what became of each delivery.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lightrail.amqp.link import SETTLE_SECOND
from lightrail.amqp.link import Link as EngineLink
from lightrail.amqp.performatives import AmqpError, Source, Target
from lightrail.client.outcomes import Outcome, OutcomeKind
from lightrail.model import conditions

UNSETTLED_STATE: Final = 2
"""Terminus-durability: unsettled deliveries outlive a restart of the broker (messaging 3.5.5)."""
ENTRY_BYTES: Final = 18
"""Bytes of a delivery without an outcome in a map, at most: a delivery-tag of 12 bytes, and null."""
_GOES_ON: Final = frozenset((conditions.DETACH_FORCED, conditions.STOLEN, conditions.INTERNAL_ERROR))
"""Conditions of a detach after which a link is resumed. With any other the broker refuses a delivery itself,
which would end the resumed link as well."""
UNKNOWN_TOO_LATE: Final = Outcome(
    OutcomeKind.UNKNOWN,
    description="the connection was lost for longer than the broker keeps the state of the link",
)


@dataclass(frozen=True, slots=True)
class Resume:
    """How a link is resumed.

    Attributes:
        seconds: for which the broker is asked to keep the state of the link after the loss of a connection.
        durable: whether it is to keep the state on disk.
    """

    seconds: int
    durable: bool

    def ask(self, terminus: Source | Target) -> None:
        """Requests this from the broker, in the terminus at its side."""
        terminus.timeout = self.seconds
        terminus.durable = UNSETTLED_STATE if self.durable else 0


def resume_of(seconds: int | None, durable: bool, excluded: Mapping[str, Any]) -> Resume | None:
    """How a link is resumed, for the arguments of `Connection.sender` and `receiver`; None: it is not.

    Args:
        excluded: what `resume` excludes; true where it is the case.

    Raises ValueError for a time that is no positive number of whole seconds, and for what is excluded.
    """
    if seconds is None:
        return None
    if seconds != int(seconds) or seconds < 1:
        raise ValueError(f"expected resume to be a number of whole seconds, at least 1, found {seconds}")
    for name, is_so in excluded.items():
        if is_so:
            raise ValueError(
                f"expected a link that can be resumed, found resume with {name}: a broker keeps the state of "
                "links with one queue, whose messages have outcomes"
            )
    return Resume(int(seconds), durable)


def now_s() -> float:
    """Seconds of a clock that also counts while the machine sleeps, where the system has one: Linux has."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


def kept_s(link: EngineLink, terminus: Any) -> int:
    """Seconds for which the broker keeps the state of an attached link; 0 if it does not resume it.

    A receiver that settles first forgets a delivery whose outcome may be lost, so both directions need
    rcv-settle-mode second.

    Args:
        terminus: of the broker's attach, at its side.
    """
    if not isinstance(terminus, Source | Target) or link.rcv_settle_mode != SETTLE_SECOND:
        return 0
    return int(terminus.timeout or 0)


def deliveries_max(link: EngineLink) -> int:
    """Unsettled deliveries for whose map an attach has room in any case: half of a frame."""
    return max(1, link.session.connection.peer_max_frame_size // (2 * ENTRY_BYTES))


def goes_on_after(error: AmqpError | None) -> bool:
    """Whether a link that the broker has detached is to be resumed."""
    return error is None or str(error.condition) in _GOES_ON
