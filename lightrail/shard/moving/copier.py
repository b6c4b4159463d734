"""Copies a queue from its source into this shard's engine.

`Placing` writes to the coordinator that the queue is at this shard now, or stays here.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from lightrail.cluster import moves
from lightrail.cluster.coordinator import ConflictError, Coordinator, CoordinatorError, Write
from lightrail.cluster.map import PLACEMENT, Move, Placed
from lightrail.model import limits
from lightrail.model import names as rules
from lightrail.shard.moving.exporting import FREEZE_OP
from lightrail.shard.moving.importing import ImportFailedError
from lightrail.shard.moving.phases import MoveEvent, MoveProgress
from lightrail.shard.queues.shard_queue import CallWhenSynced, WhenSynced
from lightrail.shard.queues.tenancy import ClusterMap
from lightrail.shard_client.peers.requests import ShardDownError
from lightrail.wire.bodies import Answer

if TYPE_CHECKING:
    from lightrail.shard.moving.arrivals import Arrival, Arrivals

log = logging.getLogger("lightrail.shard.moving")


class MoveEndedError(Exception):
    """The move has no next step, because it was cancelled or replaced by another one."""


@dataclass(eq=False, repr=False)
class Placing:
    """Writes the entries of moves and the placements of queues; each write is one transaction.

    Args:
        sleep: sleeps for a number of seconds.
    """

    _shard: int
    _coordinator: Coordinator
    _map: ClusterMap
    _sleep: Callable[[float], Awaitable[None]]

    async def begin(self, queue: str) -> tuple[Move, Placed]:
        """The move and the placement before it. Raises MoveEndedError if they do not match."""
        move, placed = self._map.moves.get(queue), self._map.placed(queue)
        if move is None or move.to != self._shard:
            raise MoveEndedError("it was cancelled")
        if placed is not None and (placed.shard, placed.epoch) == (move.source, move.epoch):
            return move, placed
        # The queue is at another shard, or was dropped: no other process deletes this entry.
        try:
            await self._coordinator.write([Write(move.key, None, move.revision)])
        except ConflictError as error:
            raise CoordinatorError(str(error)) from error
        raise MoveEndedError(f"{queue} is no longer at shard {move.source} in epoch {move.epoch}")

    async def freeze(self, move: Move) -> Move:
        """Writes to the coordinator that the queue is frozen. Raises CoordinatorError."""
        return await self._changed(moves.freeze(self._coordinator, move))

    async def renew(self, move: Move) -> Move:
        """Makes sure that no commit of a former copy can succeed any more. Raises CoordinatorError."""
        return await self._changed(moves.renew(self._coordinator, move))

    async def _changed(self, change: Awaitable[Move]) -> Move:
        try:
            return await change
        except ConflictError as error:
            # The move was cancelled or committed, or an attempt whose answer was lost has succeeded: the map
            # shows which.
            raise CoordinatorError(str(error)) from error

    async def commit(self, move: Move, placed: Placed) -> None:
        """Makes this shard the queue's owner. Raises MoveEndedError if another shard owns it.

        The coordinator may have made the transaction even if it answered with an error: the transaction is
        repeated, or the placement is read, until the owner is known.
        """
        pause_ms = limits.MOVE_AGAIN_MS
        while True:
            try:
                await moves.commit(self._coordinator, move, placed)
                return
            except ConflictError:
                pass
            except CoordinatorError as error:
                log.warning("the owner of %s is not known yet: %s", move.queue, error)
                await self._sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, limits.MOVE_AGAIN_MS_MAX)
            try:
                if await self._is_committed(move, placed):
                    return
            except CoordinatorError:
                continue

    async def _is_committed(self, move: Move, placed: Placed) -> bool:
        """Whether the transaction was made; False if it may be repeated. Raises MoveEndedError."""
        entry = await self._coordinator.entry(PLACEMENT + move.queue)
        found = None if entry is None else Placed.decode(entry)
        if found is not None and found.placement == (move.to, move.epoch + 1):
            return True
        if found is None or found.revision != placed.revision:
            raise MoveEndedError(f"{move.queue} is served at its source, or at another shard")
        again = await self._coordinator.entry(move.key)
        if again is None or again.revision != move.revision:
            raise MoveEndedError("it was cancelled, or begun again")
        return False

    async def take_back(self, queue: str) -> bool:
        """Takes a frozen queue back for this shard in a transaction.

        False if the queue is at another shard. Raises CoordinatorError.
        """
        placed, move = self._map.placed(queue), self._map.moves.get(queue)
        if placed is None or placed.shard != self._shard:
            return False
        if move is None:
            # An operator deleted the entry of the move; the queue is frozen in this epoch nevertheless.
            value = Placed.encode(self._shard, placed.epoch + 2, placed.lost)
            await self._coordinator.write([Write(PLACEMENT + queue, value, placed.revision)])
        else:
            await moves.give_up(self._coordinator, replace(move, phase="frozen"), placed)
        return True


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


@dataclass(eq=False, repr=False)
class Copier:
    """Requests pieces and the state of queues, and adds them to the copy.

    Args:
        when_synced: see `CallWhenSynced`.
        turn: called after changes in the engine, to send its output and commit its records.
        sleep: sleeps for a number of seconds.
    """

    _arrivals: "Arrivals"
    _when_synced: CallWhenSynced
    _map: ClusterMap
    _sources: Sources
    _turn: Callable[[], None]
    _now_ms: Callable[[], int]
    _sleep: Callable[[float], Awaitable[None]]

    async def copy(self, move: Move, arrival: "Arrival", progress: MoveProgress) -> None:
        """Copies pieces until the messages that arrived meanwhile fit into one piece."""
        began_s, began_bytes = self._now_ms() / 1000, progress.bytes
        progress.apply(MoveEvent.BEGIN)
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
            progress.apply(MoveEvent.REPEAT)

    async def _until(self, due_s: float, move: Move, arrival: "Arrival") -> None:
        """Waits until a time; raises MoveEndedError if the move is cancelled meanwhile."""
        while (left_s := due_s - self._now_ms() / 1000) > 0:
            await self._sleep(min(left_s, MOVE_THROTTLE_LOOK_S))
            self._still_wanted(move, arrival)

    def _still_wanted(self, move: Move, arrival: "Arrival") -> None:
        """Raises MoveEndedError if the move was cancelled, ImportFailedError if the copy was dropped."""
        wanted = self._map.moves.get(move.queue)
        if wanted is None or wanted.to != move.to or wanted.asked_ms != move.asked_ms:
            # Meanwhile another move of this queue, with another throttle, may have been requested.
            raise MoveEndedError("it was cancelled")
        self._present(arrival)

    async def _piece(
        self, move: Move, arrival: "Arrival", name: str, progress: MoveProgress, **more: Any
    ) -> bool:
        """Copies one piece; returns whether there are more."""
        part = arrival.parts.get(name)
        asked = {
            "from": 0 if part is None else part.next,
            "bytes": limits.MOVE_CHUNK_BYTES,
            "messages": limits.MOVE_CHUNK_MESSAGES,
            **more,
        }
        return await self._export(move, arrival, name, progress, asked) is not None

    async def _rewritten(self, move: Move, arrival: "Arrival", name: str, progress: MoveProgress) -> None:
        """Copies messages again that were rewritten at the source after they were copied."""
        start: int | None = 0
        while start is not None:
            asked = {"from": start, "rewritten": True}
            start = await self._export(move, arrival, name, progress, asked)

    async def _export(
        self, move: Move, arrival: "Arrival", name: str, progress: MoveProgress, asked: dict[str, Any]
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

    def _present(self, arrival: "Arrival") -> None:
        """Raises ImportFailedError if the copy and its name were dropped during a request."""
        if self._arrivals.find(arrival.name) is not arrival:
            raise ImportFailedError(f"{arrival.name} was dropped, or created again")

    async def _synced(self) -> None:
        """Waits until all records so far are on disk."""
        done = asyncio.Event()
        self._when_synced(WhenSynced(done.set), 0)
        self._turn()
        await done.wait()

    async def finish(self, move: Move, arrival: "Arrival", progress: MoveProgress) -> None:
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
