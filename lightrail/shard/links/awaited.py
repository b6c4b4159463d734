"""Awaited consumers: those that keep their unsettled deliveries until a link takes them over.

Either the queue moved here, and the link has not been opened here yet: a frontend that opens it again with
`resume` takes its consumer over; one that only settles, or closes, finds it as well. That is awaited for
limits.PEER_SILENCE_MS. Or the client's link has ended and may be resumed (transport 2.6.13): then the
consumer is suspended, and the client's next attach takes it over, at any frontend. It is found by the digits
of the client's link, and awaited for as long as the client asked for.

A consumer that no link takes over in time is released. Only those of durable links are in the store
(durable_receivers.py), and are suspended after a restart.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from lightrail.model import limits
from lightrail.model.ending import Ending
from lightrail.model.timetable import Timetable
from lightrail.shard.effects.outcomes import outcome_in
from lightrail.shard.effects.peers import Consumer, Peer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.links.last_consumers import LastConsumers
from lightrail.shard.queue.values import commands
from lightrail.shard.queues.shard_queue import Queue
from lightrail.shard.queues.user_shares import UserShares
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import ENDING, FOR_GOOD, HEADER, Kind

Key = tuple[int, int]
"""Boot of the frontend, number of the link."""


class Origin(NamedTuple):
    """The link of an awaited consumer at the queue's former owner."""

    boot: int
    """Of the frontend."""
    link: int
    opened: ConsumerOpen
    has_ended: bool = False
    """No frame of the link can come any more; its client may resume it."""


class AwaitedConsumer:
    """A consumer of a queue's machine that has no link here."""

    __slots__ = ("client_link", "ending", "id", "key", "queue", "suspended", "user")

    def __init__(self, key: Key, queue: Queue, id: int) -> None:
        self.key = key
        self.queue = queue
        self.id = id
        """In the queue's machine."""
        self.client_link = ""
        """Digits of the client's link, if its client may resume or steal it."""
        self.suspended: int | None = None
        """Where the client's link has ended: its unsettled deliveries by then."""
        self.user = ""
        """While it is suspended: the user towards whose share it counts."""
        self.ending = Ending.BY_BROKER
        """How its link ended, as far as this shard knows: with a frontend or a move by the broker."""


