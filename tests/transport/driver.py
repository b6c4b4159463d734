"""A process that stores and forwards, and kills itself at a step.

    driver.py URL QUEUE FILE FIRST STEP PASSING

It prints the number of each message that is stored. With the step `none` it forwards what waits, and ends.
"""

import asyncio
import sys

from lightrail.transport import Envelope, StoreForwardTransport, transport_of
from lightrail.transport.outbox_file import OutboxFile
from tests.support.killed_at import KilledAt

URL, QUEUE, FILE, FIRST, STEP, PASSING = sys.argv[1:]
MESSAGES = 50
killed = KilledAt(STEP, int(PASSING))


async def main() -> None:
    OutboxFile.append = killed.around("append", OutboxFile.append, "appended")  # type: ignore[method-assign]
    OutboxFile.next = killed.around("next", OutboxFile.next, "")  # type: ignore[method-assign]
    OutboxFile.remove = killed.around("remove", OutboxFile.remove, "removed")  # type: ignore[method-assign]
    behind = transport_of(f"{URL}/{QUEUE}")
    behind.send = killed.around_async("send", behind.send, "sent")  # type: ignore[method-assign]
    outbox = StoreForwardTransport(behind, FILE, batch=10)
    await outbox.open()
    if STEP != "none":
        for number in range(int(FIRST), int(FIRST) + MESSAGES):
            await outbox.send(Envelope(body=b"%d" % number))
            print(number, flush=True)
    await outbox.drained()
    await outbox.close()


asyncio.run(main())
