"""Resumed links under schedules drawn at random: what a client has is locked for it, and comes once.

Its settlements and closes are on their way to the shard while it attaches at the other frontend.
"""

from hypothesis import given
from hypothesis import strategies as st

from lightrail.wire.frames import Kind, OutcomeCode
from tests.support.shard.scene import Peer, Scene, numbered_messages

LINK = "1" * 32
MESSAGES = numbered_messages(12)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("attach", "credit", "settle", "release", "close", "lose", "read", "arrive")),
        st.integers(0, 3),
    ),
    max_size=40,
)


class Client:
    """A client with one link at a time, at one of two frontends, and a map of what it has not settled."""

    def __init__(self) -> None:
        self.scene = Scene()
        sender = self.scene.peer("sender", boot=3)
        sender.produce(1, "q")
        sender.send(1, 1, MESSAGES)
        self.scene.settle_down()
        self.boots = 10
        self.peers = [self.frontend(0), self.frontend(1)]
        self.links = 1
        self.peer: Peer | None = None
        self.next = 0
        self.unsettled: dict[int, bytes] = {}
        self.accepted: list[bytes] = []

    def frontend(self, number: int) -> Peer:
        self.boots += 1
        made = self.scene.peer(f"frontend-{number}", boot=self.boots)
        made.late = []
        return made

    def attach(self, number: int) -> None:
        """Also where the link is attached: then it is stolen."""
        self.peer = self.peers[number % 2]
        self.links += 1
        self.peer.consume(self.links, "q", client_link=LINK, steals=True, suspended_ms=60_000, recovers=True)
        self.scene.settle_down()
        _, self.next, ranges = self.peer.recovered.pop(self.links)
        there = [each for first, count in ranges for each in range(first, first + count)]
        assert there == sorted(self.unsettled), "the maps differ"
        self.peer.resend(self.links, *ranges)
        self.scene.settle_down()
        again = {each.number: each.message for each in self.peer.delivered.pop(self.links, [])}
        assert again == self.unsettled
        (answer,) = self.peer.take(Kind.RESENT)
        assert answer.number == (there[-1] + 1 if there else 0)

    def read(self) -> None:
        """Takes what was delivered."""
        if self.peer is not None:
            self.scene.settle_down()
            for each in self.peer.delivered.pop(self.links, []):
                assert each.number == self.next
                assert each.attempts == 0
                self.next += 1
                self.unsettled[each.number] = each.message

    @property
    def is_quiet(self) -> bool:
        """Whether no frame is on its way."""
        return not any(peer.late for peer in self.peers)

    def step(self, what: str, count: int) -> None:
        peer = self.peer
        if what == "arrive":
            self.peers[count % 2].ping()
        if what == "attach":
            self.read()
            self.attach(count)
        elif peer is None:
            return
        elif what == "credit":
            peer.credit(self.links, self.next + count)
        self.read()
        if peer is None:
            return
        if what in ("settle", "release"):
            for number in [*self.unsettled][:count]:
                message = self.unsettled.pop(number)
                if what == "settle":
                    self.accepted.append(message)
                peer.settle(
                    self.links, number, 1, OutcomeCode.ACCEPTED if what == "settle" else OutcomeCode.RELEASED
                )
        elif what == "close":
            peer.close_consumer(self.links)
            self.peer = None
        elif what == "lose":
            peer.ping()
            lost = self.peers.index(peer)
            self.scene.engine.lost(peer.identity)
            self.peers[lost] = self.frontend(lost)
            self.peer = None
        self.read()


@given(steps=STEPS)
def test_the_shard_has_what_the_client_has_over_every_end_of_its_link(steps: list[tuple[str, int]]) -> None:
    client = Client()
    for what, count in steps:
        client.step(what, count)
        left = client.scene.queue("q")
        if not client.is_quiet:
            continue
        assert left["in_flight"] == len(client.unsettled)
        assert left["ready"] + left["in_flight"] + len(client.accepted) == len(MESSAGES)
    client.attach(0)
    assert client.peer is not None
    client.peer.credit(client.links, client.next + 100)
    client.read()
    assert sorted([*client.accepted, *client.unsettled.values()]) == sorted(MESSAGES)
