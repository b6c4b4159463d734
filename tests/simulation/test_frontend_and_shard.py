"""The real links of a frontend and the real engine of a shard, with the wire between them in the test's hand.

Frames wait as long as chance wants; the shard forgets the frontend, dies and recovers; clients send, give
and take back credit, drain, settle and pause. In the end every message was accepted once and delivered, in
order, every drain was answered, and nothing is left anywhere. What was confirmed to a receiver of mode second
does not come again.
"""

import itertools
import random
from typing import Any

import pytest

from lightrail.amqp.events import ACCEPTED, RELEASED, Credit, Outcome, Transfers
from lightrail.amqp.link import SETTLE_SECOND
from lightrail.amqp.sections import Header, encode_header
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.links.transfers import ProducerLink
from lightrail.model import limits
from lightrail.model.placement import Placement
from lightrail.shard.journal.journal import Journal
from lightrail.shard_client.owners.owners import Owners
from lightrail.shard_client.peers.shards import ConnectionState, ShardPeer
from lightrail.wire.bodies import ConsumerOpen
from tests.support.amqp.frontend_fakes import FakeConnection, FakeLink
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.resolvers import FixedResolver
from tests.support.shard.scene import Scene
from tests.support.shard.wires import Timers, Wire, wiring_of

HEAD = encode_header(Header(durable=True))
QUEUE = "q"
BEAT_MS = 100


class ShardProcess(Scene):
    """A shard of one life; what it says goes onto the wire."""

    wire: Wire

    def _deliver(self, output: list[tuple[bytes, list[bytes]]]) -> None:
        for _, parts in output:
            self.wire.to_frontend.append(parts)


class Sender:
    def __init__(self, play: "Play", number: int) -> None:
        self.link = FakeLink()
        self.producer = ProducerLink(
            play.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            play.owner,
            number=number,
            queue=QUEUE,
        )
        self.number = number
        self.sent = 0
        play.owner.open_producer(self.producer)

    def send(self, count: int) -> None:
        count = min(count, self.link.credit)
        if not count:
            return
        self.link.credit -= count
        payloads = [
            HEAD + b"<%d:%06d>" % (self.number, index) for index in range(self.sent, self.sent + count)
        ]
        event = Transfers(self.link, self.sent, payloads, False, 0, HEAD)  # type: ignore[arg-type]
        self.sent += count
        self.producer.transfers(event, 1_000_000)

    def accepted(self) -> list[int]:
        return [
            number
            for first, last, state in self.link.settled
            if state is ACCEPTED
            for number in range(first, last + 1)
        ]


class ClientLink(FakeLink):
    """As strict as the AMQP engine: nothing beyond the credit that was given."""

    def __init__(self) -> None:
        super().__init__()
        self.limit_max = 0
        self.drain = False

    def send(self, count: int, *rest: Any) -> None:
        assert len(self.sent) + count <= self.limit_max, "beyond the client's credit"
        super().send(count, *rest)

    def drained(self) -> None:
        assert self.drain
        self.drain = False
        self.limit_max = len(self.sent)
        super().drained()


class Receiver:
    settles = True
    """Whether it settles by itself, and at once."""

    def __init__(self, play: "Play", number: int) -> None:
        self.link = ClientLink()
        self.consumer = ConsumerLink(
            play.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            play.owner,
            number=number,
            options=ConsumerOpen(QUEUE),
        )
        self.settled: set[int] = set()
        self.drains = 0
        self.done: list[bytes] = []
        self.consumer.start(0, False)
        play.owner.open_consumer(self.consumer)

    def credit(self, more: int, drain: bool) -> None:
        limit = len(self.link.sent) + more
        self.link.limit_max = max(self.link.limit_max, limit)
        self.link.drain = drain
        self.consumer.credit(Credit(self.link, limit, drain))  # type: ignore[arg-type]

    def settle(self, chance: random.Random, *, all_of_it: bool = False) -> None:
        """A range of what it holds."""
        waiting = [number for number in range(len(self.link.sent)) if number not in self.settled]
        if not waiting:
            return
        first = waiting[0] if all_of_it else chance.choice(waiting)
        last = first
        while last + 1 in waiting and (all_of_it or last - first < 7):
            last += 1
        state = ACCEPTED if all_of_it or chance.random() < 0.8 else RELEASED
        self.settled |= set(range(first, last + 1))
        self.consumer.outcome(Outcome(self.link, first, last, state, self.settles))  # type: ignore[arg-type]


