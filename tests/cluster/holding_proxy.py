"""A TCP proxy that holds a conversation at the very message that a test waits for.

    with HoldingProxy(("127.0.0.1", etcd_port)) as proxy:
        hold = proxy.expect(rb'"phase":"frozen"')
        ...                        # somebody is about to write this to etcd
        hold.until_reached()       # the server has not got it
        shard.kill()
        hold.release()

What goes in the other direction passes meanwhile, and, unless the hold is wide, other connections.
"""

import contextlib
import re
import socket
import threading
from types import TracebackType
from typing import Self

from tests.support import wait

READ_BYTES = 256 * 1024
OVERLAP_BYTES = 256
"""Of what passed before, searched together with what comes; longer than any pattern's match."""
CONNECT_S = 5.0


class Hold:
    """Patterns that are waited for, one behind the other, in one direction of one proxy.

    Args:
        said: it is the server that says it, not the client.
        wide: every connection stands in that direction once it was seen, not only its own.
    """

    def __init__(self, patterns: tuple[bytes, ...], said: bool, wide: bool) -> None:
        self.said = said
        self.wide = wide
        self._patterns = [re.compile(each, re.DOTALL) for each in patterns]
        self._what = " then ".join(map(repr, patterns))
        self._reached = threading.Event()
        self._released = threading.Event()

    @property
    def stands(self) -> bool:
        """What was expected has come and is held."""
        return self._reached.is_set() and not self._released.is_set()

    def until_reached(self, deadline_s: float = wait.DEADLINE_S) -> None:
        """Returns when what was expected stands in the proxy."""
        assert self._reached.wait(deadline_s), f"waited {deadline_s:.0f} s in vain for {self._what} to pass"

    def release(self) -> None:
        """Lets everything pass, whether it was reached or not."""
        self._released.set()

    def sees(self, data: bytes, fresh: int) -> bool:
        """Whether the last pattern is in what has come now; `fresh` is where that begins."""
        if self._reached.is_set() or self._released.is_set():
            return False
        start = 0
        while self._patterns:
            ends = (found.end() for found in self._patterns[0].finditer(data, start))
            end = next((each for each in ends if each > fresh), None)
            if end is None:
                return False
            del self._patterns[0]
            start = end
        return True

    def stand(self) -> None:
        """Waits in the proxy."""
        self._reached.set()
        self._released.wait()


class HoldingProxy:
    """Between clients and one server; nothing is held until something is expected.

    Args:
        server: host and port that everything goes to.
        at: host and port to listen at; of the system's choice where the port is 0.
    """

    def __init__(self, server: tuple[str, int], at: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._server = server
        self._listener = socket.create_server(at)
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._lock = threading.Lock()
        self.hold: Hold | None = None
        """What is waited for, or was last."""
        self._sockets: set[socket.socket] = set()
        self._closing = False
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def expect(self, *patterns: bytes, said: bool = False, wide: bool = False) -> Hold:
        """From here on waits for these; one such wait at a time."""
        if self.hold is not None:
            self.hold.release()
        hold = self.hold = Hold(patterns, said, wide)
        return hold

    def close(self) -> None:
        """Ends every conversation; nobody can begin another."""
        if self.hold is not None:
            self.hold.release()
        with self._lock:
            self._closing = True
            open_now = [self._listener, *self._sockets]
        for each in open_now:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server, CONNECT_S)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if self._closing:
                    client.close()
                    server.close()
                    return
                self._sockets |= {client, server}
            conversation = Conversation(self, client, server)
            for said in (False, True):
                threading.Thread(target=conversation.pass_on, args=(said,), daemon=True).start()

    def ended(self, *sockets: socket.socket) -> None:
        """Closes what a conversation needs no more."""
        with self._lock:
            self._sockets -= set(sockets)
        for each in sockets:
            each.close()


class Conversation:
    """One connection of a client, and ours to the server."""

    def __init__(self, proxy: HoldingProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._ends = 0
        self._lock = threading.Lock()

    def pass_on(self, said: bool) -> None:
        """One direction, until either side ends: what the server says, or what it is told."""
        source, sink = (self._server, self._client) if said else (self._client, self._server)
        before = b""
        with contextlib.suppress(OSError):
            while data := source.recv(READ_BYTES):
                hold = self._proxy.hold
                if hold is not None and hold.said is said:
                    together = before + data
                    if hold.sees(together, len(before)) or (hold.wide and hold.stands):
                        hold.stand()
                before = data[-OVERLAP_BYTES:]
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._ends += 1
            last = self._ends == 2
        if last:
            self._proxy.ended(self._client, self._server)
