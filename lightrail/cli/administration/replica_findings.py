"""What the doctor finds about shards with replicas: members that are missing, out of sync or on one machine,
the etcd that they depend on, and clocks."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from lightrail.cli.administration.findings import Finding
from lightrail.console.terminal import counted

COORDINATORS_MIN: Final[int] = 3
"""Members of etcd of which one may be lost."""
SKEW_S: Final = 1.0
"""The doctor warns if the clocks of two processes differ by more than this."""
WITHOUT_OWNER: Final = (
    "lightrail-admin shard replicas {id} shows its members: start those in sync that do not run, each on its "
    "directory, and one of them takes over"
)
"""The remedy for a shard with replicas that does not answer."""


def about_replicas(shards: list[dict[str, Any]], coordinators: int | None) -> Iterable[Finding]:
    """Problems of shards with replicas.

    Args:
        shards: rows of /!status.
        coordinators: number of members of etcd; None if it is not known.
    """
    replicated = {int(shard["id"]): shard["replicas"] for shard in shards if shard.get("replicas")}
    for id, replicas in replicated.items():
        yield from _about_minimum(id, replicas)
        yield from _about_members(id, replicas)
        yield from _about_places(id, replicas)
        for each in replicas["waiting"]:
            yield Finding(
                "warning",
                f"a process on {each['host']} can't become a member of shard {id}, and waits: "
                f"{each['reason']}",
                f"do what its reason says, or stop it: lightrail-admin shard replicas {id} shows the members",
            )
    if replicated and coordinators is not None and coordinators < COORDINATORS_MIN:
        shown = ", ".join(map(str, replicated))
        yield Finding(
            "warning",
            f"etcd has {counted(coordinators, 'member')}, and shards with replicas depend on it ({shown}): "
            "while too few of them run, no member takes over, so the loss of a machine with etcd and an "
            "owner stops the shard",
            f"run etcd with {COORDINATORS_MIN} members on {COORDINATORS_MIN} machines: "
            "docs/operate/cluster.md",
        )


def about_clocks(ahead_s: Mapping[str, float]) -> Iterable[Finding]:
    """Clocks that differ.

    Args:
        ahead_s: by process, how far its clock is certainly ahead of that of the gateway that was asked.
    """
    clocks = {**ahead_s, "this gateway": 0.0}
    first, last = min(clocks, key=clocks.__getitem__), max(clocks, key=clocks.__getitem__)
    apart_s = clocks[last] - clocks[first]
    if apart_s > SKEW_S:
        yield Finding(
            "warning",
            f"the clock of {last} is {apart_s:,.1f} s ahead of that of {first}: where another process goes "
            "on with a queue, as after a take-over, messages expire, come due and leave the duplicate "
            "window by so much too early or too late",
            "synchronise the clocks of all machines (NTP); `timedatectl timesync-status` or `chronyc "
            "tracking` shows which is wrong",
        )


def _about_minimum(id: int, replicas: Mapping[str, Any]) -> Iterable[Finding]:
    """Too few members for the minimum, or an owner that does not demand the minimum."""
    minimum, in_sync, required = replicas["min_in_sync"], replicas["in_sync"], replicas.get("required")
    working = [each for each in replicas["members"] if each["in_sync"] and each["running"]]
    if len(working) < minimum:
        away = ", ".join(each["host"] for each in replicas["members"] if not each["running"])
        do = f"start its processes on {away}" if away else "wait until a member is in sync again"
        if working:
            do += (
                f"; if the others are lost for good, these accept alone: lightrail-admin shard replicas {id} "
                f"--min-in-sync {len(working)}"
            )
        yield Finding(
            "error",
            f"shard {id} accepts and delivers nothing: of its members in sync {len(working)} "
            f"{'runs' if len(working) == 1 else 'run'}, and its minimum is {minimum}",
            do,
        )
    # An owner that knows a minimum above those in sync demands one more, which never acknowledges.
    if required is not None and required < min(minimum, in_sync + 1):
        yield Finding(
            "error",
            f"the minimum of shard {id} is {minimum}, and its owner demands {int(required)}: the "
            "raised minimum is not in force, and what the owner accepts may be on fewer disks",
            f"the owner does not hear etcd: see its log, and the network between {_owner(replicas)} and etcd",
        )


def _about_members(id: int, replicas: Mapping[str, Any]) -> Iterable[Finding]:
    """Members that do not run or are not in sync, and members that are lacking."""
    members, minimum = replicas["members"], replicas["min_in_sync"]
    for each in members:
        if each["in_sync"] and each["running"]:
            continue
        state = "is not in sync" if each["running"] else "does not run"
        lag = f", and lacks {int(lacks):,} records" if (lacks := each.get("behind_records")) else ""
        age_s = each.get("acknowledged_age_seconds") or 0
        since = f"; it has not acknowledged for {age_s:,.0f} s{lag}" if age_s >= 1 else lag
        if each["running"]:
            do = (
                "it fetches what it lacks, and is added when it keeps up; if that does not end, its log and "
                f"the owner's ({_owner(replicas)}) say why"
            )
        else:
            do = (
                f"start its process on {each['host']}, on an empty directory if its disk is lost; if it is "
                f"not to come back: lightrail-admin shard remove-member {id} {each['host']}"
            )
        yield Finding(
            "warning", f"member {each['host']} of shard {id} {state}{since}. {_at_risk(replicas)}", do
        )
    lacking = replicas["replicas"] - len(members)
    if lacking > 0:
        yield Finding(
            "warning",
            f"shard {id} has {counted(len(members), 'member')}, and is to have {replicas['replicas']}. "
            f"{_at_risk(replicas)}",
            f"start {lacking} more on other hosts (lightrail shard --id {id}), or lower the number: "
            f"lightrail-admin shard replicas {id} --replicas {max(len(members), minimum)}",
        )


def _about_places(id: int, replicas: Mapping[str, Any]) -> Iterable[Finding]:
    """Members that are lost together."""
    found: set[tuple[str, ...]] = set()
    for key, what, lost in (
        ("file_system", "lie on one file system of one machine", "disk"),
        ("machine", "run on one machine", "machine"),
        ("storage", "lie on the network storage of one server", "storage"),
    ):
        places: dict[str, list[str]] = {}
        for each in replicas["members"]:
            if each.get(key):
                places.setdefault(each[key], []).append(each["host"])
        for hosts in map(tuple, places.values()):
            if len(hosts) > 1 and hosts not in found:
                found.add(hosts)
                yield Finding(
                    "warning",
                    f"members {', '.join(hosts)} of shard {id} {what}, and are lost together",
                    f"move all but one to another {lost}: stop it, wait until it is out of sync, "
                    f"lightrail-admin shard remove-member {id} {hosts[-1]}, and start one on an empty "
                    "directory there",
                )


def _at_risk(replicas: Mapping[str, Any]) -> str:
    """What the next loss does to a shard."""
    spare = replicas["in_sync"] - replicas["min_in_sync"]
    if replicas["in_sync"] == 1:
        return "One disk alone has all of its messages"
    if spare <= 0:
        return "The loss of one more member stops the shard"
    return f"The shard accepts with {counted(spare, 'member')} fewer"


def _owner(replicas: Mapping[str, Any]) -> str:
    """Host of the owner."""
    hosts = [each["host"] for each in replicas["members"] if each["owns"]]
    return hosts[0] if hosts else "an unknown host"
