"""Whichever system call of a shard's process fails: what was accepted is there after two restarts.

The process is the real one, with one socket to a frontend that the test plays. It ends, or goes on answering.
"""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
import zmq

from lightrail.telemetry.directories import socket_directory
from lightrail.wire.bodies import ConsumerOpen, Hello, ProducerOpen
from lightrail.wire.frames import DRAIN, HEADER, VERSION, Kind, frame
from tests.chaos.failing_calls import FailingCalls, built
from tests.support import namespace
from tests.support.broker import ROOT
from tests.support.shard.scene import batch, delivered

pytestmark = pytest.mark.timeout(120)
ANSWER_S = 20.0
BATCHES = 36
MESSAGE = bytes(64 * 1024)
"""Two make a batch: a segment of 1 MiB is full after seven, and four segments come and go."""
CREDIT = 1 << 20
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EROFS": errno.EROFS}
SHORT = "a short write"


class EndedError(Exception):
    """The shard's process has ended."""


class Shard:
    """A shard's process, and a frontend that greets it."""

    def __init__(self, data: Path, environ: dict[str, str], boot: int) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LIGHTRAIL_")}
        command = ("-m", "lightrail.cli.main", "shard", "--data", str(data), "--metrics", "127.0.0.1:0")
        with open(f"{data}.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command, "--segment-bytes", "1MiB"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=clean | environ,
            )
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.ROUTING_ID, boot.to_bytes(4, "little") + b"frontend-0")
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self._socket.connect(f"ipc://{socket_directory(str(data))}/shard-0.sock")
        self._boot = boot
        self._parts: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._context.destroy()

    def say(self, *parts: bytes) -> None:
        self._socket.send_multipart(parts)

    def hear(self) -> bytes:
        """The next frame. Raises EndedError."""
        waited_s = 0.0
        while not self._parts:
            if self._socket.poll(50):
                self._parts = self._socket.recv_multipart()
            elif self.process.poll() is not None:
                raise EndedError
            else:
                waited_s += 0.05
                assert waited_s < ANSWER_S, "the shard lives and does not answer"
        return self._parts.pop(0)

    def until(self, *kinds: Kind) -> bytes:
        while (part := self.hear())[0] not in kinds:
            pass
        return part

    def greet(self) -> None:
        """Welcomed as soon as the shard serves. Raises EndedError."""
        self.say(frame(Kind.HELLO, body=Hello(VERSION, "frontend-0", self._boot, 1).encode()))
        self.until(Kind.WELCOME)

    def stop(self) -> None:
        """In order; it closes its journal."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(ANSWER_S) == 0


class Ledger:
    """What the frontend knows."""

    def __init__(self) -> None:
        self.accepted: set[int] = set()
        self.settled: set[int] = set()
        """Whose settlement was sent."""


def work(shard: Shard, ledger: Ledger) -> None:
    """Batches come, each once the one before was answered, and half of them are settled. Raises
    EndedError."""
    shard.greet()
    shard.say(
        frame(Kind.PRODUCER_OPEN, link=1, number=1, body=ProducerOpen("q").encode()),
        frame(Kind.CONSUMER_OPEN, link=2, body=ConsumerOpen("q").encode()),
        frame(Kind.CREDIT, link=2, number=CREDIT),
    )
    shard.until(Kind.PRODUCER_READY)
    for number in range(1, BATCHES + 1):
        names = [b"%06d" % (2 * number), b"%06d" % (2 * number + 1)]
        shard.say(batch(1, number, [name + MESSAGE for name in names], afresh=True))
        answered = False
        while not answered:
            part = shard.until(Kind.ACCEPTED, Kind.REFUSED, Kind.DELIVER)
            if part[0] == Kind.DELIVER:
                for each in delivered(part):
                    id = int(each.message[:6])
                    if id % 4 < 3:
                        ledger.settled.add(id)
                        shard.say(frame(Kind.SETTLE, link=2, number=each.number, count=1))
            else:
                answered = True
                if part[0] == Kind.ACCEPTED:
                    ledger.accepted |= {2 * number, 2 * number + 1}
    shard.say(frame(Kind.PING))
    shard.until(Kind.PONG)


def contents(shard: Shard) -> list[int]:
    shard.greet()
    shard.say(
        frame(Kind.CONSUMER_OPEN, link=1, body=ConsumerOpen("q").encode()),
        frame(Kind.CREDIT, link=1, number=CREDIT, flags=DRAIN),
    )
    found: list[int] = []
    while (part := shard.until(Kind.DELIVER, Kind.DRAINED))[0] == Kind.DELIVER:
        assert HEADER.unpack_from(part)[6] == len(found)
        found += [int(each.message[:6]) for each in delivered(part)]
    return found


def run(data: Path, failing: FailingCalls, call: int | None, kind: str = "EIO") -> Ledger:
    """One call fails; then the shard starts twice."""
    data.mkdir(mode=0o700)
    namespace.with_service(data, lambda service: service._coordinator.set_shards(1))
    namespace.give(data, "q", role="queue", capture=True)
    ledger = Ledger()
    environ = failing.environ(call, ERRORS.get(kind, 0) or errno.EIO, is_short=kind == SHORT)
    with Shard(data, environ, 1) as shard:
        try:
            work(shard, ledger)
        except EndedError:
            assert call is not None, "it ended by itself"
    for boot in (2, 3):
        with Shard(data, {}, boot) as shard:
            try:
                found = contents(shard)
            except EndedError:
                pytest.fail(f"it does not start: {Path(f'{data}.log').read_text()[-2000:]}")
            shard.stop()
        assert len(found) == len(set(found)), "delivered twice"
        assert not ledger.accepted - ledger.settled - set(found), "accepted and lost"
    return ledger


@pytest.fixture
def failing(tmp_path: Path) -> FailingCalls:
    return built(tmp_path, tmp_path)


def recorded(tmp_path: Path, failing: FailingCalls) -> list[str]:
    """The calls of a life without faults."""
    data = tmp_path / "whole"
    failing._directory = data / "shard-0"
    ledger = run(data, failing, None)
    assert len(ledger.accepted) == 2 * BATCHES
    return failing.calls


def fails(tmp_path: Path, failing: FailingCalls, call: int, kind: str) -> None:
    data = tmp_path / f"{call}-{kind.replace(' ', '-')}"
    failing._directory = data / "shard-0"
    run(data, failing, call, kind)


def test_some_calls_fail(tmp_path: Path, failing: FailingCalls) -> None:
    """One of each kind, in the middle of the work, with errors in turn; and a short write."""
    calls = recorded(tmp_path, failing)
    assert {"open", "write", "sync", "allocate", "truncate", "link", "remove", "rename"} == set(calls)
    kinds = [*ERRORS, SHORT]
    for turn, name in enumerate(sorted(set(calls))):
        indexes = [number for number, each in enumerate(calls) if each == name]
        fails(tmp_path, failing, indexes[len(indexes) // 2], kinds[turn % 3])
    writes = [number for number, each in enumerate(calls) if each == "write"]
    fails(tmp_path, failing, writes[len(writes) // 2], SHORT)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", [*ERRORS, SHORT])
def test_any_call_may_fail(tmp_path: Path, failing: FailingCalls, kind: str) -> None:
    calls = recorded(tmp_path, failing)
    for number, name in enumerate(calls):
        if kind != SHORT or name == "write":
            fails(tmp_path, failing, number, kind)
