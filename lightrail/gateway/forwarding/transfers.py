"""Transfers: moves, copies and redrives on request, both running ones and the last that ended.

Transfers exist in the memory of one gateway and end with its process; messages that a transfer has not sent
stay in their source. It is safe to start a transfer again.
"""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lightrail.filters.errors import FilterError
from lightrail.filters.filter import compile_filter
from lightrail.gateway.forwarding.counts import ForwardingCounts
from lightrail.gateway.forwarding.sink import Sink
from lightrail.gateway.forwarding.transfer import Mode, Task, Transfer, TransferState
from lightrail.model import names
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name, Right, refused_by_forwarding
from lightrail.namespace.rights import Caller, demand
from lightrail.namespace.statuses import MissingError, ServiceError
from lightrail.shard_client.shard_connections import ShardConnections

TRANSFERS_RUNNING: Final[int] = 16
"""Transfers that one gateway runs at a time."""
TRANSFERS_KEPT: Final[int] = 200
"""Ended transfers that are still shown; the oldest are dropped first."""
TRANSFER_CANCEL_MS: Final[int] = 5_000
"""How long a cancellation of a transfer waits for messages under way."""
MEMBERS: Final = ("from", "to", "mode", "count", "filter")


class TooManyTransfersError(Exception):
    """The maximum number of transfers is running at this gateway."""


@dataclass(eq=False, repr=False)
class Transfers:
    """All transfers of this gateway."""

    _directory: Directory
    _shards: ShardConnections
    _sink: Sink
    _counts: ForwardingCounts
    _by_id: dict[str, Transfer] = field(default_factory=dict)

    def start(self, caller: Caller, wanted: Mapping[str, Any]) -> Transfer:
        """Starts the transfer of a request: `{"from", "to", "mode", "count", "filter"}`.

        The caller needs the right to listen at `from` and to send to `to`; a redrive without `to` needs the
        right to send to the queue of each message.

        Raises:
            ServiceError, MissingError, ForbiddenError, InvalidNameError: an invalid or forbidden request.
            TooManyTransfersError: TRANSFERS_RUNNING run already.
        """
        task = self._task(caller, wanted)
        if sum(each.state is TransferState.RUNNING for each in self._by_id.values()) >= TRANSFERS_RUNNING:
            raise TooManyTransfersError(
                f"{TRANSFERS_RUNNING} transfers run at this gateway already; wait for one to end"
            )
        ended = [id for id, each in self._by_id.items() if each.state is not TransferState.RUNNING]
        for id in ended[: max(0, len(ended) - TRANSFERS_KEPT + 1)]:
            del self._by_id[id]
        transfer = Transfer(secrets.token_hex(8), task, self._shards, self._sink, self._counts)
        self._by_id[transfer.id] = transfer
        transfer.start()
        return transfer

    def find(self, caller: Caller, id: str) -> Transfer:
        """One transfer that the caller may see. Raises MissingError."""
        found = self._by_id.get(id)
        if found is None or not self._is_visible(caller, found):
            raise MissingError(
                f"there is no transfer {id[:80]!a}; a gateway lists ended transfers only for a while"
            )
        return found

    def list(self, caller: Caller) -> list[Transfer]:
        """All transfers that the caller may see, the oldest first."""
        return [each for each in self._by_id.values() if self._is_visible(caller, each)]

    async def cancel(self, caller: Caller, id: str) -> Transfer:
        """Ends a transfer after its messages in flight are stored; an ended transfer stays unchanged.

        Returns after TRANSFER_CANCEL_MS even if messages are still in flight.
        """
        transfer = self.find(caller, id)
        transfer.cancel()
        await asyncio.wait({transfer.done}, timeout=TRANSFER_CANCEL_MS / 1000)
        return transfer

    def close(self) -> None:
        """The gateway ends: running transfers stop."""
        for each in self._by_id.values():
            each.abandon()

    def _is_visible(self, caller: Caller, transfer: Transfer) -> bool:
        maker = transfer.task.caller
        # A caller by the key of a rule is no user, even one whose name is that of the rule.
        is_maker = (caller.user, caller.by_rule) == (maker.user, maker.by_rule)
        return caller.everything or is_maker

    # --- the request ----------------------------------------------------------------------------------

    def _task(self, caller: Caller, wanted: Mapping[str, Any]) -> Task:
        unknown = next((key for key in wanted if key not in MEMBERS), None)
        if unknown is not None:
            raise ServiceError(f"{unknown[:80]!a} is no member of a transfer; it has {', '.join(MEMBERS)}")
        mode = _mode(wanted.get("mode", "move"))
        source = _name("from", wanted.get("from"))
        target = None if wanted.get("to") is None else _name("to", wanted["to"])
        if target is None and mode is not Mode.REDRIVE:
            raise ServiceError(
                f"to is missing; a {mode} needs the name of a queue or router that messages go to"
            )
        if target == source:
            raise ServiceError(f"from and to are both {source}; expected two names")
        self._directory.refresh()
        record = self._directory.get(source)
        demand(self._directory, caller, Right.LISTEN, record)
        if record.role is not Role.QUEUE:
            raise MissingError(f"{source} has role {record.role}; expected a queue to consume from")
        if why := refused_by_forwarding(record.policy, Right.LISTEN):
            raise ServiceError(f"nothing is transferred from {source}: {why}")
        if target is not None:
            self._check_target(caller, target)
        policy = record.policy
        return Task(
            caller=caller,
            source=source,
            target=target,
            mode=mode,
            count=_count(wanted.get("count")),
            filter=_filter(wanted.get("filter")),
            is_plain=policy["order"] == "fifo" and policy["priorities"] == 1 and not policy["groups"],
            check_target=lambda name: self._check_target(caller, name),
        )

    def _check_target(self, caller: Caller, name: str) -> None:
        names.check(name)
        self._directory.refresh()
        record: Name = self._directory.get(name)
        demand(self._directory, caller, Right.SEND, record)
        if record.role not in (Role.QUEUE, Role.ROUTER):
            raise MissingError(f"{name} has role {record.role}; expected a queue or router to send to")


def _mode(value: Any) -> Mode:
    try:
        return Mode(value)
    except ValueError:
        raise ServiceError(f"mode is {str(value)[:80]!a}; expected one of {', '.join(Mode)}") from None


def _name(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ServiceError(f"{key} is {str(value)[:80]!a}; expected the name of a queue")
    names.check(value)
    return value


def _count(value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise ServiceError(
            f"count is {str(value)[:80]!a}; expected a whole number from 1 up, or null for all"
        )
    return value


def _filter(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ServiceError(f"filter is {str(value)[:80]!a}; expected a JSON object, see docs/filters.md")
    try:
        compile_filter(value)
    except FilterError as error:
        raise ServiceError(str(error)) from None
    return value
