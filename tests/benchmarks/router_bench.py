"""Benchmark of routers: CPU of a frontend core from the client's bytes to frames for the shards and back.

    python tests/benchmarks/router_bench.py [--batch 100]

The client's transfers are fed as they come from a socket; a shard that does nothing takes the frames and
answers them. CPU is process time, the median of several rounds; "copies" are messages times queues.
"""

import argparse
import asyncio
import statistics
import time
from typing import Any

from lightrail.amqp.encoder import encode
from lightrail.amqp.values import Described, ULong
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from tests.benchmarks.engine_bench import transfers
from tests.support.amqp.frontend_scene import Scene, Shard

ROUNDS = 7
BATCHES = 200


class QuickShard(Shard):
    """Takes what it is given, and looks at nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[bytes] = []

    def post(self, part: bytes) -> None:
        self.parts.append(part)

    def answer(self, last: int) -> int:
        """Answers what came since; gives the number of the last frame."""
        frames = sum(part[0] in (4, 13) for part in self.parts)
        self.parts.clear()
        for producer in self.producers.values():
            producer.answered(last + 1, frames)
        return last + frames


def message(number: int, size: int = 100) -> bytes:
    """100 bytes of body and two application properties, the second different for each number."""
    properties = encode(Described(ULong(0x74), {"tenant": "acme", "colour": f"colour-{number}"}))
    return properties + encode(Described(ULong(0x75), b"x" * size))


async def cost_us(subscriptions: list[dict[str, Any]], batch: int, *, distribution: str = "all") -> float:
    """CPU microseconds per message that is sent to a router with these subscriptions."""
    scene = await Scene.start()
    shard = scene.frontend.shards[0] = QuickShard()  # type: ignore[assignment]
    service = scene.frontend.service
    await service.give(ANYBODY, "r", Policy.parse({"role": "router", "distribution": distribution}))
    for number, fields in enumerate(subscriptions):
        await service.give(ANYBODY, f"q{number}", Policy.parse({"role": "queue"}))
        await service.subscribe(ANYBODY, "r", f"q{number}", **fields)
        await scene.frontend.place(f"q{number}")
    client = scene.client()
    await client.sender(await client.open(), queue="r")
    await client.turn()
    used = []
    next_id = last = 0
    for _ in range(ROUNDS):
        data = []
        for _ in range(BATCHES):
            payloads = [message(number % 100) for number in range(next_id, next_id + batch)]
            data.append(transfers(next_id, payloads))
            next_id += batch
        start = time.process_time()
        for each in data:
            # Each read is a turn of its own.
            scene.frontend.routers.looks.begin()
            client.protocol.data_received(each)
            last = shard.answer(last)
            client.protocol.flush()
        used.append((time.process_time() - start) / (BATCHES * batch) * 1e6)
        client.transport.written.clear()
    counts = scene.frontend.counts
    assert counts.messages_accepted == next_id, (counts.messages_accepted, next_id)
    scene.frontend.shard_connections.wiring.close()
    return statistics.median(used)


def equality(count: int) -> list[dict[str, Any]]:
    return [
        {"filter": {"properties": {"application-properties.colour": f"colour-{n}"}}} for n in range(count)
    ]


def expressions(count: int) -> list[dict[str, Any]]:
    return [{"filter": {"sql": f"tenant = 'acme' AND colour LIKE '%-{n}'"}} for n in range(count)]


def main() -> None:
    """Prints all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=100)
    batch = parser.parse_args().batch
    cases: list[tuple[str, list[dict[str, Any]], str, int]] = [
        ("all, 1 queue", [{}], "all", 1),
        ("all, 10 queues", [{}] * 10, "all", 10),
        ("one of 10 queues", [{}] * 10, "one", 1),
        ("all, 100 subscriptions by one property", equality(100), "all", 1),
        ("one, 100 subscriptions by one property", equality(100), "one", 1),
        ("all, 100 subscriptions by expressions", expressions(100), "all", 1),
        ("all, 10 queues behind an action", [{"action": {"set": {"subject": "x"}}}] * 10, "all", 10),
    ]
    for name, subscriptions, distribution, copies in cases:
        used = asyncio.run(cost_us(subscriptions, batch, distribution=distribution))
        print(
            f"{name:<44} {used:8.2f} us per message {used / copies:7.3f} us per copy"
            f" {1e6 / used:10,.0f} messages/s and core"
        )


if __name__ == "__main__":
    main()
