"""Decision requests: asks other shards for decisions, and whether they have concluded this shard's."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from lightrail.model import limits
from lightrail.shard.journal.store import StoreError
from lightrail.shard.requests import RequestError
from lightrail.shard.transactions.transactions import Transactions
from lightrail.wire.bodies import Answer
from lightrail.wire.requests import ShardDownError, ShardRefusedError

log = logging.getLogger("lightrail.shard.transactions")

LOOK_S: Final = 1.0
"""Seconds between two looks at prepared and decided transactions."""


class Others(Protocol):
    """Connections to other shards."""

    async def request(self, shard: int, op: str, fields: dict[str, Any]) -> Answer:
        """Raises ShardDownError, ShardRefusedError."""


class DecisionRequests:
    """Periodically requests the decisions that this shard waits for.

    Args:
        turn: called after changes in the engine, to send its output and commit its records.
        sleep: seconds; tests inject it.
    """

    def __init__(
        self,
        shard: int,
        transactions: Transactions,
        others: Others,
        turn: Callable[[], None],
        now_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._shard = shard
        self._transactions = transactions
        self._others = others
        self._turn = turn
        self._now_ms = now_ms
        self._sleep = sleep

    async def run(self) -> None:
        """Looks periodically until it is cancelled."""
        while True:
            await self._sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Concludes overdue transactions, and removes those that all other shards have concluded."""
        for id, shard in self._transactions.overdue(self._now_ms()):
            await self._ask_decision(id, shard)
        for shard, ids in self._transactions.awaited.items():
            await self._ask_concluded(shard, ids[: limits.TRANSACTIONS_PREPARED_MAX])

    async def _ask_decision(self, id: bytes, shard: int) -> None:
        try:
            answer = await self._others.request(shard, "outcome", {"id": id.hex()})
            commits = answer.fields["committed"] is True
            self._transactions.conclude(id, commits=commits, now_ms=self._now_ms())
        except (ShardDownError, ShardRefusedError, RequestError, StoreError) as error:
            log.warning("transaction %s waits for the decision of shard %d: %s", id.hex(), shard, error)
            return
        log.info(
            "transaction %s is %s, as shard %d has decided",
            id.hex(),
            "committed" if commits else "rolled back",
            shard,
        )
        self._turn()

    async def _ask_concluded(self, shard: int, ids: list[bytes]) -> None:
        try:
            answer = await self._others.request(shard, "concluded", {"ids": [id.hex() for id in ids]})
            done = [bytes.fromhex(each) for each in answer.fields["concluded"]]
            self._transactions.forget(shard, done, self._now_ms())
        except (ShardDownError, ShardRefusedError, RequestError, StoreError) as error:
            log.debug("it is unknown whether shard %d has concluded transactions: %s", shard, error)
            return
        self._turn()
