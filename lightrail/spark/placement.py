"""Placement: loads of queues over hours, from events; their current shards, from a gateway; a plan of moves.

docs/formats/plan.md has the format of the plan, which `lightrail-admin rebalance --plan` carries out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documents call it

from lightrail.model.names import DEAD_LETTER_SEGMENT
from lightrail.model.placement import BASE, FORMAT, KIND, MovePlan, QueueLoad, Sum, plan
from lightrail.spark.analysis.history import ENDS
from lightrail.spark.columns import Event
from lightrail.spark.http import GatewayClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

READ: Final = ("queue", "event", "event_time", "message")
"""Columns of the data source that are read; of `message` only the length is used."""
_LOOKS: Final = 5
_BYTES_OF_A_UNIT: Final = 1024
"""Bytes per second that count as one message per second when bytes are weighed."""


class Load(NamedTuple):
    """One queue with its dead letters: messages and bytes per second that arrived, and that were delivered or
    ended."""

    messages: float
    bytes: float


class Loads(NamedTuple):
    """Loads of all queues with events."""

    queues: dict[str, Load]
    seconds: float
    """Seconds from the first to the last event of all queues; at least 1."""


def loads(events: "DataFrame", most: int) -> Loads | None:
    """Loads of all queues; None if there are more than `most` queues.

    Outgoing messages count with the mean size of incoming ones, because only enqueued events have bytes.

    Args:
        events: rows of the data source with the columns READ.
    """
    queue = F.regexp_replace("queue", f"/{DEAD_LETTER_SEGMENT.replace('$', '[$]')}$", "").alias("queue")
    came = F.col("event") == str(Event.ENQUEUED)
    ended = F.count_if(F.col("event").isin([str(each) for each in ENDS]))
    # Deliveries and ends of a message count once; old journals have no deliveries.
    out = F.greatest(F.count_if(F.col("event") == str(Event.DELIVERED)), ended)
    found = events.groupBy(queue).agg(
        F.count_if(came).alias("came"),
        F.coalesce(F.sum(F.when(came, F.length("message"))), F.lit(0)).alias("bytes"),
        out.alias("out"),
        F.min("event_time").alias("first"),
        F.max("event_time").alias("last"),
    )
    rows = found.limit(most + 1).toArrow().to_pylist()
    if len(rows) > most:
        return None
    if not rows:
        return Loads({}, 1.0)
    length = max(row["last"] for row in rows) - min(row["first"] for row in rows)
    seconds = max(length.total_seconds(), 1.0)
    return Loads(
        {
            row["queue"]: Load(
                (row["came"] + row["out"]) / seconds,
                row["bytes"] * (1 + row["out"] / row["came"]) / seconds if row["came"] else 0.0,
            )
            for row in rows
        },
        seconds,
    )


class UnsettledError(Exception):
    """Queues are placed faster than they can be listed; the message says what to do."""


@dataclass(slots=True)
class Placements:
    """The shard of each queue."""

    cluster: str
    revision: int
    active: set[int] = field(default_factory=set)
    """Active shards that answer."""
    draining: set[int] = field(default_factory=set)
    """Draining shards that answer."""
    silent: set[int] = field(default_factory=set)
    queues: dict[str, int] = field(default_factory=dict)
    members: dict[int, int] = field(default_factory=dict)
    """How many members each shard is to have; 1 without replicas."""
    replicas: dict[str, int] = field(default_factory=dict)
    """Members that the shard of a queue has to have, where that is more than one."""
    moving: dict[str, int] = field(default_factory=dict)
    """Destination of each queue that moves."""

    def state(self, shard: int) -> str:
        """The state of a shard in the plan."""
        return "draining" if shard in self.draining else "active"


def ask(client: GatewayClient) -> Placements:
    """Reads the placement from a gateway.

    Raises:
        GatewayError: the gateway does not answer, or refuses.
        UnsettledError: queues were placed during each of several attempts.
    """
    for _ in range(_LOOKS):
        found = _read_placements(client)
        if _now(client)["placement_revision"] == found.revision:
            return found
    raise UnsettledError(
        f"queues were placed or moved during each of {_LOOKS} listings of the shards: try again when moves "
        "have ended (`lightrail-admin rebalance --verify`)"
    )


def _now(client: GatewayClient) -> dict[str, Any]:
    answer: dict[str, Any] = client.get("/!plan", {"sample": 0, "max_moves": 0}).json()
    return answer


def _read_placements(client: GatewayClient) -> Placements:
    now = _now(client)
    found = Placements(now["cluster"], now["placement_revision"])
    for shard in client.get("/!shards").json()["shards"]:
        id = shard["id"]
        if not shard["serving"]:
            found.silent.add(id)
        elif shard["state"] == "draining":
            found.draining.add(id)
        else:
            found.active.add(id)
        found.members[id] = (shard.get("replicas") or {}).get("replicas", 1)
        queues = client.get(f"/!shards/{id}").json()
        found.queues |= dict.fromkeys(queues["queue_names"], id)
        found.replicas |= queues.get("queue_replicas", {})
    for move in client.get("/!moves").json()["moves"]:
        found.moving[move["queue"]] = move["to"]
    return found


@dataclass(slots=True)
class Proposal:
    """A plan, and the queues without a known load."""

    plan: MovePlan
    unknown: int
    """Number of queues without events, which stay at their shards."""


def propose(
    placement: Placements, loads: Mapping[str, Load], *, weigh: str = "messages", max_moves: int | None = None
) -> Proposal:
    """Plans moves for an even load. Queues without a known load stay, except on draining shards.

    Args:
        weigh: "messages" or "bytes", per second; BASE is added for each queue.

    Raises:
        ValueError: no shard is active.
    """
    movable: dict[str, QueueLoad] = {}
    fixed: dict[str, QueueLoad] = {}
    unknown = 0
    for queue, shard in placement.queues.items():
        known = loads.get(queue)
        unknown += known is None
        load = BASE
        if known is not None:
            load += known.messages if weigh == "messages" else known.bytes / _BYTES_OF_A_UNIT
        each = QueueLoad(shard, round(load, 3), replicas=placement.replicas.get(queue, 1))
        if queue in placement.moving:
            fixed[queue] = each._replace(shard=placement.moving[queue])
        elif (
            shard in placement.draining
            or each.replicas > placement.members.get(shard, 1)
            or (known is not None and shard in placement.active)
        ):
            movable[queue] = each
        else:
            fixed[queue] = each
    made = plan(
        movable,
        placement.active,
        placement.draining,
        fixed=fixed,
        max_moves=max_moves,
        members=placement.members,
    )
    return Proposal(made, unknown)


def document(placement: Placements, made: MovePlan, now_ms: int) -> dict[str, Any]:
    """The plan in the form for `lightrail-admin rebalance --plan`."""
    shards = []
    for shard, before in made.before.items():
        row: dict[str, Any] = {"id": shard, "state": placement.state(shard)}
        for key in Sum._fields:
            row[f"{key}_before"], row[f"{key}_after"] = getattr(before, key), getattr(made.after[shard], key)
        shards.append(row)
    moves = [
        {"queue": each.queue, "from": each.source, "to": each.to, "load": each.load, "bytes": each.bytes}
        for each in made.moves
    ]
    return {
        "format": FORMAT,
        "kind": KIND,
        "cluster": placement.cluster,
        "placement_revision": placement.revision,
        "made_at_ms": now_ms,
        "moves": moves,
        "shards": shards,
        "silent": sorted(placement.silent),
    }
