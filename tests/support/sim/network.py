"""A network of ZeroMQ sockets in memory, with the faults of a real one, all drawn from one seed.

What ZeroMQ promises holds: the messages of one connection arrive in order, each whole and once, as long as
the connection lasts. What it does not promise fails here: a connection may break at any time, and what was on
its way is lost then, without a word to either end; connections know nothing of each other's order; a host may
be cut off, and what was sent to it arrives late or never.
"""

import itertools
import random
from collections import deque
from collections.abc import Sequence
from struct import pack
from typing import Any, Final

import zmq

from tests.support.sim.loop import OUTSIDE, SimLoop, Turns, context_of

LATENCY_S: Final = (0.00005, 0.002)
"""Shortest and longest way of a message while nothing is wrong."""
UNNOTICED_S: Final = (0.2, 5.0)
"""How long the others have connections to a machine that has stopped."""


class Host:
    """Whatever lives and dies together: one process.

    Args:
        place: the machine, which has another process after the end of this one.
    """

    def __init__(self, name: str, place: str = "") -> None:
        self.name = name
        self.place = place or name
        self.is_cut_off = False
        self.etcd = ""
        """How it reaches etcd: "" both ways; "mute": not at all; "deaf": no answer arrives."""
        self.turns = Turns()
        self.context = context_of(self.turns)
        self.connections: dict[Connection, None] = {}


class Connection:
    """From a DEALER to a ROUTER, both ways in order."""

    def __init__(self, network: "Network", dealer: "Socket", router: "Socket", identity: bytes) -> None:
        self.network = network
        self.dealer = dealer
        self.router = router
        self.identity = identity
        """Of the DEALER, as the ROUTER knows it."""
        self.broken = False
        self.is_stopped = False
        self._queues: dict[Socket, deque[list[bytes]]] = {dealer: deque(), router: deque()}
        """By the end that it is for: what is on its way."""
        self._arrival_s: dict[Socket, float] = {dealer: 0.0, router: 0.0}

    @property
    def hosts(self) -> tuple[Host, Host]:
        return self.dealer.host, self.router.host

    def send(self, to: "Socket", parts: Sequence[bytes]) -> None:
        network = self.network
        if self.is_stopped:
            return
        self._queues[to].append(list(parts))
        # TCP: nothing overtakes.
        arrival_s = max(self._arrival_s[to], network.loop.time() + network.latency_s())
        self._arrival_s[to] = arrival_s
        network.loop.call_at(arrival_s, self._arrive, to, context=OUTSIDE)

    def _arrive(self, to: "Socket") -> None:
        if self.broken or not self._queues[to]:
            return
        source = self.router if to is self.dealer else self.dealer
        if any(host.is_cut_off for host in self.hosts) or self.network.is_blocked(source.host, to.host):
            # It waits in the buffers of the system; `heal` looks again.
            return
        parts = self._queues[to].popleft()
        to.take(parts if to is self.dealer else [self.identity, *parts])

    def flush(self) -> None:
        """What waited arrives."""
        for to, queue in self._queues.items():
            for _ in range(len(queue)):
                self._arrive(to)

    def stop(self, unnoticed_s: float) -> None:
        """Nothing arrives any more, and it breaks after this time."""
        for queue in self._queues.values():
            queue.clear()
        self.is_stopped = True
        self.network.loop.call_later(unnoticed_s, self.end, context=OUTSIDE)

    def leave(self, to: "Socket", linger_ms: int) -> None:
        """One end closes it: what is on its way to the other one may still arrive within this time."""
        if self.broken or not linger_ms or not self._queues[to]:
            self.end()
            return
        source = self.router if to is self.dealer else self.dealer
        # The end of the process, which waits for this, does not end it.
        source.host.connections.pop(self, None)
        end_s = min(self._arrival_s[to] + 1e-6, self.network.loop.time() + linger_ms / 1000)
        self.network.loop.call_at(end_s, self.end, context=OUTSIDE)

    def end(self) -> None:
        """It breaks, and what is on its way is lost."""
        if self.broken:
            return
        self.broken = True
        for host in self.hosts:
            host.connections.pop(self, None)
        if self.router.peers.get(self.identity) is self:
            del self.router.peers[self.identity]
        if self.dealer.connection is self:
            self.dealer.connection = None
            self.dealer.happen(zmq.EVENT_DISCONNECTED)


