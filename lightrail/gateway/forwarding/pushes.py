"""Pushes: messages of a subscription that are sent to its URL by HTTP.

Each subscription to a URL has its own queue (`ROUTER/$subscriptions/ID`). Up to PUSH_WINDOW of its
messages are pushed at a time, so they may arrive in another order. A failed push is repeated after a pause
that doubles each time; after the last attempt the message is a dead letter of that queue.
"""

import asyncio
import hmac
import json
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from hashlib import sha256
from typing import Final, NamedTuple

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.gateway.bodies import rfc3339
from lightrail.gateway.forwarding.counts import ForwardingCounts
from lightrail.gateway.forwarding.forwarder import ACCEPTED, Forwarder, Roster, Settlement
from lightrail.gateway.forwarding.room import ForwardingRoom
from lightrail.gateway.http_client import Result
from lightrail.gateway.messages import incoming
from lightrail.gateway.paths import path_of
from lightrail.model.names import subscription_name
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Service
from lightrail.namespace.statuses import ServiceError
from lightrail.shard_client.receiving.queue_consumer import Delivery
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode

PUSH_WINDOW: Final[int] = 8
"""Messages of one subscription that are pushed at a time, those that wait for another attempt included."""
PUSH_BACKOFF_FACTOR_MAX: Final[int] = 100
"""Longest pause between two attempts, as a multiple of the policy's push_backoff; the pauses double up to
it."""

log = logging.getLogger("lightrail.gateway.forwarding.pushes")

FAILED: Final = "lightrail:push-failed"
"""Condition of dead letters after the last attempt."""
GONE: Final = 410

HEADER: Final = "LightRail-Signature"

Pause = Callable[[float], Awaitable[None]]
Post = Callable[[str, Mapping[str, str], bytes], Awaitable[Result]]


class Push(NamedTuple):
    """The fields of a subscription, and of its router's policy, that a pusher needs."""

    router: str
    id: str
    url: str
    secret: str
    retries: int
    backoff_s: float


