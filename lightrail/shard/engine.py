"""The shard's engine: frames of the wire in, queue machines and store driven, frames out; no I/O of its own.

What may leave at once (deliveries, answers to transient batches) goes to the peers' output in the same step;
answers to durable batches wait in `_unsynced` until the commit that holds their records has reached the disk.
A queue is dispatched once per step, after everything that came has been applied, so that slices are large.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from lightrail.journal.record import SPILLED
from lightrail.model import conditions, limits
from lightrail.namespace.records import Name
from lightrail.shard.admission import Admission
from lightrail.shard.declarations import EveryName, Names
from lightrail.shard.delivery_marks import DeliveryMarks
from lightrail.shard.follower import Follower
from lightrail.shard.housekeeping import Housekeeping
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.store import JournalDamaged, Recovered, Store, StoreBroken, StoreBusy, StoreFull
from lightrail.shard.links import Links
from lightrail.shard.moving.answering import MoveRequests
from lightrail.shard.moving.arrivals import Arrival, Arrivals
from lightrail.shard.moving.awaited import AwaitedConsumers
from lightrail.shard.moving.sealing import Sealing
from lightrail.shard.moving.tenancy import EverythingHere, Places, Tenancy
from lightrail.shard.outcomes import outcome_in
from lightrail.shard.peers import Numbered, NumberMissing, Peer, Settlement, Waiter
from lightrail.shard.performer import Performer
from lightrail.shard.queue import commands
from lightrail.shard.queue.bounds import FLOW_TO_DISK
from lightrail.shard.queue.machine import is_much
from lightrail.shard.queue.runs import Batch
from lightrail.shard.queues import Queue, Queues
from lightrail.shard.reading import Read
from lightrail.shard.relays import Relays
from lightrail.shard.requests import Operation, Requests
from lightrail.shard.routes import Routes
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import ConsumerOpen, Hello, ProducerOpen, Refusal, Targets, Welcome
from lightrail.wire.frames import (
    AFRESH,
    COUNT_MASK,
    DRAIN,
    DURABLE,
    ENQUEUE_COLUMNS,
    ENQUEUE_ENDS,
    EXACT,
    HEADER,
    HEADER_SIZE,
    VERSION,
    Kind,
    frame,
)

log = logging.getLogger("lightrail.shard.engine")

ENQUEUE: Final = int(Kind.ENQUEUE)
SETTLE: Final = int(Kind.SETTLE)
CREDIT: Final = int(Kind.CREDIT)
ROUTE: Final = int(Kind.ROUTE)
CONSUMER_CLOSE: Final = int(Kind.CONSUMER_CLOSE)
SHARD: Final = "shard-"
"""How the names of peers begin that are shards, which copy queues."""


class Engine:
    """The queues of one shard behind the wire."""

    def __init__(
        self,
        *,
        shard: int,
        boot: int,
        store: Store,
        recovered: Recovered,
        counts: ShardCounts,
        memory_mark: int,
        max_delivery_count: int,
        now_ms: int,
        names: Names | None = None,
        wish_dropped: Callable[[Name], None] = lambda _: None,
        places: Places | None = None,
        marks: DeliveryMarks | None = None,
    ) -> None:
        self.shard = shard
        self.boot = boot
        self._store = store
        self._position = store.position
        self._counts = counts
        names = EveryName() if names is None else names
        tenancy = Tenancy(shard, EverythingHere(shard) if places is None else places, names)
        self._queues = Queues(store, names, tenancy, max_delivery_count, marks)
        self._performer = Performer(self._queues, store, counts)
        self._house = Housekeeping(self._queues, store, counts, memory_mark, self._performer)
        self._memory = self._house.memory
        self._admission = Admission(store, self._performer, self._memory, counts, self._answer, self._refuse)
        self._awaited = AwaitedConsumers(self._performer)
        self._links = Links(
            self._queues,
            self._performer,
            self._admission,
            self._awaited,
            dict(recovered.producers),
            dict(recovered.parts),
        )
        self._routes = Routes(
            self._queues, self._performer, store, counts, self._memory, self._answer, self._refuse
        )
        self._requests = Requests(self._queues, self._performer, self.when_synced)
        self._relays = Relays(self._queues.names, tenancy, self._memory)
        self.sealing = Sealing(self._queues, self._performer, self._links, self._awaited, counts)
        self.arrivals = Arrivals(
            self._queues, self._performer, store, self._memory, self._links, self._awaited, counts
        )
        """Queues on their way here."""
        self.moves = MoveRequests(
            self._queues, self._performer, self._links, self.sealing, self.when_synced, f"{boot:08x}"
        )
        self._requests.add(self.moves.operations)
        self._follower = Follower(
            self._queues,
            self._performer,
            store,
            self._house,
            self._links,
            self._relays,
            self.sealing,
            self.arrivals,
            self._awaited,
            wish_dropped,
            self.when_synced,
        )
        self._peers: dict[bytes, Peer] = {}
        self._strangers: dict[bytes, bytes] = {}
        """What to tell those that are no peers, by identity."""
        self._unsynced: list[tuple[Waiter, int]] = []
        self._committing: list[tuple[Waiter, int]] = []
        self._refusals: list[tuple[Numbered, int, Refusal]] = []
        """Of batches that are partly in records that wait for a commit."""
        self._refusals_committing: list[tuple[Numbered, int, Refusal]] = []
        self._messages_committing = 0
        self._failed: str | None = None
        self._ticked_ms = now_ms
        self._late: dict[Queue, None] = {}
        """Queues that came after the looks of a step were used up, and have consumers that select."""
        self._follower.restore(recovered.queues, now_ms)
        counts.queues = self._queues.figures
        self._queues.retired = counts.retire
        counts.store_usage = self._usage

    # --- what the server asks --------------------------------------------------------------------------

    def answer(self, operations: Mapping[str, Operation]) -> None:
        """Requests that others answer."""
        self._requests.add(operations)

    def receive(self, identity: bytes, parts: list[bytes], now_ms: int) -> list[bytes]:
        """One message of a frontend.

        Returns:
            What is left of it, where a part would take too long at once: to be received later, in its order.
        """
        peer = self._peers.get(identity)
        if peer is None:
            return self._stranger(identity, parts, now_ms)
        peer.heard_ms = now_ms
        position = self._position
        looks_left = limits.LOOKED_INTO_AT_ONCE
        for place, part in enumerate(parts):
            lsn = position.lsn
            rest: list[bytes] | None = None
            try:
                kind = part[0]
                if kind == ENQUEUE:
                    looked = self._enqueue(peer, part, now_ms)
                    if not looked:
                        continue
                    looks_left -= looked
                    if looks_left > 0:
                        continue
                    producer = peer.producers.get(HEADER.unpack_from(part)[4])
                    goes_on = producer is not None and producer.goes_on
                    rest = parts[place:] if goes_on else parts[place + 1 :]
                elif kind == SETTLE:
                    left = self._settle(peer, part, now_ms)
                    if left is None:
                        continue
                    rest = [left, *parts[place + 1 :]]
                elif kind == CREDIT:
                    self._credit(peer, part, now_ms)
                    continue
                elif kind == ROUTE:
                    looks_left -= 0 if self._failed is not None else self._routes.route(peer, part, now_ms)
                    if looks_left > 0:
                        continue
                    rest = parts[place + 1 :]
                elif kind == CONSUMER_CLOSE and self._gives_back(peer, part, now_ms):
                    rest = parts[place:]
                else:
                    self._rare(peer, part, now_ms)
            except NumberMissing as error:
                self._greet_anew(peer, str(error), now_ms)
            except StoreBusy:
                # Its sender waits, and so does what comes behind it, until the commit under way has ended.
                rest = parts[place:]
            except StoreBroken as error:
                self.commit_failed(error)
            except Exception as error:
                self._not_applied(peer, part, error, position.lsn != lsn, now_ms)
            if rest is not None:
                return rest
            now_peer = self._peers.get(identity)
            if now_peer is None:
                return []
            peer = now_peer
        return []

    def heard(self, identity: bytes, now_ms: int) -> None:
        """A frontend has said something that is received later."""
        peer = self._peers.get(identity)
        if peer is not None:
            peer.heard_ms = now_ms

    def step(self, now_ms: int) -> None:
        """Everything that came has been applied: deliver, journal what was settled, mind the memory."""
        performer, store, memory = self._performer, self._store, self._memory
        if memory.waiting and not memory.index_is_full:
            performer.touched.update(memory.waiting)
            memory.waiting.clear()
        unfinished = self._admission.unfinished
        if unfinished:
            performer.touched.update((queue, None) for queue in unfinished if queue.parked)
            unfinished.clear()
        looks = self._queues.looks
        if looks.left != limits.LOOKS_OF_A_TURN:
            looks.begin()
        work = self._queues.work
        work.begin()
        if self._routes.holding.lines and self._failed is None:
            self._routes.resume(now_ms)
        if performer.leaving.departures:
            performer.leaving.go_on()
        if self._late:
            self._late_first()
        while performer.touched:
            # Dead letters touch further queues; each round takes what is there.
            touched, performer.touched = performer.touched, {}
            for queue in touched:
                machine = queue.machine
                was_over = looks.left <= 0 or work.deliveries <= 0
                performer.perform(queue, machine.dispatch(now_ms), now_ms)
                if machine.deliveries.seen_to > queue.mark_asked:
                    self._queues.mark(queue, now_ms)
                if was_over and machine.is_unfinished:
                    self._late[queue] = None
                pace = queue.pace
                if pace.held_credit or machine.ready.count > limits.PACE_DEPTH_MIN:
                    for producer, count in pace.step(machine, now_ms):
                        if producer in queue.producers:
                            producer.free_credit(count)
                if queue.delivered:
                    performer.journal_delivered(queue, now_ms)
                if queue.removed:
                    performer.journal_removed(queue, now_ms)
                    performer.touched.pop(queue, None)
                if queue.parked or machine.policy.guarded:
                    self._keep_bounds(queue, now_ms)
                self._queues.deadlines.note(queue)
                memory.update(queue)
        if memory.resident > memory.mark:
            self._house.relieve(now_ms)
        if self._relays.touched:
            self._relays.step(now_ms)
        if store.failure and self._failed is None:
            # Of a call that this step made; whoever made it may only have counted a refusal.
            self.commit_failed(StoreBroken(store.failure))

    def _late_first(self) -> None:
        """Queues that had no looks or deliveries left, for others had used up the turn, come first."""
        touched = self._performer.touched
        late, self._late = self._late, {}
        first = {queue: None for queue in late if queue in touched}
        self._performer.touched = {**first, **touched}

    def _keep_bounds(self, queue: Queue, now_ms: int) -> None:
        """Lets in what waited for room, and what is to flow to disk flows."""
        if queue.parked and self._failed is None:
            # What is let in makes it one that was touched again.
            self._admission.resume(queue, now_ms)
        if queue.machine.policy.overflow == FLOW_TO_DISK:
            self._memory.update(queue)
            self._house.keep_within(queue, now_ms)

    def take_output(self) -> list[tuple[bytes, list[bytes]]]:
        """(identity, parts) for every frontend that has something to be told."""
        output = [(identity, [answer]) for identity, answer in self._strangers.items()]
        self._strangers.clear()
        for peer in self._peers.values():
            if peer.out or peer.acking:
                output.append((peer.identity, peer.take()))
        return output

    def take_reads(self) -> list[Read]:
        """Messages that have to be read back from the store, in a thread."""
        reads, self._performer.reads = self._performer.reads, []
        return reads

    def commit_begun(self) -> None:
        """The records so far are in the commit that now runs; answers to them wait for it."""
        self._committing, self._unsynced = self._unsynced, []
        self._refusals_committing, self._refusals = self._refusals, []
        self._messages_committing = self._performer.messages_unsynced
        self._performer.messages_unsynced = 0
        self._performer.captured_bytes = 0
        self._memory.commit_begun()

    def commit_ended(self, now_ms: int) -> int:
        """The commit is on disk: its batches are accepted. Returns the messages it held."""
        self._memory.commit_ended()
        committing, self._committing = self._committing, []
        if self._memory.is_stuck:
            # What they sent is on disk; they are kept from sending more.
            self._unsynced = [each for each in committing if isinstance(each[0], Numbered)] + self._unsynced
            committing = [each for each in committing if not isinstance(each[0], Numbered)]
        for waiter, number in committing:
            waiter.accept(number)
        for producer, number, refusal in self._refusals_committing:
            self._refuse(producer, number, refusal, False)
        self._refusals_committing = []
        self._house.clean(now_ms)
        return self._messages_committing

    @property
    def commit_is_awaited(self) -> bool:
        """Whether somebody waits for the records that gathered: a producer, or the memory they occupy."""
        return bool(self._unsynced) or bool(self._refusals) or self._memory.above_mark

    def nothing_to_commit(self) -> bool:
        """No record waits for the disk: answers that were held back for memory's sake may leave.

        While more than twice the mark is in memory and can't flow to disk, they stay: senders run out of
        credit, and nothing grows without bound.
        """
        if not (self._unsynced or self._refusals) or self._failed is not None:
            return False
        if self._house.stuck:
            return self._tell_others()
        self.commit_begun()
        self.commit_ended(self._ticked_ms)
        return True

    def _tell_others(self) -> bool:
        """Who is no sender is not held back: requests, and other shards that copy a queue from here."""
        others = [each for each in self._unsynced if not isinstance(each[0], Numbered)]
        if others:
            self._unsynced = [each for each in self._unsynced if isinstance(each[0], Numbered)]
            for waiter, number in others:
                waiter.accept(number)
        return bool(others)

    @property
    def holds(self) -> bool:
        """Whether what is to be sent has to wait for a delivery mark."""
        return self._queues.marks.holds

    def last_marks(self) -> dict[int, int]:
        """By number of a queue: up to where messages that were delivered come again after an orderly end."""
        return {queue.id: queue.may_come_again_before for queue in self._queues}

    @property
    def failed(self) -> str | None:
        """Why nothing here can be trusted any more, or None: only a new process, with recovery, helps."""
        return self._failed

    def commit_failed(self, error: BaseException) -> None:
        """Nothing after a failed write can be trusted: no answer leaves any more (a restart recovers).

        The same where something was applied in part, by an error of this program.
        """
        if self._failed is None:
            self._failed = str(error)
        self._committing = []
        self._unsynced = []
        self._refusals = []
        self._refusals_committing = []

    def read_ended(self, read: Read, error: BaseException | None, now_ms: int) -> None:
        """Messages came back from the store: the queue goes on where it waited."""
        reading = self._performer.reading
        reading[read.segment] -= 1
        if not reading[read.segment]:
            del reading[read.segment]
        if read.then is not None:
            read.then(read)
            return
        queue = self._queues.find(read.queue)
        if queue is None or queue.id != read.queue_id:
            return
        if queue.sealed and self.sealing.read_ended(queue, read):
            return
        self._counts.fetched_bytes += sum(run.size for run in read.runs)
        # Without any run the machine asks again in a second; what is damaged is given up, and said so.
        damaged = isinstance(error, JournalDamaged)
        fetched = commands.Fetched(read.run.sequence, read.runs, damaged)
        self._performer.perform(queue, queue.machine.apply(fetched, now_ms), now_ms)
        self._performer.touched[queue] = None
        if queue.unanswered:
            for waiter, number in queue.take_applied():
                self.when_synced(waiter, number)

    def tick(self, now_ms: int) -> None:
        """Time has passed: expiry, and frontends that have said nothing for too long."""
        stalled = now_ms - self._ticked_ms > limits.PEER_SILENCE_MS // 2
        self._ticked_ms = now_ms
        for peer in list(self._peers.values()):
            if stalled:
                # It was this process that stood still: what the others said waits in the socket.
                peer.heard_ms = now_ms
            elif now_ms - peer.heard_ms > limits.PEER_SILENCE_MS:
                log.warning("frontend %s has said nothing for %d ms", peer.frontend, now_ms - peer.heard_ms)
                self._forget(peer, now_ms)
        for queue in self._queues.deadlines.due(now_ms):
            self._performer.perform(queue, queue.machine.apply(commands.Tick(), now_ms), now_ms)
            self._performer.touched[queue] = None
        self._awaited.tick(now_ms)
        self.sealing.tick(now_ms)
        self._follower.tick(now_ms)
        self._relays.tick(now_ms)
        if self._performer.unwritten:
            self._performer.write_again(now_ms)
        self._house.clean(now_ms)
        self._counts.memory_bytes = self._memory.resident
        self._counts.frontends_connected = sum(
            not peer.frontend.startswith(SHARD) for peer in self._peers.values()
        )

    @property
    def deadline_ms(self) -> int | None:
        """When the next queue wants a tick, or the time of a batch that waits is over; None for never."""
        if self._performer.leaving.departures or self._admission.unfinished:
            return 0
        due_ms = self._queues.deadlines.next_ms
        over_ms = self._routes.holding.next_ms
        return due_ms if over_ms is None else over_ms if due_ms is None else min(due_ms, over_ms)

    @property
    def has_work(self) -> bool:
        """Whether something happened that a turn would go on with."""
        return (
            bool(self._performer.touched) or self._store.pending or any(p.out for p in self._peers.values())
        )

    def refresh(self, now_ms: int) -> None:
        """Asks the directory what changed; a turn should follow."""
        self._follower.refresh(now_ms)

    def open_arrival(self, arrival: Arrival, now_ms: int) -> None:
        """The transaction has made a queue this shard's; a turn should follow."""
        self._follower.committed(arrival, now_ms)

    def lost(self, identity: bytes) -> None:
        """ZeroMQ has no way to this frontend any more; its silence will end it, or its greeting renew it."""
        peer = self._peers.get(identity)
        if peer is not None:
            self._forget(peer, self._ticked_ms)

    def not_ready(self) -> str | None:
        """Why this shard does not serve, or None."""
        return None if self._failed is None else f"the store failed: {self._failed}"

    def _usage(self) -> Mapping[str, int]:
        usage = self._store.usage()
        return {"total": usage.total_bytes, "live": usage.live_bytes}

    # --- frontends come and go -------------------------------------------------------------------------

    def _stranger(self, identity: bytes, parts: list[bytes], now_ms: int) -> list[bytes]:
        """Only a greeting makes a peer; all else is answered with ABSENT, and the frontend greets again."""
        if parts and parts[0][:1] == bytes((Kind.HELLO,)):
            hello = Hello.decode(parts[0][HEADER_SIZE:])
            if hello.version != VERSION:
                # It learns our version from the answer; what else it says has a layout that we don't know.
                log.error("frontend %s speaks wire %d, we speak %d", hello.frontend, hello.version, VERSION)
                self._strangers[identity] = self._welcome(hello.attempt)
                return []
            for other in [peer for peer in self._peers.values() if peer.frontend == hello.frontend]:
                # The same frontend, started again: what its former process held comes back at once.
                self._forget(other, now_ms)
            self._greeted(identity, hello, now_ms)
            return self.receive(identity, parts[1:], now_ms)
        self._strangers[identity] = frame(Kind.ABSENT)
        return []

    def _greeted(self, identity: bytes, hello: Hello, now_ms: int) -> None:
        peer = Peer(identity, hello.frontend, hello.boot, hello.attempt, now_ms)
        peer.out.append(self._welcome(hello.attempt))
        self._peers[identity] = peer

    def _welcome(self, attempt: int) -> bytes:
        return frame(Kind.WELCOME, body=Welcome(VERSION, self.shard, self.boot, attempt).encode())

    def _forget(self, peer: Peer, now_ms: int) -> None:
        """The frontend is gone, or begins anew."""
        self._peers.pop(peer.identity, None)
        self._links.forget(peer, now_ms)
        self._relays.forget(peer)

    def _greet_anew(self, peer: Peer, why: str, now_ms: int) -> None:
        """Something that a frontend sent is missing. What comes behind it must not be stored: the number of a
        later batch would stand for those that are missing. The frontend has to send everything once more."""
        log.warning("frontend %s has to greet again: %s", peer.frontend, why)
        self._forget(peer, now_ms)
        self._strangers[peer.identity] = frame(Kind.ABSENT)

    def _not_applied(self, peer: Peer, part: bytes, error: Exception, is_stored: bool, now_ms: int) -> None:
        """A frame that was not understood, or met an error of this program, ends its link and no other.

        Its sender is told, so that no number goes missing in silence; what the link held goes back.

        Args:
            is_stored: a record of it is in the store. Then only recovery knows what the queue holds.
        """
        kind = part[0] if part else -1
        log.error("a frame of kind %d from frontend %s was not applied", kind, peer.frontend, exc_info=error)
        if is_stored:
            self.commit_failed(RuntimeError(f"internal error: a frame of kind {kind} was applied in part"))
        elif len(part) >= HEADER_SIZE:
            link = HEADER.unpack_from(part)[4]
            self._links.end_link(peer, link, now_ms)
            self._relays.close_sender(peer, link)
            self._relays.close_listener(peer, link)
            why = "internal error of the shard, whose log says more; attach the link again"
            refusal = Refusal(conditions.INTERNAL_ERROR, why)
            peer.out.append(frame(Kind.GONE, link=link, body=refusal.encode()))

    def _rare(self, peer: Peer, part: bytes, now_ms: int) -> None:
        kind, _flags, _reserved, epoch, link, _count, number = HEADER.unpack_from(part)
        if kind == Kind.COUNT:
            peer.heard += 1
            if number != peer.heard:
                # They were lost with a connection.
                self._greet_anew(peer, f"{number - peer.heard} of its messages got lost", now_ms)
        elif kind == Kind.PING:
            peer.out.append(frame(Kind.PONG, count=peer.said & COUNT_MASK, number=self.boot))
        elif kind == Kind.PRODUCER_OPEN:
            self._follower.refresh(now_ms)
            opening = ProducerOpen.decode(part[HEADER_SIZE:])
            if opening.relay:
                self._relays.open_sender(peer, link, epoch, opening.queue, now_ms)
            elif opening.queue:
                self._links.open_producer(peer, link, epoch, opening, number, now_ms)
            else:
                self._links.open_router(peer, link, number)
        elif kind == Kind.CONSUMER_OPEN:
            self._follower.refresh(now_ms)
            wanted = ConsumerOpen.decode(part[HEADER_SIZE:])
            if wanted.relay:
                self._relays.open_listener(peer, link, epoch, wanted)
            else:
                self._links.open_consumer(peer, link, epoch, wanted, now_ms)
        elif kind == Kind.PRODUCER_CLOSE:
            self._links.close_producer(peer, link)
            self._relays.close_sender(peer, link)
        elif kind == Kind.PRODUCER_ABANDON:
            self._links.abandon_producer(peer, link)
            if (router := peer.routers.get(link)) is not None and self._failed is None:
                self._routes.abandon(router, now_ms)
        elif kind == Kind.CONSUMER_CLOSE:
            consumer = peer.consumers.get(link)
            if consumer is not None:
                self._links.close_consumer(consumer, now_ms)
            else:
                self._relays.close_listener(peer, link)
                self._stray(peer, part, now_ms)
        elif kind == Kind.TARGETS:
            self._follower.refresh(now_ms)
            self._routes.targets(peer, link, number, Targets.decode(part[HEADER_SIZE:]), now_ms)
        elif kind == Kind.REQUEST:
            self._follower.refresh(now_ms)
            self._requests.receive(peer, number, part, now_ms, self._failed)
        elif kind == Kind.HELLO:
            # It lost what we said (or thinks so) and begins anew; its producers keep their numbers.
            self._forget(peer, now_ms)
            self._greeted(peer.identity, Hello.decode(part[HEADER_SIZE:]), now_ms)
        elif kind == Kind.GOODBYE:
            self._forget(peer, now_ms)
        else:
            log.error("a frame of kind %d from frontend %s is not known here", kind, peer.frontend)

    def _stray(self, peer: Peer, part: bytes, now_ms: int) -> None:
        """What is said for a consumer that is not here: it is awaited, or it was sent away."""
        if not self._awaited.said(peer, part, now_ms):
            self.sealing.bounce(peer, part)

    def when_synced(self, waiter: Waiter, number: int) -> None:
        """Told when everything so far is on disk; at once where nothing has to be."""
        self._unsynced.append((waiter, number))

    # --- the hot frames ----------------------------------------------------------------------------------

    def _credit(self, peer: Peer, part: bytes, now_ms: int) -> None:
        _, flags, _, _, link, kib, number = HEADER.unpack_from(part)
        consumer = peer.consumers.get(link)
        if consumer is None:
            self._relays.credit(peer, part, now_ms)
            return
        queue = consumer.queue
        size = kib << 10 if kib else commands.UNBOUNDED
        credit = commands.Credit(consumer.id, number, bool(flags & DRAIN), size, bool(flags & EXACT))
        self._performer.perform(queue, queue.machine.apply(credit, now_ms), now_ms)
        self._performer.touched[queue] = None

    def _enqueue(self, peer: Peer, part: bytes, now_ms: int) -> int:
        """Stores a batch. Returns how many of its messages the queue looked into."""
        _kind, flags, priority, _epoch, link, count, number = HEADER.unpack_from(part)
        producer = peer.producers.get(link)
        if producer is None:
            self._relays.send(peer, part, now_ms)
            return 0
        if self._failed is not None:
            return 0
        if number == producer.next_number:
            producer.next_number = number + 1
        elif number > producer.next_number:
            producer.missed(number)
        durable = bool(flags & DURABLE)
        if number <= producer.last_number and not (producer.part and number == producer.last_number):
            self._counts.batches_duplicate += 1
            # Who comes again by name does not know of a commit that is under way for what it said before.
            self._answer(producer, number, durable or producer.is_named)
            return 0
        if producer.refusing:
            if not flags & AFRESH:
                refusal = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "a batch before this one was refused")
                self._refuse(producer, number, refusal, False)
                return 0
            producer.refusing = False
        queue = producer.queue
        machine = queue.machine
        expires, message_format, size = ENQUEUE_COLUMNS.unpack_from(part, HEADER_SIZE)
        base = ENQUEUE_ENDS + 4 * count
        batch = Batch(
            part,
            memoryview(part)[ENQUEUE_ENDS:base].cast("I"),
            count,
            size,
            base,
            durable,
            priority,
            expires or None,
            now_ms,
            None,
            message_format,
        )
        special = machine.special
        if (
            machine.policy.guarded
            or queue.parked
            or producer.part
            or (
                special is not None
                and special.singles
                and (count > limits.LOOKED_INTO_AT_ONCE or self._memory.index_is_full)
            )
        ):
            if self._admission.enqueue(producer, number, batch, now_ms):
                return limits.LOOKED_INTO_AT_ONCE
            return count if machine.policy.examines else 0
        waits = durable
        if durable or queue.captured:
            record = Append([(queue.id, machine.next_sequence)], producer.id, number, batch, 0, count)
            if not durable:
                record.flags = SPILLED
            try:
                batch.place = self._store.append(record, now_ms)
            except StoreBusy:
                raise
            except (StoreFull, ValueError) as error:
                # No room, or more than a record may hold.
                self._counts.store_failures += 1
                producer.refusing = True
                refusal = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, str(error))
                self._refuse(producer, number, refusal, False)
                return 0
            if durable:
                self._performer.messages_unsynced += count
            else:
                self._performer.captured_bytes += size
                waits = self._performer.capture_lags
        producer.last_number = number
        producer.entered += count
        if producer.stored is not None:
            producer.note(number, machine.next_sequence)
        self._answer(producer, number, waits)
        effects_ = machine.apply(commands.Enqueue(batch), now_ms)
        if effects_:
            self._performer.perform(queue, effects_, now_ms)
        self._performer.touched[queue] = None
        return count if special is not None and special.singles else 0

    def _refuse(self, producer: Numbered, number: int, refusal: Refusal, durable: bool = False) -> None:
        """Refused: now, or with the commit that holds the records of what was taken of the batch."""
        if durable:
            self._refusals.append((producer, number, refusal))
            return
        producer.peer.out.append(
            frame(Kind.REFUSED, link=producer.link, number=number, body=refusal.encode())
        )

    def _answer(self, producer: Numbered, number: int, durable: bool) -> None:
        """Accepted: now, or with the commit that holds the record.

        Above the memory mark transient batches wait for a commit as well: what flows to disk is in it, and a
        disk that is slower than the senders slows them down.
        """
        memory = self._memory
        if durable or memory.resident + memory.flowing > memory.mark:
            self._unsynced.append((producer, number))
        else:
            producer.accept(number)

    def _gives_back(self, peer: Peer, part: bytes, now_ms: int) -> bool:
        """A consumer that closes with much in flight gives it back in pieces: True while there is more."""
        consumer = peer.consumers.get(HEADER.unpack_from(part)[4])
        if consumer is None:
            return False
        machine = consumer.queue.machine
        found = machine.consumers.by_id.get(consumer.id)
        if found is None or found.options.lock_key or not is_much(found):
            return False
        line = found.in_flight
        first = line.keys[line.head]
        last = first + limits.SETTLE_SLICE_MESSAGES
        if len(line) > limits.SETTLE_SLICE_REWRITTEN:
            last = min(last, line.keys[line.head + limits.SETTLE_SLICE_REWRITTEN])
        for command in (
            commands.Credit(consumer.id, found.next),
            commands.Settle(consumer.id, first, last, found.options.default_outcome),
        ):
            self._performer.perform(consumer.queue, machine.apply(command, now_ms), now_ms)
        self._performer.touched[consumer.queue] = None
        return True

    def _settle(self, peer: Peer, part: bytes, now_ms: int) -> bytes | None:
        """Settles a range of deliveries; returns the frame of what is left where there are too many."""
        _kind, code, asked, _epoch, link, count, number = HEADER.unpack_from(part)
        consumer = peer.consumers.get(link)
        if consumer is None:
            if link in peer.listeners:
                if asked:
                    self._answer_when_synced(peer, link, number, count)
                self._relays.settle(peer, part)
            else:
                self._stray(peer, part, now_ms)
            return None
        outcome = commands.ACCEPTED if code == 0 else outcome_in(part, code)
        queue = consumer.queue
        rest = None
        # Annotations are written into every message, so that fewer of them make a turn of the same length.
        most = min(limits.SETTLE_SLICE_MESSAGES, max(1, limits.SETTLE_SLICE_BYTES // len(part)))
        if count > (min(most, limits.SETTLE_SLICE_REWRITTEN) if code else limits.SETTLE_SLICE):
            rest, count = self._sliced(queue, consumer.id, part, code, number, count, most)
        # It counts what the store fails to take from here on.
        answer = self._settlement(peer, link, count) if asked else None
        deferred = queue.machine.deferred.number
        self._performer.perform(
            queue,
            queue.machine.apply(commands.Settle(consumer.id, number, number + count, outcome), now_ms),
            now_ms,
        )
        self._performer.touched[queue] = None
        if answer is not None and not queue.answer_when_applied(answer, number, deferred):
            self.when_synced(answer, number)
        return rest

    def _answer_when_synced(self, peer: Peer, link: int, number: int, count: int) -> None:
        """The frontend confirms these settlements to its client once they are on disk."""
        self.when_synced(self._settlement(peer, link, count), number)

    def _settlement(self, peer: Peer, link: int, count: int) -> Settlement:
        return Settlement(peer, link, count, lambda: self._counts.store_failures)

    @staticmethod
    def _sliced(
        queue: Queue, consumer: int, part: bytes, code: int, number: int, count: int, messages: int
    ) -> tuple[bytes | None, int]:
        """A frame that settles what a piece of the range leaves over, and the size of the piece.

        Args:
            messages: most delivery numbers of a piece whose messages may have to be written anew.
        """
        found = queue.machine.consumers.by_id.get(consumer)
        if found is None:
            return None, count
        line = found.in_flight
        if not len(line):
            return None, count
        end = min(number + count, line.keys[-1] + line.runs[-1].count)
        most = limits.SETTLE_SLICE_REWRITTEN if code else limits.SETTLE_SLICE
        first = line.index(number)
        index = first + most
        left = line.keys[index] if index < len(line.keys) else end
        if code and first < len(line.keys):
            # Each of them may have to be written anew, as a dead letter or with annotations.
            left = min(left, max(number, line.keys[first]) + messages)
        if left >= end:
            return None, count
        _, flags, reserved, epoch, link, _, _ = HEADER.unpack_from(part)
        header = HEADER.pack(SETTLE, flags, reserved, epoch, link, end - left, left)
        return header + part[HEADER_SIZE:], left - number
