"""One AMQP connection: a plain socket, and python-qpid-proton's C engine through cffi.

There is no wrapper object per message or event: no collector is attached, states are read once per read of
the socket. Measured with both halves in one process, the C engine and the calls into it cost 0.9 µs per
100-byte message for each side.
"""

import select
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from cproton_ffi import ffi as _ffi
from cproton_ffi import lib as _lib

from lightrail.bench.plan import Url

ffi: Any = _ffi
lib: Any = _lib

IO_BYTES: Final = 256 * 1024
"""Bytes of one read and of one write."""
MAX_FRAME_SIZE: Final = 64 * 1024
OPENING_TIME_S: Final = 10.0
CLOSING_TIME_S: Final = 2.0
IDLE_TIME_OUT_MS: Final = 60_000
ACCEPTED: Final = 0x24
OUTCOMES: Final = {0x23: "received", 0x24: "accepted", 0x25: "rejected", 0x26: "released", 0x27: "modified"}
"""Outcome descriptors (spec 3.4)."""

_incoming: Final = bytearray(IO_BYTES)
_incoming_view: Final = memoryview(_incoming)
_incoming_start: Final = ffi.from_buffer("char[]", _incoming)
_outgoing: Final = bytearray(IO_BYTES)
_outgoing_view: Final = memoryview(_outgoing)
_outgoing_start: Final = ffi.from_buffer("char[]", _outgoing)
_push, _pending, _peek, _pop = (
    lib.pn_transport_push,
    lib.pn_transport_pending,
    lib.pn_transport_peek,
    lib.pn_transport_pop,
)


class PeerError(Exception):
    """The broker refused, failed or disconnected; the text has what was expected and what was found."""


