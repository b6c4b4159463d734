"""An island: a network namespace that one cable leads to, which a test pulls and plugs in again.

Whoever runs there has its connections cut off without a word, as on a machine that the network has lost.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

_NETWORK = "10.213.{}.{}"
"""Of this test process: 256 of them may run on a machine."""


class Island:
    """See `island`."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.here = _NETWORK.format(number, 1)
        """This end's address: where the islanders find us."""
        self.there = _NETWORK.format(number, 2)
        """Where we find the islanders."""
        self.cable = f"lr{number}h"
        self.end = f"lr{number}i"
        self.inside = ("ip", "netns", "exec", name)
        """What a command begins with that is to run there."""

    def pull(self) -> None:
        """The cable is out: nothing reaches the island, nothing leaves it."""
        _ip("-n", self.name, "link", "set", self.end, "down")

    def lose(self, share: float) -> None:
        """From here on so much of what comes to the island and leaves it is lost; 0 for nothing."""
        for chain in ("INPUT", "OUTPUT"):
            _run(*self.inside, "iptables", "-F", chain)
            if share:
                loss = ("-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP")
                _run(*self.inside, "iptables", "-A", chain, *loss)

    def plug(self) -> None:
        """It is in again."""
        _ip("-n", self.name, "link", "set", self.end, "up")


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def island() -> Iterator[Island]:
    """A new island with its cable in; skips the test where the system does not let us make one."""
    number = os.getpid() % 256
    made = Island(f"lightrail-{os.getpid()}", number)
    try:
        try:
            _ip("netns", "add", made.name)
            _ip("link", "add", made.cable, "type", "veth", "peer", "name", made.end, "netns", made.name)
            _ip("address", "add", f"{made.here}/24", "dev", made.cable)
            _ip("link", "set", made.cable, "up")
            _ip("-n", made.name, "address", "add", f"{made.there}/24", "dev", made.end)
            _ip("-n", made.name, "link", "set", made.end, "up")
            _ip("-n", made.name, "link", "set", "lo", "up")
        except OSError as error:
            pytest.skip(f"a network namespace can't be made here: {error}")
        yield made
    finally:
        for what in (("netns", "delete", made.name), ("link", "delete", made.cable)):
            with suppress(OSError):
                _ip(*what)
