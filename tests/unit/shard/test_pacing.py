"""Pacing: credit of senders follows what consumers take, and only where these keep up."""

from collections.abc import Iterator

import pytest

from lightrail.frontend.links.incoming import CREDIT_HELD_MS
from lightrail.model import limits
from lightrail.model.policy import Policy
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.pacing import PACE_AHEAD_MS
from lightrail.wire.frames import HEADER, HELD, Kind
from tests.support.shard.scene import Answer, Peer, Scene

DEPTH = limits.PACE_DEPTH_MIN


class Busy(Peer):
    """A frontend with senders that send as credit lets them, and one consumer."""

    scene: Scene

    def __init__(self, scene: Scene, senders: int, window: int = 2_000) -> None:
        super().__init__(scene, "frontend-0", 7)
        self.greet()
        self.credits = dict.fromkeys(range(1, senders + 1), window)
        self.numbers = dict.fromkeys(self.credits, 0)
        self.sizes: dict[tuple[int, int], int] = {}
        self.kept = dict.fromkeys(self.credits, 0)
        """Messages whose answers were HELD and are not free."""
        self.sent = self.taken = 0
        for link in self.credits:
            self.produce(link, "q")

    def hear(self, parts: list[bytes]) -> None:  # type: ignore[override]
        super().hear(parts)
        for part in parts:
            kind, flags, _, _, link, count, number = HEADER.unpack_from(part)
            if kind == Kind.ACCEPTED:
                answered = sum(self.sizes.pop((link, number + each)) for each in range(count))
                kept = self.kept if flags & HELD else self.credits
                kept[link] += answered
            elif kind == Kind.FREED:
                freed = min(count or self.kept[link], self.kept[link])
                self.kept[link] -= freed
                self.credits[link] += freed

    def fill(self, most: int = 250) -> None:
        """Each sender sends what it may, `most` messages at the most."""
        for link, credit in self.credits.items():
            count = min(credit, most)
            if count:
                self.numbers[link] += 1
                self.sizes[link, self.numbers[link]] = count
                self.credits[link] -= count
                self.sent += count
                self.send(link, self.numbers[link], [b"m"] * count)

    def take_some(self, count: int) -> None:
        """The consumer takes so many messages, and settles them."""
        self.credit(100, self.taken + count)
        self.scene.settle_down()
        newest = len(self.delivered.get(100, ()))
        if newest > self.taken:
            self.settle(100, self.taken, newest - self.taken)
        self.taken = newest

    def frames(self, kind: Kind) -> Iterator[Answer]:
        return (each for each in self.heard if each.kind == kind)


def run(busy: Busy, milliseconds: int, taken_in_ms: int) -> int:
    """The largest number of messages that were ready."""
    most = 0
    for _ in range(milliseconds):
        busy.fill()
        busy.scene.settle_down()
        most = max(most, busy.scene.queue("q")["ready"])
        if taken_in_ms:
            busy.take_some(taken_in_ms)
        busy.scene.tick(1)
    return most


def test_a_queue_whose_consumer_keeps_up_stays_short_and_none_of_its_senders_starves() -> None:
    scene = Scene()
    busy = Busy(scene, 4)
    busy.consume(100, "q")
    run(busy, 300, 200)
    before, sent = dict(busy.numbers), busy.sent
    most = run(busy, 400, 200)
    assert most <= 200 * PACE_AHEAD_MS + 4 * limits.PACE_FREED_MIN
    assert busy.sent - sent >= 0.95 * 400 * 200
    assert min(busy.numbers[link] - before[link] for link in before) > 20


def test_a_queue_of_slow_workers_takes_in_at_full_speed() -> None:
    scene = Scene()
    busy = Busy(scene, 1)
    busy.consume(100, "q")
    run(busy, 3_000, 5)
    sent = busy.sent
    run(busy, 100, 5)
    assert busy.sent - sent == 100 * 250
    assert not any(busy.kept.values())


@pytest.mark.parametrize("used", [False, True], ids=["new", "used before"])
def test_a_queue_without_consumers_takes_in_at_full_speed(used: bool) -> None:
    busy = Busy(Scene(), 2)
    if used:
        busy.consume(100, "q")
        run(busy, 100, 500)
        busy.close_consumer(100)
        busy.scene.tick(3_600_000)
        busy.take()
        busy.sent = 0
    run(busy, 100, 0)
    assert busy.sent == 100 * 2 * 250
    assert not list(busy.frames(Kind.FREED))


@pytest.mark.parametrize("suspended", [False, True])
def test_when_its_consumers_leave_all_credit_is_free(suspended: bool) -> None:
    scene = Scene()
    busy = Busy(scene, 2)
    busy.consume(100, "q", client_link="1" * 32, suspended_ms=3_600_000)
    run(busy, 200, 100)
    assert any(busy.kept.values())
    if suspended:
        busy.credit(100, busy.taken + 1)
        scene.settle_down()
    busy.close_consumer(100)
    scene.settle_down()
    assert scene.queue("q")["in_flight"] == suspended
    assert not any(busy.kept.values())
    sent = busy.sent
    run(busy, 50, 0)
    assert busy.sent - sent == 50 * 2 * 250


def test_when_its_consumers_stop_a_few_messages_free_all_credit() -> None:
    """As the frontend lets them through by itself, after CREDIT_HELD_MS."""
    scene = Scene()
    busy = Busy(scene, 1)
    busy.consume(100, "q")
    run(busy, 200, 100)
    for _ in range(10):
        scene.tick(CREDIT_HELD_MS)
        busy.credits[1] += 1
        busy.fill(1)
        scene.settle_down()
    assert not any(busy.kept.values())


def test_a_link_that_is_closed_gets_no_credit() -> None:
    scene = Scene()
    busy = Busy(scene, 2)
    busy.consume(100, "q")
    run(busy, 200, 100)
    kept = busy.kept[1]
    assert kept
    busy.close_producer(1)
    busy.credits[1] = 0
    busy.take()
    run(busy, 200, 100)
    assert not [each for each in busy.frames(Kind.FREED) if each.link == 1]


def test_senders_to_a_long_queue_get_half_of_what_is_taken_until_it_is_short() -> None:
    scene = Scene()
    busy = Busy(scene, 2)
    run(busy, 200, 0)
    busy.consume(100, "q")
    run(busy, 100, 400)
    sent, ready = busy.sent, scene.queue("q")["ready"]
    run(busy, 100, 400)
    assert 0.4 * 100 * 400 <= busy.sent - sent <= 0.6 * 100 * 400
    assert scene.queue("q")["ready"] < ready - 0.4 * 100 * 400
    run(busy, 500, 400)
    assert scene.queue("q")["ready"] <= 400 * PACE_AHEAD_MS + 2 * limits.PACE_FREED_MIN


@pytest.mark.parametrize("kept", ["selector", "groups"])
def test_what_nobody_takes_holds_up_no_sender(kept: str) -> None:
    names = EveryName()
    if kept == "groups":
        names.give("q", Policy.parse({"role": "queue", "groups": True}))
    scene = Scene(names=names)
    busy = Busy(scene, 1)
    filter_ = "" if kept == "groups" else "durable = FALSE"
    busy.consume(100, "q", filter=filter_)
    run(busy, 50, 300)
    assert not any(busy.kept.values())
    assert busy.sent == 50 * 250
