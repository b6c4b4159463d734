"""Copies a queue from its source into this shard's engine."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from lightrail.cluster.map import Move
from lightrail.model import limits
from lightrail.model import names as rules
from lightrail.shard.moving.arrivals import Arrival, Arrivals
from lightrail.shard.moving.exporting import FREEZE_OP, CallWhenStored, WhenSynced
from lightrail.shard.moving.importing import ImportFailedError
from lightrail.shard.moving.phases import Event, Progress
from lightrail.shard.moving.placing import MoveEndedError
from lightrail.shard.queues.tenancy import ClusterMap
from lightrail.shard_client.peers.requests import ShardDownError
from lightrail.wire.bodies import Answer

MOVE_THROTTLED_CHUNK_BYTES_MIN: Final[int] = 64 * 1024
"""Least answer of a copy with a throttle: with smaller ones it would never catch up with a busy queue."""
MOVE_THROTTLE_LOOK_S: Final[float] = 0.25
"""How often a copy that waits for its throttle checks whether it was cancelled."""


class Sources(Protocol):
    """The shards that queues are copied from; `lightrail.shard_client.peers.pool.Pool` is one."""

    async def request(self, shard: int, op: str, fields: dict[str, Any], *, greeting_ms: int) -> Answer:
        """Sends a request when the shard is greeted, which takes at most `greeting_ms`.

        Raises ShardDownError and ShardRefusedError.
        """


class Copier:
    """Requests pieces and the state of queues, and adds them to the copy.

    Args:
        when_synced: see `WhenSynced`.
        turn: called after changes in the engine, to send its output and commit its records.
        sleep: sleeps for a number of seconds.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        when_synced: WhenSynced,
        map: ClusterMap,
        sources: Sources,
        turn: Callable[[], None],
        now_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._arrivals = arrivals
        self._when_synced = when_synced
        self._map = map
        self._sources = sources
        self._turn = turn
        self._now_ms = now_ms
        self._sleep = sleep

    async def copy(self, move: Move, arrival: Arrival, progress: Progress) -> None:
        """Copies pieces until the messages that arrived meanwhile fit into one piece."""
        began_s, began_bytes = self._now_ms() / 1000, progress.bytes
        progress.apply(Event.BEGIN)
        # A piece is about as much as the throttle allows in a second, to avoid bursts with long pauses.
        worth = min(max(move.throttle, MOVE_THROTTLED_CHUNK_BYTES_MIN), limits.MOVE_CHUNK_BYTES)
        small = {"bytes": worth} if move.throttle else {}
        while True:
            pieces = 0
            for name in (move.queue, rules.dead_letter_name(move.queue)):
                more = True
                while more:
                    self._still_wanted(move, arrival)
                    more = await self._piece(move, arrival, name, progress, **small)
                    pieces += 1
                    # The next piece is requested when this one is on disk, so at most one waits for the disk.
                    await self._synced()
                    if move.throttle:
                        due_s = began_s + (progress.bytes - began_bytes) / move.throttle
                        await self._until(due_s, move, arrival)
            if pieces <= 2:
                return
            progress.apply(Event.REPEAT)

    async def _until(self, due_s: float, move: Move, arrival: Arrival) -> None:
        """Waits until a time; raises MoveEndedError if the move is cancelled meanwhile."""
        while (left_s := due_s - self._now_ms() / 1000) > 0:
            await self._sleep(min(left_s, MOVE_THROTTLE_LOOK_S))
            self._still_wanted(move, arrival)

    def _still_wanted(self, move: Move, arrival: Arrival) -> None:
        """Raises MoveEndedError if the move was cancelled, ImportFailedError if the copy was dropped."""
        wanted = self._map.moves.get(move.queue)
        if wanted is None or wanted.to != move.to or wanted.asked_ms != move.asked_ms:
            # Meanwhile another move of this queue, with another throttle, may have been requested.
            raise MoveEndedError("it was cancelled")
        self._present(arrival)

    async def _piece(self, move: Move, arrival: Arrival, name: str, progress: Progress, **more: Any) -> bool:
        """Copies one piece; returns whether there are more."""
        part = arrival.parts.get(name)
        asked = {
            "from": 0 if part is None else part.next,
            "bytes": limits.MOVE_CHUNK_BYTES,
            "messages": limits.MOVE_CHUNK_MESSAGES,
            **more,
        }
        return await self._export(move, arrival, name, progress, asked) is not None

    async def _rewritten(self, move: Move, arrival: Arrival, name: str, progress: Progress) -> None:
        """Copies messages again that were rewritten at the source after they were copied."""
        start: int | None = 0
        while start is not None:
            asked = {"from": start, "rewritten": True}
            start = await self._export(move, arrival, name, progress, asked)

    async def _export(
        self, move: Move, arrival: Arrival, name: str, progress: Progress, asked: dict[str, Any]
    ) -> int | None:
        """Requests and adds messages; returns the sequence to go on from, or None at the end."""
        fields = {"queue": name, "epoch": move.epoch, **asked}
        header, blob = await self._request(move, "export", fields)
        if header.get("absent"):
            return None
        if header.get("failed"):
            raise ShardDownError(f"the source could not read its messages: {header['failed']}")
        self._present(arrival)
        if name not in arrival.parts:
            self._arrivals.add(arrival, name, self._now_ms())
        next_ = self._arrivals.take(arrival, name, header, bytes(blob), self._now_ms())
        progress.bytes += len(blob)
        progress.totals[name] = int(header.get("messages", 0))
        progress.messages = sum(each.queue.view.gauges.ready for each in arrival.parts.values())
        self._turn()
        return next_

    def _present(self, arrival: Arrival) -> None:
        """Raises ImportFailedError if the copy and its name were dropped during a request."""
        if self._arrivals.find(arrival.name) is not arrival:
            raise ImportFailedError(f"{arrival.name} was dropped, or created again")

    async def _synced(self) -> None:
        """Waits until all records so far are on disk."""
        done = asyncio.Event()
        self._when_synced(CallWhenStored(done.set), 0)
        self._turn()
        await done.wait()

    async def finish(self, move: Move, arrival: Arrival, progress: Progress) -> None:
        """Freezes the queue at its source; copies the rest, checks the copy and syncs it."""
        header, blob = await self._request(move, FREEZE_OP, {"queue": move.queue, "epoch": move.epoch})
        self._present(arrival)
        states: list[tuple[str, dict[str, Any], bytes]] = []
        start = 0
        for each in header["states"]:
            stop = start + int(each["blob"])
            states.append((str(each["queue"]), each["state"], bytes(blob[start:stop])))
            self._arrivals.expect(arrival, [(int(boot), int(link)) for boot, link in each["links"]])
            start = stop
        for name, state, _ in states:
            part = arrival.parts.get(name)
            more = part is None or part.next < state["next_sequence"]
            while more:
                more = await self._piece(move, arrival, name, progress)
            if state["notes"]:
                await self._rewritten(move, arrival, name, progress)
        self._present(arrival)
        self._arrivals.finish(arrival, states, self._now_ms())
        await self._synced()

    async def _request(self, move: Move, op: str, fields: dict[str, Any]) -> Answer:
        wait_ms = limits.MOVE_SOURCE_AGAIN_MS_MAX
        return await self._sources.request(move.source, op, fields, greeting_ms=wait_ms)
