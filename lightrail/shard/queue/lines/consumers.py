"""Consumers: the order in which consumers get the next slice, by priority and then in turn."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from lightrail.model import conditions, limits
from lightrail.model.links import LockEnding
from lightrail.shard.queue.lines.ends import Blame, Ends
from lightrail.shard.queue.lines.line import InFlight
from lightrail.shard.queue.values.commands import UNBOUNDED, ConsumerOptions
from lightrail.shard.queue.values.effects import Refused
from lightrail.shard.queue.values.policy import Policy, disabled_text
from lightrail.shard.queue.values.runs import Run


@dataclass(slots=True, eq=False, repr=False)
class Ring:
    """Consumers of one priority that have credit, the next one first."""

    priority: int
    members: int = 0
    """Number of consumers of this priority, with or without credit."""
    turn: "deque[Consumer]" = field(default_factory=deque)


@dataclass(slots=True, eq=False, repr=False)
class Consumer:
    """The link of a receiver: its credit as an absolute limit, and its unsettled deliveries."""

    id: int
    options: ConsumerOptions
    ring: Ring | None
    """The ring of its priority; None for a browser, which does not compete."""
    lock_ms: int = 0
    """Lock time of its next deliveries; 0 to lock them as long as it is attached."""
    room: int = UNBOUNDED
    """Remaining bytes of its latest credit; if none remain, its limit is `next`."""
    exact: int = 0
    """Half of its latest credit in bytes, if no message may be larger than the rest of `room`; else 0."""
    larger: int = 0
    """Bytes of the message that was too large for its exact credit, until that is reported."""
    draining: bool = False
    waits: bool = False
    """Whether it is in the ring of its priority: it has credit and competes."""
    cursor: int = 0
    """It gets no lower sequences: a browser has received them, another consumer is barred from them."""
    in_flight: InFlight = field(default_factory=InFlight)
    lock_ms_before: int = 0
    """The longest lock time of its unsettled deliveries, if that was longer."""
    renewed: dict[int, int] = field(default_factory=dict)
    """The ends of locks that were renewed, by delivery number."""
    ends: Ends | None = None
    """The ends of its locks, if they have a key."""
    departed: bool = False
    """Whether it is detached and only its locked deliveries are left."""
    session_of: int | None = None
    """The consumer whose session's lock is that of its deliveries: deferred messages of the session."""
    blame: Blame | None = None
    """What of its locks counts now that it is detached; None for each, as of one that is attached."""
    standby: bool = False
    """Whether it gets no messages because another one is the single active consumer."""
    suspended: bool = False
    """Whether its link is detached, and it keeps its deliveries until the link is resumed."""
    limit: int = field(init=False)
    """Credit: delivery numbers below this one may be sent."""
    next: int = field(init=False)
    """The next delivery number."""
    plain: bool = field(init=False)
    """Whether its deliveries are in flight until it settles them or detaches."""

    def __post_init__(self) -> None:
        self.limit = self.options.first
        self.next = self.options.first
        self.plain = not (self.options.presettled or self.lock_ms)
        if self.options.lock_key:
            self.ends = Ends()

    @property
    def keeps_locks(self) -> bool:
        """Whether locks of its deliveries outlive its link."""
        outlive = self.options.lock_key and self.options.lock_ends is not LockEnding.BY_LINK
        return bool(outlive and (self.lock_ms or self.lock_ms_before))

    @property
    def turn_bytes(self) -> int:
        """Bytes of one turn: at least one message, unless the credit is exact."""
        return min(limits.DELIVERY_SLICE_BYTES, self.room) if self.exact else limits.DELIVERY_SLICE_BYTES

    def fits(self, run: Run, gathered: int = 0) -> bool:
        """Whether the first message of a run may be sent; notes a message that is too large for the credit.

        A run that is only on disk fits if its size is unknown.

        Args:
            gathered: bytes that are about to be sent before it.
        """
        room = self.room - gathered
        if not self.exact or run.batch.size <= room:
            return True
        ends, first = run.batch.ends, run.first
        if ends is not None:
            size: int = ends[first] - ends[first - 1] if first else ends[first]
        elif run.batch.count == 1:
            size = run.batch.size
        else:
            return True
        if size <= room:
            return True
        self.larger = size
        return False

    def locks(self, lock_ms: int) -> None:
        """Sets the lock time of the next deliveries."""
        self.lock_ms_before = max(self.lock_ms_before, self.lock_ms)
        self.lock_ms = lock_ms
        self.plain = not (self.options.presettled or lock_ms)
        if self.ends is not None and not lock_ms:
            self.ends.add(self.next, 0)


