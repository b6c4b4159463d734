"""Forwarder: consumes one queue for as long as the namespace requires it, with a task per message.

A message whose task waits, for a full target or an endpoint that is down, stays in the window, so a
target that refuses messages delays its own queue and no other. An idle forwarder is a consumer with credit;
it has no task and no timer.

Roster: the forwarders that the namespace requires now, opened one after another.

The user of a roster sets the forwarder of each queue, or none. Opening a forwarder looks up the queue at the
coordinator, so one task opens all of them; a failed attempt is repeated after a pause.

Forwarders that repeat failed attempts without end, with longer and longer pauses.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from lightrail.gateway.forwarding.room import ForwardingRoom
from lightrail.shard_client.receiving.queue_consumer import Delivery, QueueConsumer
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.bodies import ConsumerOpen, Refusal, SettleDetail
from lightrail.wire.frames import OutcomeCode

FORWARDER_WINDOW_BYTES: Final[int] = 8 * 1024 * 1024
"""Bytes of unsettled messages of a forwarder or pusher, by their mean size; at least one message."""
FORWARDER_WINDOW_FIRST: Final[int] = 8
"""Messages of the same while their size is unknown."""

log = logging.getLogger("lightrail.gateway.forwarding.forwarder")

Settlement = tuple[OutcomeCode, SettleDetail | None]
ACCEPTED: Settlement = (OutcomeCode.ACCEPTED, None)


class Forwarder:
    """Common to forwarders of dead letters and pushers.

    Args:
        window: messages in flight at a time.
        lost: called when the shard closes the consumer: the queue was deleted, or has moved.
        room: bytes of all forwarders.
    """

    __slots__ = (
        "_held_bytes",
        "_is_closed",
        "_label",
        "_lost",
        "_mean_bytes",
        "_room",
        "_source",
        "_tasks",
        "_window",
        "_window_max",
        "queue",
    )

    def __init__(
        self,
        queue: str,
        *,
        window: int,
        label: str,
        lost: Callable[["Forwarder"], None],
        room: ForwardingRoom,
    ) -> None:
        self.queue = queue
        self._window_max = window
        self._window = window
        self._label = label
        self._lost = lost
        self._room = room
        self._held_bytes = 0
        self._source: QueueConsumer | None = None
        self._is_closed = False
        self._mean_bytes = 0.0
        """Mean size of messages; 0 before the first."""
        self._tasks: dict[tuple[int, int], asyncio.Task[None]] = {}
        """Tasks by generation and number of the delivery."""

    @property
    def held(self) -> int:
        """Messages in flight."""
        return len(self._tasks)

    @property
    def is_waiting(self) -> bool:
        """See MessageHolder."""
        return False

    def give_back(self) -> None:
        """See MessageHolder."""
        log.info("%s gets its messages back: those of all forwarders have no room", self.queue)
        self._window = 1
        self._leave()
        self._lost(self)

    async def carry(self, delivery: Delivery) -> Settlement:
        """Sends a message to its target, however long that takes; returns its outcome for the queue."""
        raise NotImplementedError

    async def open(self, shards: ShardConnections) -> None:
        """Starts to consume. Raises ShardDownError, CoordinatorError: try again."""
        owner = await shards.route(self.queue)
        if not self._is_closed and self._source is None:
            options = ConsumerOpen(self.queue, label=self._label)
            self._source = QueueConsumer(owner, shards.next_link(), options, self, shards.now_ms)
            self._source.open()

    def close(self) -> None:
        """Stops; unsettled messages return to the queue."""
        self._is_closed = True
        self._leave()

    # --- from the source -------------------------------------------------------------------------------

    def opened(self, generation: int) -> None:
        """Unsettled messages are in the queue again and are delivered once more."""
        self._cancel()
        self._top_up()

    def arrived(self, deliveries: list[Delivery]) -> None:
        """Starts a task for each delivery, in order."""
        loop = asyncio.get_running_loop()
        self._note_sizes(deliveries)
        for delivery in deliveries:
            self._tasks[delivery.generation, delivery.number] = loop.create_task(self._work(delivery))
        self._hold(sum(len(each.message) for each in deliveries))
        self._top_up()

    def _hold(self, size: int) -> None:
        """Notes bytes that have arrived, or, below 0, that are settled. May give all messages back."""
        self._held_bytes += size
        self._room.hold(self, self._held_bytes)

    def _note_sizes(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            size = len(delivery.message) + 1
            self._mean_bytes = max(size, 0.75 * self._mean_bytes + 0.25 * size)

    def drained(self, is_empty: bool) -> None:
        """Not used: forwarders never drain."""

    def ended(self, refusal: Refusal) -> None:
        """Leaves it to the roster whether this forwarder is opened again."""
        log.info("%s: %s", self.queue, refusal.description or refusal.condition)
        self._leave()
        self._lost(self)

    # --- inside ----------------------------------------------------------------------------------------

    async def _work(self, delivery: Delivery) -> None:
        try:
            code, detail = await self.carry(delivery)
        except Exception:
            log.exception("a message of %s could not be forwarded: a failed delivery", self.queue)
            code, detail = OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True)
        self._tasks.pop((delivery.generation, delivery.number), None)
        if self._source is not None:
            self._source.settle((delivery,), code, detail)
            self._hold(-len(delivery.message))
            self._widen()
            self._top_up()

    def _widen(self) -> None:
        """After progress, a window that was reduced grows again."""
        self._window = min(2 * self._window, self._window_max)

    def _top_up(self) -> None:
        """Grants credit for the free part of the window, once per group of settlements."""
        if not self._mean_bytes:
            window = min(self._window, FORWARDER_WINDOW_FIRST)
        else:
            size = min(FORWARDER_WINDOW_BYTES, self._held_bytes + self._room.left)
            window = min(self._window, max(1, int(size / self._mean_bytes)))
        room = window - self.held
        source = self._source
        if source is not None and room > 0 and source.granted <= room // 2:
            source.grant(room)

    def _leave(self) -> None:
        self._cancel()
        if self._source is not None:
            self._source.close()
            self._source = None

    def _cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        self._hold(-self._held_bytes)


FORWARDER_OPEN_PAUSE_MS: Final[int] = 1_000
"""Pause before a forwarder whose consumer could not be opened, or was closed, tries again."""


Wanted = TypeVar("Wanted")
"""The description of a forwarder; a different value requires a different forwarder."""


class Roster(Generic[Wanted]):
    """Forwarders by queue.

    Args:
        make: makes a forwarder for a queue; the last argument is called when the shard closed its consumer.
    """

    def __init__(
        self, shards: ShardConnections, make: Callable[[str, Wanted, Callable[[Forwarder], None]], Forwarder]
    ) -> None:
        self._shards = shards
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._forwarders: dict[str, tuple[Wanted, Forwarder]] = {}
        self._to_open: dict[Forwarder, None] = {}
        self._opening: asyncio.Task[None] | None = None
        self._timers: dict[Forwarder, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._forwarders)

    def get(self, queue: str) -> Forwarder | None:
        """The forwarder of a queue, if it has one."""
        found = self._forwarders.get(queue)
        return None if found is None else found[1]

    def want(self, queue: str, wanted: Wanted | None) -> None:
        """Sets the forwarder of a queue, or none; a running forwarder with an equal description is kept."""
        present = self._forwarders.get(queue)
        if present is not None:
            if present[0] == wanted:
                return
            del self._forwarders[queue]
            self._end(present[1])
        if wanted is not None:
            forwarder = self._make(queue, wanted, self._lost)
            self._forwarders[queue] = (wanted, forwarder)
            self._open(forwarder)

    def close(self) -> None:
        """Stops all forwarders."""
        for _, forwarder in self._forwarders.values():
            self._end(forwarder)
        self._forwarders.clear()
        if self._opening is not None:
            self._opening.cancel()

    def _end(self, forwarder: Forwarder) -> None:
        self._to_open.pop(forwarder, None)
        timer = self._timers.pop(forwarder, None)
        if timer is not None:
            timer.cancel()
        forwarder.close()

    def _lost(self, forwarder: Forwarder) -> None:
        """Opens a forwarder again after a pause, if it is still wanted: its consumer was closed."""
        if self.get(forwarder.queue) is forwarder:
            pause_s = FORWARDER_OPEN_PAUSE_MS / 1000
            self._timers[forwarder] = self._loop.call_later(pause_s, self._open, forwarder)

    def _open(self, forwarder: Forwarder) -> None:
        self._timers.pop(forwarder, None)
        self._to_open[forwarder] = None
        if self._opening is None:
            self._opening = self._loop.create_task(self._open_all())

    async def _open_all(self) -> None:
        try:
            while self._to_open:
                forwarder = next(iter(self._to_open))
                del self._to_open[forwarder]
                try:
                    await forwarder.open(self._shards)
                except Exception as error:
                    log.warning("%s can't be consumed now; this is tried again: %s", forwarder.queue, error)
                    self._lost(forwarder)
        finally:
            self._opening = None


FORWARD_WINDOW: Final[int] = 100
"""Dead letters of one queue that are being forwarded at a time."""
FORWARD_PAUSE_MS: Final[int] = 1_000
"""Pause before a dead letter that its target refused is sent again; it doubles up to FORWARD_PAUSE_MS_MAX."""
FORWARD_PAUSE_MS_MAX: Final[int] = 60_000

Pause = Callable[[float], Awaitable[None]]
"""Waits the given number of seconds; tests inject it."""
Attempt = Callable[[], Awaitable[Settlement | None]]
"""Sends one message; returns its outcome for the queue, or None if the attempt is to be repeated."""


class RepeatingForwarder(Forwarder):
    """Forwards the messages of one queue.

    Args:
        log: for problems, one line for each change.
        waiting: of that line, for the queue and the problem.
        again: of the line after a problem.
    """

    def __init__(
        self,
        queue: str,
        label: str,
        pause: Pause,
        lost: Callable[[Forwarder], None],
        room: ForwardingRoom,
        *,
        log: logging.Logger,
        waiting: str,
        again: str,
    ) -> None:
        super().__init__(queue, window=FORWARD_WINDOW, label=label, lost=lost, room=room)
        self._pause = pause
        self._log = log
        self._waiting = waiting
        self._again = again
        self._problem = ""
        """The last logged problem."""
        self._begins_anew = False
        """Whether no attempt has ended since all messages were given back."""

    @property
    def is_waiting(self) -> bool:
        """See MessageHolder."""
        return bool(self._problem) and not self._begins_anew

    def give_back(self) -> None:
        """See MessageHolder. The first attempt after it comes before others that wait already."""
        self._begins_anew = True
        super().give_back()

    def attempt(self, delivery: Delivery) -> Attempt:
        """The attempts of a message, which notes each problem."""
        raise NotImplementedError

    async def carry(self, delivery: Delivery) -> Settlement:
        """See Forwarder."""
        attempt = self.attempt(delivery)
        pause_ms = FORWARD_PAUSE_MS
        while True:
            settlement = await attempt()
            if settlement is not None:
                return settlement
            await self._pause(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, FORWARD_PAUSE_MS_MAX)

    def note(self, problem: str) -> None:
        """Logs the problem of an attempt, or "" after none, if it is another one than before."""
        self._begins_anew = False
        if problem != self._problem:
            self._problem = problem
            if problem:
                self._log.warning("%s: %s", self._waiting, problem)
            else:
                self._log.info("%s", self._again)
