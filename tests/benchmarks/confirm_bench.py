"""How long a receiver of mode second waits for its outcome to be settled (ADR 24).

    PYTHONPATH=. python tests/benchmarks/confirm_bench.py DIRECTORY

One client accepts one delivery after the other: unsettled, and waits for the broker to settle. For
comparison an echo of the session, which goes the same way to the frontend and back and waits for no shard.
"""

import statistics
import sys
import time
from pathlib import Path

from lightrail.amqp.performatives import Accepted, Disposition
from tests.support.amqp.frame_peer import Peer, value
from tests.support.broker import Broker

DURABLE = b"\x00\x53\x70\xc0\x02\x01\x41"
COUNT = 900
SECOND = 1


def _print(what: str, times: list[float]) -> None:
    ordered = sorted(each * 1_000 for each in times)
    at = {part: ordered[int(part * len(ordered))] for part in (0.5, 0.9, 0.99)}
    parts = ", ".join(f"{part:.0%} {value:.2f}" for part, value in at.items())
    print(f"{what}: mean {statistics.fmean(ordered):.2f}, {parts}")


def _one_by_one(peer: Peer, at_once: int) -> list[float]:
    """Seconds from each disposition of the client, of `at_once` outcomes, to the one that settles them."""
    times = []
    for first in range(0, COUNT, at_once):
        last = first + at_once - 1
        began = time.perf_counter()
        peer.write(Disposition(role=True, first=first, last=last, state=Accepted()))
        found = peer.expect(Disposition)
        assert (found.first, found.last or found.first, found.settled) == (first, last, True)
        times.append(time.perf_counter() - began)
    return times


def main(directory: Path) -> None:
    with Broker(directory / "data") as broker:
        for queue, header in (("durable", DURABLE), ("transient", b"")):
            for at_once in (1, 100):
                with Peer(broker.amqp) as peer:
                    peer.open()
                    peer.begin()
                    peer.put(f"{queue}{at_once}", *(header + value(number) for number in range(COUNT)))
                    peer.attach_receiver(f"{queue}{at_once}", rcv_settle_mode=SECOND)
                    peer.flow(COUNT)
                    for _ in range(COUNT):
                        peer.delivery()
                    _print(f"{queue}, {at_once} at a time, ms", _one_by_one(peer, at_once))
        with Peer(broker.amqp) as peer:
            peer.open()
            peer.begin()
            times = []
            for _ in range(COUNT):
                began = time.perf_counter()
                peer.nothing_before_echo()
                times.append(time.perf_counter() - began)
            _print("echo of the session, ms", times)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
