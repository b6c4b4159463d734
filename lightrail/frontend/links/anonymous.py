"""A link that sends without a target: each message has its address in its properties (ANONYMOUS-RELAY).

The link has one producer per recently used address, opened at the first message for it. Each message has its
own outcome; a message that can't be routed is rejected with the reason, and the link stays attached. If that
outcome can't be sent (the message was sent settled, or the source does not list rejected), the link is
detached with the reason (Anonymous Terminus 2.2.2).

Messages that a client has sent before its link ends, for whatever reason, are still forwarded: those that
wait until their address is opened are sent then.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.amqp.decoder import Buffer
from lightrail.amqp.events import Transfers
from lightrail.amqp.performatives import AmqpError, Rejected, Source
from lightrail.amqp.sections import decode_properties
from lightrail.amqp.values import DecodeError, Symbol
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.guard import Hold
from lightrail.frontend.links.bound import Bound
from lightrail.frontend.links.routing import RouterLink
from lightrail.frontend.links.scheduling import NO_DELAY, DelayingProducer, asks_for_delay, may_delay
from lightrail.frontend.links.transfers import ProducerLink
from lightrail.model import conditions

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend

ANONYMOUS_ADDRESSES_MAX: Final[int] = 64
"""Addresses that a sender without a target keeps open; the least recently used is closed first."""
ANONYMOUS_CREDIT_MAX: Final[int] = 500
"""Messages that such a sender may have unanswered, over all its addresses."""

log = logging.getLogger("lightrail.frontend.links.anonymous")

ANONYMOUS_RELAY: Final = "ANONYMOUS-RELAY"
"""Capability of a connection: links may send without a target (Anonymous Terminus for Message Routing)."""
REJECTED: Final = Symbol("amqp:rejected:list")
DELIVERY_TAG: Final = Symbol("delivery-tag")
"""Key in the info of an error, for the delivery that it concerns (Anonymous Terminus 2.2.2)."""


@dataclass(slots=True, eq=False, repr=False)
class OpenAddress:
    """An address of the link, with its producer, which uses the credit of the link."""

    _link: "AnonymousLink"
    most: int
    """Largest message, in bytes."""
    hold: Hold | None
    """The use of the name, by which its end is noticed; None once the address sends no more messages."""
    producer: ProducerLink | RouterLink = field(init=False)
    """Set before the first message is sent."""

    def answered(self) -> None:
        """Some messages of the producer have their outcomes."""
        self._link.answered(self)

    def ended(self) -> None:
        """The shard has closed the producer."""
        self._link.ended(self)


Open = Callable[["AnonymousLink", str, Buffer], Awaitable[OpenAddress]]
"""Opens the producer of an address for its first message, also after the client's link has ended. Raises
ConditionError."""


@dataclass(slots=True, eq=False, repr=False)
class AnonymousLink(Bound):
    """One incoming link (the client sends) without a target."""

    connection: "ClientConnection"
    link: "Link"
    _open: Open
    _frontend: "Frontend" = field(init=False)
    _closed: bool = False
    _addresses: dict[str, OpenAddress] = field(default_factory=dict)
    """In order of their latest use."""
    _retired: set[OpenAddress] = field(default_factory=set)
    """Addresses that send no more messages, and are closed when every message is answered."""
    _waiting: dict[str, list[Transfers]] = field(default_factory=dict)
    """Messages for addresses that are being opened."""
    _unresolved: int = 0
    """Number of these messages."""
    can_reject: bool = field(init=False)
    """Whether a message may be rejected; otherwise the link ends."""
    may_delay: bool = field(init=False)
    """Whether messages may have a delay, as the client's attach announced."""
    names_entities: bool = field(init=False)
    """See FrontendHooks.names_entities: the attach, which is dropped once it is answered, may show it."""

    def __post_init__(self) -> None:
        self._frontend = self.connection.frontend
        self.can_reject = _lists_rejected(self.link.source)
        self.may_delay = may_delay(self.link)
        opened = self.link.session.connection.peer_open
        self.names_entities = self._frontend.hooks.names_entities(opened, self.link.attach)
        self.link.keep_tags()

    # --- from the client -------------------------------------------------------------------------------

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """Forwards a batch, in runs of messages with the same address."""
        # Producers of names that were deleted, or deleted and created again, are retired first: see `retire`.
        self._frontend.poll()
        for address, part in addressed(event):
            if self._closed and not event.settled:
                # An earlier message ended the link. This one gets no outcome, so the client sends it again.
                break
            if isinstance(address, ConditionError):
                self._reject(part, address.condition, address.description)
            else:
                self._send(address, part, now_ms)
        self._top_up()

    def _send(self, address: str, event: Transfers, now_ms: int) -> None:
        known = self._addresses.pop(address, None)
        if known is not None:
            self._addresses[address] = known
            self._pass(known, event, now_ms)
            return
        self._unresolved += len(event.payloads)
        self._frontend.intake.received(self.connection, _size(event))
        waiting = self._waiting.get(address)
        if waiting is not None:
            waiting.append(event)
            return
        self._waiting[address] = [event]
        self._frontend.spawn(self._resolve(address))

    def _pass(self, address: OpenAddress, event: Transfers, now_ms: int) -> None:
        producer = address.producer
        no_delays = self.may_delay and isinstance(producer, RouterLink) and asks_for_delay(event.payloads)
        if max(map(len, event.payloads)) <= address.most and not no_delays:
            producer.transfers(event, now_ms)
            return
        for index, payload in enumerate(event.payloads):
            part = _part(event, index, index + 1)
            if no_delays and asks_for_delay(part.payloads):
                self._reject(part, conditions.NOT_IMPLEMENTED, NO_DELAY)
            elif len(payload) <= address.most:
                producer.transfers(part, now_ms)
            else:
                self._reject(
                    part,
                    conditions.MESSAGE_SIZE_EXCEEDED,
                    f"expected messages of at most {address.most} bytes, found one of {len(payload)}",
                )

    def _reject(self, event: Transfers, condition: str, description: str) -> None:
        """Rejects messages that can't be routed."""
        self._frontend.counts.messages_refused += len(event.payloads)
        if self._closed:
            return
        tags = event.tags or [b""] * len(event.payloads)
        if event.settled or not self.can_reject:
            self.connection.links.detach(self.link, condition, description, {DELIVERY_TAG: tags[0]})
            return
        for number, tag in enumerate(tags, event.first_delivery_id):
            error = AmqpError(condition=Symbol(condition), description=description, info={DELIVERY_TAG: tag})
            self.link.answer(number, number, Rejected(error=error))
        self.connection.touch()

    # --- addresses -------------------------------------------------------------------------------------

    async def _resolve(self, address: str) -> None:
        """Opens the producer of an address, and sends the messages that wait for it."""
        refusal: ConditionError | None = None
        opened: OpenAddress | None = None
        try:
            opened = await self._open(self, address, self._waiting[address][0].payloads[0])
        except ConditionError as refused:
            refusal = refused
        except Exception:
            log.exception("the address %s of a message could not be opened", address)
            description = f"internal error: {address} could not be opened"
            refusal = ConditionError(conditions.INTERNAL_ERROR, description)
        waiting = self._waiting.pop(address, ())
        now_ms = self._frontend.now_ms()
        for event in waiting:
            self._unresolved -= len(event.payloads)
            self._frontend.intake.answered(self.connection, _size(event))
        if opened is not None and not self._closed:
            self._addresses[address] = opened
            if len(self._addresses) > ANONYMOUS_ADDRESSES_MAX:
                self._retire(next(iter(self._addresses)))
        for event in waiting:
            if opened is not None:
                self._pass(opened, event, now_ms)
            elif refusal is not None:
                self._reject(event, refusal.condition, refusal.description)
        if opened is not None and self._addresses.get(address) is not opened:
            # The client's link has ended, or its address was retired: there are no further messages.
            self._end(opened)
        self._top_up()
        self.connection.touch()

    def retire(self, address: str) -> None:
        """Closes an address that was deleted, or the right to it revoked: the next message opens it again."""
        if address in self._addresses:
            self._retire(address)

    def _retire(self, address: str) -> None:
        retired = self._addresses.pop(address)
        self._release(retired)
        if retired.producer.unanswered:
            self._retired.add(retired)
        else:
            retired.producer.close()

    def _release(self, address: OpenAddress) -> None:
        if address.hold is not None:
            self._frontend.guard.release(address.hold)
            address.hold = None

    def _end(self, address: OpenAddress) -> None:
        self._release(address)
        address.producer.close()

    # --- from the producers ----------------------------------------------------------------------------

    def answered(self, address: OpenAddress) -> None:
        """Some messages for an address have their outcomes."""
        if address in self._retired and not address.producer.unanswered:
            self._retired.remove(address)
            address.producer.close()
        self._top_up()

    def ended(self, address: OpenAddress) -> None:
        """The shard has closed the producer of an address."""
        self._retired.discard(address)
        self._release(address)
        for name, each in list(self._addresses.items()):
            if each is address:
                del self._addresses[name]

    # --- the end, and credit ---------------------------------------------------------------------------

    def start(self) -> None:
        """Answers the client's attach, with the first credit."""
        self.connection.links.accept_incoming(self.link)
        self._top_up()

    def relieved(self) -> None:
        """The connection's messages are no longer refused."""
        self._top_up()

    def close(self) -> None:
        """The client's link has ended; messages that it sent still reach their queues, see `_resolve`."""
        self._closed = True
        for address in (*self._addresses.values(), *self._retired):
            self._end(address)
        self._addresses.clear()
        self._retired.clear()

    def _top_up(self) -> None:
        everyone = [each.producer for each in (*self._addresses.values(), *self._retired)]
        if self._closed or self._frontend.stopping or any(each.held_back for each in everyone):
            return
        window = ANONYMOUS_CREDIT_MAX
        credit = window - self._unresolved - sum(each.unanswered for each in everyone)
        if credit - self.link.credit >= window >> 1:
            self.link.grant(credit)
            self.connection.touch()


