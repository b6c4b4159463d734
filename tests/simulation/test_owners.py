"""Queues that move between model shards under real links: each schedule is drawn from a seed.

Frames wait as long as chance wants, in each direction and for each shard; queues are frozen, placed and
opened in every order that the protocol allows, or won back by their shard; links come, settle, drain and go
meanwhile, and in some runs shards die. In the end every message was stored once and in order; where no shard
died, every message was delivered and settled once.
"""

import asyncio
import random
from typing import Any

import pytest

from lightrail.amqp.events import ACCEPTED, RELEASED, Credit, Outcome
from lightrail.shard_client.owners import timers
from tests.support.shard.model_shard import ModelQueue
from tests.support.shard.owner_scene import OwnerReceiver, OwnerScene, OwnerSender

QUEUES = ("a", "b")


class Moving:
    """A queue between two shards."""

    def __init__(self, queue: ModelQueue, source: int, to: int) -> None:
        self.queue = queue
        self.source = source
        self.to = to
        self.placement: tuple[int, int] | None = None
        self.is_open = False
        self.is_known = False


class Play:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int, deaths: bool) -> None:
        self.chance = random.Random(seed)
        self.scene = OwnerScene(monkeypatch, 3)
        self.queues = {name: self.scene.queue(name, number) for number, name in enumerate(QUEUES)}
        self.senders: list[OwnerSender] = []
        self.receivers: list[OwnerReceiver] = []
        self.closed: list[OwnerReceiver] = []
        self.moving: dict[str, Moving] = {}
        self.moves = 0
        self.deaths = deaths
        self.died = 0
        for name in QUEUES:
            self.senders += [self.scene.sender(name) for _ in range(2)]
            self.receivers += [self.scene.receiver(name) for _ in range(2)]

    # --- what may happen -------------------------------------------------------------------------------

    def steps(self) -> list[Any]:
        return [
            self.up,
            self.up,
            self.up,
            self.down,
            self.down,
            self.down,
            self.work,
            self.work,
            self.send,
            self.send,
            self.credit,
            self.settle,
            self.settle,
            self.freeze,
            self.go_on,
            self.go_on,
            self.tick,
            self.replace_link,
            self.refuse,
            self.die,
        ]

    def shard(self) -> int:
        return self.chance.randrange(3)

    def up(self) -> None:
        self.scene.up(self.shard())

    def down(self) -> None:
        self.scene.down(self.shard())

    def work(self) -> None:
        shard = self.scene.shards[self.shard()]
        if shard.up:
            if self.chance.random() < 0.5:
                shard.commit()
            shard.dispatch(self.chance.randint(1, 30))

    def send(self) -> None:
        sender = self.chance.choice(self.senders)
        if sender.link.credit:
            count = min(sender.link.credit, self.chance.randint(1, 20))
            sender.send(count, settled=False)

    def credit(self) -> None:
        receiver = self.chance.choice(self.receivers)
        limit = len(receiver.link.sent) + self.chance.choice((0, 1, 5, 100))
        event = Credit(receiver.link, limit, self.chance.random() < 0.3)  # type: ignore[arg-type]
        receiver.consumer.credit(event)

    def settle(self, receiver: OwnerReceiver | None = None, *, everything: bool = False) -> None:
        receiver = receiver or self.chance.choice(self.receivers)
        waiting = [number for number in range(len(receiver.link.sent)) if number not in receiver.settled]
        if not waiting:
            return
        first = last = waiting[0] if everything else self.chance.choice(waiting)
        while last + 1 in waiting and (everything or last - first < 5):
            last += 1
        state = ACCEPTED if everything or self.chance.random() < 0.8 else RELEASED
        receiver.settled |= set(range(first, last + 1))
        receiver.consumer.outcome(Outcome(receiver.link, first, last, state, True))  # type: ignore[arg-type]

    def freeze(self) -> None:
        name = self.chance.choice(QUEUES)
        source = self.scene.resolver.placements[name][0]
        if name in self.moving or self.chance.random() < 0.5 or not self.scene.shards[source].up:
            return
        to = self.chance.choice([number for number in range(3) if number != source])
        self.moving[name] = Moving(self.scene.shards[source].freeze(name), source, to)
        self.moves += 1

    def go_on(self) -> None:
        """A move makes a step; the placement is known here before or after its shard serves the queue."""
        for name, move in list(self.moving.items()):
            if self.chance.random() < 0.5:
                continue
            epoch = move.queue.epoch
            if move.placement is None:
                wins_back = self.chance.random() < 0.2
                move.placement = (move.source, epoch + 2) if wins_back else (move.to, epoch + 1)
            elif self.chance.random() < 0.5 and not move.is_known:
                self.scene.placed(name, *move.placement)
                move.is_known = True
            elif not move.is_open and self.scene.shards[move.placement[0]].up:
                self.scene.shards[move.placement[0]].open(move.queue, move.placement[1])
                move.is_open = True
            if move.is_open and move.is_known:
                del self.moving[name]

    def tick(self) -> None:
        self.scene.tick(self.chance.choice((1, 10, 100)))

    def replace_link(self) -> None:
        """A receiver goes with what it holds, and another comes."""
        if self.chance.random() < 0.2:
            index = self.chance.randrange(len(self.receivers))
            gone = self.receivers[index]
            gone.consumer.close()
            self.closed.append(gone)
            self.receivers[index] = self.scene.receiver(gone.consumer.options.queue)

    def refuse(self) -> None:
        if self.chance.random() < 0.2:
            self.scene.shards[self.shard()].refuse_next = True

    def die(self) -> None:
        if not self.deaths or self.chance.random() > 0.1:
            return
        number = self.shard()
        if self.scene.shards[number].up:
            for move in self.moving.values():
                if move.source == number or move.to == number:
                    # Its memory goes, and with it what consumers held.
                    for link, consumer in list(move.queue.consumers.items()):
                        move.queue.give_back(consumer)
                        del move.queue.consumers[link]
            self.scene.lose(number)
            self.died += 1
        if self.chance.random() < 0.7:
            self.scene.revive(number)

    # --- the end ---------------------------------------------------------------------------------------

    async def end(self) -> None:
        """No more faults or moves; everything goes through."""
        for number in range(3):
            self.scene.shards[number].refuse_next = False
            if not self.scene.shards[number].up:
                self.scene.revive(number)
        while self.moving:
            self.go_on()
        for _ in range(400):
            await self.scene.settle()
            for shard in self.scene.shards:
                shard.release_parked()
            for receiver in self.receivers:
                limit = len(receiver.link.sent) + 1_000
                receiver.consumer.credit(Credit(receiver.link, limit, False))  # type: ignore[arg-type]
                self.settle(receiver, everything=True)
            self.scene.tick(100)
            self.scene.beats.ring()
            if self.is_done() and not any(peer._requests for peer in self.scene.peers):
                await self.scene.settle()
                return
        pytest.fail(f"it did not end: {self.state()}")

    def is_done(self) -> bool:
        return (
            not any(sender.producer.unanswered for sender in self.senders)
            and not any(queue.ready for queue in self.queues.values())
            and not any(
                consumer.held for queue in self.queues.values() for consumer in queue.consumers.values()
            )
        )

    def state(self) -> list[Any]:
        return [
            (name, len(queue.ready), {link: len(each.held) for link, each in queue.consumers.items()})
            for name, queue in self.queues.items()
        ] + [sender.producer.unanswered for sender in self.senders]

    def check(self) -> None:
        for name, queue in self.queues.items():
            stored = queue.stored
            assert len(set(stored)) == len(stored), "a message was stored twice"
            for sender in self.senders:
                if sender.producer.queue != name:
                    continue
                mine = [body for body in stored if body.startswith(b"<%d:" % sender.number)]
                assert mine == sorted(mine), "the order of a sender was lost"
                outcomes = sender.outcomes()
                assert sorted(outcomes) == list(range(sender.sent)), "a message has no outcome"
                accepted = {b"<%d:%06d>" % (sender.number, n) for n, s in outcomes.items() if s is ACCEPTED}
                assert accepted == set(mine), "what was accepted is not what was stored"
            for body in stored:
                assert queue.accepted[body] == 1, f"{body!r} was settled {queue.accepted[body]} times"
                if not self.died:
                    assert queue.delivered[body] == 1 + queue.returned[body]
        assert len(self.scene.owners) == len(QUEUES)
        numbers = {sender.number for sender in self.senders} | {each.number for each in self.receivers}
        assert self.scene.owners._of_link.keys() == numbers
        assert not any(owner._held for owner in self.scene.owners._owners.values())


async def play(monkeypatch: pytest.MonkeyPatch, seed: int, deaths: bool) -> Play:
    play = Play(monkeypatch, seed, deaths)
    await play.scene.settle()
    steps = play.steps()
    for _ in range(1_500):
        play.chance.choice(steps)()
        await asyncio.sleep(0)
    await play.end()
    play.check()
    play.scene.owners.close()
    return play


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_lost_or_twice_while_queues_move(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    # A shard that does not say MOVED for so long counts as dead; here it is only that chance is slow.
    monkeypatch.setattr(timers, "OWNER_LATE_MS", 1 << 40)
    done = asyncio.run(play(monkeypatch, seed, deaths=False))
    assert not any(shard.given_back for shard in done.scene.shards)
    assert done.moves > 10
    assert sum(sender.sent for sender in done.senders) > 300


@pytest.mark.parametrize("seed", range(30))
def test_what_shards_that_die_cost_is_deliveries_and_no_message(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    done = asyncio.run(play(monkeypatch, 1_000 + seed, deaths=True))
    assert done.died
