"""Deliveries of a former attach of a link that are sent again, ahead of new ones (transport 2.6.13).

Outgoing messages that wait for the session's window or for credit.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.errors import EndedError
from lightrail.amqp.frames import FRAME_HEADER_BYTES, Template
from lightrail.amqp.link import ATTACHED
from lightrail.amqp.link_endpoint import LinkEndpoint
from lightrail.amqp.performatives import Transfer, encode_performative
from lightrail.amqp.unsettled import WIRE, unwrap
from lightrail.model import limits

if TYPE_CHECKING:
    from lightrail.amqp.session import Session


@dataclass(slots=True, eq=False, repr=False)
class Backlog:
    """Messages of one send."""

    count: int
    ends: Sequence[int]
    blob: bytes | memoryview
    base: int
    settled: bool
    message_format: int
    state: Any = None
    """Of the transfers, as in a transaction; None for none."""
    index: int = 0
    """The message that is sent next, or of which some frames are sent."""
    offset: int = 0
    """Bytes of that message in earlier frames."""
    delivery_id: int = 0
    """Id of that message, once its first frame is written."""

    @property
    def is_passed_over(self) -> bool:
        """Whether it stands for the number of one message that is not sent."""
        return not self.ends

    def start_of(self, index: int) -> int:
        """Offset in the blob where message `index` begins."""
        return self.ends[index - 1] - self.base if index else 0


WIDE_TAG_SIZE: Final = 8
"""Bytes of the numbers of a link that are known beyond it."""
TAG_SIZE: Final = 4
"""Bytes of our delivery-tags: the delivery-id as on the wire, or the number of a link that may be resumed."""


@dataclass(slots=True, eq=False, repr=False)
class Again:
    """One such delivery: as resumed, where the peer has it in its map too, else as if it were new.

    Args:
        number: the link's own number of the delivery, which its delivery-tag ends with.
    """

    number: int
    payload: bytes | memoryview
    message_format: int
    _: KW_ONLY
    resume: bool
    settled: bool
    aborted: bool
    state: Any
    is_begun: bool = False
    """Its first frame is in the output."""
    offset: int = 0
    """Bytes of the payload in the output."""
    delivery_id: int = 0
    """Once it is begun."""

    @property
    def is_done(self) -> bool:
        """Whether its last frame is in the output."""
        return self.is_begun and self.offset >= len(self.payload)

    def begin(self, handle: int, delivery_id: int, tag: bytes, frame_size: int) -> tuple[bytes, memoryview]:
        """The first frame, of at most `frame_size` bytes: its performative and its part of the payload."""
        self.is_begun = True
        self.delivery_id = delivery_id
        transfer = Transfer(
            handle=handle,
            delivery_id=delivery_id & WIRE,
            delivery_tag=tag,
            message_format=self.message_format,
            settled=self.settled,
            more=True,
            state=self.state,
            resume=self.resume,
            aborted=self.aborted,
        )
        body = encode_performative(transfer)
        size = frame_size - FRAME_HEADER_BYTES - len(body)
        # The size was measured with `more`; without it the performative is no longer.
        if len(self.payload) <= size:
            transfer.more = False
            body = encode_performative(transfer)
        return body, self._next(size)

    def next_frame(self, handle: int, frame_size: int) -> tuple[bytes, memoryview]:
        """The next frame."""
        body = encode_performative(Transfer(handle=handle, more=True))
        size = frame_size - FRAME_HEADER_BYTES - len(body)
        if len(self.payload) - self.offset <= size:
            body = encode_performative(Transfer(handle=handle))
        return body, self._next(size)

    def _next(self, size: int) -> memoryview:
        start = self.offset
        self.offset = min(start + size, len(self.payload))
        return memoryview(self.payload)[start : self.offset]


class AgainSender(LinkEndpoint):
    """The part of a sending link that names its deliveries, and sends those of a former attach again."""

    __slots__ = (
        "_again",
        "_backlog",
        "_limit_max",
        "_template",
        "has_wide_tags",
        "numbers_tags",
        "sent",
        "tag_prefix",
        "transmitted",
    )

    def __init__(self, session: "Session", name: str) -> None:
        super().__init__(session, name, True)
        self.sent = 0
        """Messages handed to send()."""
        self.tag_prefix = b""
        """Bytes of each delivery-tag before the delivery-id."""
        self.numbers_tags = False
        """Delivery-tags end with the link's own numbers, which go on from a former attach."""
        self.has_wide_tags = False
        """These numbers have eight bytes instead of four."""
        self.transmitted = 0
        """Messages whose first frame is in the output; after the link's end, whose last one is."""
        self._limit_max = 0
        self._backlog: list[Backlog] | None = None
        self._again: list[Again] | None = None
        """Deliveries of a former attach that wait; then the backlog is a list, too."""
        self._template: Template | None = None

    def prefix_tags(self, prefix: bytes) -> None:
        self.tag_prefix = prefix
        self._template = None

    def tag_of(self, number: int) -> bytes:
        if self.has_wide_tags:
            return self.tag_prefix + number.to_bytes(WIDE_TAG_SIZE, "big")
        return self.tag_prefix + (number & WIRE).to_bytes(TAG_SIZE, "big")

    def unsettled_number(self, tag: bytes) -> int | None:
        prefix = self.tag_prefix
        size = WIDE_TAG_SIZE if self.has_wide_tags else TAG_SIZE
        if len(tag) != len(prefix) + size or not tag.startswith(prefix):
            return None
        session = self.session
        wire = int.from_bytes(tag[len(prefix) :], "big")
        if self.numbers_tags:
            number = wire if self.has_wide_tags else unwrap(wire, self.sent)
            for each in session.outgoing.ranges:
                if each.link is self and each.first <= number + each.shift <= each.last:
                    return number
            return None
        number = unwrap(wire, session.next_delivery_id)
        for found in session.outgoing.find(number, number):
            if found.link is self:
                return number - found.shift
        return None

    # --- deliveries of a former attach -------------------------------------------------------------------

    def number_tags(self, prefix: bytes, first: int, *, wide: bool = False) -> None:
        self.prefix_tags(prefix)
        self.numbers_tags = True
        self.has_wide_tags = wide
        self.sent = self.transmitted = first
        self._limit_max = self.limit

    @property
    def waiting_again(self) -> int:
        return len(self._again or ())

    def send_again(
        self,
        number: int,
        payload: bytes | memoryview = b"",
        message_format: int = 0,
        *,
        resume: bool,
        settled: bool = False,
        aborted: bool = False,
        state: Any = None,
    ) -> None:
        if self.state != ATTACHED:
            raise EndedError(f"{self!r} has ended, and sends nothing")
        again = Again(
            number, payload, message_format, resume=resume, settled=settled, aborted=aborted, state=state
        )
        if self._again is None:
            self._again = []
        self._again.append(again)
        # New messages wait behind these, so that the receiver gets them in the order of their numbers.
        if self._backlog is None:
            self._backlog = []
            self.session.waiting.append(self)
        self.pump()

    def _transmit_again(self) -> bool:
        """Writes deliveries of a former attach; False when credit or the session's window is used up."""
        session = self.session
        frame_size = session.connection.peer_max_frame_size
        again = self._again
        while again:
            each = again[0]
            while not each.is_done:
                # Credit is used up by a delivery (2.6.7), the window by each of its frames (2.5.6).
                if session.remote_incoming_window <= 0 or (not each.is_begun and self.credit <= 0):
                    return False
                if each.is_begun:
                    body, payload = each.next_frame(self.output_handle, frame_size)
                else:
                    delivery_id = session.next_delivery_id
                    tag = self.tag_of(each.number)
                    body, payload = each.begin(self.output_handle, delivery_id, tag, frame_size)
                    session.next_delivery_id = delivery_id + 1
                    self.delivery_count += 1
                    self.credit -= 1
                    if len(each.payload) >= limits.LARGE_PIECE_BYTES:
                        session.connection.has_large_output = True
                    # What is settled or aborted is forgotten at both ends (2.6.13): no disposition follows.
                    if not (each.settled or each.aborted):
                        session.outgoing.add(self, delivery_id, delivery_id, delivery_id - each.number)
                session.write_part(body, payload)
                session.sent_transfers(1)
            del again[0]
        self._again = None
        return True
