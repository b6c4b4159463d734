"""Home: where one queue is, as the links of this process see it, and what a link has in the place of a shard.

Links know their home, and the home knows the shard. When the queue moves, the shard says MOVED: the home
leaves it and says everything where the placement says that the queue is, or, as long as that says nothing
new, once more where it was. Nothing is lost meanwhile: batches without an answer are with their links, within
their credit; settlements and closes that no shard is there for wait in the home. Those are kept, too, until a
shard has taken a link of the queue: one that is not the owner (yet) passes over them. To say one twice is
harmless.

A consumer that goes on elsewhere holds what it held (`resumes`). Only where its shard was started again,
everything is back in the queue.
"""

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from lightrail.model import conditions, limits
from lightrail.wire.frames import Kind, frame
from lightrail.wire.messages import Answer, Refusal
from lightrail.wire.shards import Consumer, Producer, ShardAway, ShardPeer, ShardRefused, State

log = logging.getLogger("lightrail.wire.home")

KEPT: Final = frozenset({int(Kind.SETTLE), int(Kind.CONSUMER_CLOSE)})
"""Kinds of frames that nobody would say again."""

Place = tuple[int, int]
"""A shard and an epoch."""


class Places(Protocol):
    """What homes ask about placements and shards; none of it waits, but for `lost`."""

    def where(self, queue: str) -> Place | None:
        """Where a queue is, as far as this process knows."""
        ...

    async def place(self, queue: str) -> Place:
        """The same; a queue that is nowhere is placed. Raises CoordinatorError."""
        ...

    def peer(self, shard: int) -> ShardPeer | None:
        """The link to a shard, or None as long as nobody knows where that is."""
        ...

    def refresh(self) -> None:
        """Takes in what is new; changes are told to `Homes.changed` meanwhile."""
        ...

    async def lost(self, queue: str) -> Refusal | None:
        """Why a queue is nowhere, by the coordinator's own word; None where it is not, or can't be asked."""
        ...


class Registry(Protocol):
    """What a home needs of all homes."""

    places: Places
    now_ms: Callable[[], int]

    def bind(self, home: "Home", link: int) -> None:
        """A link is at a home from now on."""
        ...

    def unbind(self, link: int) -> None:
        """It is no longer."""
        ...

    def drop(self, home: "Home") -> None:
        """Nobody needs a home."""
        ...

    def wake(self, home: "Home") -> None:
        """A home waits for something: it is to be ticked."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs what has to wait."""
        ...

    async def request(
        self, queue: str, op: str, fields: dict[str, Any], blob: bytes = b"", *, wait_ms: int = 0
    ) -> Answer:
        """See Homes."""
        ...


