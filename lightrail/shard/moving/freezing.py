"""Freezing: a queue of this shard stops between two frames, because another shard is about to own it.

A frozen queue does not change: no message is stored, delivered, settled, released or expired, and consumers
keep their unsettled deliveries. Links get MOVED and look for the owner; a settlement that a consumer sends
nevertheless is returned as BOUNCED. A queue is frozen until its placement names a later epoch
(docs/adr/0010-moving-queues.md): of another shard, or of this one, which then thaws the queue.
"""

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.model import conditions, limits
from lightrail.model import names as rules
from lightrail.shard.effects.actions import Read
from lightrail.shard.effects.peers import Peer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.journal.store import StoreError
from lightrail.shard.queue.values import commands
from lightrail.shard.queues.ownership import OwnershipEvent
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Queue
from lightrail.shard.queues.tenancy import moved
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import Refusal, encode_request
from lightrail.wire.frames import HEADER, Kind, Part, frame

if TYPE_CHECKING:
    from lightrail.shard.links.links import Links

MOVE_FROZEN_MS: Final[int] = 10_000
"""Time after which the source of a frozen queue tries to win it back."""

log = logging.getLogger("lightrail.shard.moving.freezing")


class Frozen:
    """A queue that is frozen."""

    __slots__ = ("again_ms", "asked", "queue", "reads")

    def __init__(self, queue: Queue, now_ms: int) -> None:
        self.queue = queue
        self.again_ms = now_ms + MOVE_FROZEN_MS
        """Time of the next attempt of this shard to take the queue back."""
        self.asked = False
        self.reads: list[Read] = []
        """Messages that were read from disk since the freeze; they wait because the queue must not change."""


