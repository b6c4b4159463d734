"""Prepared transactions over HTTP: listed, and decided by hand in place of a shard that is lost for good."""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from lightrail.gateway.errors import ProblemError
from lightrail.gateway.request import Request
from lightrail.gateway.resources.shards import answers
from lightrail.model import limits
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError

if TYPE_CHECKING:
    from lightrail.gateway.services import Services

DECISIONS: Final = ("commit", "abort")


async def list_all(request: Request) -> web.Response:
    """GET /!transactions: prepared transactions that wait for the decision of another shard, by shard."""
    request.manager()
    return web.json_response(await prepared(request.services))


async def prepared(services: "Services") -> dict[str, Any]:
    """Rows of prepared transactions, their total number, and the shards that did not answer."""
    found = await services.shards.request_all("transactions", {})
    rows = [
        {"shard": shard, **row} for shard, answer in found.items() for row in answer.fields["transactions"]
    ]
    services.map.refresh()
    return {
        "transactions": rows,
        "count": sum(answer.fields["count"] for answer in found.values()),
        "silent": sorted(set(services.map.shard_records) - set(found)),
    }


async def decide(request: Request) -> web.Response:
    """POST /!transactions/ID with {"decision": "commit" or "abort"}, at all shards that have prepared it.

    Refused while the deciding shard answers, or is registered: that shard decides without help.
    """
    request.manager()
    value = await request.json_object("decision")
    decision = value.get("decision")
    if decision not in DECISIONS:
        raise ProblemError(
            422,
            f"decision is {str(decision)[:40]!a}; expected {' or '.join(DECISIONS)}",
            field="decision",
            allowed=list(DECISIONS),
        )
    services = request.services
    id = request.rest[0]
    rows = [row for row in (await prepared(services))["transactions"] if row["id"] == id]
    if not rows:
        raise ProblemError(
            404, f"expected a transaction that waits at a shard that answers, found none with id {id[:80]!a}"
        )
    decides = rows[0]["decides"]
    peer, wait_ms = services.shards.peers.get(decides), limits.OVERVIEW_MS
    if decides in services.map.shards or (peer and await answers(peer, "transactions", wait_ms=wait_ms)):
        raise ProblemError(
            409,
            f"shard {decides} decides this transaction, and it is running: expected a shard that is lost for "
            "good. The other shards request its decision without help",
        )
    shards = [row["shard"] for row in rows]
    fields = {"id": id, "commit": decision == "commit"}
    done = await asyncio.gather(*(_conclude(services, shard, fields) for shard in shards))
    problems = {shard: why for shard, why in zip(shards, done, strict=True) if why}
    if problems:
        reasons = "; ".join(f"shard {shard}: {why}" for shard, why in problems.items())
        raise ProblemError(503, f"not all shards have applied it, send the same decision again: {reasons}")
    return web.json_response({"id": id, "decision": decision, "shards": shards})


async def _conclude(services: "Services", shard: int, fields: dict[str, Any]) -> str:
    """Why a shard has not concluded a transaction; empty if it has."""
    peer = services.shards.peers.get(shard)
    if peer is None:
        return "it is not connected"
    try:
        await peer.request("conclude", fields)
    except (ShardDownError, ShardRefusedError) as error:
        return str(error)
    return ""
