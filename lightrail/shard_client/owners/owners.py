"""Owners: the owner of each queue that has links in this process, and the search for its shard after a move.

Owners follow the connections to shards (Watch) and are notified of changed placements and shards. While an
owner has no shard, it looks for one every few milliseconds; the messages of senders that have waited for too
long are returned.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from lightrail.model import conditions, limits, names
from lightrail.model.placement import Placement
from lightrail.shard_client.deadlines import left_ms
from lightrail.shard_client.owners.late import LateRequests
from lightrail.shard_client.owners.owner import Owner
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError, Watch
from lightrail.shard_client.peers.shards import ShardPeer
from lightrail.wire.bodies import Answer, Refusal

if TYPE_CHECKING:
    from lightrail.shard_client.shard_connections import ShardConnections

OWNER_LAST_MAX: Final[int] = 10_000
"""Settlements and closes without a link that were sent to the owner and may be bounced by it once."""

log = logging.getLogger("lightrail.shard_client.owners.owners")

TICK_MS: Final = 10
"""How often owners without a shard look for one."""
LOST_TICK_MS: Final = 100
"""The same if all of them have been without a shard for a long time."""
WAIT_TICK_MS: Final = 1_000
"""Pause between two checks for senders that have waited too long."""


class Owners(Watch[ShardPeer]):
    """All owners of a process.

    Args:
        shard_wait_ms: how long senders wait for a shard that does not serve; 0: no limit.
    """

    def __init__(
        self,
        resolver: "ShardConnections",
        loop: asyncio.AbstractEventLoop,
        *,
        now_ms: Callable[[], int],
        shard_wait_ms: int,
    ) -> None:
        self.resolver = resolver
        self.now_ms = now_ms
        self._loop = loop
        self._shard_wait_ms = shard_wait_ms
        self._owners: dict[str, Owner] = {}
        self._of_link: dict[int, Owner] = {}
        self._waiting: dict[Owner, None] = {}
        """Owners with a timer; each tick checks them."""
        self._former: dict[ShardPeer, dict[Owner, int]] = {}
        """Owners by a shard that they have left and that may not have received, or bounced, their last
        settlements yet. The answer to the PING of this number confirms that it has."""
        self._peers_down: dict[ShardPeer, int] = {}
        """Time at which a shard was lost, or at which its lanes timed out last."""
        self._peers_silent: dict[ShardPeer, int] = {}
        """Silence of a shard, in ms, when the senders that wait for it timed out last."""
        self._sent_last: dict[tuple[ShardPeer, bytes], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._change: asyncio.Future[None] | None = None
        """Completed when a placement or a shard changes."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.late = LateRequests(self._ask_late, self.spawn)
        self._closed = False

    # --- owners and links -------------------------------------------------------------------------------

    def at(self, queue: str, placement: Placement) -> Owner:
        """The owner of a queue, created at its placement if there is none yet. Open a link before the loop
        turns: an owner without links is dropped."""
        owner = self._owners.get(queue)
        if owner is None:
            if len(self._owners) >= limits.QUEUES_MAX:
                for each in [each for each in self._owners.values() if each.is_idle]:
                    self.drop(each)
            owner = self._owners[queue] = Owner(self, queue, placement)
            owner.open_at(placement)
        elif owner.is_idle and (owner.peer is None or placement != (owner.shard, owner.epoch)):
            owner.open_at(placement)
        return owner

    def find(self, queue: str) -> Owner | None:
        return self._owners.get(queue)

    def __len__(self) -> int:
        return len(self._owners)

    def bind(self, owner: Owner, link: int) -> None:
        """A link belongs to an owner from now on."""
        self._owners.setdefault(owner.queue, owner)
        self._of_link[link] = owner
        if not owner.is_there:
            owner.disconnected()

    def unbind(self, link: int) -> None:
        """A link has ended."""
        owner = self._of_link.pop(link, None)
        if owner is not None and owner.is_idle:
            self.drop(owner)

    def drop(self, owner: Owner) -> None:
        """Forgets an owner that has no links and no waiting frames."""
        if self._owners.get(owner.queue) is owner and owner.is_idle:
            del self._owners[owner.queue]
            self._waiting.pop(owner, None)

    # --- from the peers --------------------------------------------------------------------------------

    def joined(self, peer: ShardPeer) -> None:
        """A connection to a shard was made; owners that wait for that shard open their links there."""
        self._peers_down[peer] = self.now_ms()
        self.look_again()
        self._wake()

    def removed(self, peer: ShardPeer) -> None:
        """A shard was removed from the installation: its lanes end, its queues look for another shard."""
        self._peers_down.pop(peer, None)
        self._peers_silent.pop(peer, None)
        for owner in self._former.pop(peer, ()):
            owner.give_up_deliveries(peer)
        for owner in self._at(peer):
            owner.leave_removed()
        refusal = Refusal(conditions.RESOURCE_DELETED, f"shard {peer.shard} was removed")
        for producer in list(peer.producers.values()):
            producer.ended(refusal)
        peer.producers.clear()

    def departed(self, owner: Owner, peer: ShardPeer) -> None:
        """Links of an owner have left a shard."""
        self._former.setdefault(peer, {})[owner] = peer.ping()

    def ponged(self, peer: ShardPeer, ping: int) -> None:
        """See Watch."""
        former = self._former.get(peer)
        if former is not None:
            for owner in [owner for owner, awaited in former.items() if awaited <= ping]:
                del former[owner]
            if not former:
                del self._former[peer]

    def lost(self, peer: ShardPeer) -> None:
        """See Watch."""
        self._peers_silent.pop(peer, None)
        for owner in self._former.pop(peer, ()):
            owner.give_up_deliveries(peer)
        self._peers_down[peer] = self.now_ms()
        for owner in list(self._owners.values()):
            owner.lost(peer)
        for number, producer in list(peer.producers.items()):
            if number not in self._of_link:
                producer.disconnected()
        self._wake()

    def welcomed(self, peer: ShardPeer) -> None:
        """See Watch."""
        self._peers_down.pop(peer, None)
        for owner in self._at(peer):
            owner.welcomed()
            if owner.is_idle:
                self.drop(owner)
        self.late.retry()

    def silent(self, peer: ShardPeer, silent_ms: int) -> None:
        """See Watch. Senders treat a silent shard as lost, but it may store batches that it received."""
        wait_ms = self._shard_wait_ms
        if wait_ms and silent_ms - self._peers_silent.get(peer, 0) >= wait_ms:
            self._peers_silent[peer] = silent_ms
            for producer in list(peer.producers.values()):
                producer.disconnected()
                producer.timed_out()

    def spoke(self, peer: ShardPeer) -> None:
        """See Watch."""
        if self._peers_silent.pop(peer, None) is not None:
            for producer in list(peer.producers.values()):
                producer.reconnected()
        self.late.retry()

    def opened(self, peer: ShardPeer, link: int) -> None:
        """See Watch."""
        owner = self._of_link.get(link)
        if owner is None:
            if (lane := peer.producers.get(link)) is not None:
                lane.reconnected()
        else:
            owner.link_ready(peer, link)

    def ended(self, peer: ShardPeer, link: int) -> None:
        """See Watch."""
        owner = self._of_link.get(link)
        if owner is not None:
            owner.ended(link)

    def moved(self, peer: ShardPeer, link: int) -> None:
        """See Watch."""
        owner = self._of_link.get(link)
        if owner is not None:
            owner.link_moved(peer, link)

    def bounced(self, peer: ShardPeer, queue: str, part: bytes) -> None:
        """See Watch."""
        if (peer, part) in self._sent_last:
            del self._sent_last[peer, part]
            return
        owner = self._owners.get(queue)
        if owner is None:
            placement = self.resolver.placement(queue)
            if placement is None:
                return
            owner = self.at(queue, placement)
        owner.bounced(part, peer)

    def sent_last(self, peer: ShardPeer, part: bytes) -> None:
        """The shard that owns a queue without links was sent this frame: if the frame bounces, it is dropped.

        At most OWNER_LAST_MAX frames are kept.
        """
        self._sent_last[peer, part] = None
        if len(self._sent_last) > OWNER_LAST_MAX:
            del self._sent_last[next(iter(self._sent_last))]

    # --- from the map ----------------------------------------------------------------------------------

    def changed(self, queues: Iterable[str]) -> None:
        """The placements of these queues, and so of their dead-letter queues, may have changed."""
        for queue in queues:
            for name in (queue, names.dead_letter_name(queue)):
                owner = self._owners.get(name)
                if owner is not None:
                    owner.replaced()
        self.look_again()

    def look_again(self) -> None:
        """Placements or addresses of shards have changed."""
        for owner in list(self._waiting):
            if owner.peer is None:
                owner.follow_placement()
            if owner.peer is None and owner.lacks_peer and self.resolver.peer(owner.shard) is not None:
                owner.open_at(Placement(owner.shard, owner.epoch))
        self.late.retry()
        change, self._change = self._change, None
        if change is not None and not change.done():
            change.set_result(None)

    async def change(self, wait_ms: int) -> int:
        """Waits until a placement or a shard changes, at most `wait_ms`.

        Returns how long a caller waits the next time: twice as long, up to OWNER_RETRY_MS_MAX.
        """
        if self._change is None:
            self._change = self._loop.create_future()
        await asyncio.wait([self._change], timeout=wait_ms / 1000)
        self.resolver.refresh()
        return min(2 * wait_ms, limits.OWNER_RETRY_MS_MAX)

    # --- requests --------------------------------------------------------------------------------------

    async def request(
        self, queue: str, op: str, fields: dict[str, Any], *, wait_ms: int = limits.REQUEST_MS
    ) -> Answer:
        """Sends a request to the shard of a queue; while the queue moves, sends it again to the new shard.

        Raises:
            ShardDownError: the shard does not serve or did not answer within `wait_ms`, or the queue still
            moves. ShardRefusedError: the answer is an error. CoordinatorError: the placement of the queue
            can't be read.
        """
        until = self._loop.time() + left_ms(wait_ms) / 1000
        pause_ms = limits.OWNER_RETRY_MS
        while True:
            shard, _ = await self.resolver.place(queue)
            peer = self.resolver.peer(shard)
            if peer is None:
                raise ShardDownError(f"{queue} is on shard {shard}, whose address is unknown; try again")
            wait_ms = max(1, int(1000 * (until - self._loop.time())))
            try:
                return await peer.request(op, {"queue": queue, **fields}, wait_ms=wait_ms)
            except ShardRefusedError as refused:
                if refused.condition != conditions.MOVED:
                    raise
            if self._loop.time() + pause_ms / 1000 > until:
                raise ShardDownError(f"{queue} is moving to another shard; try again")
            pause_ms = await self.change(pause_ms)

    async def _ask_late(self, queue: str, op: str, fields: dict[str, Any]) -> None:
        """A request about a queue that may have been deleted meanwhile, and is not placed again for that."""
        if (refusal := await self.resolver.lost(queue)) is not None:
            raise ShardRefusedError(refusal.condition, refusal.description)
        await self.request(queue, op, fields)

    # --- time ------------------------------------------------------------------------------------------

    def wake(self, owner: Owner) -> None:
        """An owner has set a timer, and is ticked from now on."""
        self._waiting[owner] = None
        self._wake()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine in the background."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def close(self) -> None:
        """Stops the timer and all requests, since the process ends."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in list(self._tasks):
            task.cancel()

    def _spawned(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request to the shard of a queue failed", exc_info=error)

    def _at(self, peer: ShardPeer) -> list[Owner]:
        return [owner for owner in self._owners.values() if owner.peer is peer]

    def _wake(self) -> None:
        if self._closed:
            return
        wait_ms = WAIT_TICK_MS
        seeking = [owner for owner in self._waiting if owner.seeks_shard]
        if seeking:
            # An owner that has had no shard for a long time waits until a shard or the coordinator returns.
            recent = self.now_ms() - limits.OWNER_LOST_MS
            since_ms = [owner.timers.unconfirmed_ms for owner in seeking]
            is_fresh = any(each is None or each > recent for each in since_ms)
            wait_ms = TICK_MS if is_fresh else LOST_TICK_MS
        elif not self._waiting and not self._peers_down:
            return
        if self._timer is not None:
            if self._timer_ms <= wait_ms:
                return
            self._timer.cancel()
        self._timer_ms = wait_ms
        self._timer = self._loop.call_later(wait_ms / 1000, self.tick)

    def tick(self) -> None:
        """Executes due timers of owners, and times out senders that have waited long enough."""
        self._timer = None
        self.resolver.refresh()
        now_ms = self.now_ms()
        for owner in list(self._waiting):
            if owner.is_idle or not owner.timers.is_set:
                self._waiting.pop(owner, None)
                self.drop(owner)
                continue
            owner.tick(now_ms)
            if self._shard_wait_ms:
                owner.time_out(now_ms, self._shard_wait_ms)
        if self._shard_wait_ms:
            for peer, since in list(self._peers_down.items()):
                if now_ms - since >= self._shard_wait_ms:
                    self._peers_down[peer] = now_ms
                    for number, producer in list(peer.producers.items()):
                        if number not in self._of_link:
                            producer.timed_out()
        self._wake()
