"""All forwarding of one gateway: transfers, queues that forward, dead letters, scheduled messages, pushes.

The shard of a queue puts dead letters into NAME/$dlq, on the same shard, in the same commit. A gateway
forwards them to the name in the queue's policy. A message for a router that is not due waits in
ROUTER/$scheduled, whose shard delivers it when it is due. A gateway routes it, and settles it when every
queue that the router chooses has stored it. An attempt that fails for some of them is repeated for those.

Every gateway forwards from all of these queues; several gateways share the work as consumers of one queue.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from lightrail.amqp.dead_letters import HOPS, REASON, count_of, history_of
from lightrail.amqp.sections import with_annotations
from lightrail.amqp.values import Symbol, UInt
from lightrail.gateway.forwarding.counts import ForwardingCounts
from lightrail.gateway.forwarding.forwarder import (
    ACCEPTED,
    Attempt,
    Forwarder,
    Pause,
    RepeatingForwarder,
    Roster,
    Settlement,
)
from lightrail.gateway.forwarding.next_queues import TOO_MANY_HOPS
from lightrail.gateway.forwarding.pushes import Pushers
from lightrail.gateway.forwarding.room import ForwardingRoom
from lightrail.gateway.forwarding.sink import NotSentError, Sink, due, moved, with_error
from lightrail.gateway.forwarding.transferring import QueueForwarders
from lightrail.gateway.forwarding.transfers import Transfers
from lightrail.gateway.http_client import Endpoints
from lightrail.gateway.messages.sending import Carried, NameSender
from lightrail.model import conditions, names
from lightrail.model.endpoint import Destinations
from lightrail.model.names import scheduled_router
from lightrail.model.policy import Role
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.records import Name
from lightrail.namespace.service import Service
from lightrail.shard_client.receiving.queue_consumer import Delivery
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode

log = logging.getLogger("lightrail.gateway.forwarding.forwarding")

DEAD_LETTERINGS_PLAIN: Final = 2
"""Dead-letterings of a message that gateways do not count: with these it is forwarded as it is."""
DEAD_LETTER_HOPS_MAX: Final[int] = 16
"""Times that a message is forwarded as a dead letter after those."""


@dataclass(eq=False, repr=False)
class Forwarders:
    """The forwarders of one kind, one for each queue that requires it; follows the directory."""

    directory: Directory
    shards: ShardConnections
    sink: Sink
    counts: ForwardingCounts
    room: ForwardingRoom
    pause: Pause = asyncio.sleep

    def __post_init__(self) -> None:
        self.roster: Roster[str] = Roster(self.shards, self.make)

    def make(self, queue: str, target: str, lost: Callable[[Forwarder], None]) -> Forwarder:
        """A forwarder from a queue to a name."""
        raise NotImplementedError

    def start(self) -> None:
        """Opens every forwarder that the namespace requires; `changed` follows later changes."""
        self.changed(record.name for record in self.directory.below(""))

    def changed(self, changed: Iterable[str]) -> None:
        """Follows names that may have been created or deleted, or whose policy may have changed."""
        raise NotImplementedError

    def close(self) -> None:
        self.roster.close()


class DeadLetterForwarder(RepeatingForwarder):
    """Sends the dead letters of one queue to another name."""

    def __init__(self, queue: str, target: str, host: Forwarders, lost: Callable[[Forwarder], None]) -> None:
        waiting = f"dead letters wait in {queue}, {target} refuses them"
        again = f"{target} accepts the dead letters of {queue} again"
        label = f"forwarder to {target}"
        super().__init__(queue, label, host.pause, lost, host.room, log=log, waiting=waiting, again=again)
        self._of = names.owner(queue)
        self._target = target
        self._sink = host.sink
        self._counts = host.counts

    def attempt(self, delivery: Delivery) -> Attempt:
        """Accepted once the target has stored the message; there is no other outcome.

        A message that has returned too often is set aside: the cycle goes through subscriptions, or was
        closed by several administrators at once.
        """
        message = moved(delivery)
        notes = history_of(message.message, message.message_format)
        hops = count_of(notes, HOPS) + 1 if count_of(notes) > DEAD_LETTERINGS_PLAIN else 0
        is_set_aside = hops > DEAD_LETTER_HOPS_MAX
        if hops:
            message = message._replace(message=self._noted(message.message, hops, is_set_aside=is_set_aside))

        async def send() -> Settlement | None:
            try:
                if is_set_aside:
                    problem = await self._sink.set_aside(self._of, message)
                else:
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

    def _noted(self, message: bytes, hops: int, *, is_set_aside: bool) -> bytes:
        notes: dict[Symbol, object] = {HOPS: UInt(hops)}
        if is_set_aside:
            why = f"the message was forwarded as a dead letter {hops - 1} times, which is the most"
            notes = {
                REASON: Symbol("rejected"),
                Symbol("x-opt-dead-letter-condition"): Symbol(TOO_MANY_HOPS),
                Symbol("x-opt-dead-letter-description"): why,
            }
            log.warning("a dead letter of %s is in %s: %s", self._of, names.transfer_name(self._of), why)
            return with_error(message, notes)
        return with_annotations(message, notes)


class DeadLetterForwarders(Forwarders):
    """A forwarder for each queue whose policy has `dead_letter`."""

    def make(self, queue: str, target: str, lost: Callable[[Forwarder], None]) -> Forwarder:
        return DeadLetterForwarder(queue, target, self, lost)

    def changed(self, changed: Iterable[str]) -> None:
        for name in changed:
            if not names.is_dead_letter(name):
                self.roster.want(names.dead_letter_name(name), _target(self.directory.find(name)))
        self.counts.forwarders = len(self.roster)


def _target(record: Name | None) -> str | None:
    if record is None or record.role is not Role.QUEUE:
        return None
    target: str | None = record.policy["dead_letter"]
    # The target may be the dead-letter queue of this queue, where the dead letters are already.
    return None if target == names.dead_letter_name(record.name) else target


class ScheduledForwarder(RepeatingForwarder):
    """Routes the scheduled messages of one router."""

    def __init__(self, queue: str, router: str, host: Forwarders, lost: Callable[[Forwarder], None]) -> None:
        waiting = f"messages that are due wait in {queue}"
        again = f"{router} accepts its scheduled messages again"
        label = f"schedule of {router}"
        super().__init__(queue, label, host.pause, lost, host.room, log=log, waiting=waiting, again=again)
        self._router = router
        self._shards = host.shards
        self._sink = host.sink
        self._counts = host.counts

    def attempt(self, delivery: Delivery) -> Attempt:
        """Accepted once every queue has stored the message; rejected if the router rejects it for good."""
        came_ms = self._shards.now_ms()
        message = due(delivery, came_ms)
        carried: Carried = set()

        async def route() -> Settlement | None:
            try:
                problem = await self._sink.route(self._router, message, carried, came_ms)
            except Exception as error:
                log.exception("routing a scheduled message of %s failed", self._router)
                problem = NotSentError(conditions.INTERNAL_ERROR, str(error) or type(error).__name__)
            if problem is None:
                self.note("")
                self._counts.scheduled_routed += 1
                return ACCEPTED
            self._counts.scheduled_refused += 1
            if problem.is_final:
                detail = SettleDetail(condition=problem.condition, description=problem.description)
                return OutcomeCode.REJECTED, detail
            self.note(str(problem))
            return None

        return route


class ScheduledForwarders(Forwarders):
    """A forwarder for each router with a queue of scheduled messages."""

    def make(self, queue: str, target: str, lost: Callable[[Forwarder], None]) -> Forwarder:
        return ScheduledForwarder(queue, target, self, lost)

    def changed(self, changed: Iterable[str]) -> None:
        for name in changed:
            router = scheduled_router(name)
            if router is not None:
                found = self.directory.find(name)
                is_queue = found is not None and found.role is Role.QUEUE
                self.roster.want(name, router if is_queue else None)
        self.counts.schedulers = len(self.roster)


class Forwarding:
    """Lives as long as the gateway, in its loop."""

    def __init__(
        self, service: Service, shards: ShardConnections, sender: NameSender, destinations: Destinations
    ) -> None:
        self.counts = ForwardingCounts()
        sink, room = Sink(service, sender), ForwardingRoom()
        self._directory = service.directory
        self._destinations = destinations
        self._endpoints = Endpoints(destinations)
        self.transfers = Transfers(service.directory, shards, sink, self.counts)
        self._dead_letters = DeadLetterForwarders(service.directory, shards, sink, self.counts, room)
        self._scheduled = ScheduledForwarders(service.directory, shards, sink, self.counts, room)
        self._queues = QueueForwarders(service, shards, sender.routers, self.counts, room)
        self._pushers = Pushers(service, shards, self._endpoints.post, self.counts, room)

    def start(self) -> None:
        """Starts the forwarders that the namespace requires now; `changed` follows its changes."""
        for each in self._directory.every_subscription():
            problem = self._destinations.problem(each.target) if each.push else None
            if problem is not None:
                log.error(
                    "subscription %s of %s is not pushed, and its messages become dead letters: %s",
                    each.id,
                    each.router,
                    problem,
                )
        self._dead_letters.start()
        self._scheduled.start()
        self._queues.start()
        self._pushers.start()

    def changed(self, changes: Changes) -> None:
        """Follows names, policies and subscriptions that changed."""
        self._dead_letters.changed(changes.names)
        self._scheduled.changed(changes.names)
        self._queues.changed(changes.names)
        self._pushers.changed(changes.routers | changes.names.keys())

    async def close(self) -> None:
        """Stops all forwarding; unsettled messages return to their queues."""
        self.transfers.close()
        self._dead_letters.close()
        self._scheduled.close()
        self._queues.close()
        self._pushers.close()
        await self._endpoints.close()
