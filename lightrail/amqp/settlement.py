"""The deliveries of a session: ids, unsettled ones, what dispositions settle (transport 2.6.12)."""

from typing import TYPE_CHECKING, Any, NamedTuple

from lightrail.amqp import frames
from lightrail.amqp.errors import LinkProtocolError, SessionProtocolError
from lightrail.amqp.events import ACCEPTED, RELEASED, Outcome, Retire, SenderSettled, Transfers
from lightrail.amqp.link import ATTACHED
from lightrail.amqp.link_endpoint import LinkEndpoint
from lightrail.amqp.performatives import Accepted, Released, TransactionalState
from lightrail.amqp.unsettled import WIRE, Range, Unsettled, unwrap
from lightrail.amqp.windows import Windows
from lightrail.model import conditions, limits

if TYPE_CHECKING:
    from lightrail.amqp.connection_endpoint import ConnectionEndpoint


class Settlement(Windows):
    """The part of a session that numbers deliveries and settles them."""

    __slots__ = ("incoming", "next_delivery_id", "next_incoming_delivery", "outgoing", "stale")

    def __init__(self, connection: "ConnectionEndpoint", channel: int) -> None:
        super().__init__(connection, channel)
        self.incoming: Unsettled[LinkEndpoint] = Unsettled()
        self.outgoing: Unsettled[LinkEndpoint] = Unsettled()
        self.next_delivery_id = connection.settings.initial_delivery_id
        """The unwrapped id of our next delivery."""
        self.next_incoming_delivery: int | None = None
        """The lowest unwrapped id that the peer's next delivery may have; None before its first."""
        self.stale = b""
        """The state, encoded, that answers a disposition of a receiver that waits to be settled, and whose
        deliveries are settled already, all of them; b"" to pass it over."""

    def is_new_delivery(self, wire: int) -> bool:
        """Whether no delivery with this id has begun yet."""
        expected = self.next_incoming_delivery
        return expected is None or unwrap(wire, expected) >= expected

    def begin_delivery(self, wire: int) -> int:
        """Count a delivery that begins; returns its unwrapped id. Ids only rise in a session (2.6.12)."""
        expected = self.next_incoming_delivery
        if expected is None:
            self.next_incoming_delivery = wire + 1
            return wire
        delivery_id = unwrap(wire, expected)
        if delivery_id < expected:
            raise SessionProtocolError(
                conditions.INVALID_FIELD,
                f"expected delivery-id {expected & WIRE} or a later one, found {wire} again",
            )
        self.next_incoming_delivery = delivery_id + 1
        return delivery_id

    def repeat_delivery(self, wire: int) -> int:
        """The unwrapped id of a delivery that repeats an earlier id: see ReceivingLink.allow_repeats."""
        return unwrap(wire, self.next_incoming_delivery or 0)

    def deliver(
        self,
        link: LinkEndpoint,
        first: int,
        payloads: list[bytes],
        settled: bool,
        second: bool,
        message_format: int,
        head: bytes,
        expiry: int | None,
        tags: list[bytes] | None = None,
        *,
        earliest: int | None = None,
        mixed: bool = False,
        pieces: list[bytes | memoryview] | None = None,
        txn_id: bytes | None = None,
        shift: int = 0,
    ) -> None:
        """Remember unsettled deliveries, and make a Transfers event of complete ones, or extend the last.

        The deliveries are counted already. `expiry` is their latest absolute-expiry-time, `earliest` their
        earliest where it differs. `pieces` are the parts of one message whose payload is its beginning only.
        `shift` is that of their delivery-tags (tags.py).
        """
        if earliest is None:
            earliest = expiry
        if not settled:
            self.incoming.add(link, first, first + len(payloads) - 1, shift, second)
        events = self.connection.events
        if pieces is not None:
            events.append(
                Transfers(
                    link, first, [], settled, message_format, head, expiry, tags, pieces=pieces, txn_id=txn_id
                )
            )
            return
        if events:
            # An event becomes one batch, up to the journal: what it says of its messages (settled, header,
            # expiry, transaction) has to be true of each.
            newest = events[-1]
            if (
                type(newest) is Transfers
                and newest.link is link
                and newest.pieces is None
                and newest.first_delivery_id + len(newest.payloads) == first
                and newest.settled is settled
                and newest.message_format == message_format
                and newest.head == head
                and newest.txn_id == txn_id
                and newest.expires_near(expiry, earliest)
            ):
                newest.payloads += payloads
                newest.mixed |= mixed
                if tags is not None and newest.tags is not None:
                    newest.tags += tags
                return
        found = Transfers(link, first, payloads, settled, message_format, head, expiry, tags, mixed, earliest)
        found.txn_id = txn_id
        events.append(found)

    def write_disposition(self, receiver: bool, first: int, last: int, settled: bool, state: bytes) -> None:
        """Write our disposition for unwrapped ids first..last; `state` is encoded."""
        self.connection.output.append(
            frames.disposition(self.channel, receiver, first & WIRE, last & WIRE, settled, state)
        )

    def on_disposition(self, receiver: bool, first: int, last: int, settled: bool, state: Any) -> None:
        """Apply the peer's disposition for wire ids first..last.

        Settled and unknown ids are passed over, except in a transaction, which must not be committed without
        them: see Retire; and see `stale`.
        """
        if receiver:
            unsettled = self.outgoing
            near = self.next_delivery_id
        else:
            unsettled = self.incoming
            near = self.next_incoming_delivery or 0
        # Near what was numbered last; and `last` near `first`, so that a range across the wrap stays a range.
        low = unwrap(first, near)
        high = unwrap(last, low)
        if high < low:
            raise SessionProtocolError(
                conditions.INVALID_FIELD,
                f"expected a disposition whose last is not before its first, found {first}..{last}",
            )
        # Small ones, as most are, spare the loop and the count of work: they never exceed a turn.
        if high - low >= 100:
            self.settle_range(receiver, low, high, settled, state)
        elif receiver:
            self._outcome(low, high, settled, state)
        elif settled:
            for part in unsettled.take(low, high):
                self.connection.events.append(SenderSettled(part.link, part.first, part.last))

    def settle_range(self, receiver: bool, low: int, high: int, settled: bool, state: Any) -> None:
        """Apply a disposition for unwrapped ids low..high in pieces.

        What exceeds the work of a turn stays in `rest` of the connection.
        """
        connection = self.connection
        while True:
            if receiver:
                found = self._outcome(low, high, settled, state)
            elif settled:
                found = self.incoming.take(low, high)
                for part in found:
                    connection.events.append(SenderSettled(part.link, part.first, part.last))
            else:
                return
            if not found:
                return
            count = found[-1].last - found[0].first + 1
            # A disposition is a few bytes and may settle millions: its work counts by ranges and deliveries,
            # so that other connections get their turn (ADR 21).
            connection.work -= (len(found) >> 2) + (min(count, limits.SETTLED_AT_ONCE) >> 5)
            low = found[-1].last + 1
            if low > high or (len(found) < limits.SETTLED_RANGES_AT_ONCE and count < limits.SETTLED_AT_ONCE):
                return
            if connection.work <= 0:
                connection.rest = DispositionRest(self, receiver, low, high, settled, state)
                return

    def _refuse_transaction(
        self, low: int, high: int, state: TransactionalState
    ) -> list[Range[LinkEndpoint]]:
        """Detach links whose deliveries get an outcome in an undeclared transaction (transactions 4.4.3)."""
        found = self.outgoing.find(low, high)
        for part in found:
            if part.link.state == ATTACHED:
                part.link.fail(
                    LinkProtocolError(
                        conditions.TRANSACTION_UNKNOWN_ID,
                        f"expected a transaction that was declared, found transaction {state.txn_id!r}",
                    )
                )
        return found

    def _outcome(self, low: int, high: int, settled: bool, state: Any) -> list[Range[LinkEndpoint]]:
        # One object for each state without fields, so that neighbours are joined by identity below.
        if type(state) is Accepted:
            state = ACCEPTED
        elif type(state) is Released:
            state = RELEASED
        elif type(state) is TransactionalState:
            settings = self.connection.settings
            if not settings.transactions:
                return self._refuse_transaction(low, high, state)
            if settings.is_server:
                return self._retire(low, high, settled, state)
        found = self.outgoing.take(low, high) if settled else self.outgoing.find(low, high)
        if not found and self.stale and not settled and high < self.next_delivery_id:
            self.write_disposition(False, low, high, True, self.stale)
        events = self.connection.events
        for part in found:
            # The caller knows deliveries by the link's own numbers, which dispositions of several links in
            # one range do not share.
            first = part.first - part.shift
            last = part.last - part.shift
            if events:
                newest = events[-1]
                if (
                    type(newest) is Outcome
                    and newest.link is part.link
                    and newest.last + 1 == first
                    and newest.state is state
                    and newest.settled is settled
                ):
                    newest.last = last
                    continue
            events.append(Outcome(part.link, first, last, state, settled))
        return found

    def _retire(
        self, low: int, high: int, settled: bool, state: TransactionalState
    ) -> list[Range[LinkEndpoint]]:
        found = self.outgoing.take(low, high) if settled else self.outgoing.find(low, high)
        count = sum(part.last - part.first + 1 for part in found)
        if count >= limits.SETTLED_AT_ONCE or len(found) >= limits.SETTLED_RANGES_AT_ONCE:
            # The others are found in the next step.
            high = found[-1].last
        outcomes: list[Outcome] = []
        missing: list[tuple[int, int]] = []
        at = low
        for part in found:
            if at < part.first:
                missing.append((at, part.first - 1))
            at = part.last + 1
            outcomes.append(
                Outcome(part.link, part.first - part.shift, part.last - part.shift, state, settled)
            )
        if at <= high:
            missing.append((at, high))
        self.connection.events.append(Retire(self, low, high, state, outcomes, missing))
        return found


class DispositionRest(NamedTuple):
    """The part of a disposition that exceeds the work of a turn, by unwrapped ids."""

    session: Settlement
    receiver: bool
    low: int
    high: int
    settled: bool
    state: Any
