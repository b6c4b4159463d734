"""A client that resumes its link and uses few delivery-tags again and again loses no accepted message.

Its connections are cut, in order or unnoticed, and it attaches the link at the same or the other frontend;
frontends hang, are forgotten, killed or stopped, and so is the shard. Messages are durable or transient, and
some deliveries are settled before their outcome. The client uses a tag again as soon as ADR 41 allows it.
"""

import itertools
import os
import random
from collections.abc import Callable
from typing import Any, Final

import pytest

from lightrail.model.links import Durability
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.declarations import EveryName
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.resuming_client import QUEUE, Attach, Client, Frontend, HastyClient, Shard
from tests.support.shard.scene import Peer
from tests.support.shard.wires import Wire

BEAT_MS: Final = 100
STEPS: Final = 2_500
SEEDS: Final = 8
"""Runs of a test."""
HASTY_SEEDS: Final = 20


class Play:
    """Everything of one run."""

    def __init__(
        self,
        seed: int,
        durability: Durability,
        policy: dict[str, Any],
        client: Callable[["Play"], Client] = Client,
    ) -> None:
        self.chance = random.Random(seed)
        self.durability = durability
        self.policy = {"role": "queue"} | policy
        self.now_ms = 1_000_000
        self.links = 0
        self.boots = 10
        self.starts = 0
        self.files = FakeFiles()
        self.wires: dict[bytes, Wire] = {}
        self.received: set[bytes] = set()
        self.client = client(self)
        self.start_shard()
        self.frontends = [self.start_frontend(number) for number in range(2)]
        self.hung: Frontend | None = None
        self.former: list[Attach] = []
        """Attaches whose end the frontend has not noticed."""

    def now(self) -> int:
        return self.now_ms

    def next_link(self) -> int:
        self.links += 1
        return self.links

    def start_shard(self) -> None:
        self.starts += 1
        journal = Journal(self.files, "test", 0, segment_bytes=40_000)
        recovered = journal.recover(1 << 30, 1)
        names = EveryName()
        names.give(QUEUE, Policy.parse(self.policy))
        self.shard = Shard(
            journal, recovered, boot=self.starts, names=names, now_ms=self.now_ms, max_delivery_count=0
        )
        self.shard.wires = self.wires

    def start_frontend(self, number: int) -> Frontend:
        self.boots += 1
        frontend = Frontend(self, number, self.boots)
        frontend.fake.links = 1_000 * self.boots
        self.wires[frontend.identity] = frontend.wire
        return frontend

    # --- what may happen -------------------------------------------------------------------------------

    def move(self) -> None:
        for frontend in self.frontends:
            for move in (frontend.move_to_shard, frontend.move_to_frontend):
                if frontend is not self.hung and self.chance.random() < 0.6:
                    move()

    def hang(self) -> None:
        """A frontend does not run for a while."""
        self.hung = self.chance.choice((None, *self.frontends))

    def read(self) -> None:
        """A frontend reads of a connection of the client."""
        for attach in (self.client.attach, *self.former):
            if attach is not None and attach.frontend is not self.hung and self.chance.random() < 0.7:
                attach.move_to_broker()

    def commit(self) -> None:
        if self.shard.commit is not None:
            self.shard.end_commit()
        elif self.shard.store.pending:
            self.shard.begin_commit()

    def beat(self) -> None:
        self.now_ms += BEAT_MS
        frontend = self.chance.choice(self.frontends)
        if frontend is not self.hung:
            frontend.timers.ring()
        self.shard.tick(BEAT_MS)

    def attach(self) -> None:
        if self.client.attach is None:
            running = [each for each in self.frontends if each is not self.hung]
            self.client.begin(self.chance.choice(running))

    def cut(self) -> None:
        """The client loses its connection; the frontend notices that at once, or later."""
        attach = self.client.attach
        if attach is None:
            return
        self.client.lose()
        # Some of what the client has sent arrives all the same.
        while attach.to_broker and self.chance.random() < 0.6:
            attach.to_broker.pop()
        if self.chance.random() < 0.7 and attach.frontend is not self.hung:
            attach.end()
        else:
            self.former.append(attach)

    def strand(self) -> None:
        """The shard dies, and the frontend with the link hangs: its batches have no answer."""
        if self.client.attach is not None and self.hung is None:
            self.hung = self.client.attach.frontend
            self.former.append(self.client.attach)
            self.client.lose()
            self.kill_shard()

    def go_on(self) -> None:
        """The link has ended elsewhere, with what its client sent last, when that frontend runs again."""
        attach = self.client.attach
        if attach is not None and self.hung not in (None, attach.frontend):
            attach.to_broker.clear()
            self.client.lose()
            attach.end()
            self.hung = None
            for _ in range(40):
                self.move()
                self.commit()

    def detach(self) -> None:
        """The client detaches in order."""
        attach = self.client.attach
        if attach is not None and attach.is_attached:
            self.client.detach()
            self.former.append(attach)

    def notice(self) -> None:
        for attach in self.former:
            if attach.frontend is not self.hung:
                self.former.remove(attach)
                attach.end()
                return

    def forget(self) -> None:
        """The shard forgets a frontend, as one that was silent."""
        self.shard.engine.lost(self.chance.choice(self.frontends).identity)
        self.shard.turn()

    def kill_shard(self) -> None:
        """As a process that is killed: what was not written is lost, what was sent may arrive."""
        self.client.note("kill of the shard")
        self.files = self.files.after_crash(self.starts, self.chance.choice(("none", "none", "some", "all")))
        for wire in self.wires.values():
            for way in (wire.to_frontend, wire.to_shard):
                while way and self.chance.random() < 0.7:
                    way.pop()
        self.start_shard()

    def stop_shard(self) -> None:
        self.client.note("end of the shard")
        self.settle_down()
        self.shard.store.close(self.now_ms)
        self.files = self.files.after_crash(self.starts, "all")
        self.start_shard()

    def kill_frontend(self) -> None:
        self.replace(self.chance.randrange(2), "kill")

    def stop_frontend(self) -> None:
        """In order: it closes its connections, and says goodbye to the shard."""
        number = self.chance.randrange(2)
        frontend = self.frontends[number]
        for attach in (self.client.attach, *self.former):
            if attach is not None and attach.frontend is frontend:
                attach.end()
        frontend.peer.close()
        while frontend.wire.to_shard:
            frontend.move_to_shard()
        self.replace(number, "end")

    def replace(self, number: int, what: str) -> None:
        """Another process takes the place of a frontend."""
        former = self.frontends[number]
        self.client.note(f"{what} of {former.identity!r}")
        del self.wires[former.identity]
        self.frontends[number] = self.start_frontend(number)
        self.former = [each for each in self.former if each.frontend is not former]
        if self.client.attach is not None and self.client.attach.frontend is former:
            self.client.lose()

    def receive(self) -> None:
        """Another client receives a message for good."""
        if self.chance.random() < 0.2:
            self.take(1)

    def take(self, count: int) -> None:
        self.boots += 1
        receiver = Peer(self.shard, f"receiver-{self.boots}", self.boots)
        receiver.greet()
        receiver.consume(1, QUEUE, count)
        while found := receiver.delivered.pop(1, []):
            receiver.settle(1, found[0].number, len(found))
            self.settle_down()
            self.received |= {each.message[each.message.index(b"<") :] for each in found}
        self.shard.engine.lost(receiver.identity)

    def settle_down(self) -> None:
        if self.shard.commit is not None:
            self.shard.end_commit()
        self.shard.settle_down()

    def run(self, steps: int) -> None:
        client = self.client
        acts = [*[self.move] * 4, *[self.read] * 2, *[client.hear] * 2, client.send, self.commit]
        acts += [self.attach, self.beat, client.give_up, self.receive]
        faults: dict[Callable[[], None], float] = {
            self.cut: 4,
            self.detach: 0.5,
            self.notice: 2,
            self.hang: 2,
        }
        faults |= {self.strand: 1, self.go_on: 2, self.forget: 1, self.kill_shard: 2, self.stop_shard: 0.3}
        faults |= {self.kill_frontend: 0.3, self.stop_frontend: 0.3}
        for _ in range(steps):
            self.chance.choice(acts)()
            if self.chance.random() < 0.018:
                self.chance.choices([*faults], [*faults.values()])[0]()

    def finish(self) -> None:
        """No more trouble: everything arrives."""
        self.hung = None
        for _ in range(300):
            for frontend in self.frontends:
                for _ in range(20):
                    frontend.move_to_shard()
                    frontend.move_to_frontend()
            self.settle_down()
            self.client.hear()
            if self.client.attach is None:
                self.attach()
            if self.client.attach is not None:
                self.client.attach.move_to_broker()
            self.now_ms += BEAT_MS
            for frontend in self.frontends:
                frontend.timers.ring()
            self.shard.tick(BEAT_MS)
        self.take(1 << 20)

    def lost(self) -> list[bytes]:
        """Durable messages that were accepted and were never received."""
        accepted = [message for message, durable in self.client.accepted.items() if durable]
        return [message for message in accepted if message not in self.received]


