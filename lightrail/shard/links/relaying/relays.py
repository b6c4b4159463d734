"""The relays of a shard by name, and the links to them."""

from lightrail.cluster.map import MapChanges
from lightrail.model import conditions
from lightrail.model.ending import Ending
from lightrail.model.policy import Role
from lightrail.shard.effects.peers import Peer
from lightrail.shard.links.relaying.ends import Listener, Sender
from lightrail.shard.links.relaying.relay import Relay
from lightrail.shard.queue.values.commands import UNBOUNDED
from lightrail.shard.queues.declarations import Names
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.tenancy import Tenancy, moved
from lightrail.wire.bodies import ConsumerOpen, Refusal
from lightrail.wire.frames import DRAIN, EXACT, HEADER, HEADER_SIZE, MORE, Kind, frame

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
        self._senders: dict[Key, tuple[Relay, Sender]] = {}
        self._listeners: dict[Key, tuple[Relay, Listener]] = {}
        self.touched: dict[Relay, None] = {}
        """Relays whose credit is shared at the end of this step."""

    # --- links -----------------------------------------------------------------------------------------

    def open_sender(self, peer: Peer, link: int, epoch: int, name: str, now_ms: int) -> None:
        """Opens the link of a sender, which waits for a GRANT."""
        self.close_sender(peer, link)
        relay = self._open(peer, link, epoch, name)
        if relay is not None:
            sender = Sender(peer, link, now_ms)
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

    def send(self, peer: Peer, part: bytes, now_ms: int) -> None:
        """Applies an ENQUEUE of a sender."""
        _kind, _flags, _priority, _epoch, link, messages, number = HEADER.unpack_from(part)
        found = self._senders.get((peer, link))
        if found is not None:
            relay, sender = found
            relay.send(sender, part, messages, number, now_ms)
            self.touched[relay] = None

    def credit(self, peer: Peer, part: bytes, now_ms: int) -> None:
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
            relay.go_on(now_ms)
            listener.draining = False
            # The frontend opens its next window only if this window was used up.
            listener.expects_window &= listener.is_used_up
            listener.limit = listener.next
            peer.out.append(frame(Kind.DRAINED, link=link, number=listener.next))
        self.touched[relay] = None

    def settle(self, peer: Peer, part: bytes) -> None:
        """Applies a SETTLE of a listener."""
        _kind, code, _, _, link, messages, number = HEADER.unpack_from(part)
        found = self._listeners.get((peer, link))
        if found is not None:
            found[1].settle(number, number + messages, code, part[HEADER_SIZE:])

    # --- turns -----------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> None:
        """Shares the credit of the touched relays."""
        if self.touched:
            touched, self.touched = self.touched, {}
            for relay in touched:
                relay.go_on(now_ms)
                relay.share(now_ms)

    def tick(self, now_ms: int) -> None:
        """Gives unused grants to waiting senders."""
        for relay in self._by_name.values():
            if len(relay.senders) > 1:
                relay.share(now_ms)
