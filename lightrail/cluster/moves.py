"""Moves: the transactions that change a queue's owner, each guarded by the revisions that it was decided on.

The placement names the owner of a queue. It changes in `commit` (to the destination, epoch + 1) or in
`give_up` (the source keeps its queue, epoch + 2), and only one of them can succeed: both need the placement
and the move at the revisions that they have read. See docs/adr/0010-moving-queues.md.
"""

from collections.abc import Sequence
from dataclasses import replace

from lightrail.cluster.coordinator import WRITES_MAX, ConflictError, KeySpace, Write
from lightrail.cluster.map import PLACEMENT, Map, Move, Placed


async def begin(
    coordinator: KeySpace, map: Map, wanted: Sequence[tuple[str, int]], *, throttle: int = 0, now_ms: int
) -> list[Move]:
    """Requests moves of queues, as (queue, destination), in this order.

    Returns:
        The moves that began; a move that exists already, or whose placement changed meanwhile, is left out.
    """
    begun: list[Move] = []
    moves: list[Move] = []
    for order, (queue, to) in enumerate(wanted):
        placed = map.placed(queue)
        if placed is not None and placed.shard != to and queue not in map.moves:
            moves.append(
                Move(queue, placed.shard, to, placed.epoch, throttle=throttle, asked_ms=now_ms, order=order)
            )
    for start in range(0, len(moves), WRITES_MAX):
        begun += await _begin(coordinator, moves[start : start + WRITES_MAX])
    return begun


async def _begin(coordinator: KeySpace, moves: list[Move]) -> list[Move]:
    try:
        await coordinator.write([Write(move.key, move.encode(), 0) for move in moves])
    except ConflictError:
        if len(moves) == 1:
            return []
        # Another process has begun one of them: the others are requested one by one.
        return [each for move in moves for each in await _begin(coordinator, [move])]
    return moves


async def renew(coordinator: KeySpace, move: Move) -> Move:
    """Writes the entry of a move again, so that transactions that were guarded by its former revision fail.

    A process that died may have sent the commit of its copy, and the coordinator may carry it out later: its
    successor drops the copy only after it has won the entry.

    Raises:
        ConflictError: the former process committed, or the move changed.
    """
    return replace(move, revision=await coordinator.write([Write(move.key, move.encode(), move.revision)]))


async def freeze(coordinator: KeySpace, move: Move) -> Move:
    """Records that the destination is about to request the source to freeze the queue.

    Raises:
        ConflictError: the move was cancelled.
    """
    frozen = replace(move, phase="frozen")
    revision = await coordinator.write([Write(move.key, frozen.encode(), move.revision)])
    return replace(frozen, revision=revision)


async def commit(coordinator: KeySpace, move: Move, placed: Placed) -> None:
    """Makes the destination the owner, in epoch + 1, and ends the move.

    Raises:
        ConflictError: the source gave the move up, or the queue was deleted.
    """
    await coordinator.write(
        [
            Write(
                PLACEMENT + move.queue, Placed.encode(move.to, move.epoch + 1, placed.lost), placed.revision
            ),
            Write(move.key, None, move.revision),
        ]
    )


async def cancel_to(coordinator: KeySpace, map: Map, shard: int) -> None:
    """Cancels the moves to a shard whose copies are given up with its disk.

    A commit that the shard has sent before cannot succeed afterwards; it would make a shard without the copy
    the owner.

    Raises:
        ConflictError: a move changed just now.
    """
    for move in [move for move in map.moves.values() if move.to == shard]:
        placed = map.placed(move.queue)
        if placed is not None:
            await give_up(coordinator, move, placed)


async def give_up(coordinator: KeySpace, move: Move, placed: Placed) -> None:
    """Leaves the queue to the source, in epoch + 2 if the queue may be frozen, and ends the move.

    Raises:
        ConflictError: the destination committed, the move changed, or another process gave it up.
    """
    writes = [Write(move.key, None, move.revision)]
    if move.phase == "frozen":
        writes.append(
            Write(
                PLACEMENT + move.queue,
                Placed.encode(move.source, move.epoch + 2, placed.lost),
                placed.revision,
            )
        )
    await coordinator.write(writes)
