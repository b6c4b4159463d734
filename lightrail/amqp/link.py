"""A link as its caller sees it: state and commands (transport 2.6); link_endpoint.py has how they change.

The engine is ahead of its caller, who learns from an event that a link, its session or its connection has
ended. A command in between has no effect, and says so where something could be lost by it: one that sends
messages raises EndedError, one that settles returns the number of deliveries that it settled, and a grant
returns whether it was sent. What ends a link, answers its attach or its drain is meaningless by then, and
does nothing. A command that could never have been right raises LocalError.

Deliveries that we send are numbered per link from 0 in order of send(); the caller's credit is the number
below which it may send. Inside, delivery-count is an integer that does not wrap: initial-delivery-count +
deliveries sent + credit that drain consumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from lightrail.amqp.errors import LocalError
from lightrail.amqp.values import Symbol

if TYPE_CHECKING:
    from lightrail.amqp.performatives import Attach, TransactionalState
    from lightrail.amqp.session import Session

REQUESTED: Final = 0
"""Our attach is written; the peer's is awaited."""
ATTACHING: Final = 1
"""The peer's attach has arrived; the caller accepts or refuses it."""
ATTACHED: Final = 2
DETACHING: Final = 3
"""Our detach is written; the peer's is awaited."""
DETACHED: Final = 4
CLOSING: Final = 5
"""The peer's closing detach waits for the caller's answer_close."""

SETTLE_UNSETTLED: Final = 0
SETTLE_SETTLED: Final = 1
SETTLE_MIXED: Final = 2
SETTLE_FIRST: Final = 0
SETTLE_SECOND: Final = 1


class AttachAnswer(TypedDict, total=False):
    """Fields of our attach that answers the peer's."""

    source: Any
    target: Any
    snd_settle_mode: int
    rcv_settle_mode: int
    max_message_size: int
    offered_capabilities: list[Symbol]
    desired_capabilities: list[Symbol]
    properties: dict[Symbol, Any]
    unsettled: dict[bytes, Any] | None
    """Deliveries that we have not forgotten: tags and our states; those that a frame has no room for are left
    out, and the attach says so (2.7.3)."""


