"""Sessions: groups that a consumer accepts, by their id or the next one that is available.

The consumer of a session gets the messages of its group and no others, and owns the group until it detaches
or its lock ends, also while the group has no messages. Other consumers share the remaining groups, as in a
queue without sessions (groups.py).

A session is available if its group has a ready message and no owner. Sessions that became available first are
accepted first, by the consumers that have waited longest.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, cast

from lightrail.model import conditions, limits
from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.memory.eviction import Eviction
from lightrail.shard.queue.order.deliveries import Deliveries
from lightrail.shard.queue.order.group import NOTHING, Group
from lightrail.shard.queue.order.groups import Groups
from lightrail.shard.queue.order.order import Order
from lightrail.shard.queue.values.commands import ConsumerOptions
from lightrail.shard.queue.values.effects import Effect, Refused, SessionAccepted
from lightrail.shard.queue.values.keys import TEXT, Key, key_of
from lightrail.shard.queue.values.runs import Run

SESSION_ID_CHARACTERS_MAX: Final[int] = 128
"""Characters of the id of a session, as in Azure Service Bus; below KEY_BYTES_MAX, so that the key of a group
has all of them."""


class StoredState(NamedTuple):
    """Where the state of a session is."""

    sequence: int
    set_at_ms: int
    """Milliseconds since the epoch; after a restart perhaps that of an earlier state on disk beside it."""


class Sessions(Groups):
    """Groups, some of which are sessions.

    Args:
        group_of: the key of a message's group, None for a message without.
    """

    __slots__ = ("_accepted", "_bound", "_ends", "_free", "_heap", "_waiting", "outdated", "states")

    def __init__(
        self, ready: Sparse, eviction: Eviction, deliveries: Deliveries, group_of: Callable[[Run], Hashable]
    ) -> None:
        super().__init__(ready, eviction, deliveries, group_of)
        self._bound: dict[int, Group] = {}
        """Sessions by consumer."""
        self._waiting: dict[int, Consumer] = {}
        """Consumers that wait for the next available session, the longest first."""
        self._free: dict[Group, None] = {}
        """Available sessions, the longest first; some may have lost their messages since."""
        self._accepted: dict[int, None] = {}
        """Consumers whose sessions have no lock and no effect yet."""
        self._ends: dict[int, int] = {}
        """Ends of sessions' locks in milliseconds since the epoch, by consumer."""
        self._heap: list[tuple[int, int]] = []
        """(end, consumer): at least one entry per lock, which is not later than its end."""
        self.states: dict[Key, StoredState] = {}
        """The states of sessions (states.py) by the keys of their groups."""
        self.outdated: list[int] = []
        """Sequences of states that are no longer those of their sessions, and have to be removed."""

    @property
    def index_bytes(self) -> int:
        size = limits.RANGE_BYTES * (len(self._free) + len(self.states))
        return super().index_bytes + size + limits.TIMED_BYTES * len(self._heap)

    # --- consumers --------------------------------------------------------------------------------------

    def attach(self, consumer: Consumer) -> None:
        super().attach(consumer)
        options = consumer.options
        if options.session is not None:
            self._bind(consumer, self._group(key_of(options.session)))
        elif options.any_session:
            self._waiting[consumer.id] = consumer

    def detach(self, consumer: Consumer) -> None:
        super().detach(consumer)
        for table in (self._waiting, self._bound, self._accepted, self._ends):
            table.pop(consumer.id, None)

    def held(self, consumer: Consumer, run: Run, stays: bool) -> None:
        super().held(consumer, run, stays and not consumer.options.is_session)

    def _bind(self, consumer: Consumer, group: Group) -> None:
        """Makes a group, which has no owner, the session of a consumer."""
        consumer.options = replace(consumer.options, session=_id_of(group), any_session=False)
        group.is_session = True
        self._own(group, consumer.id)
        self._bound[consumer.id] = group
        self._accepted[consumer.id] = None
        if group.ready:
            self._offer(group)

    def know_state(self, piece: Run) -> None:
        """Adds a state that was in the queue before; states come in the order of their sequences."""
        former = self.states.get(key := cast(Key, self._group_of(piece)))
        if former is not None:
            self.outdated.append(former.sequence)
        self.states[key] = StoredState(piece.sequence, piece.batch.enqueued_at_ms)

    def ids(self) -> Iterator[str]:
        """Ids of sessions with messages or a state, those with messages first."""
        for key, group in self.groups.items():
            if (group.ready or group.in_flight or group.foreign) and may_be_session(group):
                yield str(cast(Key, key)[1])
        for key in self.states:
            other = self.groups.get(key)
            if other is None or not (other.ready or other.in_flight or other.foreign):
                yield str(key[1])

    # --- before each dispatch ---------------------------------------------------------------------------

    def assign_free(self, lock_ms: int, now_ms: int, effects: list[Effect]) -> list[int]:
        """Lets consumers accept available sessions, and locks accepted ones.

        Args:
            lock_ms: the lock time of sessions; 0 to lock them as long as their consumers are attached.

        Returns:
            Consumers whose locks have ended; the caller detaches them.
        """
        if self._waiting and not self.loading:
            self._accept_next()
        for identity in self._accepted:
            self._lock(identity, lock_ms, now_ms)
            effects.append(SessionAccepted(identity, _id_of(self._bound[identity]), lock_ms))
        self._accepted.clear()
        lost: list[int] = []
        while self._heap and self._heap[0][0] <= now_ms:
            identity = heappop(self._heap)[1]
            end_ms = self._ends.get(identity)
            if end_ms is None:
                continue
            if end_ms > now_ms:
                heappush(self._heap, (end_ms, identity))
            else:
                del self._ends[identity]
                lost.append(identity)
        return lost

    def review(self) -> None:
        """Determines the owners of groups again after messages of them have left."""
        touched, self._touched = self._touched, {}
        for group in touched:
            self._review(group)

    def _accept_next(self) -> None:
        self.review()
        while self._waiting and self._free:
            group = next(iter(self._free))
            del self._free[group]
            self._forget_stale(group)
            if group.owner is None and group.ready and not group.foreign:
                identity = next(iter(self._waiting))
                self._bind(self._waiting.pop(identity), group)

    # --- locks ------------------------------------------------------------------------------------------

    def _lock(self, identity: int, lock_ms: int, now_ms: int) -> None:
        former_ms = self._ends.pop(identity, None)
        if lock_ms:
            self._ends[identity] = now_ms + lock_ms
            if former_ms is None or now_ms + lock_ms < former_ms:
                heappush(self._heap, (now_ms + lock_ms, identity))
                if len(self._heap) > limits.STALE_ENTRIES_MIN + 2 * len(self._ends):
                    self._heap = [(end_ms, each) for each, end_ms in self._ends.items()]
                    heapify(self._heap)

    def renew(self, identity: int, lock_ms: int, now_ms: int) -> int | None:
        """Locks the session of a consumer from now on; see SessionRenewed for the answer."""
        if not self.has(identity, now_ms):
            return None
        self._lock(identity, lock_ms, now_ms)
        return lock_ms

    def has(self, identity: int, now_ms: int) -> bool:
        """Whether a consumer has a session whose lock has not ended."""
        return identity in self._bound and self._ends.get(identity, now_ms + 1) > now_ms

    def has_lock(self, consumer: Consumer, now_ms: int) -> bool:
        """Whether the session's lock, if that is the lock of a consumer's deliveries, has not ended."""
        identity = consumer.id if consumer.options.is_session else consumer.session_of
        return identity is None or self.has(identity, now_ms)

    def end_of(self, identity: int) -> int:
        """The end of the lock of a consumer's session; 0 if it has none."""
        return self._ends.get(identity, 0)

    @property
    def next_ms(self) -> int | None:
        """Time at which a lock may end, or None."""
        while self._heap and self._heap[0][1] not in self._ends:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    # --- deliveries -------------------------------------------------------------------------------------

    def turn(self, consumer: Consumer, share: int, effects: list[Effect]) -> tuple[bool, bool]:
        if not consumer.options.is_session:
            return super().turn(consumer, share, effects)
        group = self._bound.get(consumer.id)
        ready = self._line
        wanted = min(share, consumer.limit - consumer.next, limits.DELIVERY_SLICE_MESSAGES)
        room = consumer.turn_bytes
        got = False
        while group is not None and wanted > 0 and room > 0:
            sequence = self._first_of_mine(consumer.id)
            if sequence < 0:
                break
            index = ready.find(sequence, sequence + 1)
            run = ready.runs[index]
            if consumer.id in run.barred:
                # It waits for another consumer of the session.
                heappop(self._mine[consumer.id])
                group.refused = True
                break
            if run.batch.data is None:
                self._fetch_from(index, effects)
                break
            if consumer.exact and not consumer.fits(run, self._gathered_bytes):
                break
            heappop(self._mine[consumer.id])
            run, size = ready.take_single(index)
            self._take(group, consumer)
            wanted -= 1
            room -= size
            got = True
            self._gather(consumer, run, size, effects)
        self._hand_over(consumer, effects)
        return got, False

    def expects(self, consumer: Consumer) -> bool:
        if not consumer.options.is_session:
            return super().expects(consumer)
        if self.loading or self.unfinished:
            return True
        return self._ready.evicted_runs > 0 and self._first_of_mine(consumer.id) >= 0

    # --- groups -----------------------------------------------------------------------------------------

    def _own(self, group: Group, consumer: int) -> None:
        super()._own(group, consumer)
        self._free.pop(group, None)

    def _leave(self, group: Group) -> None:
        super()._leave(group)
        group.is_session = False

    def _offer(self, group: Group) -> None:
        super()._offer(group)
        if group.owner is None and group.offered != NOTHING and may_be_session(group):
            self._free[group] = None

    def _review(self, group: Group) -> None:
        super()._review(group)
        if group.owner is not None or not group.ready:
            self._free.pop(group, None)


def refusal(order: Order | None, identity: int, options: ConsumerOptions) -> Refused | None:
    """Why a consumer may not accept its session, or None."""
    if not isinstance(order, Sessions):
        return Refused(
            identity,
            conditions.NOT_ALLOWED,
            "the queue has no sessions: a manager sets its policy's field groups to true",
        )
    session = options.session
    if session is None:
        return None
    if len(session) > SESSION_ID_CHARACTERS_MAX:
        return Refused(
            identity,
            conditions.INVALID_FIELD,
            f"expected a session id of up to {SESSION_ID_CHARACTERS_MAX} characters, found {len(session)}",
        )
    order.review()
    group = order.groups.get(key_of(session))
    if group is not None and group.owner is not None:
        return Refused(
            identity,
            conditions.SESSION_CANNOT_BE_LOCKED,
            f"the session {session!a:.80} is with another receiver; accept it again when that one is closed",
        )
    return None


def may_be_session(group: Group) -> bool:
    """Whether the key of a group is a text that can be the id of a session."""
    kind, value = cast(Key, group.key)
    return kind == TEXT and len(value) <= SESSION_ID_CHARACTERS_MAX


def _id_of(group: Group) -> str:
    return str(cast(Key, group.key)[1])
