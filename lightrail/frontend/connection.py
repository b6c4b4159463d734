"""One client's connection: passes bytes to the engine, the engine's events to links, output once per turn.

No function here waits: work that needs the coordinator (an attach) or a worker thread (a password's hash)
runs as a task, and the connection may have ended when the task returns.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from lightrail.amqp import events
from lightrail.amqp.connection import Connection
from lightrail.amqp.link import Link
from lightrail.amqp.performatives import Coordinator
from lightrail.amqp.phases import CLOSING, HEADER
from lightrail.amqp.values import Symbol
from lightrail.frontend.auth import FIRST_USER, Authentication, SaslExchange
from lightrail.frontend.client import Client, is_deaf_after_close
from lightrail.frontend.client_socket import ClientSocket
from lightrail.frontend.links.attaching import attach
from lightrail.frontend.links.bound import Bound
from lightrail.frontend.links.bound_links import BoundLinks, ending_of
from lightrail.frontend.nodes.links import RequestLink
from lightrail.frontend.nodes.replies import NodeLinks
from lightrail.frontend.transactions.transactions import Transactions
from lightrail.frontend.unsettled_bytes import UnsettledRuns
from lightrail.frontend.websocket import HTTP_FIRST, ServedWebSocket, begin_websocket, is_http
from lightrail.model import conditions, limits
from lightrail.model.links import Ending
from lightrail.model.protocols import Address
from lightrail.wire.forwarded import Forwarded

log = logging.getLogger("lightrail.frontend.connection")


@dataclass(slots=True, eq=False, repr=False)
class ClientConnection(ClientSocket):
    """The asyncio protocol of one accepted socket."""

    _source: Address | None = None
    """The client's address if a load balancer named it; None: the address of the socket."""
    number: int = field(init=False)
    """Rising number, unique in the lifetime of this process."""
    node_links: NodeLinks | None = None
    """Links to nodes of the frontend; None before the first."""
    transactions: Transactions | None = None
    """Created with the first link to the coordinator, or for a frame with an unknown transaction."""
    amqp: Connection | None = None
    """The engine; None when the socket is closed."""
    since_ms: int = 0
    """Time at which the socket was accepted, in milliseconds since 1970."""
    deadline_ms: int | None = None
    """The entry in `Deadlines`; None without one, or if the deadline may have become sooner."""
    opened: bool = False
    """Whether the client's open has arrived."""
    closing: bool = False
    starved: dict[Bound, None] = field(default_factory=dict)
    """Links that receive no messages until the client opens its session window or settles."""
    unsettled_bytes: int = 0
    """Bytes of messages that the client received and has not settled, including those of their slices."""
    _unsettled_runs: UnsettledRuns = field(default_factory=UnsettledRuns)
    unfinished_bytes: int = 0
    """Bytes of messages whose last frame has not arrived, as last reported to the intake."""
    sasl_exchange: SaslExchange | None = None
    websocket: ServedWebSocket | None = None
    """The protocol between the socket and this connection if the client began with an HTTP request."""
    _dirty: bool = False
    _phase: int = -1
    _sessions: int = 0
    _begun_count: int = 0

    def __post_init__(self) -> None:
        self.number = self.frontend.connections.next_number()
        self.client = Client(self.frontend.lifetimes.connection(self.number))
        self.links = BoundLinks(self)

    @property
    def id(self) -> str:
        """The id of this connection, unique among those of all frontends and of their former processes."""
        return f"{self.frontend.name}.{self.frontend.boot:08x}.{self.number}"

    @property
    def is_open(self) -> bool:
        """Whether the socket is open."""
        return self.amqp is not None

    # --- the socket ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.since_ms = self.frontend.now_ms()
        self.transport.set_write_buffer_limits(self.room, self.room // 4)
        self.frontend.open_files.accepted(self.transport.get_extra_info("socket"))
        peer = self._source or self.transport.get_extra_info("peername")
        source = peer[:2] if isinstance(peer, tuple) else None
        self.client.accept(peer, tls=self.transport.get_extra_info("ssl_object") is not None)
        if not self._authenticate(self.frontend.authentication(self.transport, source)):
            # To the AMQP engine no mechanism means no SASL layer; here it means that the client is refused.
            log.warning("%s was refused: no user is defined, and it is not on this machine", self.client.peer)
            self.frontend.counts.connections_refused += 1
            self.transport.abort()
            return
        self.frontend.connections.add(self)
        self.touch()

    def _authenticate(self, authentication: Authentication) -> bool:
        """Offers the mechanisms of a client; returns whether there are any."""
        if not authentication.mechanisms:
            return False
        self.sasl_exchange = SaslExchange(self, authentication)
        self.amqp = self.frontend.new_amqp(authentication.mechanisms, authentication.anonymous)
        return True

    def data_received(self, data: bytes) -> None:
        if (amqp := self.amqp) is None:
            return
        if data[:1] in HTTP_FIRST and amqp.phase == HEADER and self.websocket is None and is_http(data):
            # No protocol header of AMQP begins like this.
            begin_websocket(self, data)
            return
        self.frontend.counts.frame_bytes_received += len(data)
        try:
            self._feed(amqp, data, self.frontend.now_ms())
        except Exception:
            log.exception("an internal error ends the connection from %s", self.client.peer)
            self.close(conditions.INTERNAL_ERROR, "an internal error of the broker ended this connection")
        self.touch()

    def forward(self, forwarded: Forwarded) -> bool:
        """Sets the client that a gateway forwards; returns whether that client may log in."""
        self.client.forward(forwarded)
        # No AMQP bytes have arrived: an engine that offers this client's mechanisms replaces the first one.
        return self._authenticate(self.frontend.forwarded_authentication(forwarded))

    def _feed(self, amqp: Connection, data: bytes, now_ms: int) -> None:
        for event in amqp.feed(data, now_ms):
            if type(event) is events.Transfers:
                producer = event.link.context
                if event.txn_id is not None:
                    self._all_transactions().transfers(event, now_ms)
                elif producer is not None:
                    if self.refusing and not isinstance(producer, RequestLink):
                        self.frontend.intake.refuse(self, event)
                    else:
                        producer.transfers(event, now_ms)
            elif type(event) is events.Outcome:
                consumer = event.link.context
                if consumer is not None:
                    consumer.outcome(event)
            elif type(event) is events.Credit:
                consumer = event.link.context
                if consumer is not None:
                    consumer.credit(event)
            elif (handler := _HANDLERS.get(type(event))) is not None:
                handler(self, event)
        if self.starved:
            self._wake()
        if amqp.unfinished_bytes != self.unfinished_bytes:
            self.unfinished_bytes = amqp.unfinished_bytes
            if not self.frontend.intake.unfinished(self, self.unfinished_bytes):
                self.close(conditions.RESOURCE_LIMIT_EXCEEDED, "too many messages have begun and not ended")
        if amqp.has_more and not self.has_more and self.transport is not None:
            self.has_more = True
            if not self.transport.is_closing():
                self.transport.pause_reading()
            self.frontend.soon(self._take_left_input)

    def _wake(self) -> None:
        """Starved links go on; if the client has to settle first, only those within their share."""
        is_full = self.has_too_much_unsettled()
        starved, self.starved = self.starved, {}
        for link in starved:
            if is_full and link.exceeds_share():
                self.starved[link] = None
            else:
                link.writable()

    def _take_left_input(self) -> None:
        """Continues with input that was left for another turn."""
        self.has_more = False
        self.data_received(b"")
        if not self.has_more and not self.frontend.intake.holds(self):
            self.go_on_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        ClientSocket.connection_lost(self, exc)
        self._end_links(Ending.FAILED if self.amqp is not None and self.amqp.opened else Ending.BY_BROKER)
        self.frontend.intake.forget(self)
        self.frontend.outflow.forget(self)
        if self.sasl_exchange is not None:
            self.sasl_exchange.abandon()
        if self.client.claims is not None:
            self.client.claims.close()
        self.frontend.ended(self)
        self.frontend.sole_connections.ended(self)
        self.frontend.deadlines.forget_ended()
        self.deadline_ms = self.amqp = self.transport = None

    # --- output ----------------------------------------------------------------------------------------

    def touch(self) -> None:
        """Schedules the output to be written at the end of this turn of the loop."""
        if not self._dirty:
            self._dirty = True
            self.frontend.dirty.append(self)
            self.frontend.schedule_flush()

    def flush(self) -> None:
        """Writes the engine's output, once per turn."""
        self._dirty = False
        amqp, transport = self.amqp, self.transport
        if amqp is None or transport is None or self.is_held:
            return
        if amqp.events:
            # A command to one link may end others as well, such as an attach that is too large for a frame.
            self._feed(amqp, b"", self.frontend.now_ms())
        if amqp.output:
            self._write(amqp, transport)
        if amqp.closed and not self.closing:
            self.closing = True
            transport.close()
        if amqp.phase != self._phase:
            # A deadline of the new phase may be sooner than the present one.
            self._phase, self.deadline_ms = amqp.phase, None
            if amqp.phase == CLOSING:
                # Other closes have ended the links: the engine has closed, as the client broke the protocol.
                self._end_links(Ending.FAILED)
                self._end_output()
        if self.deadline_ms is None:
            self.frontend.deadlines.schedule(self)

    def has_too_much_unsettled(self) -> bool:
        """Whether links beyond their share wait for settlements, by bytes of messages and of runs."""
        if self.unsettled_bytes > limits.CONNECTION_UNSETTLED_BYTES:
            return True
        sessions = {} if self.amqp is None else self.amqp.sessions
        return self._unsettled_runs.exceed(sessions, self.unsettled_bytes, self.frontend.now_ms())

    # --- deadlines (connections.py) --------------------------------------------------------------------

    def next_tick(self, now_ms: int) -> int | None:
        """Executes due deadlines, and returns the next one, or None."""
        if self.closing:
            return now_ms + limits.CLOSING_TIME_MS
        return None if self.amqp is None else self._tick_engine(self.amqp, now_ms)

    def tick(self, now_ms: int) -> None:
        """A deadline has passed: of an idle client, a half-open connection, or last bytes that are unread."""
        amqp, self.deadline_ms = self.amqp, None
        if amqp is None:
            return
        if self.closing:
            self.abort()
            return
        if self.has_more or self.frontend.intake.holds(self):
            # The socket is not read, so the client may not be idle.
            amqp.excuse_silence(now_ms)
        self.deadline_ms = self._tick_engine(amqp, now_ms)
        # Events of the tick are returned by the next feed.
        self._feed(amqp, b"", now_ms)
        self.touch()

    def _tick_engine(self, amqp: Connection, now_ms: int) -> int | None:
        """See Connection.tick. The time to open is suspended while the client waits for the broker."""
        if self.sasl_exchange is not None and self.sasl_exchange.is_checking:
            amqp.excuse(now_ms)
        return amqp.tick(now_ms)

    # --- the end ---------------------------------------------------------------------------------------

    def close(self, condition: str, description: str, info: dict[Symbol, Any] | None = None) -> None:
        """Ends the connection with a close, and its links: the client's frames are dropped now (2.4.6)."""
        amqp = self.amqp
        if amqp is None or amqp.closed:
            return
        if self.frontend.stopping and is_deaf_after_close(amqp.peer_open):
            amqp.terminate(condition, description)
        else:
            amqp.close(condition, description, info)
        self._end_links(Ending.BY_BROKER)
        self.touch()

    def _end_links(self, ending: Ending) -> None:
        self._count_sessions(-self._sessions)
        self.links.close_all(ending)
        self.frontend.lifetimes.ended(self.client.owner)

    def _count_sessions(self, change: int) -> None:
        self._sessions += change
        self.frontend.counts.sessions += change

    # --- rare events -----------------------------------------------------------------------------------

    def _sasl(self, event: events.SaslInit | events.SaslResponse) -> None:
        assert self.sasl_exchange is not None
        self.sasl_exchange.begin(event)

    def _open_asked(self, event: events.OpenAsked) -> None:
        self.frontend.spawn(self.frontend.sole_connections.decide(self, event.open))

    def _opened(self, event: events.Opened) -> None:
        self.opened = True
        assert self.sasl_exchange is not None
        self.sasl_exchange.authenticated()
        self.frontend.opened(self, event.open.hostname)
        if self.frontend.stopping:
            self.close(conditions.CONNECTION_FORCED, "the broker is shutting down")
        elif self.sasl_exchange.is_outdated:
            self.close(conditions.CONNECTION_FORCED, FIRST_USER)

    def _attached(self, event: events.Attached) -> None:
        if self.frontend.unproven.refuses(self, event.link):
            return
        if isinstance(event.link.target, Coordinator):
            self._all_transactions().attach(event.link)
        elif not self.frontend.nodes.attach(self, event.link):
            self.frontend.spawn(self._attach(event.link))

    async def _attach(self, link: Link) -> None:
        try:
            await attach(self, link)
        finally:
            session = link.session
            if self.frontend.lifetimes.has_names(self.client.session_owner(session)):
                session.answers_end = True

    def _all_transactions(self) -> Transactions:
        if self.transactions is None:
            self.transactions = Transactions(self)
        return self.transactions

    def _detached(self, event: events.Detached) -> None:
        self.links.detached(event)

    def _resumed(self, event: events.Resumed | events.SenderSettled) -> None:
        if (bound := event.link.context) is not None:
            (bound.resumed if type(event) is events.Resumed else bound.sender_settled)(event)

    def _begun(self, event: events.Begun) -> None:
        self._count_sessions(1)
        event.session.context = self._begun_count
        self._begun_count += 1
        self.frontend.unproven.begun(self, self._sessions)

    def _ended(self, event: events.Ended) -> None:
        self._count_sessions(-1)
        self.links.session_ended(event)
        if not event.by_peer and self.transactions is not None:
            self.transactions.session_ended()

    def _header_rejected(self, event: events.HeaderRejected) -> None:
        self.frontend.strangers.heard(event.found, self.client.peer, self.frontend.now_ms())

    def _closed(self, event: events.Closed) -> None:
        # Before the client has the answer: it may reconnect with its container-id at once.
        self.frontend.sole_connections.ended(self)
        if event.error is not None:
            self.frontend.counts.connections_failed += not event.by_peer
            found = event.error.condition, event.error.description or ""
            log.info("connection from %s ended: %s: %s", self.client.peer, *found)
        self._end_links(ending_of(event))
        self.is_held = self.frontend.lifetimes.after_end(self.client.owner, self.go_on_writing)


_HANDLERS: dict[type, Callable[[ClientConnection, Any], None]] = {
    events.SaslInit: ClientConnection._sasl,
    events.SaslResponse: ClientConnection._sasl,
    events.OpenAsked: ClientConnection._open_asked,
    events.Opened: ClientConnection._opened,
    events.Begun: ClientConnection._begun,
    events.Attached: ClientConnection._attached,
    events.Acquire: lambda connection, event: connection._all_transactions().acquire(event),
    events.Retire: lambda connection, event: connection._all_transactions().retire(event),
    events.Posting: lambda connection, event: connection._all_transactions().posting(event),
    events.Detached: ClientConnection._detached,
    events.Resumed: ClientConnection._resumed,
    events.SenderSettled: ClientConnection._resumed,
    events.Ended: ClientConnection._ended,
    events.Closed: ClientConnection._closed,
    events.HeaderRejected: ClientConnection._header_rejected,
}
