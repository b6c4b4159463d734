"""A link on which a client sends to a router, and messages for a later time wait until then.

A message with a time in the annotation `x-opt-scheduled-enqueue-time` that has not come yet is stored in
ROUTER/$scheduled (namespace/scheduled.py), and gateways route it when it is due. All others are routed at
once. Each consecutive part of a batch with messages of one kind becomes a batch of its own. A hook decides
for which clients this is done (hooks.py), as each message has to be searched for the annotation.
"""

import logging
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.events import Transfers
from lightrail.amqp.sections import decode_annotations
from lightrail.amqp.values import DecodeError
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.frontend.links.routed import OneOutcome, RoutedBatch
from lightrail.frontend.links.routing import RouterLink
from lightrail.model import conditions, names
from lightrail.model.policy import Role
from lightrail.namespace.router_plan import Group, Plan, Routed
from lightrail.namespace.scheduled import scheduled_queue
from lightrail.namespace.statuses import ServiceError
from lightrail.shard_client.sending.lanes import Load
from lightrail.shard_client.sending.window import Attributes
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

log = logging.getLogger("lightrail.frontend.links.scheduling")

ANNOTATION: Final = "x-opt-scheduled-enqueue-time"
"""Annotation with the time of a scheduled message (queue/order/delays.py)."""
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


class SchedulingRouterLink(RouterLink):
    """One incoming link (the client sends) bound to a router that messages may be scheduled for."""

    __slots__ = ("_is_creating", "_scheduled")

    def __init__(
        self, connection: "ClientConnection", link: Any, *, number: int, router: str, label: str = ""
    ) -> None:
        super().__init__(connection, link, number=number, router=router, label=label)
        self._scheduled = names.scheduled_name(router)
        self._is_creating = False
        """Whether the queue of scheduled messages is being created."""

    def _accept(self, event: Transfers, now_ms: int, whole: OneOutcome | None = None) -> None:
        parts = _parts(event, now_ms, is_one=whole is not None)
        if whole is not None:
            whole.outstanding += len(parts) - 1
        for part, is_scheduled in parts:
            if is_scheduled:
                self._schedule(part, now_ms, whole)
            else:
                super()._accept(part, now_ms, whole)

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
            return super()._routed(batch, plan)
        if self._frontend.directory.get(self._scheduled).role is not Role.QUEUE:
            if not self._is_creating:
                self._is_creating = True
                self._frontend.spawn(self._create())
            return None
        return Routed([Group(frozenset((self._scheduled,)), list(range(batch.count)), batch.payloads)], ())

    def _may_wait(self, batch: RoutedBatch, plan: Plan, now_ms: int) -> bool:
        return not isinstance(batch, ScheduledBatch) and super()._may_wait(batch, plan, now_ms)

    def _refused(self, load: Load, refusal: Refusal) -> None:
        if isinstance(load.batch, ScheduledBatch):
            self._fail(load, refusal)
        else:
            super()._refused(load, refusal)

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
        self.go_on()


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
