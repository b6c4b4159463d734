"""The links of clients to nodes of the frontend: receives requests, and sends answers.

A client attaches a sender to the node. The reply-to of each request has the destination of its answer:

- a receiver of the same connection whose source is the node and whose target address is the reply-to, or,
  without a target address, its link's name (Azure's clients for JavaScript);
- with no reply-to, the node's address, or `$me`: the receiver with the request link's name, or without one
  the only receiver of the node on the connection;
- otherwise the queue of that name, such as the dynamic source of a receiver.

Requests of one link are answered one after the other. A connection may have as many of these links as of
others: Azure's clients open two for each entity that they renew locks at. So their memory is bounded for all
of a connection. A link has credit for NODE_REQUESTS_MAX requests; one that comes while NODE_REQUEST_BYTES_MAX
of requests wait is rejected. While more than NODE_REPLY_BYTES of answers wait for the client, no link gets
credit, and no request is executed. Large answers are made by LARGE_ANSWERS_MAX requests at a time. A request
without a destination for its answer is rejected and not executed.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from lightrail.amqp.events import ACCEPTED, Transfers
from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.performatives import AmqpError, Rejected, TransactionalState
from lightrail.amqp.sections import Properties, decode_properties
from lightrail.amqp.values import DecodeError, Symbol
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.bound import RequestingLink
from lightrail.frontend.nodes.node import Node, TransactionalNode
from lightrail.frontend.nodes.posting import Posting, PostingError
from lightrail.frontend.nodes.replies import REFUSED_REQUEST_BYTES, NodeLinks, ReplyLink, addresses_of
from lightrail.frontend.nodes.requests import reply
from lightrail.model import conditions
from lightrail.model.names import InvalidNameError, queue_name
from lightrail.shard_client.deadlines import within

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend
    from lightrail.frontend.transactions.transaction import Transaction

NODE_REQUESTS_MAX: Final[int] = 20
"""Requests that such a link may have unanswered."""
NODE_REQUEST_BYTES: Final[int] = 1024 * 1024
"""Largest request to a node."""
NODE_REQUEST_BYTES_MAX: Final[int] = 16 * 1024 * 1024
"""Bytes of a connection's requests that may wait for their turn."""
NODE_ADDRESSES_MAX: Final[int] = 16
"""Queues that a request link keeps open for its answers; the least recently used is closed first."""
NODE_POSTINGS_MAX: Final[int] = 1_024
"""Queues that all request links of a connection keep open for their answers."""

log = logging.getLogger("lightrail.frontend.nodes")

PAIRED: Final = "$me"
"""Reply-to for the receiver with the name of the request link; RabbitMQ's clients send it."""


class _Waiting(NamedTuple):
    first_id: int
    payload: bytes | None
    """None for a request that is rejected, because too many bytes wait."""
    settled: bool
    message_format: int
    transaction: "Transaction | None"
    came_s: float = 0.0
    """When it came, by the loop's clock."""
    refused_bytes: int = 0
    """Size of a request that is not executed: its payload has only what its answer needs. 0 for others."""


