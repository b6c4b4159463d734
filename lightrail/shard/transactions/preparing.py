"""Preparing: work of transactions over several shards that another shard decides.

A prepared transaction counts against the memory mark, and its messages against the bounds of their queues.
Users share the room: one may have as much as is free besides, so that a user whose decisions do not arrive
leaves room for others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from functools import partial
from heapq import nsmallest
from itertools import count
from typing import Final

from lightrail.journal.record import TransactionState, TransactionStep
from lightrail.model import conditions, limits
from lightrail.shard.effects.answers import Fields, Operation, Reply, RequestError, answer, error_of, whole
from lightrail.shard.effects.peers import Peer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.journal.store import StoreBusyError
from lightrail.shard.links.ingress.selection import share
from lightrail.shard.queue.timed.ended_links import NOBODY_WITH_ENDED_LINKS
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.commands import FAILED
from lightrail.shard.queue.values.schedules import Release, Withhold
from lightrail.shard.queues.memory import Memory, UserShares
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import CallWhenSynced, Queue
from lightrail.shard.transactions.applying import Applying, SettledPart, Shares, cancelling
from lightrail.shard.transactions.checks import Checks, Targets, check_apart, shares_of, takes_numbers
from lightrail.shard.transactions.prepared import Prepared, ReservedDeliveries, recovered
from lightrail.shard.transactions.work import Loaded, Loading, id_of, work_of

TRANSACTIONS_PREPARED_MAX: Final[int] = 10_000
"""Transactions over several shards that wait for their decision at one shard. One user may have as many as
are free besides: the first one a half, each of two a third."""
TRANSACTIONS_SHOWN_MAX: Final[int] = 1_000
"""Prepared transactions that a shard reports, the oldest first; the others are counted."""
TRANSACTION_RESOLVE_MS: Final[int] = 5_000
"""Time after which a shard with a prepared transaction asks the deciding shard for the decision."""


@dataclass(slots=True, eq=False, repr=False)
class Preparing:
    """The prepared transactions of one shard.

    Args:
        when_synced: registers a waiter that is called when all records so far are on disk.
        found: the newest records of transactions that recovery found.
    """

    _queues: Queues
    _performer: Performer
    _applying: Applying
    _checks: Checks
    _loading: Loading
    _memory: Memory
    _when_synced: CallWhenSynced
    found: InitVar[Iterable[TransactionStep]]
    now_ms: InitVar[int]
    _holders: "count[int]" = field(default_factory=lambda: count(NOBODY_WITH_ENDED_LINKS - 1, -1))
    _prepared: dict[bytes, Prepared] = field(default_factory=dict)
    _bytes: UserShares = field(default_factory=UserShares)
    _count: UserShares = field(default_factory=UserShares)
    _concluding: dict[bytes, list[tuple[Peer, int]]] = field(default_factory=dict)
    """Decided transactions whose messages are being read from disk, and requests that wait for them."""
    _recovered: dict[str, list[Prepared]] = field(default_factory=dict)
    """Recovered transactions by queue, until the queues are restored."""

    def __post_init__(self, found: Iterable[TransactionStep], now_ms: int) -> None:
        for record in found:
            if record.state == TransactionState.PREPARED:
                prepared = recovered(record, self._holders, now_ms)
                self._add(prepared)
                for name in prepared.queues:
                    self._recovered.setdefault(name, []).append(prepared)

    @property
    def operations(self) -> Mapping[str, Operation]:
        """The requests that this class answers."""
        return {
            "prepare": self._prepare,
            "conclude": self._conclude,
            "concluded": self._is_concluded,
            "transactions": self._prepared_ones,
        }

    def reserved(self, queue: str, id: int) -> commands.Restore:
        """Messages of a queue in recovered transactions, in the fields of `commands.Restore`.

        Args:
            id: its number in the journal: one that was made anew under the name has another.
        """
        found = [each for each in self._recovered.get(queue, ()) if each.ids.get(queue, id) == id]
        reserved = {
            mine.holder: mine.ranges for each in found for mine in each.reserved if mine.queue == queue
        }
        withheld = [sequence for each in found for sequence in each.cancelled.get(queue, ())]
        return commands.Restore((), 0, reserved=reserved, withheld=withheld)

    def restored(self) -> None:
        """Called when the recovered queues are restored."""
        self._recovered = {}
        for prepared in self._prepared.values():
            self._promise(prepared, 1)

    def overdue(self, now_ms: int) -> list[tuple[bytes, int]]:
        """(id, deciding shard) of prepared transactions whose decision is overdue."""
        until_ms = now_ms - TRANSACTION_RESOLVE_MS
        return [(each.id, each.shard) for each in self._prepared.values() if each.since_ms <= until_ms]

    def waiting(self, now_ms: int) -> tuple[int, int]:
        """Number of prepared transactions, and the age of the oldest in ms."""
        oldest_ms = min((each.since_ms for each in self._prepared.values()), default=now_ms)
        return len(self._prepared), max(0, now_ms - oldest_ms)

    # --- prepared ----------------------------------------------------------------------------------------

    def _prepare(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """Prepares the work of a transaction, to be applied when another shard decides so.

        Answered when it is on disk. Raises RequestError: nothing has changed.
        """
        id = id_of(fields)
        shard = whole(fields, "decides", 0, (1 << 31) - 1, None)
        reply = Reply(peer, number, {"prepared": True})
        if id in self._prepared:
            self._when_synced(reply, 0)
            return
        work = work_of({"producer": 1, "number": 1, **fields}, now_ms)
        posts = self._checks.posts(work.posts, now_ms)
        cancelled: dict[str, list[int]] = {}
        settled = self._checks.all_settled(peer, work.retirements, now_ms)
        ids = {each.queue.name: each.queue.id for each in settled}
        for queue, sequence in self._checks.cancelled(work.cancellations):
            cancelled.setdefault(queue.name, []).append(sequence)
            ids[queue.name] = queue.id
        check_apart(settled)
        self._checks.shares(posts, now_ms)
        self._applying.check([each.part for each in settled])
        reserved = [
            ReservedDeliveries(
                each.queue.name,
                next(self._holders),
                [(run.sequence, run.end) for run in each.runs],
                each.retirement.outcome,
            )
            for each in settled
        ]
        user = str(fields.get("user", ""))
        prepared = Prepared(id, shard, user, work.posts, reserved, now_ms, cancelled=cancelled, ids=ids)
        self._check_room(prepared)
        self._applying.records.write([prepared.record(fields)], now_ms)
        for each, deliveries in zip(settled, reserved, strict=True):
            first, last = each.retirement.first, each.retirement.last
            command = commands.Reserve(deliveries.holder, each.consumer.id, first, last, each.retirement.key)
            self._performer.apply(each.queue, command, now_ms)
        self._apply_cancelled(prepared, Withhold, now_ms)
        self._add(prepared)
        self._promise(prepared, 1)
        self._when_synced(reply, 0)

    def _check_room(self, prepared: Prepared) -> None:
        """Checks the user's share of the room for prepared transactions. Raises RequestError."""
        if not (
            self._count.has_room(prepared.user, TRANSACTIONS_PREPARED_MAX, 1)
            and self._bytes.has_room(prepared.user, self._memory.prepared_max, prepared.size)
        ):
            # Who has sent too much in one transaction is refused for good, the others for now.
            is_alone = not self._count.total
            raise RequestError(
                conditions.RESOURCE_LIMIT_EXCEEDED if is_alone else conditions.RESOURCE_LOCKED,
                f"expected at most {TRANSACTIONS_PREPARED_MAX} transactions of "
                f"{self._memory.prepared_max} bytes (memory_mark divided by "
                f"{limits.TRANSACTIONS_PREPARED_SHARE}) that wait here for the decision of other shards, and "
                f"no more of one user than are free besides; found {self._count.total} of "
                f"{self._bytes.total} bytes, and this one has {prepared.size}: send less in one "
                "transaction, or wait until decisions arrive",
            )

    def _add(self, prepared: Prepared) -> None:
        self._prepared[prepared.id] = prepared
        self._count.add(prepared.user, 1)
        self._bytes.add(prepared.user, prepared.size)
        self._memory.prepare(prepared.size)

    def _remove(self, prepared: Prepared) -> None:
        del self._prepared[prepared.id]
        self._memory.prepare(-prepared.size)
        self._count.add(prepared.user, -1)
        self._bytes.add(prepared.user, -prepared.size)

    def _promise(self, prepared: Prepared, sign: int) -> None:
        """Counts the transaction at its queues, which keep room for its messages and are not frozen.

        Args:
            sign: 1, or -1 to count it no longer.
        """
        if sign > 0:
            found = ((name, self._queues.find(name)) for name in prepared.queues)
            prepared.counted_at = {name: queue for name, queue in found if queue is not None}
        for each in prepared.counted_at.values():
            each.promised += sign
        for post in prepared.posts:
            for name in post.queues:
                if (queue := prepared.counted_at.get(name)) is not None:
                    queue.promised_messages += sign * post.batch.count
                    queue.promised_bytes += sign * post.batch.size
                    if self._queues.find(name) is queue:
                        # Batches may wait for the room.
                        self._performer.touch(queue)

    # --- concluded ---------------------------------------------------------------------------------------

    def _conclude(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> Fields | None:
        """Applies the decision of a prepared transaction, and then answers. Raises RequestError."""
        id = id_of(fields)
        if self.conclude(id, commits=fields.get("commit") is True, now_ms=now_ms, returns=True):
            return {"concluded": True}
        self._concluding[id].append((peer, number))
        return None

    def conclude(self, id: bytes, *, commits: bool, now_ms: int, returns: bool = False) -> bool:
        """Applies the work of a prepared transaction, or ends it without an effect.

        Args:
            returns: whether deliveries of an aborted transaction return to the consumers that have settled
                them, as their frontend may prepare them again. If not, or if a consumer has detached, they
                are released as failed. Those that are locked under a key return in any case.

        Returns:
            Whether it is concluded; if not, it will be when its messages have been read from disk.

        Raises:
            RequestError, StoreBusyError: it stays prepared; try again.
        """
        prepared = self._prepared.get(id)
        if prepared is None:
            return True
        if id in self._concluding:
            return False
        unread = self._applying.unread(self._parts(prepared, commits=commits, returns=returns))
        if unread:
            self._concluding[id] = []
            then = partial(self._conclude_loaded, prepared, now_ms, commits=commits, returns=returns)
            self._loading.begin(unread, then)
            return False
        self._apply(prepared, None, now_ms, commits=commits, returns=returns)
        return True

    def _conclude_loaded(
        self, prepared: Prepared, now_ms: int, loaded: Loaded, *, commits: bool, returns: bool
    ) -> None:
        """Continues after the messages whose bytes the outcomes need were read."""
        waiting = self._concluding.pop(prepared.id)
        found: Fields = {"concluded": True}
        try:
            self._apply(prepared, loaded, now_ms, commits=commits, returns=returns)
        except StoreBusyError as error:
            # The deciding shard is asked again later.
            found = error_of(RequestError(conditions.RESOURCE_LIMIT_EXCEEDED, str(error)))
        except RequestError as error:
            found = error_of(error)
        for peer, number in waiting:
            answer(peer, number, found)

    def _apply(
        self, prepared: Prepared, loaded: Loaded | None, now_ms: int, *, commits: bool, returns: bool
    ) -> None:
        ended = TransactionStep(prepared.id, TransactionState.ENDED)
        parts = self._parts(prepared, commits=commits, returns=returns)
        self._promise(prepared, -1)
        try:
            shares = self._shares(prepared, now_ms) if commits else []
            self._applying.apply(
                parts, shares, lambda _: [ended], loaded, now_ms, always=True, repeated=prepared.is_recovered
            )
        except (RequestError, StoreBusyError):
            self._promise(prepared, 1)
            raise
        self._remove(prepared)
        self._apply_cancelled(prepared, Release, now_ms)
        if not commits:
            # After the last record, so that recovery never finds deliveries reserved twice.
            self._return(prepared, now_ms)

    def _apply_cancelled(
        self, prepared: Prepared, command: type[Withhold] | type[Release], now_ms: int
    ) -> None:
        """Keeps the messages delayed that the transaction cancels, or no longer."""
        for name, sequences in prepared.cancelled.items():
            if (queue := self._queues.find(name)) is not None:
                self._performer.apply(queue, command(sequences), now_ms)

    def _return(self, prepared: Prepared, now_ms: int) -> None:
        """Gives reserved deliveries without an outcome back to their consumers."""
        for each in prepared.reserved:
            queue = self._queues.find(each.queue)
            if queue is not None:
                command = commands.Return(each.holder)
                self._performer.apply(queue, command, now_ms)

    def _parts(self, prepared: Prepared, *, commits: bool, returns: bool) -> list[SettledPart]:
        """The reserved deliveries that get an outcome."""
        parts: list[SettledPart] = []
        for each in prepared.reserved:
            queue = self._queues.find(each.queue)
            if queue is None:
                continue
            view = queue.view
            stays = view.may_return(each.holder) if returns else view.outlives_link(each.holder)
            if stays and not commits:
                continue
            command = commands.Conclude(each.holder, each.outcome if commits else FAILED)
            runs = queue.view.reserved_runs(each.holder)
            parts.append(SettledPart(queue, runs, command))
        for name, sequences in prepared.cancelled.items() if commits else ():
            if (queue := self._queues.find(name)) is not None:
                # One that was purged meanwhile is in the queue no longer, and of a queue that was deleted
                # and made anew another message may have the number.
                parts += [cancelling((queue, each)) for each in sequences if queue.view.is_withheld(each)]
        return parts

    def _shares(self, prepared: Prepared, now_ms: int) -> Shares:
        """All messages of a prepared transaction by queue.

        They get new numbers where those that were taken for them are of no use any more: the queue was
        deleted and made anew, or has no delays.
        """
        posts: Targets = []
        taken: dict[Queue, list[tuple[int, int]]] = {}
        for post in prepared.posts:
            post.batch.enqueued_at_ms = now_ms
            queues = [queue for name in post.queues if (queue := self._queues.find(name)) is not None]
            posts.append((queues, post.batch, post.sequence))
            if queues and post.sequence is not None:
                taken.setdefault(queues[0], []).append((post.sequence, post.sequence + post.batch.count))
        anew = {queue for queue, ranges in taken.items() if not takes_numbers(queue, sorted(ranges))}
        posts = [
            (queues, batch, None if anew.intersection(queues) else first) for queues, batch, first in posts
        ]
        return shares_of(posts, partial(share, promised=True), now_ms)

    # --- asked about -------------------------------------------------------------------------------------

    def _is_concluded(self, peer: Peer, number: int, fields: Fields, _now_ms: int) -> None:
        """Answers which transactions prepared at this shard are concluded, when that is on disk."""
        ids = fields.get("ids")
        if not isinstance(ids, list) or len(ids) > TRANSACTIONS_PREPARED_MAX:
            raise RequestError(conditions.INVALID_FIELD, "expected ids, a list of transactions")
        found = [id.hex() for each in ids if (id := id_of({"id": each})) not in self._prepared]
        self._when_synced(Reply(peer, number, {"concluded": found}), 0)

    def _prepared_ones(self, _peer: Peer, _number: int, _fields: Fields, now_ms: int) -> Fields:
        """Answers with transactions that wait for the decision of another shard, for operators."""
        shown = nsmallest(TRANSACTIONS_SHOWN_MAX, self._prepared.values(), key=lambda each: each.since_ms)
        return {"count": len(self._prepared), "transactions": [each.shown(now_ms) for each in shown]}
