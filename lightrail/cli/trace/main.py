"""``lightrail trace``: what one message passes in the processes of a broker, by file name.

The broker is a fresh one: a frontend and a shard in a temporary directory, on a port of loopback that the
system chooses. No option names another, so that no broker in use is ever recorded. It ends with the command.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from lightrail.amqp.compiled import COMPILED
from lightrail.cli import serve
from lightrail.cli.supervisor import ChildError, Supervisor
from lightrail.cli.trace.recorder import (
    FRONTEND,
    PACKAGE,
    SHARD,
    Passage,
    Recorder,
    RecorderError,
    Trace,
    environment,
)
from lightrail.client import Connection, Receiver, Sender, connect
from lightrail.client.errors import ClientError
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.model.endpoint import Endpoint
from lightrail.model.settings import Settings
from lightrail.telemetry import directories, logs
from lightrail.telemetry.channel import Message as Report

EXAMPLES: Final = """examples:
  lightrail trace                          the files and functions of each phase
  lightrail trace --calls | less           every call, with its time
  lightrail trace --json | jq -r '.files[]'
  LIGHTRAIL_INTERPRETED=1 lightrail trace  where there is no compiler: by amqp/shapes.py

The exit status is 0, 1 if the message could not be traced, 2 for wrong use. Functions have the number of
their first line behind them. Recording slows the processes: times show the order, not the speed.
"""
QUEUE: Final = "traced"
WARM: Final = 3
"""Messages ahead, for imports and caches."""
RECORDED: Final = 5
"""Messages that are compared: what not each of them passes is the work of timers."""
MESSAGE_S_MAX: Final = 60.0
"""For all messages together, on a busy machine."""
LOOK_S: Final = 0.01


class TraceError(Exception):
    """The message can't be traced; the text says what was expected, what was found and what to do."""


REFUSALS: Final = (
    ChildError,
    ClientError,
    CoordinatorError,
    OSError,
    RecorderError,
    TraceError,
    directories.DirectoryRefusedError,
    serve.ServeError,
)


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    options = _parser().parse_args(argv)
    logs.configure("trace", "warning", "plain")
    try:
        with tempfile.TemporaryDirectory(prefix="lightrail-trace-") as folder:
            trace = asyncio.run(_trace(Path(folder)))
    except REFUSALS as error:
        print(f"lightrail trace: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    if options.json:
        print(json.dumps(trace.as_value(every_call=options.calls) | {"scanner_compiled": COMPILED}))
        return 0
    print(trace.as_text(every_call=options.calls))
    if COMPILED:
        print("and amqp/scanner.py with transfers.py, which read transfers; compiled calls are not seen")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightrail trace",
        description="Send one durable message through a broker of its own, receive and accept it, and print "
        "the files and functions that the frontend and the shard call for it, in the order of time.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--calls", action="store_true", help="print every call, not each function once")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser


async def _trace(folder: Path) -> Trace:
    """The trace of a message through a broker in a folder. Raises one of REFUSALS."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    async with _broker(folder) as (amqp, recorder):
        try:
            async with asyncio.timeout(MESSAGE_S_MAX), connect(str(amqp)) as connection:
                passages = await _pass_messages(connection, recorder)
        except TimeoutError:
            raise TraceError(
                f"expected {WARM + RECORDED} messages to be settled within {MESSAGE_S_MAX:g} s, found fewer: "
                "the machine is too busy, or the log above has the reason"
            ) from None
    return Trace.of(passages)


@asynccontextmanager
async def _broker(folder: Path) -> AsyncIterator[tuple[Endpoint, Recorder]]:
    """A broker that can be recorded, until the end of the block; its address, and its recorder."""
    data, sockets = str(folder / "data"), folder / "sockets"
    longest = len(os.fsencode(f"{data}/run{directories.LONGEST_SOCKET}"))
    if longest > directories.SOCKET_PATH_BYTES_MAX:
        # The sockets would be in a directory of their own, which nobody removes.
        raise TraceError(
            f"expected a path of the temporary directory with {longest - directories.SOCKET_PATH_BYTES_MAX} "
            f"bytes less, for the sockets in it, found {folder}: set TMPDIR to a shorter one"
        )
    sockets.mkdir()
    directories.make_data_directory(data)
    listener, amqp = serve.reserve(Endpoint("127.0.0.1", 0), "amqp")
    with listener:
        settings = Settings(data=data, amqp=amqp, frontends=1, shards=1, log_level="error")
        settings, _ = await serve.prepare(settings)
        plans = [
            replace(plan, environ=environment(sockets))
            for plan in serve.plans(settings, serve.MODULES)
            if plan.role in (FRONTEND, SHARD)
        ]
        supervisor = Supervisor(plans, settings, directories.socket_directory(data))
        ready: asyncio.Future[list[Report]] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(supervisor.run(ready.set_result))
        try:
            await asyncio.wait((ready, running), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running
            yield amqp, Recorder(sockets, {one["pid"]: one["role"] for one in ready.result()})
        finally:
            supervisor.stop("the trace has ended")
            await running


async def _pass_messages(connection: Connection, recorder: Recorder) -> list[Passage]:
    """Sends and receives messages, one after the other."""
    async with connection.sender(QUEUE) as sender, connection.receiver(QUEUE, credit=0) as receiver:
        passages = [await _pass_one(sender, receiver, recorder) for _ in range(WARM + RECORDED)]
    return passages[WARM:]


async def _pass_one(sender: Sender, receiver: Receiver, recorder: Recorder) -> Passage:
    """One message, until it is settled."""
    recorder.begin()
    sent_ns = time.monotonic_ns()
    await sender.send("message", durable=True)
    granted_ns = time.monotonic_ns()
    await receiver.grant(1)
    delivery = await anext(receiver)
    if {call.process for call in recorder.calls_so_far()} != {FRONTEND, SHARD}:
        raise TraceError(
            f"expected calls of functions in {PACKAGE}, found none: the processes of the broker load another "
            "lightrail, which is in the current directory; call the command in another one"
        )
    accepted_ns = time.monotonic_ns()
    await delivery.accept()
    passage = Passage(sent_ns, granted_ns, accepted_ns, [])
    while passage.settled_ns is None:
        # A settlement that the client has settled gets no answer: only the record shows when it is on disk.
        await asyncio.sleep(LOOK_S)
        passage = replace(passage, calls=recorder.calls_so_far())
    recorder.end()
    return passage
