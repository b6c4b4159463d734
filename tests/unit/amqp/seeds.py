"""Seeds of a soak: a fresh one and those after it, for LIGHTRAIL_SOAK_SECONDS."""

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

SOAK_S = float(os.environ.get("LIGHTRAIL_SOAK_SECONDS", "600"))
FIRST = os.environ.get("LIGHTRAIL_FUZZ_SEED")
"""Seed to begin with instead of a fresh one, for a repetition."""
FILE = "seed"


def soak_seeds(play: Callable[[int], object], directory: Path) -> None:
    """Plays at least one seed.

    `directory`/seed has the seed that is being played: a sanitizer or a signal that ends the process leaves
    no assertion to read it from.
    """
    seed = int(FIRST) if FIRST else secrets.randbits(48)
    end = time.monotonic() + SOAK_S
    with (directory / FILE).open("wb", buffering=0) as file:
        while True:
            os.pwrite(file.fileno(), b"%020d" % seed, 0)
            play(seed)
            seed += 1
            if time.monotonic() >= end:
                return
