"""The receiving end of a link: credit granted, transfers taken, deliveries put together and settled (2.6).

Credit that was given is never taken back in silence: a grant that is lower than the last one leaves `allowed`
as it was, since transfers may be on their way (2.6.7 leaves it to the receiver to take them). Past `allowed`
the link is detached with transfer-limit-exceeded.
"""

from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp import sections
from lightrail.amqp.delivery import WIRE, Assembly, unwrap
from lightrail.amqp.events import ACCEPTED, RELEASED, Drained
from lightrail.amqp.faults import ConnectionFault, LinkFault, LocalError
from lightrail.amqp.link import (
    ATTACHED,
    ATTACHING,
    DETACHING,
    SETTLE_FIRST,
    SETTLE_MIXED,
    SETTLE_SECOND,
    SETTLE_SETTLED,
    Link,
    encode_state,
    errant,
)
from lightrail.amqp.performatives import TransactionalState, Transfer
from lightrail.amqp.shapes import Shape, learn
from lightrail.amqp.survey import survey
from lightrail.amqp.values import DecodeError
from lightrail.model import conditions, limits

if TYPE_CHECKING:
    from lightrail.amqp.session import Session

_ALL: Final = 1 << 64
"""Above every delivery-id, unwrapped."""
BEGINNING_BYTES: Final = 4_096
"""Of a message in pieces, looked at for its header and whether it may expire."""
PROPERTIES_HEAD_BYTES: Final = 9
"""Constructor, size and count of a list: `survey` reads so far into the properties."""


