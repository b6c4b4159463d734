"""Handling: a handler is called with a message, and the message is settled by how that ends."""

import asyncio
import inspect

from lightrail.transport.protocol import Handler, Received


async def handle(handler: Handler, received: Received) -> None:
    """Calls a handler. A message that it has not settled is accepted, or failed where it raises.

    Raises what the handler raises.
    """
    try:
        result = handler(received)
        if inspect.isawaitable(result):
            await result
    except asyncio.CancelledError:
        # The application stops the receiver: that is no failure of the message.
        if not received.settled:
            await received.release()
        raise
    except BaseException:
        if not received.settled:
            await received.fail()
        raise
    if not received.settled:
        await received.accept()
