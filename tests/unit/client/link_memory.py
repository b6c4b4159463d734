"""What a client keeps for each link: prints bytes of resident memory, attached only and after a message each.

    python -m tests.unit.client.link_memory PORT CONNECTIONS LINKS

PORT is that of tests.support.amqp.engine_broker; LINKS is that of all connections, half of them senders, half
receivers of what those send.
"""

import asyncio
import gc
import os
import sys

from lightrail.client import Connection, Receiver, Sender, connect


def resident() -> int:
    """Bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def open_links(connection: Connection, number: int, pairs: int) -> list[tuple[Sender, Receiver]]:
    names = [f"queue/{number}/{pair}" for pair in range(pairs)]
    found = [(connection.sender(name), connection.receiver(name, credit=10)) for name in names]
    for sender, receiver in found:
        await sender.opened()
        await receiver.opened()
    return found


async def pass_one(sender: Sender, receiver: Receiver) -> None:
    await sender.send(b"x" * 100)
    await (await anext(receiver)).accept()


async def main(port: int, connections: int, links: int) -> None:
    opened = [await connect(f"127.0.0.1:{port}") for _ in range(connections)]
    async with opened[0].sender("warm") as sender, opened[0].receiver("warm") as receiver:
        await pass_one(sender, receiver)
    gc.collect()
    before = resident()
    pairs = []
    for number, connection in enumerate(opened):
        pairs += await open_links(connection, number, links // connections // 2)
    gc.collect()
    print((resident() - before) // links, flush=True)
    for sender, receiver in pairs:
        await pass_one(sender, receiver)
    gc.collect()
    print((resident() - before) // links, flush=True)
    for connection in opened:
        await connection.close()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
