"""Pushers: messages of a subscription on their way to its URL, by HTTP.

Each subscription to a URL has a queue of its own (`ROUTER/$subscriptions/ID`). Up to limits.PUSH_WINDOW of
its messages are pushed at a time, so they may arrive in another order. What fails is tried again after a
pause that doubles, and is a dead letter of that queue in the end.
"""

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple
from urllib.parse import quote

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.gateway import incoming
from lightrail.gateway.couriers.carrier import ACCEPTED, Carrier, Settlement
from lightrail.gateway.couriers.counts import CourierCounts
from lightrail.gateway.couriers.endpoint import Endpoints
from lightrail.gateway.couriers.letters import Delivery
from lightrail.gateway.couriers.roster import Roster
from lightrail.gateway.couriers.signing import HEADER, signature
from lightrail.gateway.couriers.sources import Links
from lightrail.gateway.instants import rfc3339
from lightrail.gateway.place import path_of
from lightrail.model import limits
from lightrail.model.names import subscription_name
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Refused, Service
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode

log = logging.getLogger("lightrail.gateway.couriers.pushers")

FAILED: Final = "lightrail:push-failed"
"""Condition of the dead letters."""
GONE: Final = 410

Pause = Callable[[float], Awaitable[None]]


class Push(NamedTuple):
    """What a pusher needs of its subscription and of the policy of its router."""

    router: str
    id: str
    url: str
    secret: str
    retries: int
    backoff_s: float


class Pusher(Carrier):
    """Pushes the messages of one subscription."""

    __slots__ = ("_host", "_push")

    def __init__(self, queue: str, push: Push, host: "Pushers", lost: Callable[[Carrier], None]) -> None:
        super().__init__(queue, window=limits.PUSH_WINDOW, label=f"push to {push.url}"[:256], lost=lost)
        self._push = push
        self._host = host

    async def carry(self, delivery: Delivery) -> Settlement:
        """Accepted after a status of 2xx, rejected after the last attempt that failed."""
        push = self._push
        host = self._host
        error = ""
        for attempt in range(push.retries + 1):
            headers, body = request_of(push, delivery, attempt, host.now_ms() // 1000)
            host.counts.pushes_under_way += 1
            try:
                result = await host.endpoints.post(push.url, headers, body)
            finally:
                host.counts.pushes_under_way -= 1
            if not result.error:
                host.counts.pushes_accepted += 1
                return ACCEPTED
            host.counts.pushes_failed += 1
            if result.status == GONE:
                # With the subscription this pusher ends; what it holds goes with its queue.
                await asyncio.wait({host.end(push)})
            error = result.error
            log.debug("push %d of message %d of %s: %s", attempt + 1, delivery.sequence, self.queue, error)
            if attempt < push.retries:
                await host.pause(max(self._backoff_s(attempt), result.retry_after_s or 0.0))
        host.counts.pushes_dead_lettered += 1
        log.warning("message %d of %s is a dead letter: %s", delivery.sequence, self.queue, error)
        return OutcomeCode.REJECTED, SettleDetail(FAILED, f"{push.url}: {error}"[:1024])

    def _backoff_s(self, attempt: int) -> float:
        """Half of the pause is drawn, so that many that failed together don't come again together."""
        factor = min(1 << min(attempt, 30), limits.PUSH_BACKOFF_FACTOR_MAX)
        return self._push.backoff_s * factor * (0.5 + 0.5 * self._host.draw())


class Pushers:
    """A pusher for each subscription to a URL; follows the directory.

    Args:
        pause: waits so many seconds.
        draw: a number from 0 to below 1, at random.
    """

    def __init__(
        self,
        service: Service,
        links: Links,
        endpoints: Endpoints,
        counts: CourierCounts,
        *,
        pause: Pause = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.counts = counts
        self.endpoints = endpoints
        self.now_ms = links.now_ms
        self.pause = pause
        self.draw = draw
        self._service = service
        self._directory: Directory = service.directory
        self._ending: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._by_router: dict[str, set[str]] = {}
        """The queues that pushers of each router consume."""
        self._roster: Roster[Push] = Roster(links, lambda queue, push, lost: Pusher(queue, push, self, lost))

    def start(self) -> None:
        """Looks at every subscription; from here on `changed` has to be told of changes."""
        self.changed({each.router for each in self._directory.every_subscription() if each.push})

    def changed(self, routers: Iterable[str]) -> None:
        """These routers may have other subscriptions, or another policy."""
        for router in routers:
            wanted = self._wanted(router)
            for queue in self._by_router.pop(router, set()) - wanted.keys():
                self._roster.want(queue, None)
            for queue, push in wanted.items():
                self._roster.want(queue, push)
            if wanted:
                self._by_router[router] = set(wanted)
        self.counts.pushers = len(self._roster)

    def end(self, push: Push) -> "asyncio.Task[None]":
        """The endpoint is gone for good, and the subscription with it; once for all messages that hear it."""
        key = (push.router, push.id)
        if key not in self._ending:
            task = self._ending[key] = asyncio.get_running_loop().create_task(self._end(push))
            task.add_done_callback(lambda _: self._ending.pop(key, None))
        return self._ending[key]

    async def _end(self, push: Push) -> None:
        log.warning("%s answered 410: subscription %s of %s ends", push.url, push.id, push.router)
        try:
            await self._service.unsubscribe(ANYBODY, push.router, push.id)
            self.counts.subscriptions_gone += 1
        except (Refused, CoordinatorError) as error:
            # Another gateway was faster, or it is tried again with the next attempt.
            log.info("subscription %s of %s: %s", push.id, push.router, error)

    def close(self) -> None:
        self._roster.close()

    def _wanted(self, router: str) -> dict[str, Push]:
        policy = self._directory.get(router).policy
        if policy.role is not Role.ROUTER:
            return {}
        return {
            subscription_name(router, each.id): Push(
                router, each.id, each.target, each.secret, policy["push_retries"], policy["push_backoff"]
            )
            for each in self._directory.subscriptions(router)
            if each.push
        }


def request_of(push: Push, delivery: Delivery, attempt: int, now_s: int) -> tuple[dict[str, str], bytes]:
    """Headers and body of a push, as a receive over HTTP has them, with three headers of its own.

    `LightRail-Delivery` counts attempts from 1, failed deliveries before this one included; it begins anew
    when the gateway does.
    """
    properties, own, content_type, body = incoming.answer(
        delivery.message, delivery.message_format, delivery.attempts, whole=False
    )
    properties["SequenceNumber"] = delivery.sequence
    properties["EnqueuedTimeUtc"] = rfc3339(delivery.enqueued_at_ms)
    if delivery.expires_at_ms > 0:
        properties["ExpiresAtUtc"] = rfc3339(delivery.expires_at_ms)
    is_plain = content_type.isascii() and content_type.isprintable()
    headers = dict(own)
    headers["BrokerProperties"] = json.dumps(properties)
    headers["Content-Type"] = content_type if is_plain else quote(content_type, safe="/;=+ ")
    headers["LightRail-Subscription"] = path_of(push.router, "!subscriptions", push.id)
    headers["LightRail-Delivery"] = str(delivery.attempts + attempt + 1)
    headers[HEADER] = signature(push.secret, body, now_s)
    return headers, body
