"""Sweeper: follows the namespace while nobody asks, and deletes what has come to its end."""

import asyncio
import logging

from lightrail.gateway.app import Gateway
from lightrail.gateway.instants import milliseconds
from lightrail.model import limits
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Refused

log = logging.getLogger("lightrail.gateway.sweeper")


async def sweep(gateway: Gateway) -> None:
    """Runs until it is cancelled; what fails is tried again the next time."""
    polls = max(1, limits.SWEEP_MS // limits.DIRECTORY_POLL_MS)
    count = 0
    while True:
        await asyncio.sleep(limits.DIRECTORY_POLL_MS / 1000)
        count += 1
        try:
            gateway.directory.refresh()
            gateway.map.refresh()
            if count % polls == 0:
                await gateway.callers.refresh()
                await sweep_once(gateway, gateway.now_ms())
        except Exception as error:
            log.warning("the namespace could not be followed or swept: %s", error)


async def sweep_once(gateway: Gateway, now_ms: int) -> None:
    """Deletes names and subscriptions whose time is over; another gateway may be faster."""
    for record in gateway.directory.expired():
        log.info("%s has expired", record.name)
        await gateway.service.expire(record)
    over = [
        each
        for each in gateway.directory.every_subscription()
        if each.expires_at is not None and milliseconds(each.expires_at) <= now_ms
    ]
    for subscription in over:
        log.info("subscription %s of %s has expired", subscription.id, subscription.router)
        try:
            await gateway.service.unsubscribe(ANYBODY, subscription.router, subscription.id)
        except Refused:
            gateway.directory.refresh()
