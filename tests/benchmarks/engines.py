"""What a broker spends per message inside its AMQP engine: LightRail's own beside proton's C engine.

    python tests/benchmarks/engines.py [--size BYTES] [--batch MESSAGES] [--json]

Both sit where a frontend has its engine. Incoming: bytes of a client's transfers in, payloads out as Python
bytes, accepted, dispositions out. Outgoing: payloads in, transfers out, the client's dispositions in.
The client is the same for both and is not timed. Proton is called through its cffi
layer, without wrapper objects. Prints the median of many passes
in microseconds of CPU per message; ADR 1 quotes it.
"""

import argparse
import json
import statistics
import time
from array import array
from collections import deque
from itertools import accumulate
from typing import Any, Protocol

from cproton_ffi import ffi, lib

from lightrail.amqp import events
from lightrail.amqp.connection import Connection
from lightrail.amqp.link import Link
from lightrail.amqp.performatives import Source, Target
from lightrail.amqp.settings import ConnectionSettings

PASSES = 80
ACCEPTED = 0x24


class Engine(Protocol):
    """An engine in the position of a broker's, with one incoming and one outgoing link."""

    def feed(self, data: bytes) -> None: ...
    def take_output(self) -> bytes: ...
    def receive(self, data: bytes) -> bytes: ...
    def send(self, messages: list[bytes]) -> bytes: ...
    def settle(self, data: bytes) -> None: ...
    def grant(self, credit: int) -> None: ...


class Own:
    """lightrail/amqp."""

    def __init__(self) -> None:
        self.connection = Connection(ConnectionSettings(), 0)
        self.incoming: Link | None = None
        self.outgoing: Link | None = None

    def feed(self, data: bytes) -> None:
        for event in self.connection.feed(data, 0):
            if isinstance(event, events.Attached):
                event.link.accept()
                if event.link.is_sender:
                    self.outgoing = event.link
                else:
                    self.incoming = event.link

    def take_output(self) -> bytes:
        data = b"".join(self.connection.output)
        self.connection.output.clear()
        return data

    def receive(self, data: bytes) -> bytes:
        assert self.incoming is not None
        for event in self.connection.feed(data, 0):
            if isinstance(event, events.Transfers):
                first = event.first_delivery_id
                self.incoming.settle(first, first + len(event.payloads) - 1)
        return self.take_output()

    def send(self, messages: list[bytes]) -> bytes:
        assert self.outgoing is not None
        ends = array("I", accumulate(map(len, messages)))
        self.outgoing.send(len(messages), ends, b"".join(messages))
        return self.take_output()

    def settle(self, data: bytes) -> None:
        self.connection.feed(data, 0)

    def grant(self, credit: int) -> None:
        assert self.incoming is not None
        self.incoming.grant(credit)


