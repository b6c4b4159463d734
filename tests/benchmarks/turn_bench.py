"""Benchmark of one turn: what a batch costs in a shard's engine and in a frontend.

    python -m tests.benchmarks.turn_bench [--against CHECKOUT] [--rounds 3] [--opcodes]

A whole broker forms its batches as its processes happen to run, so its CPU per message differs from run to
run by a tenth. Here there are neither processes nor sockets, all batches have the same size, and the smallest
of many blocks repeats within a hundredth: a change of the code by some percent shows. With `--against`, both
checkouts run in turns, each with its own code and with this file, and the last column is the ratio of the
smallest blocks. Even that depends on where the interpreter's objects happen to lie in memory. `--opcodes`
counts what the interpreter executes instead: it is the same in each run, but a call costs more than another
opcode, and what is written in C counts as one.
"""

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any, Final

from lightrail.amqp import frames
from lightrail.model.orders import PRIORITY_MIXED
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.wire.frames import Kind, OutcomeCode, deliver, frame
from tests.support.amqp import frontend_scene
from tests.support.shard import scene
from tests.support.shard.fake_files import FakeFiles

ROOT: Final = Path(__file__).resolve().parents[2]

TURNS: Final = 50
"""Batches of one block."""
ACCEPTED: Final = b"\x00\x53\x24\x45"
DURABLE_HEADER: Final = b"\x00\x53\x70\xc0\x02\x01\x41"


@dataclass(frozen=True)
class Load:
    """The batches of one row."""

    messages: int = 100
    size: int = 24
    durable: bool = False
    policy: str = "{}"

    def message(self, priority: int | None = None) -> bytes:
        """With a header only where there is something to say, and one data section."""
        head = DURABLE_HEADER if self.durable else b""
        if priority is not None:
            head = b"\x00\x53\x70\xc0\x04\x02\x41\x50" + bytes((priority,))
        return head + b"\x00\x53\x75\xb0" + self.size.to_bytes(4, "big") + b"x" * self.size


SHARD: Final = {
    "transient": Load(),
    "durable": Load(durable=True),
    "durable, one message": Load(1, durable=True),
    "durable, 1 KiB": Load(20, 1024, durable=True),
    "durable, priorities in turn": Load(20, durable=True, policy='{"priorities": 10}'),
    "locks": Load(policy='{"lock_duration": 30}'),
    "bound": Load(policy='{"max_length": 100000}'),
    "groups": Load(20, policy='{"groups": true}'),
    "duplicates": Load(20, policy='{"duplicate_window": 60}'),
}
FRONTEND: Final = {
    "transient": Load(),
    "durable": Load(durable=True),
    "durable, one message": Load(1, durable=True),
    "durable, 1 KiB": Load(20, 1024, durable=True),
}


class Cpu:
    """Microseconds of CPU time of this process."""

    unit = "us"
    blocks = 30

    def begin(self) -> None:
        self._at = time.process_time_ns()

    def end(self) -> float:
        return (time.process_time_ns() - self._at) / 1000


