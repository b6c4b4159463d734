"""Status over HTTP: processes, shards and sums, the figures of all queues, and the routers."""

import asyncio
from importlib.metadata import version
from typing import Any, Final

from aiohttp import web

from lightrail.gateway.asked import Asked
from lightrail.model import limits
from lightrail.model.policy import Role
from lightrail.namespace.records import Right
from lightrail.namespace.rights import may
from lightrail.wire.messages import Answer
from lightrail.wire.shards import ShardAway, ShardRefused

STATUS_MS: Final = 2_000
"""A shard that does not answer in this time is told as one that does not."""
SUMS: Final = ("queues", "messages", "bytes", "consumers", "enqueued", "settled")
"""Figures of shards that make sense as a sum."""


async def read(asked: Asked) -> web.Response:
    """GET /!status: a shard that does not answer is a reason and no error."""
    asked.manager()
    gateway = asked.gateway
    reasons = await gateway.health.reasons()
    shards = await asyncio.gather(*(_shard(asked, shard) for shard in sorted(gateway.shards.peers)))
    totals: dict[str, Any] = {"names": asked.directory.count()}
    for key in SUMS:
        found = [shard[key] for shard in shards if isinstance(shard.get(key), int | float)]
        if found:
            totals[key] = sum(found)
    totals["http_receivers_waiting"] = gateway.receivers.waiting
    processes = [
        {"role": each.role, "id": each.id, "ready": each.ready, "restarts": each.restarts}
        for each in gateway.members.list()
    ]
    body = {
        "version": version("lightrail"),
        "ready": not reasons,
        "reasons": reasons,
        "processes": processes,
        "shards": shards,
        "totals": totals,
    }
    return web.json_response(body)


async def _shard(asked: Asked, shard: int) -> dict[str, Any]:
    try:
        answer = await asked.gateway.shards.peers[shard].request("status", {}, wait_ms=STATUS_MS)
    except (ShardAway, ShardRefused) as error:
        return {"id": shard, "error": str(error)}
    return {"id": shard, **answer.fields}


async def queues(asked: Asked) -> web.Response:
    """GET /!queues?prefix=&after=&limit=: the figures of queues, sorted by name."""
    prefix = asked.request.query.get("prefix", "")
    after = asked.request.query.get("after", "")
    most = asked.whole("limit", 100, 1, limits.PAGE_MAX)
    directory = asked.directory
    directory.refresh()
    answers = await asked.gateway.shards.request_all(
        "queues", {"prefix": prefix, "after": after, "limit": most + 1}
    )
    rows = _rows(asked, answers, prefix, after)
    page = rows[:most]
    following = page[-1]["name"] if len(rows) > most else None
    for row in page:
        policy = directory.get(row["name"]).policy
        if policy.role is Role.QUEUE:
            row |= {key: policy[key] for key in ("max_length", "max_bytes") if policy[key] is not None}
    return web.json_response({"queues": page, "next": following})


def _rows(asked: Asked, answers: list[Answer], prefix: str, after: str) -> list[dict[str, Any]]:
    below = f"{prefix}/"
    rows = []
    shards = sorted(asked.gateway.shards.peers)
    for shard, answer in zip(shards, answers, strict=True):
        for row in answer.fields["queues"]:
            name = row["name"]
            if name <= after or (prefix and name != prefix and not name.startswith(below)):
                continue
            record = asked.directory.get(name)
            if any(
                may(asked.directory, asked.caller, right, record) for right in (Right.LISTEN, Right.MANAGE)
            ):
                rows.append({**row, "shard": shard})
    rows.sort(key=lambda row: str(row["name"]))
    return rows


async def routers(asked: Asked) -> web.Response:
    """GET /!routers?prefix=: routers and their subscriptions."""
    prefix = asked.request.query.get("prefix", "")
    directory = asked.directory
    rows = [
        {
            "name": record.name,
            "distribution": record.policy["distribution"],
            "subscriptions": [each.shown() for each in directory.subscriptions(record.name)],
        }
        for record in asked.gateway.service.names(asked.caller, prefix)
        if record.role is Role.ROUTER and may(directory, asked.caller, Right.MANAGE, record)
    ]
    return web.json_response({"routers": rows})
