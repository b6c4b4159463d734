"""HTTP connections: how many a listener admits, in all and from one source, and which one ends for a new one.

Anybody can open connections before anybody asks for a password, so they are bounded below the descriptors of
the process, and one source has at most a part of them. Where no more are admitted, the connection that has
been without a request for longest is closed in favour of the new one, as nginx does with idle ones: whoever
sends requests gets in among any number who don't.
"""

import ipaddress
from typing import Final, Protocol

from lightrail.model import limits

IPV6_SOURCE_BITS: Final = 64
"""What one subscriber of a provider has of IPv6; all addresses of it are one source."""


class Connection(Protocol):
    """What is admitted."""

    source: str

    def idle(self) -> bool:
        """Whether no request is under way, nor any bytes of an answer."""

    def close_for_another(self) -> None:
        """Closes it at once."""


class Connections:
    """The connections of one listener.

    Args:
        most: admitted in all.
    """

    __slots__ = ("_all", "_by_source", "closed", "most", "most_of_a_source", "refused")

    def __init__(self, most: int) -> None:
        self.most = most
        self.most_of_a_source = max(1, most // limits.HTTP_SOURCE_PART)
        self.refused = 0
        """Connections that were not admitted."""
        self.closed = {"idle": 0, "head": 0, "write": 0}
        """Connections that were closed: in favour of another one, because the head of a request was not there
        in time, because the client did not read."""
        self._all: dict[Connection, None] = {}
        self._by_source: dict[str, dict[Connection, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def of_source(self, source: str) -> int:
        """Connections of one source."""
        return len(self._by_source.get(source, ()))

    def make_room(self, source: str) -> bool:
        """Whether one more from this source is admitted; an idle one may be closed for it."""
        same = self._by_source.get(source, {})
        if len(same) >= self.most_of_a_source and not self._close_idle(same):
            self.refused += 1
            return False
        if len(self._all) >= self.most and not self._close_idle(self._all):
            self.refused += 1
            return False
        return True

    def close_one(self) -> bool:
        """Closes the one that has been idle for longest, where there is one."""
        return self._close_idle(self._all)

    def add(self, connection: Connection) -> None:
        """An admitted connection; `discard` it when it has ended."""
        self._all[connection] = None
        self._by_source.setdefault(connection.source, {})[connection] = None

    def discard(self, connection: Connection) -> None:
        """A connection has ended; again does nothing."""
        if connection not in self._all:
            return
        del self._all[connection]
        same = self._by_source[connection.source]
        del same[connection]
        if not same:
            del self._by_source[connection.source]

    def _close_idle(self, among: dict[Connection, None]) -> bool:
        """Looks at the oldest ones; those with a request under way go behind all others."""
        for _ in range(min(len(among), limits.HTTP_IDLE_LOOKS)):
            oldest = next(iter(among))
            if oldest.idle():
                self.closed["idle"] += 1
                self.discard(oldest)
                oldest.close_for_another()
                return True
            among[oldest] = among.pop(oldest)
        return False


def source_of(address: str) -> str:
    """The source of a client's address: the address itself, of IPv6 its network of 64 bits."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, IPV6_SOURCE_BITS), strict=False))
    return address
