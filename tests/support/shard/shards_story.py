"""Stories of several shards: placements, moves and transactions, and what processes send to each other.

Such a story begins with `there are 2 shards`. It has the lines of story.py for frontends and time, but a
frontend has a name for each shard that it is connected to: f0@1 is f0 at shard 1. Below a line are also the
requests between shards, the placements that shards write, and each new state of a queue at a shard. Copies of
messages and states of queues are shown in short. A story may have these lines, too:

    the placement of q is shard 0 in epoch 1           the coordinator has it, and all shards look
    q is to move to shard 1                            the coordinator has an entry of this move
    the move of q ends                                 everybody continues until that entry is deleted
    the shards work until q is frozen at shard 0       and no further
    f0@0 asks OPERATION OPTIONS                        a request, with its fields as options
    f0@0 prepares t1 with a to q decided by shard 1    work of transaction t1: one message
    f0@1 transacts t1 with b to r prepared at shard 0  shard 1 decides
    f0@0 concludes t1                                  the work is committed
    f0 dies                                            no shard hears of f0 any more
    shard 1 dies, shard 1 starts
    the shards ask                                     for decisions that they wait for
    the disks answer                                   everything is on disk at all shards
    the queue q at 1 has                               the figures of a queue
"""

import asyncio
import json
from array import array
from collections.abc import Coroutine
from typing import Any

from lightrail.shard.transactions.decision_requests import DecisionRequests
from lightrail.wire.bodies import Answer
from tests.support.shard.moving_scene import Cluster, Shard
from tests.support.shard.scene import Peer
from tests.support.shard.story import Recorder, Story, fields

BOOT = 7
"""Of f0; that of f1 is one more."""
NONE = "no longer there"
"""State of a queue that a shard does not have."""
LIMITS = ("bytes", "messages")
"""Fields of the request for a copy: how much one answer may have."""


class Asking(Recorder):
    """A shard that sends requests to another one."""

    def __init__(self, story: "ShardsStory", asking: Shard, asked: Shard) -> None:
        boot = asking.scene.engine.boot
        self._said = f"shard {asking.id} -> shard {asked.id}"
        heard = f"shard {asking.id} <- shard {asked.id}"
        super().__init__(story, asked.scene, heard, f"shard-{asking.id}", boot)

    def ask(self, op: str, blob: bytes = b"", **fields: Any) -> int:
        shown = {name: value for name, value in fields.items() if name not in LIMITS}
        self._story.add(f"{self._said} REQUEST {op} {json.dumps(shown)}")
        return super().ask(op, blob, **fields)


class StoryCluster(Cluster):
    """Shards whose requests to each other are lines of a story."""

    def __init__(self, story: "ShardsStory", shards: int) -> None:
        super().__init__(shards)
        self._story = story

    def link(self, asking: Shard, asked: Shard) -> Peer:
        return Asking(self._story, asking, asked)


class Others:
    """The way from one shard to all others."""

    def __init__(self, asking: Shard) -> None:
        self._asking = asking

    async def request(self, shard: int, op: str, fields: dict[str, Any]) -> Answer:
        """See the port of DecisionRequests."""
        return await self._asking.request(shard, op, fields, greeting_ms=0)


