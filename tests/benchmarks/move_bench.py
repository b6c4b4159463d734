"""What it costs to move a queue: copying its messages, and its state while it stands still.

    python -m tests.benchmarks.move_bench [--messages N]

CPU seconds of both shards together, in one process and without the wire; journals in a temporary directory.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from lightrail.amqp.encoder import encode
from lightrail.model import limits
from lightrail.model.policy import Policy
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.declarations import EveryName
from tests.support.shard.moving import QUEUE, exporting_of, importing_of
from tests.support.shard.scene import Scene, batch


def scene_of(directory: Path, policy: dict[str, Any]) -> Scene:
    names = EveryName()
    names.give(QUEUE, Policy.parse({"role": "queue", **policy}))
    directory.mkdir()
    journal = Journal(RealFiles(directory), "bench", 0)
    return Scene(journal, journal.recover(1 << 30, 1), memory_mark=1 << 30, names=names)


def measure(what: str, policy: dict[str, Any], messages: int, per_batch: int, body: bytes) -> None:
    with tempfile.TemporaryDirectory() as root:
        source = scene_of(Path(root) / "source", policy)
        target = scene_of(Path(root) / "target", policy)
        peer = source.peer()
        peer.produce(1, QUEUE)
        for number in range(messages // per_batch):
            peer.say(batch(1, number + 1, [body] * per_batch))
            if number % 100 == 99:
                source.settle_down()
        peer.consume(2, QUEUE, 1_000)
        source.settle_down()
        exporting = exporting_of(source, QUEUE, "1")
        importing = importing_of(target, QUEUE)
        importing.begin(target.now_ms)
        began = time.process_time()
        answers: list[Any] = []
        pieces = 0
        further: int | None = 0
        while further is not None:
            exporting.piece(
                importing.next,
                limits.MOVE_CHUNK_BYTES,
                limits.MOVE_CHUNK_MESSAGES,
                lambda said, blob: answers.append((said, blob)),
            )
            source.settle_down()
            header, piece = answers.pop()
            further = importing.take(header, piece, target.now_ms)
            pieces += 1
            if pieces % 4 == 0:
                target.settle_down()
        target.settle_down()
        copied = time.process_time() - began
        at = time.perf_counter()
        said, blob = exporting.state(source.now_ms)
        stated = time.perf_counter()
        importing.finish(said, blob, target.now_ms)
        finished = time.perf_counter()
        target.settle_down()
        synced = time.perf_counter()
        importing.open(target.engine._queues.names.get(QUEUE), 2, target.now_ms)
        target.turn()
        opened = time.perf_counter()
        print(
            f"{what}: {messages} messages of {len(body)} bytes: copied in {copied:.2f} s of CPU, {pieces} "
            f"pieces; state {1e3 * (stated - at):.1f} ms ({len(blob)} bytes), "
            f"finish {1e3 * (finished - stated):.1f} ms, "
            f"sync {1e3 * (synced - finished):.1f} ms, open {1e3 * (opened - synced):.1f} ms"
        )
        for scene in (source, target):
            scene.store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    wanted = parser.parse_args()
    body = b"\x00\x53\x75\xa0\xc3" + bytes(195)
    measure("plain", {}, wanted.messages, 100, body)
    keyed = b"\x00\x53\x74" + encode({"k": 5}) + b"\x00\x53\x77" + encode("x" * 170)
    sorted_ = {"order": "sorted", "order_key": "application-properties.k"}
    measure("sorted", sorted_, wanted.messages // 10, 100, keyed)
    measure("sorted, one by one", sorted_, wanted.messages // 10, 1, keyed)


if __name__ == "__main__":
    main()
