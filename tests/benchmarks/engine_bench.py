"""Microseconds of CPU that the AMQP engine spends per transfer fed, per message sent, per answer.

    python tests/benchmarks/engine_bench.py [--size BYTES] [--batch MESSAGES]

Prints the best and the median of many passes; the budget is 0.6 us per 100-byte transfer fed and 0.35 us per
message sent.
"""

import argparse
import statistics
import time
from array import array
from collections.abc import Callable
from itertools import accumulate

from lightrail.amqp import events, frames
from lightrail.amqp.connection import Connection
from lightrail.amqp.link import Link
from lightrail.amqp.performatives import (
    Attach,
    Begin,
    Flow,
    Open,
    Source,
    Target,
    Transfer,
    encode_performative,
)
from lightrail.amqp.session import Session
from lightrail.amqp.settings import ConnectionSettings

PASSES = 60


def frame(body: object, payload: bytes = b"") -> bytes:
    return frames.frame(0, encode_performative(body) + payload)


def connected(*, learn_shapes: bool = True) -> tuple[Connection, Link, Link]:
    """A connection with one incoming link (handle 0) and one outgoing link (handle 1)."""
    connection = Connection(ConnectionSettings(learn_shapes=learn_shapes), 0)
    found = connection.feed(
        frames.AMQP_HEADER
        + frame(Open(container_id="bench"))
        + frame(Begin(next_outgoing_id=0, incoming_window=2**31 - 1, outgoing_window=2**31 - 1))
        + frame(
            Attach(
                name="in", handle=0, role=False, source=Source(), target=Target(), initial_delivery_count=0
            )
        )
        + frame(Attach(name="out", handle=1, role=True, source=Source(), target=Target())),
        0,
    )
    links = [event.link for event in found if isinstance(event, events.Attached)]
    for link in links:
        link.accept()
    connection.output.clear()
    return connection, links[0], links[1]


def session_of(link: Link) -> Session:
    """The session with what callers of its links do not see."""
    assert isinstance(link.session, Session)
    return link.session


def message(size: int, prefix: bytes = b"\x00Sp\xc0\x02\x01A") -> bytes:
    body = max(0, size - len(prefix) - 5)
    return (
        prefix
        + b"\x00Su"
        + (bytes((0xA0, body)) if body < 256 else b"\xb0" + body.to_bytes(4, "big"))
        + b"x" * body
    )


def transfers(first: int, payloads: list[bytes]) -> bytes:
    return b"".join(
        frame(
            Transfer(
                handle=0,
                delivery_id=first + index,
                delivery_tag=(first + index).to_bytes(4, "big"),
                message_format=0,
                settled=False,
            ),
            payload,
        )
        for index, payload in enumerate(payloads)
    )


def measure(name: str, count: int, prepare: Callable[[int], Callable[[], object]]) -> None:
    """`prepare` gives, for a pass, what is timed; `count` messages per pass."""
    times = []
    for number in range(PASSES):
        run = prepare(number)
        begin = time.process_time_ns()
        run()
        times.append((time.process_time_ns() - begin) / 1000 / count)
    print(f"{name:<58} best {min(times):7.3f}   median {statistics.median(times):7.3f} us")


def bench_feed(name: str, payloads: list[bytes], *, learn_shapes: bool = True) -> None:
    connection, link, _ = connected(learn_shapes=learn_shapes)
    count = len(payloads)
    state = {"next": 1000}

    def prepare(_: int) -> Callable[[], object]:
        link.grant(1_000_000)
        connection.output.clear()
        data = transfers(state["next"], payloads)
        state["next"] += count
        if state["next"] > 1000 + count:
            link.settle(0, state["next"])
            connection.output.clear()
        return lambda: connection.feed(data, 0)

    measure(name, count, prepare)


