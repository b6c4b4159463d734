"""Connections that come and go, hundreds a second: nothing of them is left behind, in no process."""

import os
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lightrail.amqp.performatives import Begin, Close, Open, Transfer
from tests.support import wait
from tests.support.amqp.frame_peer import AMQP, Peer, frame, receiver, sender, value
from tests.support.broker import Broker

RATE = 600
SOAK_S = 60
WARM_UP = 1_200
BOUNDED = 2_400
"""Connections of the run that CI makes, as fast as they go."""
GROWTH_BYTES_MAX = 6_000_000
"""Of all processes together: allocators settle. A kilobyte kept of each connection of a soak is 36 MB."""
OPENING = (
    AMQP,
    frame(Open(container_id="comes and goes")),
    frame(Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)),
)


def polite(address: str) -> None:
    """Attaches two links, and closes in order."""
    with Peer(address) as peer:
        peer.open()
        peer.begin()
        peer.attach_sender("churn", 0)
        peer.attach_receiver("churn", 1)
        peer.write(Close())
        while type(peer.read().body) is not Close:
            pass


def rude(address: str) -> None:
    """Says everything at once, a message for anybody included, and is off."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 20.0) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        made.sendall(b"".join((*OPENING, frame(sender("churn", 0)), frame(receiver(None, 1)))))
        made.recv(1)


def silent(address: str) -> None:
    """Says nothing."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), 20.0).close()


def anonymous(address: str) -> None:
    """Sends a message that nobody has to answer over a link without a target, and closes at once."""
    with Peer(address) as peer:
        peer.open()
        peer.begin()
        peer.attach_sender(None)
        peer.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"0", settled=True), value(1))
        peer.write(Close())
        while type(peer.read().body) is not Close:
            pass


CLIENTS: list[Callable[[str], None]] = [polite, rude, silent, rude, anonymous]


def memory_and_descriptors(broker: Broker) -> tuple[int, int]:
    """Resident bytes and open descriptors of all processes of a broker."""
    pids = [each["pid"] for each in broker.ready["processes"]]
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * resource.getpagesize(), sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)


def churn(broker: Broker, count: int, rate: int | None) -> None:
    """So many connections, one after the other; at a rate, or as fast as they go."""
    started = time.monotonic()
    for number in range(count):
        CLIENTS[number % len(CLIENTS)](broker.amqp)
        if rate is not None and (ahead := number / rate - (time.monotonic() - started)) > 0:
            time.sleep(ahead)


def settled(broker: Broker, descriptors: int) -> tuple[int, int]:
    """What is used when the last connection is closed."""
    wait.until(lambda: memory_and_descriptors(broker)[1] <= descriptors, "descriptors are closed")
    return memory_and_descriptors(broker)


def nothing_is_left(data: Path, count: int, rate: int | None) -> None:
    with Broker(data, "--frontends", "1") as broker:
        idle = memory_and_descriptors(broker)[1]
        churn(broker, WARM_UP, rate)
        before, _ = settled(broker, idle)
        churn(broker, count, rate)
        after, _ = settled(broker, idle)
        assert after - before < GROWTH_BYTES_MAX, f"{(after - before) / count:.0f} bytes a connection"


def test_connections_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    nothing_is_left(tmp_path / "data", BOUNDED, None)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_600_connections_a_second_for_a_minute_leave_nothing_behind(tmp_path: Path) -> None:
    nothing_is_left(tmp_path / "data", RATE * SOAK_S, RATE)