class ShardsStory(Story):
    """Some shards, their coordinator, and frontends, which do what lines say."""

    def __init__(self) -> None:
        super().__init__()
        self._runner: asyncio.Runner
        self._cluster: StoryCluster
        self._ids: dict[str, str] = {}
        """Names of transactions, by their ids."""
        self._placed: dict[str, tuple[int, int]] = {}
        """Shard and epoch of each queue."""
        self._queues: set[str] = set()
        self._states: dict[tuple[str, int], str] = {}
        """Of each queue at each shard."""

    def replay(self, text: str) -> str:
        """See Story."""
        with asyncio.Runner() as self._runner:
            return super().replay(text)

    def response(self, fields: dict[str, Any]) -> str:
        """See Story."""
        if "columns" in fields:
            (ends,) = (length for name, _, length in fields["columns"] if name == "ends")
            return f"messages: {ends}"
        if "states" in fields:
            return ", ".join(_frozen(each["queue"], each["state"]) for each in fields["states"])
        return super().response(fields)

    def look(self) -> None:
        """Add each placement and each state of a queue that is new."""
        for name, before in self._placed.items():
            placed = self._cluster.placed(name)
            if placed != before:
                self._placed[name] = placed
                super().add(f"the placement of {name} is shard {placed[0]} in epoch {placed[1]}")
        for name in sorted(self._queues):
            for shard in self._cluster.shards:
                state = _state(shard, name)
                if self._states.get((name, shard.id), NONE) != state:
                    self._states[name, shard.id] = state
                    super().add(f"{name} at shard {shard.id} is {state}")

    def add(self, line: str) -> None:
        """See Story."""
        self.look()
        for id, name in self._ids.items():
            line = line.replace(id, name)
        super().add(line)

    def do(self, words: list[str]) -> None:
        """See Story."""
        match words:
            case ["there", "is" | "are", count, "shard" | "shards"]:
                self._cluster = StoryCluster(self, int(count))
                self._cluster.on_step = lambda _number, _step: self.look()
                self._cluster.start()
            case ["the", "placement", "of", queue, "is", "shard", shard, "in", "epoch", epoch]:
                self._queues.add(queue)
                # What the story itself says is not repeated.
                self._placed.pop(queue, None)
                self._run(self._cluster.place(queue, int(shard), int(epoch)))
                self._placed[queue] = int(shard), int(epoch)
            case [queue, "is", "to", "move", "to", "shard", shard]:
                self._run(self._cluster.begin(queue, int(shard)))
            case ["the", "move", "of", queue, "ends"]:
                self._run(self._cluster.until(lambda: not self._cluster.is_moving(queue)))
            case ["the", "shards", "work", "until", queue, "is", state, "at", "shard", shard]:
                self._run(self._until(self._cluster.shards[int(shard)], queue, state))
            case ["the", "shards", "ask"]:
                self._run(self._ask())
            case ["the", "disks", "answer"]:
                self._settle_down()
            case ["the", "queue", queue, "at", shard, "has"]:
                figures = self._cluster.shards[int(shard)].scene.queue(queue)
                self.add(json.dumps({key: value for key, value in figures.items() if value}))
            case ["shard", shard, "dies"]:
                self._cluster.shards[int(shard)].die()
            case ["shard", shard, "starts"]:
                self._cluster.shards[int(shard)].start()
            case [time, "ms", "pass"]:
                self._run(self._pass_time(int(time)))
            case [who, "dies"]:
                for name in [name for name in self.peers if name.partition("@")[0] == who]:
                    peer = self.peers.pop(name)
                    del peer.scene.peers[peer.identity]
            case [who, "comes"]:
                self._come(who)
            case [who, *what]:
                self.act(self.peers[who], what)
        self.look()

    def act(self, peer: Recorder, what: list[str]) -> None:
        """See Story."""
        match what:
            case ["asks", op, *options]:
                peer.ask(op, **fields(options))
            case ["prepares", name, "with", message, "to", queue, "decided", "by", "shard", shard]:
                peer.ask(
                    "prepare", _blob(message), id=self._id(name), decides=int(shard), **_work(queue, message)
                )
            case ["transacts", name, "with", message, "to", queue, "prepared", "at", "shard", shard]:
                which = {"producer": BOOT << 32 | 99, "number": len(self._ids), "id": self._id(name)}
                peer.ask("transact", _blob(message), others=[int(shard)], **which, **_work(queue, message))
            case ["concludes", name]:
                peer.ask("conclude", id=self._id(name), commit=True)
            case _:
                super().act(peer, what)

    def _come(self, who: str) -> None:
        name, _, shard = who.partition("@")
        scene = self._cluster.shards[int(shard)].scene
        boot = BOOT + int(name.removeprefix("f"))
        self.peers[who] = peer = Recorder(self, scene, f"{who} <-", name, boot)
        peer.greet()

    def _id(self, name: str) -> str:
        """The id of a transaction."""
        id = f"{int(name.removeprefix('t')):032x}"
        self._ids[id] = name
        return id

    def _settle_down(self) -> None:
        for shard in self._cluster.shards:
            shard.settle_down()

    async def _pass_time(self, wait_ms: int) -> None:
        self._cluster.pass_time(wait_ms)

    async def _until(self, shard: Shard, queue: str, state: str) -> None:
        await self._cluster.until(lambda: _state(shard, queue).startswith(state))

    def _run(self, act: Coroutine[Any, Any, None]) -> None:
        self._runner.run(act)

    async def _ask(self) -> None:
        for shard in self._cluster.shards:
            if shard.alive:
                await DecisionRequests(
                    shard.id,
                    shard.scene.engine.transactions,
                    Others(shard),
                    shard.settle_down,
                    lambda: self._cluster.now_ms,
                    _raise,
                ).ask_all()


def _state(shard: Shard, queue: str) -> str:
    if not shard.alive:
        return "not known, as the shard is dead"
    engine = shard.scene.engine
    if (arrival := engine.arrivals.find(queue)) is not None:
        return f"copying, for epoch {arrival.epoch}"
    found = engine._queues.find(queue)
    return NONE if found is None else f"{found.state.value} in epoch {found.epoch}"


def _frozen(queue: str, state: dict[str, Any]) -> str:
    """The state of a queue that is frozen, in short."""
    links = [f"link {each['link']} at delivery {each['next']}" for each in state["consumers"]]
    return f"{queue} as it is now: messages: {state['messages']}, consumers: {', '.join(links) or 'none'}"


def _work(queue: str, message: str) -> dict[str, Any]:
    """Fields of a transaction that sends one durable message."""
    size = len(message)
    return {"posts": [[[queue], True, 4, 0, 0, 1, size]], "settles": []}


def _blob(message: str) -> bytes:
    return array("I", [len(message)]).tobytes() + message.encode()


def _raise(error: BaseException) -> None:
    raise error
