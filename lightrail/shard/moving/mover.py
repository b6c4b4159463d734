"""The mover: brings queues to this shard, as the entries `moves/QUEUE` of the coordinator ask for it.

One task per move, at most limits.MOVES_AT_ONCE at a time, in the order they were asked for. A task asks the
source as a frontend would, drives the copy in its own engine, and makes the transaction; the steps are those
of docs/adr/0010-moving-queues.md. Whatever fails is begun again where it stands, or anew; whatever dies goes
on when it is back.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from lightrail.cluster import moves
from lightrail.cluster.coordinator import ConflictError, Coordinator, CoordinatorError, Write
from lightrail.cluster.map import PLACEMENT, MapChanges, Move, Placed
from lightrail.model import limits
from lightrail.model import names as rules
from lightrail.model.policy import Role
from lightrail.namespace.records import Name
from lightrail.shard.engine import Engine
from lightrail.shard.journal.store import StoreError
from lightrail.shard.moving.answering import Later
from lightrail.shard.moving.arrivals import Arrival
from lightrail.shard.moving.importing import ImportFailed
from lightrail.shard.moving.tenancy import Places
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import Answer
from lightrail.wire.requests import ShardDownError, ShardRefusedError

log = logging.getLogger("lightrail.shard.moving.mover")

WAITING: Final = "waiting"
COPY: Final = "copy"
CATCH_UP: Final = "catch up"
FREEZE: Final = "freeze"
SWITCH: Final = "switch"
SAID_AFTER: Final = 3
"""Attempts that failed before it is said in the log: a connection may have yet to be made."""


class Source(Protocol):
    """The shard that a queue comes from; `lightrail.wire.shards.ShardPeer` is one."""

    async def request(self, op: str, fields: dict[str, Any]) -> Answer:
        """Raises ShardDownError and ShardRefusedError."""


class Sources(Protocol):
    """The shards that queues come from."""

    def take(self, shard: int) -> Source:
        """A way to a shard, which may not serve now. Raises ShardDownError where its address is unknown."""

    def leave(self, shard: int) -> None:
        """Whoever took it needs it no more."""


class Over(Exception):
    """This move is not to be gone on with."""

    def __init__(self, result: str, why: str) -> None:
        super().__init__(why)
        self.result = result


@dataclass(slots=True)
class Progress:
    """How one move goes, for people."""

    queue: str
    source: int
    to: int
    epoch: int
    began_ms: int
    phase: str = WAITING
    messages: int = 0
    bytes: int = 0
    pause_ms: int = 0
    error: str = ""
    """Of the last attempt; it is tried again."""
    failures: int = 0
    result: str = ""
    """``done`` or ``cancelled`` when it has ended."""
    ended_ms: int = 0
    totals: dict[str, int] = field(default_factory=dict)
    """Messages at the source, by queue."""

    def shown(self, now_ms: int) -> dict[str, Any]:
        """As the request `moves` shows it."""
        return {
            "queue": self.queue,
            "source": self.source,
            "to": self.to,
            "phase": self.phase,
            "messages": self.messages,
            "messages_total": max(sum(self.totals.values()), self.messages),
            "bytes": self.bytes,
            "seconds": ((self.ended_ms or now_ms) - self.began_ms) / 1000,
            "pause_ms": self.pause_ms,
            "error": self.error,
            "result": self.result,
            "ended_ms": self.ended_ms or None,
        }


class Mover:
    """Everything that comes to one shard, and what it asks to be given back.

    Args:
        get_name: what the directory knows of a name.
        turn: the engine did something: its output leaves, its records are committed.
        sleep: seconds; tests inject it.
    """

    def __init__(
        self,
        *,
        shard: int,
        engine: Engine,
        coordinator: Coordinator,
        places: Places,
        get_name: Callable[[str], Name],
        sources: Sources,
        counts: ShardCounts,
        turn: Callable[[], None],
        now_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._shard = shard
        self._engine = engine
        self._coordinator = coordinator
        self._places = places
        self._get_name = get_name
        self._sources = sources
        self._counts = counts
        self._turn = turn
        self._now_ms = now_ms
        self._sleep = sleep
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._made: dict[str, int] = {}
        """Epochs of moves that were made and that the map may still show, by queue."""
        self._giving_up: dict[str, asyncio.Task[None]] = {}
        self._progress: dict[str, Progress] = {}
        self._ended: deque[Progress] = deque(maxlen=limits.MOVES_SHOWN_MAX)
        self._closing = False
        engine.moves.shown = self.shown
        engine.sealing.wish_back = self.wish_back
        places.listen(self._changed)

    # --- which moves -----------------------------------------------------------------------------------

    def _changed(self, changes: MapChanges) -> None:
        for queue in changes.moves:
            self._made.pop(queue, None)
        if changes.moves:
            self.look()

    def look(self) -> None:
        """Begins what is to be begun."""
        if self._closing:
            return
        mine = [
            move
            for move in self._places.moves.values()
            if move.to == self._shard and self._made.get(move.queue) != move.epoch
        ]
        for move in sorted(mine, key=lambda each: (each.asked_ms, each.order, each.queue)):
            if len(self._tasks) >= limits.MOVES_AT_ONCE:
                break
            if move.queue not in self._tasks:
                task = asyncio.get_running_loop().create_task(self._run(move))
                self._tasks[move.queue] = task

    def shown(self) -> list[dict[str, Any]]:
        """The moves to this shard: those that go on, those that wait, and those that ended lately."""
        now_ms = self._now_ms()
        while self._ended and self._ended[0].ended_ms < now_ms - limits.MOVES_SHOWN_MS:
            self._ended.popleft()
        found = [each.shown(now_ms) for each in self._progress.values()]
        for move in self._places.moves.values():
            if (
                move.to == self._shard
                and move.queue not in self._progress
                and self._made.get(move.queue) != move.epoch
            ):
                waiting = Progress(move.queue, move.source, move.to, move.epoch, move.asked_ms)
                found.append(waiting.shown(now_ms))
        return found + [each.shown(now_ms) for each in self._ended]

    def stop(self) -> list[asyncio.Task[None]]:
        """This process ends; what was copied so far is copied again by the next one. Returns what ends."""
        self._closing = True
        tasks = [*self._tasks.values(), *self._giving_up.values()]
        for task in tasks:
            task.cancel()
        return tasks

    async def close(self) -> None:
        """See `stop`; waits for the end."""
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
            log.exception("the move of %s ended by a mistake of ours; it is begun again", queue)
            progress.error = "a mistake of ours; the shard's log says more"
            self._drop(queue)
            await self._sleep(limits.MOVE_AGAIN_MS_MAX / 1000)
        finally:
            del self._tasks[queue], self._progress[queue]
            progress.ended_ms = self._now_ms()
            if progress.result:
                self._ended.append(progress)
            self.look()

    async def _persist(self, queue: str, progress: Progress) -> None:
        """Tries until the move is made, or is not wanted any more."""
        pause_ms = limits.MOVE_AGAIN_MS
        while not self._closing:
            try:
                await self._attempt(queue, progress)
                progress.result = "done"
                self._look_again(queue, progress)
                return
            except Over as over:
                progress.error, progress.result = str(over), over.result
                log.info("the move of %s to this shard is over: %s", queue, over)
                self._drop(queue)
                return
            except ShardDownError as error:
                self._failed(progress, error)
                # Nothing leaves this process while it is away: to look again costs nearly nothing.
                pause_ms = min(pause_ms, limits.MOVE_SOURCE_AGAIN_MS_MAX)
            except (ShardRefusedError, CoordinatorError) as error:
                self._failed(progress, error)
            except (ImportFailed, StoreError) as error:
                self._failed(progress, error)
                self._drop(queue)
            await self._sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, limits.MOVE_AGAIN_MS_MAX)
            self._engine.refresh(self._now_ms())
            self._turn()

    def _look_again(self, queue: str, progress: Progress) -> None:
        """The map shows what was made now, or in a moment."""
        self._made[queue] = progress.epoch
        self._engine.refresh(self._now_ms())
        self._turn()
        if queue not in self._places.moves:
            self._made.pop(queue, None)

    def _failed(self, progress: Progress, error: Exception) -> None:
        progress.failures += 1
        if progress.failures == SAID_AFTER:
            log.warning("the move of %s to this shard waits: %s", progress.queue, error)
        progress.error = str(error)

    def _drop(self, queue: str) -> None:
        """The copy is of no use."""
        arrival = self._engine.arrivals.find(queue)
        if arrival is not None:
            self._counts.moves_failed += 1
            self._engine.arrivals.drop(arrival, self._now_ms())
            self._turn()

    async def _attempt(self, queue: str, progress: Progress) -> None:
        """All steps, from where they stand. Raises Over, and whatever a step may raise."""
        move, placed = await self._wanted(queue)
        if self._get_name(queue).role is Role.CONNECTION_POINT:
            # Nothing of it is stored: there is nothing to copy.
            progress.phase = SWITCH
            await self._commit(move, placed)
            self._counts.moves_in += 1
            progress.error = ""
            return
        source = self._sources.take(move.source)
        try:
            arrival = self._engine.arrivals.find(queue)
            if arrival is None or arrival.epoch != move.epoch + 1 or arrival.complete:
                # One that is complete is of a former life, and what has come since is not in it.
                self._drop(queue)
                progress.messages = progress.bytes = 0
                arrival = self._engine.arrivals.begin(queue, move.epoch + 1, self._now_ms())
            await self._copy(source, move, arrival, progress)
            progress.phase = FREEZE
            if move.phase == "waiting":
                move = await self._freeze(move)
            began_ms = self._now_ms()
            await self._seal(source, move, arrival, progress)
        finally:
            self._sources.leave(move.source)
        progress.phase = SWITCH
        await self._commit(move, placed)
        now_ms = self._now_ms()
        self._engine.open_arrival(arrival, now_ms)
        self._turn()
        progress.pause_ms = now_ms - began_ms
        progress.error = ""
        self._counts.move_pause_last = progress.pause_ms / 1000
        self._counts.move_pause_seconds.observe(progress.pause_ms / 1000)

    async def _wanted(self, queue: str) -> tuple[Move, Placed]:
        """The move and the placement that it starts from. Raises Over where they don't agree (any more)."""
        move, placed = self._places.moves.get(queue), self._places.placed(queue)
        if move is None or move.to != self._shard:
            raise Over("cancelled", "it was cancelled")
        if placed is not None and (placed.shard, placed.epoch) == (move.source, move.epoch):
            return move, placed
        # The queue is elsewhere, or was dropped: nobody else takes this entry away.
        try:
            await self._coordinator.write([Write(move.key, None, move.revision)])
        except ConflictError as error:
            raise CoordinatorError(str(error)) from error
        raise Over("cancelled", f"{queue} is not at shard {move.source} in epoch {move.epoch} any more")

    # --- the copy --------------------------------------------------------------------------------------

    async def _copy(self, source: Source, move: Move, arrival: Arrival, progress: Progress) -> None:
        """Asks for everything, until what came meanwhile fits one answer."""
        began_s, began_bytes = self._now_ms() / 1000, progress.bytes
        progress.phase = COPY
        # About a second's worth: a slow copy is slow, and not bursts with long pauses.
        worth = min(max(move.throttle, limits.MOVE_THROTTLED_CHUNK_BYTES_MIN), limits.MOVE_CHUNK_BYTES)
        small = {"bytes": worth} if move.throttle else {}
        while True:
            pieces = 0
            for name in (move.queue, rules.dead_letter_name(move.queue)):
                more = True
                while more:
                    self._still_wanted(move, arrival)
                    more = await self._piece(source, move.epoch, arrival, name, progress, **small)
                    pieces += 1
                    # What came is on disk before more is asked for: nothing piles up here.
                    await self._synced()
                    if move.throttle:
                        due_s = began_s + (progress.bytes - began_bytes) / move.throttle
                        await self._until(due_s, move, arrival)
            if pieces <= 2:
                return
            progress.phase = CATCH_UP

    async def _until(self, due_s: float, move: Move, arrival: Arrival) -> None:
        """Waits as the throttle asks for; a move that was cancelled meanwhile does not wait on."""
        while (left_s := due_s - self._now_ms() / 1000) > 0:
            await self._sleep(min(left_s, limits.MOVE_THROTTLE_LOOK_S))
            self._still_wanted(move, arrival)

    def _still_wanted(self, move: Move, arrival: Arrival) -> None:
        wanted = self._places.moves.get(move.queue)
        if wanted is None or wanted.to != move.to or wanted.asked_ms != move.asked_ms:
            # Cancelled; perhaps asked for anew since, with another throttle.
            raise Over("cancelled", "it was cancelled")
        if self._engine.arrivals.find(move.queue) is not arrival:
            raise ImportFailed(f"{move.queue} was dropped, or made anew")

    async def _piece(
        self, source: Source, epoch: int, arrival: Arrival, name: str, progress: Progress, **more: Any
    ) -> bool:
        """One answer to `export`; returns whether there is more."""
        part = arrival.parts.get(name)
        asked = {
            "queue": name,
            "epoch": epoch,
            "from": 0 if part is None else part.next,
            "bytes": limits.MOVE_CHUNK_BYTES,
            "messages": limits.MOVE_CHUNK_MESSAGES,
            **more,
        }
        header, blob = await source.request("export", asked)
        if header.get("absent"):
            return False
        if header.get("failed"):
            raise ShardDownError(f"shard could not read what it has: {header['failed']}")
        self._present(arrival)
        if part is None:
            self._engine.arrivals.add(arrival, name, self._now_ms())
        next_ = self._engine.arrivals.take(arrival, name, header, bytes(blob), self._now_ms())
        progress.bytes += len(blob)
        progress.totals[name] = int(header.get("messages", 0))
        progress.messages = sum(each.queue.machine.gauges.ready for each in arrival.parts.values())
        self._turn()
        return next_ is not None

    def _present(self, arrival: Arrival) -> None:
        """While somebody was asked, the copy may have been dropped: with its name."""
        if self._engine.arrivals.find(arrival.name) is not arrival:
            raise ImportFailed(f"{arrival.name} was dropped, or made anew")

    async def _synced(self) -> None:
        """Everything that was appended so far is on disk."""
        done = asyncio.Event()
        self._engine.when_synced(Later(done.set), 0)
        self._turn()
        await done.wait()

    # --- the pause -------------------------------------------------------------------------------------

    async def _freeze(self, move: Move) -> Move:
        try:
            return await moves.freeze(self._coordinator, move)
        except ConflictError as error:
            # Cancelled, or frozen by an attempt whose answer got lost; the map will say.
            raise CoordinatorError(str(error)) from error

    async def _seal(self, source: Source, move: Move, arrival: Arrival, progress: Progress) -> None:
        """The source stops; what is left is fetched, checked, and on disk here."""
        header, blob = await source.request("seal", {"queue": move.queue, "epoch": move.epoch})
        self._present(arrival)
        arrivals = self._engine.arrivals
        states: list[tuple[str, dict[str, Any], bytes]] = []
        start = 0
        for each in header["states"]:
            stop = start + int(each["blob"])
            states.append((str(each["queue"]), each["state"], bytes(blob[start:stop])))
            arrivals.expect(arrival, [(int(boot), int(link)) for boot, link in each["links"]])
            start = stop
        for name, state, _ in states:
            while await self._piece(source, move.epoch, arrival, name, progress):
                pass
            if state["notes"]:
                await self._rewritten(source, move.epoch, arrival, name, progress)
        self._present(arrival)
        arrivals.finish(arrival, states, self._now_ms())
        await self._synced()

    async def _rewritten(
        self, source: Source, epoch: int, arrival: Arrival, name: str, progress: Progress
    ) -> None:
        """What changed at the source after it was copied comes again."""
        start: int | None = 0
        while start is not None:
            asked = {"queue": name, "epoch": epoch, "from": start, "rewritten": True}
            header, blob = await source.request("export", asked)
            if header.get("failed"):
                raise ShardDownError(f"shard could not read what it has: {header['failed']}")
            self._present(arrival)
            start = self._engine.arrivals.take(arrival, name, header, bytes(blob), self._now_ms())
            progress.bytes += len(blob)

    # --- the transaction -------------------------------------------------------------------------------

    async def _commit(self, move: Move, placed: Placed) -> None:
        """The queue is this shard's. Raises Over where it is somebody else's.

        Once it was asked for, it may have gone through, whatever the answer was: it is repeated, or read,
        until that is known.
        """
        pause_ms = limits.MOVE_AGAIN_MS
        while True:
            try:
                await moves.commit(self._coordinator, move, placed)
                return
            except ConflictError:
                pass
            except CoordinatorError as error:
                log.warning("whether %s is this shard's is not known yet: %s", move.queue, error)
                await self._sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, limits.MOVE_AGAIN_MS_MAX)
            try:
                if await self._is_committed(move, placed):
                    return
            except CoordinatorError:
                continue

    async def _is_committed(self, move: Move, placed: Placed) -> bool:
        """Whether the transaction has gone through; Over where it never will, False where it may be tried."""
        entry = await self._coordinator.entry(PLACEMENT + move.queue)
        there = None if entry is None else Placed.decode(entry)
        if there is not None and there.placement == (move.to, move.epoch + 1):
            return True
        if there is None or there.revision != placed.revision:
            raise Over("cancelled", f"{move.queue} went on at its source, or elsewhere")
        again = await self._coordinator.entry(move.key)
        if again is None or again.revision != move.revision:
            raise Over("cancelled", "it was cancelled, or begun anew")
        return False

    # --- queues that this shard wants back -------------------------------------------------------------

    def wish_back(self, queue: str) -> None:
        """A queue has been sealed for long and nobody took it: this shard tries to win it back."""
        if queue not in self._giving_up and not self._closing:
            self._giving_up[queue] = asyncio.get_running_loop().create_task(self._give_up(queue))

    async def _give_up(self, queue: str) -> None:
        try:
            placed, move = self._places.placed(queue), self._places.moves.get(queue)
            if placed is None or placed.shard != self._shard:
                return
            if move is None:
                # Its entry was taken away by hand; the queue is sealed in this epoch all the same.
                value = Placed.encode(self._shard, placed.epoch + 2, placed.lost)
                await self._coordinator.write([Write(PLACEMENT + queue, value, placed.revision)])
            else:
                await moves.give_up(self._coordinator, replace(move, phase="frozen"), placed)
            self._engine.refresh(self._now_ms())
            self._turn()
        except CoordinatorError as error:
            log.warning("queue %s can't be taken back yet: %s", queue, error)
        finally:
            del self._giving_up[queue]
