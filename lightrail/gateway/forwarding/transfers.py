"""Transfers: the moves, copies and redrives that people asked for; those that run and the last that ended.

They live in the memory of one gateway: one that ends takes its transfers with it, and what they had not
brought over is where it was. To start a transfer again is safe.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

from lightrail.filters.errors import FilterError
from lightrail.filters.filter import compile_filter
from lightrail.gateway.forwarding.counts import CourierCounts
from lightrail.gateway.forwarding.sink import Sink
from lightrail.gateway.forwarding.source import Links
from lightrail.gateway.forwarding.transfer import Mode, State, Task, Transfer
from lightrail.model import limits, names
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name, Right
from lightrail.namespace.rights import Caller, demand
from lightrail.namespace.service import Missing, Refused

MEMBERS: Final = ("from", "to", "mode", "count", "filter")


class Busy(Exception):
    """So many transfers run already that no further one begins now."""


class Transfers:
    """All transfers of this gateway."""

    def __init__(
        self,
        directory: Directory,
        links: Links,
        sink: Sink,
        counts: CourierCounts,
        *,
        draw_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._directory = directory
        self._links = links
        self._sink = sink
        self._counts = counts
        self._draw_id = draw_id
        self._by_id: dict[str, Transfer] = {}

    def start(self, caller: Caller, asked: Mapping[str, Any]) -> Transfer:
        """Begins what a request asks for: `{"from", "to", "mode", "count", "filter"}`.

        The caller has to have the right to listen at `from` and to send to `to`; a redrive without `to` asks
        for the right to send to the queue of each message when it comes to it.

        Raises:
            Refused, Missing, Forbidden, InvalidName: it can't be done as it is.
            Busy: limits.TRANSFERS_RUNNING run already.
        """
        task = self._task(caller, asked)
        if sum(each.state is State.RUNNING for each in self._by_id.values()) >= limits.TRANSFERS_RUNNING:
            raise Busy(
                f"{limits.TRANSFERS_RUNNING} transfers run at this gateway already; wait for one to end"
            )
        ended = [id for id, each in self._by_id.items() if each.state is not State.RUNNING]
        for id in ended[: max(0, len(ended) - limits.TRANSFERS_KEPT + 1)]:
            del self._by_id[id]
        transfer = Transfer(self._draw_id(), task, self._links, self._sink, self._counts)
        self._by_id[transfer.id] = transfer
        transfer.start()
        return transfer

    def find(self, caller: Caller, id: str) -> Transfer:
        """One transfer that the caller may know of. Raises Missing."""
        found = self._by_id.get(id)
        if found is None or not self._is_visible(caller, found):
            raise Missing(
                f"there is no transfer {id[:80]!a}; those that ended are kept for a while by their gateway"
            )
        return found

    def list(self, caller: Caller) -> list[Transfer]:
        """All that the caller may know of, the oldest first."""
        return [each for each in self._by_id.values() if self._is_visible(caller, each)]

    async def cancel(self, caller: Caller, id: str) -> Transfer:
        """Ends a transfer; what is on its way arrives first. One that has ended stays as it is.

        Gives it back after limits.TRANSFER_CANCEL_MS even if something is still on its way.
        """
        transfer = self.find(caller, id)
        transfer.cancel()
        await asyncio.wait({transfer.ended}, timeout=limits.TRANSFER_CANCEL_MS / 1000)
        return transfer

    def close(self) -> None:
        """The gateway ends: what runs stops where it is."""
        for each in self._by_id.values():
            each.abandon()

    def _is_visible(self, caller: Caller, transfer: Transfer) -> bool:
        return caller.everything or caller.user == transfer.task.caller.user

    # --- what was asked for ----------------------------------------------------------------------------

    def _task(self, caller: Caller, asked: Mapping[str, Any]) -> Task:
        unknown = next((key for key in asked if key not in MEMBERS), None)
        if unknown is not None:
            raise Refused(f"{unknown[:80]!a} is no member of a transfer; it has {', '.join(MEMBERS)}")
        mode = _mode(asked.get("mode", "move"))
        source = _name("from", asked.get("from"))
        target = None if asked.get("to") is None else _name("to", asked["to"])
        if target is None and mode is not Mode.REDRIVE:
            raise Refused(f"to is missing; a {mode} needs the name of a queue or router that messages go to")
        if target == source:
            raise Refused(f"from and to are both {source}; expected two names")
        self._directory.refresh()
        record = self._directory.get(source)
        demand(self._directory, caller, Right.LISTEN, record)
        if record.role is not Role.QUEUE:
            raise Missing(f"{source} has role {record.role}; expected a queue to take messages from")
        if target is not None:
            self._check_target(caller, target)
        policy = record.policy
        return Task(
            caller=caller,
            source=source,
            target=target,
            mode=mode,
            count=_count(asked.get("count")),
            filter=_filter(asked.get("filter")),
            is_plain=policy["order"] == "fifo" and policy["priorities"] == 1 and not policy["groups"],
            check_target=lambda name: self._check_target(caller, name),
        )

    def _check_target(self, caller: Caller, name: str) -> None:
        names.check(name)
        self._directory.refresh()
        record: Name = self._directory.get(name)
        demand(self._directory, caller, Right.SEND, record)
        if record.role not in (Role.QUEUE, Role.ROUTER):
            raise Missing(f"{name} has role {record.role}; expected a queue or router to send to")


def _mode(value: Any) -> Mode:
    try:
        return Mode(value)
    except ValueError:
        raise Refused(f"mode is {str(value)[:80]!a}; expected one of {', '.join(Mode)}") from None


def _name(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Refused(f"{key} is {str(value)[:80]!a}; expected the name of a queue")
    names.check(value)
    return value


def _count(value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise Refused(f"count is {str(value)[:80]!a}; expected a whole number from 1 up, or null for all")
    return value


def _filter(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Refused(f"filter is {str(value)[:80]!a}; expected a JSON object, see docs/filters.md")
    try:
        compile_filter(value)
    except FilterError as error:
        raise Refused(str(error)) from None
    return value
