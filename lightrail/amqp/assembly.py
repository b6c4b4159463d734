"""An incoming delivery of several frames, until its last frame arrives (transport 2.6.14)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from lightrail.amqp.errors import LinkProtocolError
from lightrail.amqp.link import SETTLE_FIRST, SETTLE_MIXED, SETTLE_SECOND, SETTLE_SETTLED
from lightrail.amqp.performatives import TransactionalState, Transfer
from lightrail.amqp.survey import survey
from lightrail.amqp.unsettled import WIRE
from lightrail.amqp.values import DecodeError
from lightrail.model import conditions

BEGINNING_BYTES: Final = 4_096
"""Bytes of a message in pieces that are searched for its header and expiry."""
PROPERTIES_HEAD_BYTES: Final = 9
"""Constructor, size and count of a list: `survey` reads these bytes of the properties."""


@dataclass(slots=True, eq=False, repr=False)
class Assembly:
    """One delivery, frame by frame."""

    delivery_id: int
    tag: bytes
    message_format: int
    settled: bool = False
    second: bool = False
    resumed: bool = False
    repeated: bool = False
    """Whether another delivery had its id before."""
    parts: list[bytes | memoryview] = field(default_factory=list)
    """Payloads of its frames so far."""
    looked_at: int = 0
    """Parts before this index are bytes, or views that are not to be copied."""
    size: int = 0
    kept_bytes: int = 0
    """Memory of the parts."""
    txn_id: bytes | None = None
    """The transaction in which it is sent."""
    is_posting: bool = False
    """Whether the caller has the event that it has begun in a transaction."""

    def set_mode(self, transfer: Transfer, rcv_settle_mode: int, *, transactions: bool) -> None:
        """A transfer's own rcv-settle-mode has to fit that of its link (2.7.5).

        Args:
            transactions: whether it may be sent in one (transactions 4.4.1).
        """
        if transfer.rcv_settle_mode is not None:
            if transfer.rcv_settle_mode == SETTLE_SECOND and rcv_settle_mode == SETTLE_FIRST:
                raise LinkProtocolError(
                    conditions.INVALID_FIELD,
                    "expected rcv-settle-mode first, as negotiated for the link, found second in a transfer",
                )
            self.second = transfer.rcv_settle_mode == SETTLE_SECOND
        if isinstance(transfer.state, TransactionalState):
            if transactions and self.txn_id in (None, transfer.state.txn_id):
                self.txn_id = transfer.state.txn_id
                return
            raise LinkProtocolError(
                conditions.TRANSACTION_UNKNOWN_ID,
                f"expected a transaction that was declared, found transaction {transfer.state.txn_id!r}",
            )

    def check_continuation(self, transfer: Transfer, name: str, begin: Callable[[int], int]) -> None:
        """A continuation repeats the fields of its first frame (2.7.5); `name` is that of the link.

        Args:
            begin: begins a delivery of the session by its id, which is refused if it was used before.
        """
        if transfer.delivery_id is not None and transfer.delivery_id != self.delivery_id & WIRE:
            # Another delivery begins within this one, against 2.6.14. Its id is counted all the same: the
            # link alone ends, and later frames of this delivery have to be known as such.
            begin(transfer.delivery_id)
            found, expected = f"delivery-id {transfer.delivery_id}", str(self.delivery_id & WIRE)
        elif transfer.delivery_tag is not None and transfer.delivery_tag != self.tag:
            found, expected = f"delivery-tag {transfer.delivery_tag!r}", repr(self.tag)
        elif transfer.message_format is not None and transfer.message_format != self.message_format:
            found, expected = f"message-format {transfer.message_format}", str(self.message_format)
        else:
            return
        raise LinkProtocolError(
            conditions.NOT_ALLOWED,
            f"expected a continuation of the delivery under way on link {name!r} ({expected}), found {found}",
        )

    def check_settled(self, name: str, mode: int) -> None:
        """The sender keeps to the snd-settle-mode of its attach (2.7.5); `name` is that of the link."""
        if mode == SETTLE_MIXED or self.settled is (mode == SETTLE_SETTLED):
            return
        expected, found = ("settled", "unsettled") if mode == SETTLE_SETTLED else ("unsettled", "settled")
        raise LinkProtocolError(
            conditions.NOT_ALLOWED,
            f"expected {expected} deliveries on link {name!r} by its snd-settle-mode, found one {found}",
        )

    def message(
        self, data: bytes, payload_at: int, stop: int, *, in_pieces: bool
    ) -> tuple[bytes, list[bytes | memoryview] | None]:
        """The message that data[payload_at:stop] of its last frame ends, and its pieces if it stays in them.

        In pieces, the first value is the beginning of the message.
        """
        parts = self.parts
        if not parts:
            return data[payload_at:stop], None
        # A view: where the parts are joined, the last one is copied once instead of twice.
        parts.append(memoryview(data)[payload_at:stop])
        beginning = beginning_of(parts[0], self.message_format) if in_pieces else None
        return (b"".join(parts), None) if beginning is None else (beginning, parts)

    def copy_views(self) -> None:
        """Copy new parts that are views of a read, unless they are three quarters of it.

        A view keeps the whole read in memory; so an incomplete message takes at most a third more.
        """
        parts = self.parts
        first = self.looked_at
        while first < len(parts):
            view = parts[first]
            last = first + 1
            if type(view) is memoryview:
                read = view.obj
                size = len(view)
                # Parts of one read share its memory, so that they are weighed together.
                while last < len(parts) and getattr(parts[last], "obj", None) is read:
                    size += len(parts[last])
                    last += 1
                if 4 * size < 3 * memoryview(read).nbytes:
                    parts[first:last] = [bytes(part) for part in parts[first:last]]
            first = last
        self.looked_at = first


def beginning_of(part: bytes | memoryview, message_format: int) -> bytes | None:
    """The beginning of a message in pieces.

    None unless it has the header and shows that nothing expires, and no delivery-annotations to be removed.
    """
    beginning = bytes(part[:BEGINNING_BYTES])
    if message_format:
        return beginning
    try:
        opening = survey(beginning)
    except DecodeError:
        # The part ends within a section, or is malformed.
        return None
    first = opening.properties or opening.prefix_end
    if not first or opening.may_expire or opening.next_hop or first + PROPERTIES_HEAD_BYTES > len(beginning):
        return None
    return beginning