@dataclass(slots=True, eq=False, repr=False)
class Consumers:
    """All consumers of a queue, in the order of their attaches, and the rings of waiting ones."""

    by_id: dict[int, Consumer] = field(default_factory=dict)
    attached_bytes: int = 0
    """Bytes of memory of these consumers, without their deliveries."""
    changed: dict[str, int] | None = None
    """By user: by how much these bytes have changed since the shard counted them; None: not at all."""
    departed: dict[int, Consumer] = field(default_factory=dict)
    """Detached consumers with deliveries, by number: reserved, returning, or locked and not packed."""
    deferred: Consumer | None = None
    """The internal consumer of deliveries that wait for their outcome (deferred.py)."""
    aside: Consumer | None = None
    """The internal consumer of deferred messages (aside.py)."""
    retries: Consumer | None = None
    """The internal consumer of messages that wait after a failed delivery (aside.py)."""
    states: Consumer | None = None
    """The internal consumer of states (states.py)."""
    packed: Consumer | None = None
    """The internal consumer of the deliveries of ended links (ended_links.py)."""
    single_active: bool = False
    disabled: bool = False
    """Whether nobody gets messages: all that compete are on standby."""
    browsers: list[Consumer] = field(default_factory=list)
    competing: int = 0
    exclusive: bool = False
    rings: list[Ring] = field(default_factory=list)
    """Highest priority first; one ring for nearly every queue."""
    draining: list[Consumer] = field(default_factory=list)
    passed_over: bool = False
    """Whether a consumer that competes has a cursor above 0."""
    suspended: int = 0
    """Number of consumers that are suspended."""

    def __iter__(self) -> Iterator[Consumer]:
        """All consumers that may have messages in flight."""
        yield from self.by_id.values()
        yield from self.departed.values()
        yield from self.internal

    @property
    def internal(self) -> list[Consumer]:
        """The internal consumers that there are."""
        return list(filter(None, (self.deferred, self.aside, self.retries, self.states, self.packed)))

    @property
    def are_attached(self) -> bool:
        """Whether nobody but attached consumers may have messages in flight."""
        return not (
            self.departed or self.packed or self.deferred or self.aside or self.retries or self.states
        )

    def attach(self, identity: int, options: ConsumerOptions, policy: Policy) -> Refused | None:
        """Attaches a consumer, or returns why not."""
        if identity in self.by_id:
            return Refused(
                identity,
                conditions.ILLEGAL_STATE,
                f"expected a consumer that is new, found number {identity} attached already",
            )
        if policy.receive_disabled:
            return Refused(identity, conditions.ENTITY_DISABLED, disabled_text("received from"))
        if options.browse:
            consumer = Consumer(identity, options, None)
            self.browsers.append(consumer)
        else:
            refused = self._refusal(identity, options, policy)
            if refused is not None:
                return refused
            self.exclusive = options.exclusive
            self.competing += 1
            ring = self._ring(options.priority)
            ring.members += 1
            # The deliveries of a session are locked by the session.
            untimed = options.presettled or options.is_session
            lock_ms = 0 if untimed else options.lock_ms or policy.lock_ms or 0
            consumer = Consumer(identity, options, ring, lock_ms)
            consumer.standby = self.single_active and self._has_active
        self.by_id[identity] = consumer
        self._count(options, 1)
        return None

    def adopt(self, consumer: Consumer) -> None:
        """Adds a consumer that was attached at another shard, with its deliveries and without credit."""
        if consumer.departed:
            self.departed[consumer.id] = consumer
            return
        self.by_id[consumer.id] = consumer
        self._count(consumer.options, 1)
        if consumer.options.browse:
            self.browsers.append(consumer)
            return
        consumer.ring = self._ring(consumer.options.priority)
        consumer.ring.members += 1
        self.competing += 1
        self.exclusive = consumer.options.exclusive

    def activate(self, chosen: Consumer) -> None:
        """Makes this consumer the single active one."""
        if not self.single_active or self.disabled:
            return
        for consumer in self.by_id.values():
            if consumer.ring is not None:
                consumer.standby = consumer is not chosen
                self._update_ring(consumer)

    @property
    def are_served(self) -> bool:
        """Whether a consumer is attached that may receive messages: not only suspended ones."""
        return len(self.by_id) > self.suspended

    def suspend(self, identity: int) -> None:
        """Withdraws a consumer's credit; if it is the single active one, another one becomes active."""
        consumer = self.by_id.get(identity)
        if consumer is None or consumer.suspended:
            return
        self.credit(consumer, 0, False, UNBOUNDED, False)
        consumer.suspended = True
        self.suspended += 1
        if self.single_active and not consumer.standby:
            consumer.standby = True
            self._choose_active()

    def resume(self, identity: int) -> None:
        """Allows a suspended consumer to get credit again."""
        consumer = self.by_id.get(identity)
        if consumer is not None and consumer.suspended:
            consumer.suspended = False
            self.suspended -= 1
            self._choose_active()

    @property
    def _has_active(self) -> bool:
        return any(each.ring is not None and not each.standby for each in self.by_id.values())

    def _refusal(self, identity: int, options: ConsumerOptions, policy: Policy) -> Refused | None:
        """Why a consumer that competes may not attach, or None."""
        found = ""
        if self.exclusive:
            found = "the queue has an exclusive consumer"
        elif self.competing and options.exclusive:
            found = "the consumer is exclusive, but the queue has consumers already"
        elif self.competing and policy.exclusive:
            found = "the queue has a consumer, and its policy is exclusive: it allows one"
        if found:
            return Refused(identity, conditions.RESOURCE_LOCKED, found)
        if policy.max_consumers is not None and self.competing >= policy.max_consumers:
            return Refused(
                identity,
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"the queue has {self.competing} consumers, and its policy allows {policy.max_consumers}",
            )
        return None

    def follow(self, policy: Policy) -> list[Consumer]:
        """Follows a change of the policy: lock times for the next deliveries, and the active consumer.

        Returns:
            Consumers with timed locks that had none: the locks of their deliveries have no end yet.
        """
        competing = [each for each in self.by_id.values() if each.ring is not None]
        timed: list[Consumer] = []
        for consumer in self.departed.values():
            lock_ms = consumer.options.lock_ms or policy.lock_ms
            if lock_ms and consumer.ends is not None and consumer.session_of is None:
                # Its locks are renewed for this time; their ends stay.
                consumer.locks(lock_ms)
        for consumer in competing:
            if not (consumer.options.presettled or consumer.options.is_session):
                untimed = not consumer.lock_ms
                consumer.locks(consumer.options.lock_ms or policy.lock_ms or 0)
                if untimed and consumer.lock_ms:
                    timed.append(consumer)
        if (policy.single_active, policy.receive_disabled) == (self.single_active, self.disabled):
            return timed
        self.single_active, self.disabled = policy.single_active, policy.receive_disabled
        for consumer in competing:
            consumer.standby = self.single_active or self.disabled
            self._update_ring(consumer)
        self._choose_active()
        return timed

    def _choose_active(self) -> None:
        """Activates the first consumer of the highest priority, if one has to be active and none is."""
        if not self.single_active or self.disabled:
            return
        competing = [each for each in self.by_id.values() if each.ring is not None and not each.suspended]
        if competing and all(each.standby for each in competing):
            chosen = max(competing, key=lambda each: each.options.priority)
            chosen.standby = False
            self._update_ring(chosen)

    def _update_ring(self, consumer: Consumer) -> None:
        """Puts a consumer into its ring if it has credit and may get messages, else removes it."""
        ring = consumer.ring
        wanted = ring is not None and consumer.limit > consumer.next and not consumer.standby
        if ring is None or wanted == consumer.waits:
            return
        consumer.waits = wanted
        if wanted:
            ring.turn.append(consumer)
        else:
            ring.turn.remove(consumer)

    def detach(self, identity: int) -> Consumer | None:
        """Removes a consumer; the caller settles its deliveries."""
        if (consumer := self.by_id.pop(identity, None)) is None:
            return None
        self._count(consumer.options, -1)
        if consumer.draining:
            self.draining.remove(consumer)
        self.suspended -= consumer.suspended
        ring = consumer.ring
        if ring is None:
            self.browsers.remove(consumer)
            return consumer
        self.competing -= 1
        self.exclusive = False
        if consumer.waits:
            ring.turn.remove(consumer)
            consumer.waits = False
        ring.members -= 1
        if not ring.members:
            self.rings.remove(ring)
        if self.single_active and not consumer.standby:
            self._choose_active()
        return consumer

    def _count(self, options: ConsumerOptions, sign: int) -> None:
        size = sign * bytes_of(options)
        self.attached_bytes += size
        changed = self.changed = self.changed or {}
        changed[options.user] = changed.get(options.user, 0) + size

    def credit(self, consumer: Consumer, limit: int, drain: bool, size: int, exact: bool) -> None:
        """Sets the limit; a limit below the number of deliveries withdraws the credit."""
        consumer.room = size
        consumer.exact = size >> 1 if exact else 0
        consumer.larger = 0
        consumer.limit = limit if limit > consumer.next else consumer.next
        if drain != consumer.draining:
            consumer.draining = drain
            if drain:
                self.draining.append(consumer)
            else:
                self.draining.remove(consumer)
        ring = consumer.ring
        if ring is None:
            return
        if consumer.waits:
            if consumer.limit == consumer.next:
                ring.turn.remove(consumer)
                consumer.waits = False
        elif consumer.limit > consumer.next and not consumer.standby:
            ring.turn.append(consumer)
            consumer.waits = True

    def look_again(self, sequence: int) -> None:
        """Resets cursors of competing consumers that are above the sequence of returned messages."""
        self.passed_over = False
        for consumer in self.by_id.values():
            if consumer.ring is not None and consumer.cursor:
                consumer.cursor = min(consumer.cursor, sequence)
                self.passed_over = self.passed_over or consumer.cursor > 0

    def _ring(self, priority: int) -> Ring:
        for ring in self.rings:
            if ring.priority == priority:
                return ring
        ring = Ring(priority)
        self.rings.append(ring)
        self.rings.sort(key=lambda each: -each.priority)
        return ring


def bytes_of(options: ConsumerOptions) -> int:
    """Bytes of memory of a consumer, without its deliveries."""
    return limits.CONSUMER_BYTES + options.selector_bytes
