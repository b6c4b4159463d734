"""A TCP proxy on the loop of the test that cuts each connection after a number of bytes drawn from a seed."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Self

READ_BYTES = 65_536


@dataclass
class Cut:
    """What becomes of one connection.

    Attributes:
        bytes_left: until the cut, by direction: of the client's and of the server's bytes.
        is_silent: nothing is closed: the bytes that follow go nowhere, as through a firewall that forgot; of
            both directions, for a peer that still hears the other one has no cause to think it lost.
    """

    bytes_left: dict[str, float]
    is_silent: bool = False


@dataclass
class RandomCuts:
    """Between clients and one server.

    Args:
        target: HOST:PORT of the server.
        seed: of all that is drawn.
        bytes_max: a connection is cut after so many bytes of a direction at the most.
        bytes_min: and after so many at the least.
        silent: share of the cuts that close nothing.
    """

    target: str
    seed: int
    bytes_max: int = 20_000
    bytes_min: int = 1
    silent: float = 0.25
    cutting: bool = True
    """Connections that are accepted while it is not set are left alone."""
    cuts: int = 0
    port: int = 0
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._draw = random.Random(self.seed)
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _next(self) -> Cut:
        draw = self._draw
        if not self.cutting:
            return Cut({"client": float("inf"), "server": float("inf")})
        # Evenly over the orders of magnitude: the handshake is a few hundred bytes, and has its cuts as well.
        count = int(self.bytes_min * (self.bytes_max / self.bytes_min) ** draw.random())
        side = draw.choice(("client", "server"))
        other = "server" if side == "client" else "client"
        return Cut({side: count, other: float("inf")}, draw.random() < self.silent)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        host, _, port = self.target.rpartition(":")
        try:
            there, back = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        cut = self._next()
        self._writers |= {writer, back}
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pass_on(cut, "client", reader, back))
                ways.create_task(self._pass_on(cut, "server", there, writer))
        except* OSError:
            pass
        finally:
            writer.transport.abort()
            back.transport.abort()
            self._writers -= {writer, back}

    async def _pass_on(
        self, cut: Cut, side: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Raises ConnectionResetError when its end has come, which ends the other direction as well."""
        while data := await reader.read(READ_BYTES):
            passed = data[: int(min(cut.bytes_left[side], len(data)))]
            before = cut.bytes_left[side]
            cut.bytes_left[side] -= len(passed)
            if len(passed) < len(data) and cut.is_silent:
                cut.bytes_left = {"client": 0, "server": 0}
            if passed:
                writer.write(passed)
                await writer.drain()
            if len(passed) < len(data):
                if before > 0:
                    self.cuts += 1
                if not cut.is_silent:
                    raise ConnectionResetError
        raise ConnectionResetError
