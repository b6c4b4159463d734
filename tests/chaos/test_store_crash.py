"""The shard is killed at random instants under durable load, round after round on the same data."""

import os
import random
import threading
import time
from pathlib import Path

import pytest

from tests.chaos.ledger import Ledger
from tests.chaos.service import Service
from tests.chaos.traffic import Receiver, Sender
from tests.support import wait

pytestmark = pytest.mark.timeout(200)
SEED = int(os.environ.get("LIGHTRAIL_CHAOS_SEED", "1"))
BACKLOG_RATE = 25_000.0
"""Messages per second where nobody receives: the test is about crashes, not about a long queue."""


def crash_rounds(data: Path, rounds: int, seed: int, *flags: str, size: int = 100, receive: bool) -> None:
    """Kills the shard so many times, then drains and compares.

    Args:
        receive: a receiver takes messages meanwhile, so that settlements, cleaning and redelivery are under
            the hammer as well; without one, everything ever accepted has to survive every round.
    """
    chance = random.Random(seed)
    ledger = Ledger()
    ledger.calm.disturb()
    recovered: list[float] = []
    with Service(data, *flags) as service:
        rate = None if receive else BACKLOG_RATE
        sender = Sender(service.where, "q", ledger, count_max=6_000_000, size=size, rate=rate)
        receiver = Receiver(service.where, "q", ledger)
        with sender:
            if receive:
                receiver.start()
            sender.until_accepted(1_000)
            for number in range(rounds):
                # From in the middle of recovery to seconds of load, most of them short.
                threading.Event().wait(chance.expovariate(4.0) if number % 5 else chance.uniform(0.0, 0.05))
                service.kill("shard")
                began = time.monotonic()
                if number % 5 != 4:
                    sender.until_accepted(1, 60.0)
                    recovered.append(time.monotonic() - began)
            sender.until_accepted(1, 60.0)
            sender.finish()
            assert sender.connections == 1, f"the sender noticed: {dict(sender.losses)}"
            assert not sender.rejections
        if not receive:
            receiver.start()
        wait.until(lambda: not ledger.lost or ledger.complaints, "everything arrives", 120.0)
        wait.until(lambda: time.monotonic() - receiver.latest_arrival > 0.5, "nothing more arrives")
        receiver.finish()
        print(
            f"{number + 1} rounds: {ledger.summary()}; "
            f"back after {min(recovered):.2f} to {max(recovered):.2f} s; seed {seed}"
        )
        ledger.verdict()
        if not receive:
            assert not ledger.again, "only one receiver, and it lost nothing"
        said = service.said()
        assert "Traceback" not in said, said[-4000:]
        assert "damaged" not in said, said[-4000:]
        assert service.starts == 1


def test_nothing_is_received_meanwhile(tmp_path: Path) -> None:
    crash_rounds(tmp_path / "data", 5, SEED, "--segment-bytes", "2MiB", receive=False)


def test_settlements_and_cleaning(tmp_path: Path) -> None:
    crash_rounds(tmp_path / "data", 5, SEED + 1, "--segment-bytes", "1MiB", receive=True)


def test_flowing_to_disk(tmp_path: Path) -> None:
    flags = ("--segment-bytes", "4MiB", "--memory-mark", "8MB")
    crash_rounds(tmp_path / "data", 4, SEED + 2, *flags, size=500, receive=False)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(SEED, SEED + int(os.environ.get("LIGHTRAIL_SOAK_SEEDS", "5"))))
@pytest.mark.parametrize("receive", [False, True], ids=["stored", "received"])
def test_many_rounds(tmp_path: Path, seed: int, receive: bool) -> None:
    flags = ("--segment-bytes", "1MiB", "--memory-mark", "8MB")
    crash_rounds(tmp_path / "data", 60, seed, *flags, size=300, receive=receive)