def sends_delays(bound: Bound) -> bool:
    """Whether messages of a sending client may have a delay, as the attach of its link announced."""
    return bound.may_delay if isinstance(bound, AnonymousLink) else isinstance(bound, DelayingProducer)


def _lists_rejected(source: object) -> bool:
    """Whether rejected may be sent to a source; a source that lists no outcomes accepts any (3.5.3)."""
    outcomes = source.outcomes if isinstance(source, Source) else None
    return not outcomes or REJECTED in outcomes


def addressed(event: Transfers) -> Iterator[tuple[str | ConditionError, Transfers]]:
    """The batch in parts with one address each, in order."""
    start = 0
    address = _address(event, 0)
    for index in range(1, len(event.payloads)):
        following = _address(event, index)
        if following != address:
            yield address, _part(event, start, index)
            start, address = index, following
    yield address, _part(event, start, len(event.payloads))


def _address(event: Transfers, index: int) -> str | ConditionError:
    """The address of a message, or the error of a message without one."""
    if event.message_format:
        description = "expected message-format 0, to find an address in it"
        return ConditionError(conditions.NOT_IMPLEMENTED, description)
    try:
        to = decode_properties(event.payloads[index]).to
    except DecodeError as error:
        return ConditionError(conditions.DECODE_ERROR, str(error))
    if isinstance(to, str) and to:
        return to
    return ConditionError(conditions.NOT_FOUND, "expected an address in the properties' field to, found none")


def _part(event: Transfers, start: int, stop: int) -> Transfers:
    """A run of messages of a batch."""
    if stop - start == len(event.payloads):
        return event
    return Transfers(
        event.link,
        event.first_delivery_id + start,
        event.payloads[start:stop],
        event.settled,
        event.message_format,
        event.head,
        event.absolute_expiry_ms,
        event.tags[start:stop] if event.tags is not None else None,
    )


def _size(event: Transfers) -> int:
    return sum(map(len, event.payloads))
