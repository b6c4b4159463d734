"""Owner: the shard that owns one queue, as the links of this process see it; links use it as a shard.

Links know their owner, and the owner knows the shard. When the queue moves, the shard says MOVED: the owner
leaves it and says everything where the placement says that the queue is, or, as long as that says nothing
new, once more where it was. Nothing is lost meanwhile: batches without an answer are with their links, within
their credit; settlements and closes that no shard is there for wait in the owner. Those are kept, too, until
a shard has taken a link of the queue: one that is not the owner (yet) passes over them. To say one twice is
harmless.

Each link leaves a shard only behind the answer to what it said last there: a READY or MOVED that is on its
way would otherwise be taken for the answer to what it says next, and deliveries on their way be lost. So
links may be behind for a moment, at the shard that the owner has left. A consumer that goes on elsewhere
holds what it held (`resumes`). Only where its shard was started again, everything is back in the queue.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from lightrail.model import conditions, limits
from lightrail.wire.frames import HEADER, Kind, frame
from lightrail.wire.messages import Answer, Refusal
from lightrail.wire.places import Place, Registry
from lightrail.wire.shards import Consumer, Producer, ShardAway, ShardPeer, ShardRefused, State

log = logging.getLogger("lightrail.wire.owner")

KEPT: Final = frozenset({int(Kind.SETTLE), int(Kind.CONSUMER_CLOSE)})
"""Kinds of frames that nobody would say again."""


class Owner:
    """Where one queue is.

    `post` sends a frame to the shard; see ShardPeer.post for what is dropped.
    """

    __slots__ = (
        "_behind",
        "_came_by_move",
        "_held",
        "_loose",
        "_overflowed",
        "_owners",
        "_pause_ms",
        "_probing",
        "_ready",
        "_resuming",
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
        "shard",
        "taken",
    )

    def __init__(self, owners: Registry, queue: str, place: Place) -> None:
        self.queue = queue
        self.shard, self.epoch = place
        self.peer: ShardPeer | None = None
        """None while the queue is nowhere."""
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.taken = False
        """The shard has taken a link since we came or since it was there last: it owns the queue."""
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
        """When the shard is left that has not said MOVED to all."""
        self._owners = owners
        self._behind: dict[int, ShardPeer] = {}
        """Links at a shard that the owner has left, or that has not answered them yet."""
        self._loose: set[int] = set()
        """Links that are at no shard."""
        self._ready: set[int] = set()
        """Links that a shard has taken since they were last said."""
        self._resuming: set[int] = set()
        """Links that were sent away and have not been taken since."""
        self._came_by_move = False
        """What is held is for the shard that we go to, even if it is greeted first."""
        self._held: dict[bytes, None] = {}
        self._overflowed = False
        """More was to be held than may be, and the log says so."""
        self._pause_ms = limits.OWNER_RETRY_MS
        self._probing = False

    @property
    def is_there(self) -> bool:
        """Whether a shard is there that is, or may be, the owner."""
        return self.peer is not None and self.peer.state is State.SERVING

    @property
    def is_nowhere(self) -> bool:
        """Whether no shard is known that may be the owner."""
        return self.peer is None

    @property
    def is_empty(self) -> bool:
        """Whether no link is here."""
        return not self.producers and not self.consumers

    @property
    def is_idle(self) -> bool:
        """Whether nobody needs this owner."""
        return self.is_empty and not self._held

    @property
    def waits(self) -> bool:
        """Whether something is due some time, or senders wait."""
        return self.away_since is not None or self.late_at is not None or self.due is not None

    def resumes(self, number: int) -> bool:
        """Whether a consumer that is opened now holds what it held before."""
        return number in self._resuming

    # --- links -----------------------------------------------------------------------------------------

    def open_producer(self, producer: Producer) -> None:
        self._owners.bind(self, producer.number)
        self.producers[producer.number] = producer
        self._open(producer.number)

    def open_consumer(self, consumer: Consumer) -> None:
        self._owners.bind(self, consumer.number)
        self.consumers[consumer.number] = consumer
        self._open(consumer.number)

    def close_producer(self, number: int) -> None:
        if self.producers.pop(number, None) is not None:
            at = self._behind.get(number, self.peer)
            if at is not None:
                at.close_producer(number)
            self._unbound(number)

    def close_consumer(self, number: int) -> None:
        if self.consumers.pop(number, None) is not None:
            behind = self._behind.get(number)
            if behind is not None:
                behind.consumers.pop(number, None)
            if behind is None and self.peer is not None:
                self.peer.close_consumer(number)
                if not self.taken:
                    self._hold(frame(Kind.CONSUMER_CLOSE, link=number, epoch=self.epoch))
            else:
                self.post(frame(Kind.CONSUMER_CLOSE, link=number, epoch=self.epoch))
            self._unbound(number)

    def forget(self, number: int) -> None:
        """A link is gone without a word of ours."""
        if self.producers.pop(number, None) or self.consumers.pop(number, None):
            self._unbound(number)

    def _unbound(self, number: int) -> None:
        self._behind.pop(number, None)
        self._loose.discard(number)
        self._ready.discard(number)
        self._resuming.discard(number)
        self._owners.unbind(number)
        if self.is_empty:
            self._probe()

    def _open(self, number: int) -> None:
        """A link is said at the shard of this owner, or as soon as there is one."""
        peer = self.peer
        if peer is None:
            self._loose.add(number)
        elif (producer := self.producers.get(number)) is not None:
            peer.open_producer(producer)
        elif (consumer := self.consumers.get(number)) is not None:
            peer.open_consumer(consumer)

    def _open_loose(self) -> None:
        loose, self._loose = self._loose, set()
        # In the order of their numbers: producers of one client keep theirs, and so do consumers in line.
        for number in sorted(loose):
            self._open(number)

    def _links_here(self) -> list[int]:
        """Links at the shard of this owner."""
        every = [*self.producers, *self.consumers]
        if not self._behind and not self._loose:
            return every
        return [number for number in every if number not in self._behind and number not in self._loose]

    async def request(
        self, op: str, fields: dict[str, Any], blob: bytes = b"", *, wait_ms: int = limits.REQUEST_MS
    ) -> Answer:
        """See Owners.request."""
        return await self._owners.request(self.queue, op, fields, blob, wait_ms=wait_ms)

    # --- frames that must not get lost -----------------------------------------------------------------

    def _keep(self, part: bytes) -> None:
        """`post` while the queue is nowhere: a link that is behind may yet be taken there."""
        if part[0] in KEPT:
            self._hold(part)
        elif (behind := self._behind.get(HEADER.unpack_from(part)[4])) is not None:
            behind.post(part)

    def _try(self, part: bytes) -> None:
        """`post` while nobody knows whether the shard has the queue."""
        if part[0] in KEPT:
            self._hold(part)
        peer = self._behind.get(HEADER.unpack_from(part)[4], self.peer) if self._behind else self.peer
        if peer is not None:
            peer.post(part)

    def _hold(self, part: bytes) -> None:
        if len(self._held) < limits.OWNER_HELD_MAX:
            self._held[part] = None
            self._overflowed = False
            return
        if not self._overflowed:
            # Once: a client settles as often as it likes.
            self._overflowed = True
            log.error(
                "%d settlements wait for the shard of %s; what is settled beyond them is delivered again",
                limits.OWNER_HELD_MAX,
                self.queue,
            )

    def bounced(self, part: bytes, by: ShardPeer) -> None:
        """A shard that does not own the queue any more was told this; it is for the one that does."""
        peer = self.peer
        if peer is not None and self.taken:
            # Its number, not its epoch, says which delivery it means. The owner itself sends back what is for
            # a consumer that is gone.
            if peer is not by:
                peer.post(part)
            return
        self._hold(part)
        if self.is_empty:
            self._came_by_move = True
            if peer is by:
                self._left()
                self._look_anew()
            else:
                self._probe()
        elif peer is not None and peer is not by:
            peer.post(part)

    # --- coming and going ------------------------------------------------------------------------------

    def go(self, place: Place) -> None:
        """Loose links are said at a shard from now on; at once where it serves, else when it greets us."""
        self.shard, self.epoch = place
        self.due = self.late_at = None
        self.taken = False
        peer = self.peer = self._owners.places.peer(self.shard)
        self.lacks_peer = peer is None
        if peer is None:
            self.post = self._keep
            return
        self.post = self._try
        self._open_loose()
        if any(each is not peer for each in self._behind.values()):
            self._expect_moved()
        if peer.state is State.SERVING:
            self.say_held()

    def say_held(self) -> None:
        """What waits is said behind the links; without any, once the shard is known to have the queue."""
        if self.is_empty:
            self._probe()
        elif self.peer is not None:
            for part in self._held:
                self.peer.post(part)

    def moved(self, peer: ShardPeer, number: int) -> None:
        """A shard says to a link that the queue is elsewhere, or not there in the epoch that it said."""
        peer.producers.pop(number, None)
        peer.consumers.pop(number, None)
        self._leaves(number)
        self._owners.departed(self, peer)
        if self._behind.pop(number, None) is None:
            for other in self._links_here():
                if other != number:
                    self._behind[other] = peer
            self._left()
        if self.peer is not None and self.peer is not peer:
            self._open(number)
            return
        self._loose.add(number)
        if self.peer is None:
            self._look_anew()
        elif self.due is None:
            # The owner is here again, or still; this one was late to be told.
            self.due = self._owners.now_ms() + limits.OWNER_RETRY_MS
            self._owners.wake(self)

    def _leaves(self, number: int) -> None:
        """A link that its shard had taken holds on to what it got there; one that was only said did not."""
        if number in self._ready:
            self._ready.discard(number)
            self._resuming.add(number)

    def _left(self) -> None:
        """The shard is not the owner."""
        if self.is_there:
            self._told_away()
        self.peer = None
        self.post = self._keep
        self._came_by_move = True
        self.went_away()

    def _look_anew(self) -> None:
        self._owners.places.refresh()
        if self.is_nowhere:
            self.look()

    def _abandon(self, peer: ShardPeer | None) -> None:
        """A shard that does not answer, or is not there: the links at it go without its word."""
        if peer is None:
            return
        here = self._links_here() if peer is self.peer else []
        for number in here + [number for number, at in self._behind.items() if at is peer]:
            peer.producers.pop(number, None)
            peer.consumers.pop(number, None)
            self._behind.pop(number, None)
            self._loose.add(number)

    def unsure(self, former: ShardPeer) -> None:
        """A shard that links have just left is not there any more.

        A settlement that was on its way to it, or back, is lost, and the shard that has the queue now would
        wait for it as long as the link lives. So nothing that is held goes on: it is delivered again.
        """
        if not self.consumers:
            return
        self._resuming.clear()
        if self.peer is not None and self.peer is not former:
            self.peer.greet_again(f"shard {former.shard}, where {self.queue} was, went away too early")

    def lost(self, peer: ShardPeer) -> None:
        """A shard is not there; when it is again, what it had given out is back in the queue."""
        for number, at in list(self._behind.items()):
            if at is peer:
                del self._behind[number]
                self._ready.discard(number)
                if peer is not self.peer:
                    peer.producers.pop(number, None)
                    peer.consumers.pop(number, None)
                    self._open(number)
        if peer is not self.peer:
            return
        self._ready.clear()
        if self.taken:
            self.taken = self._came_by_move = False
        self.post = self._try
        self._told_away()
        self.went_away()
        self.replaced()

    def welcomed(self) -> None:
        """The shard is there again, and all links have been said."""
        if self._came_by_move:
            self.say_held()
        else:
            self._held.clear()
        self._open_loose()

    def went_away(self) -> None:
        self.taken = False
        if self.away_since is None:
            self.away_since = self.given_up_at = self.checked_at = self._owners.now_ms()
        self._owners.wake(self)

    def _told_away(self) -> None:
        for producer in list(self.producers.values()):
            producer.away()

    def was_taken(self, peer: ShardPeer, number: int) -> None:
        """A shard took a link: it has the queue, and what was said to it is said for good."""
        self._ready.add(number)
        if self._behind.get(number) is peer:
            if self.peer is not None and self.peer is not peer:
                # It was about to move away, and will say so.
                return
            del self._behind[number]
            if self.peer is None:
                self.go((peer.shard, self.epoch))
        if self.peer is not peer:
            return
        self._resuming.discard(number)
        if self.taken:
            return
        self.taken = True
        self._came_by_move = False
        self.post = peer.post
        self.away_since = None
        self._pause_ms = limits.OWNER_RETRY_MS
        self._held.clear()
        if self._loose:
            self.due = None
            self._open_loose()
        for producer in list(self.producers.values()):
            producer.back()

    def look(self) -> None:
        """The queue is nowhere: go where it is now, or say everything again in a while."""
        place = self._owners.places.where(self.queue)
        if place is not None and place != (self.shard, self.epoch):
            self._pause_ms = limits.OWNER_RETRY_MS
            self.go(place)
        elif self.due is None:
            self.due = self._owners.now_ms() + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, limits.OWNER_RETRY_MS_MAX)

    def replaced(self) -> None:
        """The placement may be another one."""
        if self.peer is None:
            self.look()
            return
        place = self._owners.places.where(self.queue)
        if place is None or place == (self.shard, self.epoch):
            return
        if self.peer.state is not State.SERVING:
            self._abandon(self.peer)
            self._left()
            self.go(place)
        elif self.is_idle:
            self.go(place)
        else:
            # Deliveries may be on their way. Behind them comes MOVED.
            self._expect_moved()

    def _expect_moved(self) -> None:
        if self.late_at is None:
            self.late_at = self._owners.now_ms() + limits.OWNER_LATE_MS
        self._owners.wake(self)

    def tick(self, now_ms: int) -> None:
        """What is due."""
        if self.late_at is not None and now_ms >= self.late_at:
            self._be_late()
        if self.due is not None and now_ms >= self.due:
            self.due = None
            self.go((self.shard, self.epoch))
        elif self.peer is None and self.due is None:
            self.look()
        if self.peer is None and now_ms - self.checked_at >= limits.OWNER_LOST_MS:
            self.checked_at = now_ms
            self._owners.spawn(self._check())

    def _be_late(self) -> None:
        """A shard has lost the queue and has not said so: it stands still, or can't be reached."""
        self.late_at = None
        place = self._owners.places.where(self.queue)
        if place is None or place == (self.shard, self.epoch):
            if self._behind and self.peer is not None:
                self._go_without()
            return
        if place[0] != self.shard:
            log.warning("shard %d has not said that %s moved away; it is left", self.shard, self.queue)
            for number in self._links_here():
                self._leaves(number)
            if self.peer is not None:
                # What was settled there meanwhile comes back from it, or it is lost with it (see `unsure`).
                self._owners.departed(self, self.peer)
            self._abandon(self.peer)
            self._left()
            self.go(place)

    def _go_without(self) -> None:
        """Links that are behind follow without the word of their shard."""
        for number, peer in list(self._behind.items()):
            if peer is not self.peer:
                del self._behind[number]
                peer.producers.pop(number, None)
                peer.consumers.pop(number, None)
                self._leaves(number)
                self._owners.departed(self, peer)
                self._open(number)

    def give_up(self, now_ms: int, wait_ms: int) -> None:
        """Senders that have waited for the shard for so long are told."""
        if self.away_since is not None and now_ms - self.given_up_at >= wait_ms:
            self.given_up_at = now_ms
            for producer in list(self.producers.values()):
                producer.give_up()

    def end(self, refusal: Refusal) -> None:
        """The queue is nowhere any more, and so are its links."""
        self._held.clear()
        for peer in {self.peer, *self._behind.values()}:
            self._abandon(peer)
        links: list[Producer | Consumer] = [*self.producers.values(), *self.consumers.values()]
        for link in links:
            self.forget(link.number)
            link.gone(refusal)

    def leave_for_good(self) -> None:
        """The shard is no part of the installation any more."""
        self._abandon(self.peer)
        self._left()
        self.look()

    async def _check(self) -> None:
        refusal = await self._owners.places.lost(self.queue)
        if refusal is not None and self.away_since is not None and not self.taken:
            log.info("%s is nowhere any more: %s", self.queue, refusal.description)
            self.end(refusal)

    # --- without links ---------------------------------------------------------------------------------

    def _probe(self) -> None:
        """No link is there whose answer would say that the shard has the queue: it is asked."""
        if self._held and not self._probing and not self.taken and self.is_there:
            self._probing = True
            self._owners.spawn(self._asked())

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
            self._left()
            self._look_anew()
            return
        if not refusal:
            for part in self._held:
                self._owners.said_last(peer, part)
                peer.post(part)
        self._held.clear()
        self._owners.drop(self)
