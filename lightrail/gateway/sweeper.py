"""Sweeper: follows the namespace between requests, and deletes names and subscriptions that have expired."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.living import Living
from lightrail.cluster.map import Member
from lightrail.gateway.bodies import milliseconds
from lightrail.gateway.services import Services
from lightrail.model import limits
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.statuses import ServiceError
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError

SWEEP_MS: Final[int] = 1_000
"""How often a gateway deletes expired names and subscriptions."""
ORPHAN_MS: Final[int] = 60_000
"""Time without a registration of a frontend after which the names owned by its connections are deleted."""

log = logging.getLogger("lightrail.gateway.sweeper")


async def sweep(services: Services) -> None:
    """Runs until it is cancelled; a failed sweep is repeated the next time."""
    polls = max(1, SWEEP_MS // limits.DIRECTORY_POLL_MS)
    count = 0
    orphans = Orphans()
    living = None if services.settings.etcd else Living(services.settings.data)
    failed = False
    while True:
        await asyncio.sleep(limits.DIRECTORY_POLL_MS / 1000)
        count += 1
        services.shards.refresh()
        try:
            services.directory.refresh()
            services.map.refresh()
            if count % polls == 0:
                await services.callers.refresh()
                await sweep_once(services, services.now_ms())
                if living is not None:
                    for key in await living.forget_ended(services.coordinator, services.map):
                        log.info("the registration %s is deleted, its process has ended", key)
                frontends = services.shards.map.frontends
                for record in orphans.overdue(services.directory, frontends, services.now_ms()):
                    if record.role is Role.QUEUE and await in_use(services, record.name):
                        continue
                    log.info("%s is deleted, its frontend has ended: %s", record.name, record.owner)
                    await services.namespace.expire(record)
                failed = False
        except Exception as error:
            if not failed:
                log.warning("the namespace could not be followed or swept; this is tried again: %s", error)
            failed = True


async def in_use(services: Services, queue: str) -> bool:
    """Whether a temporary queue has a consumer: then its frontend runs, although it is not registered.

    Only its owner consumes from a temporary queue. The queue stays if its shard does not answer.
    """
    try:
        answer = await services.shards.request(queue, "queue", {})
    except (ShardDownError, ShardRefusedError, CoordinatorError) as error:
        log.debug("it is unknown whether %s is in use: %s", queue, error)
        return True
    return bool(answer.fields["consumer_count"])


async def sweep_once(services: Services, now_ms: int) -> None:
    """Deletes expired names and subscriptions; another gateway may have deleted them before."""
    for record in services.directory.expired():
        log.info("%s has expired", record.name)
        await services.namespace.expire(record)
    over = [
        each
        for each in services.directory.every_subscription()
        if each.expires_at is not None and milliseconds(each.expires_at) <= now_ms
    ]
    for subscription in over:
        log.info("subscription %s of %s has expired", subscription.id, subscription.router)
        try:
            await services.namespace.unsubscribe(ANYBODY, subscription.router, subscription.id)
        except ServiceError:
            services.directory.refresh()


@dataclass(eq=False, repr=False)
class Orphans:
    """Names that belong to a connection, session or link of a frontend that is not registered any more.

    The next frontend with its number deletes them when it starts, but there may never be one.
    """

    _since: dict[tuple[str, int], int] = field(default_factory=dict)
    """When the frontend of a name was first missing, by name and the revision that created the name."""

    def overdue(self, directory: Directory, frontends: Mapping[int, Member], now_ms: int) -> list[Name]:
        """Names whose frontend has been missing for ORPHAN_MS; call it regularly.

        The list is empty while no frontend is registered: processes of one supervisor need not register.
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
            if now_ms - since[key] >= ORPHAN_MS:
                over.append(record)
        self._since = since
        return over
