"""Transactions: sends and settlements that take effect together, or not at all (transactions 4).

A frontend gathers the work of a transaction and sends all of it with the request `transact`. The work is
checked, written as one group of records, and applied (`applying.py`); recovery finds the group whole or not
at all. The answer waits for the commit to disk.

Transactions of one coordinator are numbered, like the batches of a producer. The group has the number, so a
request that is repeated because its answer was lost is answered and not applied again.

The work at several shards has one decision, at the last shard (ADR 38):

    others:  prepare  -> checked, deliveries reserved for the transaction, on disk; then
             conclude -> applied, or its deliveries released, according to the decision
    the last one: transact -> its group is the decision, with the shards that wait for it
             outcome  -> sent by a shard that has not received the decision; if there is none, the
                         transaction is aborted from then on

The decision is kept until the others answer that they have concluded it (`concluded`).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from heapq import nsmallest
from itertools import count

from lightrail.journal.record import Numbers, Transaction, TransactionState
from lightrail.model import conditions, limits
from lightrail.shard.ingress.selection import share
from lightrail.shard.journal.store import Store, StoreBusyError, StoreError
from lightrail.shard.links import Links
from lightrail.shard.memory import Memory
from lightrail.shard.peers import Peer
from lightrail.shard.performer import Performer
from lightrail.shard.queue import commands
from lightrail.shard.queue.aside import NOBODY_WITH_STATES
from lightrail.shard.queue.commands import FAILED
from lightrail.shard.queue.reserved import runs_of
from lightrail.shard.queues import Queues
from lightrail.shard.requests import Fields, Operation, Reply, RequestError, answer, error_of, whole
from lightrail.shard.shard_queue import Queue
from lightrail.shard.transactions.applying import Applying, Part, Shares
from lightrail.shard.transactions.checks import Checks, Settled, check_apart
from lightrail.shard.transactions.loading import Loaded, Loading
from lightrail.shard.transactions.prepared import Prepared, ReservedDeliveries, recovered
from lightrail.shard.transactions.records import Record
from lightrail.shard.transactions.work import Work, id_of, work_of
from lightrail.shard.waiting import Waiter, WhenSynced


class Transactions:
    """Applies the transactions of all frontends.

    Args:
        when_synced: registers a waiter that is called when all records so far are on disk.
        found: transactions over several shards that recovery found.
    """

    __slots__ = (
        "_aborted",
        "_applying",
        "_checks",
        "_concluding",
        "_decided",
        "_holders",
        "_links",
        "_loading",
        "_performer",
        "_prepared",
        "_queues",
        "_when_synced",
    )

    def __init__(
        self,
        queues: Queues,
        performer: Performer,
        links: Links,
        store: Store,
        memory: Memory,
        when_synced: Callable[[Waiter, int], None],
        found: Iterable[Transaction],
        now_ms: int,
    ) -> None:
        self._queues = queues
        self._performer = performer
        self._links = links
        self._applying = Applying(queues, performer, store)
        self._loading = Loading(performer)
        self._checks = Checks(queues, memory)
        self._when_synced = when_synced
        self._holders = count(NOBODY_WITH_STATES - 1, -1)
        self._prepared: dict[bytes, Prepared] = {}
        self._decided: dict[bytes, list[int]] = {}
        """Transactions committed at this shard, with the shards that have not concluded them."""
        self._aborted: dict[bytes, int] = {}
        """Transactions that were undecided when another shard asked, and the time."""
        self._concluding: dict[bytes, list[tuple[Peer, int]]] = {}
        """Decided transactions whose messages are being read from disk, and requests that wait for them."""
        for record in found:
            if record.state == TransactionState.PREPARED:
                self._prepared[record.id] = recovered(record, self._holders, now_ms)
            elif record.state == TransactionState.COMMITTED:
                self._decided[record.id] = list(json.loads(record.detail)["others"])
            else:
                self._aborted[record.id] = now_ms

    @property
    def operations(self) -> Mapping[str, Operation]:
        """The requests that this class answers."""
        return {
            "transact": self.transact,
            "prepare": self._prepare,
            "conclude": self._conclude,
            "outcome": self._outcome,
            "concluded": self._is_concluded,
            "transactions": self._prepared_ones,
        }

    def reserved(self, queue: str) -> dict[int, list[tuple[int, int]]]:
        """Messages of a queue in prepared transactions, in the form for `commands.Restore`."""
        return {
            each.holder: each.ranges
            for prepared in self._prepared.values()
            for each in prepared.reserved
            if each.queue == queue
        }

    def overdue(self, now_ms: int) -> list[tuple[bytes, int]]:
        """(id, deciding shard) of prepared transactions whose decision is overdue."""
        until_ms = now_ms - limits.TRANSACTION_RESOLVE_MS
        return [(each.id, each.shard) for each in self._prepared.values() if each.since_ms <= until_ms]

    def waiting(self, now_ms: int) -> tuple[int, int]:
        """Number of prepared transactions, and the age of the oldest in ms."""
        oldest_ms = min((each.since_ms for each in self._prepared.values()), default=now_ms)
        return len(self._prepared), max(0, now_ms - oldest_ms)

    @property
    def awaited(self) -> dict[int, list[bytes]]:
        """By shard, the transactions that this shard decided and that the other may not have concluded."""
        found: dict[int, list[bytes]] = {}
        for id, others in self._decided.items():
            for shard in others:
                found.setdefault(shard, []).append(id)
        return found

    # --- one shard, or the one that decides --------------------------------------------------------------

    def transact(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """Applies a transaction; answered when it is on disk. Raises RequestError: nothing has changed."""
        self._transact(peer, number, fields, None, now_ms)

    def _transact(self, peer: Peer, number: int, fields: Fields, loaded: Loaded | None, now_ms: int) -> None:
        work = work_of(fields, now_ms)
        reply = Reply(peer, number, {"committed": True})
        if self._links.known_number(work.producer) >= work.number:
            self._when_synced(reply, 0)
            return
        if work.id in self._aborted:
            raise RequestError(
                conditions.TRANSACTION_ROLLBACK, "another shard requested the decision before it was made"
            )
        posts = [(self._checks.targets(post, now_ms), post.batch) for post in work.posts]
        settled = self._settled(peer, work, now_ms)
        self._checks.check_room(posts)
        parts = [_part(each) for each in settled]
        self._applying.check(parts)
        if loaded is None and (unread := self._applying.unread(parts)):
            retry = partial(self._transact_again, peer, number, fields, now_ms)
            self._loading.begin(unread, retry)
            return
        shares = [(batch, [share(queue, batch, now_ms) for queue in queues]) for queues, batch in posts]
        ending = partial(_ending, work, settled)
        self._applying.apply(parts, shares, ending, loaded, now_ms, always=bool(work.others))
        self._links.note_number(work.producer, work.number)
        if work.others:
            self._decided[work.id] = work.others
        self._when_synced(reply, 0)

    def _transact_again(self, peer: Peer, number: int, fields: Fields, now_ms: int, loaded: Loaded) -> None:
        """Continues after the messages whose bytes the outcomes need were read."""
        try:
            self._transact(peer, number, fields, loaded, now_ms)
        except StoreBusyError:
            again = partial(self._transact_again, peer, number, fields, now_ms, loaded)
            self._when_synced(WhenSynced(again), 0)
        except RequestError as error:
            answer(peer, number, error_of(error))

    def _settled(self, peer: Peer, work: Work, now_ms: int) -> list[Settled]:
        """The deliveries that a transaction settles. Raises RequestError if some are not locked."""
        for queue in {self._queues.find(each.queue) for each in work.retirements if each.key}:
            if queue is not None and queue.is_serving:
                # Ends locks of deferred messages whose time is over.
                self._performer.perform(queue, queue.machine.apply(commands.Tick(), now_ms), now_ms)
                self._performer.touched[queue] = None
        return [self._checks.settled(peer, each, now_ms) for each in work.retirements]

    # --- several shards ----------------------------------------------------------------------------------

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
        if len(self._prepared) >= limits.TRANSACTIONS_PREPARED_MAX:
            raise RequestError(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"{limits.TRANSACTIONS_PREPARED_MAX} transactions wait for their decision here already",
            )
        work = work_of({"producer": 1, "number": 1, **fields}, now_ms)
        posts = [(self._checks.targets(post, now_ms), post.batch) for post in work.posts]
        settled = self._settled(peer, work, now_ms)
        check_apart(settled)
        self._checks.check_room(posts)
        self._applying.check([_part(each) for each in settled])
        reserved = [
            ReservedDeliveries(
                each.queue.name,
                next(self._holders),
                [(run.sequence, run.end) for run in each.runs],
                each.retirement.outcome,
            )
            for each in settled
        ]
        prepared = Prepared(id, shard, work.posts, reserved, now_ms)
        self._applying.records.write([prepared.record(fields)], now_ms)
        for each, deliveries in zip(settled, reserved, strict=True):
            first, last = each.retirement.first, each.retirement.last
            command = commands.Reserve(deliveries.holder, each.consumer.id, first, last)
            self._performer.perform(each.queue, each.queue.machine.apply(command, now_ms), now_ms)
            self._performer.touched[each.queue] = None
        self._prepared[id] = prepared
        self._promise(prepared, 1)
        self._when_synced(reply, 0)

    def restored(self) -> None:
        """Called when the recovered queues are restored."""
        for prepared in self._prepared.values():
            self._promise(prepared, 1)

    def _promise(self, prepared: Prepared, change: int) -> None:
        """Counts the transaction at its queues, which are not frozen while the count is above 0."""
        for name in prepared.queues:
            queue = self._queues.find(name)
            if queue is not None:
                queue.promised = max(0, queue.promised + change)

    def _conclude(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> Fields | None:
        """Applies the decision of a prepared transaction, and then answers. Raises RequestError."""
        id = id_of(fields)
        if self.conclude(id, commits=fields.get("commit") is True, now_ms=now_ms):
            return {"concluded": True}
        self._concluding[id].append((peer, number))
        return None

    def conclude(self, id: bytes, *, commits: bool, now_ms: int) -> bool:
        """Applies the work of a prepared transaction, or releases its deliveries as failed.

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
        unread = self._applying.unread(self._parts(prepared, commits=commits))
        if unread:
            self._concluding[id] = []
            self._loading.begin(unread, partial(self._conclude_loaded, prepared, commits, now_ms))
            return False
        self._apply_prepared(prepared, None, commits=commits, now_ms=now_ms)
        return True

    def _conclude_loaded(self, prepared: Prepared, commits: bool, now_ms: int, loaded: Loaded) -> None:
        """Continues after the messages whose bytes the outcomes need were read."""
        waiting = self._concluding.pop(prepared.id)
        found: Fields = {"concluded": True}
        try:
            self._apply_prepared(prepared, loaded, commits=commits, now_ms=now_ms)
        except StoreBusyError as error:
            # The deciding shard is asked again later.
            found = error_of(RequestError(conditions.RESOURCE_LIMIT_EXCEEDED, str(error)))
        except RequestError as error:
            found = error_of(error)
        for peer, number in waiting:
            answer(peer, number, found)

    def _apply_prepared(
        self, prepared: Prepared, loaded: Loaded | None, *, commits: bool, now_ms: int
    ) -> None:
        shares = self._shares(prepared, now_ms) if commits else []
        ended = Transaction(prepared.id, TransactionState.ENDED)
        parts = self._parts(prepared, commits=commits)
        self._applying.apply(parts, shares, lambda _: [ended], loaded, now_ms, always=True)
        del self._prepared[prepared.id]
        self._promise(prepared, -1)

    def _parts(self, prepared: Prepared, *, commits: bool) -> list[Part]:
        """The reserved deliveries, with their outcomes."""
        parts: list[Part] = []
        for each in prepared.reserved:
            queue = self._queues.find(each.queue)
            if queue is not None:
                command = commands.Conclude(each.holder, each.outcome if commits else FAILED)
                runs = runs_of(queue.machine.contents.consumers, each.holder)
                parts.append(Part(queue, runs, command))
        return parts

    def _shares(self, prepared: Prepared, now_ms: int) -> Shares:
        """All messages of a prepared transaction by queue; the current bounds of queues are ignored."""
        shares: Shares = []
        for post in prepared.posts:
            batch = post.batch
            batch.enqueued_at_ms = now_ms
            queues = [queue for name in post.queues if (queue := self._queues.find(name)) is not None]
            shares.append((batch, [share(queue, batch, now_ms, bounded=False) for queue in queues]))
        return shares

    def _outcome(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """Answers whether this shard has committed a transaction; if not, it is aborted from now on."""
        id = id_of(fields)
        committed = id in self._decided
        if not committed and id not in self._aborted:
            self._applying.records.write([Transaction(id, TransactionState.ABORTED)], now_ms)
            self._aborted[id] = now_ms
        self._when_synced(Reply(peer, number, {"committed": committed}), 0)

    def _is_concluded(self, peer: Peer, number: int, fields: Fields, _now_ms: int) -> None:
        """Answers which transactions prepared at this shard are concluded, when that is on disk."""
        ids = fields.get("ids")
        if not isinstance(ids, list) or len(ids) > limits.TRANSACTIONS_PREPARED_MAX:
            raise RequestError(conditions.INVALID_FIELD, "expected ids, a list of transactions")
        found = [id.hex() for each in ids if (id := id_of({"id": each})) not in self._prepared]
        self._when_synced(Reply(peer, number, {"concluded": found}), 0)

    def _prepared_ones(self, _peer: Peer, _number: int, _fields: Fields, now_ms: int) -> Fields:
        """Answers with transactions that wait for the decision of another shard, for operators."""
        shown = nsmallest(
            limits.TRANSACTIONS_SHOWN_MAX, self._prepared.values(), key=lambda each: each.since_ms
        )
        return {"count": len(self._prepared), "transactions": [each.shown(now_ms) for each in shown]}

    def forget(self, shard: int, ids: Iterable[bytes], now_ms: int) -> None:
        """Notes that a shard has concluded decided transactions. Raises RequestError, StoreError."""
        done = []
        for id in ids:
            others = self._decided.get(id)
            if others is not None and shard in others:
                others.remove(shard)
                if not others:
                    done.append(id)
        if done:
            self._applying.records.write([Transaction(id, TransactionState.ENDED) for id in done], now_ms)
            for id in done:
                del self._decided[id]

    def forget_aborted(self, now_ms: int) -> None:
        """Removes aborted transactions for which no request to commit can arrive any longer."""
        until_ms = now_ms - limits.TRANSACTION_ABORTED_MS
        old = [id for id, since_ms in self._aborted.items() if since_ms <= until_ms]
        if old:
            try:
                self._applying.records.write([Transaction(id, TransactionState.ENDED) for id in old], now_ms)
            except (RequestError, StoreError):
                return
            for id in old:
                del self._aborted[id]


def _part(settled: Settled) -> Part:
    queue, consumer, retirement, runs = settled
    kind = commands.SettleDetached if retirement.key else commands.Settle
    command = kind(consumer.id, retirement.first, retirement.last, retirement.outcome)
    return Part(queue, runs, command)


def _ending(work: Work, settled: list[Settled], next_sequences: dict[Queue, int]) -> list[Record]:
    """The decision of a transaction over several shards, and the number of the transaction."""
    records: list[Record] = []
    if work.others:
        records.append(
            Transaction(work.id, TransactionState.COMMITTED, 0, json.dumps({"others": work.others}))
        )
    queue = next(iter(next_sequences), None) or (settled[0].queue if settled else None)
    if queue is not None:
        next_sequence = next_sequences.get(queue, queue.machine.contents.next_sequence)
        records.append(Numbers(queue.id, next_sequence, [(work.producer, work.number, 0)]))
    return records
