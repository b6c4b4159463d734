"""Views of a broker that runs: what requests and pages show, each checked for the rights of who asks."""

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from lightrail.gateway import figures, incoming
from lightrail.gateway.couriers.transfers import Busy
from lightrail.gateway.instants import rfc3339
from lightrail.model import limits
from lightrail.model.names import dead_letter_name, is_dead_letter, owner
from lightrail.model.policy import Role
from lightrail.namespace.records import Name, Right
from lightrail.namespace.rights import Caller, demand, demand_look, may
from lightrail.namespace.service import Missing, Refused

if TYPE_CHECKING:
    from lightrail.gateway.app import Gateway

SHARD: Final = (
    ("messages", "lightrail_queue_messages"),
    ("bytes", "lightrail_queue_bytes"),
    ("memory_bytes", "lightrail_memory_bytes"),
    ("disk_bytes", figures.STORE_TOTAL),
    ("store_failures", "lightrail_store_failures_total"),
    ("store_full", "lightrail_store_full"),
    ("commit_seconds", "lightrail_commit_under_way_seconds"),
)
"""(key, sample) of a shard's row."""
COORDINATOR_FULL: Final = "lightrail_coordinator_full"
FULL: Final = "etcd has no space left and takes no writes"
"""The reason shown where only other processes had a write refused; their logs have etcd's own words."""
COLUMNS: Final = ("ready", "delayed", "in_flight", "bytes", "consumers")
"""Figures of a queue, each None, where no shard answers at all."""
TOTALS: Final = (
    ("shard", "messages", "lightrail_queue_messages"),
    ("shard", "bytes", "lightrail_queue_bytes"),
    ("frontend", "connections", "lightrail_connections"),
    ("shard", "received", "lightrail_queue_messages_enqueued_total"),
    ("shard", "delivered", "lightrail_queue_messages_delivered_total"),
)
"""(role, key, sample) of what is summed over all processes of a role."""


