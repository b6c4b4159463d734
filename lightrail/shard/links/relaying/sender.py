"""The senders of a connection point."""

from lightrail.shard.effects.peers import Peer
from lightrail.wire.frames import (
    Kind,
    frame,
)


class Sender:
    """The link of a sender: the numbers of messages that it may send and has sent."""

    __slots__ = ("granted", "link", "peer", "sent", "used_ms")

    def __init__(self, peer: Peer, link: int, now_ms: int) -> None:
        self.peer = peer
        self.link = link
        self.granted = 0
        """Number of messages that it may send, counted from its opening."""
        self.sent = 0
        self.used_ms = now_ms
        """Time at which it last sent a message, or was opened."""

    @property
    def open(self) -> int:
        """Number of messages that it may still send."""
        return max(self.granted - self.sent, 0)

    def grant(self, granted: int) -> None:
        """Sends a GRANT if the number has changed."""
        if granted != self.granted:
            self.granted = granted
            self.peer.out.append(frame(Kind.GRANT, link=self.link, number=granted))

    def outcome(self, number: int, first: int, messages: int, code: int, body: bytes) -> None:
        """Sends the outcome of messages of one of its batches."""
        self.peer.out.append(
            frame(
                Kind.OUTCOME,
                flags=code,
                epoch=first,
                link=self.link,
                count=messages,
                number=number,
                body=body,
            )
        )
