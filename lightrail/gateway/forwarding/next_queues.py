"""Next queues: those to which the messages of a queue that forwards are passed on.

A message that is stored on its way, in another queue that forwards, carries the times that it was forwarded
as an annotation, which it loses in its last queue; all else is as its sender gave it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from lightrail.amqp.sections import decode_annotations, with_annotations, without_annotations
from lightrail.amqp.values import DecodeError, Symbol, UInt
from lightrail.gateway.forwarding.sink import moved
from lightrail.gateway.messages.outgoing import Outgoing
from lightrail.gateway.messages.sending import RouterSender
from lightrail.model import conditions
from lightrail.model.policy import Role
from lightrail.namespace.ages import expiry
from lightrail.namespace.directory import Directory
from lightrail.namespace.forwarding import HOPS_MAX, Chain, chain_of
from lightrail.namespace.records import Right, refused_by_status
from lightrail.namespace.router_plan import CopyGroup, Plan
from lightrail.namespace.routing import UNROUTABLE
from lightrail.shard_client.receiving.queue_consumer import Delivery
from lightrail.wire.bodies import Refusal

HOPS: Final = Symbol("x-opt-transfer-hops")
"""Times that a message was forwarded before it came into a queue that forwards."""
_MARK: Final = HOPS.encode()
TOO_MANY_HOPS: Final = "MaxTransferHopCountExceeded"
"""Condition of a message that was forwarded HOPS_MAX times, as in Azure Service Bus."""


def hops_of(delivery: Delivery) -> int:
    """Times that a message was forwarded; 0 where its sender wrote something else."""
    if delivery.message_format or _MARK not in delivery.message:
        return 0
    try:
        found = decode_annotations(delivery.message).get(HOPS)
    except (DecodeError, ValueError):
        return 0
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else 0


def with_hops(message: bytes, message_format: int, hops: int) -> bytes:
    """The message with the times that it was forwarded; without them for 0."""
    if message_format or (not hops and _MARK not in message):
        return message
    try:
        return with_annotations(message, {HOPS: UInt(hops)}) if hops else without_annotations(message, [HOPS])
    except (DecodeError, ValueError):
        # It is passed on as its sender wrote it, and can't be counted.
        return message


class RefusedError(Exception):
    """A message that is not passed on: an AMQP error condition and a description."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.condition}: {refusal.description}")
        self.refusal = refusal


class PostedCopies(NamedTuple):
    """Messages with the same attributes for some queues."""

    queues: frozenset[str]
    outgoing: Outgoing
    """One of them, for its attributes."""
    payloads: list[bytes]


