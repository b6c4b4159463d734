"""Commits: sends the parts of a transaction to their shards, of which one decides (ADR 38).

If an answer is lost, it is unknown whether the shard has applied the transaction. So the same request is sent
to the same shard until it answers; the number of the transaction prevents that it is applied twice.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from lightrail.model import conditions, limits
from lightrail.model.transaction_ids import new_id
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError

if TYPE_CHECKING:
    from lightrail.shard_client.owners.owners import Owners

Request = tuple[dict[str, Any], bytes]
"""Fields and blob of a part: those of `transact` and `prepare` (docs/formats/wire.md)."""


class CommitRefusedError(Exception):
    """A transaction that had no effect: the condition and the description of a shard's refusal."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


class UncertainError(CommitRefusedError):
    """A shard that may have applied the transaction did not answer in time."""


@dataclass(slots=True, eq=False, repr=False)
class CommitParts:
    """Commits the transactions of one producer, one after the other.

    Args:
        producer: boot of the process << 32 | number of a link, unique in the lifetime of the process.
        is_waiting: whether somebody waits for the end, so that a lost shard is awaited without a limit.
    """

    _owners: "Owners"
    _producer: int
    _now_ms: Callable[[], int]
    _: KW_ONLY
    is_waiting: Callable[[], bool]
    _number: int = 0

    def begin(self) -> None:
        """The next commit is that of another transaction."""
        self._number += 1

    async def commit(self, parts: Mapping[int, Request], gives_up_ms: int, user: str) -> bool:
        """Makes all shards apply their parts, given by shard; returns once all of them are on disk.

        All shards but the last prepare their parts; the last one's application is the decision (ADR 38).

        Args:
            gives_up_ms: until when a lost shard is awaited while nobody waits.
            user: shown to operators beside a prepared transaction.

        Returns:
            False if a queue has moved, or a consumer is opened again: find the shards again.

        Raises CommitRefusedError: it had no effect.
        """
        *others, last = sorted(parts)
        fields, blob = parts[last]
        fields |= {"producer": self._producer, "number": self._number}
        if not others:
            return await self._ask(last, "transact", gives_up_ms, fields, blob)
        id = new_id(self._now_ms()).hex()
        preparation = {"id": id, "decides": last, "user": user}
        decision: bool | None = False
        """None while the decision is not known here: then the shards request it."""
        try:
            prepared = await asyncio.gather(
                *(
                    self._ask(shard, "prepare", gives_up_ms, {**preparation, **part}, its_blob)
                    for shard, (part, its_blob) in parts.items()
                    if shard != last
                ),
                return_exceptions=True,
            )
            for each in prepared:
                if isinstance(each, BaseException):
                    raise each
            if all(prepared):
                fields |= {"id": id, "others": others}
                decision = None
                try:
                    decision = await self._ask(last, "transact", gives_up_ms, fields, blob)
                except UncertainError:
                    raise
                except CommitRefusedError:
                    decision = False
                    raise
        finally:
            if decision is not None:
                await asyncio.gather(*(self._conclude(shard, id, commits=decision) for shard in others))
        return decision is True

    async def _conclude(self, shard: int, id: str, *, commits: bool) -> None:
        """Sends the decision.

        A shard that does not receive it requests it (shard/transactions/decision_requests.py).
        """
        peer = self._owners.resolver.peer(shard)
        if peer is not None:
            with contextlib.suppress(ShardDownError, ShardRefusedError):
                await peer.request("conclude", {"id": id, "commit": commits})

    async def _ask(self, shard: int, op: str, gives_up_ms: int, fields: dict[str, Any], blob: bytes) -> bool:
        """Sends a part to its shard; returns False if a queue has moved. Raises CommitRefusedError."""
        pause_ms = limits.OWNER_RETRY_MS
        while True:
            peer = self._owners.resolver.peer(shard)
            if peer is not None:
                try:
                    await peer.request(op, fields, blob=blob)
                    return True
                except ShardRefusedError as refused:
                    if refused.condition == conditions.MOVED:
                        return False
                    raise CommitRefusedError(refused.condition, refused.description) from None
                except ShardDownError:
                    # It is unknown whether it was applied, so the request is sent again.
                    fields = {**fields, "repeated": True}
            if not self.is_waiting() and self._now_ms() > gives_up_ms:
                raise UncertainError(conditions.TRANSACTION_ROLLBACK, f"shard {shard} is away")
            pause_ms = await self._owners.change(pause_ms)