@dataclass(slots=True, eq=False, repr=False)
class Link:
    """One end of a link. `context` belongs to the caller."""

    session: "Session"
    name: str
    is_sender: bool
    """Our own role: True when we send on this link."""
    max_message_size: int
    """Largest message that we accept, in bytes."""
    scope: str = ""
    """The address of the peer's terminus, where its links have names of their own at each; see
    ConnectionSettings.names_at_termini."""
    state: int = ATTACHING
    handle: int = -1
    """The peer's handle (input handle)."""
    output_handle: int = -1
    attach: "Attach | None" = None
    """The peer's attach."""
    source: Any = None
    target: Any = None
    snd_settle_mode: int = SETTLE_MIXED
    rcv_settle_mode: int = SETTLE_FIRST
    properties: dict[Symbol, Any] | None = None
    peer_max_message_size: int = 0
    """Largest message that the peer accepts, in bytes; 0 for any."""
    passed_over: list[tuple[int, int]] | None = None
    """Outgoing: numbers and sizes of larger messages, which send() adds instead of sending them; the
    caller removes them. None: such a message ends the link (2.7.3)."""
    context: Any = None
    kept_bytes: int = 0
    """Bytes of the peer's attach that count for this link in `attach_bytes` of its session."""
    answers_close: bool = False
    """The peer's closing detach waits for the caller's answer_close."""
    fills_info: bool = False
    """Incoming: errors of outcomes that `answer` sends have an info, an empty one where there is none."""
    incomplete_unsettled: bool = False
    """Our attach had no room for all of our unsettled deliveries."""
    awaits_answer: bool = False
    """After our detach, Detached follows with the peer's."""
    delivery_count: int = 0
    initial_count: int = 0
    credit: int = 0
    """Deliveries that may still be sent, by us or by the peer."""
    drain: bool = False
    available: int | None = None
    """Messages that wait for credit, None where it is not known (2.6.7): set by the caller on outgoing
    links, by the peer on incoming ones."""

    def __repr__(self) -> str:
        return f"Link({self.name!r}, {'sender' if self.is_sender else 'receiver'}, handle {self.handle})"

    # --- both roles --------------------------------------------------------------------------------------

    def accept(self, **answer: Unpack[AttachAnswer]) -> None:
        """Answer the peer's attach: termini and modes default to those of the peer's attach (2.6.3)."""
        raise NotImplementedError

    def refuse(self, condition: str, description: str = "", info: dict[Symbol, Any] | None = None) -> None:
        """Answer the peer's attach with one without our terminus, and a detach with the reason."""
        raise NotImplementedError

    def detach(
        self,
        condition: str | None = None,
        description: str = "",
        closed: bool = True,
        info: dict[Symbol, Any] | None = None,
    ) -> None:
        """End the link; only where `awaits_answer` is set, Detached follows with the peer's answer."""
        raise NotImplementedError

    def answer_close(self, condition: str | None = None, description: str = "") -> None:
        """Answer the peer's closing detach, which waited for the caller (see `answers_close`)."""
        raise NotImplementedError

    # --- incoming links ----------------------------------------------------------------------------------

    def grant(self, credit: int, drain: bool = False, echo: bool = False) -> bool:
        """Incoming: set the link-credit, counted from the deliveries received so far (2.6.7).

        Returns whether the link has not ended; otherwise no message and no end of the drain follows.
        """
        raise LocalError(f"{self!r} is a sender: the peer grants its credit")

    def settle(self, first: int, last: int, state: Any = ..., settled: bool = True) -> int:
        """Incoming: send an outcome, by default accepted, of deliveries first..last, ids of Transfers events.

        With rcv-settle-mode second the disposition is sent unsettled, and SenderSettled follows. Deliveries
        that the sender has settled are passed over: it has forgotten them. Returns the number of deliveries
        whose outcome is sent: 0 when the link has ended.
        """
        raise LocalError(f"{self!r} is a sender: its deliveries are settled with settle_sent")

    def answer(self, first: int, last: int, state: Any) -> int:
        """Incoming: the same for an outcome other than accepted, which the peer must not miss.

        Where `peer_settles` is set the disposition is unsettled and the peer settles the deliveries: some
        clients take a settled delivery for an accepted one if the disposition is faster than they are.
        """
        raise LocalError(f"{self!r} is a sender: its deliveries are settled with settle_sent")

    def let_peer_settle(self) -> None:
        """Incoming: from now on the peer settles what `answer` has sent."""
        raise LocalError(f"{self!r} is a sender: its deliveries are settled with settle_sent")

    def release_unsettled(self) -> int:
        """Incoming: release every delivery that has no outcome, so that others may receive it.

        Returns their number: 0 when the link has ended.
        """
        raise LocalError(f"{self!r} is a sender: its deliveries are settled with settle_sent")

    def keep_tags(self) -> None:
        """Incoming: from now on Transfers events have the delivery-tags."""
        raise LocalError(f"{self!r} is a sender: its delivery-tags are its own")

    def allow_repeats(self) -> None:
        """Incoming: accept deliveries whose id or tag was used before, against 2.6.12.

        For links of requests: threads of some clients send over one link at the same time, and number their
        deliveries without a lock. Such a delivery is settled at once, as accepted.
        """
        raise LocalError(f"{self!r} is a sender: no transfers come on it")

    def mix_headers(self) -> None:
        """Incoming: from now on Transfers events may be mixed."""
        raise LocalError(f"{self!r} is a sender: no transfers come on it")

    def take_pieces(self) -> None:
        """Incoming: from now on Transfers events may have a message of several frames in pieces."""
        raise LocalError(f"{self!r} is a sender: no transfers come on it")

    # --- outgoing links ----------------------------------------------------------------------------------

    @property
    def limit(self) -> int:
        """Outgoing: deliveries numbered below this may be sent now."""
        return 0

    @property
    def backlog(self) -> int:
        """Outgoing: messages handed to send() that wait for the peer's session window or for credit."""
        return 0

    def send(
        self,
        count: int,
        ends: Sequence[int],
        blob: bytes | bytearray | memoryview,
        base: int = 0,
        settled: bool = False,
        message_format: int = 0,
        state: Any = None,
    ) -> None:
        """Outgoing: send messages: message i is blob[ends[i-1]-base : ends[i]-base], the first begins at 0.

        The caller stays below the limit of the newest Credit event, and does not change the bytes behind a
        read-only view. What exceeds the peer's session window waits here until the peer's flow opens it.
        Raises EndedError when the link has ended: no message of the call was sent.
        """
        raise LocalError(f"{self!r} is a receiver and can't send")

    def send_one(self, payload: bytes, message_format: int = 0, settled: bool = False) -> None:
        """Outgoing: send a single message. Raises EndedError, as `send`."""
        self.send(1, (len(payload),), payload, 0, settled, message_format)

    def drained(self) -> None:
        """Outgoing: everything available has been sent; use up the credit if the peer still asks for it."""
        raise LocalError(f"{self!r} is a receiver: only a sender answers drain")

    def settle_sent(self, first: int, last: int, state: Any = None) -> int:
        """Outgoing: settle deliveries first..last (the link's own numbers), with a disposition.

        Returns how many the peer had not settled: 0 when the link has ended.
        """
        raise LocalError(f"{self!r} is a receiver: its deliveries are settled with settle")

    def forget_sent(self, first: int, last: int) -> int:
        """Outgoing: deliveries first..last are settled, which the peer learns elsewhere: no disposition.

        Returns how many the peer had not settled.
        """
        raise LocalError(f"{self!r} is a receiver: its deliveries are settled with settle")

    def forget_state(self, state: "TransactionalState") -> None:
        """Outgoing: deliveries are no longer acquired in a transaction, so that messages that were handed to
        send() with its state, and are not begun, are sent without it."""
        raise LocalError(f"{self!r} is a receiver and can't send")

    @property
    def unfinished(self) -> int | None:
        """Outgoing: the link's own number of a delivery of which some frames are sent, and some are not."""
        return None

    def prefix_tags(self, prefix: bytes) -> None:
        """Outgoing: delivery-tags begin with these bytes, at most 28, from the next delivery on."""
        raise LocalError(f"{self!r} is a receiver: its delivery-tags are the peer's")

    def unsettled_number(self, tag: bytes) -> int | None:
        """Outgoing: the link's own number of the delivery with this delivery-tag, while it is unsettled."""
        raise LocalError(f"{self!r} is a receiver: its delivery-tags are the peer's")

    # --- outgoing links that are resumed (2.6.13) --------------------------------------------------------

    def number_tags(self, prefix: bytes, first: int, *, wide: bool = False) -> None:
        """Outgoing, before `accept`: deliveries are numbered from `first` on, and are known by that number.

        Delivery-tags are `prefix`, of at most 24 bytes, and the number in four bytes, or in eight if they are
        `wide` (`tag_of`).
        """
        raise LocalError(f"{self!r} is a receiver: its delivery-tags are the peer's")

    def tag_of(self, number: int) -> bytes:
        """Outgoing, where tags are numbered: the delivery-tag of a delivery."""
        raise LocalError(f"{self!r} is a receiver: its delivery-tags are the peer's")

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
        """Outgoing: send a delivery of a former attach, which uses credit and goes ahead of new ones.

        Args:
            number: below that of every new delivery; rising, but for settled and aborted ones.
            resume: the peer has the delivery in its map; it ignores a resumed one that it does not know.

        Raises EndedError, as `send`.
        """
        raise LocalError(f"{self!r} is a receiver and can't send")

    @property
    def waiting_again(self) -> int:
        """Outgoing: deliveries handed to send_again() that are not sent completely."""
        return 0
