"""Transactions: sends and settlements that take effect together, or not at all (transactions 4).

A frontend gathers the work of a transaction and sends all of it with the request `transact`. The work is
checked, written as one group of records, and applied (`applying.py`); recovery finds the group whole or not
at all. The answer waits for the commit to disk.

Transactions of one coordinator are numbered, like the batches of a producer. The group has the number, so a
request that is repeated because its answer was lost is answered and not applied again.

The work at several shards has one decision, at the last shard (ADR 38):

    others:  prepare  -> checked, deliveries reserved for the transaction, on disk (`preparing.py`); then
             conclude -> applied, or its deliveries released, according to the decision
    the last one: transact -> its group is the decision, with the shards that wait for it (`decisions.py`)
             outcome  -> sent by a shard that has not received the decision; if there is none, the
                         transaction is aborted from then on

The decision is kept until the others answer that they have concluded it (`concluded`).
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lightrail.journal.record import Numbers, TransactionState, TransactionStep
from lightrail.model import conditions, limits
from lightrail.shard.effects.answers import (
    Fields,
    Operation,
    Reply,
    RequestError,
    answer,
    demand,
    error_of,
    name_of,
    named,
    numbers,
    whole,
)
from lightrail.shard.effects.peers import Peer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.journal.store import Store, StoreBusyError
from lightrail.shard.queue.values.schedules import TakeNumbers
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import CallWhenSynced, Queue, WhenSynced
from lightrail.shard.transactions.applying import Applying, Record, cancelling
from lightrail.shard.transactions.checks import Checks, check_apart
from lightrail.shard.transactions.decisions import Decisions
from lightrail.shard.transactions.preparing import Preparing
from lightrail.shard.transactions.work import Loaded, Loading, TransactionWork, id_of, work_of

if TYPE_CHECKING:
    from lightrail.shard.links.links import Links


class Transactions:
    """Applies the transactions of all frontends.

    Args:
        when_synced: registers a waiter that is called when all records so far are on disk.
        found: transactions over several shards that recovery found.
    """

    __slots__ = (
        "_applying",
        "_checks",
        "_links",
        "_loading",
        "_performer",
        "_queues",
        "_when_synced",
        "decisions",
        "prepared",
    )

    def __init__(
        self,
        queues: Queues,
        performer: Performer,
        links: "Links",
        store: Store,
        memory: Memory,
        when_synced: CallWhenSynced,
        found: Sequence[TransactionStep],
        now_ms: int,
    ) -> None:
        self._queues = queues
        self._performer = performer
        self._links = links
        self._applying = Applying(queues, performer, store)
        self._loading = Loading(performer)
        self._checks = Checks(queues, performer, memory)
        self._when_synced = when_synced
        self.decisions = Decisions(self._applying.records, found, now_ms)
        self.prepared = Preparing(
            queues, performer, self._applying, self._checks, self._loading, memory, when_synced, found, now_ms
        )

    @property
    def operations(self) -> Mapping[str, Operation]:
        """The requests that this class answers."""
        return {
            "transact": self.transact,
            "outcome": self._outcome,
            "reserve_numbers": self._reserve_numbers,
            "are_delayed": self._are_delayed,
            **self.prepared.operations,
        }

    def transact(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """Applies a transaction; answered when it is on disk. Raises RequestError: nothing has changed."""
        self._transact(peer, number, fields, None, now_ms)

    def _transact(self, peer: Peer, number: int, fields: Fields, loaded: Loaded | None, now_ms: int) -> None:
        work = work_of(fields, now_ms)
        reply = Reply(peer, number, {"committed": True})
        if self._links.sending.known_number(work.producer) >= work.number:
            self._when_synced(reply, 0)
            return
        self.decisions.check(work.id)
        posts = self._checks.posts(work.posts, now_ms)
        cancelled = self._checks.cancelled(work.cancellations)
        settled = self._checks.all_settled(peer, work.retirements, now_ms)
        if any(each.key for each in work.retirements):
            # By its link and by its token, a message may be settled twice.
            check_apart(settled)
        shares = self._checks.shares(posts, now_ms)
        parts = [*(each.part for each in settled), *map(cancelling, cancelled)]
        self._applying.check(parts)
        if loaded is None and (unread := self._applying.unread(parts)):
            retry = partial(self._transact_again, peer, number, fields, now_ms)
            self._loading.begin(unread, retry)
            return
        ending = partial(
            _ending,
            work,
            [*(queue for queues, *_ in posts for queue in queues), *(part.queue for part in parts)],
        )
        repeated = fields.get("repeated") is True
        self._applying.apply(
            parts, shares, ending, loaded, now_ms, always=bool(work.others), repeated=repeated
        )
        self._links.sending.note_number(work.producer, work.number)
        if work.others:
            self.decisions.committed(work.id, work.others)
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

    # --- schedules ---------------------------------------------------------------------------------------

    def _reserve_numbers(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """Takes sequences of a queue for messages that a transaction will schedule; answered when that is on
        disk, so that nobody else gets them after a restart."""
        queue = demand(self._queues.open(name_of(fields), now_ms))
        count = whole(fields, "count", 1, limits.TRANSACTION_MESSAGES_MAX, None)
        if not queue.view.policy.delay:
            raise RequestError(conditions.NOT_ALLOWED, f"{queue.name} delays no messages")
        first = queue.view.next_sequence
        self._applying.records.write([Numbers(queue.id, first + count)], now_ms)
        self._performer.apply(queue, TakeNumbers(count), now_ms)
        self._when_synced(Reply(peer, number, {"first": first}), 0)

    def _are_delayed(self, _peer: Peer, _number: int, fields: Fields, _now_ms: int) -> Fields:
        """Whether messages are delayed now."""
        queue = named(self._queues, fields)
        sequences = numbers(fields, "sequences", limits.TRANSACTION_PARTS_MAX, "sequences")
        return {"found": [queue.view.is_delayed(each) for each in sequences]}

    def _outcome(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """Answers whether this shard has committed a transaction; if not, it is aborted from now on."""
        committed = self.decisions.outcome(id_of(fields), now_ms)
        self._when_synced(Reply(peer, number, {"committed": committed}), 0)


def _ending(work: TransactionWork, queues: list[Queue], next_sequences: dict[Queue, int]) -> list[Record]:
    """The decision of a transaction over several shards, and the number of the transaction."""
    records: list[Record] = []
    if work.others:
        records.append(
            TransactionStep(work.id, TransactionState.COMMITTED, 0, json.dumps({"others": work.others}))
        )
    if queues:
        queue = queues[0]
        next_sequence = next_sequences.get(queue, queue.view.next_sequence)
        records.append(Numbers(queue.id, next_sequence, [(work.producer, work.number, 0)]))
    return records
