"""A batch that a client sent to a router, and the outcome of each of its messages so far."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from lightrail.amqp.events import ACCEPTED, RELEASED, Transfers
from lightrail.amqp.performatives import AmqpError, Rejected
from lightrail.amqp.values import Symbol
from lightrail.frontend.links.outcomes import FAILED
from lightrail.model import conditions
from lightrail.namespace.router_plan import Group, Walk
from lightrail.wire.bodies import Refusal
from lightrail.wire.lanes import Attributes, Load

AWAY: Final = Refusal(conditions.INTERNAL_ERROR, "its shard is away, and can't have it")
PERHAPS: Final = Refusal(conditions.INTERNAL_ERROR, "its shard is away, and may have it")
"""Why messages are given up; they are released, or modified with delivery-failed, and not rejected."""


class RoutedBatch:
    """One batch, until all of its messages have outcomes."""

    __slots__ = (
        "attributes",
        "came_ms",
        "count",
        "first_id",
        "loads",
        "outstanding",
        "payloads",
        "refused",
        "settled",
        "size",
        "walk",
    )

    def __init__(self, event: Transfers, size: int, attributes: Attributes, now_ms: int) -> None:
        self.first_id = event.first_delivery_id
        self.settled = event.settled
        self.payloads = event.payloads
        self.count = len(event.payloads)
        self.size = size
        self.attributes = attributes
        self.came_ms = now_ms
        self.outstanding = 0
        """Loads without an answer."""
        self.loads: list[Load] = []
        self.refused: dict[int, Refusal] | None = None
        """Reasons by index in the batch."""
        self.walk: Walk | None = None
        """The walk through the plan, where messages have to be looked into."""

    def refuse(self, indices: Iterable[int], refusal: Refusal) -> None:
        """These messages are not stored in every queue that they are for; the first reason counts."""
        if self.refused is None:
            self.refused = {}
        for index in indices:
            self.refused.setdefault(index, refusal)

    def carried_beside(self, load: Load) -> dict[int, set[str]]:
        """The queues that other loads carry each message to, by index."""
        carried: dict[int, set[str]] = {}
        for other in self.loads:
            if other is not load:
                for index in other.indices:
                    carried.setdefault(index, set()).update(other.queues)
        return carried

    def outcomes(self) -> Iterator[tuple[int, int, Any]]:
        """Ranges of delivery-ids with one outcome each: first, last, state."""
        refused = self.refused or {}
        start = 0
        for index in range(1, self.count + 1):
            refusal = refused.get(start)
            if index < self.count and refused.get(index) == refusal:
                continue
            yield self.first_id + start, self.first_id + index - 1, self._state(refusal)
            start = index

    def _state(self, refusal: Refusal | None) -> Any:
        if refusal is None:
            return ACCEPTED
        if refusal is AWAY:
            # A copy may be stored elsewhere; then the client may not conclude that nothing has happened.
            return FAILED if len(self.loads) > 1 else RELEASED
        if refusal is PERHAPS:
            return FAILED
        return Rejected(error=AmqpError(condition=Symbol(refusal.condition), description=refusal.description))


def left_over(
    groups: Iterable[Group], places: Sequence[int], carried: Mapping[int, set[str]]
) -> Iterator[tuple[frozenset[str], list[int], list[bytes]]]:
    """Messages for queues that no load carries them to yet: the queues, indices in the batch, and contents.

    Args:
        places: for each message of the groups, its index in the batch.
    """
    for group in groups:
        parts: dict[frozenset[str], tuple[list[int], list[bytes]]] = {}
        for index, payload in zip(group.indices, group.payloads, strict=True):
            left = group.queues - carried.get(places[index], frozenset())
            if left:
                indices, payloads = parts.setdefault(left, ([], []))
                indices.append(places[index])
                payloads.append(payload)
        for queues, (indices, payloads) in parts.items():
            yield queues, indices, payloads
