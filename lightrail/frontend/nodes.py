"""Nodes that the frontend serves itself, such as $management: requests in, answers out, no shard between.

A client attaches a sender to the node, and tells in each request's reply-to where its answer goes:

- to a receiver of the same connection whose source is the node and whose target address is the reply-to;
- with no reply-to, the node's own address, or `$me`, to the receiver with the request link's name, else to
  the only receiver of the node on the connection;
- else to the queue of that name, such as the dynamic source of a receiver.

Requests of one link are answered one after the other. What waits is bounded: a link has credit for
limits.NODE_REQUESTS_MAX requests, and none while more than limits.NODE_REPLY_BYTES of answers wait for the
client. A request that can't be answered anywhere is rejected and not carried out.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from lightrail.amqp.events import ACCEPTED, Credit, Outcome, Transfers
from lightrail.amqp.link import SETTLE_FIRST, SETTLE_SETTLED, Link
from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.performatives import AmqpError, Rejected, Source, Target
from lightrail.amqp.sections import decode_properties
from lightrail.amqp.types import DecodeError, Symbol
from lightrail.frontend.attaching import Terms
from lightrail.frontend.posting import NotPosted, Posting
from lightrail.frontend.routes import Refused
from lightrail.model import conditions, limits
from lightrail.model.names import InvalidName, queue_name

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

log = logging.getLogger("lightrail.frontend.nodes")

PAIRED: Final = "$me"
"""Reply-to that means the receiver with the name of the request link, as RabbitMQ's clients say it."""


class Node(Protocol):
    """What answers requests at an address."""

    def silent(self, payload: bytes) -> bool:
        """Whether this request gets no answer but its outcome."""

    async def answer(self, connection: "ClientConnection", payload: bytes) -> Message | None:
        """The answer without its address and correlation-id; None for one that only has an outcome.

        Raises:
            Refused: the request is rejected.
        """


class _Waiting(NamedTuple):
    first_id: int
    payload: bytes
    settled: bool
    message_format: int


class Inside:
    """What one connection has at the nodes of its frontend."""

    __slots__ = ("replies", "requests", "waiting_bytes")

    def __init__(self) -> None:
        self.requests: list[RequestLink] = []
        self.replies: list[ReplyLink] = []
        self.waiting_bytes = 0
        """Of answers that wait for credit, or for the socket."""

    def relieved(self) -> None:
        """Fewer answers wait: there may be new requests."""
        for each in self.requests:
            each.top_up()


class Nodes:
    """All nodes of one frontend by address."""

    def __init__(self, by_address: Mapping[str, Node]) -> None:
        self._by_address = dict(by_address)

    def attach(self, connection: "ClientConnection", link: Link) -> bool:
        """Serve a link whose attach came, if it is one to a node: it is accepted, or refused, at once.

        Returns:
            False when the link is for somebody else.
        """
        terminus = link.source if link.is_sender else link.target
        if not isinstance(terminus, Source | Target) or terminus.dynamic:
            return False
        address = terminus.address
        if not isinstance(address, str) or "$" not in address:
            return False
        path = _path(address)
        node = self._by_address.get(path)
        if node is None:
            return False
        inside = connection.inside
        if inside is None:
            inside = connection.inside = Inside()
        if len(inside.requests) + len(inside.replies) >= limits.NODE_LINKS_MAX:
            connection.frontend.counts.links_refused += 1
            link.refuse(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"this connection has {limits.NODE_LINKS_MAX} links to {path} and its like, the most",
            )
            return True
        terminus.durable, terminus.timeout = 0, 0
        terminus.expiry_policy = Symbol("link-detach")
        number = connection.frontend.next_link()
        terms = Terms(f"{connection.session_owner(link.session)}/{number}")
        if isinstance(terminus, Source):
            terminus.filter = None
            link.accept()
            reply = ReplyLink(connection, inside, link, node)
            inside.replies.append(reply)
            link.context = reply
            connection.bound(reply, terms)
            return True
        link.accept(max_message_size=limits.NODE_REQUEST_BYTES, rcv_settle_mode=SETTLE_FIRST)
        request = RequestLink(connection, inside, link, node, path)
        inside.requests.append(request)
        link.context = request
        connection.bound(request, terms)
        request.top_up()
        return True