class Opcodes:
    """Opcodes of Python's interpreter in this thread."""

    unit = "opcodes"
    blocks = 2

    def begin(self) -> None:
        self._count = 0
        sys.settrace(self._called)

    def end(self) -> float:
        sys.settrace(None)
        return self._count

    def _called(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._executed

    def _executed(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        self._count += event == "opcode"
        return self._executed


Meter = Cpu | Opcodes


def smallest(meter: Meter, turn: Callable[[], None]) -> float:
    """What a batch costs, of the smallest block."""
    turn()
    found = []
    for _ in range(meter.blocks):
        gc.collect()
        meter.begin()
        for _ in range(TURNS):
            turn()
        found.append(meter.end())
    return min(found) / TURNS


def of_shard(meter: Meter, load: Load) -> float:
    """A batch is stored, delivered and settled; the journal's files are in memory."""
    policy = json.loads(load.policy)
    journal = Journal(FakeFiles(), "bench", 0)
    here = scene.Scene(journal, journal.recover(1 << 30, 1))
    names: Any = here.names
    names.give("q", Policy.parse({"role": "queue", **policy}))
    here.turn()
    peer = here.peer()
    peer.produce(1, "q")
    peer.consume(2, "q", credit=1 << 40)
    here.turn()
    engine, now_ms = here.engine, here.now_ms
    (identity,) = here.peers
    by_priority = "priorities" in policy
    messages = [load.message(number % 10 if by_priority else None) for number in range(load.messages)]
    priority = PRIORITY_MIXED if by_priority else 4
    # The first number of a link; deliveries count from 0.
    number = 1

    def step() -> None:
        engine.step(now_ms)
        if journal.pending:
            commit = journal.begin_commit()
            engine.commit_begun()
            commit.perform()
            journal.end_commit(commit)
            engine.commit_ended(now_ms)
            engine.step(now_ms)

    def turn() -> None:
        nonlocal number
        sent = scene.batch(1, number, messages, durable=load.durable, afresh=number == 1, priority=priority)
        engine.receive(identity, [sent], now_ms)
        step()
        settled = frame(
            Kind.SETTLE,
            flags=OutcomeCode.ACCEPTED,
            link=2,
            count=load.messages,
            number=(number - 1) * load.messages,
        )
        engine.receive(identity, [settled], now_ms)
        step()
        number += 1

    found = smallest(meter, turn)
    assert here.queue("q") == {"ready": 0, "in_flight": 0}, here.queue("q")
    return found


async def of_frontend(meter: Meter, load: Load) -> float:
    """A client's transfers become a batch, and its answer a disposition; a slice becomes transfers, and their
    disposition a settlement.
    """
    here = await frontend_scene.Scene.start()
    client = here.client()
    session = await client.open()
    sender, receiver = await client.sender(session), await client.receiver(session)
    here.shard.ready()
    await client.turn()
    receiver.grant(100_000_000)
    await client.turn()
    (producer,) = here.shard.producers.values()
    (consumer,) = here.shard.consumers.values()
    message = load.message()
    ends = array("I", accumulate([len(message)] * load.messages))
    blob = message * load.messages
    now_ms = here.frontend.now_ms()

    async def metered(call: Callable[..., Any], *arguments: Any) -> float:
        meter.begin()
        call(*arguments)
        for _ in range(3):
            await asyncio.sleep(0)
        return meter.end()

    async def turn(number: int) -> float:
        while sender.credit < load.messages:
            await client.turn()
        first = number * load.messages
        sender.send(load.messages, ends, blob)
        data = b"".join(client.amqp.output)
        client.amqp.output.clear()
        here.shard.take()
        spent = await metered(client.protocol.data_received, data)
        posted = here.shard.take(Kind.ENQUEUE)
        assert len(posted) == 1, f"expected one batch, found {len(posted)}"
        spent += await metered(producer.answered, number, 1)
        part = deliver(
            consumer.number, 1, first, load.messages, now_ms, first, 0, 0, now_ms, 0, 0, ends, blob
        )
        spent += await metered(consumer.deliver, part, first, load.messages)
        settled = frames.disposition(0, True, first, first + load.messages - 1, True, ACCEPTED)
        spent += await metered(client.protocol.data_received, settled)
        written = bytes(client.transport.written)
        client.transport.written.clear()
        client.amqp.feed(written, now_ms)
        return spent

    number, found = 0, []
    for _ in range(meter.blocks):
        gc.collect()
        spent = 0.0
        for _ in range(TURNS):
            spent += await turn(number)
            number += 1
        found.append(spent)
    return min(found) / TURNS


def measured(meter: Meter) -> dict[str, float]:
    """What a batch costs by row, with the code of the checkout on the path."""
    found = {f"shard: {name}": of_shard(meter, load) for name, load in SHARD.items()}
    for name, load in FRONTEND.items():
        found[f"frontend: {name}"] = asyncio.run(of_frontend(meter, load))
    return found


def of(checkout: Path, flags: list[str]) -> dict[str, float]:
    """What another process measures with the code of a checkout."""
    environment = dict(os.environ, PYTHONPATH=str(checkout))
    command = [sys.executable, __file__, "--json", *flags]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="what a batch costs in a shard and in a frontend")
    parser.add_argument(
        "--against", type=Path, help="a checkout of another commit, with its compiled scanner"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each checkout, in turns (3)")
    parser.add_argument("--opcodes", action="store_true", help="count opcodes in place of CPU, once")
    parser.add_argument("--json", action="store_true", help="measure once, print one line of JSON")
    options = parser.parse_args()
    meter: Meter = Opcodes() if options.opcodes else Cpu()
    if options.json:
        print(json.dumps(measured(meter)))
        return
    checkouts = [ROOT] if options.against is None else [ROOT, options.against.resolve()]
    best: list[dict[str, float]] = [{} for _ in checkouts]
    flags = ["--opcodes"] if options.opcodes else []
    for _ in range(1 if options.opcodes else options.rounds):
        for mine, checkout in zip(best, checkouts, strict=True):
            for row, cost in of(checkout, flags).items():
                mine[row] = min(cost, mine.get(row, cost))
    for row, cost in best[0].items():
        ratio = f"{cost / best[1][row]:7.3f}" if len(best) > 1 else ""
        print(f"{row:<40} {cost:10.2f} {meter.unit} per batch {ratio}")


if __name__ == "__main__":
    main()
