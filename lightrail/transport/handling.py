"""Handling: calls a handler with a message, and settles the message by the result."""

import asyncio
import inspect

from lightrail.transport.protocol import Handler, Received


async def handle(handler: Handler, received: Received) -> None:
    """Calls a handler. A message that it has not settled is accepted, or failed if the handler raises.

    Raises the exceptions of the handler.
    """
    try:
        result = handler(received)
        if inspect.isawaitable(result):
            await result
    except asyncio.CancelledError:
        # The application stops the receiver, which is no failure of the message.
        if not received.settled:
            await received.release()
        raise
    except BaseException:
        if not received.settled:
            await received.fail()
        raise
    if not received.settled:
        await received.accept()
