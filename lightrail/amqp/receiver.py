"""The receiving end of a link: grants credit, assembles deliveries from transfers, settles them (2.6).

Granted credit is never revoked without notice: a lower grant leaves `allowed` as it was, since transfers may
be on their way (2.6.7 lets the receiver accept them). A transfer beyond `allowed` detaches the link with
transfer-limit-exceeded.
"""

from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp import sections
from lightrail.amqp.assembly import Assembly
from lightrail.amqp.errors import ConnectionProtocolError, LinkProtocolError, LocalError
from lightrail.amqp.events import ACCEPTED, RELEASED, Drained, Posting, Resumed
from lightrail.amqp.link import ATTACHED, ATTACHING, DETACHING, SETTLE_FIRST, SETTLE_SECOND
from lightrail.amqp.link_endpoint import LinkEndpoint, encode_state, errant, with_info
from lightrail.amqp.performatives import Accepted, Modified, Rejected, Released, Transfer
from lightrail.amqp.shapes import Shape, learn
from lightrail.amqp.survey import MessageSurvey, survey
from lightrail.amqp.tags import Tags
from lightrail.amqp.unsettled import unwrap
from lightrail.amqp.values import DecodeError
from lightrail.model import conditions, limits

if TYPE_CHECKING:
    from lightrail.amqp.session import Session

FRAGMENT_OVERHEAD: Final[int] = 64
"""Bytes that each frame of an unfinished message counts beyond its own, for its object."""
ANSWERED_RANGES_MAX: Final[int] = 1_024
"""Ranges of unsettled deliveries of a session from which `answer` settles by itself: the peer does not."""
SHAPES_PER_LINK_MAX: Final[int] = 16
"""Header sections whose transfers a link reads by comparison; there are ten priorities."""
OUTCOMES: Final = (Accepted, Modified, Rejected, Released)
_ALL: Final = 1 << 64
"""Above every delivery-id, unwrapped."""


