"""A relay: passes messages from the senders of a connection point to its listeners, and stores nothing.

The listeners' credit is granted to the senders in fair shares. Each message uses one unit of a sender's grant
and one of a listener's credit, and the listener's outcome is sent to the sender. An unused grant is given to
senders without one. A message for which there is no credit, because a listener closed or took its credit back
in the meantime, is released.

A listener's credit is also bounded by bytes, so that a listener that does not read uses no memory: its
frontend passes on the client's credit one window at a time. Messages with credit of the client but outside
the window wait in order; one that is larger than the window is reported, and sent when the frontend has made
room. All waiting messages count as parked in this shard, like batches that wait for room in queues; messages
beyond the limit of parked bytes are released.

`Relays` has the relays of a shard by name, and the links to them.
"""

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

from lightrail.cluster.map import MapChanges
from lightrail.model import conditions
from lightrail.model.links import Ending
from lightrail.model.policy import Role
from lightrail.namespace.records import Name
from lightrail.shard.effects.peers import Peer
from lightrail.shard.links.relaying.ends import EVERYTHING, DeliveredPart, Listener, RelaySender, Sent
from lightrail.shard.queue.values.commands import UNBOUNDED
from lightrail.shard.queues.declarations import Names
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.tenancy import Tenancy, moved
from lightrail.wire.bodies import ConsumerOpen, Refusal
from lightrail.wire.frames import (
    DRAIN,
    EXACT,
    HEADER,
    HEADER_SIZE,
    MORE,
    Kind,
    OutcomeCode,
    Part,
    deliver,
    frame,
)

RELAY_IDLE_MS: Final[int] = 1_000
"""Time after which an unused grant of a connection point's sender passes to a sender that waits."""