class AwaitedConsumers:
    """Awaited consumers by link, and the frames of links whose queue is about to be opened."""

    __slots__ = (
        "_by_client_link",
        "_by_key",
        "_by_queue",
        "_due",
        "_expected",
        "_last_consumers",
        "_performer",
        "_suspended",
        "_suspended_deliveries",
        "_suspended_links",
        "adopted",
        "ended",
    )

    def __init__(self, performer: Performer, last_consumers: LastConsumers) -> None:
        self._performer = performer
        self._last_consumers = last_consumers
        self._by_key: dict[Key, AwaitedConsumer] = {}
        self._by_queue: dict[Queue, dict[AwaitedConsumer, None]] = {}
        self._due: Timetable[AwaitedConsumer] = Timetable()
        """When each is released."""
        self._by_client_link: dict[tuple[Queue, str], AwaitedConsumer] = {}
        self._suspended: dict[str, dict[AwaitedConsumer, None]] = {}
        """By user, the longest suspended first."""
        self._suspended_links = UserShares()
        self._suspended_deliveries = UserShares()
        """Their unsettled deliveries, as counted when they were suspended."""
        self._expected: dict[Key, list[bytes]] = {}
        self.ended: Callable[[Queue, int], None] = lambda _queue, _id: None
        """Called when an awaited consumer, of this number in the queue's machine, has ended."""
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
            found = AwaitedConsumer(key, queue, id)
            self._add(found)
            self._due.set(found, now_ms + limits.PEER_SILENCE_MS)
            for part in self._expected.pop(key, ()):
                self._said(key, part, now_ms)

    def restored(self, queue: Queue, id: int, opened: ConsumerOpen, now_ms: int) -> None:
        """Suspends a consumer that the store has and the queue's machine; its time begins anew."""
        key = key_of(opened)
        self.adopted[id] = Origin(*key, opened, has_ended=True)
        self._performer.apply(queue, commands.Suspend(id), now_ms)
        if queue.is_frozen:
            # It is awaited when the queue is served again, or moves with it.
            return
        found = AwaitedConsumer(key, queue, id)
        self._add(found)
        if not self._suspend(found, now_ms):
            self._detach(found, now_ms, lost=False)

    # --- they are suspended ----------------------------------------------------------------------------

    def suspend(self, consumer: Consumer, now_ms: int, ending: Ending) -> bool:
        """The link of a consumer, which is still in its machine, has ended.

        Returns:
            False where the client may not resume it, or nothing is unsettled: then the caller detaches it.
        """
        opened = consumer.opened
        if opened is None or not opened.suspended_ms or not opened.client_link:
            return False
        key = (consumer.peer.boot, consumer.link)
        self.release_client_link(consumer.queue, opened.client_link, now_ms)
        self.adopted[consumer.id] = Origin(*key, opened, has_ended=True)
        found = AwaitedConsumer(key, consumer.queue, consumer.id)
        found.ending = ending
        self._add(found)
        if self._suspend(found, now_ms):
            return True
        self._drop(found)
        return False

    def _suspend(self, found: AwaitedConsumer, now_ms: int) -> bool:
        """Begins the time of a client's link; False where it can't be resumed, or has nothing unsettled."""
        origin = self.adopted.get(found.id)
        attached = found.queue.view.consumer(found.id)
        if origin is None or attached is None or not origin.opened.suspended_ms:
            return False
        line = attached.in_flight
        count = sum(run.count for run in line.runs[line.head :])
        if not 0 < count <= limits.SUSPENDED_DELIVERIES_MAX:
            return False
        self.adopted[found.id] = origin._replace(has_ended=True)
        self._due.set(found, now_ms + origin.opened.suspended_ms)
        user = found.user = origin.opened.user
        found.suspended = count
        self._suspended.setdefault(user, {})[found] = None
        self._suspended_links.add(user, 1)
        self._suspended_deliveries.add(user, count)
        self._performer.apply(found.queue, commands.Suspend(found.id), now_ms)
        while not (
            self._suspended_links.has_room(user, limits.SUSPENDED_CONSUMERS_MAX)
            and self._suspended_deliveries.has_room(user, limits.SUSPENDED_DELIVERIES_SUM_MAX)
        ):
            longest = next(iter(self._suspended[user]))
            self.release(longest, now_ms)
            if longest is found:
                break
        return True

    def _add(self, found: AwaitedConsumer) -> None:
        self._by_key[found.key] = found
        self._by_queue.setdefault(found.queue, {})[found] = None
        origin = self.adopted.get(found.id)
        if origin is not None and origin.opened.client_link:
            found.client_link = origin.opened.client_link
            self._by_client_link[found.queue, found.client_link] = found

    def _drop(self, found: AwaitedConsumer) -> None:
        """It is awaited no longer."""
        self._remove(found)
        self.adopted.pop(found.id, None)

    def _remove(self, found: AwaitedConsumer) -> None:
        """Removes it, and leaves its origin."""
        if self._by_key.get(found.key) is found:
            del self._by_key[found.key]
        others = self._by_queue.get(found.queue)
        if others is not None:
            others.pop(found, None)
            if not others:
                del self._by_queue[found.queue]
        name = (found.queue, found.client_link)
        if self._by_client_link.get(name) is found:
            del self._by_client_link[name]
        self._due.drop(found)
        self._end_suspension(found)

    def _end_suspension(self, found: AwaitedConsumer) -> None:
        if found.suspended is not None:
            self._suspended_links.add(found.user, -1)
            self._suspended_deliveries.add(found.user, -found.suspended)
            found.suspended = None
            of_user = self._suspended[found.user]
            del of_user[found]
            if not of_user:
                del self._suspended[found.user]

    # --- their links -----------------------------------------------------------------------------------

    def take(
        self, peer: Peer, link: int, queue: Queue, opening: ConsumerOpen, now_ms: int
    ) -> AwaitedConsumer | None:
        """Takes out the consumer of a link that is opened again with `resume`, if it goes on where it was.

        Another one of this link is released.
        """
        found = self._by_key.get((peer.boot, link))
        if found is None:
            return None
        attached = found.queue.view.consumer(found.id)
        if opening.resume and found.queue is queue and attached and attached.next == opening.first:
            self._drop(found)
            return found
        self.release(found, now_ms)
        return None

    def moved_here(self, queue: Queue, client_link: str, but: Key) -> AwaitedConsumer | None:
        """The consumer of a client's link whose queue moved here, and that is to be opened or closed here.

        Args:
            but: a link that is not searched for.
        """
        found = self._by_client_link.get((queue, client_link))
        if found is None or found.key == but or self.adopted[found.id].has_ended:
            return None
        return found

    def take_client_link(self, queue: Queue, opening: ConsumerOpen, now_ms: int) -> AwaitedConsumer | None:
        """Takes out the consumer of a client's link that the client resumes.

        One that can't go on, as the client does not know its deliveries or asks for others by its source, is
        released.
        """
        found = self._by_client_link.get((queue, opening.client_link))
        if found is None:
            return None
        former = self.adopted[found.id].opened
        attached = queue.view.consumer(found.id)
        resumes = opening.suspended_ms is not None and former.suspended_ms is not None
        if not (resumes and opening.recovers and attached and _asks_the_same(opening, former)):
            self.release(found, now_ms, is_given_up=not opening.recovers)
            return None
        opening.terminus = former.terminus
        self._drop(found)
        return found

    def adopt(
        self, found: AwaitedConsumer, peer: Peer, link: int, opened: ConsumerOpen, now_ms: int
    ) -> Consumer:
        """Hands an awaited consumer, which was taken out, to its link."""
        consumer = Consumer(peer, link, found.queue, found.id, opened.label, now_ms, opened)
        self._performer.consumers[found.id] = consumer
        peer.consumers[link] = consumer
        self._performer.apply(found.queue, commands.Resume(found.id), now_ms)
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
        kind, flags, _, _, _, count, number = HEADER.unpack_from(part)
        if kind == Kind.CONSUMER_CLOSE:
            found.ending = Ending(flags & ENDING)
            is_over = bool(flags & FOR_GOOD)
            if found.suspended is None and (is_over or not self._suspend(found, now_ms)):
                self._detach(found, now_ms, lost=False)
        else:
            settled = commands.Settle(found.id, number, number + count, outcome_in(part, flags))
            self._performer.apply(found.queue, settled, now_ms)

    # --- they go ---------------------------------------------------------------------------------------

    def release(self, found: AwaitedConsumer, now_ms: int, *, is_given_up: bool = False) -> None:
        """Returns the deliveries of a consumer that no link took over, as its link ended.

        Deliveries that it locked under a key stay locked.

        Args:
            is_given_up: whether the client has no state of them: then an end in order remains one. Otherwise
                it may have worked on them since, to settle them when it resumes the link.
        """
        if found.ending is Ending.BY_CLIENT and not is_given_up:
            found.ending = Ending.BY_BROKER
        self._detach(found, now_ms, lost=True)

    def release_client_link(
        self, queue: Queue, client_link: str, now_ms: int, *, is_given_up: bool = False
    ) -> None:
        """Releases the consumer of a client's link that the client has attached on another connection."""
        found = self._by_client_link.get((queue, client_link))
        if found is not None:
            self.release(found, now_ms, is_given_up=is_given_up)

    def of(self, queue: Queue) -> dict[Key, int]:
        """The numbers of the awaited consumers of a queue in its machine."""
        return {each.key: each.id for each in self._by_queue.get(queue, ())}

    def forget(self, queue: Queue) -> None:
        """The queue is not here any more, or is about to move; its origins stay in `adopted`."""
        for found in [*self._by_queue.get(queue, ())]:
            self._remove(found)

    def tick(self, now_ms: int) -> None:
        """Releases consumers that no link took over in time; those that moved here may be suspended then."""
        for each in self._due.take_due(now_ms):
            if not each.queue.is_serving:
                self._due.set(each, now_ms)
            elif each.suspended is not None or not self._suspend(each, now_ms):
                self.release(each, now_ms)

    def _detach(self, found: AwaitedConsumer, now_ms: int, *, lost: bool) -> None:
        self._drop(found)
        self._performer.detach(found.queue, found.id, found.ending, now_ms)
        self.ended(found.queue, found.id)
        self._last_consumers.left(found.queue, now_ms, lost=lost)


def key_of(opened: ConsumerOpen) -> Key:
    """The frontend's link that was the first one of a client's link, for a consumer without a later one."""
    return opened.terminus >> 32, opened.terminus & 0xFFFF_FFFF


def _asks_the_same(one: ConsumerOpen, other: ConsumerOpen) -> bool:
    """Whether two attaches of a link ask for the same messages, and the same of them."""
    return _asked(one) == _asked(other)


def _asked(opened: ConsumerOpen) -> tuple[object, ...]:
    return (
        opened.browse,
        opened.presettled,
        opened.exclusive,
        opened.priority,
        opened.default_outcome,
        opened.default_failed,
        opened.default_undeliverable,
        opened.lock_ms,
        opened.lock_key,
        opened.filter,
    )
