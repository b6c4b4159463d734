"""Frontends: the processes that have sent HELLO to this shard, and the frames to send to each."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from lightrail.model import limits
from lightrail.shard.effects.peers import Peer
from lightrail.shard.links.links import Links
from lightrail.shard.links.relaying.relay import Relays
from lightrail.wire.bodies import Hello, Welcome
from lightrail.wire.frames import HEADER_SIZE, TIMED, VERSION, Kind, Part, frame
from lightrail.wire.versions import VERSIONS, unknown

log = logging.getLogger("lightrail.shard.links.frontends")

SHARD: Final = "shard-"
"""Prefix of the names of peers that are shards, which copy queues."""


@dataclass(slots=True, eq=False, repr=False)
class Frontends:
    """Every frontend, gateway and shard that has links here, by its identity."""

    _shard: int
    boot: int
    """The boot number of this process."""
    _links: Links
    _relays: Relays
    _by_identity: dict[bytes, Peer] = field(default_factory=dict)
    _strangers: dict[bytes, bytes] = field(default_factory=dict)
    """Answers to senders that are not peers, by identity."""

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._by_identity.values())

    @property
    def count(self) -> int:
        """Peers that are frontends or gateways, not shards."""
        return sum(not peer.frontend.startswith(SHARD) for peer in self._by_identity.values())

    def find(self, identity: bytes) -> Peer | None:
        """The peer of an identity; None if it has to greet first."""
        return self._by_identity.get(identity)

    def meet(self, identity: bytes, part: Part, now_ms: int) -> bool:
        """Answers the first frame of an unknown sender; returns whether it is a peer from now on.

        Only a greeting makes a peer; other frames are answered with ABSENT, and the frontend greets again.
        """
        if part[:1] != bytes((Kind.HELLO,)):
            self._strangers[identity] = frame(Kind.ABSENT)
            return False
        hello = Hello.decode(part[HEADER_SIZE:])
        if hello.version not in VERSIONS:
            # The frontend greets again if it speaks the version of the answer.
            log.warning("%s", unknown(f"frontend {hello.frontend}", hello.version))
            self._strangers[identity] = self._welcome(VERSION, hello.attempt, now_ms)
            return False
        for other in [peer for peer in self if peer.frontend == hello.frontend]:
            # The frontend was restarted: the deliveries of its former process return at once.
            self.forget(other, now_ms)
        self.greet(identity, hello, now_ms)
        return True

    def greet(self, identity: bytes, hello: Hello, now_ms: int) -> None:
        """Adds a peer without links for a frontend that has greeted."""
        peer = Peer(identity, hello.frontend, hello.boot, hello.attempt, now_ms, hello.version)
        peer.out.append(self._welcome(hello.version, hello.attempt, now_ms))
        self._by_identity[identity] = peer

    def greet_again(self, peer: Peer, hello: Hello, now_ms: int) -> None:
        """Begins again with a frontend that may have lost frames; its producers keep their numbers."""
        self.forget(peer, now_ms)
        self.greet(peer.identity, hello, now_ms)

    def ask_to_greet(self, peer: Peer, why: str, now_ms: int) -> None:
        """Asks a frontend to greet again because a frame of it is missing.

        Later batches must not be stored, because their numbers would confirm the missing ones. The frontend
        has to send all unanswered frames again.
        """
        log.warning("frontend %s has to greet again: %s", peer.frontend, why)
        self.forget(peer, now_ms)
        self._strangers[peer.identity] = frame(Kind.ABSENT)

    def forget(self, peer: Peer, now_ms: int) -> None:
        """Closes all links of a frontend that has ended, or that begins again."""
        self._by_identity.pop(peer.identity, None)
        self._links.forget(peer, now_ms)
        self._relays.forget(peer)

    def forget_silent(self, now_ms: int, *, stalled: bool) -> None:
        """Forgets frontends from which nothing was received for limits.PEER_SILENCE_MS.

        Args:
            stalled: this process hung, so that received frames wait in the socket.
        """
        for peer in list(self):
            if stalled:
                peer.heard_ms = now_ms
            elif now_ms - peer.heard_ms > limits.PEER_SILENCE_MS:
                log.warning("frontend %s has sent nothing for %d ms", peer.frontend, now_ms - peer.heard_ms)
                self.forget(peer, now_ms)

    def take_output(self) -> list[tuple[bytes, list[bytes]]]:
        """(identity, parts) for every frontend with frames to send."""
        output: list[tuple[bytes, list[bytes]]] = []
        if self._strangers:
            output += ((identity, [answer]) for identity, answer in self._strangers.items())
            self._strangers.clear()
        for peer in self._by_identity.values():
            if peer.out or peer.acking:
                output.append((peer.identity, peer.take()))
        return output

    def _welcome(self, version: int, attempt: int, now_ms: int) -> bytes:
        body = Welcome(version, self._shard, self.boot, attempt).encode()
        return frame(Kind.WELCOME, flags=TIMED, epoch=now_ms, body=body)