class Relay:
    """A connection point with its listeners and its senders, each served in turn."""

    __slots__ = ("_memory", "_sequence", "_waiting", "listeners", "name", "record", "senders")

    def __init__(self, record: Name, memory: Memory) -> None:
        self.name = record.name
        self.record = record
        self.listeners: deque[Listener] = deque()
        self.senders: deque[RelaySender] = deque()
        self._memory = memory
        self._sequence = count()
        self._waiting: deque[Sent] = deque()
        """Batches for listeners with credit and without room, in the order of arrival."""

    @property
    def credit(self) -> int:
        """Number of messages that the listeners have credit for, beyond the waiting ones."""
        return sum(listener.credit for listener in self.listeners) - sum(sent.left for sent in self._waiting)

    def send(self, sender: RelaySender, part: Part, messages: int, number: int, now_ms: int) -> None:
        """Passes a batch to listeners with credit, in turn; messages without credit are released."""
        sender.sent += messages
        sender.used_ms = now_ms
        sent = Sent(sender, part, messages, number)
        if not self._waiting and self._pass_on(sent, now_ms):
            return
        memory = self._memory
        would = self._waiting or any(
            listener.credit or listener.expects_window for listener in self.listeners
        )
        # One message may wait whatever its size.
        if would and (not memory.parked or memory.parked + sent.size <= memory.parked_max):
            memory.park(sent.size)
            self._waiting.append(sent)
        else:
            sent.release()

    def pass_waiting(self, now_ms: int) -> None:
        """Passes waiting messages to listeners with room; releases them if there is no listener.

        Messages are not released because listeners have no credit: a frontend takes credit back while its
        client does not read.
        """
        if not self.listeners:
            self._give_back(lambda sent: True)
        while self._waiting and self._pass_on(self._waiting[0], now_ms):
            self._memory.park(-self._waiting.popleft().size)

    def _pass_on(self, sent: Sent, now_ms: int) -> bool:
        """Passes the rest of a batch to listeners with credit and room, in turn; True if all was sent."""
        sender, messages = sent.sender, sent.count
        ready = [listener for listener in self.listeners if listener.is_ready]
        share = -(-sent.left // max(len(ready), 1))
        while sent.left and ready:
            for listener in ready:
                first = sent.first
                last = min(messages, first + min(share, listener.credit))
                if first == last or (last := listener.fitting(sent, last)) == first:
                    continue
                listener.used(sent.size_to(last))
                base, ends, blob = sent.take(last)
                listener.peer.out.append(
                    deliver(
                        listener.link,
                        1,
                        listener.next,
                        last - first,
                        now_ms,
                        next(self._sequence),
                        0,
                        sent.expires_at_ms,
                        now_ms,
                        sent.message_format,
                        base,
                        ends,
                        blob,
                    )
                )
                listener.hold(DeliveredPart(sender, sent.number, first, last - first))
                if listener.presettled:
                    sender.outcome(sent.number, first, last - first, OutcomeCode.ACCEPTED, b"")
            ready = [listener for listener in ready if listener.is_ready]
        if len(self.listeners) > 1:
            self.listeners.rotate(-1)
        return not sent.left

    def share(self, now_ms: int) -> None:
        """Grants the listeners' credit to the senders, in fair shares.

        If more was granted than there is credit, or some senders have no grant, grants that were unused for a
        while are taken back; messages that were sent meanwhile use other credit or are released.
        """
        senders = self.senders
        if not senders:
            return
        credit = max(self.credit, 0)
        granted = sum(sender.open for sender in senders)
        if granted > credit:
            for sender in senders:
                if granted <= credit:
                    break
                back = min(sender.open, granted - credit)
                granted -= back
                sender.grant(sender.granted - back)
        fair = max(credit // len(senders), 1)
        if granted >= credit and any(not sender.open for sender in senders):
            for sender in senders:
                if sender.open and now_ms - sender.used_ms >= RELAY_IDLE_MS:
                    granted -= sender.open
                    sender.grant(sender.sent)
                    sender.used_ms = now_ms  # It becomes the last of the waiting senders.
        free = credit - granted
        for sender in sorted(senders, key=lambda each: each.open):
            if free <= 0:
                break
            more = min(free, fair - sender.open)
            # A grant is renewed when half of it is used, so that not every message needs a GRANT.
            if more > 0 and 2 * sender.open <= fair:
                free -= more
                sender.grant(max(sender.granted, sender.sent) + more)
                senders.remove(sender)
                senders.append(sender)

    def leave(self, listener: Listener, code: int, body: bytes) -> None:
        """Removes a listener; its unsettled messages get this outcome."""
        self.listeners.remove(listener)
        listener.settle(0, EVERYTHING, code, body)

    def forget(self, sender: RelaySender) -> None:
        """Removes a sender and its waiting messages."""
        self.senders.remove(sender)
        self._give_back(lambda sent: sent.sender is sender)

    def _give_back(self, which: Callable[[Sent], bool]) -> None:
        kept: deque[Sent] = deque()
        for sent in self._waiting:
            if which(sent):
                sent.release()
                self._memory.park(-sent.size)
            else:
                kept.append(sent)
        self._waiting = kept

    def end(self, refusal: Refusal) -> None:
        """Ends all links, because the name is no longer a connection point, or is at another shard."""
        body = b"" if refusal.condition == conditions.MOVED else refusal.encode()
        self._give_back(lambda sent: True)
        kind = Kind.GONE if body else Kind.MOVED
        for listener in list(self.listeners):
            self.leave(listener, OutcomeCode.RELEASED, b"")
            listener.peer.out.append(frame(kind, link=listener.link, body=body))
        for sender in self.senders:
            sender.peer.out.append(frame(kind, link=sender.link, body=body))
        self.senders.clear()


Key = tuple[Peer, int]
"""Frontend, and number of the link."""


class Relays:
    """All connection points with links at this shard."""

    __slots__ = ("_by_name", "_listeners", "_memory", "_names", "_senders", "_tenancy", "touched")

    def __init__(self, names: Names, tenancy: Tenancy, memory: Memory) -> None:
        self._names = names
        self._memory = memory
        self._tenancy = tenancy
        tenancy.map.listen(self._placed)
        self._by_name: dict[str, Relay] = {}
        self._senders: dict[Key, tuple[Relay, RelaySender]] = {}
        self._listeners: dict[Key, tuple[Relay, Listener]] = {}
        self.touched: dict[Relay, None] = {}
        """Relays whose credit is shared at the end of this step."""

    # --- links -----------------------------------------------------------------------------------------

    def open_sender(self, peer: Peer, link: int, epoch: int, name: str, now_ms: int) -> None:
        """Opens the link of a sender, which waits for a GRANT."""
        self.close_sender(peer, link)
        relay = self._open(peer, link, epoch, name)
        if relay is not None:
            sender = RelaySender(peer, link, now_ms)
            self._senders[peer, link] = relay, sender
            relay.senders.append(sender)
            peer.out.append(frame(Kind.PRODUCER_READY, link=link))

    def open_listener(self, peer: Peer, link: int, epoch: int, options: ConsumerOpen) -> None:
        """Opens the link of a listener."""
        self.close_listener(peer, link)
        relay = self._open(peer, link, epoch, options.queue)
        if relay is not None:
            listener = Listener(peer, link, options)
            self._listeners[peer, link] = relay, listener
            relay.listeners.append(listener)
            peer.out.append(frame(Kind.CONSUMER_READY, link=link))

    def close_sender(self, peer: Peer, link: int) -> None:
        """Closes the link of a sender; outcomes of its messages are dropped."""
        found = self._senders.pop((peer, link), None)
        if found is not None:
            relay, sender = found
            relay.forget(sender)
            self._closed(relay)

    def close_listener(self, peer: Peer, link: int, ending: Ending = Ending.BY_BROKER) -> None:
        """Closes the link of a listener: its senders get the outcome of its unsettled messages."""
        found = self._listeners.pop((peer, link), None)
        if found is not None:
            relay, listener = found
            relay.leave(listener, *listener.outcome(ending))
            self._closed(relay)

    def forget(self, peer: Peer) -> None:
        """Closes all links of a frontend that failed."""
        for listener in [each for _, each in self._listeners.values() if each.peer is peer]:
            self.close_listener(peer, listener.link)
        for sender in [each for _, each in self._senders.values() if each.peer is peer]:
            self.close_sender(peer, sender.link)

    def has_listener(self, peer: Peer, link: int) -> bool:
        """Whether the link is a listener of a connection point."""
        return (peer, link) in self._listeners

    def name_changed(self, name: str) -> None:
        """Follows a change of a name in the directory."""
        relay = self._by_name.get(name)
        if relay is None:
            return
        found = self._names.get(name)
        if found.role is Role.CONNECTION_POINT and not found.is_another(relay.record):
            relay.record = found
        else:
            self._end(relay, Refusal(conditions.RESOURCE_DELETED, f"{name} was deleted"))

    def _placed(self, changes: MapChanges) -> None:
        """Ends links of connection points that are now at other shards; their frontends open them there."""
        for name in changes.placements & self._by_name.keys():
            placed = self._tenancy.map.placed(name)
            if placed is not None and placed.shard != self._tenancy.shard:
                self._end(self._by_name[name], moved(f"{name} is at another shard"))

    def _end(self, relay: Relay, why: Refusal) -> None:
        for listener in relay.listeners:
            self._listeners.pop((listener.peer, listener.link), None)
        for sender in relay.senders:
            self._senders.pop((sender.peer, sender.link), None)
        relay.end(why)
        del self._by_name[relay.name]
        self.touched.pop(relay, None)

    def _open(self, peer: Peer, link: int, epoch: int, name: str) -> Relay | None:
        if self._tenancy.refusal(name, epoch) is not None:
            peer.send_away(link, name, epoch, consumer=False)
            return None
        found = self._names.get(name)
        if found.role is not Role.CONNECTION_POINT:
            refusal = Refusal(
                conditions.NOT_FOUND, f"{name} has role {found.role}; expected a connection-point"
            )
            peer.out.append(frame(Kind.GONE, link=link, body=refusal.encode()))
            return None
        relay = self._by_name.get(name)
        if relay is None:
            relay = self._by_name[name] = Relay(found, self._memory)
        self.touched[relay] = None
        return relay

    def _closed(self, relay: Relay) -> None:
        self.touched[relay] = None
        if not relay.listeners and not relay.senders and self._by_name.get(relay.name) is relay:
            del self._by_name[relay.name]
            del self.touched[relay]

    # --- frames of links --------------------------------------------------------------------------------

    def send(self, peer: Peer, part: Part, now_ms: int) -> None:
        """Applies an ENQUEUE of a sender."""
        _kind, _flags, _priority, _epoch, link, messages, number = HEADER.unpack_from(part)
        found = self._senders.get((peer, link))
        if found is not None:
            relay, sender = found
            relay.send(sender, part, messages, number, now_ms)
            self.touched[relay] = None

    def credit(self, peer: Peer, part: Part, now_ms: int) -> None:
        """Applies a CREDIT of a listener; with drain, unused credit is consumed at once."""
        _kind, flags, _, _, link, kib, limit = HEADER.unpack_from(part)
        found = self._listeners.get((peer, link))
        if found is None:
            return
        relay, listener = found
        listener.allow(
            limit, kib << 10 if kib else UNBOUNDED, exact=bool(flags & EXACT), more=bool(flags & MORE)
        )
        if flags & DRAIN:
            listener.draining = True
            relay.pass_waiting(now_ms)
            listener.draining = False
            # The frontend opens its next window only if this window was used up.
            listener.expects_window &= listener.is_used_up
            listener.limit = listener.next
            peer.out.append(frame(Kind.DRAINED, link=link, number=listener.next))
        self.touched[relay] = None

    def settle(self, peer: Peer, part: Part) -> None:
        """Applies a SETTLE of a listener."""
        _kind, code, _, _, link, messages, number = HEADER.unpack_from(part)
        found = self._listeners.get((peer, link))
        if found is not None:
            found[1].settle(number, number + messages, code, bytes(part[HEADER_SIZE:]))

    # --- turns -----------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> None:
        """Shares the credit of the touched relays."""
        if self.touched:
            touched, self.touched = self.touched, {}
            for relay in touched:
                relay.pass_waiting(now_ms)
                relay.share(now_ms)

    def tick(self, now_ms: int) -> None:
        """Gives unused grants to waiting senders."""
        for relay in self._by_name.values():
            if len(relay.senders) > 1:
                relay.share(now_ms)
