"""Files that one operation passes, counted in the processes of a broker of two shards.

A file is passed if one of its Python functions is called, or a coroutine or generator of it resumed, on any
thread of the frontend or a shard, between two events that the client sees. The gateway and the supervisor
have no part in these operations, and work by their own timers meanwhile.

- transfer: from the send of one durable message to its outcome. Its link is attached, and nobody receives
  from the queue.
- resumed link: from the cut of the connection of a durable sender with `resume` to the outcome of the next
  message, for which the client connects again and resumes the link.
- move: from the entry of the move of a queue to its end. A sender and a receiver are attached to the queue,
  and idle.

The client and the tool that writes the entry are not counted, and what is compiled (the scanner) is not
seen. A transfer and a resumed link are warm: each was done WARM times before it is counted, so that what
happens once (imports, caches) is left out. A move is cold, the first one of its broker, for which the
shards connect to each other. Each operation is counted several times, moves in a broker of their own each,
and a file is passed if it is in all of these counts: so timers that run by chance during one of them are
left out. On a busy machine they run during most: an operation is repeated until no file drops out any more.
"""

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from lightrail.cli.trace.recorder import Recorder, environment
from lightrail.client import Connection, ReconnectPolicy, connect
from tests.support.amqp.cutting_proxy import CuttingProxy
from tests.support.broker import ROOT, Broker
from tests.support.moves import move

WARM: Final = 2
UNCHANGED: Final = 5
"""An operation is repeated until so many repetitions in a row have passed all files that remain."""
REPEATED_MAX: Final = 100
BROKERS: Final = 3
"""Moves that are counted."""
START_S_MAX: Final = 300.0
"""A broker whose calls are counted starts slowly."""
RESUME_S: Final = 600
SOON: Final = ReconnectPolicy(first=0.01, longest=0.1)
Operation = Callable[[], Awaitable[object]]
Calls = Mapping[str, int]
"""Calls of each file, by its path."""


@dataclass(frozen=True)
class Trace:
    """Files that one operation passes.

    Attributes:
        files: those that each repetition passed, by path.
        calls: in the files of each repetition.
    """

    files: list[str]
    calls: list[int]

    @classmethod
    def of(cls, counts: list[Calls]) -> Self:
        """Of all repetitions."""
        passed = set.intersection(*(set(count) for count in counts))
        return cls(sorted(passed), [sum(count.values()) for count in counts])


class Tracer:
    """Counts calls in a broker's processes."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    async def count(self, operation: Operation) -> Calls:
        """Calls of each file in all processes while an operation is done."""
        self._recorder.begin()
        await operation()
        return Counter(call.file for call in self._recorder.end())

    async def repeat(self, operation: Operation) -> Trace:
        """Warm first, and then counted until it is known which files every repetition passes."""
        for _ in range(WARM):
            await operation()
        counts = [await self.count(operation)]
        passed, unchanged = set(counts[0]), 0
        while unchanged < UNCHANGED and len(counts) < REPEATED_MAX:
            counts.append(await self.count(operation))
            remaining = passed.intersection(counts[-1])
            unchanged = unchanged + 1 if remaining == passed else 0
            passed = remaining
        return Trace.of(counts)


async def transfer(tracer: Tracer, broker: Broker) -> Trace:
    """One durable message."""
    async with connect(broker.amqp) as connection, connection.sender("traced/transfer") as sender:
        return await tracer.repeat(lambda: sender.send("message", durable=True))


async def resumed_link(tracer: Tracer, broker: Broker) -> Trace:
    """One durable sender."""
    async with through_proxy(broker) as (proxy, connection):
        sender = connection.sender("traced/resumed", resume=RESUME_S, durable=True)

        async def cut_and_send() -> None:
            proxy.cut()
            await sender.send("message", durable=True)

        await sender.send("message", durable=True)
        return await tracer.repeat(cut_and_send)


async def move_once(tracer: Tracer, broker: Broker) -> Calls:
    """A queue with one idle sender and one idle receiver."""
    queue = "traced/moved"
    async with connect(broker.amqp) as connection, connection.sender(queue) as sender:
        async with connection.receiver(queue) as first:
            # The settlement needs no disk, so it is over when the next receiver is attached.
            await sender.send("message", durable=False)
            await (await anext(first)).accept()
        async with connection.receiver(queue):
            return await tracer.count(lambda: asyncio.to_thread(move, broker.data, queue))


@contextlib.asynccontextmanager
async def through_proxy(broker: Broker) -> AsyncIterator[tuple[CuttingProxy, Connection]]:
    """A connection that can be cut."""
    proxy = CuttingProxy(int(broker.amqp.rpartition(":")[2]))
    try:
        async with connect(proxy.url, reconnect=SOON) as connection:
            yield proxy, connection
    finally:
        proxy.close()


@contextlib.contextmanager
def traced_broker(root: Path) -> Iterator[tuple[Tracer, Broker]]:
    """A broker of the checkout in folder `root`, and the hooks of its processes."""
    with tempfile.TemporaryDirectory(prefix="traces-") as folder:
        sockets = Path(folder, "sockets")
        sockets.mkdir()
        environ = environment(sockets, root / "lightrail")
        broker = Broker(Path(folder, "data"), "--shards", "2", "--frontends", "1", environ=environ, root=root)
        try:
            broker.until_ready(START_S_MAX)
            parties = ("frontend", "shard")
            roles = {one["pid"]: one["role"] for one in broker.ready["processes"] if one["role"] in parties}
            yield Tracer(Recorder(sockets, roles)), broker
        finally:
            broker.stop()


def traces(root: Path = ROOT) -> dict[str, Trace]:
    """By the key of the row."""
    with traced_broker(root) as traced:
        found = {
            "transfer_files": asyncio.run(transfer(*traced)),
            "resumed_link_files": asyncio.run(resumed_link(*traced)),
        }
    moves: list[Calls] = []
    for _ in range(BROKERS):
        with traced_broker(root) as traced:
            moves.append(asyncio.run(move_once(*traced)))
    return found | {"move_files": Trace.of(moves)}
