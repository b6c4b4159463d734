"""The relays of a shard by name: their links come and go, speak, and are given credit once per step."""

from lightrail.cluster.map import MapChanges
from lightrail.model import conditions
from lightrail.model.policy import Role
from lightrail.shard.declarations import Names
from lightrail.shard.memory import Memory
from lightrail.shard.moving.tenancy import Tenancy, moved
from lightrail.shard.peers import Peer
from lightrail.shard.queue.commands import UNBOUNDED
from lightrail.shard.relay import Listener, Relay, Sender
from lightrail.wire.bodies import ConsumerOpen, Refusal
from lightrail.wire.frames import DRAIN, EXACT, HEADER, HEADER_SIZE, MORE, Kind, OutcomeCode, frame


class Relays:
    """Every connection point that has a link on this shard."""

    __slots__ = ("_by_name", "_memory", "_names", "_tenancy", "touched")

    def __init__(self, names: Names, tenancy: Tenancy, memory: Memory) -> None:
        self._names = names
        self._memory = memory
        self._tenancy = tenancy
        tenancy.places.listen(self._placed)
        self._by_name: dict[str, Relay] = {}
        self.touched: dict[Relay, None] = {}

    # --- links -----------------------------------------------------------------------------------------

    def open_sender(self, peer: Peer, link: int, epoch: int, name: str, now_ms: int) -> None:
        """A frontend's link wants to send; it waits for a GRANT."""
        self.close_sender(peer, link)
        relay = self._open(peer, link, epoch, name)
        if relay is not None:
            sender = peer.senders[link] = Sender(relay, peer, link, now_ms)
            relay.senders.append(sender)
            peer.out.append(frame(Kind.PRODUCER_READY, link=link))

    def open_listener(self, peer: Peer, link: int, epoch: int, options: ConsumerOpen) -> None:
        """A frontend's link wants to receive."""
        self.close_listener(peer, link)
        relay = self._open(peer, link, epoch, options.queue)
        if relay is not None:
            listener = peer.listeners[link] = Listener(relay, peer, link, options)
            relay.listeners.append(listener)
            peer.out.append(frame(Kind.CONSUMER_READY, link=link))

    def close_sender(self, peer: Peer, link: int) -> None:
        """It has gone; outcomes of what it sent have nowhere to go."""
        sender = peer.senders.pop(link, None)
        if sender is not None:
            sender.relay.forget(sender)
            self._left(sender.relay)

    def close_listener(self, peer: Peer, link: int) -> None:
        """It has gone: what it did not settle gets its default outcome."""
        listener = peer.listeners.pop(link, None)
        if listener is not None:
            listener.relay.leave(listener, *listener.default)
            self._left(listener.relay)

    def forget(self, peer: Peer) -> None:
        """The frontend is gone: it was us, not the client, who failed, and nothing counts as an attempt."""
        for listener in list(peer.listeners.values()):
            listener.default = (OutcomeCode.RELEASED, b"")
            self.close_listener(peer, listener.link)
        for link in list(peer.senders):
            self.close_sender(peer, link)

    def name_changed(self, name: str) -> None:
        """The directory says something new of a name."""
        relay = self._by_name.get(name)
        if relay is None:
            return
        found = self._names.get(name)
        if found.role is Role.CONNECTION_POINT and not found.is_another(relay.record):
            relay.record = found
        else:
            relay.end(Refusal(conditions.RESOURCE_DELETED, f"{name} was dropped"))
            del self._by_name[name]
            self.touched.pop(relay, None)

    def _placed(self, changes: MapChanges) -> None:
        """Connection points that are elsewhere now: their links go there, nothing is taken along."""
        for name in changes.placements & self._by_name.keys():
            placed = self._tenancy.places.placed(name)
            if placed is not None and placed.shard != self._tenancy.shard:
                relay = self._by_name.pop(name)
                relay.end(moved(f"{name} is at another shard"))
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

    def _left(self, relay: Relay) -> None:
        self.touched[relay] = None
        if not relay.listeners and not relay.senders and self._by_name.get(relay.name) is relay:
            del self._by_name[relay.name]
            del self.touched[relay]

    # --- what links say --------------------------------------------------------------------------------

    def send(self, peer: Peer, part: bytes, now_ms: int) -> None:
        """An ENQUEUE of a link that is not a queue's."""
        _kind, _flags, _priority, _epoch, link, messages, number = HEADER.unpack_from(part)
        sender = peer.senders.get(link)
        if sender is not None:
            sender.relay.send(sender, part, messages, number, now_ms)
            self.touched[sender.relay] = None

    def credit(self, peer: Peer, part: bytes, now_ms: int) -> None:
        """A CREDIT of a link that is not a queue's; with drain it is taken back at once."""
        _kind, flags, _, _, link, kib, limit = HEADER.unpack_from(part)
        listener = peer.listeners.get(link)
        if listener is None:
            return
        listener.allow(
            limit, kib << 10 if kib else UNBOUNDED, exact=bool(flags & EXACT), more=bool(flags & MORE)
        )
        if flags & DRAIN:
            listener.draining = True
            listener.relay.go_on(now_ms)
            listener.draining = False
            # The frontend opens its next window only where this one was used up.
            listener.expects_window &= listener.is_used_up
            listener.limit = listener.next
            peer.out.append(frame(Kind.DRAINED, link=link, number=listener.next))
        self.touched[listener.relay] = None

    def settle(self, peer: Peer, part: bytes) -> None:
        """A SETTLE of a link that is not a queue's."""
        _kind, code, _, _, link, messages, number = HEADER.unpack_from(part)
        listener = peer.listeners.get(link)
        if listener is not None:
            listener.settle(number, number + messages, code, part[HEADER_SIZE:])

    # --- turns -----------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> None:
        """Shares the credit of the relays where something happened."""
        if self.touched:
            touched, self.touched = self.touched, {}
            for relay in touched:
                relay.go_on(now_ms)
                relay.share(now_ms)

    def tick(self, now_ms: int) -> None:
        """Time has passed: grants that nobody uses go to those who wait."""
        for relay in self._by_name.values():
            if len(relay.senders) > 1:
                relay.share(now_ms)