class ReceivingLink(LinkEndpoint):
    """A link on which the peer sends."""

    __slots__ = (
        "allowed",
        "allows_repeats",
        "assembly",
        "head_known",
        "keeps_tags",
        "mixes_headers",
        "peer_settles",
        "resumable",
        "shape",
        "shapes",
        "tags",
        "takes_pieces",
    )

    def __init__(self, session: "Session", name: str) -> None:
        super().__init__(session, name, False)
        self.peer_settles = False
        """Whether the peer settles what `answer` has sent; see there."""
        self.allowed = 0
        """Deliveries that the peer may still send by the highest grant."""
        self.assembly: Assembly | None = None
        """The delivery of several frames whose last frame is awaited."""
        self.shape: Shape[ReceivingLink] | None = None
        """The learned shape of its transfers."""
        self.shapes: dict[bytes, Shape[ReceivingLink]] = {}
        """Shapes by header section: messages of several priorities take turns."""
        self.head_known = b""
        """The header section that was decoded last: an equal one is not decoded again."""
        self.tags = Tags(self, session.incoming) if session.connection.settings.is_server else None
        """Delivery-tags in use; None at a client."""
        self.keeps_tags = self.mixes_headers = False
        self.resumable: dict[bytes, Any] | None = None
        """Deliveries of a former attach that the peer may resume, with our states, by tag (2.6.13)."""
        self.takes_pieces = self.allows_repeats = False

    def allow_repeats(self) -> None:
        self.allows_repeats = True

    def mix_headers(self) -> None:
        self.mixes_headers = True

    def take_pieces(self) -> None:
        self.takes_pieces = True

    def keep_tags(self) -> None:
        self.keeps_tags = True

    def resume(self, unsettled: dict[bytes, Any]) -> None:
        self.resumable = unsettled

    def release(self) -> None:
        self._end_assembly(Posting.LOST)
        self.shape = None
        self.shapes.clear()
        connection = self.session.connection
        if connection.shape is not None and connection.shape.link is self:
            connection.shape = None

    # --- credit ------------------------------------------------------------------------------------------

    def grant(self, credit: int, drain: bool = False, echo: bool = False) -> bool:
        if self.state == ATTACHING:
            raise LocalError(f"{self!r} is not accepted yet: no flow before the attach")
        if self.state != ATTACHED:
            return False
        self.credit, self.drain = credit, drain
        # See above: transfers by the earlier grant may be on their way.
        self.allowed = max(credit, self.allowed)
        self.write_flow(drain, echo)
        return True

    def on_flow(
        self, delivery_count: int | None, credit: int | None, available: int | None, drain: bool, echo: bool
    ) -> None:
        """Apply the sender's flow: credit that it used up for a drain, messages available (2.6.7)."""
        if self.state == DETACHING:
            if self.is_errant:
                raise errant(self, "flow")
            return
        if delivery_count is not None:
            # Only forward: a drain advances the sender's count to what the credit would have allowed (2.6.7).
            # A lower count is passed over.
            skipped = unwrap(delivery_count, self.delivery_count) - self.delivery_count
            if skipped > 0:
                self.delivery_count += skipped
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
        if self.state == DETACHING:
            self._drop(transfer)
            return
        assembly = self.assembly
        if assembly is None:
            assembly = self._begin_delivery(transfer)
        else:
            assembly.check_continuation(transfer, self.name, self.session.begin_delivery)
        # Settled in any frame means settled (2.7.5), also where the first did not say so.
        if transfer.settled:
            assembly.settled = True
        if transfer.rcv_settle_mode is not None or transfer.state is not None:
            settings = self.session.connection.settings
            assembly.set_mode(transfer, self.rcv_settle_mode, transactions=settings.transactions)
        # Before the size: an aborted delivery is discarded, however large it was (2.7.5).
        if transfer.aborted:
            self._end_assembly(Posting.ABORTED)
            if assembly.resumed:
                self._resumed(assembly, transfer)
            return
        size = assembly.size + stop - payload_at
        # At each frame, not at the last: or a message without an end would be kept up to the bound of all
        # unfinished ones.
        if self.max_message_size and size > self.max_message_size:
            raise LinkProtocolError(
                conditions.MESSAGE_SIZE_EXCEEDED,
                f"expected messages of at most {self.max_message_size} bytes, found one of {size}"
                f" {'or more ' if transfer.more else ''}on link {self.name!r}",
            )
        if transfer.more:
            self._append(assembly, data, payload_at, stop)
            return
        payload, pieces = assembly.message(data, payload_at, stop, in_pieces=self.takes_pieces)
        if assembly.resumed:
            self._resumed(assembly, transfer)
            return
        if assembly.repeated:
            self._deliver_repeated(assembly, payload)
            return
        # Only now: the last frame may be the one that says settled.
        assembly.check_settled(self.name, self.snd_settle_mode)
        opening, expiry = self._survey(assembly, payload)
        # After the survey, which may raise: then `release` ends the assembly, with the event of its posting.
        self._end_assembly()
        head = self.head_known if opening is not None and opening.head_end else b""
        is_server = self.session.connection.settings.is_server
        next_hop = opening.next_hop if opening is not None and is_server else None
        if next_hop:
            # Delivery-annotations are for us, the next hop, and not for receivers (messaging 3.2.2).
            payload = payload[: next_hop[0]] + payload[next_hop[1] :]
        self.session.deliver(
            self,
            assembly.delivery_id,
            [payload],
            assembly.settled,
            assembly.second,
            assembly.message_format,
            head,
            expiry,
            [assembly.tag] if self.keeps_tags else None,
            pieces=pieces,
            txn_id=assembly.txn_id,
            shift=self.tags.add(assembly.tag, assembly.delivery_id, assembly.settled) if self.tags else 0,
        )
        is_plain = transfer.state is None and transfer.rcv_settle_mode is None
        # A shape stands for whole messages without fields of their own: what has an expiry differs from the
        # next, and what has a state or a mode needs a look each time.
        if is_plain and expiry is None and not (assembly.parts or next_hop):
            self._learn(assembly, data, position, payload_at, opening, head)

    def _deliver_repeated(self, assembly: Assembly, payload: bytes) -> None:
        """Deliver a message under a repeated id, which is settled at once: see `allow_repeats`."""
        self._end_assembly()
        session, first = self.session, assembly.delivery_id
        session.deliver(self, first, [payload], True, False, assembly.message_format, b"", None)
        session.write_disposition(True, first, first, True, encode_state(ACCEPTED))

    def _resumed(self, assembly: Assembly, transfer: Transfer) -> None:
        """Apply a resumed delivery; one that we don't know is ignored, as message data is (2.6.13)."""
        self._end_assembly()
        if not self.resumable or assembly.tag not in self.resumable:
            return
        state = self.resumable.pop(assembly.tag)
        # Where both have an outcome, that of the sender counts: it takes effect there (messaging 3.4.6).
        found = transfer.state if isinstance(transfer.state, OUTCOMES) else state
        settled = assembly.settled or transfer.aborted
        if not settled:
            first = assembly.delivery_id
            shift = self.tags.add(assembly.tag, first, False) if self.tags else 0
            self.session.incoming.add(self, first, first, shift, assembly.second)
        event = Resumed(self, assembly.delivery_id, assembly.tag, found, settled)
        self.session.connection.events.append(event)

    def _drop(self, transfer: Transfer) -> None:
        """A transfer after our detach: one beyond the credit, or after an error of the peer, is errant."""
        session = self.session
        wire = transfer.delivery_id
        if wire is None or not session.is_new_delivery(wire):
            # A later frame of a delivery that was dropped, or whose beginning was the error.
            return
        session.begin_delivery(wire)
        self.allowed -= 1
        if self.is_errant or self.allowed < -session.connection.settings.beyond_credit_max:
            raise errant(self, "transfer")

    def _append(self, assembly: Assembly, data: bytes, payload_at: int, stop: int) -> None:
        """Keep a frame's payload until the last frame of its delivery arrives."""
        more_bytes = stop - payload_at
        # A view keeps all bytes of its read alive, which only pays for large parts (ADR 36).
        if more_bytes < limits.LARGE_PIECE_BYTES:
            assembly.parts.append(data[payload_at:stop])
        else:
            assembly.parts.append(memoryview(data)[payload_at:stop])
            self.session.connection.keep_views(self)
        assembly.size += more_bytes
        self.assembly = assembly
        if assembly.txn_id is not None and not assembly.is_posting:
            assembly.is_posting = True
            self.session.connection.events.append(Posting(self, assembly.txn_id, Posting.BEGUN))
        # Last, because it may raise: `release` then gives back what is counted here.
        self._hold(assembly, more_bytes + FRAGMENT_OVERHEAD)

    def _survey(self, assembly: Assembly, payload: bytes) -> tuple[MessageSurvey | None, int | None]:
        """What is known of the beginning of a message, and its absolute-expiry-time."""
        if assembly.message_format:
            return None, None
        try:
            opening = survey(payload)
            head = payload[: opening.head_end]
            # Senders repeat their header: an equal one has been decoded, and had no error.
            if head != self.head_known:
                sections.decode_header(head)
                self.head_known = head
            return opening, sections.attributes(payload)[3] if opening.may_expire else None
        except DecodeError as error:
            raise LinkProtocolError(conditions.DECODE_ERROR, str(error)) from None

    def _learn(
        self,
        assembly: Assembly,
        data: bytes,
        position: int,
        payload_at: int,
        opening: MessageSurvey | None,
        head: bytes,
    ) -> None:
        """Learn the shape of the transfer frame at `position`, a delivery of its own."""
        connection = self.session.connection
        if not connection.settings.learn_shapes:
            return
        most = connection.settings.max_frame_size
        if self.max_message_size:
            most = min(most, payload_at - position + self.max_message_size)
        shape = learn(
            self, data, position, payload_at, opening, head, assembly.settled, assembly.message_format, most
        )
        self.shape = connection.shape = shape
        if shape is not None:
            self.shapes[shape.head] = shape
            if len(self.shapes) > SHAPES_PER_LINK_MAX:
                del self.shapes[next(iter(self.shapes))]

    def copy_views(self) -> None:
        """See Assembly.copy_views."""
        if self.assembly is not None:
            self.assembly.copy_views()

    def _hold(self, assembly: Assembly, more_bytes: int) -> None:
        """Count the memory of incomplete messages, which is bounded per connection."""
        assembly.kept_bytes += more_bytes
        connection = self.session.connection
        connection.unfinished_bytes += more_bytes
        if connection.unfinished_bytes > connection.settings.unfinished_bytes_max:
            raise ConnectionProtocolError(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"expected at most {connection.settings.unfinished_bytes_max} bytes of messages that have not"
                f" ended, found {connection.unfinished_bytes}",
            )

    def _end_assembly(self, phase: int | None = None) -> None:
        """End the assembly; `phase`: that of a posting whose delivery is not complete."""
        assembly, self.assembly = self.assembly, None
        if assembly is not None:
            connection = self.session.connection
            connection.unfinished_bytes -= assembly.kept_bytes
            if phase is not None and assembly.is_posting and assembly.txn_id is not None:
                connection.events.append(Posting(self, assembly.txn_id, phase))

    def _begin_delivery(self, transfer: Transfer) -> Assembly:
        """Check the first frame of a delivery for its fields (2.7.5) and for credit."""
        if transfer.delivery_id is None or transfer.delivery_tag is None:
            missing = "delivery-id" if transfer.delivery_id is None else "delivery-tag"
            raise LinkProtocolError(
                conditions.INVALID_FIELD,
                f"expected {missing} in the first transfer of a delivery on link {self.name!r}, found null",
            )
        session = self.session
        repeated = self.allows_repeats and not session.is_new_delivery(transfer.delivery_id)
        delivery_id = (session.repeat_delivery if repeated else session.begin_delivery)(transfer.delivery_id)
        # After the id: the delivery has begun for the session, also where it ends the link.
        if self.allowed <= 0 and self.allowed <= -session.connection.settings.beyond_credit_max:
            raise LinkProtocolError(
                conditions.TRANSFER_LIMIT_EXCEEDED,
                f"expected no transfer on link {self.name!r} before more credit is granted, found delivery"
                f" {transfer.delivery_id}",
            )
        # A resumed delivery has the tag that it had before (2.6.13).
        if self.tags is not None and not (transfer.resume or self.allows_repeats):
            self.tags.check(transfer.delivery_tag)
        self.allowed -= 1
        self.delivery_count += 1
        if self.credit > 0:
            self.credit -= 1
        if self.available:
            self.available -= 1
        assembly = Assembly(delivery_id, transfer.delivery_tag, transfer.message_format or 0)
        assembly.second = self.rcv_settle_mode == SETTLE_SECOND
        assembly.resumed = transfer.resume
        assembly.repeated = repeated
        return assembly

    def release_unsettled(self) -> int:
        if self.state != ATTACHED:
            return 0
        session, encoded, count = self.session, encode_state(RELEASED), 0
        while found := session.incoming.take(0, _ALL, self):
            for part in found:
                session.write_disposition(True, part.first, part.last, True, encoded)
                count += part.last - part.first + 1
        return count

    def let_peer_settle(self) -> None:
        self.peer_settles = True

    def answer(self, first: int, last: int, state: Any) -> int:
        settles = not self.peer_settles or len(self.session.incoming.ranges) >= ANSWERED_RANGES_MAX
        return self.settle(first, last, with_info(state) if self.fills_info else state, settles)

    def settle(self, first: int, last: int, state: Any = ACCEPTED, settled: bool = True) -> int:
        if last < first:
            raise LocalError(f"expected a range of delivery-ids, found {first}..{last}")
        if self.state != ATTACHED:
            return 0
        session, unsettled = self.session, self.session.incoming
        encoded = encode_state(state)
        count = 0
        # In mode first we settle with the outcome (2.6.12): one call removes the ranges and gives what to
        # write.
        if self.rcv_settle_mode == SETTLE_FIRST and settled:
            for part in unsettled.take(first, last, self):
                session.write_disposition(True, part.first, part.last, True, encoded)
                count += part.last - part.first + 1
            return count
        for found in unsettled.find(first, last):
            if found.link is self:
                # In mode second the sender settles first; the delivery stays until its disposition arrives.
                done = settled and not found.second
                if done:
                    unsettled.take(found.first, found.last, self)
                session.write_disposition(True, found.first, found.last, done, encoded)
                count += found.last - found.first + 1
        return count
