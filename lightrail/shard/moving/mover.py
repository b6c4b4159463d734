"""The mover: moves queues to this shard according to the entries `moves/QUEUE` of the coordinator.

One task per move, at most MOVES_AT_ONCE at a time, in the order in which they were requested. A task
copies the queue (copier.py) and makes the transaction (copier.py); the steps are those of
docs/adr/0010-moving-queues.md, and phases.py has what follows from the failure of each. A move continues
after a restart of its shard.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from lightrail.cluster.coordinator import Coordinator, CoordinatorError
from lightrail.cluster.map import MapChanges, Move
from lightrail.model import limits
from lightrail.model.policy import Role
from lightrail.namespace.records import Name
from lightrail.shard.journal.store import StoreError
from lightrail.shard.moving.copier import Copier, MoveEndedError, Placing, Sources
from lightrail.shard.moving.importing import ImportFailedError
from lightrail.shard.moving.phases import DROPS_COPY, ENDS, MoveEvent, MoveProgress
from lightrail.shard.queues.tenancy import ClusterMap
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.telemetry.shard import ShardCounts

if TYPE_CHECKING:
    from lightrail.shard.engine.engine import Engine
    from lightrail.shard.moving.arrivals import Arrival

MOVES_AT_ONCE: Final[int] = 8
"""Queues that one shard copies to itself at the same time."""
MOVES_SHOWN_MS: Final[int] = 600_000
"""How long an ended move is shown."""
MOVES_SHOWN_MAX: Final[int] = 1_000
"""Ended moves that are shown; the oldest are dropped first."""

log = logging.getLogger("lightrail.shard.moving")

FAILURES: Final[Mapping[type[Exception], MoveEvent]] = {
    MoveEndedError: MoveEvent.CANCEL,
    ShardDownError: MoveEvent.LOSE,
    ShardRefusedError: MoveEvent.REFUSE,
    CoordinatorError: MoveEvent.REFUSE,
    ImportFailedError: MoveEvent.SPOIL,
    StoreError: MoveEvent.SPOIL,
}
"""The event of each error of a step; BREAK for all others."""
FAILURES_BEFORE_LOG: Final = 3
"""Failed attempts of a move until one is logged: a source that is started again is away for some of them."""


class Mover:
    """Carries out the moves to one shard, and takes frozen queues back.

    Args:
        get_name: the record of a name in the directory.
        turn: called after changes in the engine, to send its output and commit its records.
        sleep: seconds; tests inject it.
    """

    def __init__(
        self,
        *,
        shard: int,
        engine: "Engine",
        coordinator: Coordinator,
        map: ClusterMap,
        get_name: Callable[[str], Name],
        sources: Sources,
        counts: ShardCounts,
        turn: Callable[[], None],
        now_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._shard = shard
        self._engine = engine
        self._map = map
        self._get_name = get_name
        self._counts = counts
        self._turn = turn
        self._now_ms = now_ms
        self._sleep = sleep
        self._copier = Copier(engine.arrivals, engine.when_synced, map, sources, turn, now_ms, sleep)
        self._placing = Placing(shard, coordinator, map, sleep)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._committed: dict[str, int] = {}
        """Epochs of committed moves that the map may still show, by queue."""
        self._taking_back: dict[str, asyncio.Task[None]] = {}
        self._progress: dict[str, MoveProgress] = {}
        self._ended: deque[MoveProgress] = deque(maxlen=MOVES_SHOWN_MAX)
        self._closing = False
        engine.answer({"moves": lambda _peer, _number, _fields, _now_ms: {"moves": self.describe()}})
        map.listen(self._changed)

    # --- which moves -----------------------------------------------------------------------------------

    def _changed(self, changes: MapChanges) -> None:
        for queue in changes.moves:
            self._committed.pop(queue, None)
        if changes.moves:
            self.begin_due()

    def begin_due(self) -> None:
        """Begins the moves that are due."""
        if self._closing:
            return
        mine = [
            move
            for move in self._map.moves.values()
            if move.to == self._shard and self._committed.get(move.queue) != move.epoch
        ]
        for move in sorted(mine, key=lambda each: (each.asked_ms, each.order, each.queue)):
            if len(self._tasks) >= MOVES_AT_ONCE:
                break
            if move.queue not in self._tasks:
                task = asyncio.get_running_loop().create_task(self._run(move))
                self._tasks[move.queue] = task

    def describe(self) -> list[dict[str, Any]]:
        """The moves to this shard: under way, waiting, and recently ended."""
        now_ms = self._now_ms()
        while self._ended and self._ended[0].ended_ms < now_ms - MOVES_SHOWN_MS:
            self._ended.popleft()
        found = [each.describe(now_ms) for each in self._progress.values()]
        for move in self._map.moves.values():
            if (
                move.to == self._shard
                and move.queue not in self._progress
                and self._committed.get(move.queue) != move.epoch
            ):
                waiting = MoveProgress(move.queue, move.source, move.to, move.epoch, move.asked_ms)
                found.append(waiting.describe(now_ms))
        return found + [each.describe(now_ms) for each in self._ended]

    def stop(self) -> list[asyncio.Task[None]]:
        """Cancels and returns all tasks, as the process ends; the next process begins the copies again."""
        self._closing = True
        tasks = [*self._tasks.values(), *self._taking_back.values()]
        for task in tasks:
            task.cancel()
        return tasks

    async def close(self) -> None:
        """Cancels all tasks and waits for their ends."""
        await asyncio.gather(*self.stop(), return_exceptions=True)

    # --- one move --------------------------------------------------------------------------------------

    async def _run(self, move: Move) -> None:
        """Begins attempts until the move has ended."""
        queue = move.queue
        progress = self._progress[queue] = MoveProgress(
            queue, move.source, move.to, move.epoch, self._now_ms()
        )
        pause_ms = limits.MOVE_AGAIN_MS
        try:
            while progress.phase not in ENDS:
                try:
                    self._follow()
                    await self._attempt(progress)
                except Exception as error:
                    pause_ms = await self._failed(progress, error, pause_ms)
        finally:
            del self._tasks[queue], self._progress[queue]
            progress.ended_ms = self._now_ms()
            if progress.result:
                self._ended.append(progress)
            self.begin_due()

    async def _attempt(self, progress: MoveProgress) -> None:
        """Passes all phases that remain. Raises the errors of their steps."""
        queue = progress.queue
        move, placed = await self._placing.begin(queue)
        arrival = None
        if self._get_name(queue).role is Role.CONNECTION_POINT:
            progress.apply(MoveEvent.SKIP)
        else:
            move, arrival = await self._copy(move, progress)
        await self._placing.commit(move, placed)
        if arrival is None:
            self._counts.moves_in += 1
        else:
            now_ms = self._now_ms()
            self._engine.open_arrival(arrival, now_ms)
            progress.pause_ms = now_ms - progress.frozen_ms
            self._counts.move_pause_seconds.observe(progress.pause_ms / 1000)
        progress.error = ""
        # The map shows further moves after the committed one now or in a moment.
        self._committed[queue] = move.epoch
        self._follow()
        if queue not in self._map.moves:
            self._committed.pop(queue, None)
        progress.apply(MoveEvent.COMMIT)

    async def _copy(self, move: Move, progress: MoveProgress) -> tuple[Move, "Arrival"]:
        """Copies the queue and freezes it at its source; returns the move as it is written then."""
        arrival = self._engine.arrivals.find(move.queue)
        if arrival is None or arrival.epoch != move.epoch + 1 or arrival.complete:
            # A complete copy is that of a former process, and lacks messages that arrived since. That
            # process may have sent its commit: while the commit can still succeed, the copy stays.
            if move.phase == "frozen":
                move = await self._placing.renew(move)
            self._drop(move.queue)
            progress.messages = progress.bytes = 0
            arrival = self._engine.arrivals.begin(move.queue, move.epoch + 1, self._now_ms())
        await self._copier.copy(move, arrival, progress)
        progress.apply(MoveEvent.FREEZE)
        if move.phase == "waiting":
            move = await self._placing.freeze(move)
        progress.frozen_ms = self._now_ms()
        await self._copier.finish(move, arrival, progress)
        progress.apply(MoveEvent.SWITCH)
        return move, arrival

    async def _failed(self, progress: MoveProgress, error: Exception, pause_ms: int) -> int:
        """Does what a failure leads to, and pauses before another attempt; returns the pause after that."""
        found = next((event for kind, event in FAILURES.items() if isinstance(error, kind)), MoveEvent.BREAK)
        queue, event = progress.queue, progress.fail(found)
        progress.error = str(error)
        progress.failures += 1
        if event is MoveEvent.CANCEL:
            log.info("the move of %s to this shard has ended: %s", queue, error)
        elif event is MoveEvent.BREAK:
            log.exception("the move of %s ended by an internal error; it begins again", queue)
            progress.error = "internal error; see the shard's log"
            pause_ms = limits.MOVE_AGAIN_MS_MAX
        elif progress.failures == FAILURES_BEFORE_LOG:
            log.warning("the move of %s to this shard waits: %s", queue, error)
        if event in DROPS_COPY:
            # The commit of a complete copy may have been sent: the next attempt decides on that copy.
            self._drop(queue, also_complete=event is not MoveEvent.BREAK)
        if event is MoveEvent.LOSE:
            # An attempt costs little while the source is down, because no request is sent.
            pause_ms = min(pause_ms, limits.MOVE_SOURCE_AGAIN_MS_MAX)
        if event is not MoveEvent.CANCEL:
            await self._sleep(pause_ms / 1000)
        return min(2 * pause_ms, limits.MOVE_AGAIN_MS_MAX)

    def _drop(self, queue: str, *, also_complete: bool = True) -> None:
        """Drops the copy, if there is one."""
        arrival = self._engine.arrivals.find(queue)
        if arrival is not None and (also_complete or not arrival.complete):
            self._counts.moves_failed += 1
            self._engine.arrivals.drop(arrival, self._now_ms())
            self._turn()

    def _follow(self) -> None:
        """Follows changes of the map, as another process may have made them."""
        self._engine.refresh(self._now_ms())
        self._turn()

    # --- queues that this shard takes back -------------------------------------------------------------

    def take_back(self, queue: str) -> None:
        """Takes a frozen queue back whose move did not complete in time."""
        if queue not in self._taking_back and not self._closing:
            self._taking_back[queue] = asyncio.get_running_loop().create_task(self._take_back(queue))

    async def _take_back(self, queue: str) -> None:
        try:
            if await self._placing.take_back(queue):
                self._follow()
        except CoordinatorError as error:
            log.warning("queue %s can't be taken back yet: %s", queue, error)
        finally:
            del self._taking_back[queue]
