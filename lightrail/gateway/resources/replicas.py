"""Replicas over HTTP: the members of a shard, how many it is to have and needs, and their removal."""

from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from lightrail.cluster.coordinator import ConflictError, Write
from lightrail.cluster.generations import last_generation
from lightrail.cluster.map import Map, Member, ShardRecord
from lightrail.cluster.replica_sets import MEMBERS_MAX, ReplicaSet, SetRefusedError, first, key_of
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.processes.health import Samples
from lightrail.gateway.processes.reach import reach_of
from lightrail.gateway.request import Request, whole_number
from lightrail.journal.record import range_of
from lightrail.telemetry.metrics import escape

if TYPE_CHECKING:
    from lightrail.gateway.services import Services

SHARD_MAX: Final = 1_000_000
FIGURES: Final = ("acknowledged_age_seconds", "behind_records", "ahead_bytes")
"""What an owner's metrics have of each other member."""


async def show(request: Request) -> web.Response:
    """GET /!shards/ID/replicas; with ?reach=true how far the journal of each member reaches, if it is known.

    A member that runs is asked. Of another one is known how far it knew records to be accepted when it
    reported last: at its start, and while it owned.
    """
    request.manager()
    id = record_of(request).id
    answer, found = shown(request.services.map, id), request.services.map.replica_sets.get(id)
    with_reach = request.flag("reach")
    if answer is not None and found is not None and (found.promoted_in or with_reach):
        reach = await reach_of(request.services, found)
        for row in answer["members"]:
            own = reach.get(row["member"])
            if with_reach:
                last, _ = await last_generation(request.services.coordinator, id, row["member"])
                reported = last.next_lsn - 1 if last is not None and last.next_lsn > 1 else None
                row["answers"] = own is not None
                row["last_epoch"] = None if own is None else own.epoch
                row["last_record"] = reported if own is None else own.next_lsn - 1
            if own is not None and not row["in_sync"] and range_of(own.next_lsn) < found.promoted_in:
                row["kept"] = _kept(own.next_lsn - 1, found.promoted_in)
    return web.json_response({"replicas": answer})


def _kept(last: int, epoch: int) -> str:
    """What to do about a member that is not where a promoted owner began; empty if it has no journal."""
    if not last:
        return ""
    return (
        f"it has records up to {last} of before the promotion in epoch {epoch}, and keeps them and does not "
        "follow if the owner lacks some: its log says so. To join again, it needs an empty directory"
    )


async def change(request: Request) -> web.Response:
    """PUT /!shards/ID/replicas with {"replicas", "min_in_sync", "owner"}, of which some may be missing.

    A shard without replicas gets its entry. Its process ends when it sees the entry, and is started again by
    its supervisor, as the only member. With `owner` the present one hands the shard over to that member: it
    ends when that is ready, and is started again as a member that follows.
    """
    request.manager()
    value = await request.json_object("replicas", "min_in_sync", "owner")
    record = record_of(request)
    found = request.services.map.replica_sets.get(record.id)
    before = _only_member(request, record) if found is None else found
    numbers = {
        name: _number(name, value.get(name, getattr(before, name))) for name in ("replicas", "min_in_sync")
    }
    try:
        changed = before.sized(**numbers)
    except SetRefusedError as error:
        raise ProblemError(422, str(error)) from None
    if "owner" in value:
        changed = _handed_over(request.services.map, changed, value["owner"])
    if changed.min_in_sync > max(before.min_in_sync, len(before.in_sync)):
        raise ProblemError(
            409,
            f"expected at least {changed.min_in_sync} members of shard {record.id} in sync, found "
            f"{len(before.in_sync)}: nothing more would be accepted. Start the others first, and raise the "
            "minimum when they are in sync",
        )
    if changed.replicas < len(before.members):
        raise ProblemError(
            409,
            f"expected at most {changed.replicas} members of shard {record.id}, found {len(before.members)}: "
            f"stop one, and remove it with `lightrail-admin shard remove-member {record.id} MEMBER` first",
        )
    if changed.replicas < before.replicas:
        _check_demands(request, changed)
    await write(request.services, before, changed)
    return _answer(request, record.id)