class Pusher(Forwarder):
    """Pushes the messages of one subscription."""

    __slots__ = ("_host", "_pausing", "_push", "_tried")

    def __init__(self, queue: str, push: Push, host: "Pushers", lost: Callable[[Forwarder], None]) -> None:
        label = f"push to {push.url}"[:256]
        super().__init__(queue, window=PUSH_WINDOW, label=label, lost=lost, room=host.room)
        self._push = push
        self._host = host
        self._pausing = 0
        """Messages that wait for their next attempt."""
        self._tried: dict[int, tuple[int, int]] = {}
        """Number and time in ms since 1970 of the next attempt of messages that were given back while they
        waited, by sequence."""

    @property
    def is_waiting(self) -> bool:
        """See MessageHolder."""
        return 0 < self._pausing == self.held

    async def carry(self, delivery: Delivery) -> Settlement:
        """Accepted after a status of 2xx, rejected after the last failed attempt."""
        push = self._push
        host = self._host
        error = ""
        first, due_ms = self._tried.pop(delivery.sequence, (0, 0))
        first = min(first, push.retries)
        if (left_ms := due_ms - host.now_ms()) > 0:
            await self._wait(delivery, first, left_ms / 1000)
        for attempt in range(first, push.retries + 1):
            headers, body = request_of(push, delivery, attempt, host.now_ms() // 1000)
            host.counts.pushes_under_way += 1
            try:
                result = await host.post(push.url, headers, body)
            finally:
                host.counts.pushes_under_way -= 1
            if not result.error:
                host.counts.pushes_accepted += 1
                return ACCEPTED
            host.counts.pushes_failed += 1
            if result.status == GONE:
                # The end of the subscription ends this pusher, and deletes the queue with its messages.
                await asyncio.wait({host.end(push)})
            error = result.error
            log.debug("push %d of message %d of %s: %s", attempt + 1, delivery.sequence, self.queue, error)
            if attempt < push.retries:
                pause_s = max(self._backoff_s(attempt), result.retry_after_s or 0.0)
                await self._wait(delivery, attempt + 1, pause_s)
        host.counts.pushes_dead_lettered += 1
        log.warning("message %d of %s is a dead letter: %s", delivery.sequence, self.queue, error)
        return OutcomeCode.REJECTED, SettleDetail(FAILED, f"{push.url}: {error}"[:1024])

    async def _wait(self, delivery: Delivery, attempt: int, pause_s: float) -> None:
        """Waits for the next attempt of a message."""
        due_ms = self._host.now_ms() + int(pause_s * 1000)
        self._pausing += 1
        try:
            await self._host.pause(pause_s)
        except asyncio.CancelledError:
            if len(self._tried) >= PUSH_WINDOW:
                self._tried.clear()
            self._tried[delivery.sequence] = attempt, due_ms
            raise
        finally:
            self._pausing -= 1

    def _backoff_s(self, attempt: int) -> float:
        """Half of the pause is random, so that pushes that failed together are not repeated together."""
        factor = min(1 << min(attempt, 30), PUSH_BACKOFF_FACTOR_MAX)
        return self._push.backoff_s * factor * (0.5 + 0.5 * self._host.draw())


class Pushers:
    """A pusher for each subscription to a URL; follows the directory.

    Args:
        post: sends a body with header fields to a URL; errors of the other side are results.
        pause: waits the given number of seconds.
        draw: a random number from 0 to below 1.
    """

    def __init__(
        self,
        service: Service,
        shards: ShardConnections,
        post: Post,
        counts: ForwardingCounts,
        room: ForwardingRoom,
        *,
        pause: Pause = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.counts = counts
        self.room = room
        self.post = post
        self.now_ms = shards.now_ms
        self.pause = pause
        self.draw = draw
        self._service = service
        self._directory: Directory = service.directory
        self._ending: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._by_router: dict[str, set[str]] = {}
        """Queues of pushers, by router."""
        self._roster: Roster[Push] = Roster(shards, lambda queue, push, lost: Pusher(queue, push, self, lost))

    def start(self) -> None:
        """Opens a pusher for every subscription to a URL; `changed` follows later changes."""
        self.changed({each.router for each in self._directory.every_subscription() if each.push})

    def changed(self, routers: Iterable[str]) -> None:
        """Follows routers whose subscriptions or policy may have changed."""
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
        """Ends the subscription of an endpoint that answered 410, once for all messages in flight."""
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
        except (ServiceError, CoordinatorError) as error:
            # Another gateway has ended the subscription, or the next attempt to push tries it again.
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
    """Headers and body of a push: those of a message received over HTTP, and three headers more.

    `LightRail-Delivery` counts attempts from 1, including earlier failed deliveries; a restarted gateway
    begins again at 1.
    """
    properties, own, content_type, body = incoming.answer(
        delivery.message, delivery.message_format, delivery.attempts, whole=False
    )
    properties["SequenceNumber"] = delivery.sequence
    properties["EnqueuedTimeUtc"] = rfc3339(delivery.enqueued_at_ms)
    if delivery.expires_at_ms > 0:
        properties["ExpiresAtUtc"] = rfc3339(delivery.expires_at_ms)
    headers = dict(own)
    headers["BrokerProperties"] = json.dumps(properties)
    headers["Content-Type"] = content_type
    headers["LightRail-Subscription"] = path_of(push.router, "!subscriptions", push.id)
    headers["LightRail-Delivery"] = str(delivery.attempts + attempt + 1)
    headers[HEADER] = signature(push.secret, body, now_s)
    return headers, body


def signature(secret: str, body: bytes, now_s: int) -> str:
    """`t=UNIX,v1=HEX`, by which an endpoint checks that a push is genuine and fresh.

    HEX is HMAC-SHA-256 over `UNIX.BODY`. The key is the subscription's secret, as the text that was shown.
    Stripe uses the same format, so code that checks it is easy to find; docs/operate/forwarding.md has an
    example.
    """
    signed = b"%d." % now_s + body
    return f"t={now_s},v1={hmac.new(secret.encode(), signed, sha256).hexdigest()}"