class BrokerViews:
    """See gateway/pages/views.py for what each method promises."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._directory = gateway.directory

    async def status(self, caller: Caller) -> dict[str, Any]:
        """Processes, shards and sums. A process that does not answer is a reason and no error."""
        self._manager(caller)
        gateway = self._gateway
        reasons = await gateway.health.reasons()
        found = await figures.read(gateway.health)
        totals: dict[str, Any] = {
            key: sum(int(each.get(sample, 0)) for member, each in found.items() if member.role == role)
            for role, key, sample in TOTALS
        }
        gateway.map.refresh()
        totals["queues"] = sum(gateway.map.loads.values())
        roles = [record.role for record in self._directory.below("")]
        totals["names"] = len(roles)
        totals["routers"] = roles.count(Role.ROUTER)
        totals["receivers_waiting"] = gateway.receivers.waiting
        kept = await self._kept()
        set_back = gateway.coordinator.set_back
        # Who has nothing to write does not find out.
        full = sorted(member.name for member, each in found.items() if each.get(COORDINATOR_FULL))
        return {
            "version": version("lightrail"),
            "ready": not reasons,
            "reasons": reasons,
            "processes": [
                {"role": each.role, "id": each.id, "ready": each.ready, "restarts": each.restarts}
                for each in gateway.members.list()
            ],
            "shards": self._shards(
                {member.id: samples for member, samples in found.items() if member.role == "shard"}, kept
            ),
            "totals": totals,
            "coordinator": {
                "set_back": None if set_back is None else set_back._asdict(),
                "full": gateway.coordinator.full or (FULL if full else None),
                "full_for": full,
            },
        }

    def _shards(
        self, found: Mapping[int, figures.Samples], kept: Mapping[int, dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """A row for each shard that is known; figures are None of one that does not tell them."""
        presence = self._gateway.presence
        rows = []
        for shard in sorted({*presence.known(), *found}):
            samples = found.get(shard)
            figured = {
                key: int(samples.get(sample, 0)) if samples is not None else None for key, sample in SHARD
            }
            if samples is None:
                figured["queues"] = presence.queues(shard)
            rows.append(
                {
                    "id": shard,
                    "serving": samples is not None and presence.serves(shard),
                    "placed": presence.queues(shard),
                    **figured,
                    **self._placed(shard),
                    **kept.get(shard, {}),
                }
            )
        return rows

    async def _kept(self) -> dict[int, dict[str, Any]]:
        """Of each shard that answers: queues that it keeps and does not serve, and what the name is by
        now.
        """
        found: dict[int, dict[str, Any]] = {}
        for shard, answer in (await self._gateway.shards.request_all("kept", {})).items():
            rows = []
            for row in answer.fields["queues"]:
                placed = self._gateway.map.placed(row["queue"])
                role = self._directory.get(row["queue"]).role
                rows.append({**row, "role": role, "shard": None if placed is None else placed.shard})
            found[shard] = {"kept_count": answer.fields["count"], "kept": rows}
        return found

    def _placed(self, shard: int) -> dict[str, Any]:
        """Whether a shard takes queues, how many it owns, used or not, and how many are on their way."""
        map = self._gateway.map
        known = map.shard_records.get(shard)
        return {
            "queues": map.loads[shard],
            "state": known.state if known else "active",
            "moving_in": sum(move.to == shard for move in map.moves.values()),
            "moving_out": sum(move.source == shard for move in map.moves.values()),
        }

    async def queues(self, caller: Caller, prefix: str, after: str, limit: int) -> dict[str, Any]:
        """Figures of queues behind `after`, by name; each has its dead-letter queue behind it."""
        self._directory.refresh()
        names = self._queue_names(caller, prefix, after)
        rows: list[dict[str, Any]] = []
        while len(rows) <= limit and (part := list(islice(names, limits.QUEUES_SHOWN_MAX))):
            rows += await self._rows(part)
        page = rows[:limit]
        return {"queues": page, "next": page[-1]["name"] if len(rows) > limit else None}

    async def queue(self, caller: Caller, name: str) -> dict[str, Any]:
        """One queue in full."""
        self._demand(caller, name, Right.LISTEN)
        answer = await self._gateway.shards.request(name, "queue", {})
        fields = answer.fields
        counters = fields.get("counters", {})
        return {
            "name": name,
            **{key: fields[key] for key in ("ready", "delayed", "in_flight", "parked", "bytes", "resident")},
            "next_sequence": fields["next_sequence"],
            "captured": fields.get("captured", False),
            "consumers": fields["consumer_count"],
            "producers": fields["producer_count"],
            "enqueued": counters.get("enqueued", counters.get("arrived", 0)),
            "delivered": counters.get("delivered", 0),
            "counters": counters,
            "consumers_list": fields["consumers"],
        }

    async def messages(self, caller: Caller, name: str, first: int, count: int) -> list[dict[str, Any]]:
        """Messages from a sequence on, without taking them."""
        self._demand(caller, name, Right.LISTEN)
        asked = {"from": first, "count": count, "bytes": limits.PEEK_BYTES_MAX}
        answer = await self._gateway.shards.request(name, "peek", asked)
        rows = []
        start = 0
        for row in answer.fields["messages"]:
            end = start + row["size"]
            rows.append(_message(row, bytes(answer.blob[start:end])))
            start = end
        return rows

    async def purge(self, caller: Caller, name: str) -> int:
        """Removes every message that no consumer holds."""
        self._demand(caller, name, Right.MANAGE)
        answer = await self._gateway.shards.request(name, "purge", {})
        return int(answer.fields["purged"])

    async def redrive(self, caller: Caller, name: str) -> dict[str, Any]:
        """Sends dead letters back to where they came from."""
        try:
            transfer = self._gateway.couriers.transfers.start(caller, {"from": name, "mode": "redrive"})
        except Busy as error:
            raise Refused(str(error)) from None
        return transfer.shown()

    async def connections(self, caller: Caller) -> list[dict[str, Any]]:
        """AMQP connections of all frontends."""
        self._manager(caller)
        return await self._gateway.connections.first()

    async def connection(self, caller: Caller, id: str) -> dict[str, Any]:
        """One of them."""
        self._manager(caller)
        return await self._gateway.connections.find(id)

    async def close_connection(self, caller: Caller, id: str) -> None:
        """Closes it; its client is told why."""
        self._manager(caller)
        await self._gateway.connections.end(id)

    # --- inside ----------------------------------------------------------------------------------------

    def _manager(self, caller: Caller) -> None:
        """Only who may manage all names."""
        self._directory.refresh()
        demand(self._directory, caller, Right.MANAGE, self._directory.get(""))

    def _demand(self, caller: Caller, name: str, right: Right) -> Name:
        self._directory.refresh()
        record = self._directory.get(name)
        if right is Right.LISTEN:
            demand_look(self._directory, caller, record)
        else:
            demand(self._directory, caller, right, record)
        if record.role is not Role.QUEUE:
            raise Missing(f"{name} has role {record.role}; expected a queue")
        return record

    def _queue_names(self, caller: Caller, prefix: str, after: str) -> Iterator[str]:
        """Queues that may be there, for who may listen or manage; rights are looked at one by one."""
        directory = self._directory
        begin, begin_is_dead = owner(after), is_dead_letter(after)
        names = (record.name for record in directory.below(prefix) if record.role is Role.QUEUE)
        for name in sorted(name for name in names if name >= begin):
            record = directory.get(name)
            if may(directory, caller, Right.MANAGE, record) or may(directory, caller, Right.LISTEN, record):
                if name != begin:
                    yield name
                if name != begin or not begin_is_dead:
                    yield dead_letter_name(name)

    async def _rows(self, names: list[str]) -> list[dict[str, Any]]:
        """Figures of those that are on a shard, in the order asked for."""
        shards = self._gateway.shards
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
                # Of a shard that answered: it was made a moment ago, and its shard has not looked since.
                row = {
                    "name": name,
                    **dict.fromkeys(columns, 0 if shard in answers else None),
                    "shard": shard,
                }
            policy = self._directory.get(name).policy
            if policy.role is Role.QUEUE:
                row |= {key: policy[key] for key in ("max_length", "max_bytes") if policy[key]}
            rows.append(row)
        return rows


def _message(row: dict[str, Any], message: bytes) -> dict[str, Any]:
    attempts = int(row.get("attempts", 0))
    times = {
        f"{key}_at": rfc3339(row[f"{field}_ms"]) if row.get(f"{field}_ms") else None
        for key, field in (("enqueued", "enqueued_at"), ("expires", "expires_at"), ("due", "due"))
    }
    shown = {
        "sequence": row["sequence"],
        "state": row["state"],
        "delivery_count": attempts,
        **times,
        "size": len(message),
        "priority": row.get("priority"),
        "durable": row.get("durable"),
    }
    return shown | incoming.as_json(message, int(row.get("message_format", 0)), attempts)
