"""Copies: what the actions on the ways of one message make of it, and the queues that get it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lightrail.amqp.decoder import Buffer
from lightrail.filters.matcher import Looks
from lightrail.model.names import dead_letter_name
from lightrail.namespace.failures import noted

Choose = Callable[[int], int]
"""Draws a whole number from 0 to below the argument."""
CopyKey = bytes | tuple[bytes, str]
"""An encoded message, with the name of the rule of Azure Service Bus that has made it, if one has: each makes
a message of its own, also where its action changes nothing."""


class SizeBound(NamedTuple):
    """The largest message that a queue takes, behind an action that may make a larger one.

    If the queue refused it, the message would be in other queues already. So it becomes a dead letter.
    """

    bytes_max: int
    failing_at: str | None
    """The queue whose dead letter the message becomes; None: it is dropped."""


@dataclass(slots=True, eq=False, repr=False)
class Copies:
    """The copies of one message, which are found on the way through routers; used again for the next one."""

    came_ms: int
    """When the message came."""
    choose: Choose
    looks: Looks
    bounds: Mapping[str, SizeBound]
    """By queue; those that take every message, or behind no action, are missing."""
    message: Buffer = b""
    """The message as it came."""
    queues: dict[CopyKey, dict[str, None]] = field(default_factory=dict)
    """In the order of the walk."""

    def add_bounded(self, message: Buffer, queue: str, failing_at: str | None, rule: str | None) -> bool:
        """Adds a copy that is larger than a queue takes; returns False if it is dropped.

        Args:
            failing_at: see Branch; that of the bound counts without one.
            rule: see `RouterNode.spread`.
        """
        bound = self.bounds[queue]
        content = message if isinstance(message, bytes) else bytes(message)
        # What was as large before is refused, as where no action is in between.
        if len(content) > len(self.message):
            place = failing_at or bound.failing_at
            if place is None:
                return False
            why = f"actions make a message of {len(content)} bytes; its queue takes at most {bound.bytes_max}"
            content, queue, rule = noted(bytes(self.message), place, why), dead_letter_name(place), None
        self.queues.setdefault(content if rule is None else (content, rule), {})[queue] = None
        return True
