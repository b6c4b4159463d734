"""A frontend of a running installation that speaks in frames: `Frontend` of moving_scene over sockets."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq

from lightrail.cluster.sqlite import SqliteCoordinator
from tests.support.shard.scene import Peer

DEADLINE_S = 30.0


class Way:
    """A connection to one shard: what `Peer` takes for its scene."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        self.peers: dict[bytes, Peer] = {}
        self._context = context
        self._address = address
        self._sockets: dict[bytes, zmq.Socket[bytes]] = {}

    def receive(self, identity: bytes, parts: Sequence[bytes]) -> None:
        socket = self._sockets.get(identity)
        if socket is None:
            socket = self._sockets[identity] = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.ROUTING_ID, identity)
            socket.connect(self._address)
        socket.send_multipart(list(parts))

    def turn(self) -> None:
        for identity, socket in self._sockets.items():
            while socket.poll(0):
                self.peers[identity].hear(socket.recv_multipart())

    def settle_down(self) -> None:
        """What the shard has to say is heard when it comes."""
        self.turn()

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close(0)


class RunningShard:
    """A shard process as the frontend sees it."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        self.alive = True
        self.life = 1
        self.scene = Way(context, address)

    def settle_down(self) -> None:
        """What it has to say is heard when it comes."""
        self.scene.turn()


class Installation:
    """The shards of one machine, and its coordinator."""

    def __init__(self, coordinator: SqliteCoordinator, sockets: Path, shards: int) -> None:
        self.coordinator = coordinator
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.shards = [
            RunningShard(self._context, f"ipc://{sockets}/shard-{id}.sock") for id in range(shards)
        ]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """The loop turns until something is so."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end, f"waited in vain: {what}"
            for shard in self.shards:
                shard.scene.turn()
            await asyncio.sleep(0.001)

    def close(self) -> None:
        for shard in self.shards:
            shard.scene.close()
        self._context.term()
