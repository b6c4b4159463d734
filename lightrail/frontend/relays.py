"""A link that sends to a connection point: its messages go straight to a listener, whose credit and outcomes
come back; nothing is stored.

The client's credit is what the listeners have given, told by GRANT; no window of ours is added. When the
shard goes away, whatever has no outcome is released: the listener may have got it, but nobody will ever say.
"""

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from lightrail.amqp.events import ACCEPTED, RELEASED, Transfers
from lightrail.amqp.performatives import AmqpError, Modified, Rejected
from lightrail.amqp.sections import decode_header
from lightrail.amqp.types import Symbol, decode
from lightrail.wire.bodies import ProducerOpen, Refusal, SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode, enqueue, frame
from lightrail.wire.links import Producer

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.wire.owner import Owner


class Passing:
    """A batch on its way to a listener."""

    __slots__ = ("count", "first_id", "open", "settled", "size")

    def __init__(self, first_id: int, count: int, size: int, settled: bool) -> None:
        self.first_id = first_id
        self.count = count
        self.size = size
        self.settled = settled
        self.open = count
        """Messages without an outcome."""


class RelayLink(Producer):
    """One incoming link (the client sends) bound to a connection point."""

    __slots__ = (
        "_attached",
        "_base",
        "_closed",
        "_connection",
        "_label",
        "_limit",
        "_link",
        "_name",
        "_next",
        "_owner",
        "_passing",
        "_sent",
    )

    def __init__(
        self,
        connection: "ClientConnection",
        link: "Link",
        owner: "Owner",
        *,
        number: int,
        name: str,
        label: str = "",
    ) -> None:
        self.number = number
        self._connection = connection
        self._link = link
        self._owner = owner
        self._name = name
        self._label = label
        self._attached = False
        self._closed = False
        self._sent = 0
        """Messages that came, over the life of the link."""
        self._base = 0
        """How many had come when it was last opened at the shard, which counts from there."""
        self._limit = 0
        self._next = 1
        self._passing: dict[int, Passing] = {}

    # --- from the client -------------------------------------------------------------------------------

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """A batch came: it goes to the shard as one frame."""
        payloads = event.payloads
        count = len(payloads)
        header = decode_header(event.head)
        ends = array("I", accumulate(map(len, payloads)))
        size = ends[-1]
        number = self._next
        self._next = number + 1
        self._sent += count
        self._passing[number] = Passing(event.first_delivery_id, count, size, event.settled)
        frontend = self._connection.frontend
        frontend.counts.messages_received += count
        frontend.counts.message_bytes_received += size
        frontend.intake.took(self._connection, size)
        self._owner.post(
            enqueue(
                self.number,
                self._owner.epoch,
                number,
                ends.tobytes(),
                payloads,
                durable=header.durable,
                afresh=True,
                priority=header.priority,
                expires_at_ms=_expiry(header.ttl, event.absolute_expiry_ms, now_ms),
                message_format=event.message_format,
                size=size,
            )
        )

    # --- from the shard --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Opens this relay at the shard; what has no outcome will never get one."""
        for number in list(self._passing):
            self._end(number, RELEASED)
        self._base = self._limit = self._sent
        if self._attached and not self._closed and self._link.credit:
            self._link.grant(0)
            self._connection.touch()
        if self._closed:
            return
        self._owner.post(
            frame(
                Kind.PRODUCER_OPEN,
                link=self.number,
                epoch=self._owner.epoch,
                body=ProducerOpen(self._name, relay=True, label=self._label).encode(),
            )
        )

    def ready(self) -> None:
        """The shard took the relay: the attach is answered; credit comes when there is a listener."""
        if not self._closed and not self._attached:
            self._attached = True
            self._connection.accept_incoming(self._link)
            self._grant()

    def granted(self, limit: int) -> None:
        """The listeners take messages numbered below `limit`, counted since it was opened at the shard."""
        self._limit = self._base + limit
        self._grant()

    def outcome(self, number: int, first: int, count: int, code: int, detail: SettleDetail) -> None:
        """What a listener made of some messages of a batch."""
        batch = self._passing.get(number)
        if batch is None:
            return
        self._settle(batch.first_id + first, count, _state(code, detail), batch.settled)
        counts = self._connection.frontend.counts
        if code == OutcomeCode.ACCEPTED:
            counts.messages_accepted += count
        else:
            counts.messages_refused += count
        batch.open -= count
        if batch.open <= 0:
            del self._passing[number]
            self._answered(batch)

    def answered(self, number: int, count: int) -> None:
        """Whole batches were accepted."""
        for each in range(number, number + count):
            self._end(each, ACCEPTED)

    def refused(self, number: int, refusal: Refusal) -> None:
        """The shard could not pass a batch on."""
        error = AmqpError(condition=Symbol(refusal.condition), description=refusal.description)
        self._end(number, Rejected(error=error))

    def gone(self, refusal: Refusal) -> None:
        """The shard will not have this relay (any more)."""
        for number in list(self._passing):
            self._end(number, RELEASED)
        if not self._closed:
            self._closed = True
            self._connection.refuse_link(self._link, self._attached, refusal)

    def give_up(self) -> None:
        """The shard is away for too long: what has no outcome will hardly get one."""
        for number in list(self._passing):
            self._end(number, RELEASED)
        self._limit = self._sent
        self._grant()

    # --- the end ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """The client's link is gone, and with it whoever waits for outcomes."""
        if not self._closed:
            self._closed = True
            for number in list(self._passing):
                self._end(number, RELEASED)
            self._owner.close_producer(self.number)

    def _grant(self) -> None:
        if not self._attached or self._closed or self._connection.frontend.stopping:
            return
        credit = max(0, self._limit - self._sent)
        if credit != self._link.credit:
            self._link.grant(credit)
            self._connection.touch()

    def _end(self, number: int, state: Any) -> None:
        batch = self._passing.pop(number, None)
        if batch is None:
            return
        # Some of it may have its outcome already; the engine passes over what is settled.
        self._settle(batch.first_id, batch.count, state, batch.settled)
        counts = self._connection.frontend.counts
        if state is ACCEPTED:
            counts.messages_accepted += batch.open
        else:
            counts.messages_refused += batch.open
        self._answered(batch)

    def _settle(self, first: int, count: int, state: Any, settled: bool) -> None:
        if not settled and not self._closed:
            self._link.settle(first, first + count - 1, state)
            self._connection.touch()

    def _answered(self, batch: Passing) -> None:
        self._connection.frontend.intake.answered(self._connection, batch.size)


def _state(code: int, detail: SettleDetail) -> Any:
    """The outcome as the sender is told it (messaging 3.4)."""
    if code == OutcomeCode.ACCEPTED:
        return ACCEPTED
    if code == OutcomeCode.RELEASED:
        return RELEASED
    if code == OutcomeCode.REJECTED:
        if not detail.condition:
            return Rejected()
        return Rejected(error=AmqpError(condition=Symbol(detail.condition), description=detail.description))
    annotations = _annotations(detail.annotations) if detail.annotations else None
    return Modified(
        delivery_failed=detail.delivery_failed,
        undeliverable_here=detail.undeliverable_here,
        message_annotations=annotations,
    )


def _annotations(encoded: str) -> Any:
    data = bytes.fromhex(encoded)
    return decode(data, 0, len(data))[0]


def _expiry(ttl: int | None, absolute_ms: int | None, now_ms: int) -> int:
    """The earlier of both ends of a message (messaging 3.2.1, 3.2.4), 0 for never."""
    ends = [now_ms + ttl] if ttl is not None else []
    if absolute_ms is not None:
        ends.append(max(absolute_ms, 1))
    return min(ends, default=0)