@dataclass(slots=True, eq=False, repr=False)
class NextQueues:
    """Where the messages of one queue go next.

    Args:
        now_ms: wall clock.
    """

    _directory: Directory
    _routers: RouterSender
    source: str

    async def posts(
        self, deliveries: Sequence[Delivery], now_ms: int, *, at_sources: bool = False
    ) -> list[PostedCopies]:
        """The messages by their queues, in their order; those that nobody behind a router gets are missing.

        Args:
            at_sources: whether queues at the ends of chains are left out: the last queue before them that
                forwards stores the messages, and refuses them itself when it can't pass them on.

        Raises RefusedError: the target is missing or disabled, or refuses messages without a subscriber; a
        message was forwarded too often. CoordinatorError.
        """
        self._directory.refresh()
        found: list[PostedCopies] = []
        for (hops, outgoing), run in groupby(deliveries, _kind):
            if hops >= HOPS_MAX:
                raise RefusedError(
                    Refusal(TOO_MANY_HOPS, f"the message was forwarded {hops} times, which is the most")
                )
            messages = [each.message for each in run]
            found += await self._of_run(messages, outgoing, hops, now_ms, at_sources=at_sources)
        return found

    async def _of_run(
        self, messages: list[bytes], outgoing: Outgoing, hops: int, now_ms: int, *, at_sources: bool
    ) -> list[PostedCopies]:
        directory = self._directory
        policy = directory.get(self.source).policy
        target = policy["forward_to"]
        if target is None or refused_by_status(policy, Right.LISTEN):
            raise RefusedError(Refusal(conditions.NOT_FOUND, f"{self.source} forwards nothing any more"))
        found = directory.get(target)
        if found.role not in (Role.QUEUE, Role.ROUTER):
            raise RefusedError(
                Refusal(conditions.NOT_FOUND, f"{target} has role {found.role}; expected a queue or router")
            )
        if why := refused_by_status(found.policy, Right.SEND):
            raise RefusedError(Refusal(conditions.ENTITY_DISABLED, f"{target} is disabled: {why}"))
        if found.role is Role.QUEUE:
            return self._in_chain(messages, outgoing, hops, at_sources=at_sources)
        return await self._behind(target, messages, outgoing, hops + 1, now_ms, at_sources=at_sources)

    def _in_chain(
        self, messages: list[bytes], outgoing: Outgoing, hops: int, *, at_sources: bool
    ) -> list[PostedCopies]:
        """The posts for the end of the chain of queues that begins here."""
        chain = chain_of(self._directory, self.source, HOPS_MAX - hops)
        queues = chain.queues
        if at_sources and len(queues) > 2:
            chain = Chain(queues[:-1], chain.names, False)
        assert chain.hops, "the next queue takes messages, as the caller has checked"
        passed = 0 if chain.is_complete else hops + chain.hops
        payloads = [with_hops(each, outgoing.message_format, passed) for each in messages]
        return [PostedCopies(frozenset((chain.last,)), outgoing, payloads)]

    async def _behind(
        self,
        router: str,
        messages: list[bytes],
        outgoing: Outgoing,
        hops: int,
        now_ms: int,
        *,
        at_sources: bool,
    ) -> list[PostedCopies]:
        """The posts for the queues that a router chooses; `hops` includes the one to the router."""
        routers = self._routers.routers
        plan = await routers.plan(router)
        if plan is None:
            raise RefusedError(Refusal(conditions.NOT_FOUND, f"{router} is no router any more"))
        if plan.problem is not None:
            raise RefusedError(plan.problem)
        most, largest = plan.policy["max_message_bytes"], max(map(len, messages))
        if most is not None and largest > most:
            why = f"{router} takes messages of at most {most} bytes, found {largest}"
            raise RefusedError(Refusal(conditions.MESSAGE_SIZE_EXCEEDED, why))
        plain = [with_hops(each, outgoing.message_format, 0) for each in messages]
        groups, unroutable = await routers.routed(plan.begin(plain, routers.looks, now_ms))
        if unroutable and plan.policy["unroutable"] == "reject":
            raise RefusedError(Refusal(conditions.NOT_FOUND, UNROUTABLE.format(router=router)))
        return [
            post
            for group in groups
            for post in self._of_group(group, plan, outgoing, hops, now_ms, at_sources=at_sources)
        ]

    def _of_group(
        self, group: CopyGroup, plan: Plan, outgoing: Outgoing, hops: int, now_ms: int, *, at_sources: bool
    ) -> Iterator[PostedCopies]:
        """The posts for the queues of a group: by the age at which messages expire there, and by hops."""
        kinds: dict[tuple[int | None, bool], set[str]] = {}
        for queue in group.queues:
            through = plan.forwarded.get(queue)
            if through is not None and (at_sources or hops + through.hops > HOPS_MAX):
                queue = through.source
            forwards = self._directory.get(queue).policy["forward_to"] is not None
            kinds.setdefault((plan.ages_ms.get(queue), forwards), set()).add(queue)
        for (age_ms, forwards), queues in kinds.items():
            payloads = group.payloads
            if forwards:
                payloads = [with_hops(each, outgoing.message_format, hops) for each in payloads]
            attributes = outgoing
            if age_ms is not None:
                expires = expiry(outgoing.expires_at_ms, now_ms, age_ms, group.payloads[0])
                attributes = outgoing._replace(expires_at_ms=expires)
            yield PostedCopies(frozenset(queues), attributes, payloads)


def _kind(delivery: Delivery) -> tuple[int, Outgoing]:
    """What messages of one post have in common."""
    return hops_of(delivery), moved(delivery)._replace(message=b"")


def parts_of(posts: Sequence[PostedCopies], shards: Mapping[str, int]) -> dict[int, list[PostedCopies]]:
    """The posts by the shards of their queues."""
    found: dict[int, list[PostedCopies]] = {}
    for post in posts:
        by_shard: dict[int, set[str]] = {}
        for queue in post.queues:
            by_shard.setdefault(shards[queue], set()).add(queue)
        for shard, queues in by_shard.items():
            found.setdefault(shard, []).append(post._replace(queues=frozenset(queues)))
    return found
