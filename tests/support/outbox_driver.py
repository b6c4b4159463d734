"""A process that stores and forwards, and kills itself at a step.

    outbox_driver.py URL QUEUE FILE FIRST STEP PASSING

It prints the number of each message that is stored. With the step `none` it forwards what waits, and ends.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from lightrail.transport import Envelope, StoreForwardTransport, transport_of
from lightrail.transport.outbox_file import OutboxFile

URL, QUEUE, FILE, FIRST, STEP, PASSING = sys.argv[1:]
MESSAGES = 50
passed = 0


def reached(step: str) -> None:
    """Kills this process at the passing of the step that was asked for."""
    global passed
    if step == STEP:
        passed += 1
        if passed == int(PASSING):
            os.kill(os.getpid(), signal.SIGKILL)


def watched(before: str, call: Callable[..., Any], after: str) -> Callable[..., Any]:
    def watch(*arguments: Any) -> Any:
        reached(before)
        result = call(*arguments)
        reached(after)
        return result

    return watch


async def main() -> None:
    OutboxFile.append = watched("append", OutboxFile.append, "appended")  # type: ignore[method-assign]
    OutboxFile.next = watched("next", OutboxFile.next, "")  # type: ignore[method-assign]
    OutboxFile.remove = watched("remove", OutboxFile.remove, "removed")  # type: ignore[method-assign]
    behind = transport_of(f"{URL}/{QUEUE}")
    plain = behind.send

    async def send(envelope: Envelope) -> None:
        reached("send")
        await plain(envelope)
        reached("sent")

    behind.send = send  # type: ignore[method-assign]
    outbox = StoreForwardTransport(behind, FILE, batch=10)
    await outbox.open()
    if STEP != "none":
        for number in range(int(FIRST), int(FIRST) + MESSAGES):
            await outbox.send(Envelope(body=b"%d" % number))
            print(number, flush=True)
    await outbox.drained()
    await outbox.close()


asyncio.run(main())