class RequestLink:
    """The client's link to a node: a line of requests and, while there are any, a task that answers them."""

    __slots__ = (
        "_address",
        "_busy",
        "_closed",
        "_connection",
        "_inside",
        "_line",
        "_link",
        "_node",
        "_postings",
    )

    def __init__(
        self, connection: "ClientConnection", inside: Inside, link: Link, node: Node, address: str
    ) -> None:
        self._connection = connection
        self._inside = inside
        self._link = link
        self._node = node
        self._address = address
        self._line: deque[_Waiting] = deque()
        self._busy = False
        self._closed = False
        self._postings: OrderedDict[str, Posting] = OrderedDict()

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """Requests came."""
        for place, payload in enumerate(event.payloads):
            self._line.append(
                _Waiting(event.first_delivery_id + place, payload, event.settled, event.message_format)
            )
        if not self._busy:
            self._busy = True
            self._connection.frontend.spawn(self._work())

    def close(self) -> None:
        """The client's link has ended; requests that came before are still carried out, in their order."""
        self._closed = True
        self._inside.requests.remove(self)
        if not self._busy:
            self._end_postings()

    def top_up(self) -> None:
        """Grants credit when at least half of the window is free."""
        inside = self._inside
        if (
            self._closed
            or self._connection.frontend.stopping
            or inside.waiting_bytes > limits.NODE_REPLY_BYTES
        ):
            return
        credit = limits.NODE_REQUESTS_MAX - len(self._line) - self._busy
        if credit - self._link.credit >= limits.NODE_REQUESTS_MAX >> 1:
            self._link.grant(credit)
            self._connection.touch()

    async def _work(self) -> None:
        try:
            while self._line:
                request = self._line.popleft()
                refusal = await self._answer(request)
                if self._closed or self._connection.amqp is None:
                    continue
                if not request.settled:
                    state = ACCEPTED if refusal is None else Rejected(error=refusal)
                    self._link.settle(request.first_id, request.first_id, state)
                    self._connection.touch()
                self.top_up()
        finally:
            self._busy = False
            if self._closed:
                self._end_postings()
            else:
                self.top_up()

    async def _answer(self, request: _Waiting) -> AmqpError | None:
        try:
            if request.message_format:
                raise Refused(
                    conditions.NOT_IMPLEMENTED,
                    f"expected a message of format 0, found {request.message_format:#x}",
                )
            await self._carry_out(request.payload)
        except Refused as refusal:
            return _error(refusal.condition, refusal.description)
        except DecodeError as error:
            return _error(conditions.DECODE_ERROR, str(error))
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a request to %s could not be answered", self._address)
            return _error(conditions.INTERNAL_ERROR, "a mistake of the broker; its log says more")
        return None

    async def _carry_out(self, payload: bytes) -> None:
        if self._node.silent(payload):
            await self._node.answer(self._connection, payload)
            return
        asked = decode_properties(payload)
        reply_to = asked.reply_to
        if reply_to is not None and not isinstance(reply_to, str):
            raise Refused(conditions.INVALID_FIELD, "expected a string as reply-to")
        to = self._reply_link(reply_to) or await self._posting(str(reply_to))
        answer = await self._node.answer(self._connection, payload)
        if answer is None:
            return
        answer.properties.to = reply_to
        answer.properties.correlation_id = (
            asked.correlation_id if asked.correlation_id is not None else asked.message_id
        )
        encoded = write_message(answer)
        if isinstance(to, ReplyLink):
            to.put(encoded)
            return
        try:
            await to.post(encoded)
        except NotPosted as error:
            # It has been carried out; nobody but the log hears what came of it.
            log.warning("an answer to %s is lost: %s", self._connection.peer, error)

    def _reply_link(self, reply_to: str | None) -> "ReplyLink | None":
        """The receiver of this connection that answers go to; None where the reply-to is a queue."""
        here = [each for each in self._inside.replies if each.node is self._node]
        if reply_to is not None:
            for each in here:
                if each.address == reply_to:
                    return each
            if reply_to != PAIRED and _path(reply_to) != self._address:
                return None
        for each in here:
            if each.name == self._link.name:
                return each
        if len(here) == 1:
            return here[0]
        raise Refused(
            conditions.NOT_FOUND,
            f"reply-to is {reply_to!a:.80}; expected the target address of a receiver from {self._address} "
            f"on this connection ({len(here)} are there), or the name of a queue",
        )

    async def _posting(self, address: str) -> Posting:
        """The way to a queue that answers go to."""
        try:
            name = queue_name(address)
        except InvalidName as error:
            raise Refused(conditions.NOT_FOUND, f"reply-to: {error}") from None
        found = self._postings.get(name)
        if found is not None and not found.closed:
            self._postings.move_to_end(name)
            return found
        try:
            found = await Posting.open(self._connection, name)
        except NotPosted as error:
            raise Refused(error.condition, f"reply-to: {error}") from None
        self._postings[name] = found
        if len(self._postings) > limits.NODE_ADDRESSES_MAX:
            self._postings.popitem(last=False)[1].close()
        return found

    def _end_postings(self) -> None:
        for posting in self._postings.values():
            posting.close()
        self._postings.clear()