POLICIES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "bounded": {"max_length": 4, "overflow": "reject"},
}


def played(seed: int, durability: Durability, policy: str, client: type[Client] = Client) -> Play:
    play = Play(seed, durability, POLICIES[policy], client)
    play.run(STEPS)
    play.finish()
    return play


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("durability", [Durability.NONE, Durability.UNSETTLED_STATE])
@pytest.mark.parametrize("first", [0, SEEDS], ids=["some seeds", "other seeds"])
def test_no_accepted_message_is_lost(first: int, durability: Durability, policy: str) -> None:
    accepted = starts = 0
    for seed in range(first, first + SEEDS):
        play = played(seed, durability, policy)
        assert not play.lost(), (seed, play.client.log)
        accepted += len(play.client.accepted)
        starts += play.starts
    assert accepted > 8 * SEEDS
    assert starts > 4 * SEEDS


@pytest.mark.soak
def test_none_is_lost_under_many_seeds() -> None:
    count = max(1, int(float(os.environ.get("LIGHTRAIL_SOAK_SECONDS", "3600")) / 6))
    for seed in range(1_000, 1_000 + count):
        for policy, durability in itertools.product(POLICIES, (Durability.NONE, Durability.UNSETTLED_STATE)):
            play = played(seed, durability, policy)
            assert not play.lost(), (seed, play.client.log)


def test_a_client_that_does_not_wait_may_lose_one() -> None:
    """It uses a tag again before it can know that the shard has its settlement."""
    assert any(played(seed, Durability.NONE, "plain", HastyClient).lost() for seed in range(HASTY_SEEDS))
