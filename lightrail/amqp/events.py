"""Events of the engine for its caller: one slotted class per event, values only.

Numbers of incoming deliveries are the session's delivery-ids, unwrapped (see unsettled.py); those of outgoing
deliveries are the link's own, from 0 in order of sending.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from lightrail.amqp.link import Link
from lightrail.amqp.performatives import Accepted, AmqpError, Open, Released, TransactionalState
from lightrail.model.limits import EXPIRY_SPAN_MS

if TYPE_CHECKING:
    from lightrail.amqp.session import Session

ACCEPTED = Accepted()
"""The one accepted outcome in every event, so that outcomes in a row are compared by identity."""
RELEASED = Released()
"""The one released outcome."""


class Event:
    """Base of all events: equal when of one class with equal fields, for the tests."""

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


@dataclass(slots=True, eq=False, repr=False)
class HeaderRejected(Event):
    """The peer asked for a protocol that is not accepted here; an accepted header is written (2.2).

    `found` is the header of the peer, as far as it was received, and some bytes behind it.
    """

    header: bytes
    found: bytes


@dataclass(slots=True, eq=False, repr=False)
class SaslInit(Event):
    """The peer chose a mechanism; answer with sasl_challenge or sasl_outcome, then feed(b"") (5.3.3.2)."""

    mechanism: str
    response: bytes | None
    hostname: str | None


@dataclass(slots=True, eq=False, repr=False)
class SaslResponse(Event):
    """The answer to a challenge (5.3.3.4)."""

    response: bytes


@dataclass(slots=True, eq=False, repr=False)
class SaslOffered(Event):
    """The server offers these mechanisms: choose one with sasl_init, then feed(b"") (5.3.3.1)."""

    mechanisms: tuple[str, ...]


@dataclass(slots=True, eq=False, repr=False)
class SaslChallenged(Event):
    """The server asks for a response: answer with sasl_respond, then feed(b"") (5.3.3.3)."""

    challenge: bytes


@dataclass(slots=True, eq=False, repr=False)
class SaslSucceeded(Event):
    """The server accepted us; `additional_data` may prove that it knows our password (5.3.3.5)."""

    additional_data: bytes | None


@dataclass(slots=True, eq=False, repr=False)
class SaslFailed(Event):
    """The server refused us: a sasl-code other than ok (5.3.3.6). The connection is closed."""

    code: int


@dataclass(slots=True, eq=False, repr=False)
class Opened(Event):
    """The peer's open has arrived; our open is written already."""

    open: Open


@dataclass(slots=True, eq=False, repr=False)
class Begun(Event):
    """A session is mapped in both directions."""

    session: "Session"


@dataclass(slots=True, eq=False, repr=False)
class Attached(Event):
    """The peer's attach has arrived: answer with link.accept or link.refuse, now or later."""

    link: Link


class Transfers(Event):
    """Complete deliveries of one incoming link whose ids rise by one and that have all else in common.

    `payloads` are the messages as received. `head` is the encoded header section with which every one of them
    begins, b"" when they have none. Where a link allows `mixed` headers (link.mix_headers), `head` is that of
    one with the longest ttl; others may differ in all but durable, in ttl by at most EXPIRY_SPAN_MS.
    `absolute_expiry_ms` is their latest properties.absolute-expiry-time, `earliest_expiry_ms` their earliest,
    within the same span. `tags` are their delivery-tags where the link keeps them (link.keep_tags). `pieces`
    are the parts of one message of several frames, not joined; only for a link that asked for them
    (link.take_pieces), and then there are no `payloads`. `txn_id` is the transaction in which they are sent
    (transactions 4.4.1), or None.
    """

    __slots__ = (
        "absolute_expiry_ms",
        "earliest_expiry_ms",
        "first_delivery_id",
        "head",
        "link",
        "message_format",
        "mixed",
        "payloads",
        "pieces",
        "settled",
        "tags",
        "txn_id",
    )

    def __init__(
        self,
        link: Link,
        first_delivery_id: int,
        payloads: list[bytes],
        settled: bool,
        message_format: int = 0,
        head: bytes = b"",
        absolute_expiry_ms: int | None = None,
        tags: list[bytes] | None = None,
        mixed: bool = False,
        earliest_expiry_ms: int | None = None,
        pieces: list[bytes | memoryview] | None = None,
        txn_id: bytes | None = None,
    ) -> None:
        self.link = link
        self.first_delivery_id = first_delivery_id
        self.payloads = payloads
        self.settled = settled
        self.message_format = message_format
        self.head = head
        self.absolute_expiry_ms = absolute_expiry_ms
        self.tags = tags
        self.mixed = mixed
        self.earliest_expiry_ms = absolute_expiry_ms if earliest_expiry_ms is None else earliest_expiry_ms
        self.pieces = pieces
        self.txn_id = txn_id

    @property
    def count(self) -> int:
        """Deliveries."""
        return len(self.payloads) if self.pieces is None else 1

    def expires_near(self, latest: int | None, earliest: int | None) -> bool:
        """Whether deliveries that expire between these times, or never, may join this event.

        If so, the event's times are extended to cover theirs.
        """
        mine, first = self.absolute_expiry_ms, self.earliest_expiry_ms
        if mine is None or first is None or latest is None or earliest is None:
            return mine is latest
        latest, earliest = max(mine, latest), min(first, earliest)
        if latest - earliest > EXPIRY_SPAN_MS:
            return False
        self.absolute_expiry_ms, self.earliest_expiry_ms = latest, earliest
        return True


