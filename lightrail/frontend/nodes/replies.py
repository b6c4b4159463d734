"""Answers of nodes to a client: its links from them, and what all of its links to nodes have in common."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.amqp.events import Credit, Outcome
from lightrail.amqp.link import ATTACHED, SETTLE_SETTLED
from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.sections import Properties, decode_properties
from lightrail.amqp.values import DecodeError
from lightrail.frontend.links.bound import Bound

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.nodes.links import RequestLink
    from lightrail.frontend.nodes.node import Node

NODE_REPLY_BYTES: Final[int] = 4 * 1024 * 1024
"""Bytes of answers that may wait for a client's credit; beyond, it may send no requests."""
REFUSED_REQUEST_BYTES: Final[int] = 16 * 1024
"""Bytes that are kept of a request that is not executed, for its answer; one with larger ids is rejected."""
LARGE_ANSWERS_MAX: Final[int] = 16
"""Requests of a connection at a time whose answers have messages, of MANAGEMENT_PAGE_BYTES each."""


@dataclass(slots=True, eq=False, repr=False)
class NodeAt:
    """A node at one address, with the connection's links to it."""

    node: "Node"
    requests: "list[RequestLink]" = field(default_factory=list)
    replies: "list[ReplyLink]" = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class NodeLinks:
    """All links of one connection to nodes."""

    by_path: dict[str, NodeAt] = field(default_factory=dict)
    request_bytes: int = 0
    """Bytes of requests that wait for their turn."""
    waiting_bytes: int = 0
    """Bytes of answers that wait for credit, or for the socket."""
    postings: int = 0
    """Queues that are kept open for answers."""
    large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LARGE_ANSWERS_MAX))
    """Has to be acquired to make an answer with messages."""
    _has_stopped: bool = False
    """Whether links wait until fewer answers do."""

    def at(self, path: str, made: "Node") -> NodeAt:
        """The links to an address: those for requests and answers share one node, `made` for the first."""
        return self.by_path.setdefault(path, NodeAt(made))

    def leave(self, path: str) -> None:
        """A link to an address has ended."""
        here = self.by_path[path]
        if not (here.requests or here.replies):
            del self.by_path[path]

    @property
    def is_full(self) -> bool:
        """Whether requests have to wait until the client has received answers; `relieved` follows."""
        found = self.waiting_bytes > NODE_REPLY_BYTES
        self._has_stopped = self._has_stopped or found
        return found

    def relieved(self) -> None:
        """Fewer answers wait: executes requests that waited for that, and grants credit for new ones."""
        if not self._has_stopped or self.is_full:
            return
        self._has_stopped = False
        for here in list(self.by_path.values()):
            for each in here.requests:
                each.resume()


class ReplyLink(Bound):
    """The client's link from a node: answers that wait for its credit."""

    __slots__ = (
        "_closed",
        "_connection",
        "_drain",
        "_line",
        "_link",
        "_node_links",
        "_settled",
        "node",
        "path",
    )

    def __init__(
        self, connection: "ClientConnection", node_links: NodeLinks, link: "Link", node: "Node", path: str
    ) -> None:
        self.node = node
        self.path = path
        self._connection = connection
        self._node_links = node_links
        self._link = link
        self._line: deque[bytes] = deque()
        self._drain = False
        self._closed = False
        # Outcomes have no effect, but some clients have to be able to settle deliveries.
        self._settled = link.snd_settle_mode == SETTLE_SETTLED

    @property
    def name(self) -> str:
        return self._link.name

    @property
    def address(self) -> str | None:
        """The reply-to of requests whose answers are for this link."""
        address = getattr(self._link.target, "address", None)
        return address if isinstance(address, str) else None

    def put(self, message: bytes) -> None:
        """Sends an answer to the client; discards it when the link has ended in the meantime."""
        if not self._closed:
            self._line.append(message)
            self._node_links.waiting_bytes += len(message)
            self.writable()

    def credit(self, event: Credit) -> None:
        """The client grants credit for answers."""
        self._drain = event.drain
        self.writable()

    def outcome(self, event: Outcome) -> None:
        """The client's outcome for answers; the client may wait for the broker to settle."""
        if not event.settled and event.state is not None:
            self._link.settle_sent(event.first, event.last, event.state)
            self._connection.touch()

    def writable(self) -> None:
        """Sends what credit, session window and socket allow."""
        link, line, connection = self._link, self._line, self._connection
        sent = 0
        while line and link.state == ATTACHED and link.credit > 0 and not (link.backlog or connection.paused):
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
            self._node_links.waiting_bytes -= sent
            self._node_links.relieved()

    def close(self) -> None:
        """The client's link has ended; its waiting answers are discarded."""
        self._closed = True
        self._node_links.by_path[self.path].replies.remove(self)
        self._node_links.leave(self.path)
        self._node_links.waiting_bytes -= sum(map(len, self._line))
        self._line.clear()
        self._connection.starved.pop(self, None)
        self._node_links.relieved()


def addresses_of(payload: bytes) -> bytes | None:
    """What the answer to a request needs of it; None if that can't be read, or is too much to keep."""
    try:
        found = decode_properties(payload)
    except DecodeError:
        return None
    kept = Properties(message_id=found.message_id, reply_to=found.reply_to)
    kept.correlation_id = found.correlation_id
    encoded = write_message(Message(kept))
    return encoded if len(encoded) <= REFUSED_REQUEST_BYTES else None
