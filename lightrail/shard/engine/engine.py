"""The shard's engine: applies frames to queue machines and the store, and returns frames, without I/O.

Deliveries and answers to transient batches are sent in the same step; answers to durable batches wait until
their records are accepted (`Answers`), as do deliveries if a record needs more than its commit (`HeldTurns`).
A queue is dispatched once per step, after all received frames have been applied, so that slices are large.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightrail.model import limits
from lightrail.shard.effects.actions import Actions, Read
from lightrail.shard.effects.answers import Answers, Operation
from lightrail.shard.effects.performer import Performer
from lightrail.shard.engine.follower import Follower
from lightrail.shard.engine.receiving import Receiving
from lightrail.shard.engine.settling import Settling
from lightrail.shard.journal.store import JournalDamagedError, Recovered, Store, StoreBrokenError
from lightrail.shard.links.frontends import Frontends
from lightrail.shard.links.ingress.admission import Admission
from lightrail.shard.links.ingress.batches import Batches
from lightrail.shard.links.ingress.routes import Routes
from lightrail.shard.links.links import Links
from lightrail.shard.links.relaying.relay import Relays
from lightrail.shard.links.takeovers import Takeovers
from lightrail.shard.moving.arrivals import Arrival, Arrivals
from lightrail.shard.moving.exporting import Exports, MoveRequests
from lightrail.shard.moving.freezing import Freezing
from lightrail.shard.queue.timed.lock_changes import KeyedLock
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.policy import FLOW_TO_DISK
from lightrail.shard.queues.declarations import EveryName, ExpiredName, Names
from lightrail.shard.queues.delivery_marks import DeliveryMarks
from lightrail.shard.queues.lock_file import KeptLocks
from lightrail.shard.queues.memory import queues_max
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Queue, Waiter
from lightrail.shard.queues.tenancy import ClusterMap, EverythingHere, Tenancy
from lightrail.shard.requests.lock_requests import LockRequests
from lightrail.shard.requests.requests import Requests
from lightrail.shard.requests.retirements import Retirements
from lightrail.shard.requests.session_requests import SessionRequests
from lightrail.shard.transactions.transactions import Transactions
from lightrail.shard.upkeep.cleaner import Housekeeping
from lightrail.telemetry.shard import ShardCounts

if TYPE_CHECKING:
    from lightrail.cluster.coordinator import CoordinatorError
    from lightrail.shard.replication.stream import Stream


class Engine:
    """All queues of one shard."""

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
        map: ClusterMap | None = None,
        marks: DeliveryMarks | None = None,
        kept_locks: KeptLocks | None = None,
    ) -> None:
        self.shard, self.boot = shard, boot
        self.coordinator_answers: Callable[[], bool] = lambda: True
        self._store, self._counts = store, counts
        names = EveryName() if names is None else names
        tenancy = Tenancy(shard, EverythingHere(shard) if map is None else map, names)
        marks = DeliveryMarks() if marks is None else marks
        locks = self._kept_locks = KeptLocks() if kept_locks is None else kept_locks
        queues = self._queues = Queues(
            store, names, tenancy, max_delivery_count, marks, locks, counts.retire, queues_max(memory_mark)
        )
        performer = self._performer = Performer(queues, store, counts)
        self._dispatch_queue = performer.dispatch
        self._held_turns = performer.held_turns
        house = self._house = Housekeeping(queues, store, counts, memory_mark, performer)
        memory = self._memory = house.memory
        answers = self.answers = Answers(memory, store.position)
        admission = self._admission = Admission(store, performer, memory, counts, answers, queues.work)
        links = Links(queues, performer, admission, recovered, answers.when_synced, store, counts, memory)
        self._links, self._last_consumers = links, links.last_consumers
        routes = self._routes = Routes(queues, performer, store, counts, memory, answers)
        requests = self._requests = Requests(queues, performer, links, answers.when_synced)
        self.transactions = Transactions(
            queues, performer, links, store, memory, answers.when_synced, recovered.transactions, now_ms
        )
        requests.add(self.transactions.operations)
        requests.add(LockRequests(queues, performer, links, answers.when_synced).operations)
        requests.add(Retirements(queues, links, answers.when_synced).operations)
        sessions = SessionRequests(queues, performer, links, store, memory, answers.when_synced)
        requests.add(sessions.operations)
        relays = self._relays = Relays(names, tenancy, memory)
        freezing = self.freezing = Freezing(queues, performer, links, counts)
        arrivals = self.arrivals = Arrivals(queues, performer, store, memory, links, counts)
        """Queues that are being copied to this shard."""
        exports = Exports(performer, links, answers.when_synced, f"{boot:08x}")
        requests.add(MoveRequests(queues, links, freezing, exports, answers.when_synced).operations)
        follower = self._follower = Follower(
            queues, performer, store, house, links, relays, freezing, exports, arrivals, answers.when_synced
        )
        frontends = self._frontends = Frontends(shard, boot, links, relays)
        batches = Batches(store, performer, admission, relays, memory, answers, counts)
        takeovers = self._takeovers = Takeovers(links)
        settling = Settling(performer, relays, links.receiving, freezing, answers, counts, takeovers)
        self._receiving = Receiving(
            store.position, frontends, follower, links, relays, batches, routes, settling, requests, answers
        )
        self._messages_committing, self._ticked_ms = 0, now_ms
        self._late: dict[Queue, None] = {}
        """Queues with filters that were dispatched when the looks of their step were used up."""
        follower.restore(recovered.queues, self.transactions.prepared.reserved, now_ms)
        self.transactions.prepared.restored()
        counts.queues, counts.store_usage = queues.figures, self._usage

    def deletion_ended(self, attempt: ExpiredName, error: "CoordinatorError | None", now_ms: int) -> None:
        """An attempt to delete a name that this shard has requested has ended."""
        self._links.retiring.deletion_ended(attempt, error, now_ms)

    # --- the interface to the server -------------------------------------------------------------------

    def answer(self, operations: Mapping[str, Operation]) -> None:
        """Adds requests that other objects answer."""
        self._requests.add(operations)

    def receive(self, identity: bytes, parts: list[Any], now_ms: int) -> list[Any]:
        """Applies one message of a frontend; a step should follow.

        Returns:
            Parts that would take too long now, and must be passed to a later call, in their order.
        """
        return self._receiving.receive(identity, parts, now_ms)

    def heard(self, identity: bytes, now_ms: int) -> None:
        """Notes that a message of a frontend has arrived, which is applied later."""
        if (peer := self._frontends.find(identity)) is not None:
            peer.heard_ms = now_ms

    def step(self, now_ms: int, *, is_silent: bool = False, is_closing: bool = False) -> Actions:
        """Dispatches touched queues and returns the actions, after all received frames have been applied.

        Args:
            is_silent: the disk hangs, so nothing is sent, as if the shard hung.
            is_closing: the shard ends, so deliveries do not wait for delivery marks.
        """
        if self._takeovers.waiting:
            self._receiving.take_over(now_ms)
        if self._last_consumers.left_queues:
            self._last_consumers.retire(now_ms)
        self._dispatch(now_ms)
        receivers = self._links.durable
        if receivers.dirty or receivers.waiting:
            receivers.hold(now_ms)
        if self._kept_locks.changed:
            self._kept_locks.write(now_ms)
        answers = self.answers
        if answers.is_due and not (answers.is_committing or self._store.pending):
            self._answer_without_commit(now_ms)
        waits = is_silent or (self._queues.marks.holds and not is_closing)
        if receivers.waiting and not waits:
            receivers.send()
        output = [] if waits else self._frontends.take_output()
        if self._held_turns.is_needed and not waits:
            output = self._held_turns.release(output)
        reads, self._performer.reads = self._performer.reads, []
        closings, retiring = self._links.closings, self._links.retiring
        return Actions(
            answers.failure,
            output,
            # Answers without a commit may have appended records.
            self._store.pending and answers.failure is None and answers.is_awaited,
            reads,
            retiring.take_expired() if retiring.expired else [],
            closings.take_kept() if closings.kept else [],
            self.freezing.take_wanted() if self.freezing.wanted else [],
            self.deadline_ms,
        )

    def _dispatch(self, now_ms: int) -> None:
        """Delivers, appends settlements, and keeps memory below its mark."""
        performer, store, memory, receivers = self._performer, self._store, self._memory, self._links.durable
        accepting = receivers.accepting
        if memory.waiting:
            performer.touched.update(dict.fromkeys(memory.may_index()))
        unfinished = self._admission.unfinished
        if unfinished:
            performer.touched.update((queue, None) for queue in unfinished if queue.parked)
            unfinished.clear()
        looks = self._queues.looks
        if looks.left != limits.LOOKS_OF_A_TURN:
            looks.begin()
        work = self._queues.work
        work.begin()
        if work.is_bounded or memory.unsettled > memory.unsettled_max:
            attached = len(performer.links) - len(self._links.receiving)
            self._house.bound_consumers(work, attached)
            performer.touched.update(memory.resumed())
        if self._routes.holding.lines and self.answers.failure is None:
            self._routes.resume(now_ms)
        if performer.leaving.departures:
            performer.leaving.settle_more()
        if self._late:
            self._late_first()
        while performer.touched:
            # Dead letters touch further queues, which the next round dispatches.
            touched, performer.touched = performer.touched, {}
            if receivers.by_queue:
                receivers.touched(touched)
            for queue in touched:
                if queue.notes_use:
                    self._links.idle.touched(queue, now_ms)
                view = queue.view
                was_over = looks.left <= 0 or work.deliveries <= 0
                self._dispatch_queue(queue, now_ms)
                while accepting and receivers.accept(queue, now_ms):
                    # As after each outcome, others may be ready now.
                    self._dispatch_queue(queue, now_ms)
                if view.deliveries.seen_to > queue.mark_asked:
                    self._queues.mark(queue, now_ms)
                if was_over and queue.machine.is_unfinished:
                    self._late[queue] = None
                pace = queue.pace
                if pace.held_credit or view.ready.count > limits.PACE_DEPTH_MIN:
                    for producer, count in pace.step(view, now_ms):
                        if producer.is_open:
                            producer.free_credit(count)
                if queue.delivered:
                    performer.journal_delivered(queue, now_ms)
                if queue.removed:
                    performer.journal_removed(queue, now_ms)
                    performer.touched.pop(queue, None)
                if queue.parked or view.policy.guarded:
                    self._keep_bounds(queue, now_ms)
                self._queues.deadlines.note(queue)
                memory.update(queue)
        if memory.ids > memory.ids_max:
            self._house.forget_ids()
        if memory.resident > memory.mark:
            self._house.relieve(now_ms)
        if self._relays.touched:
            self._relays.step(now_ms)
        if store.failure and self.answers.failure is None:
            # A call failed in this step, and its caller may only have counted a refusal.
            self.commit_failed(StoreBrokenError(store.failure))

    def _late_first(self) -> None:
        """Moves queues to the front that had no looks or deliveries left in the last turn."""
        touched = self._performer.touched
        late, self._late = self._late, {}
        self._performer.touched = {**{queue: None for queue in late if queue in touched}, **touched}

    def _keep_bounds(self, queue: Queue, now_ms: int) -> None:
        """Admits batches that waited for room, and spills messages that the policy wants on disk."""
        if queue.parked and self.answers.failure is None:
            # An admitted batch touches the queue again.
            self._admission.resume(queue, now_ms)
        if queue.view.policy.overflow == FLOW_TO_DISK:
            self._memory.update(queue)
            self._house.keep_within(queue, now_ms)

    def commit_begun(self) -> None:
        """Notes that a commit has begun with all records so far; their answers wait for it."""
        self.answers.commit_begun()
        self._messages_committing = self._performer.messages_unsynced
        self._performer.messages_unsynced = self._performer.captured_bytes = 0

    def commit_ended(self, now_ms: int) -> int:
        """Answers what a commit that is on this disk accepts. Returns the number of its messages."""
        self.answers.commit_ended()
        self._house.clean(now_ms)
        return self._messages_committing

    def shared_with(self, stream: "Stream", may_deliver: Callable[[], bool]) -> None:
        """From now on the shard has other members; `may_deliver`: whether the leases allow deliveries now."""
        self.answers.share(stream)
        self._dispatch_queue, self._held_turns.may_deliver = self._performer.dispatch_leased, may_deliver

    def accepted(self) -> None:
        """Other members have acknowledged, or granted leases: answers that waited leave; a step follows."""
        self.answers.accepted()
        self._performer.touch_withheld()

    def _answer_without_commit(self, now_ms: int) -> None:
        """Sends answers that no record delays; with memory far above its mark they wait for longer, so that
        senders run out of credit."""
        if self._house.stuck:
            self.answers.answer_requests()
        else:
            self.commit_begun()
            self.commit_ended(now_ms)

    def last_marks(self) -> dict[int, int]:
        """By queue number, the sequence up to which messages are redelivered after an orderly end."""
        return {queue.id: queue.redelivered_after_start_before for queue in self._queues}

    def keyed_locks(self) -> Iterator[tuple[int, Sequence[KeyedLock]]]:
        """The locks that outlive the process, with the numbers of their queues in the journal; see Locks of
        queues/lock_file.py."""
        for queue in list(self._queues):
            yield queue.id, ()
            for locks in queue.view.keyed_locks():
                yield queue.id, locks

    def commit_failed(self, error: BaseException) -> None:
        """Stops all answers: after a failed write, only a restart finds out what is on disk."""
        self.answers.fail(error)

    def when_synced(self, waiter: Waiter, number: int) -> None:
        """Calls the waiter when all records so far are on disk; in the next step if no record waits."""
        self.answers.when_synced(waiter, number)

    def read_ended(self, read: Read, error: BaseException | None, now_ms: int) -> None:
        """Passes messages that were read back to their queue."""
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
        if queue.is_frozen and self.freezing.read_ended(queue, read):
            return
        self._counts.fetched_bytes += sum(run.size for run in read.runs)
        # Without any run the machine fetches again in a second; damaged messages are skipped and logged.
        fetched = commands.Fetched(read.run.sequence, read.runs, isinstance(error, JournalDamagedError))
        self._performer.apply(queue, fetched, now_ms)
        if queue.unanswered:
            for waiter, number in queue.take_applied():
                self.when_synced(waiter, number)

    def tick(self, now_ms: int) -> None:
        """Expires messages, and closes the links of frontends that were silent for too long."""
        stalled = now_ms - self._ticked_ms > limits.PEER_SILENCE_MS // 2
        self._ticked_ms = now_ms
        self._frontends.forget_silent(now_ms, stalled=stalled)
        for queue in self._queues.deadlines.due(now_ms):
            self._performer.apply(queue, commands.Tick(), now_ms)
        self._links.receiving.tick(now_ms)
        self._links.sending.termini.tick(now_ms)
        self.freezing.tick(now_ms)
        self._follower.tick(now_ms)
        # Also without a change: the file may be missing since a failure.
        self._kept_locks.write(now_ms)
        self._links.retiring.may_leave = self._follower.can_read and self.coordinator_answers()
        self._links.retiring.tick(now_ms)
        self._last_consumers.tick(now_ms)
        self._links.idle.tick(now_ms)
        self._links.closings.tick(now_ms)
        self._relays.tick(now_ms)
        self.transactions.decisions.forget_aborted(now_ms)
        if self._performer.dead_letters.unwritten:
            self._performer.dead_letters.write_again(now_ms)
        self._house.clean(now_ms)
        self._counts.memory_bytes = self._memory.resident
        self._counts.frontends_connected = self._frontends.count
        self._counts.transactions_prepared, oldest_ms = self.transactions.prepared.waiting(now_ms)
        self._counts.transaction_prepared_seconds = oldest_ms / 1000

    @property
    def deadline_ms(self) -> int | None:
        """Time of the next Tick of a queue, or of the end of a batch's wait; None for never."""
        if self._performer.leaving.departures or self._admission.unfinished or self._takeovers.due:
            return 0
        if self._memory.paused and self._memory.may_resume:
            return 0
        due_ms = self._queues.deadlines.next_ms
        over_ms = self._routes.holding.next_ms
        return due_ms if over_ms is None else over_ms if due_ms is None else min(due_ms, over_ms)

    def refresh(self, now_ms: int) -> None:
        """Follows changes of the directory; a step should follow."""
        self._follower.refresh(now_ms)

    def open_arrival(self, arrival: Arrival, now_ms: int) -> None:
        """Serves a moved queue after the transaction that made this shard its owner; a step should follow."""
        self._follower.committed(arrival, now_ms)

    def lost(self, identity: bytes) -> None:
        """ZeroMQ has no route to this frontend; it will time out or send a new greeting."""
        if (peer := self._frontends.find(identity)) is not None:
            self._frontends.forget(peer, self._ticked_ms)

    def not_ready(self) -> str | None:
        """Why this shard does not serve, or None."""
        failure = self.answers.failure
        return None if failure is None else f"the store failed: {failure}"

    def _usage(self) -> Mapping[str, int]:
        usage = self._store.usage()
        return {"total": usage.total_bytes, "live": usage.live_bytes}
