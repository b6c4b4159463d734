"""The mover: moves queues to this shard according to the entries `moves/QUEUE` of the coordinator.

One task per move, at most limits.MOVES_AT_ONCE at a time, in the order in which they were requested. A task
copies the queue (copier.py) and makes the transaction (transactions.py); the steps are those of
docs/adr/0010-moving-queues.md. A failed step is repeated, or the copy begins again; a move continues after a
restart of its shard.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from lightrail.cluster.coordinator import Coordinator, CoordinatorError
from lightrail.cluster.map import MapChanges, Move
from lightrail.model import limits
from lightrail.model.policy import Role
from lightrail.namespace.records import Name
from lightrail.shard.journal.store import StoreError
from lightrail.shard.moving.copier import Copier, Source
from lightrail.shard.moving.importing import ImportFailedError
from lightrail.shard.moving.progress import FREEZE, SWITCH, Progress
from lightrail.shard.moving.transactions import MoveEndedError, Transactions
from lightrail.shard.queues.tenancy import ClusterMap
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.requests import ShardDownError, ShardRefusedError

if TYPE_CHECKING:
    from lightrail.shard.engine.engine import Engine

log = logging.getLogger("lightrail.shard.moving")

SAID_AFTER: Final = 3
"""Number of failed attempts before a failure is logged: a connection may not be open yet."""


class Sources(Protocol):
    """The shards that queues are copied from."""

    def take(self, shard: int) -> Source:
        """A connection to a shard, which may be down. Raises ShardDownError if its address is unknown."""

    def leave(self, shard: int) -> None:
        """Releases a connection that `take` returned."""


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
        self._sources = sources
        self._counts = counts
        self._turn = turn
        self._now_ms = now_ms
        self._sleep = sleep
        self._copier = Copier(engine, map, turn, now_ms, sleep)
        self._transactions = Transactions(shard, coordinator, map, sleep)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._made: dict[str, int] = {}
        """Epochs of committed moves that the map may still show, by queue."""
        self._taking_back: dict[str, asyncio.Task[None]] = {}
        self._progress: dict[str, Progress] = {}
        self._ended: deque[Progress] = deque(maxlen=limits.MOVES_SHOWN_MAX)
        self._closing = False
        engine.answer({"moves": lambda _peer, _number, _fields, _now_ms: {"moves": self.describe()}})
        map.listen(self._changed)

    # --- which moves -----------------------------------------------------------------------------------

    def _changed(self, changes: MapChanges) -> None:
        for queue in changes.moves:
            self._made.pop(queue, None)
        if changes.moves:
            self.look()

    def look(self) -> None:
        """Begins the moves that are due."""
        if self._closing:
            return
        mine = [
            move
            for move in self._map.moves.values()
            if move.to == self._shard and self._made.get(move.queue) != move.epoch
        ]
        for move in sorted(mine, key=lambda each: (each.asked_ms, each.order, each.queue)):
            if len(self._tasks) >= limits.MOVES_AT_ONCE:
                break
            if move.queue not in self._tasks:
                task = asyncio.get_running_loop().create_task(self._run(move))
                self._tasks[move.queue] = task

    def describe(self) -> list[dict[str, Any]]:
        """The moves to this shard: under way, waiting, and recently ended."""
        now_ms = self._now_ms()
        while self._ended and self._ended[0].ended_ms < now_ms - limits.MOVES_SHOWN_MS:
            self._ended.popleft()
        found = [each.describe(now_ms) for each in self._progress.values()]
        for move in self._map.moves.values():
            if (
                move.to == self._shard
                and move.queue not in self._progress
                and self._made.get(move.queue) != move.epoch
            ):
                waiting = Progress(move.queue, move.source, move.to, move.epoch, move.asked_ms)
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
        queue = move.queue
        progress = self._progress[queue] = Progress(queue, move.source, move.to, move.epoch, self._now_ms())
        try:
            await self._persist(queue, progress)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("the move of %s ended by an internal error; it begins again", queue)
            progress.error = "internal error; see the shard's log"
            arrival = self._engine.arrivals.find(queue)
            if arrival is not None and not arrival.complete:
                # The commit of a complete copy may have been sent: the next attempt decides on that copy.
                self._drop(queue)
            await self._sleep(limits.MOVE_AGAIN_MS_MAX / 1000)
        finally:
            del self._tasks[queue], self._progress[queue]
            progress.ended_ms = self._now_ms()
            if progress.result:
                self._ended.append(progress)
            self.look()

    async def _persist(self, queue: str, progress: Progress) -> None:
        """Retries until the move is committed or cancelled."""
        pause_ms = limits.MOVE_AGAIN_MS
        while not self._closing:
            try:
                await self._attempt(queue, progress)
                progress.result = "done"
                self._look_again(queue, progress)
                return
            except MoveEndedError as ended:
                progress.error, progress.result = str(ended), ended.result
                log.info("the move of %s to this shard has ended: %s", queue, ended)
                self._drop(queue)
                return
            except ShardDownError as error:
                self._failed(progress, error)
                # An attempt costs little while the source is down, because no request is sent.
                pause_ms = min(pause_ms, limits.MOVE_SOURCE_AGAIN_MS_MAX)
            except (ShardRefusedError, CoordinatorError) as error:
                self._failed(progress, error)
            except (ImportFailedError, StoreError) as error:
                self._failed(progress, error)
                self._drop(queue)
            await self._sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, limits.MOVE_AGAIN_MS_MAX)
            self._engine.refresh(self._now_ms())
            self._turn()

    def _look_again(self, queue: str, progress: Progress) -> None:
        """Looks for further moves after a committed one, which the map shows now or in a moment."""
        self._made[queue] = progress.epoch
        self._engine.refresh(self._now_ms())
        self._turn()
        if queue not in self._map.moves:
            self._made.pop(queue, None)

    def _failed(self, progress: Progress, error: Exception) -> None:
        progress.failures += 1
        if progress.failures == SAID_AFTER:
            log.warning("the move of %s to this shard waits: %s", progress.queue, error)
        progress.error = str(error)

    def _drop(self, queue: str) -> None:
        """Drops the copy, if there is one."""
        arrival = self._engine.arrivals.find(queue)
        if arrival is not None:
            self._counts.moves_failed += 1
            self._engine.arrivals.drop(arrival, self._now_ms())
            self._turn()

    async def _attempt(self, queue: str, progress: Progress) -> None:
        """Performs all remaining steps. Raises MoveEndedError, and the errors of the steps."""
        move, placed = await self._transactions.begin(queue)
        if self._get_name(queue).role is Role.CONNECTION_POINT:
            # A connection point stores nothing, so there is nothing to copy.
            progress.phase = SWITCH
            await self._transactions.commit(move, placed)
            self._counts.moves_in += 1
            progress.error = ""
            return
        source = self._sources.take(move.source)
        try:
            arrival = self._engine.arrivals.find(queue)
            if arrival is None or arrival.epoch != move.epoch + 1 or arrival.complete:
                # A complete copy is that of a former process, and lacks messages that arrived since. That
                # process may have sent its commit: while the commit can still succeed, the copy stays.
                if move.phase == "frozen":
                    move = await self._transactions.renew(move)
                self._drop(queue)
                progress.messages = progress.bytes = 0
                arrival = self._engine.arrivals.begin(queue, move.epoch + 1, self._now_ms())
            await self._copier.copy(source, move, arrival, progress)
            progress.phase = FREEZE
            if move.phase == "waiting":
                move = await self._transactions.freeze(move)
            began_ms = self._now_ms()
            await self._copier.finish(source, move, arrival, progress)
        finally:
            self._sources.leave(move.source)
        progress.phase = SWITCH
        await self._transactions.commit(move, placed)
        now_ms = self._now_ms()
        self._engine.open_arrival(arrival, now_ms)
        self._turn()
        progress.pause_ms = now_ms - began_ms
        progress.error = ""
        self._counts.move_pause_last = progress.pause_ms / 1000
        self._counts.move_pause_seconds.observe(progress.pause_ms / 1000)

    # --- queues that this shard takes back -------------------------------------------------------------

    def take_back(self, queue: str) -> None:
        """Takes a frozen queue back whose move did not complete in time."""
        if queue not in self._taking_back and not self._closing:
            self._taking_back[queue] = asyncio.get_running_loop().create_task(self._take_back(queue))

    async def _take_back(self, queue: str) -> None:
        try:
            if await self._transactions.take_back(queue):
                self._engine.refresh(self._now_ms())
                self._turn()
        except CoordinatorError as error:
            log.warning("queue %s can't be taken back yet: %s", queue, error)
        finally:
            del self._taking_back[queue]