class Home:
    """Where one queue is.

    `post` sends a frame to the shard; see ShardPeer.post for what is dropped.
    """

    __slots__ = (
        "_held",
        "_homes",
        "_pause_ms",
        "_probing",
        "away_since",
        "checked_at",
        "consumers",
        "due",
        "epoch",
        "given_up_at",
        "lacks_peer",
        "late_at",
        "peer",
        "post",
        "producers",
        "queue",
        "resumes",
        "shard",
        "taken",
    )

    def __init__(self, homes: Registry, queue: str, place: Place) -> None:
        self.queue = queue
        self.shard, self.epoch = place
        self.peer: ShardPeer | None = None
        """None while the queue is nowhere."""
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.taken = False
        """The shard has taken a link since we came or since it was there last: it owns the queue."""
        self.resumes = False
        """Consumers that are opened now hold what they held before."""
        self.post: Callable[[bytes], None] = self._keep
        self.away_since: int | None = None
        """Since when no shard has had the queue for us, or None."""
        self.given_up_at = 0
        self.checked_at = 0
        self.due: int | None = None
        """When everything is said again at a shard that did not have the queue."""
        self.lacks_peer = False
        """Where the shard is has to be heard yet."""
        self.late_at: int | None = None
        """When the shard is left that has not said MOVED."""
        self._homes = homes
        self._held: dict[bytes, None] = {}
        self._pause_ms = limits.HOME_RETRY_MS
        self._probing = False

    # --- links -----------------------------------------------------------------------------------------

    @property
    def is_there(self) -> bool:
        """Whether a shard is there that is, or may be, the owner."""
        return self.peer is not None and self.peer.state is State.SERVING

    @property
    def is_nowhere(self) -> bool:
        """Whether no shard is known that may be the owner."""
        return self.peer is None

    def open_producer(self, producer: Producer) -> None:
        self._homes.bind(self, producer.number)
        self.producers[producer.number] = producer
        if self.peer is not None:
            self.peer.open_producer(producer)

    def open_consumer(self, consumer: Consumer) -> None:
        self._homes.bind(self, consumer.number)
        self.consumers[consumer.number] = consumer
        if self.peer is not None:
            self.peer.open_consumer(consumer)

    def close_producer(self, number: int) -> None:
        if self.producers.pop(number, None) is not None:
            if self.peer is not None:
                self.peer.close_producer(number)
            self._unbound(number)

    def close_consumer(self, number: int) -> None:
        if self.consumers.pop(number, None) is not None:
            if self.peer is not None:
                self.peer.close_consumer(number)
            if not self.taken:
                self._hold(frame(Kind.CONSUMER_CLOSE, link=number, epoch=self.epoch))
            self._unbound(number)

    def forget(self, number: int) -> None:
        """A link is gone without a word of ours."""
        if self.producers.pop(number, None) or self.consumers.pop(number, None):
            self._unbound(number)

    def _unbound(self, number: int) -> None:
        self._homes.unbind(number)
        if self.is_empty:
            self._probe()

    async def request(
        self, op: str, fields: dict[str, Any], blob: bytes = b"", *, wait_ms: int = limits.REQUEST_MS
    ) -> Answer:
        """See Homes.request."""
        return await self._homes.request(self.queue, op, fields, blob, wait_ms=wait_ms)

    # --- frames that must not get lost -----------------------------------------------------------------

    def _keep(self, part: bytes) -> None:
        """`post` while the queue is nowhere."""
        if part[0] in KEPT:
            self._hold(part)

    def _try(self, part: bytes) -> None:
        """`post` while nobody knows whether the shard has the queue."""
        if part[0] in KEPT:
            self._hold(part)
        if self.peer is not None:
            self.peer.post(part)

    def _hold(self, part: bytes) -> None:
        if len(self._held) < limits.HOME_HELD_MAX:
            self._held[part] = None
            return
        log.error(
            "%d settlements wait for the shard of %s; what is settled beyond them will be delivered again",
            limits.HOME_HELD_MAX,
            self.queue,
        )

    def bounced(self, part: bytes, peer: ShardPeer) -> None:
        """A shard that does not own the queue any more was told this; it is for the one that does."""
        if self.taken and self.peer is not None and self.peer is not peer:
            # Its number, not its epoch, says which delivery it means.
            self.peer.post(part)
            return
        if self.is_empty:
            self.resumes = True
        self._hold(part)
        if self.peer is peer:
            self.moved()
        elif self.is_empty:
            self._probe()
        elif self.peer is not None:
            self.peer.post(part)

    @property
    def is_empty(self) -> bool:
        """Whether no link is here."""
        return not self.producers and not self.consumers

    @property
    def is_idle(self) -> bool:
        """Whether nobody needs this home."""
        return self.is_empty and not self._held

    # --- coming and going ------------------------------------------------------------------------------

    def go(self, place: Place) -> None:
        """Everything is said at a shard from now on; at once where it serves, else when it greets us."""
        self.shard, self.epoch = place
        self.due = self.late_at = None
        self.taken = False
        peer = self.peer = self._homes.places.peer(self.shard)
        self.lacks_peer = peer is None
        if peer is None:
            self.post = self._keep
            return
        self.post = self._try
        for producer in list(self.producers.values()):
            peer.open_producer(producer)
        for consumer in list(self.consumers.values()):
            peer.open_consumer(consumer)
        if peer.state is State.SERVING:
            self.say_held()

    def say_held(self) -> None:
        """What waits is said behind the links; without any, once the shard is known to have the queue."""
        if self.is_empty:
            self._probe()
        elif self.peer is not None:
            for part in self._held:
                self.peer.post(part)

    def leave(self, *, resumes: bool | None = None) -> None:
        """The shard is not the owner: it is told nothing more."""
        peer, self.peer = self.peer, None
        self.post = self._keep
        self.late_at = None
        if resumes is not None:
            self.resumes = resumes
        if peer is not None:
            for number in self.producers:
                peer.producers.pop(number, None)
            for number in self.consumers:
                peer.consumers.pop(number, None)
            if peer.state is State.SERVING:
                self._told_away()
        self.went_away()

    def moved(self) -> None:
        """The shard says that the queue is elsewhere, or not here in this epoch."""
        self.leave(resumes=self.resumes or self.taken)
        self._homes.places.refresh()
        if self.is_nowhere:
            self.look()

    def lost(self) -> None:
        """The shard is not there; when it is again, what it had given out is back in the queue."""
        if self.taken:
            self.taken = False
            self.resumes = False
        self.post = self._try
        self._told_away()
        self.went_away()

    def welcomed(self) -> None:
        """The shard is there again, and all links have been said."""
        if self.resumes:
            self.say_held()
        else:
            self._held.clear()

    def went_away(self) -> None:
        self.taken = False
        if self.away_since is None:
            self.away_since = self.given_up_at = self.checked_at = self._homes.now_ms()
        self._homes.wake(self)

    def _told_away(self) -> None:
        for producer in list(self.producers.values()):
            producer.away()

    def was_taken(self) -> None:
        """The shard has the queue: what was said to it is said for good."""
        if not self.taken and self.peer is not None:
            self.taken = True
            self.resumes = False
            self.post = self.peer.post
            self.due = self.away_since = None
            self._pause_ms = limits.HOME_RETRY_MS
            self._held.clear()
            for producer in list(self.producers.values()):
                producer.back()

    def look(self) -> None:
        """The queue is nowhere: go where it is now, or say everything again in a while."""
        place = self._homes.places.where(self.queue)
        if place is not None and place != (self.shard, self.epoch):
            self._pause_ms = limits.HOME_RETRY_MS
            self.go(place)
        elif self.due is None:
            self.due = self._homes.now_ms() + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, limits.HOME_RETRY_MS_MAX)

    def replaced(self) -> None:
        """The placement may be another one."""
        if self.peer is None:
            self.look()
            return
        place = self._homes.places.where(self.queue)
        if place is None or place == (self.shard, self.epoch):
            return
        if self.peer.state is not State.SERVING:
            self.leave()
            self.go(place)
        elif self.is_idle:
            self.go(place)
        elif self.late_at is None:
            # Deliveries may be on their way. Behind them comes MOVED.
            self.late_at = self._homes.now_ms() + limits.HOME_LATE_MS
            self._homes.wake(self)

    def tick(self, now_ms: int) -> None:
        """What is due."""
        if self.late_at is not None and now_ms >= self.late_at:
            log.warning("shard %d has not said that %s moved away; it is left", self.shard, self.queue)
            self.leave(resumes=self.resumes or self.taken)
            self.look()
        if self.peer is None:
            if self.due is None:
                self.look()
            elif now_ms >= self.due:
                self.go((self.shard, self.epoch))
            if now_ms - self.checked_at >= limits.HOME_LOST_MS:
                self.checked_at = now_ms
                self._homes.spawn(self._check())

    def give_up(self, now_ms: int, wait_ms: int) -> None:
        """Senders that have waited for the shard for so long are told."""
        if self.away_since is not None and now_ms - self.given_up_at >= wait_ms:
            self.given_up_at = now_ms
            for producer in list(self.producers.values()):
                producer.give_up()

    def end(self, refusal: Refusal) -> None:
        """The queue is nowhere any more, and so are its links."""
        links: list[Producer | Consumer] = [*self.producers.values(), *self.consumers.values()]
        self._held.clear()
        for link in links:
            if self.peer is not None:
                self.peer.producers.pop(link.number, None)
                self.peer.consumers.pop(link.number, None)
            self.forget(link.number)
            link.gone(refusal)

    async def _check(self) -> None:
        refusal = await self._homes.places.lost(self.queue)
        if refusal is not None and self.away_since is not None and not self.taken:
            log.info("%s is nowhere any more: %s", self.queue, refusal.description)
            self.end(refusal)

    # --- without links ---------------------------------------------------------------------------------

    def _probe(self) -> None:
        """No link is there whose answer would say that the shard has the queue: it is asked."""
        if self._held and not self._probing and not self.taken and self.is_there:
            self._probing = True
            self._homes.spawn(self._asked())

    async def _asked(self) -> None:
        peer = self.peer
        refusal = ""
        try:
            if peer is not None:
                await peer.request("queue", {"queue": self.queue})
        except ShardRefused as refused:
            refusal = refused.condition
        except ShardAway:
            # It is asked again after the next greeting.
            return
        finally:
            self._probing = False
        if self.taken or not self.is_empty or peer is None or peer is not self.peer:
            return
        if refusal == conditions.MOVED:
            self.moved()
            return
        if not refusal:
            for part in self._held:
                peer.post(part)
        self._held.clear()
        self._homes.drop(self)