@dataclass(slots=True, eq=False, repr=False)
class Freezing:
    """The queues of this shard that are frozen."""

    _queues: Queues
    _performer: Performer
    _links: "Links"
    _counts: ShardCounts
    wanted: list[str] = field(default_factory=list)
    """Queues to take back, because their move did not complete within MOVE_FROZEN_MS."""
    _by_queue: dict[Queue, Frozen] = field(default_factory=dict)
    _were_awaited: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    """Queue and epoch of consumers that were awaited at the freeze of their queue, by their link."""

    # --- freezing --------------------------------------------------------------------------------------

    def freeze(self, name: str, epoch: int, now_ms: int) -> list[Queue] | Refusal:
        """Freezes a queue and its dead-letter queue, if it has one.

        A repeated call in the same epoch changes nothing. The answer may be sent when the records are on
        disk.

        Returns:
            The queues; a refusal if this shard does not own the queue in that epoch, or can't freeze it now.
        """
        queue = self._queues.find(name)
        if queue is not None and queue.is_frozen and queue.epoch == epoch:
            return self._family(name)
        opened = self._queues.open(name, now_ms, epoch)
        if isinstance(opened, Refusal):
            return opened
        if not opened.is_serving:
            return moved(f"{name} is not served at this shard")
        queues = self._family(name)
        dead_letters = self._performer.dead_letters
        if any(source in queues for source, _ in dead_letters.unwritten):
            dead_letters.write_again(now_ms)
            queues = self._family(name)
        is_unwritten = any(source in queues for source, _ in dead_letters.unwritten)
        is_returning = any(each.view.is_returning for each in queues)
        is_deferring = any(each.view.deferring for each in queues)
        for waits, why in (
            (is_unwritten, f"dead letters of {name} wait for room on the disk"),
            (is_returning, f"deliveries of {name} to a lost frontend are being released"),
            (any(map(self._performer.leaving.has, queues)), f"a purge of {name} is under way"),
            (any(each.promised for each in queues), f"a transaction with messages of {name} is not decided"),
            (is_deferring, f"messages of {name} are read from disk for their outcomes"),
        ):
            if waits:
                return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, f"{why}; it can be frozen after that")
        return self._write(queues, now_ms) or self._stop(queues, now_ms)

    def _family(self, name: str) -> list[Queue]:
        names = dict.fromkeys((name, rules.dead_letter_name(name)))
        return [queue for queue in map(self._queues.find, names) if queue is not None]

    def _write(self, queues: list[Queue], now_ms: int) -> Refusal | None:
        for queue in queues:
            # Settlements of this step are appended before the queue is frozen.
            self._performer.journal_removed(queue, now_ms)
        for queue in queues:
            try:
                self._queues.note_frozen(queue, now_ms)
            except StoreError as error:
                why = f"the record of the freeze of {queue.name} can't be written: {error}"
                return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, why)
        return None

    def _stop(self, queues: list[Queue], now_ms: int) -> list[Queue]:
        for queue in queues:
            queue.ownership.apply(OwnershipEvent.FREEZE)
            self._by_queue[queue] = Frozen(queue, now_ms)
            for found in self._links.receiving.of(queue):
                if found.is_waiting:
                    self._were_awaited[found.key] = (queue.name, queue.epoch)
                if len(self._were_awaited) > limits.MOVED_LINKS_MAX:
                    del self._were_awaited[next(iter(self._were_awaited))]
            self._links.send_away(queue)
            self._performer.cancel_dispatch(queue)
        self._counted()
        return queues

    def restored(self, queue: Queue, now_ms: int) -> None:
        """Adds a queue that was frozen before this process started. It has no consumers."""
        self._by_queue[queue] = Frozen(queue, now_ms)
        self._counted()

    # --- meanwhile -------------------------------------------------------------------------------------

    def bounce(self, peer: Peer, part: Part) -> None:
        """Returns a SETTLE or CONSUMER_CLOSE to its frontend, because the consumer's queue moved."""
        link = HEADER.unpack_from(part)[4]
        known = (peer.moved.get(link), self._were_awaited.get((peer.boot, link)))
        away = [each for each in known if each is not None]
        if away:
            queue, epoch = max(away, key=lambda each: each[1])
            body = encode_request({"queue": queue, "epoch": epoch}, part)
            peer.out.append(frame(Kind.BOUNCED, epoch=epoch, link=link, body=body))

    def read_ended(self, queue: Queue, read: Read) -> bool:
        """Keeps messages that were read from disk if the queue is frozen; returns whether it is."""
        frozen = self._by_queue.get(queue)
        if frozen is not None:
            frozen.reads.append(read)
        return frozen is not None

    def tick(self, now_ms: int) -> None:
        """Requests queues back that have been frozen for too long."""
        for queue, frozen in self._by_queue.items():
            if frozen.again_ms <= now_ms and not rules.is_dead_letter(queue.name):
                if not frozen.asked:
                    log.warning(
                        "queue %s is frozen and its move did not complete: it is taken back", queue.name
                    )
                frozen.asked = True
                frozen.again_ms = now_ms + limits.MOVE_AGAIN_MS_MAX
                self.wanted.append(queue.name)

    def take_wanted(self) -> list[str]:
        """Removes and returns the queues to take back."""
        found, self.wanted = self.wanted, []
        return found

    # --- the end ---------------------------------------------------------------------------------------

    def thaw(self, queue: Queue, epoch: int, now_ms: int) -> list[Read]:
        """Serves a queue again whose placement names this shard in a later epoch. Its consumers are awaited.

        Returns:
            Messages that were read from disk meanwhile, for the queue's machine.
        """
        frozen = self._by_queue.pop(queue)
        self._counted()
        for id in queue.view.consumer_ids:
            queue.machine.apply(commands.Credit(id, 0), now_ms)
        queue.ownership.apply(OwnershipEvent.THAW, epoch)
        self._links.await_sent_away(queue, now_ms)
        return frozen.reads

    def left(self, queue: Queue) -> None:
        """Counts a queue that another shard now owns, with all of its messages."""
        if not rules.is_dead_letter(queue.name):
            self._counts.moves_out += 1

    def forget(self, queue: Queue) -> list[Read]:
        """Removes the freeze of a queue that is deleted here, or whose owner is unknown.

        Returns:
            Messages that were read from disk meanwhile, for the queue's machine.
        """
        frozen = self._by_queue.pop(queue, None)
        if frozen is None:
            return []
        self._links.forget_sent_away(queue)
        self._counted()
        return frozen.reads

    def _counted(self) -> None:
        self._counts.queues_frozen = len(self._by_queue)
