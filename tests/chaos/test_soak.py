"""Chaos for as long as one likes: `make soak`, with LIGHTRAIL_SOAK_SECONDS, LIGHTRAIL_SOAK_SEEDS and
LIGHTRAIL_CHAOS_SEED. A seed gives the same faults in the same order; when they hit is up to the machine.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.scene import Scene, hold
from tests.support import wait

SECONDS = float(os.environ.get("LIGHTRAIL_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("LIGHTRAIL_CHAOS_SEED", "1"))
SEEDS = int(os.environ.get("LIGHTRAIL_SOAK_SEEDS", "3"))
RATE = 15_000.0
"""Messages per second and sender: busy, with bursts after each fault, and few enough to count for hours."""


class Faults:
    """What can be done to a broker, by name."""

    def __init__(self, scene: Scene, chance: random.Random, frontends: int, shards: int) -> None:
        self.scene = scene
        self.chance = chance
        self.frontends = frontends
        self.shards = shards
        self.all: dict[str, Callable[[], None]] = {
            "kill shard": lambda: scene.service.kill("shard", chance.randrange(shards)),
            "kill frontend": lambda: scene.service.kill("frontend", chance.randrange(frontends)),
            "kill both": self.kill_both,
            "kill gateway": lambda: scene.service.kill("gateway"),
            "kill supervisor": lambda: scene.service.kill("supervisor"),
            "kill everything": scene.service.kill_everything,
            "freeze shard": lambda: self.freeze("shard", chance.randrange(shards)),
            "freeze frontend": lambda: self.freeze("frontend", chance.randrange(frontends)),
            "kill frozen shard": self.kill_frozen,
            "terminate": self.terminate,
        }

    def freeze(self, role: str, id: int) -> None:
        with self.scene.service.frozen(role, id):
            hold(self.chance.uniform(0.1, 12.0))

    def kill_both(self) -> None:
        self.scene.service.kill("shard", self.chance.randrange(self.shards))
        self.scene.service.kill("frontend", self.chance.randrange(self.frontends))

    def kill_frozen(self) -> None:
        shard = self.chance.randrange(self.shards)
        with self.scene.service.frozen("shard", shard):
            hold(self.chance.uniform(0.1, 7.0))
            self.scene.service.kill("shard", shard)

    def terminate(self) -> None:
        ended = len(self.scene.service.exits)
        with suppress(ProcessLookupError):
            os.kill(self.scene.service.supervisor, signal.SIGTERM)
        wait.until(lambda: len(self.scene.service.exits) > ended, "the broker ends", 60.0)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(SEED, SEED + SEEDS))
@pytest.mark.parametrize(("frontends", "shards"), [(1, 1), (2, 2)], ids=["one", "two"])
def test_soak(tmp_path: Path, frontends: int, shards: int, seed: int) -> None:
    """Fault after fault, now and then a second one before the first is over."""
    chance = random.Random(seed)
    flags = ("--frontends", str(frontends), "--shards", str(shards), "--segment-bytes", "4MiB")
    scene = Scene(
        tmp_path / "data",
        *flags,
        "--memory-mark",
        "32MB",
        pairs=4,
        count_max=int(RATE * (SECONDS + 600)),
        rate=RATE,
        strict=frontends == 1,
    )
    done: Counter[str] = Counter()
    with scene:
        faults = Faults(scene, chance, frontends, shards)
        scene.warm()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            scene.calm.disturb()
            for _ in range(chance.choice((1, 1, 1, 2))):
                name = chance.choice(sorted(faults.all))
                done[name] += 1
                faults.all[name]()
            scene.recovered()
            hold(chance.expovariate(1.0))
        print(f"seed {seed}: {dict(done)}, slowest recovery {max(scene.recoveries):.1f} s")
        scene.finish()
        assert not [status for status in scene.service.exits if status > 0], scene.service.exits