class PatientReceiver(Receiver):
    """One that waits for us to settle (receiver-settle-mode second)."""

    settles = False

    def __init__(self, play: "Play", number: int) -> None:
        super().__init__(play, number)
        self.play = play
        self.link.rcv_settle_mode = SETTLE_SECOND
        self.link.settle_sent = self.confirmed  # type: ignore[method-assign]

    def confirmed(self, first: int, last: int, state: Any) -> int:
        if state is ACCEPTED:
            self.play.confirmed |= {name_of(self.link.sent[number]) for number in range(first, last + 1)}
        return last - first + 1


def name_of(message: bytes) -> bytes:
    """What is the same in every delivery of a message."""
    return message.split(b"<")[1]


class Play:
    receiver: type[Receiver] = Receiver

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chance = random.Random(seed)
        self.timers = Timers()
        self.files = FakeFiles()
        self.boot = 0
        self.now_ms = 1_000_000
        self.connection = FakeConnection()
        self.connection.window_bytes = self.chance.choice((2_048, 40_000, limits.DELIVERY_WINDOW_BYTES))
        if self.chance.random() < 0.5:
            # As where messages are larger than those before them: only bytes hold the shard back.
            monkeypatch.setattr(ConsumerLink, "_messages_ahead", lambda link: limits.DELIVERY_WINDOW_MAX)
        resolver = FixedResolver()
        owners = Owners(resolver, self.timers, now_ms=lambda: self.now_ms, shard_wait_ms=0)  # type: ignore[arg-type]
        self.peer = resolver.peers[0] = ShardPeer(
            self.timers,  # type: ignore[arg-type]
            wiring_of(Wire),
            shard=0,
            address="inproc://nowhere",
            frontend="frontend-0",
            boot=7,
            now_ms=lambda: self.now_ms,
            schedule_flush=lambda: None,
            flush=lambda: None,
            watch=owners,
        )
        self.owner = owners.at(QUEUE, Placement(0, 1))
        self.wire: Wire = self.peer._socket  # type: ignore[assignment]
        self.start_shard()
        self.senders = [Sender(self, number) for number in (1, 2)]
        self.confirmed: set[bytes] = set()
        self.numbers = itertools.count(3)
        self.receivers = [self.receiver(self, next(self.numbers)) for _ in range(2)]
        self.former: list[Receiver] = []
        self.connection.detach = self.lose  # type: ignore[method-assign]

    def start_shard(self) -> None:
        self.boot += 1
        journal = Journal(self.files, "test", 0, segment_bytes=40_000)
        recovered = journal.recover(1 << 30, 1)
        self.shard = ShardProcess(journal, recovered, boot=self.boot, max_delivery_count=0)
        self.shard.wire = self.wire

    def lose(self, link: Any, condition: str, description: str) -> None:
        """A link is detached by the broker: its client attaches again."""
        for index, receiver in enumerate(self.receivers):
            if receiver.link is link:
                receiver.consumer.close()
                self.former.append(receiver)
                self.receivers[index] = self.receiver(self, next(self.numbers))

    # --- what may happen -------------------------------------------------------------------------------

    def move_to_shard(self) -> None:
        self.peer.flush()
        if self.wire.to_shard:
            self.shard.receive(b"id", self.wire.to_shard.popleft())
            self.shard.turn()

    def move_to_frontend(self) -> None:
        if self.wire.to_frontend:
            self.wire.receive(self.wire.to_frontend.popleft())
            self.peer.flush()
        connection = self.connection
        if connection.starved and not connection.has_too_much_unsettled():
            starved, connection.starved = connection.starved, {}
            for link in starved:
                link.writable()

    def commit(self) -> None:
        if self.shard.commit is not None:
            self.shard.end_commit()
        elif self.shard.store.pending:
            self.shard.begin_commit()

    def send(self) -> None:
        self.chance.choice(self.senders).send(self.chance.randint(1, 300))

    def give_credit(self) -> None:
        receiver = self.chance.choice(self.receivers)
        more = self.chance.choice((0, 1, 5, 100, 1_500, 5_000))
        receiver.credit(more, self.chance.random() < 0.4)

    def settle(self) -> None:
        self.chance.choice(self.receivers).settle(self.chance)

    def pause(self) -> None:
        self.connection.paused = not self.connection.paused
        if not self.connection.paused:
            for receiver in self.receivers:
                receiver.consumer.writable()

    def heartbeat(self) -> None:
        """A tenth of a second passes."""
        self.timers.ring()
        frontend = self.connection.frontend
        frontend.time_ms += BEAT_MS
        calls, frontend.calls = frontend.calls, []
        for wait_ms, call in calls:
            if wait_ms > BEAT_MS:
                frontend.calls.append((wait_ms - BEAT_MS, call))
            else:
                call()
        self.shard.tick(BEAT_MS)

    def trouble(self) -> None:
        """Rarely: the shard forgets the frontend, or its process dies and another comes."""
        draw = self.chance.random()
        if draw < 0.03:
            self.shard.engine.lost(b"id")
            self.shard.turn()
        elif draw < 0.05:
            self.files = self.files.after_crash(self.boot, self.chance.choice(("none", "some", "all")))
            self.wire.to_shard.clear()
            self.start_shard()
            self.wire.up = False
            self.peer.flush()
            self.heartbeat()
            self.wire.up = True

    def run(self, steps: int) -> None:
        moves = [self.move_to_shard, self.move_to_frontend] * 4
        acts = [self.send, self.give_credit, self.settle, self.settle, self.commit, self.commit]
        for _ in range(steps):
            self.chance.choice([*moves, *acts, self.pause, self.heartbeat, self.trouble])()

    def calm(self) -> None:
        """No more trouble: everything that is under way arrives."""
        self.connection.paused = False
        for receiver in self.receivers:
            receiver.consumer.writable()
        for _ in range(400):
            self.move_to_shard()
            self.commit()
            self.move_to_frontend()
            if any(wait_ms <= BEAT_MS for wait_ms, _ in self.connection.frontend.calls):
                self.heartbeat()
            if self.peer.state is ConnectionState.GREETING and not (
                self.wire.to_shard or self.wire.to_frontend
            ):
                # Its timer is slower than the wire.
                self.heartbeat()

    def finish(self) -> None:
        """Receivers take everything, and then ask once more by a drain."""
        for _ in range(200):
            self.calm()
            for receiver in self.receivers:
                receiver.settle(self.chance, all_of_it=True)
                receiver.credit(2_000, False)
            if self.shard.queue(QUEUE) == {"ready": 0, "in_flight": 0}:
                break
        for receiver in self.receivers:
            receiver.credit(10, True)
        self.calm()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_everything_arrives(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(seed, monkeypatch)
    play.calm()
    play.run(2_500)
    play.finish()
    for sender in play.senders:
        assert sender.sent > 0
        assert sorted(sender.accepted()) == list(range(sender.sent)), "accepted once"
        assert sender.producer.unanswered == 0
    came = {message for receiver in play.receivers for message in receiver.link.sent}
    wanted = {
        HEAD + b"<%d:%06d>" % (sender.number, index)
        for sender in play.senders
        for index in range(sender.sent)
    }
    assert {message.split(b"<")[1] for message in came} == {message.split(b"<")[1] for message in wanted}
    assert play.shard.queue(QUEUE) == {"ready": 0, "in_flight": 0}
    for receiver in play.receivers:
        assert not receiver.link.drain, "a drain was never answered"
    assert play.connection.unanswered_bytes == 0
    assert play.boot > 1 or play.peer.greetings > 1


class PatientPlay(Play):
    """Its receivers wait to be confirmed; their clients drain nothing, since new links take their place."""

    receiver = PatientReceiver

    def move_to_frontend(self) -> None:
        came = {receiver: len(receiver.link.sent) for receiver in self.receivers}
        before = set(self.confirmed)
        super().move_to_frontend()
        for receiver, count in came.items():
            again = before & set(map(name_of, receiver.link.sent[count:]))
            assert not again, f"confirmed, and delivered again: {again}"


@pytest.mark.parametrize("seed", range(8))
def test_what_was_confirmed_to_a_receiver_never_comes_again(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = PatientPlay(seed, monkeypatch)
    play.calm()
    play.run(2_500)
    play.finish()
    wanted = {b"%d:%06d>" % (sender.number, n) for sender in play.senders for n in range(sender.sent)}
    came = {
        name_of(message) for receiver in (*play.former, *play.receivers) for message in receiver.link.sent
    }
    assert came == wanted
    assert play.shard.queue(QUEUE) == {"ready": 0, "in_flight": 0}
    # Who was detached knows the fate of nothing that waited; all others were answered.
    assert len(play.confirmed) > len(wanted) // 4
    for receiver in play.receivers:
        assert not receiver.consumer.settlements._unconfirmed
    assert play.boot > 1 or play.peer.greetings > 1
