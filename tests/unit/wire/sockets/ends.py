"""Ends of connections over unix sockets that keep what arrives: tests wait for it by events, not by time."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from lightrail.wire.sockets.unix import UnixConnection
from lightrail.wire.sockets.unix_ends import UnixDealer, UnixRouter
from lightrail.wire.sockets.wiring import Wiring, nothing
from tests.support import zmtp

Parts = list[bytes]


class Scene:
    """The ends of one test, on its loop."""

    def __init__(self, directory: Path) -> None:
        self.loop = asyncio.get_running_loop()
        self.path = str(directory / "s")
        self.wiring = Wiring(self.loop, on_loop=True)
        self.counts = self.wiring.counts.loop
        self.made: list[RouterEnd | DealerEnd | RawPeer] = []
        self._event = asyncio.Event()

    def happened(self) -> None:
        """An end calls it after everything that a test may wait for."""
        self._event.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for what one of the callbacks of the ends makes true."""
        while not condition():
            self._event.clear()
            await self._event.wait()

    async def turns(self, count: int = 5) -> None:
        """Lets the loop read all that the system has; a connection reads once in each turn."""
        for _ in range(count):
            await asyncio.sleep(0)

    async def pair(self) -> "tuple[RouterEnd, DealerEnd]":
        """A router, and a dealer of the name `d` whose connection both of them know."""
        router, dealer = RouterEnd(self), DealerEnd(self, name=b"d")
        await self.until(lambda: dealer.is_open and b"d" in router.names)
        return router, dealer

    def has_file(self) -> bool:
        return os.path.exists(self.path)

    async def raw(self, data: bytes = zmtp.ready(b"DEALER", b"raw")) -> "RawPeer":
        """A peer by hand that has connected and sent this."""
        connecting = socket.socket(socket.AF_UNIX)
        connecting.setblocking(False)
        await self.loop.sock_connect(connecting, self.path)
        peer = RawPeer(self, connecting)
        await peer.send(data)
        return peer

    def close(self) -> None:
        for end in self.made:
            end.close()
        self.wiring.close()


class RouterEnd(UnixRouter):
    def __init__(self, scene: Scene, *, send_max: int = 0, copies: bool = True) -> None:
        self.scene = scene
        self.got: list[tuple[bytes, Parts]] = []
        self.names: list[bytes] = []
        """Of connections that have greeted, in the order of their greetings."""
        self.ends = 0
        self.afters = 0
        self.on_message: Callable[[bytes, Parts], None] = lambda name, parts: None
        self.on_after: Callable[[], None] = nothing
        scene.made.append(self)
        super().__init__(
            scene.loop,
            scene.path,
            self._keep,
            self._count,
            scene.wiring._linger,
            scene.counts,
            send_max=send_max,
            copies=copies,
        )

    def of(self, name: bytes) -> list[Parts]:
        """The messages of a connection."""
        return [parts for found, parts in self.got if found == name]

    def _keep(self, name: bytes, parts: Parts) -> None:
        self.got.append((name, parts))
        self.scene.happened()
        self.on_message(name, parts)

    def _count(self) -> None:
        self.afters += 1
        self.scene.happened()
        self.on_after()

    def opened(self, connection: UnixConnection) -> None:
        super().opened(connection)
        self.names.append(connection.name)
        self.scene.happened()

    def ended(self, connection: UnixConnection) -> None:
        super().ended(connection)
        self.ends += 1
        self.scene.happened()


class DealerEnd(UnixDealer):
    def __init__(self, scene: Scene, *, name: bytes = b"", send_max: int = 0, copies: bool = True) -> None:
        self.scene = scene
        self.got: list[Parts] = []
        self.opens = 0
        self.ends = 0
        self.afters = 0
        self.on_message: Callable[[Parts], None] = lambda parts: None
        self.on_after: Callable[[], None] = nothing
        self.on_opening: Callable[[], None] = nothing
        scene.made.append(self)
        super().__init__(
            scene.loop,
            scene.path,
            self._keep,
            self._count,
            scene.wiring._linger,
            scene.counts,
            send_max=send_max,
            name=name,
            copies=copies,
            on_open=self._opens,
        )

    def _keep(self, parts: Parts) -> None:
        self.got.append(parts)
        self.scene.happened()
        self.on_message(parts)

    def _count(self) -> None:
        self.afters += 1
        self.scene.happened()
        self.on_after()

    def _opens(self) -> None:
        self.opens += 1
        self.scene.happened()
        self.on_opening()

    def ended(self, connection: UnixConnection) -> None:
        super().ended(connection)
        self.ends += 1
        self.scene.happened()


class RawPeer:
    """The other end, by hand."""

    def __init__(self, scene: Scene, connected: socket.socket) -> None:
        self.loop = scene.loop
        self.socket = connected
        connected.setblocking(False)
        scene.made.append(self)

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.socket, data)

    async def read(self, size: int) -> bytes:
        """So many octets. Raises ConnectionError."""
        data = bytearray()
        while len(data) < size:
            if not (more := await self.loop.sock_recv(self.socket, size - len(data))):
                raise ConnectionError(f"expected {size} octets, found {len(data)} and the end")
            data += more
        return bytes(data)

    async def handshake(self) -> None:
        """Reads the greeting and READY of the other end."""
        await self.read(len(zmtp.GREETING))
        await self.frame()

    async def frame(self) -> tuple[int, bytes]:
        """Flags and octets of the next frame."""
        flags, size = await self.read(2)
        if flags & 2:
            size = int.from_bytes(bytes((size,)) + await self.read(7), "big")
        return flags, await self.read(size)

    async def message(self) -> Parts:
        parts = []
        flags = 1
        while flags & 1:
            flags, data = await self.frame()
            parts.append(data)
        return parts

    async def ended(self) -> bytes:
        """Everything up to the end of the connection."""
        data = b""
        try:
            while more := await self.loop.sock_recv(self.socket, 1 << 20):
                data += more
        except ConnectionResetError:
            pass
        return data

    def close(self) -> None:
        self.socket.close()


class RawListener:
    """A listener by hand, at the path of the scene."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.setblocking(False)
        Path(scene.path).unlink(missing_ok=True)
        self.socket.bind(scene.path)
        self.socket.listen()

    async def accept(self, data: bytes = zmtp.ready(b"ROUTER")) -> RawPeer:
        """A connection, to which this was sent."""
        accepted, _ = await self._scene.loop.sock_accept(self.socket)
        peer = RawPeer(self._scene, accepted)
        await peer.send(data)
        return peer

    async def accept_until(self, condition: Callable[[], bool]) -> None:
        """Accepts connections, of which the first ones may have ended, until one of them makes this true."""

        async def accept() -> None:
            while True:
                with suppress(ConnectionError):
                    await self.accept()

        accepting = asyncio.create_task(accept())
        await self._scene.until(condition)
        accepting.cancel()
        await asyncio.wait([accepting])

    def close(self) -> None:
        self.socket.close()


@asynccontextmanager
async def scene(directory: Path) -> AsyncIterator[Scene]:
    made = Scene(directory)
    try:
        yield made
    finally:
        made.close()