class Connection:
    """An open connection with one session; all methods raise PeerError."""

    __slots__ = ("connection", "fileno", "frozen", "links", "session", "socket", "transport", "unsent", "url")

    def __init__(self, url: Url, container: str) -> None:
        self.url = url
        self.links: list[Any] = []
        self.unsent = b""
        """Bytes that the socket did not accept yet."""
        self.connection = lib.pn_connection()
        self.transport = lib.pn_transport()
        lib.pn_connection_set_container(self.connection, container.encode())
        lib.pn_connection_set_hostname(self.connection, url.host.encode())
        if url.user is not None:
            lib.pn_connection_set_user(self.connection, url.user.encode())
            lib.pn_connection_set_password(self.connection, (url.password or "").encode())
        sasl = lib.pn_sasl(self.transport)
        lib.pn_sasl_set_allow_insecure_mechs(sasl, True)
        lib.pn_sasl_allowed_mechs(sasl, b"ANONYMOUS" if url.user is None else b"PLAIN")
        lib.pn_transport_set_max_frame(self.transport, MAX_FRAME_SIZE)
        lib.pn_transport_set_idle_timeout(self.transport, IDLE_TIME_OUT_MS)
        lib.pn_transport_bind(self.transport, self.connection)
        lib.pn_connection_open(self.connection)
        self.session = lib.pn_session(self.connection)
        lib.pn_session_open(self.session)
        try:
            self.socket = socket.create_connection((url.host, url.port), OPENING_TIME_S)
        except OSError as error:
            raise PeerError(
                f"expected a broker at {url.host}:{url.port}, found: {error.strerror or error}"
            ) from None
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.fileno = self.socket.fileno()
        try:
            self.wait(self._is_open, "an open frame")
        except PeerError:
            self.socket.close()
            raise

    def _is_open(self) -> Any:
        return lib.pn_connection_state(self.connection) & lib.PN_REMOTE_ACTIVE

    def offers(self, capability: str) -> bool:
        """Whether the broker's open frame names the capability."""
        data = lib.pn_connection_remote_offered_capabilities(self.connection)
        lib.pn_data_rewind(data)
        lib.pn_data_next(data)
        if lib.pn_data_type(data) == lib.PN_ARRAY:
            lib.pn_data_enter(data)
            lib.pn_data_next(data)
        found = False
        while not found and lib.pn_data_type(data) == lib.PN_SYMBOL:
            symbol = lib.pn_data_get_symbol(data)
            found = ffi.unpack(symbol.start, symbol.size) == capability.encode()
            if not lib.pn_data_next(data):
                break
        return found

    def attach_sender(self, name: str, address: str | None, settled: bool) -> Any:
        """A link that sends to ``address``, or to the anonymous terminus for None."""
        link = lib.pn_sender(self.session, name.encode())
        lib.pn_link_set_snd_settle_mode(link, lib.PN_SND_SETTLED if settled else lib.PN_SND_UNSETTLED)
        return self._attach(link, address)

    def attach_receiver(self, name: str, address: str, settled: bool, selector: str | None = None) -> Any:
        """A link that receives from ``address`` what ``selector`` selects; no credit yet."""
        link = lib.pn_receiver(self.session, name.encode())
        lib.pn_link_set_snd_settle_mode(link, lib.PN_SND_SETTLED if settled else lib.PN_SND_UNSETTLED)
        if selector is not None:
            _put_selector(lib.pn_terminus_filter(lib.pn_link_source(link)), selector)
        return self._attach(link, address)

    def _attach(self, link: Any, address: str | None) -> Any:
        lib.pn_link_set_rcv_settle_mode(link, lib.PN_RCV_FIRST)
        for terminus in (lib.pn_link_source(link), lib.pn_link_target(link)):
            lib.pn_terminus_set_type(
                terminus, lib.PN_SOURCE if terminus == lib.pn_link_source(link) else lib.PN_TARGET
            )
            lib.pn_terminus_set_address(terminus, ffi.NULL if address is None else address.encode())
        lib.pn_link_open(link)
        self.wait(
            lambda: lib.pn_link_state(link) & lib.PN_REMOTE_ACTIVE,
            f"a link to {address or 'the anonymous terminus'}",
        )
        self.check_link(link)
        return link

    def receive(self) -> None:
        """One read of the socket into the engine."""
        try:
            size = self.socket.recv_into(_incoming_view)
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerError(f"the connection broke: {error.strerror}") from None
        transport = self.transport
        done = 0
        while done < size:
            taken = _push(transport, _incoming_start + done, size - done)
            if taken <= 0:
                break
            done += taken
        if size == 0:
            lib.pn_transport_close_tail(transport)
        if done < size or not size or lib.pn_connection_state(self.connection) & lib.PN_REMOTE_CLOSED:
            self.flush()
            raise PeerError(self.reason() or "the broker closed the connection")

    def flush(self) -> bool:
        """Write the engine's output; False when the socket is full (then wait until it is writable)."""
        transport = self.transport
        send = self.socket.send
        try:
            if self.unsent:
                self.unsent = self.unsent[send(self.unsent) :]
                if self.unsent:
                    return False
            while True:
                size = 0
                while size < IO_BYTES:
                    pending = _pending(transport)
                    if pending <= 0:
                        break
                    moved = _peek(transport, _outgoing_start + size, min(pending, IO_BYTES - size))
                    _pop(transport, moved)
                    size += moved
                if not size:
                    return True
                sent = send(_outgoing_view[:size])
                if sent < size:
                    self.unsent = bytes(_outgoing_view[sent:size])
                    return False
        except BlockingIOError:
            if not self.unsent and size:
                self.unsent = bytes(_outgoing_view[:size])
            return False
        except OSError as error:
            raise PeerError(self.reason() or f"the connection broke: {error.strerror}") from None

    def tick(self, now_ms: int) -> None:
        """Keep an idle connection alive; call it about once a second."""
        lib.pn_transport_tick(self.transport, now_ms)
        self.flush()

    def check_link(self, link: Any) -> None:
        """Raise PeerError when the broker detached the link."""
        if lib.pn_link_state(link) & lib.PN_REMOTE_CLOSED:
            found = _condition(lib.pn_link_remote_condition(link))
            raise PeerError(f"the broker detached the link: {found or 'no condition'}")

    def _remote_closed(self) -> object:
        return lib.pn_connection_state(self.connection) & lib.PN_REMOTE_CLOSED

    def reason(self) -> str:
        """The broker's or the engine's reason for the end of the connection; may be empty."""
        return _condition(lib.pn_connection_remote_condition(self.connection)) or _condition(
            lib.pn_transport_condition(self.transport)
        )

    def wait(self, condition: Callable[[], object], expected: str, time_s: float = OPENING_TIME_S) -> None:
        """Move bytes until the condition holds; raises PeerError when it does not within ``time_s``."""
        deadline = time.monotonic() + time_s
        poll = select.poll()
        while True:
            flushed = self.flush()
            if condition():
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise PeerError(f"expected {expected} within {time_s:g} s, found none")
            poll.register(self.fileno, select.POLLIN | (0 if flushed else select.POLLOUT))
            poll.poll(left * 1000)
            self.receive()

    def close(self) -> None:
        """Close the connection in order, if the broker answers."""
        try:
            lib.pn_connection_close(self.connection)
            self.wait(self._remote_closed, "close", CLOSING_TIME_S)
        except PeerError:
            pass
        self.socket.close()


def _put_selector(filters: Any, selector: str) -> None:
    """A filter set of one described string, as JMS clients send it."""
    lib.pn_data_put_map(filters)
    lib.pn_data_enter(filters)
    lib.pn_data_put_symbol(filters, _bytes(b"selector"))
    lib.pn_data_put_described(filters)
    lib.pn_data_enter(filters)
    lib.pn_data_put_symbol(filters, _bytes(b"apache.org:selector-filter:string"))
    lib.pn_data_put_string(filters, _bytes(selector.encode()))
    lib.pn_data_exit(filters)
    lib.pn_data_exit(filters)


def _bytes(content: bytes) -> tuple[int, Any]:
    """A ``pn_bytes_t``: size and start of what the engine copies."""
    return len(content), ffi.from_buffer("char[]", content)


def _condition(condition: Any) -> str:
    name, text = lib.pn_condition_get_name(condition), lib.pn_condition_get_description(condition)
    parts = [ffi.string(part).decode(errors="replace") for part in (name, text) if part]
    return ": ".join(parts)