class ReceivingLink(Link):
    """A link on which the peer sends."""

    __slots__ = (
        "allowed",
        "assembly",
        "head_known",
        "keeps_tags",
        "mixes_headers",
        "shape",
        "shapes",
        "takes_pieces",
    )

    def __init__(self, session: "Session", name: str) -> None:
        super().__init__(session, name, False)
        self.allowed = 0
        """Deliveries that the peer may still send by any credit that it ever was given."""
        self.assembly: Assembly | None = None
        """The delivery of several frames that is under way."""
        self.shape: Shape | None = None
        """What its transfers look like, once one has been read."""
        self.shapes: dict[bytes, Shape] = {}
        """The same for each header section of late, as messages of several priorities have."""
        self.head_known = b""
        """The header section that was decoded last: one that is equal needs no look."""
        self.keeps_tags = False
        self.mixes_headers = False
        self.takes_pieces = False

    def mix_headers(self) -> None:
        """Incoming: Transfers events may be mixed, from now on."""
        self.mixes_headers = True

    def take_pieces(self) -> None:
        """Incoming: Transfers events may have a message of several frames in pieces, from now on."""
        self.takes_pieces = True

    def keep_tags(self) -> None:
        """Incoming: Transfers events have the delivery-tags, from now on."""
        self.keeps_tags = True

    def release(self) -> None:
        """Let go of everything that is under way."""
        self._end_assembly()
        self.shape = None
        self.shapes.clear()
        self.session.connection.forget_shape(self)

    # --- credit ------------------------------------------------------------------------------------------

    def grant(self, credit: int, drain: bool = False, echo: bool = False) -> None:
        """Incoming: set the link-credit, counted from the deliveries that have come so far (2.6.7)."""
        if self.state == ATTACHING:
            raise LocalError(f"{self!r} is not accepted yet: no flow before the attach")
        if self.state != ATTACHED:
            return
        self.credit = credit
        self.drain = drain
        if credit > self.allowed:
            self.allowed = credit
        self.write_flow(drain, echo)

    def on_flow(
        self,
        delivery_count: int | None,
        link_credit: int | None,
        available: int | None,
        drain: bool,
        echo: bool,
    ) -> None:
        """The sender's flow state: what it skipped by drain, and what it has in store (2.6.7)."""
        if self.state == DETACHING:
            if self.is_errant:
                raise errant(self, "flow")
            return
        if delivery_count is not None:
            count = unwrap(delivery_count, self.delivery_count)
            skipped = count - self.delivery_count
            if skipped > 0:
                self.delivery_count = count
                self.credit = max(0, self.credit - skipped)
                self.allowed = max(0, self.allowed - skipped)
        if available is not None:
            self.available = available
        if self.drain and self.credit == 0 and not self.session.connection.settings.is_server:
            self.session.connection.events.append(Drained(self))
        if echo and self.state == ATTACHED:
            self.write_flow(self.drain)

    # --- transfers ---------------------------------------------------------------------------------------

    def on_transfer(self, transfer: Transfer, data: bytes, position: int, payload_at: int, stop: int) -> None:
        """A transfer frame data[position:stop] read by the complete decoder."""
        session = self.session
        wire = transfer.delivery_id
        if self.state == DETACHING:
            if wire is None or not session.is_new_delivery(wire):
                # The rest of a delivery whose beginning was the fault, or was dropped.
                return
            session.saw_delivery(wire)
            self.allowed -= 1
            if self.is_errant or self.allowed < -session.connection.settings.beyond_credit_max:
                raise errant(self, "transfer")
            return
        assembly = self.assembly
        if assembly is None:
            assembly = self._begin_delivery(transfer)
        else:
            self._check_continuation(assembly, transfer)
        if transfer.settled:
            assembly.settled = True
        if transfer.rcv_settle_mode is not None:
            if transfer.rcv_settle_mode == SETTLE_SECOND and self.rcv_settle_mode == SETTLE_FIRST:
                raise LinkFault(
                    conditions.INVALID_FIELD,
                    "expected rcv-settle-mode first, as negotiated for the link, found second in a transfer",
                )
            assembly.second = transfer.rcv_settle_mode == SETTLE_SECOND
        if isinstance(transfer.state, TransactionalState):
            raise LinkFault(
                conditions.TRANSACTION_UNKNOWN_ID,
                f"expected a transaction that was declared, found transaction {transfer.state.txn_id!r}",
            )
        if transfer.aborted:
            self._end_assembly()
            return
        size = assembly.size + stop - payload_at
        if self.max_message_size and size > self.max_message_size:
            raise LinkFault(
                conditions.MESSAGE_SIZE_EXCEEDED,
                f"expected messages of at most {self.max_message_size} bytes, found one of {size}"
                f" {'or more ' if transfer.more else ''}on link {self.name!r}",
            )
        if transfer.more:
            if stop - payload_at < limits.LARGE_PIECE_BYTES:
                assembly.parts.append(data[payload_at:stop])
            else:
                assembly.parts.append(memoryview(data)[payload_at:stop])
                session.connection.holds_views(self)
            assembly.size = size
            self.assembly = assembly
            self._hold(assembly, stop - payload_at + limits.FRAGMENT_OVERHEAD)
            return
        self._end_assembly()
        parts = assembly.parts
        single = not parts
        pieces = None
        if single:
            payload = data[payload_at:stop]
        else:
            parts.append(memoryview(data)[payload_at:stop])
            beginning = _beginning(parts[0], assembly.message_format) if self.takes_pieces else None
            if beginning is None:
                payload = b"".join(parts)
            else:
                payload, pieces = beginning, parts
        if assembly.resumed:
            return
        self._check_settled(assembly)
        head = b""
        expiry: int | None = None
        opening = None
        if assembly.message_format == 0:
            try:
                opening = survey(payload)
                head = payload[: opening.head_end]
                if head != self.head_known:
                    sections.decode_header(head)
                    self.head_known = head
                if opening.may_expire:
                    expiry = sections.attributes(payload)[3]
            except DecodeError as error:
                raise LinkFault(conditions.DECODE_ERROR, str(error)) from None
        session.deliver(
            self,
            assembly.delivery_id,
            [payload],
            assembly.settled,
            assembly.second,
            assembly.message_format,
            self.head_known if head else b"",
            expiry,
            [assembly.tag] if self.keeps_tags else None,
            pieces=pieces,
        )
        if (
            single
            and expiry is None
            and transfer.state is None
            and transfer.rcv_settle_mode is None
            and session.connection.settings.learn_shapes
        ):
            most = session.connection.settings.max_frame_size
            if self.max_message_size:
                most = min(most, payload_at - position + self.max_message_size)
            self.shape = learn(
                self,
                data,
                position,
                payload_at,
                opening,
                self.head_known if head else b"",
                assembly.settled,
                assembly.message_format,
                most,
            )
            session.connection.use_shape(self.shape)
            if self.shape is not None:
                self.shapes[self.shape.head] = self.shape
                if len(self.shapes) > limits.SHAPES_PER_LINK_MAX:
                    del self.shapes[next(iter(self.shapes))]

    def copy_views(self) -> None:
        """What was read is used up: see Assembly."""
        if self.assembly is not None:
            self.assembly.copy_views()

    def _hold(self, assembly: Assembly, more_bytes: int) -> None:
        """A part of a message is kept until its last frame comes; a connection may not have many such."""
        assembly.held_bytes += more_bytes
        connection = self.session.connection
        connection.unfinished_bytes += more_bytes
        if connection.unfinished_bytes > connection.settings.unfinished_bytes_max:
            raise ConnectionFault(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"expected at most {connection.settings.unfinished_bytes_max} bytes of messages that have not"
                f" ended, found {connection.unfinished_bytes}",
            )

    def _end_assembly(self) -> None:
        """The delivery under way has ended, one way or another."""
        if self.assembly is not None:
            self.session.connection.unfinished_bytes -= self.assembly.held_bytes
            self.assembly = None

    def _begin_delivery(self, transfer: Transfer) -> Assembly:
        """The first frame of a delivery: what it must carry (2.7.5), and whether credit allows it."""
        if transfer.delivery_id is None or transfer.delivery_tag is None:
            missing = "delivery-id" if transfer.delivery_id is None else "delivery-tag"
            raise LinkFault(
                conditions.INVALID_FIELD,
                f"expected {missing} in the first transfer of a delivery on link {self.name!r}, found null",
            )
        delivery_id = self.session.saw_delivery(transfer.delivery_id)
        if self.allowed <= 0 and self.allowed <= -self.session.connection.settings.beyond_credit_max:
            raise LinkFault(
                conditions.TRANSFER_LIMIT_EXCEEDED,
                f"expected no transfer on link {self.name!r} before more credit is granted, found delivery"
                f" {transfer.delivery_id}",
            )
        self.allowed -= 1
        self.delivery_count += 1
        if self.credit > 0:
            self.credit -= 1
        if self.available > 0:
            self.available -= 1
        assembly = Assembly(delivery_id, transfer.delivery_tag, transfer.message_format or 0)
        assembly.second = self.rcv_settle_mode == SETTLE_SECOND
        assembly.resumed = transfer.resume
        return assembly

    def _check_continuation(self, assembly: Assembly, transfer: Transfer) -> None:
        """What a continuation repeats it must not change (2.7.5)."""
        if transfer.delivery_id is not None and transfer.delivery_id != assembly.delivery_id & WIRE:
            self.session.saw_delivery(transfer.delivery_id)
            found, expected = f"delivery-id {transfer.delivery_id}", str(assembly.delivery_id & WIRE)
        elif transfer.delivery_tag is not None and transfer.delivery_tag != assembly.tag:
            found, expected = f"delivery-tag {transfer.delivery_tag!r}", repr(assembly.tag)
        elif transfer.message_format is not None and transfer.message_format != assembly.message_format:
            found, expected = f"message-format {transfer.message_format}", str(assembly.message_format)
        else:
            return
        raise LinkFault(
            conditions.NOT_ALLOWED,
            f"expected a continuation of the delivery under way on link {self.name!r} ({expected}),"
            f" found {found}",
        )

    def _check_settled(self, assembly: Assembly) -> None:
        """The sender keeps to the snd-settle-mode that it announced (2.7.5)."""
        mode = self.snd_settle_mode
        if mode == SETTLE_MIXED or assembly.settled is (mode == SETTLE_SETTLED):
            return
        expected, found = ("settled", "unsettled") if mode == SETTLE_SETTLED else ("unsettled", "settled")
        raise LinkFault(
            conditions.NOT_ALLOWED,
            f"expected {expected} deliveries on link {self.name!r} by its snd-settle-mode, found one {found}",
        )

    def release_unsettled(self) -> None:
        """Incoming: everything that has no outcome yet is released: others may have it."""
        if self.state != ATTACHED:
            return
        session = self.session
        encoded = encode_state(RELEASED)
        while found := session.incoming.take(0, _ALL, self):
            for taken in found:
                session.write_disposition(True, taken.first, taken.last, True, encoded)

    def settle(self, first: int, last: int, state: Any = ACCEPTED, settled: bool = True) -> None:
        """Incoming: tell the sender the outcome of deliveries first..last (delivery-ids of Transfers events).

        With rcv-settle-mode second the disposition is sent unsettled, and SenderSettled follows. What the
        sender has settled itself meanwhile is passed over: it has forgotten it.
        """
        if last < first:
            raise LocalError(f"expected a range of delivery-ids, found {first}..{last}")
        if self.state != ATTACHED:
            return
        session = self.session
        unsettled = session.incoming
        encoded = encode_state(state)
        if self.rcv_settle_mode == SETTLE_FIRST and settled:
            for taken in unsettled.take(first, last, self):
                session.write_disposition(True, taken.first, taken.last, True, encoded)
            return
        for found in unsettled.find(first, last):
            if found.link is self:
                done = settled and not found.second
                if done:
                    unsettled.take(found.first, found.last, self)
                session.write_disposition(True, found.first, found.last, done, encoded)


def _beginning(part: bytes | memoryview, message_format: int) -> bytes | None:
    """The beginning of a message, where its first part shows all that an event tells of it; else None."""
    beginning = bytes(part[:BEGINNING_BYTES])
    if message_format:
        return beginning
    try:
        opening = survey(beginning)
    except DecodeError:
        # Cut off in a section, or malformed.
        return None
    first = opening.properties or opening.prefix_end
    if not first or opening.may_expire or first + PROPERTIES_HEAD_BYTES > len(beginning):
        return None
    return beginning
