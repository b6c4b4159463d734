"""Sealing: a queue of this shard that another one is about to own stops at one frame, and may be given back.

What is sealed stays as it is: nothing comes in, nothing is delivered, settled, released or expires, and who
held something still holds it. Links are told to look elsewhere; what consumers say all the same comes back to
them as BOUNCED. A queue is sealed until its placement names another epoch (docs/adr/0010-moving-queues.md).
"""

import logging
from collections.abc import Callable

from lightrail.model import conditions, limits
from lightrail.model import names as rules
from lightrail.shard.journal.store import StoreError
from lightrail.shard.links import Links
from lightrail.shard.moving.awaited import AwaitedConsumers
from lightrail.shard.moving.tenancy import moved
from lightrail.shard.peers import Peer
from lightrail.shard.performer import Performer
from lightrail.shard.queue import commands
from lightrail.shard.queues import Queue, Queues
from lightrail.shard.reading import Read
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import Refusal, encode_request
from lightrail.wire.frames import HEADER, Kind, frame

log = logging.getLogger("lightrail.shard.moving.sealing")


class Sealed:
    """A queue that is sealed."""

    __slots__ = ("again_ms", "asked", "queue", "reads")

    def __init__(self, queue: Queue, now_ms: int) -> None:
        self.queue = queue
        self.again_ms = now_ms + limits.MOVE_SEALED_MS
        """When this shard asks for it back (again)."""
        self.asked = False
        self.reads: list[Read] = []
        """What came from disk since: it waits, for nothing changes."""


