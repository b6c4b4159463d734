"""Selecting: receivers whose application chooses among messages by looking at them."""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from lightrail.amqp.performatives import Modified
from lightrail.client.delivery import Delivery
from lightrail.client.errors import LostError
from lightrail.client.message import Message

PASSED_OVER: Final = Modified(undeliverable_here=True)

Handler = Callable[[Delivery], Any]


class Receiving(Protocol):
    """A receiver."""

    async def receive(self) -> list[Delivery]:
        """The next delivery."""


async def select(
    receiver: Receiving,
    choose: Callable[[Message], Handler | None],
    timeout: float | None,  # noqa: ASYNC109 - exceeding it is not an error
) -> bool:
    """See Receiver.select."""
    try:
        async with asyncio.timeout(timeout):
            while True:
                [delivery] = await receiver.receive()
                try:
                    handler = choose(delivery.message)
                except BaseException:
                    await _fail(delivery)
                    raise
                if handler is not None:
                    break
                if not delivery.settled:
                    with suppress(LostError):
                        delivery.settle(PASSED_OVER)
    except TimeoutError:
        return False
    try:
        found = handler(delivery)
        if inspect.isawaitable(found):
            await found
    except BaseException:
        await _fail(delivery)
        raise
    if not delivery.settled:
        await delivery.accept()
    return True


async def _fail(delivery: Delivery) -> None:
    """Fails a delivery whose handler raised; after the loss of its link the broker does so by itself."""
    if not delivery.settled:
        with suppress(LostError):
            await delivery.fail()
