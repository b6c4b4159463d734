"""Loading: builds the order of a special queue again, after a restart or a change of policy.

Messages are read one by one in the order of their sequences, as they arrive from disk, messages in flight
before waiting ones. Until all have been read, nothing is delivered.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from lightrail.model import limits
from lightrail.shard.queue.lines.consumers import Consumers
from lightrail.shard.queue.lines.line import GONE, InFlight
from lightrail.shard.queue.lines.merging import sized
from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.memory.disk import gaps_of, pieces_of
from lightrail.shard.queue.memory.eviction import Eviction
from lightrail.shard.queue.order.deliveries import Deliveries
from lightrail.shard.queue.order.groups import Groups
from lightrail.shard.queue.order.keyed import Delays, Replacing
from lightrail.shard.queue.order.message_keys import MessageKeys
from lightrail.shard.queue.order.order import Order
from lightrail.shard.queue.order.sessions import Sessions
from lightrail.shard.queue.values.commands import Fetched, Past
from lightrail.shard.queue.values.effects import Effect, Fetch
from lightrail.shard.queue.values.keys import MISSING
from lightrail.shard.queue.values.runs import Run

LOADING_BYTES: Final[int] = 16 * 1024 * 1024
"""Bytes that are read at once to build the index of a queue."""
_EVERYTHING: Final = 1 << 64
"""A number above every sequence."""


@dataclass(slots=True, eq=False, repr=False)
class Loading:
    """The progress of reading the messages of a special queue into its order."""

    _ready: Sparse
    _keys: MessageKeys
    _delays: Delays | None
    _replacing: Replacing
    _order: Order
    _consumers: Consumers
    _eviction: Eviction
    _deliveries: Deliveries
    _past: Past = field(default_factory=Past)
    """State of a former owner that the order does not have yet."""
    is_active: bool = False
    """Whether some messages have not been read yet."""
    read_to: int = 0
    """While it is active: waiting messages with lower sequences were read."""
    _learning: bool = False
    """While it is active: whether messages in flight have yet to be read, before the waiting ones."""

    def awaits(self, sequence: int) -> bool:
        """Whether a message will be read later."""
        return self.is_active and sequence >= self.read_to

    @property
    def has_in_flight(self) -> bool:
        """Whether the order has the messages in flight; those that waited are read before them."""
        return not self.is_active or self.read_to >= _EVERYTHING

    def begin(self, past: Past, now_ms: int) -> None:
        """Puts the messages of the ready line, which are in no order, into it; those in memory at once."""
        self._past = past
        self._activate(True)
        self._learning = True
        self.read_to = 0
        self.read_next(now_ms)

    def _activate(self, is_active: bool) -> None:
        self.is_active = self._order.loading = self._replacing.gathers = is_active

    # --- messages that wait -------------------------------------------------------------------------------

    def read_next(self, now_ms: int) -> None:
        """Reads the next messages that are in memory, some of them in each step."""
        if self._learning:
            self._learning = next(self._unknown(), None) is not None
        left = 0 if self._learning else limits.LOADING_LOOKS
        while left > 0:
            pieces, start, stop = self._next_pieces(left)
            if stop > start:
                left -= max(1, len(pieces))
                self._read(pieces, start, stop, now_ms)
            elif self._ready.index(self.read_to) == len(self._ready.runs):
                self._end(left)
                return
            else:
                return

    def _next_pieces(self, wanted: int) -> tuple[list[Run], int, int]:
        """The messages to read next, and from where to where their runs are in the line."""
        runs = self._ready.runs
        start = stop = self._ready.index(self.read_to)
        pieces: list[Run] = []
        while stop < len(runs) and len(pieces) < wanted:
            run = runs[stop]
            if run.batch.data is None:
                break
            if run.last > run.first:
                pieces += self._keys.pieces(run)
            stop += 1
        return pieces, start, stop

    def _read(self, pieces: list[Run], start: int, stop: int, now_ms: int) -> None:
        order, past = self._order, self._past
        ready: list[Run] = []
        for piece in pieces:
            if self._delays is None or not self._delays.hold_back(piece, now_ms, self._keys):
                ready.append(piece)
            elif (above := (past.newest or {}).get(piece.sequence)) is not None:
                self._replacing.outdate(self._keys.key_of(piece), above)
        self._ready.swap(start, stop, ready)
        if pieces:
            self.read_to = pieces[-1].end
        for piece in ready:
            self._replacing.add(piece)
            order.arrived(piece)
        if isinstance(order, Groups) and past.owners:
            for piece in pieces:
                self._assign(order, piece, past.owners)

    def _assign(self, order: Groups, piece: Run, owners: Mapping[int, int]) -> None:
        owner = owners.get(piece.sequence)
        if owner is not None and owner in self._consumers.by_id:
            order.assign(piece, owner)

    def _end(self, left: int) -> None:
        """All waiting messages were read: adds those in flight, and removes the replaced ones."""
        if self.read_to < _EVERYTHING:
            self.read_to = _EVERYTHING
            self._add_in_flight()
        self._activate(not self._replacing.remove_superseded(left))

    def _add_in_flight(self) -> None:
        past, self._past = self._past, Past()
        order = self._order
        if isinstance(order, Groups):
            for consumer in self._consumers:
                stays = consumer.id in self._consumers.by_id and past.owners is None
                pieces = [piece for run in consumer.in_flight.ordered() for piece in self._keys.pieces(run)]
                for piece in pieces:
                    self._assign(order, piece, past.owners or {})
                for piece in pieces:
                    order.held(consumer, piece, stays)
            states = self._consumers.states
            if isinstance(order, Sessions) and states is not None:
                for run in states.in_flight.runs[states.in_flight.head :]:
                    for piece in self._keys.pieces(run):
                        order.know_state(piece)
        elif self._replacing.values is not None:
            newest = past.newest or {}
            for consumer in self._consumers:
                for run in consumer.in_flight.ordered():
                    for piece in self._keys.pieces(run):
                        if (key := self._keys.key_of(piece)) != MISSING:
                            self._replacing.outdate(key, newest.get(piece.sequence, piece.sequence))

    def known(self, held_back: Iterator[Run]) -> Past:
        """State that the next owner can't read from the messages; `held_back` are in flight or delayed."""
        order, values = self._order, self._replacing.values
        if self.is_active and self.read_to < _EVERYTHING:
            # The order does not have all of this yet.
            return Past(
                {**(self._past.owners or {})} if isinstance(order, Groups) else None,
                None if values is None else {**(self._past.newest or {})},
            )
        owners = order.owners(self._consumers) if isinstance(order, Groups) else None
        return Past(owners, self._replacing.newest_of(held_back))

    # --- messages in flight that are only on disk -----------------------------------------------------------

    def _unknown(self) -> Iterator[Run]:
        """Deliveries that are only on disk, and can't become ready again before this queue has read them."""
        for consumer in self._consumers:
            for run in consumer.in_flight.runs[consumer.in_flight.head :]:
                if run.batch.data is None and self._is_unknown(run):
                    yield run

    def _is_unknown(self, run: Run) -> bool:
        if run.is_deferred and not run.is_state:
            # It does not become ready again.
            return False
        unsized = run.batch.ends is None and run.last - run.first > 1
        return unsized or (self._keys.are_read and not self._keys.is_remembered(run.sequence))

    def learn(self, answer: Fetched) -> tuple[list[Run], bool]:
        """Reads deliveries that were fetched; their messages stay on disk.

        Returns:
            The lost messages, which were removed, and whether some have to be fetched again.
        """
        wanted = self._eviction.fetching.get(answer.sequence)
        lost: list[Run] = []
        missing = False
        for consumer in self._consumers:
            line = consumer.in_flight
            for index in range(len(line.runs) - 1, line.head - 1, -1):
                run = line.runs[index]
                if run.batch.data is not None or not self._is_unknown(run):
                    continue
                pieces = pieces_of(answer.runs, run)
                if sum(piece.count for piece in pieces) == run.count:
                    self._keep(line, index, pieces)
                elif run.sequence == answer.sequence:
                    if answer.damaged and run.end == wanted:
                        lost += self._keep(line, index, pieces)
                    else:
                        missing = True
        return lost, missing

    def _keep(self, line: InFlight, index: int, pieces: list[Run]) -> list[Run]:
        """Keeps the keys of what was fetched of a delivery; takes out the rest, and returns it."""
        run, number = line.runs[index], line.keys[index]
        lost = gaps_of(pieces, run)
        numbers: list[int] = []
        kept: list[Run] = []
        low = 0
        for start, stop in [(gap.sequence, gap.end) for gap in lost] + [(run.end, run.end)]:
            high = start - run.sequence
            if low < high:
                part = run.cut(low, high)
                read = pieces_of(pieces, part)
                if self._keys.are_read:
                    for piece in read:
                        self._keys.remember(piece)
                numbers.append(number + low)
                kept.append(sized(part, read))
                self._deliveries.resized(part, kept[-1])
            low = stop - run.sequence
        line.replace(index, index + 1, numbers, kept)
        return lost

    # --- fetches ------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether the next step can read or fetch messages."""
        return self.is_active and not self._learning and (self._may_read or self._may_fetch)

    @property
    def _may_read(self) -> bool:
        """Whether the next message to read is in memory, or there is none."""
        ready = self._ready
        index = ready.index(self.read_to)
        while index < len(ready.runs) and ready.runs[index] is GONE:
            index += 1
        return index == len(ready.runs) or ready.runs[index].batch.data is not None

    @property
    def _may_fetch(self) -> bool:
        """Whether more fetches may begin beside those under way."""
        return self._under_way_bytes < LOADING_BYTES and any(
            run.sequence not in self._eviction.fetching for run in self._unread()
        )

    def _unread(self) -> Iterator[Run]:
        """Waiting runs on disk that have not been read."""
        runs = self._ready.runs
        for index in range(self._ready.index(self.read_to), len(runs)):
            if runs[index].batch.data is None:
                yield runs[index]

    @property
    def _under_way_bytes(self) -> int:
        ready, total = self._ready, 0
        for first in self._eviction.fetching:
            index = ready.find(first, first + 1)
            total += ready.runs[index].size if index >= 0 else 0
        return total

    def fetch(self, effects: list[Effect]) -> None:
        """Fetches the next messages to read that are only on disk, deliveries before waiting ones."""
        if self._learning:
            room = LOADING_BYTES
            for run in self._unknown():
                if room <= 0:
                    break
                room -= run.size
                if self._eviction.ask(run):
                    effects.append(Fetch(run))
            return
        under_way = self._under_way_bytes
        for run in self._unread():
            if under_way >= LOADING_BYTES:
                break
            if self._eviction.ask(run):
                effects.append(Fetch(run))
                under_way += run.size
