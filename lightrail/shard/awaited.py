"""Awaited consumers: those of a queue that moved here whose link has not been opened here yet.

An awaited consumer keeps its unsettled deliveries and receives no new ones. A frontend that opens the link
again with `resume` takes its consumer over; one that only settles, or closes, finds it as well. A consumer
that no link has taken over after limits.PEER_SILENCE_MS is released.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from lightrail.model import limits
from lightrail.shard.last_consumers import LastConsumers
from lightrail.shard.outcomes import outcome_in
from lightrail.shard.peers import Consumer, Peer
from lightrail.shard.performer import Performer
from lightrail.shard.queue import commands
from lightrail.shard.shard_queue import Queue
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import HEADER, Kind

EVERYTHING: Final = 1 << 62
"""Beyond every delivery number."""

Key = tuple[int, int]
"""Boot of the frontend, number of the link."""


class Origin(NamedTuple):
    """The link of an awaited consumer at the queue's former owner."""

    boot: int
    """Of the frontend."""
    link: int
    opened: ConsumerOpen


class AwaitedConsumer:
    """A consumer of a queue's machine that has no link here."""

    __slots__ = ("id", "key", "queue", "until_ms")

    def __init__(self, key: Key, queue: Queue, id: int, until_ms: int) -> None:
        self.key = key
        self.queue = queue
        self.id = id
        """In the queue's machine."""
        self.until_ms = until_ms
        """When it is released."""


class AwaitedConsumers:
    """Awaited consumers by link, and the frames of links whose queue is about to be opened."""

    __slots__ = ("_by_key", "_expected", "_last_consumers", "_performer", "adopted")

    def __init__(self, performer: Performer, last_consumers: LastConsumers) -> None:
        self._performer = performer
        self._last_consumers = last_consumers
        self._by_key: dict[Key, AwaitedConsumer] = {}
        self._expected: dict[Key, list[bytes]] = {}
        self.adopted: dict[int, Origin] = {}
        """Origins of awaited consumers, by their number in the machine."""

    def __len__(self) -> int:
        return len(self._by_key)

    # --- they come -------------------------------------------------------------------------------------

    def expect(self, keys: Iterable[Key]) -> None:
        """Keeps frames of these links until their queue, which is nearly copied, is opened."""
        for key in keys:
            self._expected.setdefault(key, [])

    def unexpect(self, keys: Iterable[Key]) -> None:
        """Forgets these links, as their queue is not opened."""
        for key in keys:
            self._expected.pop(key, None)

    def opened(self, queue: Queue, consumers: Mapping[Key, int], now_ms: int) -> None:
        """The queue is served here, with these numbers of consumers in its machine."""
        for key, id in consumers.items():
            self._by_key[key] = AwaitedConsumer(key, queue, id, now_ms + limits.PEER_SILENCE_MS)
            for part in self._expected.pop(key, ()):
                self._said(key, part, now_ms)

    # --- their links -----------------------------------------------------------------------------------

    def take(self, peer: Peer, link: int) -> AwaitedConsumer | None:
        """A link is opened that may have a consumer here; it is awaited no longer."""
        return self._by_key.pop((peer.boot, link), None)

    def adopt(
        self, found: AwaitedConsumer, peer: Peer, link: int, opened: ConsumerOpen, now_ms: int
    ) -> Consumer:
        """Hands an awaited consumer to its link."""
        consumer = Consumer(peer, link, found.queue, found.id, opened.label, now_ms, opened)
        self._performer.consumers[found.id] = consumer
        peer.consumers[link] = consumer
        return consumer

    def said(self, peer: Peer, part: bytes, now_ms: int) -> bool:
        """A SETTLE or CONSUMER_CLOSE for a link that has no consumer here; False where none is awaited."""
        key = (peer.boot, HEADER.unpack_from(part)[4])
        if key in self._by_key:
            self._said(key, part, now_ms)
            return True
        frames = self._expected.get(key)
        if frames is not None and len(frames) < limits.MOVE_HELD_FRAMES_MAX:
            frames.append(part)
        return frames is not None

    def _said(self, key: Key, part: bytes, now_ms: int) -> None:
        found = self._by_key.get(key)
        if found is None:
            return
        kind, code, _, _, _, count, number = HEADER.unpack_from(part)
        if kind == Kind.CONSUMER_CLOSE:
            del self._by_key[key]
            self._detach(found, now_ms, lost=False)
        else:
            settled = commands.Settle(found.id, number, number + count, outcome_in(part, code))
            self._apply(found.queue, settled, now_ms)

    # --- they go ---------------------------------------------------------------------------------------

    def release(self, found: AwaitedConsumer, now_ms: int) -> None:
        """Releases the deliveries of a consumer that no link took over.

        Deliveries that it locked under a key stay locked.
        """
        self._by_key.pop(found.key, None)
        attached = found.queue.machine.contents.consumers.by_id.get(found.id)
        if attached is not None and not attached.options.lock_key:
            if len(attached.in_flight):
                found.queue.holder_lost()
            self._apply(found.queue, commands.Settle(found.id, 0, EVERYTHING, commands.RELEASED), now_ms)
        self._detach(found, now_ms, lost=True)

    def release_client_link(self, queue: Queue, client_link: str, now_ms: int) -> None:
        """Releases the consumer of a client's link that the client has attached on another connection."""
        for key, id in self.of(queue).items():
            origin = self.adopted.get(id)
            if origin is not None and origin.opened.client_link == client_link:
                self.release(self._by_key[key], now_ms)

    def of(self, queue: Queue) -> dict[Key, int]:
        """The numbers of the awaited consumers of a queue in its machine."""
        return {key: each.id for key, each in self._by_key.items() if each.queue is queue}

    def forget(self, queue: Queue) -> None:
        """The queue is not here any more."""
        if self._by_key:
            self._by_key = {key: each for key, each in self._by_key.items() if each.queue is not queue}

    def tick(self, now_ms: int) -> None:
        """Releases consumers that no link took over in time."""
        for each in [each for each in self._by_key.values() if each.until_ms <= now_ms]:
            if each.queue.is_serving:
                self.release(each, now_ms)

    def _detach(self, found: AwaitedConsumer, now_ms: int, *, lost: bool) -> None:
        self.adopted.pop(found.id, None)
        self._apply(found.queue, commands.Detach(found.id), now_ms)
        self._last_consumers.left(found.queue, now_ms, lost=lost)

    def _apply(self, queue: Queue, command: commands.Command, now_ms: int) -> None:
        self._performer.perform(queue, queue.machine.apply(command, now_ms), now_ms)
        self._performer.touched[queue] = None
