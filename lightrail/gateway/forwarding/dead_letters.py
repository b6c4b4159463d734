"""Dead letters that are forwarded from NAME/$dlq to the name in the queue's policy.

The shard of a queue puts dead letters into NAME/$dlq, on the same shard, in the same commit. Every gateway
forwards from NAME/$dlq; several gateways share the work as consumers of one queue.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from lightrail.gateway.forwarding.counts import ForwardingCounts
from lightrail.gateway.forwarding.forwarder import ACCEPTED, Forwarder, Settlement
from lightrail.gateway.forwarding.repeating import Attempt, Pause, RepeatingForwarder
from lightrail.gateway.forwarding.roster import Roster
from lightrail.gateway.forwarding.sink import Sink, moved
from lightrail.model import names
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name
from lightrail.shard_client.receiving.queue_consumer import Delivery
from lightrail.shard_client.shard_connections import ShardConnections

log = logging.getLogger("lightrail.gateway.forwarding.dead_letters")


class DeadLetterForwarder(RepeatingForwarder):
    """Sends the dead letters of one queue to another name."""

    def __init__(
        self,
        queue: str,
        target: str,
        sink: Sink,
        counts: ForwardingCounts,
        pause: Pause,
        lost: Callable[[Forwarder], None],
    ) -> None:
        waiting = f"dead letters wait in {queue}, {target} refuses them"
        again = f"{target} accepts the dead letters of {queue} again"
        super().__init__(queue, f"forwarder to {target}", pause, lost, log=log, waiting=waiting, again=again)
        self._target = target
        self._sink = sink
        self._counts = counts

    def attempt(self, delivery: Delivery) -> Attempt:
        """Accepted once the target has stored the message; there is no other outcome."""
        message = moved(delivery)

        async def send() -> Settlement | None:
            try:
                (problem,) = await self._sink.send(self._target, [message])
                text = str(problem) if problem is not None else ""
            except Exception as error:
                log.exception("sending to %s failed", self._target)
                text = str(error) or type(error).__name__
            self.note(text)
            if text:
                self._counts.forwards_refused += 1
                return None
            self._counts.forwarded += 1
            return ACCEPTED

        return send


class DeadLetterForwarders:
    """A forwarder for each queue whose policy has `dead_letter`; follows the directory."""

    def __init__(
        self,
        directory: Directory,
        shards: ShardConnections,
        sink: Sink,
        counts: ForwardingCounts,
        *,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._directory = directory
        self._counts = counts
        self._roster: Roster[str] = Roster(
            shards, lambda queue, target, lost: DeadLetterForwarder(queue, target, sink, counts, pause, lost)
        )

    def start(self) -> None:
        """Opens a forwarder for every name whose policy requires one; `changed` follows later changes."""
        self.changed(record.name for record in self._directory.below(""))

    def changed(self, changed: Iterable[str]) -> None:
        """Follows names whose policy may have changed."""
        for name in changed:
            if not names.is_dead_letter(name):
                self._roster.want(names.dead_letter_name(name), _target(self._directory.find(name)))
        self._counts.forwarders = len(self._roster)

    def close(self) -> None:
        self._roster.close()


def _target(record: Name | None) -> str | None:
    if record is None or record.role is not Role.QUEUE:
        return None
    target: str | None = record.policy["dead_letter"]
    # The target may be the dead-letter queue of this queue, where the dead letters are already.
    return None if target == names.dead_letter_name(record.name) else target
