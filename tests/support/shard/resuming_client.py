"""A client that resumes a link over frontends, in the hands of a test, with its connections and a shard.

The links of the frontends, their connections to the shard and the shard's engine are real. Frames of both
protocols wait on their way until the test moves them.
"""

import random
from collections import deque
from types import SimpleNamespace
from typing import Any, Final, Protocol

from lightrail.amqp.events import ACCEPTED, Resumed, SenderSettled, Transfers
from lightrail.amqp.link import SETTLE_SECOND
from lightrail.amqp.sections import Header, encode_header
from lightrail.frontend.links.bound import Terms
from lightrail.frontend.links.resumable import ResumableLink
from lightrail.model.links import Durability
from lightrail.model.placement import Placement
from lightrail.shard_client.owners.owners import Owners
from lightrail.shard_client.peers.shards import ShardPeer
from lightrail.wire.bodies import Refusal
from tests.support.amqp.frontend_fakes import FakeConnection, FakeLink
from tests.support.shard.resolvers import FixedResolver
from tests.support.shard.scene import Scene
from tests.support.shard.wires import Timers, Wire, wiring_of

QUEUE: Final = "q"
LINK: Final = "1" * 32
TAGS: Final = (b"a", b"b", b"c")
HEADS: Final = {durable: encode_header(Header(durable=durable)) for durable in (True, False)}
SECONDS: Final = 600
AT_SHARD: Final = 0


class World(Protocol):
    """The test."""

    chance: random.Random
    durability: Durability
    shard: "Shard"

    def now(self) -> int:
        """Milliseconds since 1970."""

    def next_link(self) -> int:
        """A number for a link, never used before."""


class Shard(Scene):
    """A shard of one life."""

    wires: dict[bytes, Wire]

    def _deliver(self, output: list[tuple[bytes, list[bytes]]]) -> None:
        for identity, parts in output:
            if (wire := self.wires.get(identity)) is not None:
                wire.to_frontend.append(parts)
            elif (peer := self.peers.get(identity)) is not None:
                peer.hear(parts)


class Frontend:
    """One process of a frontend, with its connection to the shard."""

    def __init__(self, world: World, number: int, boot: int) -> None:
        self.world = world
        self.timers = Timers()
        self.fake = FakeConnection().frontend
        resolver = FixedResolver()
        owners = Owners(resolver, self.timers, now_ms=world.now, shard_wait_ms=0)  # type: ignore[arg-type]
        self.peer = resolver.peers[AT_SHARD] = ShardPeer(
            self.timers,  # type: ignore[arg-type]
            wiring_of(Wire),
            shard=AT_SHARD,
            address="inproc://nowhere",
            frontend=f"frontend-{number}",
            boot=boot,
            now_ms=world.now,
            schedule_flush=lambda: None,
            flush=lambda: None,
            watch=owners,
        )
        self.owners = owners
        self.wire: Wire = self.peer._socket  # type: ignore[assignment]
        self.identity = b"%d/%d" % (number, boot)

    def move_to_shard(self) -> None:
        self.peer.flush()
        if self.wire.to_shard:
            self.world.shard.receive(self.identity, self.wire.to_shard.popleft())
            self.world.shard.turn()

    def move_to_frontend(self) -> None:
        if self.wire.to_frontend:
            self.wire.receive(self.wire.to_frontend.popleft())
            self.peer.flush()


class Link(FakeLink):
    """The engine's link of one attach; what it writes is on its way to the client."""

    def __init__(self, attach: "Attach", unsettled: dict[bytes, Any]) -> None:
        super().__init__()
        self.rcv_settle_mode = SETTLE_SECOND
        self.incomplete_unsettled = False
        self.attach = SimpleNamespace(unsettled=unsettled, incomplete_unsettled=False, properties=None)
        self.on = attach
        self.ended: set[int] = set()
        """Deliveries that the client has settled."""

    def keep_tags(self) -> None:
        """The test's events have tags."""

    def settle(self, first: int, last: int, state: Any) -> int:
        for number in range(first, last + 1):
            if number not in self.ended:
                self.on.to_client.append(("outcome", number, state is ACCEPTED))
        return last - first + 1