def bench_interleaved(count: int, size: int, links: int) -> None:
    """Transfers that change their link with every frame."""
    connection = Connection(ConnectionSettings(), 0)
    data = frames.AMQP_HEADER + frame(Open(container_id="bench"))
    data += frame(Begin(next_outgoing_id=0, incoming_window=2**31 - 1, outgoing_window=2**31 - 1))
    for handle in range(links):
        data += frame(
            Attach(
                name=f"in{handle}",
                handle=handle,
                role=False,
                source=Source(),
                target=Target(),
                initial_delivery_count=0,
            )
        )
    attached = [event.link for event in connection.feed(data, 0) if isinstance(event, events.Attached)]
    for link in attached:
        link.accept()
        link.grant(1_000_000)
    payload = message(size)
    state = {"next": 1000}

    def prepare(_: int) -> Callable[[], object]:
        for link in attached:
            link.settle(0, state["next"])
        pieces = []
        for index in range(count):
            number = state["next"] + index
            pieces.append(
                frame(
                    Transfer(
                        handle=index % links,
                        delivery_id=number,
                        delivery_tag=number.to_bytes(4, "big"),
                        message_format=0,
                    ),
                    payload,
                )
            )
        state["next"] += count
        joined = b"".join(pieces)
        return lambda: connection.feed(joined, 0)

    measure(f"feed, {size} bytes, over {links} links in turn", count, prepare)


def bench_send(name: str, payloads: list[bytes], settled: bool) -> None:
    connection, _, link = connected()
    count = len(payloads)
    blob = b"".join(payloads)
    ends = array("I", accumulate(len(payload) for payload in payloads))

    def prepare(_: int) -> Callable[[], object]:
        connection.feed(
            frame(
                Flow(
                    next_incoming_id=session_of(link).next_outgoing_id,
                    incoming_window=2**31 - 1,
                    next_outgoing_id=0,
                    outgoing_window=100,
                    handle=1,
                    delivery_count=link.delivery_count,
                    link_credit=count,
                )
            ),
            0,
        )
        session_of(link).outgoing.take(0, 2**40)
        connection.output.clear()

        def run() -> None:
            link.send(count, ends, blob, 0, settled)
            b"".join(connection.output)

        return run

    measure(name, count, prepare)


def bench_answers(count: int) -> None:
    """One disposition frame per message: clients that acknowledge singly."""
    connection, _, link = connected()
    state = {"next": 0}
    payload = message(100)

    def prepare(_: int) -> Callable[[], object]:
        connection.feed(
            frame(
                Flow(
                    next_incoming_id=session_of(link).next_outgoing_id,
                    incoming_window=2**31 - 1,
                    next_outgoing_id=0,
                    outgoing_window=100,
                    handle=1,
                    delivery_count=link.delivery_count,
                    link_credit=count,
                )
            ),
            0,
        )
        link.send(count, array("I", [100 * (index + 1) for index in range(count)]), payload * count)
        connection.output.clear()
        first = state["next"]
        state["next"] += count
        data = b"".join(
            frames.disposition(0, True, number, number, True, b"\x00S\x24\x45")
            for number in range(first, first + count)
        )
        return lambda: connection.feed(data, 0)

    measure("one accepted disposition per message", count, prepare)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=100, help="bytes per message (default 100)")
    parser.add_argument("--batch", type=int, default=500, help="messages per feed and per send (default 500)")
    options = parser.parse_args()
    size, batch = options.size, options.batch
    same = [message(size)] * batch
    mixed = [message(size - 20 + index % 40) for index in range(batch)]
    properties = b"\x00Sp\x45\x00Ss\xc0\x08\x03\xa1\x02id\x40\xa1\x00"
    bench_feed(f"feed, {size} bytes", same)
    bench_feed(f"feed, about {size} bytes, sizes change", mixed)
    bench_feed(f"feed, {size} bytes, with properties", [message(size, properties)] * batch)
    created = b"\x00Sp\x45\x00Ss\xc0\x15\x0a\xa1\x01i" + b"\x40" * 8 + b"\x83" + b"\x01" * 8
    bench_feed(f"feed, {size} bytes, with creation-time", [message(size, created)] * batch)
    bench_feed(f"feed, {size} bytes, 10 at a time", same[:10])
    bench_feed(f"feed, {size} bytes, complete decoder", same[:200], learn_shapes=False)
    bench_interleaved(batch, size, 50)
    bench_send(f"send, {size} bytes, unsettled", same, False)
    bench_send(f"send, about {size} bytes, sizes change", mixed, False)
    bench_send(f"send, {size} bytes, 10 at a time", same[:10], False)
    bench_answers(batch)


if __name__ == "__main__":
    main()
