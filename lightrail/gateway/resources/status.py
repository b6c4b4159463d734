"""Status over HTTP: processes, shards, sums over all processes, and routers."""

import asyncio
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.map import Map
from lightrail.gateway.processes import health
from lightrail.gateway.processes.health import SCRAPE_TIME_MAX_S
from lightrail.gateway.processes.members import Member
from lightrail.gateway.request import Request
from lightrail.gateway.resources import replicas
from lightrail.gateway.rights import demand_all
from lightrail.model.policy import Role
from lightrail.namespace.listing import every_name
from lightrail.namespace.records import Right
from lightrail.namespace.rights import Caller, may
from lightrail.telemetry.running import Running

if TYPE_CHECKING:
    from lightrail.gateway.services import Services

SHARD: Final = (
    ("messages", "lightrail_queue_messages"),
    ("bytes", "lightrail_queue_bytes"),
    ("memory_bytes", "lightrail_memory_bytes"),
    ("disk_bytes", health.STORE_TOTAL),
    ("store_failures", "lightrail_store_failures_total"),
    ("store_full", "lightrail_store_full"),
    ("commit_seconds", "lightrail_commit_under_way_seconds"),
    ("transactions_prepared", "lightrail_transactions_prepared"),
    ("transaction_prepared_seconds", "lightrail_transaction_prepared_seconds"),
)
"""(key, sample) of a shard's row."""
OPTIMISED: Final = "lightrail_python_optimised"
COMPILED: Final = "lightrail_modules_compiled"
COORDINATOR_FULL: Final = "lightrail_coordinator_full"
FULL: Final = "etcd has no space left and takes no writes"
"""The reason if etcd refused only writes of other processes; their logs have the words of etcd."""
TOTALS: Final = (
    ("shard", "messages", "lightrail_queue_messages"),
    ("shard", "bytes", "lightrail_queue_bytes"),
    ("frontend", "connections", "lightrail_connections"),
    ("shard", "received", "lightrail_queue_messages_enqueued_total"),
    ("shard", "delivered", "lightrail_queue_messages_delivered_total"),
)
"""(role, key, sample) of what is summed over all processes of a role."""


async def read(request: Request) -> web.Response:
    """GET /!status."""
    return web.json_response(await overview(request.services, request.caller))


async def routers(request: Request) -> web.Response:
    """GET /!routers?prefix=: routers and their subscriptions."""
    directory = request.directory
    rows = [
        {
            "name": record.name,
            "distribution": record.policy["distribution"],
            "subscriptions": [each.shown() for each in directory.subscriptions(record.name)],
        }
        async for record in every_name(
            directory, lambda _: request.caller, request.http.query.get("prefix", "")
        )
        if record.role is Role.ROUTER and may(directory, request.caller, Right.MANAGE, record)
    ]
    return web.json_response({"routers": rows})


async def overview(services: "Services", caller: Caller) -> dict[str, Any]:
    """Processes, shards and sums. A process that does not answer is listed as a reason."""
    demand_all(services.directory, caller)
    reasons, found, coordinators = await asyncio.gather(
        services.health.reasons(SCRAPE_TIME_MAX_S),
        health.read(services.health),
        _coordinator_members(services),
    )
    totals: dict[str, Any] = {
        key: sum(int(each.get(sample, 0)) for member, each in found.items() if member.role == role)
        for role, key, sample in TOTALS
    }
    services.map.refresh()
    totals["queues"] = sum(services.map.loads.values())
    roles = [record.role for record in services.directory.below("")]
    totals["names"] = len(roles)
    totals["routers"] = roles.count(Role.ROUTER)
    totals["receivers_waiting"] = services.receivers.waiting
    kept = await _kept(services)
    set_back = services.coordinator.set_back
    # A process that writes nothing does not notice.
    full = sorted(member.name for member, each in found.items() if each.get(COORDINATOR_FULL))
    return {
        "version": version("lightrail"),
        "ready": not reasons,
        "reasons": reasons,
        "processes": [
            {"role": each.role, "id": each.id, "ready": each.ready, "restarts": each.restarts}
            | {"clock_ahead_seconds": found.get(each, {}).get(health.CLOCK_AHEAD)}
            | {"compiled": is_compiled(found.get(each, {}))}
            | ({"member": each.member} if each.member else {})
            for each in services.health.members.list()
        ],
        "shards": _shards(
            services, {member.id: each for member, each in found.items() if member.role == "shard"}, kept
        ),
        "totals": totals,
        "unoptimised": unoptimised(services.health.running, found),
        "coordinator": {
            "set_back": None if set_back is None else set_back._asdict(),
            "full": services.coordinator.full or (FULL if full else None),
            "full_for": full,
            "members": coordinators,
        },
    }


async def _coordinator_members(services: "Services") -> int | None:
    """Members of etcd below shards with replicas; None without such shards, and if etcd does not say it."""
    if not services.map.replica_sets:
        return None
    try:
        return await services.coordinator.members()
    except CoordinatorError:
        return None


def is_compiled(samples: health.Samples) -> bool | None:
    """Whether a process passes messages by machine code; None for one that passes none, or does not say."""
    value = samples.get(COMPILED)
    return None if value is None else bool(value)


def unoptimised(own: Running, found: Mapping[Member, health.Samples]) -> list[str]:
    """Names of the processes, this gateway among them, whose Python was built without optimisations.

    A process of an earlier version has no such sample, and is left out.
    """
    names = [member.name for member, each in found.items() if each.get(OPTIMISED) == 0]
    return sorted(names if own.optimised else [own.name, *names])


def _shards(
    services: "Services", found: Mapping[int, health.Samples], kept: Mapping[int, dict[str, Any]]
) -> list[dict[str, Any]]:
    """A row for each shard; figures are None for a shard that does not answer."""
    presence = services.presence
    rows = []
    for shard in sorted({*presence.known(), *found}):
        samples = found.get(shard)
        figured = {key: int(samples.get(sample, 0)) if samples is not None else None for key, sample in SHARD}
        if samples is None:
            figured["queues"] = presence.queues(shard)
        rows.append(
            {
                "id": shard,
                "serving": samples is not None and presence.serves(shard),
                "placed": presence.queues(shard),
                **figured,
                **_placed(services.map, shard),
                "replicas": replicas.figured(services.map, shard, samples),
                **kept.get(shard, {}),
            }
        )
    return rows


async def _kept(services: "Services") -> dict[int, dict[str, Any]]:
    """By shard: the queues whose messages it keeps and does not serve, and the owner of each now. Shards that
    do not answer are left out."""
    found: dict[int, dict[str, Any]] = {}
    for shard, answer in (await services.shards.request_all("kept", {})).items():
        rows = []
        for row in answer.fields["queues"]:
            placed = services.map.placed(row["queue"])
            role = services.directory.get(row["queue"]).role
            rows.append({**row, "role": role, "shard": None if placed is None else placed.shard})
        found[shard] = {"kept_count": answer.fields["count"], "kept": rows}
    return found


def _placed(map: Map, shard: int) -> dict[str, Any]:
    """State of a shard, the number of its queues, and moves to and from it."""
    known = map.shard_records.get(shard)
    return {
        "queues": map.loads[shard],
        "state": known.state if known else "active",
        "moving_in": sum(move.to == shard for move in map.moves.values()),
        "moving_out": sum(move.source == shard for move in map.moves.values()),
    }
