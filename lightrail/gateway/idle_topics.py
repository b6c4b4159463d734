"""Idle topics: routers that are deleted when nobody has used them for the max_idle of their policy.

Processes that route messages of a topic say so in its entry (namespace/topic_uses.py), and the shards of the
queues of its subscriptions know who receives from these. A topic is deleted in these steps, of which each
ends the attempt if somebody uses the topic:

1. Its entry and its policy were not changed for its time. A topic with a subscription that passes messages
   on, to another name or a URL, is in use.
2. TOPIC_ASKED_MS before its time is over, a gateway enters into its entry that it asks for uses: a process
   that could not write its use has this time to do that.
3. The shards of all its queues say that the time of these is over, too; silence means use.
4. All of them let their queues leave, so that nothing is accepted or received any more.
5. The topic is deleted with its subscriptions and their queues, in one transaction if it has at most about
   24, which is guarded by the revisions of all of these, and of its entry, at the beginning.

If a step fails after the fourth began, the topic's record is written anew, by which its queues are served
again; if this gateway is lost, the shards do that (shard/links/retiring.py).
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lightrail.cluster.coordinator import ConflictError, CoordinatorError, Write, unchanged
from lightrail.gateway.services import Services
from lightrail.model import limits
from lightrail.model.policy import Role
from lightrail.namespace import deleting
from lightrail.namespace.directory import Changes
from lightrail.namespace.records import NAMES, Name
from lightrail.namespace.statuses import ChangedError
from lightrail.namespace.topic_uses import USES, TopicUses, idle_s
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError

TOPIC_ASKED_MS: Final[int] = 60_000
"""Time for which a gateway asks for uses that are not written, before it deletes a topic."""
TOPICS_BACK_MS: Final[int] = 300_000
"""No topic is deleted sooner after a gateway or frontend was started, or this one paused."""
TOPICS_PAUSE_MS: Final[int] = 60_000
TOPIC_AGAIN_MS: Final[int] = 30_000
"""Pause after an attempt that failed, as a shard did not answer or somebody changed something."""
TOPICS_SWEEP_MS: Final[int] = 1_000

log = logging.getLogger("lightrail.gateway.idle_topics")


class UsedError(Exception):
    """A topic is used, or may be; the message says by whom."""

    def __init__(self, why: str, over_ms: int = 0) -> None:
        super().__init__(why)
        self.over_ms = over_ms
        """When its time is over; 0 if that is not known."""


@dataclass(slots=True, eq=False, repr=False)
class IdleTopics:
    """The topics with max_idle, and what this gateway knows of their use."""

    _services: Services
    _uses: TopicUses
    _topics: dict[str, None] = field(default_factory=dict)
    _not_before_ms: dict[str, int] = field(default_factory=dict)
    """By topic, a time before which it is not deleted, as far as shards know."""
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By topic, until when it was in use at the last sweep, and when a change of that was seen: the clock of
    who uses it may be behind this one."""
    _processes: frozenset[tuple[str, int, int]] = frozenset()
    _back_ms: int = 0
    """When a process that may use topics was started last, or this one continued after a pause."""
    _swept_ms: int = 0

    def __post_init__(self) -> None:
        directory = self._services.directory
        directory.listen(self._changed)
        self._topics |= {each.name: None for each in directory.below("") if idle_s(each) is not None}

    def _changed(self, changes: Changes) -> None:
        for name in changes.names:
            if idle_s(self._services.directory.get(name)) is None:
                self._topics.pop(name, None)
                self._not_before_ms.pop(name, None)
                self._seen.pop(name, None)
            else:
                self._topics[name] = None

    async def run(self) -> None:
        """Runs until it is cancelled; what fails is repeated."""
        failed = False
        while True:
            await asyncio.sleep(TOPICS_SWEEP_MS / 1000)
            try:
                await self.sweep(self._services.now_ms())
                failed = False
            except Exception as error:
                if not failed:
                    log.warning("topics that nobody uses can't be deleted; this is tried again: %s", error)
                failed = True

    async def sweep(self, now_ms: int) -> None:
        """Asks for uses of the topics whose time is nearly over, and deletes those whose time is over."""
        self._uses.refresh()
        self._note_starts(now_ms)
        await self._forget_ended()
        for topic in list(self._topics):
            record = self._services.directory.get(topic)
            max_ms = record.policy.milliseconds("max_idle")
            if max_ms is None:
                continue
            use = self._uses.of(topic)
            before_ms, seen_ms = self._seen.get(topic, (use.until_ms, 0))
            seen_ms = seen_ms if use.until_ms == before_ms else now_ms
            self._seen[topic] = use.until_ms, seen_ms
            over_ms = max(
                max(use.until_ms, seen_ms, record.changed_at_ms) + max_ms,
                self._back_ms + TOPICS_BACK_MS,
                self._not_before_ms.get(topic, 0),
            )
            if now_ms < over_ms - TOPIC_ASKED_MS:
                continue
            if use.asked_ms < over_ms - TOPIC_ASKED_MS:
                await self._ask(record, now_ms)
            elif now_ms >= max(over_ms, use.asked_ms + TOPIC_ASKED_MS):
                await self._try(record, now_ms)

    def _note_starts(self, now_ms: int) -> None:
        """Clients of a process that was started need time to return; so they do after a pause of this one."""
        map = self._services.shards.map
        members = (("frontend", map.frontends), ("gateway", map.gateways))
        processes = frozenset((role, each.id, each.boot) for role, all in members for each in all.values())
        is_paused = now_ms - self._swept_ms > TOPICS_PAUSE_MS
        if is_paused or not processes <= self._processes:
            self._back_ms = now_ms
        self._processes, self._swept_ms = processes, now_ms

    async def _forget_ended(self) -> None:
        """Deletes entries of topics that are no more, or have no max_idle any more."""
        for topic in self._uses.topics():
            if topic not in self._topics:
                guards = [Write(USES + topic, None, self._uses.of(topic).revision)]
                await self._write([*guards, *self._as_it_is(topic)])

    def _as_it_is(self, topic: str) -> list[Write]:
        return [unchanged(NAMES + topic, self._services.directory.stored_revision(topic))]

    async def _ask(self, record: Name, now_ms: int) -> None:
        """Enters into the entry of a topic that it is about to be deleted."""
        use = self._uses.of(record.name)
        value = use._replace(asked_ms=now_ms).encode()
        await self._write([Write(USES + record.name, value, use.revision), *self._as_it_is(record.name)])

    async def _write(self, writes: list[Write]) -> bool:
        """Makes one transaction; returns whether nobody has changed what it depends on."""
        try:
            await self._services.coordinator.write(writes)
        except ConflictError as conflict:
            log.debug("%s", conflict)
            return False
        finally:
            self._services.directory.refresh()
            self._uses.refresh()
        return True

    # --- deletion --------------------------------------------------------------------------------------

    async def _try(self, record: Name, now_ms: int) -> None:
        try:
            await self._delete(record)
        except UsedError as used:
            log.log(logging.DEBUG if used.over_ms else logging.INFO, "%s stays: %s", record.name, used)
            self._not_before_ms[record.name] = max(used.over_ms, now_ms + TOPIC_AGAIN_MS)

    async def _delete(self, record: Name) -> None:
        """Deletes a topic whose time is over as far as this process knows. Raises UsedError."""
        directory, use = self._services.directory, self._uses.of(record.name)
        queues = self._queues(record)
        # The revisions of this moment: whatever is changed from now on wins.
        guards = {NAMES + each.name: each.revision for each in deleting.deleted_with(directory, record)[1:]}
        guards |= {each.key: each.revision for each in directory.subscriptions(record.name)}
        guards[USES + record.name] = use.revision
        await self._ask_shards(record, queues, leaves=False)
        try:
            await self._ask_shards(record, queues, leaves=True)
            try:
                await self._services.namespace.drop_as_read(record, guards)
            except ChangedError as error:
                raise UsedError(f"somebody has used it, or a subscription, meanwhile: {error}") from None
        except (UsedError, CoordinatorError):
            await self._services.namespace.keep(record)
            raise
        log.info(
            "topic %s is deleted, with %d queues: nobody has used it for its max_idle, %g seconds",
            *(record.name, len(queues), record.policy["max_idle"]),
        )

    def _queues(self, record: Name) -> dict[str, int]:
        """The queues that are deleted with a topic, each with the latest revision of its name and of the
        subscription whose own queue it is. Raises UsedError: a subscription passes messages on."""
        directory = self._services.directory
        names = deleting.deleted_with(directory, record)
        found = {each.name: each.revision for each in names if each.role is Role.QUEUE}
        for each in directory.subscriptions(record.name):
            if each.push or each.target not in found:
                over_ms = self._services.now_ms() + (record.policy.milliseconds("max_idle") or 0)
                raise UsedError(f"its subscription {each.id} passes messages on to {each.target}", over_ms)
            if deleting.has_own_queue(each):
                found[each.target] = max(found[each.target], each.revision)
        return found

    async def _ask_shards(self, record: Name, queues: Mapping[str, int], *, leaves: bool) -> None:
        """Asks the shards of queues when their time is over, or lets them leave. Raises UsedError.

        Args:
            queues: with the revisions that guard the deletion, of their names or subscriptions.
        """
        fields = {"topic": record.name, "revision": record.revision, "leaves": leaves}
        for first in range(0, len(queues), limits.QUEUES_SHOWN_MAX):
            part = list(queues)[first : first + limits.QUEUES_SHOWN_MAX]
            asked = (self._ask_shard(each, fields | {"known": queues[each]}) for each in part)
            for queue, over_ms in zip(part, await asyncio.gather(*asked), strict=True):
                if over_ms > self._services.now_ms():
                    raise UsedError(f"somebody has used {queue}", over_ms)

    async def _ask_shard(self, queue: str, fields: dict[str, Any]) -> int:
        """When the time of a queue is over; 0 if it leaves. Raises UsedError."""
        try:
            answer = await self._services.shards.request(queue, "leave", {"queue": queue, **fields})
        except (ShardDownError, ShardRefusedError, CoordinatorError) as error:
            raise UsedError(f"whether {queue} is in use is not known: {error}") from None
        over_ms = int(answer.fields.get("over_ms", 0))
        if fields["leaves"] and not answer.fields.get("leaves"):
            # Its time may be over by the clock of this machine, and not by that of the shard.
            raise UsedError(f"somebody has used {queue}", over_ms)
        return over_ms
