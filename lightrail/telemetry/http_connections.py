"""HTTP connections: how many a listener admits, in all and from one source, and which one it closes for a new
one.

Clients can open connections before they authenticate, so the number is bounded below the descriptors of
the process, and one source has at most a part of it. At the bound, the connection that has been idle for
longest is closed for the new one, as nginx does: a client that sends requests is admitted among any number
of idle clients.
"""

import ipaddress
from typing import Final, Protocol

HTTP_SOURCE_PART: Final[int] = 2
"""1 / this of the connections of a listener may come from one source."""
HTTP_IDLE_LOOKS: Final[int] = 64
"""Connections that a full listener searches for one without a request, for a new client."""
IPV6_SOURCE_BITS: Final = 64
"""The IPv6 prefix that a provider assigns to one subscriber; all addresses in it are one source."""


class Connection(Protocol):
    """A connection that can be admitted."""

    source: str

    def idle(self) -> bool:
        """Whether no request is in progress and no bytes of an answer are buffered."""

    def close_for_another(self) -> None:
        """Closes the connection at once."""


class Connections:
    """The connections of one listener.

    Args:
        most: largest number of connections.
    """

    __slots__ = ("_all", "_by_source", "closed", "most", "most_of_a_source", "refused")

    def __init__(self, most: int) -> None:
        self.most = most
        self.most_of_a_source = max(1, most // HTTP_SOURCE_PART)
        self.refused = 0
        """Connections that were not admitted."""
        self.closed = {"idle": 0, "head": 0, "write": 0}
        """Connections that were closed: for a new one, because the head of a request was late, because the
        client did not read."""
        self._all: dict[Connection, None] = {}
        self._by_source: dict[str, dict[Connection, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def of_source(self, source: str) -> int:
        """Connections of one source."""
        return len(self._by_source.get(source, ()))

    def make_room(self, source: str) -> bool:
        """Whether one more connection from this source is admitted; closes an idle one if necessary."""
        same = self._by_source.get(source, {})
        if len(same) >= self.most_of_a_source and not self._close_idle(same):
            self.refused += 1
            return False
        if len(self._all) >= self.most and not self._close_idle(self._all):
            self.refused += 1
            return False
        return True

    def close_one(self) -> bool:
        """Closes the connection that has been idle for longest; whether there was one."""
        return self._close_idle(self._all)

    def add(self, connection: Connection) -> None:
        """Adds an admitted connection; `discard` it when it has ended."""
        self._all[connection] = None
        self._by_source.setdefault(connection.source, {})[connection] = None

    def discard(self, connection: Connection) -> None:
        """Removes a connection that has ended; a second call does nothing."""
        if connection not in self._all:
            return
        del self._all[connection]
        same = self._by_source[connection.source]
        del same[connection]
        if not same:
            del self._by_source[connection.source]

    def _close_idle(self, among: dict[Connection, None]) -> bool:
        """Checks the oldest connections; those with a request in progress are moved behind all others."""
        for _ in range(min(len(among), HTTP_IDLE_LOOKS)):
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
