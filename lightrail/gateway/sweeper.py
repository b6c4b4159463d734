"""Sweeper: follows the namespace while nobody asks, and deletes what has come to its end."""

import asyncio
import logging
from collections.abc import Mapping

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.map import Member
from lightrail.gateway.app import Gateway
from lightrail.gateway.instants import milliseconds
from lightrail.model import limits
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Refused
from lightrail.wire.requests import ShardDownError, ShardRefusedError

log = logging.getLogger("lightrail.gateway.sweeper")


async def sweep(gateway: Gateway) -> None:
    """Runs until it is cancelled; what fails is tried again the next time."""
    polls = max(1, limits.SWEEP_MS // limits.DIRECTORY_POLL_MS)
    count = 0
    orphans = Orphans()
    failed = False
    while True:
        await asyncio.sleep(limits.DIRECTORY_POLL_MS / 1000)
        count += 1
        gateway.shards.shard_connections.refresh()
        try:
            gateway.directory.refresh()
            gateway.map.refresh()
            if count % polls == 0:
                await gateway.callers.refresh()
                await sweep_once(gateway, gateway.now_ms())
                frontends = gateway.shards.shard_connections.map.frontends
                for record in orphans.look(gateway.directory, frontends, gateway.now_ms()):
                    if record.role is Role.QUEUE and await in_use(gateway, record.name):
                        continue
                    log.info("%s goes, its frontend is gone: %s", record.name, record.owner)
                    await gateway.service.expire(record)
                failed = False
        except Exception as error:
            if not failed:
                log.warning(
                    "the namespace could not be followed or swept, tried again from now on: %s", error
                )
            failed = True


async def in_use(gateway: Gateway, queue: str) -> bool:
    """Whether somebody consumes from a queue: then the frontend that owns it lives, and only can't be seen.

    Only the owner of a temporary queue listens at it. A shard that can't be asked says nothing, and the
    queue stays.
    """
    try:
        answer = await gateway.shards.request(queue, "queue", {})
    except (ShardDownError, ShardRefusedError, CoordinatorError) as error:
        log.debug("whether %s is in use is not known: %s", queue, error)
        return True
    return bool(answer.fields["consumer_count"])


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


class Orphans:
    """Names that go with a connection, session or link of a frontend that is registered nowhere any more.

    A successor of the same number deletes them at its start; there may never be one.
    """

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], int] = {}
        """By name and the revision that made it: when its frontend was missed first."""

    def look(self, directory: Directory, frontends: Mapping[int, Member], now_ms: int) -> list[Name]:
        """Those whose frontend has been gone for limits.ORPHAN_MS; to be asked now and then.

        Where no frontend is registered at all nothing can be told: processes of one supervisor need not be.
        """
        if not frontends:
            self._since.clear()
            return []
        alive = {f"frontend-{member.id}/{member.boot:08x}" for member in frontends.values()}
        since: dict[tuple[str, int], int] = {}
        over = []
        for record in directory.below(""):
            owner = record.owner
            if not owner or not owner.startswith("frontend-") or "/".join(owner.split("/")[:2]) in alive:
                continue
            key = (record.name, record.created)
            since[key] = self._since.get(key, now_ms)
            if now_ms - since[key] >= limits.ORPHAN_MS:
                over.append(record)
        self._since = since
        return over
