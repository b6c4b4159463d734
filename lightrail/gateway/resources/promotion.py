"""Promotion over HTTP: a member that is out of sync is to own a shard whose members in sync are all lost."""

from aiohttp import web

from lightrail.cluster.replica_sets import ReplicaSet, SetRefusedError
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.processes.reach import reach_of
from lightrail.gateway.request import Request
from lightrail.gateway.resources import replicas
from lightrail.gateway.resources.shards import check_stopped


async def promote(request: Request) -> web.Response:
    """POST /!shards/ID/replicas with {"member": ID, "lost": [ID…]}.

    What the lost members accepted and this one lacks is lost. If a lost one lives behind a partition, two
    owners may accept: nothing but the operator's word excludes that.
    """
    request.manager()
    value = await request.json_object("member", "lost")
    member, lost = value.get("member"), value.get("lost")
    if not isinstance(member, str):
        raise ProblemError(
            422, f"member is {str(member)[:40]!a}; expected the id of a member", field="member"
        )
    if not isinstance(lost, list) or not all(isinstance(each, str) for each in lost):
        raise ProblemError(
            422, f"lost is {str(lost)[:40]!a}; expected a list of ids of members", field="lost"
        )
    found = _set_of(request)
    unknown = next((each for each in (member, *lost) if each not in found.members), None)
    if unknown is not None:
        known = ", ".join(sorted(found.members))
        raise ProblemError(422, f"shard {found.shard} has no member {unknown[:64]!a}; it has {known}")
    _promoted(found, member, lost)
    services = request.services
    for each in sorted(found.in_sync):
        running = services.map.followers.get((found.shard, each))
        if running is not None:
            raise ProblemError(
                409,
                f"expected every member of shard {found.shard} in sync to be lost, found {each} running on "
                f"{running.host}: it takes over by itself. If its process was killed, wait until its "
                "registration has expired",
            )
    await check_stopped(request, replicas.record_of(request))
    answers = await reach_of(services, found)
    own = answers.get(member)
    if own is None or own.next_lsn <= 1:
        raise ProblemError(
            409,
            f"expected member {member} of shard {found.shard} to run and to have a part of the journal, "
            f"found that it {'does not answer: start it' if own is None else 'has none'}",
        )
    further = [each for each, reach in answers.items() if each not in lost and reach > own]
    if further:
        raise ProblemError(
            409,
            f"expected member {member} of shard {found.shard} to reach as far as every other one that runs, "
            f"found it at record {own.next_lsn - 1}, and {further[0]} at {answers[further[0]].next_lsn - 1}: "
            "promote that one, or name it as lost, too",
        )
    newest = max(reach.epoch for reach in answers.values())
    await replicas.write(services, found, _promoted(found, member, lost, newest))
    return web.json_response({"replicas": replicas.shown(services.map, found.shard)})


def _promoted(found: ReplicaSet, member: str, lost: list[str], epoch: int = 0) -> ReplicaSet:
    """The changed entry. Raises ProblemError."""
    try:
        return found.promoted(member, lost, epoch)
    except SetRefusedError as error:
        raise ProblemError(409, str(error)) from None


def _set_of(request: Request) -> ReplicaSet:
    """The members of the shard of a request. Raises ProblemError."""
    id = replicas.record_of(request).id
    found = request.services.map.replica_sets.get(id)
    if found is None:
        raise ProblemError(409, f"expected a shard with replicas, found that shard {id} has none")
    return found