class Sealing:
    """The queues of this shard that are sealed."""

    __slots__ = (
        "_awaited",
        "_away",
        "_by_queue",
        "_counts",
        "_links",
        "_performer",
        "_queues",
        "wish_back",
    )

    def __init__(
        self,
        queues: Queues,
        performer: Performer,
        links: Links,
        awaited: AwaitedConsumers,
        counts: ShardCounts,
    ) -> None:
        self._queues = queues
        self._performer = performer
        self._links = links
        self._awaited = awaited
        self._counts = counts
        self.wish_back: Callable[[str], None] = lambda _: None
        """Asks for a queue to be given back, which nobody has taken for limits.MOVE_SEALED_MS."""
        self._by_queue: dict[Queue, Sealed] = {}
        self._away: dict[tuple[int, int], tuple[str, int]] = {}
        """Queue and epoch of consumers that nobody had taken over yet when they went on, by their link."""

    # --- sealing ---------------------------------------------------------------------------------------

    def seal(self, name: str, epoch: int, now_ms: int) -> list[Queue] | Refusal:
        """Seals a queue and its dead-letter queue, where it has one.

        Once more in the same epoch changes nothing. The answer may leave when what was written is on disk.

        Returns:
            The queues; a refusal where this shard does not own the queue in that epoch, or can't now.
        """
        queue = self._queues.find(name)
        if queue is not None and queue.sealed and queue.epoch == epoch:
            return self._family(name)
        opened = self._queues.open(name, now_ms, epoch)
        if isinstance(opened, Refusal):
            return opened
        if not opened.served:
            return moved(f"{name} is not served here")
        queues = self._family(name)
        if any(source in queues for source, _ in self._performer.unwritten):
            self._performer.write_again(now_ms)
            if any(source in queues for source, _ in self._performer.unwritten):
                return Refusal(
                    conditions.RESOURCE_LIMIT_EXCEEDED,
                    f"dead letters of {name} wait for room on the disk; it is sealed when they have it",
                )
            queues = self._family(name)
        if any(queue.machine.returning for queue in queues):
            return Refusal(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"what a lost frontend held of {name} comes back to it; it is sealed when all of it is there",
            )
        if any(self._performer.leaving.has(queue) for queue in queues):
            return Refusal(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"a purge of {name} is under way; it is sealed when that is written",
            )
        if any(len(each.machine.deferred) for each in queues):
            return Refusal(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"messages of {name} are read from disk for their outcomes; it is sealed after that",
            )
        return self._write(queues, now_ms) or self._stop(queues, now_ms)

    def _family(self, name: str) -> list[Queue]:
        names = dict.fromkeys((name, rules.dead_letter_name(name)))
        return [queue for queue in map(self._queues.find, names) if queue is not None]

    def _write(self, queues: list[Queue], now_ms: int) -> Refusal | None:
        for queue in queues:
            # What left the queue in this step is before the seal.
            self._performer.journal_removed(queue, now_ms)
        for queue in queues:
            queue.sealed = True
            try:
                self._queues.note(queue, now_ms)
            except StoreError as error:
                for each in queues:
                    each.sealed = False
                return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, f"the seal can't be written: {error}")
        return None

    def _stop(self, queues: list[Queue], now_ms: int) -> list[Queue]:
        for queue in queues:
            queue.served = False
            self._by_queue[queue] = Sealed(queue, now_ms)
            for key in self._awaited.of(queue):
                self._away[key] = (queue.name, queue.epoch)
                if len(self._away) > limits.MOVED_LINKS_MAX:
                    del self._away[next(iter(self._away))]
            self._awaited.forget(queue)
            self._links.send_away(queue)
            self._performer.touched.pop(queue, None)
        self._counted()
        return queues

    def restored(self, queue: Queue, now_ms: int) -> None:
        """A queue that was sealed when this process started; its consumers have gone."""
        queue.sealed = True
        self._by_queue[queue] = Sealed(queue, now_ms)
        self._counted()

    # --- meanwhile -------------------------------------------------------------------------------------

    def bounce(self, peer: Peer, part: bytes) -> None:
        """A SETTLE or CONSUMER_CLOSE for a consumer that was sent away comes back; nobody would repeat it."""
        link = HEADER.unpack_from(part)[4]
        known = (peer.moved.get(link), self._away.get((peer.boot, link)))
        away = [each for each in known if each is not None]
        if away:
            queue, epoch = max(away, key=lambda each: each[1])
            body = encode_request({"queue": queue, "epoch": epoch}, part)
            peer.out.append(frame(Kind.BOUNCED, epoch=epoch, link=link, body=body))

    def read_ended(self, queue: Queue, read: Read) -> bool:
        """Messages came from disk; they wait where the queue is sealed."""
        sealed = self._by_queue.get(queue)
        if sealed is not None:
            sealed.reads.append(read)
        return sealed is not None

    def tick(self, now_ms: int) -> None:
        """Time has passed: what nobody took for long is asked for back."""
        for queue, sealed in self._by_queue.items():
            if sealed.again_ms <= now_ms and not rules.is_dead_letter(queue.name):
                if not sealed.asked:
                    log.warning("queue %s is sealed, and nobody took it: it is asked for back", queue.name)
                sealed.asked = True
                sealed.again_ms = now_ms + limits.MOVE_AGAIN_MS_MAX
                self.wish_back(queue.name)

    # --- the end ---------------------------------------------------------------------------------------

    def given_back(self, queue: Queue, now_ms: int) -> list[Read]:
        """The placement names this shard in another epoch: the queue goes on, its consumers are awaited.

        Returns:
            What came from disk meanwhile, which the caller gives to the machine.
        """
        sealed = self._by_queue.pop(queue)
        queue.sealed = False
        self._counted()
        self._links.await_sent_away(queue)
        keys: dict[tuple[int, int], int] = {}
        for id in queue.machine.consumers.by_id:
            queue.machine.apply(commands.Credit(id, 0), now_ms)
            origin = self._links.adopted.get(id)
            if origin is not None:
                keys[origin.boot, origin.link] = id
        queue.served = True
        self._awaited.opened(queue, keys, now_ms)
        return sealed.reads

    def left(self, queue: Queue) -> None:
        """Another shard owns the queue, and has all of it."""
        if not rules.is_dead_letter(queue.name):
            self._counts.moves_out += 1

    def gone(self, queue: Queue) -> None:
        """The queue is not here any more."""
        if self._by_queue.pop(queue, None) is not None:
            self._links.forget_sent_away(queue)
            self._counted()

    def _counted(self) -> None:
        self._counts.queues_sealed = len(self._by_queue)
