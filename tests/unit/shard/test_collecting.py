"""The cyclic collector of a shard: no pass walks a deep backlog, and cycles are freed when it has gone."""

import asyncio
import gc
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lightrail.shard.upkeep import collecting as collecting_module
from lightrail.shard.upkeep.collecting import Collecting
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.scene import Peer, Scene, SmallStore, numbered_messages
from tests.support.turns import until

BETWEEN = 25_000
"""Messages between two looks."""
OBJECTS = 3
"""That are walked for each message."""

BACKLOG = """
import gc
from collections import deque
from lightrail.shard.upkeep.collecting import COLLECT_ALL_LOOKS, Collecting

class Loop:
    def call_later(self, seconds, call, *args):
        pass

class Message:
    def __init__(self):
        self.runs = [self]
    def end(self):
        self.runs = None

walked = {0: 0, 1: 0, 2: 0}
passes = {0: 0, 1: 0, 2: 0}

def watch(phase, info):
    if phase == "start":
        generation = info["generation"]
        count = sum(len(gc.get_objects(each)) for each in range(generation + 1))
        walked[generation] = max(walked[generation], count)
        passes[generation] += 1

class Thing:
    alive = 0
    def __init__(self):
        self.me = self
        Thing.alive += 1
    def __del__(self):
        Thing.alive -= 1

collecting = Collecting()
collecting.begin(Loop())
gc.callbacks.append(watch)
backlog = deque()
cycles = [Thing() for _ in range(10)]
for number in range(500_000):
    backlog.append([Message()])
    if number % {between} == 0:
        collecting.collect()
del cycles
for number in range(500_000):
    backlog.append([Message()])
    backlog.popleft()[0].end()
    if number % {between} == 0:
        collecting.collect()
"""
"""At first the backlog grows; then as many old messages leave as new ones come."""


def run(program: str) -> list[int]:
    """What a fresh process says after it has made a backlog."""
    backlog = BACKLOG.replace("{between}", str(BETWEEN))
    done = subprocess.run(
        [sys.executable, "-c", backlog + program], capture_output=True, text=True, check=True, timeout=120
    )
    return [int(each) for each in done.stdout.split()]


def test_no_pass_walks_a_deep_backlog_while_it_comes_or_is_turned_over_or_grows_again() -> None:
    young, middle, old, seen = run(
        "backlog.extend([Message()] for _ in range(100_000))\nprint(*walked.values(), passes[0])"
    )
    assert seen > 10
    # What came while as much left does not count before the next look.
    uncounted = OBJECTS * BETWEEN
    slack = 1_000
    assert young <= collecting_module.COLLECT_YOUNG + uncounted + slack
    assert middle <= 3 * collecting_module.COLLECT_YOUNG + uncounted + slack
    assert old == 0


def test_cycles_that_died_in_a_deep_backlog_are_freed_when_it_has_gone() -> None:
    before, after, walked, again = run(
        """
print(Thing.alive)
while backlog:
    backlog.popleft()[0].end()
for _ in range(COLLECT_ALL_LOOKS):
    collecting.collect()
print(Thing.alive, walked[2])
for _ in range(COLLECT_ALL_LOOKS):
    collecting.collect()
print(passes[2])
"""
    )
    assert (before, after) == (10, 0)
    assert 0 < walked <= collecting_module.COLLECT_ALL_BLOCKS
    assert again == 1, "nothing grew old since, and everything was walked again"


@pytest.fixture
def collector() -> Iterator[None]:
    """The collector of this process stays as it was; what the test froze is thawed."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


@pytest.mark.usefixtures("collector")
def test_the_loop_looks_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting_module, "COLLECT_LOOK_MS", 0)
    looks = 0

    def blocks() -> int:
        nonlocal looks
        looks += 1
        return collecting_module.COLLECT_ALL_BLOCKS

    async def scenario() -> None:
        collecting = Collecting(blocks)
        collecting.begin(asyncio.get_running_loop())
        await until(lambda: looks > 3)
        collecting.close()
        before = looks
        for _ in range(10):
            await asyncio.sleep(0)
        assert looks == before

    asyncio.run(scenario())


@pytest.mark.usefixtures("collector")
def test_nothing_is_collected_while_a_shard_restores_its_state_nor_walked_at_its_end() -> None:
    passes: list[str] = []

    def watch(phase: str, info: dict[str, int]) -> None:
        passes.append(phase)

    collecting = Collecting()
    gc.collect()
    gc.callbacks.append(watch)
    try:
        with collecting.paused():
            state = [[number] for number in range(4 * gc.get_threshold()[0])]
        assert gc.isenabled()
        more = [[number] for number in range(gc.get_threshold()[0] // 2)]
        assert passes == []
    finally:
        gc.callbacks.remove(watch)
    assert len(state) > len(more)


@pytest.mark.usefixtures("collector")
def test_a_python_that_does_not_count_its_blocks_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        collecting = Collecting(lambda: 0)
        collecting.begin(asyncio.get_running_loop())
        collecting.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "unset PYTHONMALLOC" in caplog.text


def work(scene: Scene, peer: Peer, number: int) -> None:
    """What a shard does all day, with a queue of its own that goes in the end."""
    name = f"q{number}"
    peer.produce(1, name)
    peer.consume(2, name, 10)
    peer.consume(3, name, 10, browse=True)
    peer.consume(4, name, filter={"selector": "((("})
    peer.consume(5, name, filter={"unknown": 1})
    peer.send(1, 1, numbered_messages(5))
    peer.send(77, 1, numbered_messages(1))
    scene.settle_down()
    peer.settle(2, 0, 2)
    peer.settle(2, 2, 1, OutcomeCode.RELEASED)
    peer.settle(2, 3, 1, OutcomeCode.REJECTED)
    for operation in ("queue", "queues", "peek", "purge", "no such operation"):
        peer.ask(operation, queue=name)
    peer.close_consumer(2)
    peer.close_producer(1)
    scene.tick(1)
    other = scene.peer("frontend-1", 8 + number)
    other.produce(1, name)
    other.consume(2, name, 10)
    other.send(1, 1, numbered_messages(2))
    scene.settle_down()
    scene.engine.lost(other.identity)
    del scene.peers[other.identity]
    scene.settle_down()
    scene.names.drop(name)  # type: ignore[attr-defined]
    scene.refresh()
    scene.settle_down()
    assert scene.engine._queues.find(name) is None


def test_steady_work_of_the_engine_makes_no_cycles() -> None:
    scene = Scene()
    peer = scene.peer()
    work(scene, peer, 0)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for number in range(1, 10):
            work(scene, peer, number)
            assert isinstance(scene.store, SmallStore)
            scene.store.records.clear()
        gc.collect()
        # Those who watch over the test, like the scenes' own peers, may have cycles.
        found = {repr(type(each)) for each in gc.garbage if type(each).__module__.startswith("lightrail")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert found == set()