class Attach:
    """One attach of the client's link, on a connection of its own, from both sides."""

    def __init__(
        self, world: World, frontend: Frontend, unsettled: dict[bytes, Any], durability: int
    ) -> None:
        self.frontend = frontend
        self.to_broker: deque[tuple[Any, ...]] = deque()
        self.to_client: deque[tuple[Any, ...]] = deque()
        self.next_id = 0
        self.ids: dict[int, bytes] = {}
        """The client's: tags of deliveries without an outcome."""
        self.settling: dict[bytes, int] = {}
        """The client's: tags that it has settled, and the id of the next delivery behind that."""
        self.resumed: set[int] = set()
        """The client's: ids of resumed deliveries, which the frontend answers."""
        self.is_attached = False
        connection = FakeConnection(frontend.fake)
        connection.accept_incoming = self._accepted  # type: ignore[method-assign]
        connection.refuse = self._refused  # type: ignore[method-assign]
        self.link = Link(self, unsettled)
        self.terms = Terms("owner")
        owner = frontend.owners.at(QUEUE, Placement(AT_SHARD, 1))
        self.bound = ResumableLink(
            connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            owner,
            number=world.next_link(),
            queue=QUEUE,
            label="",
            client_link=LINK,
            seconds=SECONDS,
            durability=durability,
            terms=self.terms,
        )
        self.is_open = True
        """Whether the frontend has not noticed the end of the connection."""
        owner.open_producer(self.bound)

    def _accepted(self, link: Any) -> None:
        self.to_client.append(("attached",))

    def _refused(self, link: Any, attached: bool, refusal: Refusal) -> None:
        self.is_open = False
        self.to_client.append(("detached", refusal.condition))

    def move_to_broker(self) -> None:
        """The frontend reads the client's next frame."""
        if not self.to_broker or not self.is_open:
            return
        what, *rest = self.to_broker.popleft()
        link: Any = self.link
        if what == "transfers":
            first, tags, messages, durable = rest
            head = HEADS[durable]
            payloads = [head + message for message in messages]
            self.bound.transfers(Transfers(link, first, payloads, False, 0, head, tags=list(tags)), 1_000_000)
        elif what == "settled":
            (number,) = rest
            self.link.ended.add(number)
            self.bound.sender_settled(SenderSettled(link, number, number))
        elif what == "detach":
            self.end()
        else:
            number, tag, settled = rest
            self.bound.resumed(Resumed(link, number, tag, ACCEPTED, settled))

    def end(self) -> None:
        """The frontend notices that the connection has ended."""
        if self.is_open:
            self.is_open = False
            self.bound.close()


