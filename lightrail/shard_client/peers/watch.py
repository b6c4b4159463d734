"""Watch: the events of the connections to shards, for followers."""

from typing import Generic, TypeVar

Peer = TypeVar("Peer")


class Watch(Generic[Peer]):
    """Base of followers of a process's connections to shards (owners.py); it ignores all events."""

    def lost(self, peer: Peer) -> None:
        """The shard no longer serves; links stay, and are opened again when it serves."""

    def welcomed(self, peer: Peer) -> None:
        """The shard was greeted, and every link has been opened again."""

    def silent(self, peer: Peer, silent_ms: int) -> None:
        """The shard has sent nothing for `silent_ms`, and has not been restarted as far as is known."""

    def spoke(self, peer: Peer) -> None:
        """A shard that was silent sends again."""

    def opened(self, peer: Peer, link: int) -> None:
        """The shard opened a producer or consumer."""

    def ended(self, peer: Peer, link: int) -> None:
        """The shard ended a producer or consumer, whose `ended` is called after this."""

    def moved(self, peer: Peer, link: int) -> None:
        """The shard does not own the queue of a link, or not in the epoch that the link named."""

    def ponged(self, peer: Peer, ping: int) -> None:
        """The shard has answered a PING (see ShardPeer.ping): nothing sent before it is missing."""

    def bounced(self, peer: Peer, queue: str, part: bytes) -> None:
        """The shard returned a settlement or close, which is for the shard that owns the queue now."""
