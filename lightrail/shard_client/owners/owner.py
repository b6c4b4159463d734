"""Owner: the shard that owns one queue, as the links of this process see it; links use it as a shard.

Links know their owner, and the owner knows the shard. When the queue moves, the shard sends MOVED: the owner
leaves the shard and opens the links at the shard that the placement names, or, while the placement is
unchanged, at the same shard again. Nothing is lost meanwhile: batches without an answer stay with their
links, within their credit; settlements and closes wait here (`HeldFrames`) until a shard has confirmed that
it owns the queue by opening a link, for another shard ignores them. To send one twice is harmless. Which link
is open at which shard is the table in assignments.py; what is due when is timers.py.
"""

import logging
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING

from lightrail.model.placement import Placement
from lightrail.shard_client.links import Consumer, Producer
from lightrail.shard_client.owners.assignments import AssignmentEvent
from lightrail.shard_client.owners.queue_links import KEPT, Assignment, HeldFrames, QueueLinks
from lightrail.shard_client.owners.timers import OwnerTimers
from lightrail.shard_client.peers.requests import ShardDownError
from lightrail.shard_client.peers.shards import ConnectionState, ShardPeer
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import HEADER, Kind, frame

if TYPE_CHECKING:
    from lightrail.shard_client.owners.owners import Owners

log = logging.getLogger("lightrail.shard_client.owners.owner")


