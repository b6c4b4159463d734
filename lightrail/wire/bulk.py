"""Bulk: connections to shards for answers of megabytes, apart from those of messages.

Each has a socket of its own, so that no small frame waits behind a large one, and passes on the parts
without copying them: of 1 ms of CPU per MiB that shard and gateway took together, copies and the
memory that they were made in were a half (docs/operate/readers.md has the measurement).
"""

from lightrail.wire.frames import BLOB_FOLLOWS, HEADER, Kind
from lightrail.wire.shards import ShardPeer
from lightrail.wire.socket import Parts


class BulkPeer(ShardPeer):
    """A connection to a shard for requests with large answers."""

    __slots__ = ()

    def _receive(self, parts: Parts) -> None:
        """A blob may be a part of its own, behind the answer that it belongs to."""
        plain: Parts = []
        rest = iter(parts)
        for part in rest:
            kind, flags, _, _, _, _, number = HEADER.unpack_from(part)
            blob = next(rest, None) if kind == Kind.RESPONSE and flags & BLOB_FOLLOWS else None
            if blob is not None:
                self._requests.answered(number, part, memoryview(blob))
            else:
                plain.append(part)
        super()._receive(plain)
