"""Transactions: sends and settlements that take effect together, or not at all (transactions 4).

A frontend gathers the work of a transaction and sends all of it with the request `transact`. It is checked,
written as one group of records, and applied; recovery finds the group whole or not at all. The answer waits
for the commit to disk, with everything else that gathered for it.

Transactions of one coordinator are numbered, as the batches of a producer are. The group has the number, so a
request that is sent again, since its answer was lost, is answered and not applied again.

The work at several shards has one decision, at the last of them (ADR 38):

    others:  prepare  -> checked, taken out of consumers' hands, on disk; then
             conclude -> applied, or given back, as the decision is
    the last one: transact -> its group is the decision, with the shards that wait for it
             outcome  -> asked by one that was not told; where it is not decided, it is aborted from then on

The decision is kept until the others answer that they have concluded it (`concluded`).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import count

from lightrail.journal.record import Numbers, Transaction, TransactionState
from lightrail.model import conditions, limits
from lightrail.shard.ingress.routed_records import ids_until_ms
from lightrail.shard.ingress.selection import Share, share
from lightrail.shard.journal.store import Store, StoreError
from lightrail.shard.links import Links
from lightrail.shard.memory import Memory
from lightrail.shard.peers import Peer
from lightrail.shard.performer import Performer
from lightrail.shard.queue import commands
from lightrail.shard.queue.commands import FAILED, Command, OutcomeKind
from lightrail.shard.queue.effects import Reason
from lightrail.shard.queue.runs import Batch
from lightrail.shard.queues import Queues
from lightrail.shard.requests import Fields, Operation, Reply, RequestError, whole
from lightrail.shard.shard_queue import Queue
from lightrail.shard.transactions.checks import Checks, Settled, check_apart
from lightrail.shard.transactions.prepared import Held, Prepared, recovered
from lightrail.shard.transactions.records import Record, Records, records_of_accepted, records_of_posts
from lightrail.shard.transactions.work import Work, id_of, work_of
from lightrail.shard.waiting import Waiter

Shares = list[tuple[Batch, list[Share]]]
"""What each queue stores of each batch."""


class Transactions:
    """Applies the transactions of all frontends.

    Args:
        when_synced: takes a waiter that is called when all records so far are on disk.
        found: transactions over several shards that recovery found.
    """

    __slots__ = (
        "_aborted",
        "_checks",
        "_decided",
        "_holders",
        "_links",
        "_performer",
        "_prepared",
        "_queues",
        "_records",
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
        self._records = Records(store, performer)
        self._checks = Checks(queues, memory)
        self._when_synced = when_synced
        self._holders = count(-1, -1)
        self._prepared: dict[bytes, Prepared] = {}
        self._decided: dict[bytes, list[int]] = {}
        """Committed here: the shards that have not concluded it."""
        self._aborted: dict[bytes, int] = {}
        """Not decided when another shard asked, and since when."""
        for record in found:
            if record.state == TransactionState.PREPARED:
                self._prepared[record.id] = recovered(record, self._holders, now_ms)
            elif record.state == TransactionState.COMMITTED:
                self._decided[record.id] = list(json.loads(record.detail)["others"])
            else:
                self._aborted[record.id] = now_ms

    @property
    def operations(self) -> Mapping[str, Operation]:
        """The requests that are answered here."""
        return {
            "transact": self.transact,
            "prepare": self._prepare,
            "conclude": self._conclude,
            "outcome": self._outcome,
            "concluded": self._is_concluded,
        }

    def reserved(self, queue: str) -> dict[int, list[tuple[int, int]]]:
        """Messages of a queue that prepared transactions have, as `commands.Restore` wants them."""
        return {
            each.holder: each.ranges
            for prepared in self._prepared.values()
            for each in prepared.retired
            if each.queue == queue
        }

    def overdue(self, now_ms: int) -> list[tuple[bytes, int]]:
        """(id, deciding shard) of prepared transactions whose decision should have come by now."""
        until_ms = now_ms - limits.TRANSACTION_RESOLVE_MS
        return [(each.id, each.shard) for each in self._prepared.values() if each.since_ms <= until_ms]

    @property
    def awaited(self) -> dict[int, list[bytes]]:
        """By shard: transactions that this one decided and that the other has perhaps not concluded."""
        found: dict[int, list[bytes]] = {}
        for id, others in self._decided.items():
            for shard in others:
                found.setdefault(shard, []).append(id)
        return found

    # --- one shard, or the one that decides --------------------------------------------------------------

    def transact(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """Applies a transaction; answered when it is on disk. Raises RequestError: nothing has changed."""
        work = work_of(fields, now_ms)
        reply = Reply(peer, number, {"committed": True})
        if self._links.known_number(work.producer) >= work.number:
            self._when_synced(reply, 0)
            return
        if work.id in self._aborted:
            raise RequestError(
                conditions.TRANSACTION_ROLLBACK, "another shard has asked for the decision before it was made"
            )
        posts = [(self._checks.targets(post, now_ms), post.batch) for post in work.posts]
        settled = [self._checks.settled(peer, each) for each in work.retirements]
        self._checks.check_room(posts)
        shares = [(batch, [share(queue, batch, now_ms) for queue in queues]) for queues, batch in posts]
        self._write(work, shares, settled, now_ms)
        self._links.note_number(work.producer, work.number)
        if work.others:
            self._decided[work.id] = work.others
        self._enqueue(shares, now_ms)
        for consumer, retirement, _ in settled:
            command = commands.Settle(consumer.id, retirement.first, retirement.last, retirement.outcome)
            self._settle(consumer.queue, command, now_ms)
        self._when_synced(reply, 0)

    def _write(self, work: Work, shares: Shares, settled: list[Settled], now_ms: int) -> None:
        """Writes the group of records. Raises RequestError, StoreBusyError: nothing is written."""
        next_sequences: dict[Queue, int] = {}
        records = records_of_posts(shares, next_sequences, now_ms)
        accepted: dict[Queue, list[tuple[int, int]]] = {}
        for each in settled:
            if each.retirement.outcome.kind is OutcomeKind.ACCEPTED:
                accepted.setdefault(each.consumer.queue, []).extend(each.durable)
        records += records_of_accepted(accepted)
        if work.others:
            detail = json.dumps({"others": work.others})
            records.append(Transaction(work.id, TransactionState.COMMITTED, 0, detail))
        if not records:
            return
        queue = next(iter(next_sequences), None) or (settled[0].consumer.queue if settled else None)
        if queue is not None:
            next_sequence = next_sequences.get(queue, queue.machine.contents.next_sequence)
            records.append(Numbers(queue.id, next_sequence, [(work.producer, work.number, 0)]))
        self._records.write(records, now_ms)

    # --- several shards ----------------------------------------------------------------------------------

    def _prepare(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """Takes the work of a transaction, to apply it when another shard decides so.

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
        settled = [self._checks.settled(peer, each) for each in work.retirements]
        check_apart(settled)
        self._checks.check_room(posts)
        held = [
            Held(
                each.consumer.queue.name,
                next(self._holders),
                [(run.sequence, run.end) for run in each.runs],
                each.durable,
                each.retirement.outcome,
            )
            for each in settled
        ]
        prepared = Prepared(id, shard, work.posts, held, now_ms)
        self._records.write([prepared.record(fields)], now_ms)
        for each, taken in zip(settled, held, strict=True):
            retirement = each.retirement
            command = commands.Reserve(taken.holder, each.consumer.id, retirement.first, retirement.last)
            self._apply(each.consumer.queue, command, now_ms)
        self._prepared[id] = prepared
        self._promise(prepared, 1)
        self._when_synced(reply, 0)

    def restored(self) -> None:
        """The queues that recovery found are here."""
        for prepared in self._prepared.values():
            self._promise(prepared, 1)

    def _promise(self, prepared: Prepared, change: int) -> None:
        """Counts the transaction at its queues, or no more."""
        for name in prepared.queues:
            queue = self._queues.find(name)
            if queue is not None:
                queue.promised = max(0, queue.promised + change)

    def _conclude(self, _peer: Peer, _number: int, fields: Fields, now_ms: int) -> Fields:
        """The decision of a prepared transaction; answered when it is applied. Raises RequestError."""
        self.conclude(id_of(fields), commits=fields.get("commit") is True, now_ms=now_ms)
        return {"concluded": True}

    def conclude(self, id: bytes, *, commits: bool, now_ms: int) -> None:
        """Applies the work of a prepared transaction, or gives it back. Raises RequestError: try again."""
        prepared = self._prepared.get(id)
        if prepared is None:
            return
        ended = Transaction(id, TransactionState.ENDED)
        shares = self._shares(prepared, now_ms) if commits else []
        records: list[Record] = records_of_posts(shares, {}, now_ms)
        if commits:
            accepted: dict[Queue, list[tuple[int, int]]] = {}
            for each in prepared.retired:
                queue = self._queues.find(each.queue)
                if queue is not None and each.outcome.kind is OutcomeKind.ACCEPTED:
                    accepted.setdefault(queue, []).extend(each.durable)
            records += records_of_accepted(accepted)
        self._records.write([*records, ended], now_ms)
        del self._prepared[id]
        self._promise(prepared, -1)
        self._enqueue(shares, now_ms)
        for each in prepared.retired:
            queue = self._queues.find(each.queue)
            if queue is not None:
                command = commands.Conclude(each.holder, each.outcome if commits else FAILED)
                self._settle(queue, command, now_ms)

    def _shares(self, prepared: Prepared, now_ms: int) -> Shares:
        """What queues store of a prepared transaction: all of it, whatever their bounds say by now."""
        shares: Shares = []
        for post in prepared.posts:
            batch = post.batch
            batch.enqueued_at_ms = now_ms
            queues = [queue for name in post.queues if (queue := self._queues.find(name)) is not None]
            shares.append((batch, [share(queue, batch, now_ms, bounded=False) for queue in queues]))
        return shares

    def _outcome(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """Whether this shard has committed a transaction; one that it has not is aborted from now on."""
        id = id_of(fields)
        committed = id in self._decided
        if not committed and id not in self._aborted:
            self._records.write([Transaction(id, TransactionState.ABORTED)], now_ms)
            self._aborted[id] = now_ms
        self._when_synced(Reply(peer, number, {"committed": committed}), 0)

    def _is_concluded(self, peer: Peer, number: int, fields: Fields, _now_ms: int) -> None:
        """Which of transactions that were prepared here are concluded; answered when that is on disk."""
        ids = fields.get("ids")
        if not isinstance(ids, list) or len(ids) > limits.TRANSACTIONS_PREPARED_MAX:
            raise RequestError(conditions.INVALID_FIELD, "expected ids, a list of transactions")
        found = [id.hex() for each in ids if (id := id_of({"id": each})) not in self._prepared]
        self._when_synced(Reply(peer, number, {"concluded": found}), 0)

    def forget(self, shard: int, ids: Iterable[bytes], now_ms: int) -> None:
        """A shard has concluded transactions that this one decided. Raises RequestError, StoreError."""
        done = []
        for id in ids:
            others = self._decided.get(id)
            if others is not None and shard in others:
                others.remove(shard)
                if not others:
                    done.append(id)
        if done:
            self._records.write([Transaction(id, TransactionState.ENDED) for id in done], now_ms)
            for id in done:
                del self._decided[id]

    def forget_aborted(self, now_ms: int) -> None:
        """Forgets transactions that nobody will try to commit any more."""
        until_ms = now_ms - limits.TRANSACTION_ABORTED_MS
        old = [id for id, since_ms in self._aborted.items() if since_ms <= until_ms]
        if old:
            try:
                self._records.write([Transaction(id, TransactionState.ENDED) for id in old], now_ms)
            except (RequestError, StoreError):
                return
            for id in old:
                del self._aborted[id]

    # --- effects ---------------------------------------------------------------------------------------

    def _enqueue(self, shares: Shares, now_ms: int) -> None:
        for _, found in shares:
            for mine in found:
                queue = mine.queue
                contents = queue.machine.contents
                contents.counters.duplicates += mine.duplicates
                contents.counters.dropped += mine.dropped
                if mine.digests and contents.duplicates is not None:
                    contents.duplicates.remember(mine.digests, ids_until_ms(queue, now_ms))
                if mine.batch.count:
                    self._apply(queue, commands.Enqueue(mine.batch), now_ms)
                self._performer.touched[queue] = None

    def _settle(self, queue: Queue, command: commands.Settle | commands.Conclude, now_ms: int) -> None:
        """Applies an outcome; the records of accepted messages are in the group already."""
        before, queue.removed = queue.removed, {}
        self._apply(queue, command, now_ms)
        if command.outcome.kind is OutcomeKind.ACCEPTED:
            queue.removed.pop(Reason.ACCEPTED, None)
        for reason, ranges in queue.removed.items():
            before.setdefault(reason, []).extend(ranges)
        queue.removed = before

    def _apply(self, queue: Queue, command: Command, now_ms: int) -> None:
        self._performer.perform(queue, queue.machine.apply(command, now_ms), now_ms)
        self._performer.touched[queue] = None
