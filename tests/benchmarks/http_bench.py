"""The gateway under load: peek-lock and completion over kept connections, receivers that wait, many queues.

    python tests/benchmarks/http_bench.py locks [CONNECTIONS [MESSAGES]]
    python tests/benchmarks/http_bench.py takes [CONNECTIONS [MESSAGES]]
    python tests/benchmarks/http_bench.py waiting [RECEIVERS]
    python tests/benchmarks/http_bench.py expiry [LOCKS]
    python tests/benchmarks/http_bench.py queues [QUEUES]

Each starts a broker of its own and prints one line of JSON. The client is one process of asyncio protocols
that parse no more of an answer than they need: on two cores it takes its share of them.
"""

import asyncio
import json
import resource
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import uvloop

from lightrail.bench.kernel import read, resident_bytes
from tests.support.broker import Broker
from tests.support.http_client import Http

BATCH = 500
SOURCE_CONNECTIONS = 2_000


class Requester(asyncio.Protocol):
    """One kept connection: a request, its answer's head and body, the next one."""

    def __init__(self) -> None:
        self.transport: Any = None
        self._got = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        end = self._got.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._got[:end]
        status = int(head[9:12])
        at = head.find(b"Content-Length: ")
        length = int(head[at + 16 :].split(b"\r", 1)[0]) if at >= 0 else 0
        if len(self._got) < end + 4 + length:
            return
        self._got = self._got[end + 4 + length :]
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result((status, head))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("closed"))

    def ask(
        self, method: bytes, path: bytes, value: bytes = b"", kind: bytes = b"application/json"
    ) -> "asyncio.Future[tuple[int, bytes]]":
        """Sends a request, with a value of a kind as its body if there is one; gives the status and head."""
        self._answer = asyncio.get_running_loop().create_future()
        body = b"Content-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (kind, len(value), value)
        head = b"%s %s HTTP/1.1\r\nHost: localhost\r\n" % (method, path)
        self.transport.write(head + (body if value else b"\r\n"))
        return self._answer


