"""Placing: the writes to the coordinator by which a queue moves to this shard, or by which it stays here."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from lightrail.cluster import moves
from lightrail.cluster.coordinator import ConflictError, Coordinator, CoordinatorError, Write
from lightrail.cluster.map import PLACEMENT, Move, Placed
from lightrail.model import limits
from lightrail.shard.queues.tenancy import ClusterMap

log = logging.getLogger("lightrail.shard.moving")


class MoveEndedError(Exception):
    """The move has no next step, because it was cancelled or replaced by another one."""


class Placing:
    """Writes the entries of moves and the placements of queues; each write is one transaction.

    Args:
        sleep: sleeps for a number of seconds.
    """

    def __init__(
        self, shard: int, coordinator: Coordinator, map: ClusterMap, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self._shard = shard
        self._coordinator = coordinator
        self._map = map
        self._sleep = sleep

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
