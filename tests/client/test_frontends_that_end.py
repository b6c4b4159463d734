"""A frontend that ends in order while its clients work, over TCP, TLS and WebSockets: each call returns, no
accepted message is lost, and an outcome is unknown only where the connection was lost before its answer."""

import asyncio
import os
import signal
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from lightrail.client import (
    ClientError,
    ClosedError,
    Connection,
    LostError,
    OutcomeKind,
    ReconnectPolicy,
    SendError,
    TransactionError,
    connect,
)
from tests.chaos.service import children
from tests.support import wait
from tests.support.broker import Broker
from tests.support.certificates import Authority

SOON = ReconnectPolicy(first=0.01, longest=0.1, connect=10.0)
CALLS_A_ROUND = 5
"""Calls of each kind that have to succeed before the next frontend ends: every connection works again."""
RETURN_S = 120.0
"""Far more than any call takes: one that is not back by then does not return."""


class Load:
    """Calls of every kind over one connection, again and again until they are to stop."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name
        self.stopping = False
        self.done: Counter[str] = Counter()
        self.refused: list[str] = []
        """What no orderly end of a frontend explains."""
        self.stored: set[str] = set()
        self.plain = connection.sender(f"{name}/plain")
        self.resumed = connection.sender(f"{name}/resumed", resume=60)
        self.receiver = connection.receiver(f"{name}/resumed", credit=20, resume=60)
        self.received: list[str] = []
        calls: list[Callable[[str], Awaitable[None]]] = [
            self.send,
            self.send_resumed,
            self.transact,
            self.attach,
            self.manage,
        ]
        self.tasks = [asyncio.create_task(self.repeat(call)) for call in calls for _ in range(2)]
        self.receiving = asyncio.create_task(self.receive())

    async def repeat(self, call: Callable[[str], Awaitable[None]]) -> None:
        number = 0
        while not self.stopping:
            number += 1
            try:
                await call(f"{call.__name__}-{id(asyncio.current_task())}-{number}")
            except (SendError, TransactionError) as error:
                is_unknown = (
                    error.outcome.kind is OutcomeKind.UNKNOWN
                    if isinstance(error, SendError)
                    else error.is_unknown or "connection was lost" in str(error)
                )
                if not is_unknown or call == self.send_resumed:
                    self.refused.append(f"{call.__name__}: {error}")
            except ClosedError:
                return
            except LostError as error:
                # A request is not sent twice, as no plain message is; a transaction ends with its connection.
                if call not in (self.manage, self.transact):
                    self.refused.append(f"{call.__name__}: {error!r}")
            except ClientError as error:
                self.refused.append(f"{call.__name__}: {error!r}")
            else:
                self.done[call.__name__] += 1

    async def send(self, body: str) -> None:
        await self.plain.send(body)
        self.stored.add(body)

    async def send_resumed(self, body: str) -> None:
        await self.resumed.send(body)
        self.stored.add(body)

    async def transact(self, body: str) -> None:
        async with self.connection.transaction() as transaction:
            for part in ("first", "second"):
                await transaction.send(self.plain, f"{body}/{part}")
        self.stored |= {f"{body}/first", f"{body}/second"}

    async def attach(self, body: str) -> None:
        async with self.connection.receiver(f"{self.name}/empty") as receiver:
            await receiver.opened()

    async def manage(self, body: str) -> None:
        async with self.connection.management() as management:
            await management.read(f"{self.name}/plain")

    async def receive(self) -> None:
        async for delivery in self.receiver:
            self.received.append(delivery.body)
            await delivery.accept()

    def has_done(self, before: Counter[str]) -> bool:
        return all(self.done[call] >= before[call] + CALLS_A_ROUND for call in KINDS)

    async def finish(self) -> None:
        self.stopping = True
        done, hanging = await asyncio.wait(self.tasks, timeout=RETURN_S)
        assert not hanging, f"{self.name}: {len(hanging)} calls do not return"
        for task in done:
            task.result()
        assert self.refused == []
        async with self.connection.receiver(f"{self.name}/plain", credit=1_000) as receiver:
            found: list[str] = []
            while deliveries := await receiver.receive(1_000, timeout=1.0):
                for delivery in deliveries:
                    found.append(delivery.body)
                    await delivery.accept()
        assert len(found) == len(set(found))
        halves = Counter(body.rpartition("/")[0] for body in found if "/" in body)
        assert set(halves.values()) <= {2}, "half a transaction"
        assert {body for body in self.stored if not body.startswith("send_resumed")} <= set(found)
        sent = {body for body in self.stored if body.startswith("send_resumed")}
        while not sent <= set(self.received):  # noqa: ASYNC110 - whatever it is that happens
            await asyncio.sleep(0.01)
        assert len(self.received) == len(set(self.received)), "received twice"
        self.receiving.cancel()


KINDS = ("send", "send_resumed", "transact", "attach", "manage")


async def rounds(tmp_path: Path, count: int) -> None:
    certificate = Authority(tmp_path / "ca").sign("localhost", "DNS:localhost")
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca" / "ca.pem"))
    tls = (
        "--amqps",
        "127.0.0.1:0",
        "--tls-certificate",
        certificate.certificate,
        "--tls-key",
        certificate.key,
    )
    with Broker(tmp_path / "data", *tls) as broker:
        amqps = str(broker.ready["amqps"]).rpartition(":")[2]
        async with (
            connect(f"amqp://{broker.amqp}", reconnect=SOON) as tcp,
            connect(f"amqps://localhost:{amqps}", tls=trusted, reconnect=SOON) as secure,
            connect(f"ws://{broker.amqp}", reconnect=SOON) as websocket,
        ):
            named = {"tcp": tcp, "tls": secure, "websocket": websocket}
            loads = [Load(connection, name) for name, connection in named.items()]
            for _ in range(count):
                before = [load.done.copy() for load in loads]
                async with asyncio.timeout(RETURN_S):
                    while not all(map(Load.has_done, loads, before)):  # noqa: ASYNC110 - as above
                        await asyncio.sleep(0.01)
                await ends(broker)
            for load in loads:
                await load.finish()


async def ends(broker: Broker) -> None:
    """Ends the frontend in order, and returns when it has."""
    pid = children(broker.process.pid)["frontend", 0]
    os.kill(pid, signal.SIGTERM)
    await asyncio.to_thread(wait.until, lambda: wait.gone(pid), "the frontend ends")
    await asyncio.to_thread(
        wait.until, lambda: ("frontend", 0) in children(broker.process.pid), "the supervisor starts it again"
    )


def test_each_call_returns_when_a_frontend_ends_in_order(tmp_path: Path) -> None:
    asyncio.run(rounds(tmp_path, 2))


@pytest.mark.soak
def test_each_call_returns_when_a_frontend_ends_in_order_a_hundred_times(tmp_path: Path) -> None:
    asyncio.run(rounds(tmp_path, 100))
