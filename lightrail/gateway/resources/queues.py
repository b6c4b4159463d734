"""Queues over HTTP: figures of one queue, and of all queues that the caller may see."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from lightrail.gateway.rights import demand_name
from lightrail.model import limits
from lightrail.model.names import dead_letter_name, is_dead_letter, owner
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name, Right
from lightrail.namespace.rights import Caller, may
from lightrail.namespace.statuses import MissingError

if TYPE_CHECKING:
    from lightrail.gateway.request import Request
    from lightrail.gateway.services import Services

COLUMNS: Final = ("ready", "delayed", "deferred", "in_flight", "bytes", "consumers")
"""Figures of a queue whose shard does not answer: each is None."""


async def list_all(request: "Request") -> web.Response:
    """GET /!queues?prefix=&after=&limit=."""
    query = request.http.query
    most = request.whole("limit", 100, 1, limits.PAGE_MAX)
    found = await page(
        request.services, request.caller, query.get("prefix", ""), query.get("after", ""), most
    )
    return web.json_response(found)


async def figures(request: "Request") -> web.Response:
    """GET /name/!figures: the numbers of messages and consumers of a queue."""
    return web.json_response(await figures_of(request.services, request.caller, request.name))


async def page(services: "Services", caller: Caller, prefix: str, after: str, limit: int) -> dict[str, Any]:
    """Figures of queues after `after`, by name; each is followed by its dead-letter queue."""
    services.directory.refresh()
    rows: list[dict[str, Any]] = []
    part: list[str] = []
    async for name in _queue_names(services.directory, caller, prefix, after):
        part.append(name)
        if len(part) == limits.QUEUES_SHOWN_MAX:
            rows += await rows_of(services, part)
            part = []
            if len(rows) > limit:
                break
    if part:
        rows += await rows_of(services, part)
    page = rows[:limit]
    return {"queues": page, "next": page[-1]["name"] if len(rows) > limit else None}


async def figures_of(services: "Services", caller: Caller, name: str) -> dict[str, Any]:
    """All figures of one queue."""
    demand_queue(services.directory, caller, name, Right.LISTEN)
    answer = await services.shards.request(name, "queue", {})
    fields = answer.fields
    counters = fields.get("counters", {})
    return {
        "name": name,
        **{key: fields[key] for key in ("ready", "delayed", "in_flight", "parked", "bytes", "resident")},
        "deferred": fields.get("deferred", 0),
        "next_sequence": fields["next_sequence"],
        "captured": fields.get("captured", False),
        "consumers": fields["consumer_count"],
        "producers": fields["producer_count"],
        "enqueued": counters.get("enqueued", counters.get("arrived", 0)),
        "delivered": counters.get("delivered", 0),
        "counters": counters,
        "consumers_list": fields["consumers"],
    }


def demand_queue(directory: Directory, caller: Caller, name: str, right: Right) -> Name:
    """The record of a queue. Raises ForbiddenError without the right, MissingError if it is no queue."""
    record = demand_name(directory, caller, name, right)
    if record.role is not Role.QUEUE:
        raise MissingError(f"{name} has role {record.role}; expected a queue")
    return record


async def _queue_names(directory: Directory, caller: Caller, prefix: str, after: str) -> AsyncIterator[str]:
    """Names of queues and their dead-letter queues that the caller may listen at or manage."""
    begin = owner(after)
    inside = not prefix or begin == prefix or begin.startswith(prefix + "/")
    if begin and inside and not is_dead_letter(after) and _is_shown(directory, caller, directory.get(begin)):
        yield dead_letter_name(begin)
    while page := directory.page(prefix, begin, limits.NAMES_AT_ONCE):
        for record in page:
            if _is_shown(directory, caller, record):
                yield record.name
                yield dead_letter_name(record.name)
        begin = page[-1].name
        await asyncio.sleep(0)


def _is_shown(directory: Directory, caller: Caller, record: Name) -> bool:
    return record.role is Role.QUEUE and any(
        may(directory, caller, right, record) for right in (Right.MANAGE, Right.LISTEN)
    )


async def rows_of(services: "Services", names: list[str]) -> list[dict[str, Any]]:
    """Figures of queues, in this order; dead-letter queues that do not exist are left out."""
    shards = services.shards
    answers = await shards.request_all("queues", {"names": names})
    found: dict[str, dict[str, Any]] = {}
    columns: list[str] = list(COLUMNS)
    for shard, answer in answers.items():
        columns = answer.fields["columns"]
        for name, values in answer.fields["queues"].items():
            found[name] = {"name": name, **dict(zip(columns, values, strict=True)), "shard": shard}
    rows = []
    for name in names:
        row = found.get(name)
        if row is None:
            if is_dead_letter(name):
                continue
            shard, _ = await shards.find(name)
            # A shard that answers without this queue has not opened it yet: zeros.
            row = {"name": name, **dict.fromkeys(columns, 0 if shard in answers else None), "shard": shard}
        policy = services.directory.get(name).policy
        if policy.role is Role.QUEUE:
            row |= {key: policy[key] for key in ("max_length", "max_bytes") if policy[key]}
        rows.append(row)
    return rows
