"""Groups: the order of a queue whose messages of one group-id are with one consumer at a time.

The first ready message of a group without an owner is offered to all; the consumer that gets it owns the
group, and gets the next messages. It owns the group until it detaches, or until no message of the group is
ready or in flight. An owner that is barred from the first message, or does not select it, loses the group
when no message of it is in flight (and it has credit, if it has to read the message). Messages without a
group-id are offered to all consumers one by one.

Messages that left the queue without a delivery (expired, purged) are dropped when they get to the top of a
heap.
"""

from collections.abc import Callable, Hashable, Iterable
from heapq import heappop, heappush

from lightrail.model import limits
from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.memory.eviction import Eviction
from lightrail.shard.queue.order.deliveries import Deliveries
from lightrail.shard.queue.order.group import NOTHING, Group
from lightrail.shard.queue.order.order import Order
from lightrail.shard.queue.order.unoffered import Unoffered
from lightrail.shard.queue.values.effects import Effect
from lightrail.shard.queue.values.runs import Run


class Groups(Order):
    """Groups by id, their owners, and the messages that are offered.

    Args:
        group_of: the key of a message's group, None for a message without.
    """

    __slots__ = ("_group_of", "_line", "_mine", "_of", "_owned", "_shared", "_stale", "_touched", "groups")

    def __init__(
        self, ready: Sparse, eviction: Eviction, deliveries: Deliveries, group_of: Callable[[Run], Hashable]
    ) -> None:
        super().__init__(ready, eviction, deliveries)
        self._line = ready
        self._group_of = group_of
        self.groups: dict[Hashable, Group] = {}
        self._of: dict[int, Group] = {}
        """The group of each message that is here and has one, by sequence."""
        self._shared = Unoffered(joins=False)
        """Messages that are offered to all consumers."""
        self._mine: dict[int, list[int]] = {}
        """By consumer: the first ready sequences of the groups that it owns; a heap."""
        self._owned: dict[int, dict[Group, None]] = {}
        """By consumer."""
        self._touched: dict[Group, None] = {}
        """Groups with settlements in this step, which are examined before the next deliveries."""
        self._stale = 0
        """Number of messages in `ready` of the groups that have left the queue without a delivery."""

    # --- memory -----------------------------------------------------------------------------------------

    @property
    def keys(self) -> int:
        return len(self.groups)

    @property
    def index_bytes(self) -> int:
        size = limits.RANGE_BYTES * (len(self._of) + len(self._shared.heap))
        return super().index_bytes + size + limits.GROUP_BYTES * len(self.groups)

    # --- what happens to the queue --------------------------------------------------------------------

    def arrived(self, run: Run) -> None:
        key = self._group_of(run)
        sequence = run.sequence
        if key is None:
            self._offer_to_all(sequence)
            return
        group = self._group(key)
        self._of[sequence] = group
        heappush(group.ready, sequence)
        if group.ready[0] == sequence:
            group.refused = False
            self._offer(group)

    def returned(self, run: Run) -> None:
        self.arrived(run)

    def held(self, consumer: Consumer, run: Run, stays: bool) -> None:
        """A consumer has this message in flight from before the queue had groups.

        If it `stays` (is attached), it owns the group unless another consumer does. A `begin` has to follow.
        """
        key = self._group_of(run)
        if key is None:
            return
        group = self._group(key)
        self._of[run.sequence] = group
        if group.owner is None and stays and not consumer.departed:
            self._own(group, consumer.id)
        if group.owner == consumer.id:
            group.in_flight += 1
        else:
            group.foreign += 1
        # It may have been offered already.
        group.offered = NOTHING
        self._touched[group] = None

    def assign(self, run: Run, consumer: int) -> None:
        """The group of this message, which is here, is a consumer's."""
        key = self._group_of(run)
        if key is not None and (group := self._group(key)).owner is None:
            self._own(group, consumer)
            self._touched[group] = None

    def owners(self, consumers: Iterable[Consumer]) -> dict[int, int]:
        """By the sequence of one message of each group that has an owner: the owner."""
        found: dict[Group, int] = {}
        for consumer in consumers:
            for run in consumer.in_flight.runs[consumer.in_flight.head :]:
                for sequence in range(run.sequence, run.end):
                    group = self._of.get(sequence)
                    if group is not None and group.owner == consumer.id:
                        found[group] = sequence
        for owned in self._owned.values():
            for group in owned:
                if group not in found:
                    found.update((group, each) for each in group.ready if self._line.has(each))
        return {sequence: group.owner for group, sequence in found.items() if group.owner is not None}

    def removed(self, run: Run) -> None:
        for sequence in range(run.sequence, run.end):
            group = self._of.get(sequence)
            if group is not None:
                self._touched[group] = None
                self._stale += 1

    def settling(self, consumer: Consumer, runs: list[Run]) -> None:
        for run in runs:
            for sequence in range(run.sequence, run.end):
                group = self._of.pop(sequence, None)
                if group is None:
                    continue
                if group.owner == consumer.id:
                    group.in_flight -= 1
                else:
                    group.foreign -= 1
                self._touched[group] = None

    def detach(self, consumer: Consumer) -> None:
        super().detach(consumer)
        self._mine.pop(consumer.id, None)
        for group in self._owned.pop(consumer.id, ()):
            self._leave(group)

    def cleared(self) -> None:
        super().cleared()
        self._shared.heap.clear()
        self._mine.clear()
        for group in self.groups.values():
            for sequence in group.ready:
                self._of.pop(sequence, None)
            group.ready.clear()
            self._touched[group] = None
        self._stale = 0

    # --- one step -------------------------------------------------------------------------------------

    def begin(self) -> bool:
        touched, self._touched = self._touched, {}
        for group in touched:
            self._review(group)
        return super().begin()

    def turn(self, consumer: Consumer, share: int, effects: list[Effect]) -> tuple[bool, bool]:
        """Delivers the first messages of the consumer's groups, and of groups that are offered to all.

        Groups are spread like messages: in its turn a consumer claims as many as make its groups
        `ceil(groups / consumers with credit)`, but always one.
        """
        ready = self._line
        ring = consumer.ring
        wanted = min(share, consumer.limit - consumer.next, limits.DELIVERY_SLICE_MESSAGES)
        room = consumer.turn_bytes
        share_of_groups = -(-len(self.groups) // max(1, len(ring.turn) if ring is not None else 1))
        claims = max(1, share_of_groups - len(self._owned.get(consumer.id, ())))
        got = False
        while wanted > 0 and room > 0:
            mine = self._first_of_mine(consumer.id)
            offered = self._first_offered(self._views.get(consumer.id, self._shared))
            if mine < 0 and offered < 0:
                break
            own = offered < 0 or 0 <= mine < offered
            group = self._of.get(mine if own else offered)
            if not own and group is not None and group.owner is None and not claims:
                if mine < 0:
                    break
                own, group = True, self._of[mine]
            sequence = mine if own else offered
            index = ready.find(sequence, sequence + 1)
            run = ready.runs[index]
            if run.batch.data is None and consumer.id not in run.barred:
                self._fetch_from(index, effects)
                break
            allowed = self._allowed(consumer, run)
            if allowed is None:
                break
            if not allowed:
                self._refuse(consumer, sequence, group if own else None)
                continue
            if consumer.exact and not consumer.fits(run, self._gathered_bytes):
                break
            if own:
                heappop(self._mine[consumer.id])
            else:
                heappop(self._views.get(consumer.id, self._shared).heap)
            run, size = ready.take_single(index)
            if group is not None:
                claims -= group.owner is None
                self._take(group, consumer)
            wanted -= 1
            room -= size
            got = True
            self._gather(consumer, run, size, effects)
        self._hand_over(consumer, effects)
        return got, False

    def expects(self, consumer: Consumer) -> bool:
        if consumer.ring is None:
            return super().expects(consumer)
        if self.loading or self.unfinished:
            return True
        # It has all that is in memory; its next message may be on disk.
        return self._ready.evicted_runs > 0 and (
            self._first_of_mine(consumer.id) >= 0
            or self._first_offered(self._views.get(consumer.id, self._shared)) >= 0
        )

    def _whole_view(self) -> Unoffered:
        return self._shared.copy()

    def _feed(self) -> None:
        """Nothing: every run is named as it arrives."""

    def _allowed(self, consumer: Consumer, run: Run) -> bool | None:
        """Whether the consumer may get this message; None if no more may be read in this step."""
        if consumer.id in run.barred:
            return False
        selects = consumer.options.selects
        if selects is None:
            return True
        chosen = None
        if self._looks > 0:
            self._looks -= 1
            chosen = selects(run.batch.message(run.first))
        if chosen is None:
            self.unfinished = True
        return chosen

    # --- groups ---------------------------------------------------------------------------------------

    def _group(self, key: Hashable) -> Group:
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(key)
        return group

    def _own(self, group: Group, consumer: int) -> None:
        group.owner = consumer
        group.offered = NOTHING
        group.refused = False
        self._owned.setdefault(consumer, {})[group] = None

    def _leave(self, group: Group) -> None:
        """Removes the owner of a group; its deliveries are foreign to the next owner."""
        if group.owner is not None:
            self._owned.get(group.owner, {}).pop(group, None)
        group.owner = None
        group.foreign += group.in_flight
        group.in_flight = 0
        group.offered = NOTHING
        group.refused = False
        self._touched[group] = None

    def _take(self, group: Group, consumer: Consumer) -> None:
        """Delivers the first ready message of a group to a consumer."""
        sequence = heappop(group.ready)
        if self._stale:
            self._forget_stale(group)
        group.offered = NOTHING
        if group.owner is None:
            self._own(group, consumer.id)
        if consumer.options.presettled:
            del self._of[sequence]
            if not (group.ready or group.in_flight):
                self._review(group)
        else:
            group.in_flight += 1
        if group.ready:
            self._offer(group)

    def _offer(self, group: Group) -> None:
        """Offers the first ready message of a group to its owner, or to all."""
        first = group.ready[0]
        if group.offered == first or group.foreign or group.refused:
            return
        if group.owner is not None:
            heappush(self._mine.setdefault(group.owner, []), first)
        elif group.in_flight:
            return
        else:
            self._offer_to_all(first)
        group.offered = first

    def _offer_to_all(self, sequence: int) -> None:
        for view in (self._shared, *self._views.values()):
            view.push(0, sequence, sequence + 1)
            view.thin(self._line)

    def _review(self, group: Group) -> None:
        """Determines the owner of a group and its offer again, after messages of it have left."""
        ready = group.ready
        self._forget_stale(group)
        if not (ready or group.in_flight or group.foreign or group.is_session):
            if group.owner is not None:
                self._owned.get(group.owner, {}).pop(group, None)
            if self.groups.get(group.key) is group:
                del self.groups[group.key]
            return
        if not (group.in_flight or group.is_session) and (group.refused or self._bars_owner(group)):
            self._leave(group)
            self._touched.pop(group, None)
        if ready:
            self._offer(group)

    def _forget_stale(self, group: Group) -> None:
        """Drops messages at the top of a group that have left; its owner may take the next one."""
        ready = group.ready
        while ready and not self._line.has(ready[0]):
            self._of.pop(heappop(ready), None)
            self._stale -= 1
            group.refused = False

    def _bars_owner(self, group: Group) -> bool:
        """Whether the owner is barred from the first message of its group: it may lack credit to find out."""
        line = self._line
        if group.owner is None or not group.ready or not line.barred_runs:
            return False
        return group.owner in line.runs[line.find(group.ready[0], group.ready[0] + 1)].barred

    def _refuse(self, consumer: Consumer, sequence: int, owned: Group | None) -> None:
        """A consumer can't take its first offer: one to all, or of the group that it owns."""
        view = self._views.get(consumer.id)
        if view is None:
            view = self._views[consumer.id] = self._shared.copy()
        if owned is None:
            if view.heap and view.heap[0][1] == sequence:
                heappop(view.heap)
            return
        heappop(self._mine[consumer.id])
        owned.refused = True
        if not owned.in_flight:
            # Offered in the next step, which is at once: consumers before it have had their turn in this one.
            self._leave(owned)
            self.unfinished = True

    def _first_of_mine(self, consumer: int) -> int:
        """The lowest sequence that is offered to the owner of its group, -1 if none is."""
        heap = self._mine.get(consumer)
        while heap:
            sequence = heap[0]
            group = self._of.get(sequence)
            if group is not None and group.owner == consumer and group.offered == sequence:
                if self._line.has(sequence):
                    return sequence
                self._forget_first(group)
            heappop(heap)
        return NOTHING

    def _first_offered(self, view: Unoffered) -> int:
        """The lowest sequence that is offered to all, -1 if none is."""
        heap = view.heap
        while heap:
            sequence = heap[0][1]
            group = self._of.get(sequence)
            if group is None:
                if self._line.has(sequence):
                    return sequence
            elif group.owner is None and group.offered == sequence:
                if self._line.has(sequence):
                    return sequence
                self._forget_first(group)
            heappop(heap)
        return NOTHING

    def _forget_first(self, group: Group) -> None:
        """The first ready message of a group was removed."""
        group.offered = NOTHING
        self._review(group)
