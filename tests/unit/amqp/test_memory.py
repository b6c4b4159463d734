"""An idle connection costs little: thousands of them wait in one frontend."""

import gc
import tracemalloc

from tests.unit.amqp.peer import Peer, data, session_of, transfer

IDLE_BYTES_MAX = 6_000


def test_an_idle_connection_with_a_session_and_a_link_stays_below_its_budget() -> None:
    def connect() -> Peer:
        peer = Peer()
        peer.open()
        peer.begin()
        peer.sender()
        peer.raw = b""
        peer.written = []
        return peer

    keep = [connect() for _ in range(20)]
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    keep += [connect() for _ in range(200)]
    gc.collect()
    each = (tracemalloc.get_traced_memory()[0] - before) / 200
    tracemalloc.stop()
    assert each < IDLE_BYTES_MAX, f"{each:.0f} bytes"


def test_unsettled_deliveries_cost_nothing_each() -> None:
    peer = Peer()
    peer.open()
    peer.begin()
    link = peer.sender(credit=100_000)
    for number in range(1000):
        peer.say(transfer(number), data(b"x"))
    assert len(session_of(link).incoming.ranges) == 1
