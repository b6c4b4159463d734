"""Ports for servers that are started again on the same one, or whose clients are told before they start."""

import os
import socket
from pathlib import Path
from typing import Final

_FIRST: Final = 20_000
_held: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on, and that nobody else is given as long as this process lives.

    A port that the system chose and that was let go again may be that of another's connection a moment
    later; these lie below those that it chooses.
    """
    below = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    # Where the system chooses among all, the mark and the probe have to do.
    size = below - _FIRST if below > _FIRST + 1_000 else 30_000
    found: list[int] = []
    begun = os.getpid() * 101
    for port in (_FIRST + (begun + number) % size for number in range(size)):
        if len(found) == count:
            break
        # A name of the machine's network: it goes with the process, however that ends.
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0lightrail-test-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            mark.close()
            continue
        _held.append(mark)
        found.append(port)
    assert len(found) == count, "no port is free"
    return found
