"""One client's socket: bytes to the engine, the engine's events to links, output once per turn.

Nothing here waits: what needs the coordinator (an attach, attaching.py) or a worker thread (a password's
hash) runs as a task and comes back to the connection, which may have gone by then.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from lightrail.amqp import events
from lightrail.amqp.connection import Connection
from lightrail.amqp.link import ATTACHING, SETTLE_FIRST, Link
from lightrail.amqp.performatives import AmqpError, Source, Target
from lightrail.amqp.types import Symbol
from lightrail.frontend.anonymous import AnonymousLink
from lightrail.frontend.attaching import Bound, Terms, attach
from lightrail.frontend.auth import Authentication
from lightrail.frontend.claims import Claims
from lightrail.frontend.deliveries import ConsumerLink
from lightrail.frontend.gathering import gathered
from lightrail.frontend.incoming import IncomingLink
from lightrail.frontend.intake import refuse
from lightrail.frontend.nodes import Inside, ReplyLink, RequestLink
from lightrail.model import conditions, limits
from lightrail.model.settings import is_loopback
from lightrail.namespace.rights import Caller
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.amqp.session import Session
    from lightrail.frontend.engine import Frontend

log = logging.getLogger("lightrail.frontend.connection")

LINK_DETACH = Symbol("link-detach")
NOBODY = Caller("")


class ClientConnection(asyncio.Protocol):
    """The asyncio protocol of one accepted socket."""

    __slots__ = (
        "_authenticating",
        "_authentication",
        "_dirty",
        "_links",
        "_peer",
        "_phase",
        "_sessions",
        "_unread",
        "_unread_max",
        "_written_bytes",
        "amqp",
        "caller",
        "claims",
        "closing",
        "consumers",
        "deadline_ms",
        "frontend",
        "has_more",
        "has_read_large",
        "inside",
        "lent_bytes",
        "number",
        "opened",
        "owner",
        "paused",
        "refusing",
        "room",
        "since_ms",
        "starved",
        "transport",
        "unanswered_bytes",
        "unfinished_bytes",
        "unsettled_bytes",
        "user",
        "window_bytes",
    )

    def __init__(self, frontend: "Frontend") -> None:
        self.frontend = frontend
        self.paused = False
        self.opened = False
        self.refusing = False
        """What it sends is refused; kept by the intake."""
        self.has_more = False
        """Its socket is not read, since what came is more than one turn may cost: the next ones go on."""
        self.closing = False
        self.consumers = 0
        """Receiving links that are bound to a queue."""
        self.starved: dict[ConsumerLink | ReplyLink, None] = {}
        """Those that get nothing until the client opens its session window or settles."""
        self.unsettled_bytes = 0
        """Of messages that it received and did not settle, and of the slices that they came in."""
        self.unanswered_bytes = 0
        """Of messages that it sent; kept by the intake."""
        self.unfinished_bytes = 0
        """Of messages whose last frame has not come, as the intake knows it."""
        self.claims: Claims | None = None
        """Tokens that the client has put, once it has put one."""
        self.inside: Inside | None = None
        """What it has at nodes of the frontend itself, once it has something there."""
        self.user: str | None = None
        self.caller = NOBODY
        """Who asks, for the rights; known when the client's open has come."""
        self.number = frontend.next_connection()
        """Unique over the life of this process, rising."""
        self.owner = frontend.lifetimes.connection(self.number)
        """Names whose lifetime is this connection's say so."""
        self.since_ms = 0
        """When the socket was accepted, in milliseconds since 1970."""
        self.deadline_ms: int | None = None
        self.transport: asyncio.Transport | None = None
        self.amqp: Connection | None = None
        self._authentication: Authentication | None = None
        self._authenticating = False
        """The client waits for us: its password is checked, or waits for that."""
        self._dirty = False
        self._links: dict[Bound, Terms] | None = None
        self._peer = ""
        self._phase = -1
        self._sessions = 0
        self.room = limits.WRITE_ROOM_MIN
        """Bytes that may wait for the socket before its receivers get no more; kept by the outflow."""
        self.window_bytes = _window(limits.WRITE_ROOM_MIN)
        """Bytes that shards may send ahead of what the socket's peer reads, over all receiving links."""
        self.lent_bytes = 0
        """Bytes that may wait beyond those, of answers."""
        self.has_read_large = False
        """It has read a message that was larger than its links may be sent ahead."""
        self._written_bytes = 0
        """Bytes written to the socket, those that wait for it included."""
        self._unread_max = 0
        """Bytes that may wait for the socket while `paused`, before it is not read either."""
        self._unread = False
        """The socket is not read since its peer does not read."""

    @property
    def id(self) -> str:
        """Names this connection to people, among those of all frontends and of their former lives."""
        return f"{self.frontend.name}.{self.frontend.boot:08x}.{self.number}"

    @property
    def peer(self) -> str:
        """Address of the client's socket."""
        return self._peer

    @property
    def user_name(self) -> str:
        """Who the client is; `anonymous` where it did not say."""
        return self.user or "anonymous"

    def caller_for(self, name: str) -> Caller:
        """Who acts on a name: whom a token says that was put for it, else who the client is."""
        found = None if self.claims is None else self.claims.caller_for(name)
        return self.caller if found is None else found

    @property
    def loopback(self) -> bool:
        """Whether the client is on this machine."""
        peer = None if self.transport is None else self.transport.get_extra_info("peername")
        return is_loopback(peer[0]) if isinstance(peer, tuple) else True

    @property
    def tls(self) -> bool:
        return self.transport is not None and self.transport.get_extra_info("ssl_object") is not None

    # --- the socket ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.since_ms = self.frontend.now_ms()
        self.transport.set_write_buffer_limits(self.room, self.room // 4)
        peer = self.transport.get_extra_info("peername")
        self._peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        authentication = self._authentication = self.frontend.authentication(self.transport)
        if not authentication.mechanisms:
            # To the AMQP engine no mechanism means no SASL layer; here it means that nobody may enter.
            log.warning("%s was turned away: no user is defined, and it is not on this machine", self._peer)
            self.frontend.counts.connections_refused += 1
            self.transport.abort()
            return
        self.amqp = self.frontend.new_amqp(authentication.mechanisms, authentication.anonymous)
        self.frontend.connected(self)
        self.touch()

    def data_received(self, data: bytes) -> None:
        amqp = self.amqp
        if amqp is None:
            return
        frontend = self.frontend
        now_ms = frontend.now_ms()
        frontend.counts.frame_bytes_received += len(data)
        try:
            self._feed(amqp, data, now_ms)
        except Exception:
            log.exception("a mistake of ours ends the connection from %s", self._peer)
            self.close(conditions.INTERNAL_ERROR, "a mistake of the broker ended this connection")
            self._drop_links()
        self.touch()

    def _feed(self, amqp: Connection, data: bytes, now_ms: int) -> None:
        for event in amqp.feed(data, now_ms):
            if type(event) is events.Transfers:
                producer = event.link.context
                if producer is not None:
                    if self.refusing and not isinstance(producer, RequestLink):
                        refuse(self, event)
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
            else:
                self._rare(event)
        if self.starved and not self.has_too_much_unsettled():
            starved, self.starved = self.starved, {}
            for link in starved:
                link.writable()
        if amqp.unfinished_bytes != self.unfinished_bytes:
            self.unfinished_bytes = amqp.unfinished_bytes
            if not self.frontend.intake.unfinished(self, self.unfinished_bytes):
                self.close(conditions.RESOURCE_LIMIT_EXCEEDED, "too many messages have begun and not ended")
                self._drop_links()
        if amqp.has_more and not self.has_more and self.transport is not None:
            self.has_more = True
            if not self.transport.is_closing():
                self.transport.pause_reading()
            self.frontend.soon(self._go_on)

    def _go_on(self) -> None:
        """Another turn for what came before."""
        self.has_more = False
        self.data_received(b"")
        if not self.has_more and not self.frontend.intake.holds(self):
            self.go_on_reading()

    def eof_received(self) -> bool:
        return False

    def hold_reading(self) -> None:
        """More is unanswered than should be: the client waits."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def go_on_reading(self) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if not (self.has_more or self._unread):
            self.transport.resume_reading()

    def go_on_taking(self) -> None:
        """What it sends is not refused any more; credit that refused messages used up is granted anew."""
        self.refusing = False
        for link in list(self._links or ()):
            if isinstance(link, IncomingLink | AnonymousLink):
                link.relieved()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_links()
        self.frontend.intake.forget(self)
        self.frontend.outflow.forget(self)
        if self._authentication is not None:
            self._authentication.gone = True
        if self.claims is not None:
            self.claims.close()
        self.frontend.disconnected(self)
        self.deadline_ms = None
        self.amqp = None
        self.transport = None

    def pause_writing(self) -> None:
        self.paused = True
        self.frontend.counts.write_stalls += 1
        if self.transport is not None:
            self._unread_max = self.transport.get_write_buffer_size() + self.window_bytes

    def resume_writing(self) -> None:
        self.paused = False
        self.frontend.outflow.give_back(self)
        self.frontend.outflow.reservations.read(self)
        if self._unread:
            self._unread = False
            if not self.frontend.intake.holds(self):
                self.go_on_reading()
        for link in self._links or ():
            if isinstance(link, ConsumerLink | ReplyLink):
                link.writable()

    # --- output ----------------------------------------------------------------------------------------

    def touch(self) -> None:
        """Something may have to be written: it leaves at the end of this turn of the loop."""
        if not self._dirty:
            self._dirty = True
            self.frontend.dirty.append(self)
            self.frontend.schedule_flush()

    def flush(self) -> None:
        """Writes what the engine has, in one piece; of large messages in pieces that lie where they came."""
        self._dirty = False
        amqp = self.amqp
        transport = self.transport
        if amqp is None or transport is None:
            return
        if amqp.events:
            # A command to a link may end more than it was meant for: an attach that fits into no frame.
            self._feed(amqp, b"", self.frontend.now_ms())
        output = amqp.output
        if output:
            if amqp.has_large_output and not self.tls:
                pieces = gathered(output)
                size = sum(map(len, pieces))
                transport.writelines(pieces)
            else:
                # TLS would make a record of each piece, and copies what it encrypts.
                data = b"".join(output)
                size = len(data)
                transport.write(data)
            output.clear()
            amqp.has_large_output = False
            self.frontend.counts.frame_bytes_sent += size
            self._written_bytes += size
            if self.paused and transport.get_write_buffer_size() > self._unread_max:
                self._unread_too_much(transport)
        if amqp.closed and not self.closing:
            self.closing = True
            transport.close()
        if amqp.phase != self._phase:
            # A deadline of the new phase may be sooner than the one that is waited for.
            self._phase = amqp.phase
            self.deadline_ms = None
        self.frontend.schedule_tick(self)

    def _unread_too_much(self, transport: asyncio.Transport) -> None:
        """The peer does not read: it is not read either when what may wait for it is used up."""
        before = self.lent_bytes
        while self.frontend.outflow.lend(self):
            self._unread_max += self.lent_bytes - before
            before = self.lent_bytes
            if transport.get_write_buffer_size() <= self._unread_max:
                return
        # What it sends is answered, and it reads no answers. Its silence is its own: in time it ends.
        self._unread = True
        self.hold_reading()

    # --- what may wait for the socket, see outflow.py ---------------------------------------------------

    def set_room(self, room: int) -> None:
        """So many bytes may wait for the socket from now on."""
        self.room = room
        self.window_bytes = _window(room)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.set_write_buffer_limits(room, room // 4)

    def has_too_much_unsettled(self) -> bool:
        """Whether it has to settle first: messages by their bytes, and what each run of them takes."""
        if self.unsettled_bytes > limits.CONNECTION_UNSETTLED_BYTES:
            return True
        sessions = () if self.amqp is None else self.amqp.sessions.values()
        runs = sum(len(session.outgoing.ranges) for session in sessions)
        return self.unsettled_bytes + runs * limits.UNSETTLED_RUN_BYTES > limits.CONNECTION_UNSETTLED_BYTES

    def waiting_bytes(self) -> int:
        """Bytes that wait for the socket."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def taken_bytes(self) -> int:
        """Bytes that the socket has taken, over the life of the connection."""
        return self._written_bytes - self.waiting_bytes()

    def delivered(self) -> int:
        """Messages that its receivers were sent from queues: rises as long as they get any."""
        return sum(link.sent for link in self._links or () if isinstance(link, ConsumerLink))

    def narrow(self) -> None:
        """Its shards may send less ahead from now on."""
        for link in self._links or ():
            if isinstance(link, ConsumerLink):
                link.narrow()

    def next_tick(self, now_ms: int) -> int | None:
        """Acts on what is due, and says when to come again: None for never."""
        if self.closing:
            return now_ms + limits.CLOSING_TIME_MS
        return None if self.amqp is None else self._tick_engine(self.amqp, now_ms)

    def tick(self, now_ms: int) -> None:
        """A deadline has come: idle time-outs, half-open connections, last bytes that nobody reads."""
        amqp = self.amqp
        self.deadline_ms = None
        if amqp is None:
            return
        if self.closing:
            self.abort()
            return
        if self.has_more or self.frontend.intake.holds(self):
            # It is us who do not listen.
            amqp.heard(now_ms)
        self.deadline_ms = self._tick_engine(amqp, now_ms)
        # What the tick led to is told by the next feed.
        self._feed(amqp, b"", now_ms)
        self.touch()

    def _tick_engine(self, amqp: Connection, now_ms: int) -> int | None:
        """See Connection.tick. The time to open does not run while the client waits for us."""
        if self._authenticating:
            amqp.excuse(now_ms)
        return amqp.tick(now_ms)

    def excuse(self, until_ms: int) -> None:
        """The client's silence up to then is not its own."""
        if self.amqp is not None:
            self.amqp.excuse(until_ms)

    def close(self, condition: str, description: str) -> None:
        """Ends the connection in order, with a condition that tells the client why."""
        if self.amqp is not None and not self.amqp.closed:
            self.amqp.close(condition, description)
            self.touch()

    def cut(self, why: str) -> None:
        """Ends the connection of a peer that does not read: a close would wait behind what is unread."""
        log.warning("connection from %s is cut: %s", self._peer, why)
        self.frontend.counts.connections_failed += 1
        self.abort()

    def abort(self) -> None:
        """Ends the socket at once; what was not written is lost."""
        if self.transport is not None:
            self.transport.abort()

    # --- rare events -----------------------------------------------------------------------------------

    def _rare(self, event: object) -> None:
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    def _task(self, work: Coroutine[Any, Any, None]) -> None:
        self.frontend.spawn(work)

    def _sasl(self, event: events.SaslInit | events.SaslResponse) -> None:
        self._task(self._authenticate(event))

    async def _authenticate(self, event: events.SaslInit | events.SaslResponse) -> None:
        authentication = self._authentication
        amqp = self.amqp
        if authentication is None or amqp is None:
            return
        self._authenticating = True
        step = await authentication.answer(event)
        self._authenticating = False
        if self.amqp is None or amqp.closed:
            return
        # The time that it took is not the client's.
        amqp.excuse(self.frontend.now_ms())
        if step.challenge is not None:
            amqp.sasl_challenge(step.challenge)
        elif step.user is not None:
            self.user = step.user
            amqp.sasl_outcome(True, step.user, step.data)
        else:
            self.frontend.counts.authentications_failed += 1
            chosen = authentication.chosen
            if not step.is_logged:
                log.warning("authentication by %s from %s failed: %s", chosen, self._peer, step.reason)
            amqp.sasl_outcome(False, None)
        # The client may have sent its open along with the last response.
        self._feed(amqp, b"", self.frontend.now_ms())
        self.touch()

    def _opened(self, event: events.Opened) -> None:
        self.opened = True
        assert self._authentication is not None
        self.caller = self._authentication.caller(self.user, self.frontend.directory)
        self.frontend.opened(self)
        if self.frontend.stopping:
            self.close(conditions.CONNECTION_FORCED, "the broker is shutting down")

    def _begun(self, event: events.Begun) -> None:
        self.frontend.counts.sessions += 1
        self._sessions += 1

    def _attached(self, event: events.Attached) -> None:
        if not self.frontend.nodes.attach(self, event.link):
            self._task(attach(self, event.link))

    def _detached(self, event: events.Detached) -> None:
        terms = self._links.get(event.link.context) if self._links is not None else None
        self._drop_link(event.link)
        if terms is not None and terms.at_close is not None and event.closed and event.by_peer:
            self._task(self._finish_close(event.link, terms.at_close()))

    async def _finish_close(self, link: Link, work: Awaitable[Refusal | None]) -> None:
        """Answers a closing detach when what ends with the link has ended, or with why it has not."""
        try:
            refusal = await work
        except Exception:
            log.exception("what ends with a link could not be ended")
            refusal = Refusal(conditions.INTERNAL_ERROR, "internal error; whether it has ended is not known")
        if refusal is None:
            link.answer_close()
        else:
            link.answer_close(refusal.condition, refusal.description)
        self.touch()

    def _ended(self, event: events.Ended) -> None:
        self.frontend.counts.sessions -= 1
        self._sessions -= 1
        for link in event.session.links:
            self._drop_link(link)
        self.frontend.lifetimes.ended(self.session_owner(event.session))

    def _drop_link(self, link: Link) -> None:
        bound = link.context
        if bound is not None:
            link.context = None
            bound.close()
            self._let_go(bound)

    def _let_go(self, bound: Bound) -> None:
        """A link is not bound any more: nothing of it is kept, and what went with it goes."""
        terms = self._links.pop(bound, None) if self._links is not None else None
        if terms is not None:
            self._end(terms)

    def _end(self, terms: Terms) -> None:
        frontend = self.frontend
        frontend.counts.links_closed += 1
        if terms.hold is not None:
            frontend.guard.release(terms.hold)
        frontend.lifetimes.ended(terms.owner)

    def _drop_links(self) -> None:
        self.frontend.counts.sessions -= self._sessions
        self._sessions = 0
        links, self._links = self._links, None
        for bound, terms in (links or {}).items():
            bound.close()
            self._end(terms)
        self.frontend.lifetimes.ended(self.owner)

    def _header_rejected(self, event: events.HeaderRejected) -> None:
        self.frontend.strangers.heard(event.found, self._peer, self.frontend.now_ms())

    def _closed(self, event: events.Closed) -> None:
        if event.error is not None:
            if not event.by_peer:
                self.frontend.counts.connections_failed += 1
            log.info("connection from %s ended: %s", self._peer, describe(event.error))
        self._drop_links()

    # --- links and what is behind them -----------------------------------------------------------------

    def bound(self, bound: Bound, terms: Terms) -> None:
        """A link is bound from now on, until it is detached or `lose` or `refuse_link` ends it."""
        if self._links is None:
            self._links = {}
        self._links[bound] = terms
        self.frontend.counts.links_opened += 1

    def session_owner(self, session: "Session") -> str:
        """Names whose lifetime is the session's say so."""
        return f"{self.owner}/{session.channel}"

    def owns(self, owner: str) -> bool:
        """Whether a name of this owner goes with this connection, or with a part of it."""
        return owner == self.owner or owner.startswith(self.owner + "/")

    def accept_incoming(self, link: Link) -> None:
        """What the client sends to is there: echo the attach, with receiver-settle-mode first (ADR 24)."""
        target = link.target
        assert isinstance(target, Target)
        _forget_durability(target)
        link.accept(
            source=link.source,
            target=target,
            rcv_settle_mode=SETTLE_FIRST,
            offered_capabilities=self._terms(link).offered,
        )
        self.touch()

    def accept_outgoing(self, link: Link) -> None:
        """The shard has the consumer: echo the attach with the filters that are applied (3.5.3)."""
        source = link.source
        assert isinstance(source, Source)
        terms = self._terms(link)
        source.filter = terms.filter
        if not terms.outlives:
            _forget_durability(source)
        link.accept(source=source, target=link.target, offered_capabilities=terms.offered)
        self.touch()

    def _terms(self, link: Link) -> Terms:
        assert self._links is not None
        return self._links[link.context]

    def refuse_link(self, link: Link, attached: bool, refusal: Refusal) -> None:
        """The shard will not have the link: refused, or detached when it had been accepted."""
        bound = link.context
        link.context = None
        self._let_go(bound)
        self._say_end(link, attached, refusal.condition, refusal.description)

    def lose(
        self, link: Link, condition: str, description: str, info: dict[Symbol, Any] | None = None
    ) -> None:
        """The link may not go on: its name was deleted, its right was revoked, or the like."""
        attached = link.state != ATTACHING
        self._drop_link(link)
        self._say_end(link, attached, condition, description, info)

    def _say_end(
        self,
        link: Link,
        attached: bool,
        condition: str,
        description: str,
        info: dict[Symbol, Any] | None = None,
    ) -> None:
        if self.amqp is None:
            return
        if attached:
            link.detach(condition, description, info=info)
        else:
            link.refuse(condition, description, info)
        self.touch()


def _window(room: int) -> int:
    """Bytes that shards may send ahead for a connection with so much room."""
    return limits.DELIVERY_WINDOW_BYTES * room // limits.WRITE_HIGH_WATER


def _forget_durability(terminus: Source | Target) -> None:
    """The answer says what is so: a link that went leaves nothing of its terminus behind (3.5.3, 3.5.4)."""
    terminus.durable = 0
    terminus.expiry_policy = LINK_DETACH
    terminus.timeout = 0


def describe(error: AmqpError) -> str:
    """An AMQP error in one line for a log."""
    return f"{error.condition}: {error.description or ''}"


Handler = Callable[[ClientConnection, Any], None]
_HANDLERS: dict[type, Handler] = {
    events.SaslInit: ClientConnection._sasl,
    events.SaslResponse: ClientConnection._sasl,
    events.Opened: ClientConnection._opened,
    events.Begun: ClientConnection._begun,
    events.Attached: ClientConnection._attached,
    events.Detached: ClientConnection._detached,
    events.Ended: ClientConnection._ended,
    events.Closed: ClientConnection._closed,
    events.HeaderRejected: ClientConnection._header_rejected,
}
