"""Links that are resumed (2.6.13) over connections that are cut at any byte: once, both ways, in mode second.

Sender and receiver are as small as the specification allows: each has a map of what it has not settled,
compares it with that of the broker, and knows nothing else.
"""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest

from lightrail.amqp.performatives import Accepted, Attach, Disposition, Flow, Source, Target, Transfer
from tests.support.amqp.frame_peer import Peer, receiver, sender, value
from tests.support.broker import Broker

CUTS = 500
SENT_AT_ONCE = 7
DURABLE = b"\x00\x53\x70\xc0\x02\x01\x41"


class CutError(Exception):
    """The connection was cut."""


class CutPeer(Peer):
    """A connection that passes so many bytes in both directions together."""

    def __init__(self, address: str, budget: int) -> None:
        super().__init__(address)
        self.budget = budget

    def send(self, *pieces: bytes) -> None:
        data = b"".join(pieces)
        passed = data[: self.budget]
        self.budget -= len(passed)
        self.socket.sendall(passed)
        if len(passed) < len(data):
            raise CutError

    def take(self, count: int) -> bytes:
        if self.budget < count:
            raise CutError
        self.budget -= count
        return super().take(count)


class ResumingSender:
    """Sends numbered messages over one link, whatever happens to its connections."""

    def __init__(self, broker: Broker, queue: str, mode: int) -> None:
        self.address = broker.amqp
        self.queue = queue
        self.mode = mode
        self.next = 0
        self.unsettled: dict[bytes, Any] = {}
        self.resumed = 0

    def run(self, budget: int) -> None:
        """One connection, until it is cut or everything sent on it is settled."""
        with CutPeer(self.address, budget) as peer, contextlib.suppress(CutError):
            self._run(peer)

    def _run(self, peer: CutPeer) -> None:
        peer.open(container_id="cut")
        peer.begin()
        target = Target(address=self.queue, timeout=60)
        given: dict[str, Any] = {
            "name": "link",
            "target": target,
            "rcv_settle_mode": self.mode,
            "unsettled": dict(self.unsettled),
        }
        peer.write(sender(self.queue, **given))
        answer = peer.expect(Attach)
        peer.expect(Flow)
        assert answer.unsettled is not None
        assert not answer.unsettled.keys() - self.unsettled.keys()
        ids: dict[int, bytes] = {}
        wanted = [*self.unsettled]
        for tag in wanted:
            if tag in answer.unsettled:
                # It is stored: settled here, and by the resumed transfer there.
                number = len(ids)
                ids[number] = tag
                del self.unsettled[tag]
                self.resumed += 1
                resumed = Transfer(handle=0, delivery_id=number, delivery_tag=tag, resume=True, settled=True)
                peer.write(resumed)
            else:
                self._transfer(peer, ids, tag)
        for _ in range(SENT_AT_ONCE):
            tag = b"%d" % self.next
            self.next += 1
            self.unsettled[tag] = None
            self._transfer(peer, ids, tag)
        while self.unsettled:
            found = peer.read().body
            if type(found) is not Disposition:
                continue
            assert type(found.state) is Accepted
            assert found.settled is (self.mode == 0)
            last = found.first if found.last is None else found.last
            for number in range(found.first, last + 1):
                self.unsettled.pop(ids[number], None)
            if self.mode:
                peer.write(Disposition(role=False, first=found.first, last=last, settled=True))

    def _transfer(self, peer: CutPeer, ids: dict[int, bytes], tag: bytes) -> None:
        number = len(ids)
        ids[number] = tag
        header = DURABLE if int(tag) % 2 else b""
        peer.write(Transfer(handle=0, delivery_id=number, delivery_tag=tag), header + value(int(tag)))


