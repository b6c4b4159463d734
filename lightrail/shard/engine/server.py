"""Performs the engine's decisions, with the ROUTER socket, the commit and reader threads, and the timer."""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from lightrail.model import limits
from lightrail.model.clock import wall_ms
from lightrail.shard.archiving.archiver import Archiver, Round
from lightrail.shard.effects.actions import Actions, Read
from lightrail.shard.journal.commit import Worker
from lightrail.shard.journal.commit_thread import CommitThread
from lightrail.shard.journal.store import Commit, Store
from lightrail.shard.startup.storage import DiskWatch
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.frames import Part
from lightrail.wire.sockets.wiring import Wiring

if TYPE_CHECKING:
    from lightrail.shard.engine.engine import Engine
    from lightrail.shard.replication.stream import Stream

LAZY_COMMIT_MS: Final[int] = 5
"""How long settlements without a waiting client are collected for a commit; a crash redelivers their
messages."""
SHARD_PARTS: Final[int] = 256
"""Frames that a shard receives between two looks at the clock."""
SHARD_MESSAGES: Final[int] = 4_000
"""ZeroMQ messages that a shard reads in a turn; those beyond SHARD_INTAKE_MS wait in its backlog."""
SHARD_INTAKE_MS: Final[int] = 20
"""Part of a shard's turn for frames of frontends; the rest waits for the next turns, in each frontend's
order."""

log = logging.getLogger("lightrail.shard")