@dataclass(slots=True, eq=False, repr=False)
class Owner:
    """The owner of one queue: no shard, a shard that may own it, or one that has confirmed that it does."""

    _owners: "Owners"
    queue: str
    placement: InitVar[Placement]
    shard: int = field(init=False)
    epoch: int = field(init=False)
    peer: ShardPeer | None = None
    """Where links are opened; None while no shard is known that may own the queue."""
    confirmed: ShardPeer | None = None
    """The same shard, once it has opened a link since the owner came to it or since it was lost last."""
    lacks_peer: bool = False
    """The placement names a shard whose address is not known yet."""
    _links: QueueLinks = field(default_factory=QueueLinks)
    timers: OwnerTimers = field(default_factory=OwnerTimers)
    _held: HeldFrames = field(init=False)
    _came_by_move: bool = False
    """Held frames are for the next shard, even if it is greeted first."""
    _probing: bool = False

    def __post_init__(self, placement: Placement) -> None:
        self.shard, self.epoch = placement
        self._held = HeldFrames(self.queue)

    @property
    def is_there(self) -> bool:
        """Whether a shard serves that owns, or may own, the queue."""
        return self.peer is not None and self.peer.state is ConnectionState.SERVING

    def due(self, wait_ms: int) -> int | None:
        """See ShardPeer.due."""
        return None if self.peer is None else self.peer.due(wait_ms)

    @property
    def is_idle(self) -> bool:
        """Whether this owner is no longer needed."""
        return not self._links and not self._held

    @property
    def seeks_shard(self) -> bool:
        """Whether it seeks a shard: it has none, or will retry or leave soon."""
        return self.peer is None or self.timers.is_soon

    def resumes(self, number: int) -> bool:
        """Whether a consumer that is opened now keeps its unsettled deliveries."""
        return (link := self._links.get(number)) is not None and link.resumes

    def post(self, part: bytes) -> None:
        """Sends a frame to the shard; see ShardPeer.post for what is dropped."""
        if (confirmed := self.confirmed) is not None:
            confirmed.post(part)
        else:
            self._post_unconfirmed(part)

    def _post_unconfirmed(self, part: bytes) -> None:
        """A link that a shard has not released yet may be opened there after all, so its frames go there."""
        if part[0] in KEPT:
            self._held.add(part)
            if self.peer is None:
                return
        link = self._links.get(HEADER.unpack_from(part)[4])
        peer = link.peer if link is not None and link.is_behind else self.peer
        if peer is not None:
            peer.post(part)

    # --- links open and close --------------------------------------------------------------------------

    def open_producer(self, producer: Producer) -> None:
        self._open(self._links.add_producer(producer))

    def open_consumer(self, consumer: Consumer) -> None:
        self._open(self._links.add_consumer(consumer))

    def _open(self, link: Assignment) -> None:
        self._owners.bind(self, link.number)
        self._links.open(link, self.peer)
        if self._held and self.confirmed is None and self.is_there and len(self._links) == 1:
            # They waited for the answer to a probe; the answer to this link clears them.
            self._send_held()

    def close_producer(self, number: int) -> None:
        if (link := self._links.get(number)) is not None and link.peer is not None:
            link.peer.close_producer(number)
        self.ended(number)

    def close_consumer(self, number: int, flags: int) -> None:
        if (link := self._links.get(number)) is None:
            return
        close = frame(Kind.CONSUMER_CLOSE, flags=flags, link=number, epoch=self.epoch)
        if link.is_behind or self.peer is None:
            if link.peer is not None:
                link.peer.consumers.pop(number, None)
            self.post(close)
        else:
            self.peer.close_consumer(number, flags)
            if self.confirmed is None:
                self._held.add(close)
        self.ended(number)

    def ask_late(self, operation: str, fields: dict[str, object]) -> None:
        """See LateRequests."""
        self._owners.late.add(self.queue, operation, fields)

    def replace_consumer(self, consumer: Consumer) -> None:
        self._links.replace_consumer(consumer)

    def ended(self, number: int) -> None:
        """A link has ended: the client closed it, or the shard ended it."""
        if self._links.remove(number):
            self._owners.unbind(number)
            if not self._links:
                self._probe()

    def end(self, refusal: Refusal) -> None:
        """The queue does not exist any more: its links end."""
        self._held.clear()
        for link in self._links.withdraw_all():
            self.ended(link.number)
            link.ended(refusal)

    # --- links and shards ------------------------------------------------------------------------------

    def link_ready(self, peer: ShardPeer, number: int) -> None:
        """A shard opened a link: it owns the queue, and frames already sent to it need not be resent."""
        link = self._links[number]
        if self.peer is not None and self.peer is not peer:
            link.apply(AssignmentEvent.READY_LATE)
            return
        link.apply(AssignmentEvent.READY)
        if self.peer is None:
            self.open_at(Placement(peer.shard, self.epoch))
        if self.confirmed is not None or self.peer is not peer:
            return
        self.confirmed = peer
        self._came_by_move = False
        self.timers.confirmed()
        self._held.clear()
        if self._links.unassigned():
            self.timers.cancel_retry()
            self._links.open_unassigned(self.peer)
        self._links.reconnected()

    def link_moved(self, peer: ShardPeer, number: int) -> None:
        """A shard answered a link that it does not own the queue, or not in the epoch that the link named."""
        link = self._links[number]
        was_at_owner = link.is_at_owner
        self._links.withdraw(link, AssignmentEvent.MOVED)
        self._owners.departed(self, peer)
        if was_at_owner:
            for other in self._links.at_owner():
                other.apply(AssignmentEvent.LEFT)
            self._leave()
        if self.peer is None:
            self._look_anew()
        elif self.peer is not peer:
            self._links.open(link, self.peer)
        else:
            # The owner has come back to this shard, whose answer to this link was to the former epoch.
            self.timers.retry_once(self._owners.now_ms())
            self._owners.wake(self)

    # --- the owner changes -----------------------------------------------------------------------------

    def open_at(self, placement: Placement) -> None:
        """Opens unassigned links at a placement: at once where the shard serves, else when it is greeted."""
        self.shard, self.epoch = placement
        self.timers.arrived()
        self.confirmed = None
        peer = self.peer = self._owners.resolver.peer(self.shard)
        self.lacks_peer = peer is None
        if peer is None:
            return
        self._links.open_unassigned(peer)
        if self._links.behind(peer):
            self._expect_moved()
        if peer.state is ConnectionState.SERVING:
            self._send_held()

    def _leave(self) -> None:
        """The shard is not the owner."""
        if self.is_there:
            self._links.disconnected()
        self.peer = self.confirmed = None
        self._came_by_move = True
        self.disconnected()

    def disconnected(self) -> None:
        """No shard that owns the queue serves."""
        self.timers.unconfirmed(self._owners.now_ms())
        self._owners.wake(self)

    def leave_removed(self) -> None:
        """The shard is no longer part of the installation."""
        self._links.withdraw_from(self.peer, AssignmentEvent.LOST)
        self._leave()
        self.follow_placement()

    def follow_placement(self) -> None:
        """No shard is known: changes to the shard of the placement, or opens all links again in a while."""
        placement = self._owners.resolver.placement(self.queue)
        if placement is not None and placement != (self.shard, self.epoch):
            self.timers.placed_anew()
            self.open_at(placement)
        else:
            self.timers.retry(self._owners.now_ms())

    def _look_anew(self) -> None:
        self._owners.resolver.refresh()  # It may call `replaced`.
        if self.peer is None:
            self.follow_placement()

    def replaced(self) -> None:
        """The placement may be another one."""
        if self.peer is None:
            self.follow_placement()
            return
        placement = self._owners.resolver.placement(self.queue)
        if placement is None or placement == (self.shard, self.epoch):
            return
        if self.peer.state is not ConnectionState.SERVING:
            self._links.withdraw_from(self.peer, AssignmentEvent.LOST)
            self._leave()
            self.open_at(placement)
        elif self.is_idle:
            self.open_at(placement)
        else:  # Deliveries may be under way, with MOVED behind them.
            self._expect_moved()

    # --- a shard is lost or greeted --------------------------------------------------------------------

    def lost(self, peer: ShardPeer) -> None:
        """A shard does not serve; when it serves again, its unsettled deliveries are back in the queue."""
        if peer is not self.peer:
            for link in self._links.at(peer):
                self._links.withdraw(link, AssignmentEvent.LOST)
                self._links.open(link, self.peer)
            return
        for link in self._links:
            link.apply(AssignmentEvent.RESTARTED if link.peer is peer else AssignmentEvent.OWNER_LOST)
        self.confirmed = None
        self._links.disconnected()
        self.disconnected()
        self.replaced()

    def welcomed(self) -> None:
        """The owner's shard was greeted, and the links there were opened again."""
        if self._came_by_move:
            self._send_held()
        else:
            self._held.clear()
        self._links.open_unassigned(self.peer)

    def give_up_deliveries(self, former: ShardPeer) -> None:
        """A shard was lost before it answered the last batches of links that have since left it.

        A settlement on its way to that shard or back is lost, and the shard that owns the queue now would
        wait for it as long as the link lives. So all unsettled deliveries are given up and delivered again.
        """
        if not self._links.consumers:
            return
        for link in self._links:
            link.resumes = False
        if self.peer is not None and self.peer is not former:
            self.peer.greet_again(f"shard {former.shard}, where {self.queue} was, was lost too early")

    # --- frames that must not get lost -----------------------------------------------------------------

    def _send_held(self) -> None:
        """Sends the waiting frames behind the links; without links, once the shard owns it for sure."""
        if not self._links:
            self._probe()
        elif self.peer is not None:
            for part in self._held:
                self.peer.post(part)

    def bounced(self, part: bytes, by: ShardPeer) -> None:
        """A shard that does not own the queue any more returned a frame, which is for the shard that does."""
        peer = self.peer
        if self.confirmed is not None:
            # What the owner's shard itself returns is for a consumer that has ended.
            if self.confirmed is not by:
                self.confirmed.post(part)
            return
        self._held.add(part)
        if not self._links:
            self._came_by_move = True
            if peer is by:
                self._leave()
                self._look_anew()
            else:
                self._probe()
        elif peer is not None and peer is not by:
            peer.post(part)

    def _probe(self) -> None:
        """Asks the shard whether it owns the queue: there is no link whose answer would confirm it."""
        peer = self.peer
        if peer is not None and self.is_there and not (self.confirmed or self._probing) and self._held:
            self._probing = True
            self._owners.spawn(self._ask(peer))

    async def _ask(self, peer: ShardPeer) -> None:
        try:
            owns = await peer.owns(self.queue)
        except ShardDownError:  # It is asked again after the next greeting.
            return
        finally:
            self._probing = False
        if self.confirmed is not None or self._links or peer is not self.peer:
            return
        if owns is False:
            self._leave()
            self._look_anew()
            return
        if owns:
            for part in self._held:
                self._owners.sent_last(peer, part)
                peer.post(part)
        self._held.clear()
        self._owners.drop(self)

    # --- time ------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Does what is due."""
        if self.timers.take_late(now_ms):
            self._go_without_answers()
        if self.timers.take_retry(now_ms, self._owners.resolver.is_frozen(self.queue, self.epoch)):
            self.open_at(Placement(self.shard, self.epoch))
        elif self.peer is None and not self.timers.retries:
            self.follow_placement()
        if self.peer is None and self.timers.take_check(now_ms):
            self._owners.spawn(self._check())

    def time_out(self, now_ms: int, wait_ms: int) -> None:
        """Senders that have waited for the shard for `wait_ms` get their messages back."""
        if self.timers.take_time_out(now_ms, wait_ms):
            self._links.timed_out()

    def _expect_moved(self) -> None:
        self.timers.expect_moved(self._owners.now_ms())
        self._owners.wake(self)

    def _go_without_answers(self) -> None:
        """A shard has lost the queue and has not sent MOVED: it stands still, or cannot be reached."""
        placement = self._owners.resolver.placement(self.queue)
        if placement is None or placement == (self.shard, self.epoch):
            if self.peer is not None:
                for link, peer in self._links.behind(self.peer):
                    self._links.withdraw(link, AssignmentEvent.MOVED)
                    self._owners.departed(self, peer)
                    self._links.open(link, self.peer)
        elif placement.shard != self.shard:
            log.warning("shard %d did not confirm that %s moved; its links are moved", self.shard, self.queue)
            if self.peer is not None:
                # Settlements that are under way to it bounce, or are lost with it (`give_up_deliveries`).
                self._owners.departed(self, self.peer)
                self._links.withdraw_from(self.peer, AssignmentEvent.MOVED)
            self._leave()
            self.open_at(placement)

    async def _check(self) -> None:
        """Ends the links of a queue that does not exist, by the coordinator's word."""
        refusal = await self._owners.resolver.lost(self.queue)
        if refusal is not None and self.timers.unconfirmed_ms is not None and self.confirmed is None:
            log.info("%s is nowhere any more: %s", self.queue, refusal.description)
            self.end(refusal)
