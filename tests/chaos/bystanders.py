"""Bystanders: a well-behaved pair that must not notice what is done to the broker, and its memory."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chaos.ledger import Ledger
from tests.chaos.service import children, resident_bytes
from tests.chaos.traffic import Receiver, Sender
from tests.support import wait
from tests.support.broker import Broker

RATE = 200.0
"""Messages per second of the pair: one batch is never far away from the next."""
SLOWEST_S = float(os.environ.get("LIGHTRAIL_SLOWEST_S", "inf"))
"""From sending to accepted. `make soak` sets 2 s, for a quiet machine: others use the cores of a busy one."""
GROWTH_BYTES_MAX = 128 * 1024 * 1024
"""How much a process may grow under attack, unless the test says otherwise."""


class Bystanders:
    """One pair on its own queue, and what the broker weighed before."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.ledger = Ledger()
        where = lambda: broker.amqp  # noqa: E731 - asked again with every connection
        self.receiver = Receiver(where, "bystanders", self.ledger)
        self.sender = Sender(where, "bystanders", self.ledger, rate=RATE)
        self.before: dict[str, int] = {}
        self.peak: dict[str, int] = {}

    def weigh(self) -> dict[str, int]:
        """Bytes that each process holds now; the largest are remembered."""
        found = {
            f"{role}-{id}": resident_bytes(pid)
            for (role, id), pid in children(self.broker.process.pid).items()
        }
        for name, size in found.items():
            self.peak[name] = max(size, self.peak.get(name, 0))
        return found

    @property
    def growth(self) -> int:
        """The largest growth of a process over what it was before, as far as `weigh` has seen it."""
        return max(size - self.before.get(name, size) for name, size in self.peak.items())

    def still_served(self) -> None:
        """Waits for messages that are sent from now on to come through; 0.2 s at their rate."""
        self.sender.until_accepted(40)
        self.receiver.until_received(40)

    def report(self) -> str:
        sizes = ", ".join(
            f"{name} {self.before.get(name, 0) >> 20} to {size >> 20} MB" for name, size in self.peak.items()
        )
        return f"slowest answer {self.sender.slowest_answer * 1000:.0f} ms, memory {sizes}"


@contextmanager
def bystanders(
    data: Path, *flags: str, growth_max: int = GROWTH_BYTES_MAX, **how: Any
) -> Iterator[Bystanders]:
    """A broker with a pair at work; at the end nothing of what happened may show on either.

    Args:
        growth_max: bytes that a process may grow.
        how: of `Broker`: how it is started.
    """
    with Broker(data, *flags, **how) as broker:
        them = Bystanders(broker)
        pids = sorted(children(broker.process.pid).values())
        with them.receiver, them.sender:
            them.still_served()
            them.before = them.weigh()
            them.sender.slowest_answer = 0.0
            started = time.monotonic()
            try:
                yield them
                them.weigh()
                them.still_served()
            except BaseException as error:
                error.add_note(f"the broker said:\n{broker.said()[-6000:]}")
                raise
            print(f"{time.monotonic() - started:.1f} s: {them.report()}")
            them.sender.finish()
            wait.until(lambda: not them.ledger.lost, "everything arrives")
            them.receiver.finish()
        said = broker.said()
        assert not them.sender.losses, f"the sender noticed: {dict(them.sender.losses)}"
        assert not them.receiver.losses, f"the receiver noticed: {dict(them.receiver.losses)}"
        assert not them.sender.rejections
        assert not them.ledger.again
        them.ledger.verdict()
        assert them.sender.slowest_answer < SLOWEST_S, them.report()
        assert them.growth < growth_max, them.report()
        assert sorted(children(broker.process.pid).values()) == pids, "a process was started again"
        assert "Traceback" not in said, f"a traceback on the broker's stderr:\n{said[-4000:]}"
        assert " error " not in said, f"an error in the broker's log:\n{said[-4000:]}"