class Server:
    """One shard process on its loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: "Engine",
        store: Store,
        counts: ShardCounts,
        wiring: Wiring,
        address: str,
        archiver: Archiver | None = None,
        clock: Callable[[], float] = time.monotonic,
        ask: Callable[[Actions], None] = lambda _: None,
        worker: Callable[[asyncio.AbstractEventLoop, str], Worker] = Worker,
    ) -> None:
        """Listens to frontends. Raises OSError: the address can't be bound.

        Args:
            clock: monotonic seconds, for the times of turns and commits.
            ask: requests the deletions and moves of actions from the coordinator.
            worker: makes threads.
        """
        self._loop = loop
        self._engine = engine
        self._store = store
        self._counts = counts
        self._committer = CommitThread(loop, worker(loop, "commit"), store)
        self._reader = worker(loop, "read")
        self._archiver = archiver
        self._archive_thread = worker(loop, "archive") if archiver is not None else None
        self._archive_due_ms = 0
        self._lazy_timer: asyncio.TimerHandle | None = None
        self._commit: Commit | None = None
        self._stream: Stream | None = None
        """To the other members of the shard, if it has any."""
        self._clock = clock
        self.disk = DiskWatch()
        counts.commit_under_way = lambda: self.disk.age_s(clock())
        counts.store_full = lambda: self.disk.is_full
        self._timer: asyncio.TimerHandle | None = None
        self._ask = ask
        self._deadline_ms: int | None = None
        """Time of the next tick, from the last step."""
        self._beat_ms = 0
        """Time of the timer."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._closed = False
        self.failed = asyncio.Event()
        """Set when the state in memory can't be trusted, so that the process must restart and recover."""
        self._backlog: OrderedDict[bytes, deque[list[Part]]] = OrderedDict()
        """Received frames that wait for a later turn, by frontend."""
        self._going_on = False
        self._until_s: float | None = None
        """Time at which this turn stops receiving."""
        # Link credit bounds what is sent to a frontend. A large batch stays in the queue as it was received,
        # because its part has memory of its own.
        self._socket = wiring.listen(
            address,
            self._receive,
            self.turn,
            receive_max=limits.WIRE_MESSAGES_AHEAD,
            per_turn=SHARD_MESSAGES,
            copies=False,
        )
        self.address = self._socket.address  # with the port that the system chose
        self._poll: asyncio.TimerHandle | None = None
        self._beat()
        self._poll_directory()

    def now_ms(self) -> int:
        """Wall clock in milliseconds."""
        return wall_ms()

    # --- the turn --------------------------------------------------------------------------------------

    def _receive(self, identity: bytes, parts: list[Part]) -> None:
        if self._until_s is None:
            self._until_s = self._clock() + SHARD_INTAKE_MS / 1000
        if identity in self._backlog or self._clock() >= self._until_s:
            self._engine.heard(identity, self.now_ms())
            self._wait_in_line(identity, parts)
        else:
            rest = self._apply(identity, parts)
            if rest:
                self._wait_in_line(identity, rest)
        if self._store.is_crowded:
            # Later messages stay in the socket until the commit under way has ended.
            self._socket.is_paused = True

    def _apply(self, identity: bytes, parts: list[Part]) -> list[Part]:
        """Applies as many frames of a frontend as one turn may have; returns the others."""
        try:
            rest = self._engine.receive(identity, parts[:SHARD_PARTS], self.now_ms())
        except Exception as error:
            log.exception("a message of %d frames could not be applied", len(parts))
            self._fail(error)
            return []
        return rest + parts[SHARD_PARTS:] if len(parts) > SHARD_PARTS else rest

    def _wait_in_line(self, identity: bytes, parts: list[Part]) -> None:
        """Keeps the rest of a message for a later turn."""
        self._backlog.setdefault(identity, deque()).append(parts)
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        if not self._going_on:
            self._going_on = True
            self._loop.call_soon(self._take_backlog)

    def _take_backlog(self) -> None:
        """A turn for waiting frames: frontends are served in turn, each with its frames in order."""
        if self._closed or not self._going_on:
            return  # Or there was a turn meanwhile.
        self._going_on = False
        backlog = self._backlog
        until_s = self._until_s = self._clock() + SHARD_INTAKE_MS / 1000
        while backlog and not self._store.is_crowded:
            identity, line = next(iter(backlog.items()))
            rest = self._apply(identity, line.popleft())
            if rest:
                line.appendleft(rest)
            if line:
                backlog.move_to_end(identity)
            else:
                del backlog[identity]
            if self._clock() >= until_s:
                break
        if backlog and not self._store.is_crowded:
            # Otherwise it continues when the commit under way has ended.
            self._go_on_soon()
        self.turn()

    def follow_directory(self) -> None:
        """Applies changes of the coordinator, if there are any."""
        if self._closing:
            return
        try:
            self._engine.refresh(self.now_ms())
        except Exception as error:
            log.exception("changes of the directory could not be applied")
            self._fail(error)
        else:
            self.turn()

    def not_ready(self) -> str | None:
        """Why this shard does not serve, or None."""
        return self._engine.not_ready() or self.disk.silence(self._clock())

    def _fail(self, error: BaseException) -> None:
        """Stops all answers; the caller ends the process, and the next one recovers.

        The store failed, on any thread, or an internal error may have left the engine in a wrong state.
        """
        if not self.failed.is_set():
            log.critical("the shard can't continue: %s; it starts again and recovers its journal", error)
            self._counts.store_failures += 1
            self._engine.commit_failed(error)
            self.failed.set()

    def turn(self) -> None:
        """Steps the engine after frames and other changes, sends, and begins a commit for the rest."""
        self._until_s = None
        self._going_on &= bool(self._backlog)
        if self._closed:
            return
        try:
            self._turn_once()
        except Exception as error:
            log.exception("a turn could not be ended")
            self._fail(error)

    def _turn_once(self) -> None:
        # A shard whose disk hangs behaves like a shard that hangs: frontends return messages to senders after
        # shard_wait. These frames are sent when the disk has answered.
        is_silent = self._commit is not None and self.disk.is_silent(self._clock())
        actions = self._engine.step(self.now_ms(), is_silent=is_silent, is_closing=self._closing)
        if actions.failure is not None and not self.failed.is_set():
            self._fail(RuntimeError(actions.failure))
        self._send(actions.output)
        if self._commit is None and not self.failed.is_set() and self._store.pending:
            if actions.must_sync or self._closing:
                self._begin_commit()
            elif self._lazy_timer is None:
                # Only records without waiting answers, such as settlements: a later commit has more of them.
                self._lazy_timer = self._loop.call_later(LAZY_COMMIT_MS / 1000, self._commit_lazily)
        for read in actions.reads:
            self._begin_read(read)
        if actions.expired or actions.kept or actions.wanted:
            self._ask(actions)
        self._deadline_ms = actions.deadline_ms
        if self._deadline_ms is not None and self._deadline_ms < self._beat_ms:
            # This turn has set a deadline before the time of the timer.
            self._arm()

    def _send(self, output: list[tuple[bytes, list[bytes]]]) -> None:
        for identity, parts in output:
            if not self._socket.send(identity, parts):
                self._engine.lost(identity)
                # Its deliveries are ready for other consumers now.
                self._loop.call_soon(self.turn)

    # --- commits ---------------------------------------------------------------------------------------

    def _commit_lazily(self) -> None:
        self._lazy_timer = None
        if self._commit is None and self._store.pending and not (self._closed or self.failed.is_set()):
            self._begin_commit()

    def _begin_commit(self) -> None:
        commit = self._store.begin_commit()
        self.disk.commit_begun(self._clock())
        self._engine.commit_begun()
        self._commit = commit
        self._idle.clear()
        started = self._clock()
        work = None if self._stream is None else self._stream.begun(commit)
        self._committer.submit(commit, partial(self._end_commit, commit, started), work)

    def stream_to(self, stream: "Stream", may_deliver: Callable[[], bool]) -> None:
        """From the next commit on, other members of the shard get what is written; see Engine.shared_with."""
        self._stream = stream
        self._engine.shared_with(stream, may_deliver)

    def accepted(self) -> None:
        """Other members have acknowledged: more records are accepted. All that has arrived has one turn."""
        self._engine.accepted()
        self._go_on_soon()

    def _end_commit(self, commit: Commit, started: float, error: BaseException | None) -> None:
        self._commit, waits = None, False
        self.disk.commit_ended(self._clock())
        self._socket.resume()
        if self._backlog:
            self._go_on_soon()
        if error is not None:
            self._store.fail_commit(commit, error)
            self._fail(error)
        else:
            try:
                self._store.end_commit(commit)
                waits = self._stream is not None and self._stream.end(commit)
                messages = self._engine.commit_ended(self.now_ms())
                self._counts.synced(messages, self._clock() - started)
                if self._archiver is not None:
                    self._archive()
                if waits and self._engine.answers.is_due and self._store.pending:
                    self._begin_commit()
            except Exception as raised:
                log.exception("a commit could not be ended")
                self._fail(raised)
        if not waits or self._closing or self._engine.answers.is_due:
            # What waits for other members has a turn when they have it.
            self.turn()
        self._wake_if_idle()

    def _wake_if_idle(self) -> None:
        """Wakes who waits for the last commit, unless the turn has begun another one."""
        if self._commit is None:
            self._idle.set()

    # --- reads -----------------------------------------------------------------------------------------

    def _begin_read(self, read: Read) -> None:
        self._reader.submit(partial(read.perform, self._store), partial(self._end_read, read))

    def _end_read(self, read: Read, error: BaseException | None) -> None:
        if error is not None:
            log.error("messages of queue %s could not be read back: %s", read.queue, error)
        try:
            self._engine.read_ended(read, error, self.now_ms())
        except Exception as raised:
            log.exception("messages of queue %s that were read back could not be applied", read.queue)
            self._fail(raised)
        self.turn()

    # --- the archive -----------------------------------------------------------------------------------

    def _tick_archive(self) -> None:
        now_ms = self.now_ms()
        if self._archiver is not None and not 0 <= self._archive_due_ms - now_ms <= limits.HEARTBEAT_MS:
            self._archive_due_ms = now_ms + limits.HEARTBEAT_MS
            self._archiver.tick(now_ms)
            self._archive(timed=True)

    def _archive(self, *, timed: bool = False) -> None:
        assert self._archiver is not None
        assert self._archive_thread is not None
        round = None if self._closing else self._archiver.begin(self.now_ms(), timed=timed)
        if round is not None:
            self._archive_thread.submit(round.perform, partial(self._end_archiving, round))

    def _end_archiving(self, round: Round, error: BaseException | None) -> None:
        assert self._archiver is not None
        if error is not None:
            log.error("internal error in the archive", exc_info=error)
        self._archiver.end(round, self.now_ms())
        if not self._closing:
            self._archive()

    # --- time ------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        self._beat_ms = 0
        try:
            self.disk.watch(self._store.no_room, self._clock())
            self._engine.tick(self.now_ms())
            self._tick_archive()
        except Exception as raised:
            log.exception("a heartbeat could not be ended")
            self._fail(raised)
        self.turn()
        self._arm()

    def _arm(self) -> None:
        """Sets the timer to the next deadline of a queue, or to the next heartbeat."""
        if self._timer is not None:
            self._timer.cancel()
        if self._closing:
            return
        now_ms = self.now_ms()
        wait_ms = limits.HEARTBEAT_MS
        if self._deadline_ms is not None:
            wait_ms = max(1, min(wait_ms, self._deadline_ms - now_ms))
        self._beat_ms = now_ms + wait_ms
        self._timer = self._loop.call_later(wait_ms / 1000, self._beat)

    def _poll_directory(self) -> None:
        """Follows changes of the directory."""
        if not self._closing:
            self.follow_directory()
            self._poll = self._loop.call_later(limits.DIRECTORY_POLL_MS / 1000, self._poll_directory)

    # --- the end ---------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Ends in order: syncs accepted batches and sends their answers."""
        self._closing = True
        for timer in (self._timer, self._poll):
            if timer is not None:
                timer.cancel()
        self.turn()
        is_waiting = True
        while is_waiting or not self._idle.is_set():
            # Frames that arrived at the end of the last commit may have begun another one.
            await self._idle.wait()
            is_waiting = self._stream is not None and await self._stream.until_accepted()
            # Others were applied, and their turn comes with the next turn of the loop: what they have settled
            # would be delivered again, as if nobody had received it.
            self.turn()
        self._closed = True
        self._socket.close(linger_ms=500)
        self._committer.close()
        self._reader.close()
        if self._archiver is not None and self._archive_thread is not None:
            self._archiver.close()
            self._archive_thread.close()
        self._store.close(self.now_ms())