def _handed_over(map: Map, found: ReplicaSet, member: Any) -> ReplicaSet:
    """The entry by which the owner hands the shard over to a member that runs. Raises ProblemError."""
    if not isinstance(member, str):
        raise ProblemError(422, f"owner is {str(member)[:40]!a}; expected the id of a member", field="owner")
    if member == found.owner:
        return found
    try:
        changed = found.handed_over(member)
    except SetRefusedError as error:
        raise ProblemError(409, str(error)) from None
    if (found.shard, member) not in map.followers:
        raise ProblemError(
            409, f"expected a member of shard {found.shard} that runs, found {member} stopped: start it first"
        )
    return changed


def _check_demands(request: Request, changed: ReplicaSet) -> None:
    """Raises ProblemError if policies of queues at a shard, or on their way to it, demand more members."""
    map, directory = request.services.map, request.directory
    directory.refresh()
    coming = [each.queue for each in map.moves.values() if each.to == changed.shard]
    demands = {
        queue: directory.get(queue).policy["replicas"] for queue in (*map.queues_of(changed.shard), *coming)
    }
    queue = max(demands, key=demands.__getitem__, default="")
    if queue and demands[queue] > changed.replicas:
        raise ProblemError(
            409,
            f"expected at most {changed.replicas} replicas in the policies of the queues of shard "
            f"{changed.shard}, found {demands[queue]} in that of {queue}: lower it, or move the queue to a "
            "shard with as many members (lightrail-admin rebalance --plan)",
        )


async def remove_member(request: Request) -> web.Response:
    """DELETE /!shards/ID/replicas/MEMBER: a member that is out of sync and was stopped is none any more."""
    request.manager()
    await remove(request.services, request.rest[0], request.rest[2])
    return _answer(request, record_of(request).id)


async def remove(services: "Services", shard: str, member: str) -> None:
    """Removes a member of a shard. Raises ProblemError."""
    map = services.map
    id = _record_of(map, shard).id
    found = map.replica_sets.get(id)
    if found is None or member not in found.members:
        known = ", ".join(sorted(found.members)) if found is not None else "none, as it has no replicas"
        raise ProblemError(404, f"shard {id} has no member {member[:64]!a}; it has {known}")
    try:
        changed = found.left(member)
    except SetRefusedError as error:
        raise ProblemError(409, str(error)) from None
    running = map.followers.get((id, member))
    if running is not None:
        raise ProblemError(
            409,
            f"expected a member of shard {id} that was stopped, found {member} running on "
            f"{running.host}, which would join again: stop it first, or wait until the registration of a "
            "killed process has expired",
        )
    await write(services, found, changed)


def shown(map: Map, shard: int) -> dict[str, Any] | None:
    """The members of a shard; None if it has no replicas."""
    found = map.replica_sets.get(shard)
    if found is None:
        return None
    return {
        "epoch": found.epoch,
        "replicas": found.replicas,
        "min_in_sync": found.min_in_sync,
        "owner": found.owner,
        "in_sync": len(found.in_sync),
        "members": [
            {
                "member": member,
                "host": each.host,
                "owns": member == found.owner,
                "in_sync": member in found.in_sync,
                "running": (shard, member) in map.followers,
                **_place(map.followers.get((shard, member))),
            }
            for member, each in sorted(found.members.items(), key=lambda item: (item[1].host, item[0]))
        ],
        "waiting": _waiting(map, found),
    }


def _place(running: Member | None) -> dict[str, str]:
    """The machine on which a member runs, the file system of its directory there, and the server of a network
    file system; empty if not known."""
    boot, _, rest = (running.lock if running is not None else "").partition(":")
    return {
        "machine": boot,
        "file_system": f"{boot}:{rest.partition(':')[0]}" if boot else "",
        "storage": running.storage if running is not None else "",
    }