class Frame:
    """What lightrail uses of a zmq.Frame."""

    def __init__(self, part: bytes, more: bool) -> None:
        self.bytes = self.buffer = part
        self.more = more

    def __len__(self) -> int:
        return len(self.bytes)


class Socket:
    """What lightrail uses of a zmq.Socket: a DEALER that connects once, a ROUTER that binds, or a PAIR that
    receives what happens to the connection of a DEALER."""

    def __init__(self, network: "Network", host: Host, kind: int) -> None:
        self.host = host
        self.identity = b""
        self.connection: Connection | None = None
        """Of a DEALER."""
        self.peers: dict[bytes, Connection] = {}
        """Of a ROUTER, by identity."""
        self._network = network
        self._kind = kind
        self._fd = next(network.numbers)
        self._inbox: deque[list[bytes]] = deque()
        self._sending: list[bytes] = []
        """Parts of the message that is being sent."""
        self._receiving: deque[bytes] = deque()
        """Parts that are left of the message that is being received."""
        self._address = ""
        self._closed = False
        self._events: Socket | None = None
        """Of a DEALER: receives what happens to its connection."""

    def setsockopt(self, option: int, value: Any) -> None:
        if option == zmq.ROUTING_ID:
            self.identity = bytes(value)

    def getsockopt(self, option: int) -> int | bytes:
        if option == zmq.FD:
            return self._fd
        if option == zmq.LAST_ENDPOINT:
            return self._address.encode()
        return (zmq.POLLIN if self._inbox else 0) | (zmq.POLLOUT if self.connection is not None else 0)

    def bind(self, address: str) -> None:
        if address.endswith(":0"):
            address = f"{address[:-1]}{next(self._network.numbers)}"
        self._address = address
        self._network.bound[address] = self

    def monitor(self, address: str | None, events: int) -> None:
        if address is None:
            self._events = None
        else:
            self._network.monitored[address] = self

    def happen(self, event: int) -> None:
        """Something has happened to the connection."""
        if self._events is not None:
            self._events.take([pack("=HI", event, 0), self._address.encode()])

    def connect(self, address: str) -> None:
        self._address = address
        if self._kind == zmq.PAIR:
            self._network.monitored.pop(address)._events = self
        else:
            pause_s = self._network.chance.uniform(0.001, 0.05)
            self._network.loop.call_later(pause_s, self._try, context=OUTSIDE)

    def _try(self) -> None:
        if self._closed or self.connection is not None or self.host.turns.is_ended:
            return
        router = self._network.bound.get(self._address)
        if router is None or router._closed or self._network.is_apart(self.host, router.host):
            self.happen(zmq.EVENT_CONNECT_RETRIED)
            return
        # As ZeroMQ draws one.
        identity = self.identity or b"\0%08d" % next(self._network.numbers)
        former = router.peers.get(identity)
        if former is not None:
            # ROUTER_HANDOVER: the new one takes the name.
            former.end()
        connection = Connection(self._network, self, router, identity)
        self.connection = router.peers[identity] = connection
        for host in connection.hosts:
            host.connections[connection] = None
        self.happen(zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def send(self, part: bytes, flags: int = 0, copy: bool = True) -> None:
        if not self._sending and self._kind == zmq.ROUTER and bytes(part) not in self.peers:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        self._sending.append(part)
        if flags & zmq.SNDMORE:
            return
        parts, self._sending = self._sending, []
        if self._kind == zmq.DEALER:
            # Without a connection ZeroMQ stores it, and it is lost with the socket.
            if self.connection is not None:
                self.connection.send(self.connection.router, parts)
        else:
            connection = self.peers[bytes(parts[0])]
            connection.send(connection.dealer, parts[1:])

    def recv(self, flags: int = 0, copy: bool = True) -> "Frame":
        if not self._receiving:
            if not self._inbox:
                raise zmq.Again
            self._receiving.extend(self._inbox.popleft())
        part = self._receiving.popleft()
        return Frame(part, bool(self._receiving))

    def take(self, parts: list[bytes]) -> None:
        """A message has arrived."""
        if self._closed:
            return
        self._inbox.append(parts)
        reader = self._network.loop.readers.get(self._fd)
        if reader is not None:
            self._network.loop.call_soon(reader, context=self.host.context)

    def close(self, linger: int | None = None) -> None:
        self._closed = True
        if self._network.bound.get(self._address) is self:
            del self._network.bound[self._address]
        if self.connection is not None:
            self.connection.leave(self.connection.router, linger or 0)
        for connection in list(self.peers.values()):
            connection.leave(connection.dealer, linger or 0)


class Context:
    """A zmq.Context of one host."""

    def __init__(self, network: "Network", host: Host) -> None:
        self._network = network
        self._host = host

    def socket(self, kind: int) -> Socket:
        return Socket(self._network, self._host, kind)

    def destroy(self, linger: int | None = None) -> None:
        """Nothing is kept."""


class Network:
    """All of it."""

    def __init__(self, loop: SimLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.numbers = itertools.count(1_000)
        self.bound: dict[str, Socket] = {}
        self.monitored: dict[str, Socket] = {}
        """DEALERs, by the address at which their events will be received."""
        self.hosts: list[Host] = []
        self.slow = 1.0
        """Factor of every latency."""
        self.blocked: set[tuple[str, str]] = set()
        """Ways between two places on which nothing arrives."""

    def host(self, name: str, place: str = "") -> tuple[Host, Context]:
        """One more process."""
        host = Host(name, place)
        self.hosts.append(host)
        return host, Context(self, host)

    def latency_s(self) -> float:
        return self.slow * self.chance.uniform(*LATENCY_S) * (20 if self.chance.random() < 0.02 else 1)

    def break_some(self, share: float) -> None:
        """Connections break by chance."""
        for host in self.hosts:
            for connection in list(host.connections):
                if self.chance.random() < share:
                    connection.end()

    def is_blocked(self, source: Host, to: Host) -> bool:
        """Whether nothing arrives on this way."""
        return bool(self.blocked) and (source.place, to.place) in self.blocked

    def is_apart(self, one: Host, other: Host) -> bool:
        """Whether two processes can't make a connection, which needs both ways."""
        if one.is_cut_off or other.is_cut_off or one.turns.is_paused or other.turns.is_paused:
            return True
        return self.is_blocked(one, other) or self.is_blocked(other, one)

    def unblock(self, ways: set[tuple[str, str]], *, broken: bool) -> None:
        """These ways work again: with what was on its way, or with new connections."""
        self.blocked -= ways
        for host in self.hosts:
            for connection in list(host.connections):
                one, other = connection.hosts
                if {(one.place, other.place), (other.place, one.place)} & ways:
                    if broken:
                        connection.end()
                    else:
                        connection.flush()

    def cut_off(self, host: Host) -> None:
        """Nothing reaches it, and nothing comes from it."""
        host.is_cut_off = True

    def heal(self, host: Host, *, broken: bool) -> None:
        """It is back: with what was on its way, or with new connections."""
        host.is_cut_off = False
        for connection in list(host.connections):
            if broken:
                connection.end()
            else:
                connection.flush()

    def gone(self, host: Host, *, is_noticed: bool = True) -> None:
        """The process died.

        Args:
            is_noticed: the system ends its connections; otherwise its machine has stopped, and the others
                notice that later.
        """
        if not is_noticed:
            for connection in list(host.connections):
                connection.stop(self.chance.uniform(*UNNOTICED_S))
            for address, socket in list(self.bound.items()):
                if socket.host is host:
                    del self.bound[address]
        for connection in list(host.connections):
            if is_noticed:
                connection.end()
        for socket in list(self.bound.values()):
            if socket.host is host:
                socket.close()
        if host in self.hosts:
            self.hosts.remove(host)