async def connect(address: str, count: int) -> list[Requester]:
    """Connections from several sources: one alone may have half of what a gateway admits."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    made = []
    for number in range(count):
        source = (f"127.0.0.{2 + number // SOURCE_CONNECTIONS}", 0)
        _, requester = await loop.create_connection(Requester, host, int(port), local_addr=source)
        made.append(requester)
    return made


def fill(broker: Broker, name: str, count: int) -> None:
    with Http(broker.http) as http:
        assert http("POST", f"/{name}", {"role": "queue"}).status == 201
        batch = [{"Body": "x" * 100}] * BATCH
        kind = {"Content-Type": "application/vnd.lightrail.batch+json"}
        for _ in range(0, count, BATCH):
            assert http("POST", f"/{name}", batch, kind).status == 201


def cpu(broker: Broker) -> dict[str, float]:
    """CPU seconds by role; each has one process here."""
    usages = {each["role"]: read(each["pid"]) for each in broker.ready["processes"]}
    return {role: usage.own_s for role, usage in usages.items() if usage is not None}


def figures(broker: Broker, before: dict[str, float], started: float, count: int) -> dict[str, Any]:
    seconds = time.monotonic() - started
    after = cpu(broker)
    used = {f"{role}_us": round((after[role] - before[role]) / count * 1e6, 1) for role in after}
    return {"messages_per_s": round(count / seconds), "seconds": round(seconds, 2), **used}


async def locks(broker: Broker, connections: int, count: int) -> dict[str, Any]:
    """Lock and complete, one message at a time on each connection."""
    fill(broker, "locked", count)
    requesters = await connect(broker.http, connections)
    left = count

    async def work(requester: Requester) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            status, head = await requester.ask(b"POST", b"/locked/!head?timeout=10")
            if status != 201:
                raise RuntimeError(f"lock: {status}")
            at = head.find(b"Location: ") + 10
            status, _ = await requester.ask(b"DELETE", head[at : head.find(b"\r", at)])
            if status != 200:
                raise RuntimeError(f"complete: {status}")

    before, started = cpu(broker), time.monotonic()
    await asyncio.gather(*map(work, requesters))
    return figures(broker, before, started, count)


async def takes(broker: Broker, connections: int, count: int) -> dict[str, Any]:
    """Receive and delete."""
    fill(broker, "taken", count)
    requesters = await connect(broker.http, connections)
    left = count

    async def work(requester: Requester) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            status, _ = await requester.ask(b"DELETE", b"/taken/!head?timeout=10")
            if status != 200:
                raise RuntimeError(f"take: {status}")

    before, started = cpu(broker), time.monotonic()
    await asyncio.gather(*map(work, requesters))
    return figures(broker, before, started, count)


async def waiting(broker: Broker, receivers: int) -> dict[str, Any]:
    """Memory of the gateway, and the time until each receiver that waits has its message."""
    pids = (broker.pid("gateway"),)
    with Http(broker.http) as http:
        http("POST", "/waited", {"role": "queue"})
        http("DELETE", "/waited/!head")
        warm = await connect(broker.http, 50)
        await asyncio.gather(*(each.ask(b"DELETE", b"/waited/!head?timeout=0.2") for each in warm))
        before = resident_bytes(pids)
        requesters = await connect(broker.http, receivers)
        answers = [each.ask(b"DELETE", b"/waited/!head?timeout=300") for each in requesters]
        await asyncio.sleep(0.5)
        while http("GET", "/!status").json()["totals"]["receivers_waiting"] < receivers:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        after = resident_bytes(pids)
        idle = cpu(broker)["gateway"]
        await asyncio.sleep(2)
        idle = (cpu(broker)["gateway"] - idle) / 2
        started = time.monotonic()
        batch = [{"Body": "x" * 100}] * BATCH
        kind = {"Content-Type": "application/vnd.lightrail.batch+json"}
        loop = asyncio.get_running_loop()
        for _ in range(0, receivers, BATCH):
            await loop.run_in_executor(None, http, "POST", "/waited", batch, kind)
        statuses = {status for status, _ in await asyncio.gather(*answers)}
    assert statuses == {200}, statuses
    return {
        "receivers": receivers,
        "kb_each": round((after - before) / receivers / 1e3, 2),
        "idle_cpu_percent": round(100 * idle, 2),
        "answered_in_s": round(time.monotonic() - started, 2),
    }


async def expiry(broker: Broker, count: int) -> dict[str, Any]:
    """How late a message whose lock has expired reaches the request that waits for it."""
    with Http(broker.http) as http:
        http("POST", "/late", {"role": "queue", "lock_duration": 0.1, "max_delivery_count": 0})
        http("POST", "/late", "message")
        late = []
        until = 0.0
        for _ in range(count + 1):
            got = http("POST", "/late/!head?timeout=10")
            now = time.time()
            if until:
                late.append(1000 * (now - until))
            locked_until = json.loads(got.headers["brokerproperties"])["LockedUntilUtc"]
            until = datetime.fromisoformat(locked_until).timestamp()
    late.sort()
    return {
        "locks": count,
        "late_ms_median": round(late[count // 2], 1),
        "late_ms_p99": round(late[count * 99 // 100], 1),
        "late_ms_max": round(late[-1], 1),
    }


async def queues(broker: Broker, count: int) -> dict[str, Any]:
    """Give so many names a role, and list their figures."""
    with Http(broker.http) as http:
        started = time.monotonic()
        for number in range(count):
            assert http("POST", f"/many/{number}", {"role": "queue"}).status == 201
        made = time.monotonic() - started
        await asyncio.sleep(1)
        started = time.monotonic()
        seen = 0
        after: str | None = ""
        while after is not None:
            page = http("GET", f"/!queues?limit=1000&after={after}").json()
            seen += len(page["queues"])
            after = page["next"]
        listed = time.monotonic() - started
    assert seen == count, seen
    return {"queues": count, "made_in_s": round(made, 1), "listed_in_s": round(listed, 2)}


DEFAULTS = {
    "locks": (64, 20_000),
    "takes": (64, 20_000),
    "waiting": (10_000,),
    "queues": (10_000,),
    "expiry": (50,),
}


def main(arguments: list[str]) -> int:
    what = arguments[0] if arguments else "locks"
    if what not in DEFAULTS:
        print(__doc__, file=sys.stderr)
        return 2
    numbers = [int(each) for each in arguments[1:]]
    numbers += DEFAULTS[what][len(numbers) :]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    run = {"locks": locks, "takes": takes, "waiting": waiting, "queues": queues, "expiry": expiry}[what]
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "data") as broker:
        result = uvloop.run(run(broker, *numbers))  # type: ignore[operator]
    print(json.dumps({"what": what, "connections": numbers[0], **result}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
