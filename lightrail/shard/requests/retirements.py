"""Retirements: requests of a gateway that deletes a topic which nobody has used, about the topic's queues.

The gateway first asks each queue when its time is over, and then lets all of them leave. A queue that leaves
changes no more (links/retiring.py), so the gateway may delete it with its topic.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lightrail.model import conditions
from lightrail.shard.effects.answers import Fields, Operation, Reply, RequestError, demand, name_of, whole
from lightrail.shard.effects.peers import Peer
from lightrail.shard.queues.ownership import OwnershipState
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import CallWhenSynced

if TYPE_CHECKING:
    from lightrail.shard.links.links import Links

REVISION_MAX: Final = (1 << 63) - 1
LEAVES: Final[Fields] = {"leaves": True}


@dataclass(slots=True, eq=False, repr=False)
class Retirements:
    """Answers these requests."""

    _queues: Queues
    _links: "Links"
    _wait: CallWhenSynced

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {"leave": self._leave}

    def _leave(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> Fields | None:
        """When the time of a queue is over, or, with `leaves`, that it leaves."""
        topic = self._queues.names.get(str(fields.get("topic")))
        revision = whole(fields, "revision", 0, REVISION_MAX, None)
        max_ms = topic.policy.milliseconds("max_idle")
        if topic.revision != revision or max_ms is None:
            raise RequestError(
                conditions.PRECONDITION_FAILED,
                f"{topic.name} is expected at revision {revision} and with max_idle, found {topic.revision}",
            )
        queue = self._queues.find(name_of(fields))
        if queue is None or queue.state is not OwnershipState.LEAVING or queue.leaves_with != topic.name:
            queue = demand(self._queues.open(name_of(fields), now_ms))
        if self._links.retiring.revision(queue) < whole(fields, "known", 0, REVISION_MAX, 0):
            # The deletion allows for a change that this shard has not read: it would serve the queue again.
            raise RequestError(
                conditions.RESOURCE_LOCKED, f"a change of {queue.name} is not known here yet; try again"
            )
        if queue.state is OwnershipState.LEAVING:
            # Another gateway has been faster; the answer waits for its record.
            self._wait(Reply(peer, number, LEAVES), number)
            return None
        over_ms = self._links.idle.over_ms(queue, max_ms, now_ms)
        if over_ms > now_ms or not fields.get("leaves"):
            return {"over_ms": over_ms}
        if not self._links.retiring.retire_with(queue, topic, now_ms):
            raise RequestError(conditions.RESOURCE_LOCKED, f"{queue.name} moves, or can't be recorded now")
        self._wait(Reply(peer, number, LEAVES), number)
        return None
