"""The floor under a message that comes alone: the same hops in C, with nothing done on the way (floor/hop.c).

It runs just before the broker does, on the same machine and in the same minute: the broker's CPU divided by
the floor's can be compared between machines, where microseconds can't.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.benchmarks.load import LoadError
from tests.benchmarks.row import Figures

SOURCE: Final = Path(__file__).with_name("floor") / "hop.c"
TIME_MAX_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Floor:
    """One load of hop.c.

    Args:
        senders: clients with one message under way each.
        count: messages in all.
        rate: messages per second in all; 0: as fast as answers come.
        durable: whether the worker syncs what it has read before it answers.
    """

    senders: int
    count: int
    rate: int = 0
    durable: bool = False

    @property
    def command(self) -> str:
        return f"hop {self.senders} {self.count} {self.rate} {int(self.durable)} …"

    def measure(self, scratch: str) -> Figures:
        """CPU and context switches per message, and the times of the way. Raises LoadError."""
        program = Path(scratch) / "hop"
        if not program.exists():
            _run(["gcc", "-O2", "-o", str(program), str(SOURCE)])
        words = (self.senders, self.count, self.rate, int(self.durable))
        found: Figures = json.loads(_run([str(program), *map(str, words), scratch]))
        return {f"floor_{name}": value for name, value in found.items()}

    def beside(self, figures: Figures, floor: Figures) -> Figures:
        """The broker's figures, with those of the floor and the ratios to it."""
        return {
            **figures,
            **floor,
            "times_floor": figures["server_cpu_us"] / floor["floor_cpu_us"],
            "times_switches": figures["server_switches"] / floor["floor_switches"],
        }


def missing() -> str | None:
    """What this machine lacks."""
    return None if shutil.which("gcc") else "gcc, which compiles the floor"


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_MAX_S)
    if done.returncode:
        raise LoadError(f"{command[0]} ended with status {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout
