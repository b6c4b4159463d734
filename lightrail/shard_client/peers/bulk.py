"""Bulk: connections to shards for answers of megabytes, separate from those of messages.

Each has its own socket, so that no small frame waits behind a large one, and forwards the parts without
copying them: copies and their memory were half of the 1 ms of CPU per MiB that shard and gateway used
together (docs/operate/readers.md has the measurement).
"""

from lightrail.shard_client.peers.shards import ShardPeer
from lightrail.wire.frames import BLOB_FOLLOWS, HEADER, Kind
from lightrail.wire.socket import Parts


class BulkPeer(ShardPeer):
    """A connection to a shard for requests with large answers."""

    __slots__ = ()

    def _receive(self, parts: Parts) -> None:
        """A blob may be a separate part, behind the answer that it belongs to."""
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
