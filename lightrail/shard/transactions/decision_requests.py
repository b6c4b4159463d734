"""Decision requests: asks other shards for decisions, and whether they have concluded this shard's.

Each shard is asked by a task of its own, so that one that does not answer delays no decision of another. It
is asked again with the next look.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from lightrail.model import limits
from lightrail.shard.effects.answers import RequestError
from lightrail.shard.journal.store import StoreError
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.wire.bodies import Answer

if TYPE_CHECKING:
    from lightrail.shard.transactions.transactions import Transactions

DECISIONS_ASKED_AT_ONCE: Final[int] = 16
"""Decisions that a shard requests from another one at the same time."""

log = logging.getLogger("lightrail.shard.transactions")

LOOK_S: Final = 1.0
"""Seconds between two looks at prepared and decided transactions."""


class Others(Protocol):
    """Connections to other shards."""

    async def request(self, shard: int, op: str, fields: dict[str, Any]) -> Answer:
        """Raises ShardDownError, ShardRefusedError."""


@dataclass(eq=False, repr=False)
class DecisionRequests:
    """Periodically requests the decisions that this shard waits for.

    Args:
        turn: called after changes in the engine, to send its output and commit its records.
        failed: called with an unexpected error; the state in memory can't be trusted after it.
        sleep: seconds; tests inject it.
    """

    _shard: int
    _transactions: "Transactions"
    _others: Others
    _turn: Callable[[], None]
    _now_ms: Callable[[], int]
    _failed: Callable[[BaseException], None]
    _sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _asked: set[int] = field(default_factory=set)
    """Shards that are being asked."""

    async def run(self) -> None:
        """Looks periodically until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._sleep(LOOK_S)
                for shard, ids, awaited in self._begin():
                    group.create_task(self._ask(shard, ids, awaited))

    async def ask_all(self) -> None:
        """Looks once, and waits for all answers."""
        await asyncio.gather(*(self._ask(*each) for each in self._begin()))

    def _begin(self) -> list[tuple[int, list[bytes], list[bytes]]]:
        """Shards that are not asked now, with overdue transactions and those that it may have concluded."""
        overdue: dict[int, list[bytes]] = {}
        for id, shard in self._transactions.prepared.overdue(self._now_ms()):
            overdue.setdefault(shard, []).append(id)
        awaited = self._transactions.decisions.awaited
        shards = [shard for shard in {**overdue, **awaited} if shard not in self._asked]
        self._asked.update(shards)
        return [(shard, overdue.get(shard, []), awaited.get(shard, [])) for shard in shards]

    async def _ask(self, shard: int, overdue: list[bytes], awaited: list[bytes]) -> None:
        """Asks a shard for decisions, a few at a time, until it does not answer."""
        try:
            for ids in _some(overdue, DECISIONS_ASKED_AT_ONCE):
                if not all(await asyncio.gather(*(self._ask_decision(id, shard) for id in ids))):
                    break
            for ids in _some(awaited, limits.TRANSACTIONS_AT_ONCE):
                if not await self._ask_concluded(shard, ids):
                    break
        except Exception as error:
            # Records may be written in part: the process has to end.
            log.exception("decisions of shard %d could not be applied", shard)
            self._failed(error)
            self._turn()
        finally:
            self._asked.discard(shard)

    async def _ask_decision(self, id: bytes, shard: int) -> bool:
        """Asks for one decision; returns whether the shard has answered."""
        try:
            answer = await self._others.request(shard, "outcome", {"id": id.hex()})
        except (ShardDownError, ShardRefusedError) as error:
            log.warning("transaction %s waits for the decision of shard %d: %s", id.hex(), shard, error)
            return False
        commits = answer.fields["committed"] is True
        try:
            self._transactions.prepared.conclude(id, commits=commits, now_ms=self._now_ms())
        except (RequestError, StoreError) as error:
            log.warning("transaction %s, decided by shard %d, waits for room: %s", id.hex(), shard, error)
            return True
        log.info(
            "transaction %s is %s, as shard %d has decided",
            id.hex(),
            "committed" if commits else "rolled back",
            shard,
        )
        self._turn()
        return True

    async def _ask_concluded(self, shard: int, ids: list[bytes]) -> bool:
        """Asks which decided transactions are concluded; returns whether the shard has answered."""
        try:
            answer = await self._others.request(shard, "concluded", {"ids": [id.hex() for id in ids]})
            done = [bytes.fromhex(each) for each in answer.fields["concluded"]]
            self._transactions.decisions.forget(shard, done, self._now_ms())
        except (ShardDownError, ShardRefusedError, RequestError, StoreError) as error:
            log.debug("it is unknown whether shard %d has concluded transactions: %s", shard, error)
            return False
        self._turn()
        return True


def _some(ids: list[bytes], count: int) -> Iterator[list[bytes]]:
    for at in range(0, len(ids), count):
        yield ids[at : at + count]