class Proton:
    """python-qpid-proton's C engine."""

    def __init__(self) -> None:
        self.connection = lib.pn_connection()
        self.transport = lib.pn_transport()
        lib.pn_transport_set_server(self.transport)
        lib.pn_connection_set_container(self.connection, b"bench")
        lib.pn_transport_bind(self.transport, self.connection)
        lib.pn_connection_open(self.connection)
        self.incoming: Any = None
        self.outgoing: Any = None
        self.buffer = bytearray(1 << 20)
        self.start = ffi.from_buffer("char[]", self.buffer)
        self.tag = 0
        self.unsettled: deque[Any] = deque()

    def feed(self, data: bytes) -> None:
        self._push(data)
        session = lib.pn_session_head(self.connection, 0)
        if session and self.incoming is None:
            lib.pn_session_set_incoming_capacity(session, 0)
            lib.pn_session_open(session)
        link = lib.pn_link_head(self.connection, 0)
        while link:
            if lib.pn_link_is_sender(link):
                self.outgoing = link
            else:
                self.incoming = link
            lib.pn_link_open(link)
            link = lib.pn_link_next(link, 0)

    def _push(self, data: bytes) -> None:
        source = ffi.from_buffer("char[]", data)
        position = 0
        while position < len(data):
            taken = lib.pn_transport_push(self.transport, source + position, len(data) - position)
            assert taken > 0, f"expected the engine to take bytes, found {taken}"
            position += taken

    def take_output(self) -> bytes:
        pieces = []
        while (pending := lib.pn_transport_pending(self.transport)) > 0:
            got = lib.pn_transport_peek(self.transport, self.start, min(pending, len(self.buffer)))
            pieces.append(bytes(self.buffer[:got]))
            lib.pn_transport_pop(self.transport, got)
        return b"".join(pieces)

    def receive(self, data: bytes) -> bytes:
        self._push(data)
        read, current, update, settle = (
            lib.pn_link_recv, lib.pn_link_current, lib.pn_delivery_update, lib.pn_delivery_settle,
        )  # fmt: skip
        link, start, buffer, size = self.incoming, self.start, self.buffer, len(self.buffer)
        payloads = []
        while (got := read(link, start, size)) > 0:
            payloads.append(bytes(buffer[:got]))
            delivery = current(link)
            update(delivery, ACCEPTED)
            settle(delivery)
        return self.take_output()

    def send(self, messages: list[bytes]) -> bytes:
        link, deliver, write, advance = self.outgoing, lib.pn_delivery, lib.pn_link_send, lib.pn_link_advance
        remember = self.unsettled.append
        tag = self.tag
        for message in messages:
            tag += 1
            made = ffi.new("pn_bytes_t *")
            octets = ffi.from_buffer("char[]", tag.to_bytes(4, "big"))
            made.start, made.size = octets, 4
            remember(deliver(link, made[0]))
            write(link, message, len(message))
            advance(link)
        self.tag = tag
        return self.take_output()

    def settle(self, data: bytes) -> None:
        self._push(data)
        updated, settle, unsettled = lib.pn_delivery_updated, lib.pn_delivery_settle, self.unsettled
        while unsettled and updated(unsettled[0]):
            settle(unsettled.popleft())
        self.take_output()

    def grant(self, credit: int) -> None:
        lib.pn_link_flow(self.incoming, credit - lib.pn_link_credit(self.incoming))


def measure(engine: Engine, size: int, batch: int) -> tuple[float, float]:
    """(incoming, outgoing): median microseconds of CPU per message."""
    client = Connection(ConnectionSettings(is_server=False), 0)
    client.open()
    session = client.begin()
    sender = session.attach("in", True, source=Source(address="s"), target=Target(address="q"))
    receiver = session.attach("out", False, source=Source(address="q"), target=Target(address="r"))

    def turn() -> None:
        data = b"".join(client.output)
        client.output.clear()
        if data:
            engine.feed(data)
        client.feed(engine.take_output(), 0)

    for _ in range(6):
        turn()
    message = b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + bytes(size)
    messages = [message] * batch
    ends = array("I", accumulate(map(len, messages)))
    blob = b"".join(messages)
    incoming, outgoing = [], []
    for _ in range(PASSES):
        engine.grant(batch)
        receiver.grant(batch)
        turn()
        sender.send(batch, ends, blob)
        data = b"".join(client.output)
        client.output.clear()
        began = time.process_time()
        answer = engine.receive(data)
        incoming.append((time.process_time() - began) / batch * 1e6)
        accepted = sum(e.last - e.first + 1 for e in client.feed(answer, 0) if isinstance(e, events.Outcome))
        assert accepted == batch, f"expected {batch} messages accepted, found {accepted}"

        began = time.process_time()
        data = engine.send(messages)
        spent = time.process_time() - began
        got = 0
        for event in client.feed(data, 0):
            if isinstance(event, events.Transfers):
                got += len(event.payloads)
                first = event.first_delivery_id
                receiver.settle(first, first + len(event.payloads) - 1)
        assert got == batch, f"expected {batch} messages, found {got}"
        data = b"".join(client.output)
        client.output.clear()
        began = time.process_time()
        engine.settle(data)
        outgoing.append((spent + time.process_time() - began) / batch * 1e6)
    return statistics.median(incoming), statistics.median(outgoing)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=100, help="bytes of the body")
    parser.add_argument("--batch", type=int, default=500, help="messages per read and per write")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    engines: dict[str, Engine] = {"own": Own(), "proton": Proton()}
    found = {name: measure(engine, given.size, given.batch) for name, engine in engines.items()}
    if given.json:
        print(json.dumps({name: {"incoming_us": i, "outgoing_us": o} for name, (i, o) in found.items()}))
        return
    for name, (incoming, outgoing) in found.items():
        print(
            f"{name:8} incoming {incoming:6.2f}  outgoing {outgoing:6.2f}  both {incoming + outgoing:6.2f} us"
        )


if __name__ == "__main__":
    main()
