"""One client at work, in a process of its own: `client_bench.py WORK CLIENT URL COUNT`.

Works: send (pipelined), receive (an accept for each), awaited (COUNT messages by 50 tasks, or threads, each
of which awaits every outcome), links (COUNT open links on ten connections, half of them receivers). Clients:
ours, proton (send and receive by its handlers, awaited by its blocking client). Messages are durable, of 100
bytes.

Prints JSON: rate, messages per second from the first that this process had under way to the last outcome;
cpu_us, CPU of the process per message in that time; kb_each, growth of resident memory per link.
"""

import asyncio
import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

QUEUE = "client-bench"
BODY = b"x" * 100
WINDOW = 1_000
CREDIT = 1_000
TASKS = 50
CONNECTIONS = 10
NAMES = 100
"""Of queues that the links of the work `links` share."""


class Clock:
    """Seconds and CPU seconds since the first message."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.cpu = time.process_time()

    def figures(self, count: int) -> dict[str, float]:
        return {
            "rate": count / (time.perf_counter() - self.began),
            "cpu_us": (time.process_time() - self.cpu) / count * 1e6,
        }


# --- lightrail.client -----------------------------------------------------------------------------------


async def our_send(url: str, count: int) -> dict[str, float]:
    from lightrail.client import connect

    async with connect(url) as connection, connection.sender(QUEUE, window=WINDOW) as sender:
        clock = Clock()
        outcomes = await sender.send_all(BODY for _ in range(count))
        assert len(outcomes) == count
        return clock.figures(count)


async def our_receive(url: str, count: int) -> dict[str, float]:
    from lightrail.client import connect

    async with connect(url) as connection, connection.receiver(QUEUE, credit=CREDIT) as receiver:
        clock = None
        received = 0
        async for delivery in receiver:
            clock = clock or Clock()
            assert len(delivery.body) == len(BODY)
            await delivery.accept()
            received += 1
            if received == count:
                return clock.figures(count)
    raise AssertionError(f"expected {count} messages, received {received}")


async def our_awaited(url: str, count: int) -> dict[str, float]:
    from lightrail.client import connect

    async with connect(url) as connection, connection.sender(QUEUE) as sender:

        async def send() -> None:
            for _ in range(count // TASKS):
                await sender.send(BODY)

        clock = Clock()
        await asyncio.gather(*(send() for _ in range(TASKS)))
        return clock.figures(count)


async def our_links(url: str, count: int) -> dict[str, float]:
    from lightrail.client import connect

    connections = [await connect(url) for _ in range(CONNECTIONS)]
    before = resident_kb()
    links: list[Any] = []
    for number in range(count):
        connection = connections[number % CONNECTIONS]
        address = f"{QUEUE}/{number % NAMES}"
        links.append(connection.receiver(address) if number & 1 else connection.sender(address))
    for link in links:
        await link.opened()
    figures = {"kb_each": (resident_kb() - before) / count}
    for connection in connections:
        await connection.close()
    return figures


def resident_kb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1000


# --- proton ---------------------------------------------------------------------------------------------


def proton_send(url: str, count: int) -> dict[str, float]:
    from proton import Message
    from proton.handlers import MessagingHandler
    from proton.reactor import Container

    class Send(MessagingHandler):
        sent = accepted = 0

        def on_start(self, event: Any) -> None:
            event.container.create_sender(event.container.connect(url), QUEUE)

        def on_sendable(self, event: Any) -> None:
            if not self.sent:
                self.clock = Clock()
            while event.sender.credit and self.sent < count:
                event.sender.send(Message(body=BODY, durable=True))
                self.sent += 1

        def on_accepted(self, event: Any) -> None:
            self.accepted += 1
            if self.accepted == count:
                self.figures = self.clock.figures(count)
                event.connection.close()

    handler = Send()
    Container(handler).run()
    return handler.figures


def proton_receive(url: str, count: int) -> dict[str, float]:
    from proton.handlers import MessagingHandler
    from proton.reactor import Container

    class Receive(MessagingHandler):
        received = 0

        def on_start(self, event: Any) -> None:
            event.container.create_receiver(event.container.connect(url), QUEUE)

        def on_message(self, event: Any) -> None:
            if not self.received:
                self.clock = Clock()
            assert len(event.message.body) == len(BODY)
            self.received += 1
            if self.received == count:
                self.figures = self.clock.figures(count)
                event.connection.close()

    handler = Receive(prefetch=CREDIT)
    Container(handler).run()
    return handler.figures


def proton_awaited(url: str, count: int) -> dict[str, float]:
    from proton import Message
    from proton.utils import BlockingConnection

    senders = [BlockingConnection(url).create_sender(QUEUE) for _ in range(TASKS)]

    def send(sender: Any) -> None:
        for _ in range(count // TASKS):
            sender.send(Message(body=BODY, durable=True))

    threads = [threading.Thread(target=send, args=(sender,)) for sender in senders]
    clock = Clock()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return clock.figures(count)


WORKS: dict[tuple[str, str], Callable[[str, int], Any]] = {
    ("send", "ours"): our_send,
    ("receive", "ours"): our_receive,
    ("awaited", "ours"): our_awaited,
    ("links", "ours"): our_links,
    ("send", "proton"): proton_send,
    ("receive", "proton"): proton_receive,
    ("awaited", "proton"): proton_awaited,
}


def main() -> None:
    try:
        work, client, url, count = sys.argv[1:]
        run = WORKS[work, client]
    except (ValueError, KeyError):
        sys.exit(__doc__)
    made = run(url, int(count))
    print(json.dumps(asyncio.run(made) if asyncio.iscoroutine(made) else made))


if __name__ == "__main__":
    main()
