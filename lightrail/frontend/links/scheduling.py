"""Links on which messages for a later time wait until then: to a router, and to a queue.

To a router: a message with a time in the annotation `x-opt-scheduled-enqueue-time` that has not come yet is
stored in ROUTER/$scheduled (namespace/scheduled.py), and gateways route it when it is due. All others are
routed at once. Each consecutive part of a batch with messages of one kind becomes a batch of its own. A hook
decides for which clients this is done (hooks.py), as each message has to be searched for the annotation.

To a queue, for clients that announce messages with a delay (capability DELAYED_DELIVERY): a queue delays
messages if its policy has `delay`, which costs an index of all its messages. Clients of JMS request a delay
without a policy. So the first message with a delay on such a link sets the field, as the first use of a name
makes it a queue (ADR 43). Until the queue's shard has the new policy, this message and those behind it wait
here; without the capability messages are not examined.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.events import Transfers
from lightrail.amqp.sections import decode_annotations
from lightrail.amqp.survey import survey
from lightrail.amqp.values import DecodeError, Symbol
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.frontend.links.outcomes import rejected
from lightrail.frontend.links.routed import OneOutcome, RoutedBatch
from lightrail.frontend.links.routing import RouterLink
from lightrail.frontend.links.terminus import symbols
from lightrail.frontend.links.transfers import ProducerLink
from lightrail.model import conditions, names
from lightrail.model.policy import InvalidPolicyError, Policy, Role
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.router_plan import CopyGroup, Plan, Routed
from lightrail.namespace.scheduled import scheduled_queue
from lightrail.namespace.statuses import ChangedError, ServiceError
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.shard_client.sending.lanes import Load
from lightrail.shard_client.sending.window import Attributes
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.engine import Frontend

DELAY_TRIES: Final[int] = 100
"""How often a shard is asked whether a queue delays messages yet, and how often a change of a policy that
conflicts with another change is repeated."""
DELAY_AGAIN_MS: Final[int] = 20
"""Pause before each further of these requests; a shard reads changes twenty times a second."""

log = logging.getLogger("lightrail.frontend.links.scheduling")

DELAYED_DELIVERY: Final = Symbol("DELAYED_DELIVERY")
"""Qpid JMS sends with a delivery delay only if this capability is offered."""
NO_DELAY: Final = "a router delays no messages: send a message with a delay to a queue"
_DELIVERY_MARK: Final = b"x-opt-delivery-"
"""Common prefix of both annotations (queue/order/keyed.py). A message that has it in another place makes
the queue delay messages unnecessarily, and is not delayed."""


def may_delay(link: "Link") -> bool:
    """Whether the client announced that messages of this link may have a delay."""
    attach = link.attach
    return attach is not None and DELAYED_DELIVERY in symbols(attach.desired_capabilities)


def asks_for_delay(messages: Iterable[bytes]) -> bool:
    """Whether a message seems to request a delay; annotations are at the beginning of each message."""
    return any(_DELIVERY_MARK in message for message in messages)


@dataclass(slots=True, eq=False, repr=False)
class DelayingProducer(ProducerLink):
    """One incoming link (the client sends) to a queue, whose messages may have a delay."""

    _held_events: list[Transfers] = field(default_factory=list)
    """Batches that wait until the queue delays messages."""
    _held_count: int = 0
    """Number of messages in these batches."""
    _without_delay: bytes | None = None
    """Header and annotations of a message without a delay, and the descriptor of its properties."""

    @property
    def unanswered(self) -> int:
        """See IncomingLink; includes the messages that wait here."""
        return self._unanswered_messages + self._held_count

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """Sends a batch to the shard, at once unless it has to wait."""
        if not self._held_events:
            if not self._asks_for_delay(event) or self._frontend.directory.get(self.queue).policy["delay"]:
                ProducerLink.transfers(self, event, now_ms)
                return
            self._frontend.spawn(self._make_delay())
        self._held_events.append(event)
        self._held_count += _count(event)
        self._intake.received(self._connection, _size(event))

    def ended(self, refusal: Refusal) -> None:
        """See Producer: messages that wait here are rejected for the same reason."""
        for event in self._take_held():
            self._reject(event, refusal)
        ProducerLink.ended(self, refusal)

    def close(self) -> None:
        """See ProducerLink; messages that wait here are sent when the queue delays messages."""
        if self._held_events:
            self._closed = True
        else:
            ProducerLink.close(self)

    def _asks_for_delay(self, event: Transfers) -> bool:
        """See `asks_for_delay`; messages that begin like a message without a delay have none either."""
        known = self._without_delay
        if known and event.pieces is None and all(each.startswith(known) for each in event.payloads):
            return False
        if asks_for_delay(_messages(event)):
            return True
        if event.pieces is None:
            first = event.payloads[0]
            self._without_delay = first[: survey(first).properties]
        return False

    # --- the policy ------------------------------------------------------------------------------------

    async def _make_delay(self) -> None:
        """Sets the field of the policy, and sends the waiting messages, or rejects those with a delay."""
        problem: Refusal | None = None
        try:
            await make_delay(self._frontend, self.queue)
        except (ServiceError, InvalidPolicyError) as refused:
            problem = Refusal(conditions.PRECONDITION_FAILED, str(refused))
        except (CoordinatorError, ShardDownError, ShardRefusedError) as error:
            log.warning("%s can't be made to delay messages: %s", self.queue, error)
            text = f"{self.queue} can't be made to delay messages now: {error}; try again"
            problem = Refusal(conditions.INTERNAL_ERROR, text)
        except Exception:
            log.exception("%s could not be made to delay messages", self.queue)
            problem = Refusal(conditions.INTERNAL_ERROR, "internal error: the queue delays no messages")
        now_ms = self._frontend.now_ms()
        events = self._take_held()
        for event in events:
            if problem is not None and asks_for_delay(_messages(event)):
                self._reject(event, problem)
            else:
                ProducerLink.transfers(self, event, now_ms)
        if self._closed and events:
            ProducerLink.close(self)
        self._connection.touch()

    def _take_held(self) -> list[Transfers]:
        events, self._held_events, self._held_count = self._held_events, [], 0
        for event in events:
            self._intake.answered(self._connection, _size(event))
        return events

    def _reject(self, event: Transfers, refusal: Refusal) -> None:
        count = _count(event)
        self._counts.messages_refused += count
        if not event.settled and not self._closed:
            first, state = event.first_delivery_id, rejected(refusal.condition, refusal.description)
            self._link.answer(first, first + count - 1, state)


async def make_delay(frontend: "Frontend", queue: str) -> None:
    """Makes a queue delay messages that request it, and waits until its shard does.

    Raises ServiceError, InvalidPolicyError, CoordinatorError, ShardDownError, ShardRefusedError.
    """
    frontend.directory.refresh()
    tries = DELAY_TRIES
    while not (record := frontend.directory.get(queue)).policy["delay"]:
        policy = Policy.parse(record.policy.to_json() | {"delay": True})
        tries -= 1
        try:
            await frontend.service.change(ANYBODY, queue, policy, record.revision)
        except ChangedError:
            # Another process changed the policy at the same time, perhaps for the same reason.
            if not tries:
                raise
    for _ in range(DELAY_TRIES):
        if (await frontend.ask_shard(queue, "queue", {})).fields["delays"]:
            return
        await asyncio.sleep(DELAY_AGAIN_MS / 1000)
    raise ShardDownError(f"the shard of {queue} does not follow the change of its policy")


def _messages(event: Transfers) -> Iterable[bytes]:
    """The messages; of a message in pieces the first piece."""
    return event.payloads if event.pieces is None else (bytes(event.pieces[0]),)


def _count(event: Transfers) -> int:
    return 1 if event.pieces is not None else len(event.payloads)


def _size(event: Transfers) -> int:
    return sum(map(len, event.payloads if event.pieces is None else event.pieces))


ANNOTATION: Final = "x-opt-scheduled-enqueue-time"
"""Annotation with the time of a scheduled message (queue/order/keyed.py)."""
_MARK: Final = ANNOTATION.encode()


def due_ms(message: bytes) -> int:
    """The time for which a message is scheduled, in milliseconds since the epoch; 0 for none."""
    if _MARK not in message:
        return 0
    try:
        found: Any = decode_annotations(message).get(ANNOTATION)
    except (DecodeError, ValueError):
        # Only the header of a message is checked here: it is routed as it is.
        return 0
    return int(found) if isinstance(found, int) and not isinstance(found, bool) else 0


class ScheduledBatch(RoutedBatch):
    """A batch whose messages wait for their time."""

    __slots__ = ()


@dataclass(slots=True, eq=False, repr=False)
class SchedulingRouterLink(RouterLink):
    """One incoming link (the client sends) bound to a router that messages may be scheduled for."""

    _scheduled: str = field(init=False)
    _is_creating: bool = False
    """Whether the queue of scheduled messages is being created."""

    def __post_init__(self) -> None:
        RouterLink.__post_init__(self)
        self._scheduled = names.scheduled_name(self.router)

    def _accept(self, event: Transfers, now_ms: int, whole: OneOutcome | None = None) -> None:
        parts = _parts(event, now_ms, is_one=whole is not None)
        if whole is not None:
            whole.outstanding += len(parts) - 1
        for part, is_scheduled in parts:
            if is_scheduled:
                self._schedule(part, now_ms, whole)
            else:
                RouterLink._accept(self, part, now_ms, whole)

    def _schedule(self, event: Transfers, now_ms: int, whole: OneOutcome | None) -> None:
        durable, priority, _ = self._attributes(event, now_ms)
        size = sum(map(len, event.payloads))
        # The ttl begins when the message is due.
        batch = ScheduledBatch(event, size, Attributes(durable, priority, 0, 0), now_ms, whole)
        self._take(batch.count, size)
        if self._waiting or self._adrift or not self._route(batch, now_ms):
            self._waiting.append(batch)

    def _routed(self, batch: RoutedBatch, plan: Plan) -> Routed | None:
        if not isinstance(batch, ScheduledBatch):
            return RouterLink._routed(self, batch, plan)
        if self._frontend.directory.get(self._scheduled).role is not Role.QUEUE:
            if not self._is_creating:
                self._is_creating = True
                self._frontend.spawn(self._create())
            return None
        return Routed(
            [CopyGroup(frozenset((self._scheduled,)), list(range(batch.count)), batch.payloads)], ()
        )

    def _may_wait(self, batch: RoutedBatch, plan: Plan, now_ms: int) -> bool:
        return not isinstance(batch, ScheduledBatch) and RouterLink._may_wait(self, batch, plan, now_ms)

    def _refused(self, load: Load, refusal: Refusal) -> None:
        if isinstance(load.batch, ScheduledBatch):
            self._fail(load, refusal)
        else:
            RouterLink._refused(self, load, refusal)

    async def _create(self) -> None:
        """Creates the queue of scheduled messages, and sends the waiting batches or refuses the first."""
        problem: Refusal | None = None
        try:
            await scheduled_queue(self._frontend.service, self.router)
        except (ServiceError, names.InvalidNameError) as refused:
            problem = Refusal(conditions.PRECONDITION_FAILED, str(refused))
        except CoordinatorError as error:
            log.warning("%s can't be created: %s", self._scheduled, error)
            text = f"the queue {self._scheduled} can't be created now: {error}; try again"
            problem = Refusal(conditions.INTERNAL_ERROR, text)
        except Exception:
            log.exception("%s could not be created", self._scheduled)
            problem = Refusal(conditions.INTERNAL_ERROR, "internal error: the message can't be scheduled")
        self._is_creating = False
        if problem is not None and self._waiting:
            self._give_up(self._waiting.popleft(), problem)
        self.route_waiting()


def _parts(event: Transfers, now_ms: int, *, is_one: bool) -> list[tuple[Transfers, bool]]:
    """The consecutive parts of a batch, and whether the messages of each are scheduled.

    Args:
        is_one: the messages are those of one transfer, and have its delivery-id.
    """
    are_scheduled = [due_ms(message) > now_ms for message in event.payloads]
    if event.message_format or True not in are_scheduled:
        return [(event, False)]
    if False not in are_scheduled:
        return [(event, True)]
    found: list[tuple[Transfers, bool]] = []
    start = 0
    for index in range(1, event.count + 1):
        if index < event.count and are_scheduled[index] == are_scheduled[start]:
            continue
        part = Transfers(
            event.link,
            event.first_delivery_id + (0 if is_one else start),
            event.payloads[start:index],
            event.settled,
            event.message_format,
            event.head,
            event.absolute_expiry_ms,
            mixed=event.mixed,
            earliest_expiry_ms=event.earliest_expiry_ms,
        )
        found.append((part, are_scheduled[start]))
        start = index
    return found