@dataclass(slots=True, eq=False, repr=False)
class Resumed(Event):
    """The sender resumed a delivery that our attach announced (2.6.13): settle it with `state`.

    `settled`: the sender has settled, or aborted, it already and forgets it.
    """

    link: Link
    delivery_id: int
    tag: bytes
    state: Any
    settled: bool


@dataclass(slots=True, eq=False, repr=False)
class Credit(Event):
    """The receiver of an outgoing link grants deliveries numbered below `limit` (2.6.7).

    May precede accept. With `drain`, send every available message and then call link.drained(). An `echo` has
    been answered already.
    """

    link: Link
    limit: int
    drain: bool = False
    echo: bool = False


@dataclass(slots=True, eq=False, repr=False)
class Acquire(Event):
    """The receiver of an outgoing link acquires further deliveries in a transaction (transactions 4.4.3).

    Without `txn_id`, in none. The credit of the same flow follows. The caller sends the deliveries with a
    TransactionalState.
    """

    link: Link
    txn_id: bytes | None


@dataclass(slots=True, eq=False, repr=False)
class Outcome(Event):
    """The receiver's state for deliveries first..last of an outgoing link (2.7.6).

    Not `settled`: the receiver waits until we settle with link.settle_sent (rcv-settle-mode second). `state`
    is None where the disposition carried none: the source's default-outcome holds when settled.
    """

    link: Link
    first: int
    last: int
    state: Any
    settled: bool


@dataclass(slots=True, eq=False, repr=False)
class Retire(Event):
    """The receiver gives deliveries first_id..last_id of a session an outcome in a transaction (4.4.2).

    `outcomes` has those that are unsettled; their state is the TransactionalState. `missing` has the ranges
    of ids of the others: they are settled, their link has ended, or they were never sent.
    """

    session: object
    first_id: int
    last_id: int
    state: TransactionalState
    outcomes: list[Outcome]
    missing: list[tuple[int, int]]


@dataclass(slots=True, eq=False, repr=False)
class Posting(Event):
    """A delivery that the peer sends in a transaction (transactions 4.4.1) and that is not complete.

    `phase`: BEGUN, when the first of several frames has arrived; then Transfers follows with the complete
    delivery, or ABORTED by the peer, or LOST: the delivery was dropped, because its link has ended.
    """

    BEGUN: ClassVar[int] = 0
    ABORTED: ClassVar[int] = 1
    LOST: ClassVar[int] = 2

    link: Link
    txn_id: bytes
    phase: int


@dataclass(slots=True, eq=False, repr=False)
class SenderSettled(Event):
    """The sender of an incoming link has settled deliveries first..last."""

    link: Link
    first_delivery_id: int
    last_delivery_id: int


@dataclass(slots=True, eq=False, repr=False)
class OpenAsked(Event):
    """For a server: the client desires a capability of `open_deciding`; accept_open or refuse_open is due."""

    open: Open


@dataclass(slots=True, eq=False, repr=False)
class Drained(Event):
    """For a client: the sender of an incoming link has used up the credit that it was to drain (2.6.7)."""

    link: Link


@dataclass(slots=True, eq=False, repr=False)
class Detached(Event):
    """The link ended, by the peer's detach (`by_peer`) or by our detach after an error of the peer."""

    link: Link
    closed: bool
    error: AmqpError | None
    by_peer: bool = True


@dataclass(slots=True, eq=False, repr=False)
class Ended(Event):
    """The session and all of session.links ended; no Detached follows for the links."""

    session: "Session"
    error: AmqpError | None
    by_peer: bool = True


@dataclass(slots=True, eq=False, repr=False)
class Closed(Event):
    """The connection, its sessions and links ended; no Ended or Detached follows for them."""

    error: AmqpError | None
    by_peer: bool = True