class ResumingReceiver:
    """Receives over one link in mode second, and takes each message into `received` once."""

    def __init__(self, broker: Broker, queue: str, chance: random.Random) -> None:
        self.address = broker.amqp
        self.queue = queue
        self.chance = chance
        self.unsettled: dict[bytes, Any] = {}
        self.received: list[bytes] = []
        self.resumed = self.concluded = 0

    def run(self, budget: int) -> None:
        """One connection, until it is cut, or nothing is left to receive and to settle."""
        with CutPeer(self.address, budget) as peer, contextlib.suppress(CutError):
            self._run(peer)

    def _run(self, peer: CutPeer) -> None:
        peer.open(container_id="cut")
        peer.begin(incoming_window=100_000)
        given: dict[str, Any] = {
            "name": "link",
            "source": Source(address=self.queue, timeout=60),
            "rcv_settle_mode": 1,
            "unsettled": dict(self.unsettled),
        }
        peer.write(receiver(self.queue, **given))
        answer = peer.expect(Attach)
        assert answer.unsettled is not None
        for tag in self.unsettled.keys() - answer.unsettled.keys():
            # Stored there, and the settlement was lost.
            assert self.unsettled.pop(tag) is not None
        # What is unsettled has to fit into the maps of a connection that is cut soon.
        peer.flow(2 * SENT_AT_ONCE, incoming_window=100_000, drain=True)
        ids: dict[int, bytes] = {}
        is_drained = False
        while not is_drained or any(self.unsettled.values()):
            body, payload = (frame := peer.read()).body, frame.payload
            if type(body) is Flow:
                is_drained = True
            elif type(body) is Transfer:
                self._transfer(peer, ids, body, payload)
            elif type(body) is Disposition:
                assert body.settled
                last = body.first if body.last is None else body.last
                for number in range(body.first, last + 1):
                    assert self.unsettled.pop(ids[number]) is not None

    def _transfer(self, peer: CutPeer, ids: dict[int, bytes], body: Transfer, payload: bytes) -> None:
        tag = body.delivery_tag
        assert tag is not None
        assert body.resume is (tag in self.unsettled)
        if body.settled:
            assert self.unsettled.pop(tag) is not None
            self.concluded += 1
            return
        assert body.delivery_id is not None
        ids[body.delivery_id] = tag
        self.resumed += body.resume
        assert self.unsettled.get(tag) is None
        self.unsettled[tag] = None
        if self.chance.random() < 0.3:
            # It stays without an outcome until the next attach.
            return
        self.received.append(payload.removeprefix(DURABLE))
        self.unsettled[tag] = Accepted()
        if self.chance.random() < 0.05:
            # The outcome did not leave: the next attach has it.
            raise CutError
        peer.write(Disposition(role=True, first=body.delivery_id, settled=False, state=Accepted()))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With two frontends: the link comes back at either of them."""
    with Broker(tmp_path_factory.mktemp("broker") / "data", "--frontends", "2", "--shards", "2") as started:
        yield started


@pytest.mark.parametrize("mode", [0, 1], ids=["first", "second"])
def test_over_many_cuts_each_message_is_stored_and_in_mode_second_once(
    broker: Broker, queue: str, mode: int
) -> None:
    chance = random.Random(mode)
    client = ResumingSender(broker, queue, mode)
    for _ in range(CUTS):
        client.run(chance.randrange(300, 1_600))
    client.run(1 << 20)
    assert not client.unsettled
    # In mode first tags are free with their outcomes, and no map has any.
    is_as_expected = client.resumed > CUTS // 10 if mode else not client.resumed
    assert is_as_expected, f"{client.resumed} cuts met outcomes under way"
    with Peer(broker.amqp) as peer:
        peer.open(container_id="reader")
        peer.begin(incoming_window=100_000)
        peer.attach_receiver(queue)
        peer.flow(100_000, incoming_window=100_000, drain=True)
        found: list[bytes] = []
        while type((frame := peer.read()).body) is not Flow:
            found.append(frame.payload.removeprefix(DURABLE))
    stored = sorted(found) if mode else sorted(set(found))
    assert stored == sorted(value(number) for number in range(client.next))


def test_over_many_cuts_each_message_is_received_once(broker: Broker, queue: str) -> None:
    chance = random.Random(7)
    client = ResumingReceiver(broker, queue, chance)
    sent = 0
    with Peer(broker.amqp) as source:
        for _ in range(CUTS):
            numbers = range(sent, sent + SENT_AT_ONCE)
            source.put(queue, *((DURABLE if number % 2 else b"") + value(number) for number in numbers))
            sent += SENT_AT_ONCE
            client.run(chance.randrange(500, 2_500))
    for _ in range(1_000):
        if len(client.received) == sent and not client.unsettled:
            break
        client.run(chance.randrange(2_000, 20_000))
    assert sorted(client.received) == sorted(value(number) for number in range(sent))
    assert client.resumed > CUTS // 10, "hardly any cut met deliveries under way"
    assert client.concluded > CUTS // 10, "hardly any cut met outcomes under way"