def _waiting(map: Map, found: ReplicaSet) -> list[dict[str, str]]:
    """Processes that can't become members of a shard, and why."""
    running = {member: each for (shard, member), each in map.followers.items() if shard == found.shard}
    rows = []
    for member, each in sorted(running.items()):
        if member not in found.members:
            try:
                found.joined(member, each.host, running.keys())
            except SetRefusedError as error:
                rows.append({"member": member, "host": each.host, "reason": str(error)})
    return rows


def figured(map: Map, shard: int, samples: Samples | None) -> dict[str, Any] | None:
    """As `shown`, with what the owner knows of the members by its metrics; None for what is not known.

    `required` is how many members must have a record before the owner accepts it. Of each other member:
    for how long it has not acknowledged what it was sent, and the records and bytes that it lacks.
    """
    found = shown(map, shard)
    if found is None:
        return None
    known = samples or {}
    found["required"] = known.get("lightrail_replica_required")
    for member in found["members"]:
        label = escape(member["host"] or member["member"])
        for key in FIGURES:
            member[key] = known.get(f'lightrail_replica_{key}{{member="{label}"}}')
    return found


def forgotten(map: Map, shard: int) -> list[Write]:
    """The writes by which a shard's messages are given up together with its replicas.

    Raises ProblemError: a member runs, or the shard has queues whose messages another member has.
    """
    found = map.replica_sets.get(shard)
    if found is None:
        return []
    running = [member for number, member in map.followers if number == shard]
    if running:
        raise ProblemError(409, f"member {running[0]} of shard {shard} still runs: stop it first")
    others = found.with_everything
    if len(others) > 1 and map.queues_of(shard):
        hosts = ", ".join(f"{member} on {found.members[member].host}" for member in sorted(others))
        raise ProblemError(
            409,
            f"{len(others)} members of shard {shard} {'have' if found.in_sync else 'may have'} all of its "
            f"messages: {hosts}. Start {'one of them; it serves' if found.in_sync else 'them; one serves'} "
            "the shard",
        )
    return [Write(found.key, None, found.revision)]


def record_of(request: Request) -> ShardRecord:
    """The entry of the shard of a request. Raises ProblemError."""
    return _record_of(request.services.map, request.rest[0])


def _record_of(map: Map, shard: str) -> ShardRecord:
    map.refresh()
    id = whole_number("the shard", shard, 0, SHARD_MAX)
    found = map.shard_records.get(id)
    if found is None:
        known = ", ".join(str(each) for each in sorted(map.shard_records))
        raise ProblemError(404, f"there is no shard {id}; there are {known}")
    return found


def _only_member(request: Request, record: ShardRecord) -> ReplicaSet:
    """What the entry of a shard would be that has no replicas. Raises ProblemError: it can have none."""
    settings = request.services.settings
    if not settings.etcd or settings.store != "journal":
        raise ProblemError(
            409,
            f"expected a broker with etcd and the store journal, whose shards may have replicas, found "
            f"{'etcd' if settings.etcd else 'no etcd'} and the store {settings.store}",
        )
    if not record.disk:
        raise ProblemError(409, f"shard {record.id} has no disk yet: start its process first")
    member = request.services.map.shards.get(record.id)
    host = member.host if member is not None else ""
    return first(record.id, record.disk, host, replicas=1, min_in_sync=1)


def _number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MEMBERS_MAX:
        raise ProblemError(
            422,
            f"{name} is {str(value)[:40]!a}; expected a whole number from 1 to {MEMBERS_MAX}",
            field=name,
        )
    return value


async def write(services: "Services", before: ReplicaSet, changed: ReplicaSet) -> None:
    """Changes the entry of a shard. Raises ProblemError: it was changed meanwhile."""
    try:
        await services.coordinator.write([before.write_of(changed)])
    except ConflictError:
        raise ProblemError(
            409, f"{key_of(before.shard)} was changed by somebody else just now; look again"
        ) from None
    finally:
        services.map.refresh()


def _answer(request: Request, shard: int) -> web.Response:
    return web.json_response({"replicas": shown(request.services.map, shard)})
