"""Decisions: those of this shard about transactions over several shards, as long as others may ask for them.

A commit is remembered until all other shards have concluded it. An abort is remembered for an hour after
another shard asked, and at most so many are. A request to commit may arrive later still, as its frontend
repeats it without limit. So the youngest forgotten one is kept, and every transaction that was born no later
is refused. The order of their births is that of the frontends' clocks: one whose clock is more than an hour
behind those of others commits nothing over several shards.
"""

import json
from collections.abc import Iterable
from itertools import islice
from typing import Final

from lightrail.journal.record import TransactionState, TransactionStep
from lightrail.model import conditions, limits
from lightrail.model.transaction_ids import born_ms
from lightrail.shard.effects.answers import RequestError
from lightrail.shard.journal.store import StoreError
from lightrail.shard.transactions.applying import Records

TRANSACTION_ABORTED_MS: Final[int] = 3_600_000
"""How long the deciding shard remembers that it answered such a request with an abort; afterwards it refuses
all transactions that are not younger."""
TRANSACTIONS_ABORTED_MAX: Final[int] = 100_000
"""Aborted transactions that it remembers; the oldest are forgotten earlier."""
YOUNGEST: Final = '{"youngest":true}'
"""Detail of the aborted transaction that stands for all forgotten ones."""


class Decisions:
    """The decisions of one shard.

    Args:
        found: the newest records of transactions that recovery found.
    """

    __slots__ = ("_aborted", "_decided", "_forgotten", "_records")

    def __init__(self, records: Records, found: Iterable[TransactionStep], now_ms: int) -> None:
        self._records = records
        self._decided: dict[bytes, list[int]] = {}
        """Transactions committed at this shard, with the shards that have not concluded them."""
        self._aborted: dict[bytes, int] = {}
        """Transactions that were undecided when another shard asked, and the time, the oldest first."""
        self._forgotten: bytes | None = None
        """The youngest of the forgotten aborted ones."""
        for record in found:
            if record.state == TransactionState.COMMITTED:
                self._decided[record.id] = list(json.loads(record.detail)["others"])
            elif record.state == TransactionState.ABORTED and record.detail == YOUNGEST:
                self._forgotten = record.id
            elif record.state == TransactionState.ABORTED:
                self._aborted[record.id] = now_ms

    def check(self, id: bytes) -> None:
        """Raises RequestError if the transaction was aborted, or may have been."""
        if id in self._aborted:
            raise RequestError(
                conditions.TRANSACTION_ROLLBACK, "another shard requested the decision before it was made"
            )
        born = born_ms(id) if id else None
        if born is not None and self._forgotten is not None and born <= _born(self._forgotten):
            raise RequestError(
                conditions.TRANSACTION_ROLLBACK,
                "it is as old as transactions that this shard aborted and has forgotten, or the clock of its "
                "frontend is behind: send its work again, and compare the clocks of all machines",
            )

    def committed(self, id: bytes, others: list[int]) -> None:
        """Notes a commit, whose record is written."""
        self._decided[id] = others

    def outcome(self, id: bytes, now_ms: int) -> bool:
        """Whether the transaction is committed; if not, it is aborted from now on. Raises RequestError."""
        if id in self._decided:
            return True
        if id not in self._aborted:
            self._records.write([TransactionStep(id, TransactionState.ABORTED)], now_ms)
            self._aborted[id] = now_ms
        return False

    @property
    def awaited(self) -> dict[int, list[bytes]]:
        """By shard, the transactions that this shard decided and that the other may not have concluded."""
        found: dict[int, list[bytes]] = {}
        for id, others in self._decided.items():
            for shard in others:
                found.setdefault(shard, []).append(id)
        return found

    def forget(self, shard: int, ids: Iterable[bytes], now_ms: int) -> None:
        """Notes that a shard has concluded decided transactions. Raises RequestError, StoreError."""
        ids = [id for id in ids if shard in self._decided.get(id, ())]
        done = [id for id in ids if self._decided[id] == [shard]]
        if done:
            self._records.write([TransactionStep(id, TransactionState.ENDED) for id in done], now_ms)
        for id in ids:
            self._decided[id].remove(shard)
            if not self._decided[id]:
                del self._decided[id]

    def forget_aborted(self, now_ms: int) -> None:
        """Forgets aborted transactions that are old, or too many; only so many at once."""
        old = [*islice(self._old(now_ms), limits.TRANSACTIONS_AT_ONCE)]
        if not old:
            return
        before = self._forgotten
        youngest = max((id for id in [*old, before] if id is not None and _born(id)), key=_born, default=None)
        ended = [id for id in old if id != youngest]
        records = [TransactionStep(id, TransactionState.ENDED) for id in ended]
        if youngest != before:
            assert youngest is not None
            records.append(TransactionStep(youngest, TransactionState.ABORTED, 0, YOUNGEST))
            if before is not None:
                records.append(TransactionStep(before, TransactionState.ENDED))
        try:
            self._records.write(records, now_ms)
        except (RequestError, StoreError):
            return
        self._forgotten = youngest
        for id in old:
            del self._aborted[id]

    def _old(self, now_ms: int) -> Iterable[bytes]:
        """Those to forget, the oldest first.

        One that a fast clock bore in the future is kept until then, so that no others become old with it. One
        without a time of birth is kept even if there are too many.
        """
        until_ms = now_ms - TRANSACTION_ABORTED_MS
        excess = len(self._aborted) - TRANSACTIONS_ABORTED_MAX
        for id, since_ms in self._aborted.items():
            if since_ms > until_ms and excess <= 0:
                return
            born = born_ms(id)
            if born is None:
                if since_ms <= until_ms:
                    yield id
            elif born <= (now_ms if excess > 0 else until_ms):
                yield id
            excess -= 1


def _born(id: bytes) -> int:
    return born_ms(id) or 0