@dataclass(slots=True, eq=False, repr=False)
class RequestLink(RequestingLink):
    """The client's link to a node: waiting requests and, if there are any, a task that answers them."""

    _connection: "ClientConnection"
    _node_links: NodeLinks
    _link: "Link"
    node: Node
    path: str
    """The address of the node."""
    answers_refusals: bool = False
    """Whether a request with too many bytes is answered, and not rejected: the client reads answers alone."""
    _frontend: "Frontend" = field(init=False)
    _line: deque[_Waiting] = field(default_factory=deque)
    _busy: bool = False
    _closed: bool = False
    _postings: OrderedDict[str, Posting] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._frontend = self._connection.frontend
        # Azure's client for Python renews the locks of several messages from several threads.
        self._link.allow_repeats()

    @property
    def is_transactional(self) -> bool:
        """See RequestingLink."""
        return isinstance(self.node, TransactionalNode)

    def transacted(self, event: Transfers, transaction: "Transaction") -> None:
        """Queues requests that are part of a transaction."""
        for _ in event.payloads:
            transaction.begin_request()
        self._queue(event, transaction)

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """Queues requests of the client."""
        self._queue(event, None)

    def _queue(self, event: Transfers, transaction: "Transaction | None") -> None:
        node_links = self._node_links
        came_s = asyncio.get_running_loop().time()
        for id, payload in enumerate(event.payloads, event.first_delivery_id):
            node_links.request_bytes += len(payload)
            kept: bytes | None = payload
            refused = 0
            if node_links.request_bytes > NODE_REQUEST_BYTES_MAX or (
                self.answers_refusals and len(payload) > NODE_REQUEST_BYTES
            ):
                node_links.request_bytes -= len(payload)
                kept = None
                if self.answers_refusals:
                    refused = len(payload)
                    kept = addresses_of(payload)
                    node_links.request_bytes += len(kept or b"")
            self._line.append(
                _Waiting(id, kept, event.settled, event.message_format, transaction, came_s, refused)
            )
        self.resume()

    def resume(self) -> None:
        """Executes waiting requests, and grants credit."""
        if self._line and not (self._busy or self._must_wait):
            self._busy = True
            self._frontend.spawn(self._work())
        self.top_up()

    def close(self) -> None:
        """The client's link has ended; requests that arrived before are still executed, in their order."""
        self._closed = True
        here = self._node_links.by_path[self.path]
        here.requests.remove(self)
        self._node_links.leave(self.path)
        if not self._line and not self._busy:
            self._end_postings()
        self.resume()

    @property
    def _must_wait(self) -> bool:
        """Whether no request is executed now; those of a link that has ended are."""
        return not self._closed and self._node_links.is_full

    def top_up(self) -> None:
        """Grants credit if at least half of the window is free."""
        if self._closed or self._node_links.is_full or self._frontend.stopping:
            return
        credit = NODE_REQUESTS_MAX - len(self._line) - self._busy
        if credit - self._link.credit >= NODE_REQUESTS_MAX >> 1:
            self._link.grant(credit)
            self._connection.touch()

    async def _work(self) -> None:
        try:
            while self._line and not self._must_wait:
                request = self._line.popleft()
                refusal = await self._answer(request)
                self._node_links.request_bytes -= len(request.payload or b"")
                transaction = request.transaction
                if transaction is not None:
                    transaction.end_request()
                    if refusal is not None:
                        transaction.fail(str(refusal.condition), str(refusal.description))
                if self._closed or not self._connection.is_open:
                    continue
                if not request.settled:
                    outcome = ACCEPTED if refusal is None else Rejected(error=refusal)
                    state = transaction and TransactionalState(txn_id=transaction.id, outcome=outcome)
                    send = self._link.settle if refusal is None else self._link.answer
                    send(request.first_id, request.first_id, state or outcome)
                    self._connection.touch()
                self.top_up()
        except asyncio.CancelledError:
            # The process ends: no other task may begin what waits.
            self._line.clear()
            raise
        finally:
            self._busy = False
            if self._closed and not self._line:
                self._end_postings()
            else:
                # One may have come, and room for its answer, since the last look.
                self.resume()

    async def _answer(self, request: _Waiting) -> AmqpError | None:
        try:
            if request.payload is None:
                raise ConditionError(
                    conditions.RESOURCE_LIMIT_EXCEEDED,
                    f"{NODE_REQUEST_BYTES_MAX:,} bytes of requests of this connection wait for their turn, "
                    f"or ids of one have {REFUSED_REQUEST_BYTES:,}; send it again when some are answered",
                )
            if request.message_format:
                raise ConditionError(
                    conditions.NOT_IMPLEMENTED,
                    f"expected a message of format 0, found {request.message_format:#x}",
                )
            wait_ms = None if request.refused_bytes else self.node.wait_ms(request.payload)
            with within(None if wait_ms is None else request.came_s + wait_ms / 1000):
                await self._execute(request.payload, request.transaction, request.refused_bytes)
        except ConditionError as error:
            self._connection.log_refused(error.condition, error.description)
            return _error(error.condition, error.description)
        except DecodeError as malformed:
            return _error(conditions.DECODE_ERROR, str(malformed))
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a request to %s could not be answered", self.path)
            return _error(conditions.INTERNAL_ERROR, "internal error; see the broker's log")
        return None

    async def _execute(self, payload: bytes, transaction: "Transaction | None", refused_bytes: int) -> None:
        if not refused_bytes and self.node.silent(payload):
            await self.node.answer(self._connection, payload)
            return
        properties = decode_properties(payload)
        reply_to = properties.reply_to
        if reply_to is not None and not isinstance(reply_to, str):
            raise ConditionError(conditions.INVALID_FIELD, "expected a string as reply-to")
        to = self._reply_link(reply_to) or await self._posting(str(reply_to))
        if refused_bytes:
            answer = _refusal(refused_bytes)
            if transaction is not None:
                why = answer.application["statusDescription"]
                transaction.fail(
                    conditions.TRANSACTION_ROLLBACK, f"a request of the transaction failed: {why}"
                )
            await self._send(to, answer, properties)
        elif any(operation in payload for operation in self.node.large):
            async with self._node_links.large:
                await self._reply(to, payload, properties, transaction)
        else:
            await self._reply(to, payload, properties, transaction)

    async def _reply(
        self,
        to: ReplyLink | Posting,
        payload: bytes,
        properties: Properties,
        transaction: "Transaction | None",
    ) -> None:
        answer: Message | None
        if transaction is not None and isinstance(self.node, TransactionalNode):
            answer = await self.node.answer_in(self._connection, payload, transaction)
        else:
            answer = await self.node.answer(self._connection, payload)
        if answer is not None:
            await self._send(to, answer, properties)

    async def _send(self, to: ReplyLink | Posting, answer: Message, properties: Properties) -> None:
        """Sends the answer to a request with these properties."""
        answer.properties.to = properties.reply_to
        answer.properties.correlation_id = (
            properties.message_id if properties.correlation_id is None else properties.correlation_id
        )
        encoded = write_message(answer)
        if isinstance(to, ReplyLink):
            to.put(encoded)
            return
        try:
            await to.post(encoded)
        except PostingError as error:
            # The request has been executed; its result is lost.
            log.warning("an answer to %s is lost: %s", self._connection.client.peer, error)

    def _reply_link(self, reply_to: str | None) -> "ReplyLink | None":
        """The receiver of this connection for the answer; None if the reply-to is a queue."""
        found = self._node_links.by_path.get(self.path)
        here = [] if found is None else found.replies
        if reply_to is not None:
            for each in here:
                if each.address == reply_to or (each.address is None and each.name == reply_to):
                    return each
            if reply_to != PAIRED and path_of(reply_to) != self.path:
                return None
        for each in here:
            if each.name == self._link.name:
                return each
        if len(here) == 1:
            return here[0]
        raise ConditionError(
            conditions.NOT_FOUND,
            f"reply-to is {reply_to!a:.80}; expected the target address of a receiver from {self.path} "
            f"on this connection ({len(here)} are there), or the name of a queue",
        )

    async def _posting(self, address: str) -> Posting:
        """The producer for a queue that receives answers."""
        try:
            name = queue_name(address)
        except InvalidNameError as invalid:
            raise ConditionError(conditions.NOT_FOUND, f"reply-to: {invalid}") from None
        found = self._postings.get(name)
        if found is not None and not found.closed:
            self._postings.move_to_end(name)
            return found
        node_links = self._node_links
        if self._postings and node_links.postings >= NODE_POSTINGS_MAX:
            self._end_oldest_posting()
        if node_links.postings >= NODE_POSTINGS_MAX:
            raise ConditionError(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"reply-to: expected at most {NODE_POSTINGS_MAX} queues for answers to this connection",
            )
        node_links.postings += 1
        try:
            found = await Posting.open(self._connection, name)
        except BaseException as error:
            node_links.postings -= 1
            if isinstance(error, PostingError):
                raise ConditionError(error.condition, f"reply-to: {error}") from None
            raise
        if self._postings.pop(name, None) is not None:
            # It was closed.
            node_links.postings -= 1
        self._postings[name] = found
        if len(self._postings) > NODE_ADDRESSES_MAX:
            self._end_oldest_posting()
        return found

    def _end_oldest_posting(self) -> None:
        self._postings.popitem(last=False)[1].close()
        self._node_links.postings -= 1

    def _end_postings(self) -> None:
        while self._postings:
            self._end_oldest_posting()


def path_of(address: str) -> str:
    """`$management` for `/$management` and `amqp://host/$management`, too; other addresses unchanged."""
    try:
        scheme, separator, rest = address.partition("://")
        if separator and scheme.lower() in ("amqp", "amqps"):
            address = rest.partition("/")[2]
    except ValueError:
        return address
    return address.removeprefix("/")


def _refusal(size: int) -> Message:
    """The answer to a request that is too large, or for which there is no room now."""
    if size > NODE_REQUEST_BYTES:
        answer = reply(413, f"the request has {size} bytes; expected at most {NODE_REQUEST_BYTES}", None)
        answer.application["errorCondition"] = Symbol(conditions.MESSAGE_SIZE_EXCEEDED)
    else:
        answer = reply(
            503, f"{NODE_REQUEST_BYTES_MAX} bytes of requests wait for their turn; try again", None
        )
        answer.application["errorCondition"] = Symbol(conditions.TIMEOUT)
    return answer


def _error(condition: str, description: str) -> AmqpError:
    return AmqpError(condition=Symbol(condition), description=description)
