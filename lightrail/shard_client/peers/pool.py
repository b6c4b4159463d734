"""Pool: connections to shards that are closed when they are unused for a while.

Those for answers of megabytes are separate from those of messages: each has its own socket, so that no small
frame waits behind a large one, and forwards the parts without copying them. Copies and their memory were half
of the 1 ms of CPU per MiB that shard and gateway used together (docs/operate/readers.md has the measurement).
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from lightrail.shard_client.peers.requests import ShardDownError, Watch
from lightrail.shard_client.peers.shards import ShardPeer
from lightrail.wire.bodies import Answer
from lightrail.wire.frames import BLOB_FOLLOWS, HEADER, Kind, Part
from lightrail.wire.sockets.wiring import Wiring

BULK_GREETING_MS: Final[int] = 5_000
"""How long a reader waits until the shard has greeted on the connection for large answers."""


@dataclass(slots=True, eq=False, repr=False)
class OncePerTurn:
    """A call at the end of each turn of the loop in which it was requested, however often."""

    _loop: asyncio.AbstractEventLoop
    _call: Callable[[], None]
    _is_requested: bool = False

    def request(self) -> None:
        if not self._is_requested:
            self._is_requested = True
            self._loop.call_soon(self.call)

    def call(self) -> None:
        """Makes the call now."""
        self._is_requested = False
        self._call()


class BulkPeer(ShardPeer):
    """A connection to a shard for requests with large answers."""

    __slots__ = ()

    def _receive(self, parts: list[Part]) -> None:
        """A blob may be a separate part, behind the answer that it belongs to."""
        plain: list[Part] = []
        rest = iter(parts)
        for part in rest:
            kind, flags, _, _, _, _, number = HEADER.unpack_from(part)
            blob = next(rest, None) if kind == Kind.RESPONSE and flags & BLOB_FOLLOWS else None
            if blob is not None:
                self._requests.answered(number, part, memoryview(blob))
            else:
                plain.append(part)
        super()._receive(plain)


class Pooled(Watch[ShardPeer]):
    """A connection, its users, and whether its shard serves."""

    def __init__(self) -> None:
        self.peer: ShardPeer
        self.serves = asyncio.Event()
        self.users = 0
        self.idle: asyncio.TimerHandle | None = None
        """Timer that closes the connection while it has no user."""

    def welcomed(self, peer: ShardPeer) -> None:
        self.serves.set()

    def lost(self, peer: ShardPeer) -> None:
        self.serves.clear()


class Pool:
    """At most one connection to each shard, for which it is like a connection of a frontend.

    Args:
        name: of all connections, unique in the installation.
        boot: drawn when the process starts.
        address: returns the present address of a shard, or None while it is not registered.
        idle_ms: how long a connection without users stays open.
        make: class of the connections.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wiring: Wiring,
        *,
        name: str,
        boot: int,
        address: Callable[[int], str | None],
        now_ms: Callable[[], int],
        idle_ms: int,
        make: type[ShardPeer] = ShardPeer,
    ) -> None:
        self._loop = loop
        self._name = name
        self._boot = boot
        self._address = address
        self._now_ms = now_ms
        self._idle_ms = idle_ms
        self._wiring = wiring
        self._make = make
        self._pooled: dict[int, Pooled] = {}
        self._flushing = OncePerTurn(loop, self._flush)

    def __len__(self) -> int:
        """Connections that are open."""
        return len(self._pooled)

    async def request(
        self,
        shard: int,
        op: str,
        fields: dict[str, Any],
        *,
        greeting_ms: int = BULK_GREETING_MS,
    ) -> Answer:
        """As ShardPeer.request, when the shard is greeted, which takes at most `greeting_ms`.

        Raises ShardDownError, ShardRefusedError.
        """
        pooled = self._take(shard)
        try:
            if not pooled.serves.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(pooled.serves.wait(), greeting_ms / 1000)
            return await pooled.peer.request(op, fields)
        finally:
            self._leave(shard)

    def _take(self, shard: int) -> Pooled:
        """A connection to a shard, which may be down now; `_leave` ends the use."""
        address = self._address(shard)
        if address is None:
            raise ShardDownError(f"shard {shard} is not registered now; try again")
        pooled = self._pooled.get(shard)
        if pooled is None:
            pooled = self._open(shard, address)
        elif pooled.peer.address != address:
            pooled.peer.reach(address)
        pooled.users += 1
        # A move that retries while the greeting is unanswered must find the connection that it began.
        if pooled.idle is not None:
            pooled.idle.cancel()
            pooled.idle = None
        return pooled

    def _leave(self, shard: int) -> None:
        pooled = self._pooled.get(shard)
        if pooled is not None:
            pooled.users -= 1
            if not pooled.users:
                pooled.idle = self._loop.call_later(self._idle_ms / 1000, self._close_idle, shard)

    def close(self) -> None:
        """Closes all connections, as the process ends."""
        for pooled in self._pooled.values():
            if pooled.idle is not None:
                pooled.idle.cancel()
            pooled.peer.close()
        self._pooled.clear()

    def _open(self, shard: int, address: str) -> Pooled:
        pooled = self._pooled[shard] = Pooled()
        pooled.peer = self._make(
            self._loop,
            self._wiring,
            shard=shard,
            address=address,
            frontend=self._name,
            boot=self._boot,
            now_ms=self._now_ms,
            schedule_flush=self._flushing.request,
            flush=self._flushing.call,
            watch=pooled,
        )
        return pooled

    def _close_idle(self, shard: int) -> None:
        self._pooled.pop(shard).peer.close()

    def _flush(self) -> None:
        for pooled in list(self._pooled.values()):
            pooled.peer.flush()
