"""A batch that a client sent to a router, and the present outcome of each of its messages."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lightrail.amqp.events import ACCEPTED, RELEASED, Transfers
from lightrail.frontend.links.outcomes import FAILED, rejected
from lightrail.model import limits
from lightrail.namespace.router_plan import Walk
from lightrail.namespace.spreading import Carried, Spread
from lightrail.shard_client.sending.lanes import Load
from lightrail.shard_client.sending.window import MAYBE_STORED, NOT_STORED, Attributes
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.engine import Frontend


class RoutedBatch(Spread):
    """One batch, until all of its messages have outcomes."""

    __slots__ = ("count", "first_id", "payloads", "refused", "settled", "size", "walk", "whole")

    def __init__(
        self,
        event: Transfers,
        size: int,
        attributes: Attributes,
        now_ms: int,
        whole: "OneOutcome | None" = None,
    ) -> None:
        super().__init__(attributes, now_ms)
        self.first_id = event.first_delivery_id
        self.settled = event.settled
        self.payloads = event.payloads
        self.count = len(event.payloads)
        self.size = size
        self.refused: dict[int, Refusal] | None = None
        """Reasons of refused messages by index in the batch."""
        self.walk: Walk | None = None
        """The walk through the plan, if messages have to be decoded for it."""
        self.whole = whole
        """The transfer of batched messages that these belong to, which has one outcome (batched.py)."""

    def refuse(self, indices: Iterable[int], refusal: Refusal) -> None:
        """Records that messages are not stored in all of their queues; the first reason counts."""
        if self.refused is None:
            self.refused = {}
        for index in indices:
            self.refused.setdefault(index, refusal)

    def carried_beside(self, load: Load) -> Carried:
        """What other loads have."""
        return {
            (index, payload, queue)
            for other in self.loads
            if other is not load
            for index, payload in zip(other.indices, other.payloads, strict=True)
            for queue in other.queues
        }

    def outcomes(self) -> Iterator[tuple[int, int, Any]]:
        """Ranges of delivery-ids with one outcome each: first, last, state."""
        refused = self.refused or {}
        if self.whole is not None:
            yield from self.whole.ended(self, refused)
            return
        start = 0
        for index in range(1, self.count + 1):
            refusal = refused.get(start)
            if index < self.count and refused.get(index) == refusal:
                continue
            yield self.first_id + start, self.first_id + index - 1, self.state_of(refusal)
            start = index

    def state_of(self, refusal: Refusal | None) -> Any:
        """The state of messages with this reason; those of lost shards are not rejected."""
        if refusal is None:
            return ACCEPTED
        if refusal is NOT_STORED:
            # A copy may be stored in another queue; then released would be wrong.
            return FAILED if len(self.loads) > 1 else RELEASED
        if refusal is MAYBE_STORED:
            return FAILED
        return rejected(refusal.condition, refusal.description)


async def until_placed(frontend: "Frontend", queues: Iterable[str]) -> None:
    """Waits until the shards of queues are registered."""
    while True:
        for queue in queues:
            await frontend.find(queue)
        if all(frontend.placed(queue) is not None for queue in queues):
            return
        # A shard is not registered yet, or no longer.
        await frontend.shard_connections.owners.change(limits.OWNER_RETRY_MS_MAX)


def settle(link: "Link", batches: Iterable[RoutedBatch], not_stored: Any, maybe_stored: Any) -> None:
    """Settles batches whose loads are all answered, consecutive ones in one range.

    Args:
        not_stored: the outcome of messages whose shards did not answer, and did not store them.
        maybe_stored: the same for messages that a shard may have stored.
    """
    first = last = -1
    for batch in batches:
        if batch.settled:
            continue
        if batch.refused is not None or batch.whole is not None:
            for start, end, state in batch.outcomes():
                if state is ACCEPTED:
                    link.settle(start, end, state)
                elif state is RELEASED:
                    link.answer(start, end, not_stored)
                else:
                    link.answer(start, end, maybe_stored if state is FAILED else state)
            continue
        if first >= 0 and batch.first_id == last + 1:
            last += batch.count
            continue
        if first >= 0:
            link.settle(first, last, ACCEPTED)
        first = batch.first_id
        last = first + batch.count - 1
    if first >= 0:
        link.settle(first, last, ACCEPTED)


class OneOutcome:
    """The one outcome of a transfer of batched messages, which may be several batches."""

    __slots__ = ("_state", "outstanding")

    def __init__(self, batches: int) -> None:
        self.outstanding = batches
        self._state: Any = ACCEPTED

    def ended(self, batch: RoutedBatch, refused: Mapping[int, Refusal]) -> Iterator[tuple[int, int, Any]]:
        """The delivery-id and its state, once the last of the batches is answered completely.

        If a single message was refused, the transfer is not accepted, for the first reason.
        """
        self.outstanding -= 1
        if refused and self._state is ACCEPTED:
            state = batch.state_of(next(iter(refused.values())))
            # Other messages of the transfer may be stored: released would be wrong.
            self._state = FAILED if state is RELEASED else state
        if not self.outstanding:
            yield batch.first_id, batch.first_id, self._state