class ReplyLink:
    """The client's link from a node: answers that wait for its credit."""

    __slots__ = ("_connection", "_drain", "_inside", "_line", "_link", "_settled", "node")

    def __init__(self, connection: "ClientConnection", inside: Inside, link: Link, node: Node) -> None:
        self.node = node
        self._connection = connection
        self._inside = inside
        self._link = link
        self._line: deque[bytes] = deque()
        self._drain = False
        # Nothing is done with the outcome, but clients that settle what they received expect to be able to.
        self._settled = link.snd_settle_mode == SETTLE_SETTLED

    @property
    def name(self) -> str:
        return self._link.name

    @property
    def address(self) -> str | None:
        """What clients say as reply-to to mean this link."""
        address = getattr(self._link.target, "address", None)
        return address if isinstance(address, str) else None

    def put(self, message: bytes) -> None:
        """An answer for the client; dropped when the link went meanwhile."""
        if self in self._inside.replies:
            self._line.append(message)
            self._inside.waiting_bytes += len(message)
            self.writable()

    def credit(self, event: Credit) -> None:
        """The client lets us send."""
        self._drain = event.drain
        self.writable()

    def outcome(self, event: Outcome) -> None:
        """What the client made of answers; it may wait for us to settle."""
        if not event.settled and event.state is not None:
            self._link.settle_sent(event.first, event.last, event.state)
            self._connection.touch()

    def writable(self) -> None:
        """Sends what credit, session window and socket allow."""
        link, line = self._link, self._line
        sent = 0
        while line and link.credit > 0 and not link.backlog and not self._connection.paused:
            message = line.popleft()
            sent += len(message)
            link.send_one(message, 0, self._settled)
            self._connection.touch()
        if link.backlog:
            self._connection.starved[self] = None
        elif self._drain and not line:
            self._drain = False
            link.drained()
            self._connection.touch()
        if sent:
            self._inside.waiting_bytes -= sent
            self._inside.relieved()

    def close(self) -> None:
        """The client's link is gone, and with it the answers that it did not take."""
        self._inside.replies.remove(self)
        self._inside.waiting_bytes -= sum(map(len, self._line))
        self._line.clear()
        self._connection.starved.pop(self, None)
        self._inside.relieved()


def _path(address: str) -> str:
    """`$management` for `/$management` and `amqp://host/$management`, too; others as they are."""
    try:
        scheme, separator, rest = address.partition("://")
        if separator and scheme.lower() in ("amqp", "amqps"):
            address = rest.partition("/")[2]
    except ValueError:
        return address
    return address.removeprefix("/")


def _error(condition: str, description: str) -> AmqpError:
    return AmqpError(condition=Symbol(condition), description=description)
