"""Receiving link: the state of one link on which a client receives from a queue, at the queue's shard.

Theory. A receiving link has one consumer in the queue's machine, from its attach to its end. The consumer has
the unsettled deliveries, so the link lasts as long as these may be settled by whom they were delivered to,
whatever happens to the connection and to the queue meanwhile:

- Its client has it open through a frontend (ATTACHED). Only now does its consumer get messages.
- Its queue is frozen, because it is about to move (AWAY). The frontend was sent away, and nothing changes.
- Its queue is served here: it moved here, or a move was given up (AWAITED). The frontend opens the link again
  with `resume`, and goes on. One that only settles or closes finds its deliveries as well. That is awaited
  for limits.PEER_SILENCE_MS, from when the queue is served.
- Its client has ended it, or was lost, and may resume it (SUSPENDED; transport 2.6.13). The client's next
  attach takes it over at any frontend: it is found by the digits of the client's link, and awaited for as
  long as the client asked for. A durable one (durable_receivers.py) begins here after a restart of the shard.
- Its deliveries have returned to the queue, or left with it (ENDED).

    ATTACHED, AWAITED            --SUSPEND--> SUSPENDED  the frontend's link has ended; see above
    AWAITED, SUSPENDED           --ATTACH---> ATTACHED   a frontend opens the link
    ATTACHED, AWAITED, SUSPENDED --FREEZE---> AWAY       the queue is frozen
    AWAY                         --SERVE----> AWAITED    the queue is served here again
    ATTACHED, AWAITED, SUSPENDED --END------> ENDED      the machine has detached the consumer
    AWAY                         --END------> ENDED      the queue is at another shard, or deleted

A client's link that was suspended when its queue was frozen is awaited like the others, and suspended anew
when that time has ended: its time begins again. (A frontend can't open it: its key is that of a link that has
ended. Frames that followed the queue from its former shard still find it.)

The module is pure. `receiving_links.py` applies the events, and carries out their consequences.
The outcomes in their frames are read here as well (`outcome_of`).
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from lightrail.journal.record import DeliveryRun
from lightrail.model.links import Ending
from lightrail.shard.effects.peers import Consumer
from lightrail.shard.queue.values import commands
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.bodies import ConsumerOpen, SettleDetail
from lightrail.wire.frames import HEADER_SIZE, Part


def outcome_of(code: int, detail: SettleDetail) -> commands.Outcome:
    """The outcome of a frame."""
    return commands.Outcome(
        commands.OutcomeKind(code),
        detail.condition,
        detail.description,
        detail.delivery_failed,
        detail.undeliverable_here,
        bytes.fromhex(detail.annotations) if detail.annotations else None,
        detail.deferred,
    )


def outcome_in(part: Part, code: int) -> commands.Outcome:
    """The outcome in a SETTLE frame; `code` is the one in its header."""
    if code == 0:
        return commands.ACCEPTED
    body = part[HEADER_SIZE:]
    return outcome_of(code, SettleDetail.decode(body) if body else SettleDetail())


Key = tuple[int, int]
"""Boot of the frontend, number of the link."""


class Origin(NamedTuple):
    """What a queue's former shard, or the store, knows of one of its links."""

    key: Key
    opened: ConsumerOpen
    has_ended: bool = False
    """No frame of the frontend's link can come any more; its client may resume it."""


class ReceivingState(Enum):
    """Who has a receiving link; see the theory above."""

    ATTACHED = "attached"
    AWAY = "away"
    AWAITED = "awaited"
    SUSPENDED = "suspended"
    ENDED = "ended"


class LinkEvent(Enum):
    """An event that changes the state of a receiving link."""

    ATTACH = "attach"
    SUSPEND = "suspend"
    FREEZE = "freeze"
    SERVE = "serve"
    END = "end"


TRANSITIONS: Final[Mapping[tuple[ReceivingState, LinkEvent], ReceivingState]] = MappingProxyType(
    {
        (ReceivingState.ATTACHED, LinkEvent.SUSPEND): ReceivingState.SUSPENDED,
        (ReceivingState.ATTACHED, LinkEvent.FREEZE): ReceivingState.AWAY,
        (ReceivingState.ATTACHED, LinkEvent.END): ReceivingState.ENDED,
        (ReceivingState.AWAY, LinkEvent.SERVE): ReceivingState.AWAITED,
        (ReceivingState.AWAY, LinkEvent.END): ReceivingState.ENDED,
        (ReceivingState.AWAITED, LinkEvent.ATTACH): ReceivingState.ATTACHED,
        (ReceivingState.AWAITED, LinkEvent.SUSPEND): ReceivingState.SUSPENDED,
        (ReceivingState.AWAITED, LinkEvent.FREEZE): ReceivingState.AWAY,
        (ReceivingState.AWAITED, LinkEvent.END): ReceivingState.ENDED,
        (ReceivingState.SUSPENDED, LinkEvent.ATTACH): ReceivingState.ATTACHED,
        (ReceivingState.SUSPENDED, LinkEvent.FREEZE): ReceivingState.AWAY,
        (ReceivingState.SUSPENDED, LinkEvent.END): ReceivingState.ENDED,
    }
)
"""The next state for each state and event; missing pairs are refused."""


class LinkStateError(Exception):
    """An event that the state of a receiving link does not allow."""


class ReceivingLink:
    """One receiving link at its queue.

    Args:
        id: number of its consumer in the queue's machine, never used twice.
        origin: of a queue that is not served yet: then the link is AWAY. Otherwise it is ATTACHED.
    """

    __slots__ = (
        "consumer",
        "ending",
        "has_ended",
        "id",
        "key",
        "opened",
        "queue",
        "recorded",
        "state",
        "suspended",
    )

    def __init__(self, queue: Queue, id: int, origin: Origin, consumer: Consumer | None = None) -> None:
        self.queue = queue
        self.id = id
        self.key = origin.key
        """Of the frontend's link that has it, or had it last; maybe at the queue's former shard."""
        self.opened = origin.opened
        """Its latest opening."""
        self.has_ended = origin.has_ended
        """Whether no frame of the frontend's link can come any more."""
        self.state = ReceivingState.AWAY if consumer is None else ReceivingState.ATTACHED
        self.consumer = consumer
        """The frontend's link while it is ATTACHED; also while it is AWAY, if it was attached before."""
        self.suspended = 0
        """Unsettled deliveries when it was suspended."""
        self.recorded: list[DeliveryRun] | None = None
        """Its deliveries according to the records, if it is durable (durable_receivers.py)."""
        self.ending = Ending.BY_BROKER
        """How its frontend's link ended, as far as this shard knows: with a frontend or a move by the
        broker."""

    @property
    def is_waiting(self) -> bool:
        """Whether a frontend may take it over."""
        return self.state is ReceivingState.AWAITED or self.state is ReceivingState.SUSPENDED

    def apply(self, event: LinkEvent) -> None:
        """Changes the state. Raises LinkStateError: nothing has changed, as the state refuses the event."""
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise LinkStateError(f"expected an event that {self.state.value} allows, found {event.value}")
        self.state = after
