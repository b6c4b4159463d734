"""Requests for decisions: a shard that does not answer delays no decision of another."""

import asyncio
from typing import Any

from lightrail.shard.transactions.decision_requests import DECISIONS_ASKED_AT_ONCE, DecisionRequests
from lightrail.shard.transactions.preparing import TRANSACTION_RESOLVE_MS
from lightrail.shard_client.peers.requests import ShardDownError
from lightrail.wire.bodies import Answer
from tests.support.shard.scene import Peer, Scene
from tests.unit.shard.transactions.test_prepared import answer
from tests.unit.shard.transactions.test_transactions import post, ready, transact

LOST = 9


class Others:
    """Other shards, of which one never answers; all others have decided to commit."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []
        self.waiting = 0
        self.most = 0
        self.never = asyncio.Event()
        self.raises: Exception | None = None

    async def request(self, shard: int, op: str, fields: dict[str, Any]) -> Answer:
        self.asked.append((shard, op))
        if self.raises is not None:
            raise self.raises
        if shard == LOST:
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            await self.never.wait()
        return Answer({"committed": True, "concluded": fields.get("ids", [])}, memoryview(b""))


class Requests:
    """The requests of one shard, which looks when the test says."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.others = Others()
        self.failures: list[BaseException] = []
        self._looks: asyncio.Queue[None] = asyncio.Queue()
        self.requests = DecisionRequests(
            0,
            scene.engine.transactions,
            self.others,
            scene.settle_down,
            lambda: scene.now_ms,
            self.failures.append,
            self._sleep,
        )

    async def _sleep(self, _seconds: float) -> None:
        await self._looks.get()

    async def ask_all(self) -> None:
        """Looks, and lets all tasks go on until they wait."""
        self._looks.put_nowait(None)
        for _ in range(20):
            await asyncio.sleep(0)


def prepare_at(scene: Scene, peer: Peer, number: int, decides: int) -> None:
    fields, blob = post(f"q{decides}")
    request = peer.ask("prepare", blob, id=f"{number:032x}", decides=decides, posts=[fields], settles=[])
    assert answer(scene, peer, request) == {"prepared": True}


def test_a_lost_shard_delays_no_decision_of_another() -> None:
    scene = Scene()
    peer = scene.peer()
    for number in range(100):
        prepare_at(scene, peer, number, LOST)
    prepare_at(scene, peer, 100, 3)
    transact(peer, 1, post("here"), id=f"{200:032x}", others=[LOST, 4])
    scene.settle_down()
    scene.now_ms += TRANSACTION_RESOLVE_MS

    async def story() -> None:
        requests = Requests(scene)
        running = asyncio.create_task(requests.requests.run())
        await requests.ask_all()
        assert ready(scene, "q3") == [b"m"]
        assert scene.engine.transactions.decisions.awaited.keys() == {LOST}
        # Those of later looks neither: the lost one is not asked again before it has answered.
        asked = requests.others.asked.count((LOST, "outcome"))
        prepare_at(scene, peer, 101, 3)
        scene.now_ms += TRANSACTION_RESOLVE_MS
        await requests.ask_all()
        assert ready(scene, "q3") == [b"m", b"m"]
        assert requests.others.asked.count((LOST, "outcome")) == asked == requests.others.most
        assert asked == DECISIONS_ASKED_AT_ONCE
        # When it answers, it is asked for all others.
        requests.others.never.set()
        for _ in range(20):
            await requests.ask_all()
        assert scene.engine.transactions.prepared.waiting(scene.now_ms)[0] == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(story())


def test_a_shard_that_is_away_is_asked_again_with_the_next_look() -> None:
    scene = Scene()
    for number in range(40):
        prepare_at(scene, scene.peer(), number, 3)
    scene.now_ms += TRANSACTION_RESOLVE_MS

    async def story() -> None:
        requests = Requests(scene)
        requests.others.raises = ShardDownError("shard 3 is away")
        await requests.requests.ask_all()
        assert len(requests.others.asked) == DECISIONS_ASKED_AT_ONCE
        requests.others.raises = None
        await requests.requests.ask_all()
        assert len(ready(scene, "q3")) == 40

    asyncio.run(story())


def test_an_unexpected_error_fails_the_shard() -> None:
    scene = Scene()
    prepare_at(scene, scene.peer(), 1, 3)
    scene.now_ms += TRANSACTION_RESOLVE_MS
    error = RuntimeError("a bug")

    async def story() -> None:
        requests = Requests(scene)
        requests.others.raises = error
        await requests.requests.ask_all()
        assert requests.failures == [error]

    asyncio.run(story())