class Client:
    """One link over all of its attaches."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.chance
        self.attach: Attach | None = None
        self.sending: dict[bytes, tuple[bytes, bool]] = {}
        """The message under each tag that has no outcome, and whether it is durable."""
        self.settled: dict[bytes, None] = {}
        """Tags that the client has settled, and may not use yet."""
        self.sent = 0
        self.accepted: dict[bytes, bool] = {}
        """Messages whose outcome is accepted, and whether they are durable."""
        self.log: list[str] = []

    @property
    def free(self) -> list[bytes]:
        return [tag for tag in TAGS if tag not in self.sending and tag not in self.settled]

    def note(self, text: str) -> None:
        """Adds a line to the history that a failure shows."""
        self.log.append(text)

    def begin(self, frontend: Frontend) -> None:
        """Attaches the link on another connection."""
        self.attach = Attach(self.world, frontend, dict.fromkeys(self.sending), self.world.durability)
        self.note(f"attach {self.attach.bound.number} at {frontend.identity!r} with {[*self.sending]}")

    def lose(self) -> None:
        """The client has no connection any more."""
        self.attach = None

    def detach(self) -> None:
        """Detaches the link in order, to attach it elsewhere."""
        if self.attach is not None:
            self.note(f"  {self.attach.bound.number}: detach")
            self.attach.to_broker.append(("detach",))
            self.lose()

    def send(self) -> None:
        """Sends a few new messages."""
        free = self.free
        if self.attach is None or not self.attach.is_attached or not free:
            return
        tags = self.chance.sample(free, self.chance.randint(1, len(free)))
        durable = self.chance.random() < 0.8
        for tag in tags:
            self.sent += 1
            self.sending[tag] = b"<%06d>" % self.sent, durable
        self._transfer(tags)

    def _transfer(self, tags: list[bytes]) -> None:
        attach = self.attach
        assert attach is not None
        while tags:
            durable = self.sending[tags[0]][1]
            some = [tag for tag in tags if self.sending[tag][1] is durable]
            tags = [tag for tag in tags if tag not in some]
            first = attach.next_id
            attach.ids.update(enumerate(some, first))
            attach.next_id += len(some)
            messages = [self.sending[tag][0] for tag in some]
            self.note(f"  {attach.bound.number}: transfer {dict(zip(some, messages, strict=True))}")
            attach.to_broker.append(("transfers", first, some, messages, durable))

    def give_up(self) -> None:
        """Settles a delivery without waiting for its outcome, which stays unknown."""
        attach = self.attach
        if attach is not None and attach.ids and self.chance.random() < 0.2:
            number = self.chance.choice([*attach.ids])
            del self.sending[attach.ids[number]]
            self._settle(number)

    def _settle(self, number: int) -> None:
        attach = self.attach
        assert attach is not None
        tag = attach.ids.pop(number)
        self.settled[tag] = None
        attach.settling[tag] = attach.next_id
        self.note(f"  {attach.bound.number}: settle {tag!r}")
        attach.to_broker.append(("settled", number))

    def hear(self) -> None:
        """Reads the broker's next frame."""
        attach = self.attach
        if attach is None or not attach.to_client:
            return
        what, *rest = attach.to_client.popleft()
        if what == "attached":
            self._attached(attach)
        elif what == "detached":
            self.note(f"  {attach.bound.number}: detached {rest}")
            self.lose()
        else:
            number, is_accepted = rest
            if number not in attach.resumed:
                # Tags are free whose deliveries were settled ahead of this message.
                for tag in [tag for tag, behind in attach.settling.items() if behind <= number]:
                    del attach.settling[tag]
                    self.settled.pop(tag, None)
            if number in attach.ids:
                self._outcome(attach.ids[number], is_accepted)
                self._settle(number)

    def _outcome(self, tag: bytes, is_accepted: bool) -> None:
        message, durable = self.sending.pop(tag)
        self.note(f"  outcome of {message!r}: {is_accepted}")
        if is_accepted and message:
            self.accepted[message] = durable

    def _attached(self, attach: Attach) -> None:
        attach.is_attached = True
        theirs = attach.terms.unsettled
        self.note(f"  {attach.bound.number}: attached with {theirs}")
        self.settled = {}
        if (theirs is None and self.sending) or not attach.terms.suspended_s:
            # The outcomes are unknown.
            self.sending = {}
            return
        for tag in [*self.sending]:
            if tag in (theirs or ()):
                self._outcome(tag, True)
                number = attach.next_id
                attach.next_id += 1
                is_settled = self.chance.random() < 0.5
                attach.resumed.add(number)
                attach.to_broker.append(("resumed", number, tag, is_settled))
                if is_settled:
                    self.settled[tag] = None
                    attach.settling[tag] = attach.next_id
                else:
                    attach.ids[number] = tag
                    self.sending[tag] = b"", False
            elif not self.sending[tag][0]:
                # The broker has settled as well.
                del self.sending[tag]
        self._transfer([tag for tag in self.sending if tag not in attach.ids.values()])


class HastyClient(Client):
    """A client that uses a tag again as soon as it has settled the delivery."""

    @property
    def free(self) -> list[bytes]:
        return [tag for tag in TAGS if tag not in self.sending]
