"""The commands `status`, `doctor` and `connections`: the state of the broker, and what is wrong with it."""

import argparse
from collections.abc import Iterable
from typing import Any, Final

from lightrail.cli.administration.client import AnswerError, Client, path_of
from lightrail.cli.administration.commands import Subparsers, add, group, listed, printed_json
from lightrail.cli.administration.findings import Finding
from lightrail.cli.administration.names import pages
from lightrail.cli.administration.replica_findings import WITHOUT_OWNER, about_clocks, about_replicas
from lightrail.console.terminal import pairs, printable, table
from lightrail.model.names import is_dead_letter, owner

BACKLOG = 1_000
"""The doctor warns from this number of ready messages of a queue without consumers."""
UNDECIDED_S = 60
"""The doctor warns if a transaction waits for the decision of another shard for this number of seconds."""
FULL = 0.9
"""The doctor warns from this part of a queue's limit."""
SILENT: Final = (
    "start it again where its directory is; the last lines of its log have the reason of its end. If the "
    "directory is lost, restore a copy, or give up its messages with lightrail-admin shard forget-disk {id}"
)
"""The remedy for a shard that does not answer."""
NO_ANSWER = "the disk has not answered"
"""Part of the reason of a shard whose disk does not answer."""
HANGS = (
    "check the disk of the data directory, its controller or the network to it, and the kernel's "
    "log; no accepted message is lost, and the shard continues when the disk answers"
)


def register(things: Subparsers) -> None:
    """Adds these commands."""
    add(things, "status", _status, "processes, shards and totals")
    add(things, "doctor", _doctor, "problems and their remedies; exit status 1 if there is an error")
    connections = group(things, "connections", "connections of clients")
    command = add(connections, "list", _connections, "all connections")
    command.add_argument("--user", metavar="NAME")
    command = add(connections, "show", _connection, "one connection with its sessions and links")
    command.add_argument("id", metavar="ID")
    command = add(connections, "close", _close, "close a connection; its client receives the reason")
    command.add_argument("id", metavar="ID", nargs="+")


def _status(client: Client, parsed: argparse.Namespace) -> int:
    status = client.get("/!status")
    if printed_json(parsed, status):
        return 0
    pairs({"version": status["version"], "ready": status["ready"], **status["totals"]})
    print()
    processes = [each | {"id": _number(each)} for each in status["processes"]]
    table(processes, ("role", "id", "ready", "restarts", "compiled"))
    print()
    table(status["shards"], ("id", "serving", "queues", "messages", "bytes", "memory_bytes", "disk_bytes"))
    for reason in status["reasons"]:
        print(printable(f"not ready: {reason}"))
    return 0 if status["ready"] else 1


def _doctor(client: Client, parsed: argparse.Namespace) -> int:
    status = client.get("/!status")
    try:
        found = diagnose(status, list(pages(client, "/!queues", "queues")))
    except AnswerError as error:
        if error.status != 503:
            raise
        # The processes that do not answer are among the findings.
        found = diagnose(status, [])
        found.insert(0, Finding("error", f"queues can't be listed: {error}", "check what is not ready"))
    if not printed_json(parsed, [finding._asdict() for finding in found]):
        for finding in found:
            print(f"{finding.severity}: {finding.what}\n    {finding.do}")
        print(f"{len(found)} findings" if found else "no problem found")
    return 1 if any(finding.severity == "error" for finding in found) else 0


def diagnose(status: dict[str, Any], queues: list[dict[str, Any]]) -> list[Finding]:
    """Problems in the answer of /!status and the rows of /!queues; errors first."""
    return sorted(_findings(status, queues), key=lambda finding: finding.severity)


def _number(process: dict[str, Any]) -> str:
    """The number of a process, and of the member that a follower is."""
    return f"{process['id']}/{process['member']}" if process.get("member") else str(process["id"])


def _findings(status: dict[str, Any], queues: list[dict[str, Any]]) -> Iterable[Finding]:
    yield from _not_ready(status)
    yield from _about_coordinator(status.get("coordinator", {}))
    yield from _about_python(status.get("unoptimised", []))
    yield from _about_modules(status["processes"])
    for process in status["processes"]:
        if process["restarts"]:
            yield Finding(
                "warning",
                f"{process['role']}-{_number(process)} was started again {process['restarts']} times",
                "its log has the reasons; many restarts mean a bug or a machine without memory",
            )
    yield from about_clocks(
        {
            f"{each['role']}-{_number(each)}": seconds
            for each in status["processes"]
            if (seconds := each.get("clock_ahead_seconds")) is not None
        }
    )
    yield from about_replicas(status["shards"], status.get("coordinator", {}).get("members"))
    for shard in status["shards"]:
        yield from (*_about_store(shard), *_about_transactions(shard), *_kept(shard))
    for queue in queues:
        if queue["ready"] is not None:
            yield from _about(queue)


def _not_ready(status: dict[str, Any]) -> Iterable[Finding]:
    """Reasons why the broker is not ready, with a remedy for each."""
    silent = {f"shard-{each['id']}": each for each in status["shards"] if not each.get("serving", True)}
    for reason in status.get("reasons", []):
        shard = silent.get(reason.partition(":")[0])
        if shard is not None and shard.get("replicas"):
            do = WITHOUT_OWNER.format(id=shard["id"])
        elif shard is not None:
            do = SILENT.format(id=shard["id"])
        elif NO_ANSWER in reason:
            do = HANGS
        else:
            do = "read the log of that process; the supervisor restarts it"
        yield Finding("error", f"not ready: {reason}", do)


def _about_coordinator(coordinator: dict[str, Any]) -> Iterable[Finding]:
    set_back = coordinator.get("set_back")
    if set_back:
        yield Finding(
            "error",
            f"etcd was set back to revision {set_back['revision']}, and revision "
            f"{set_back['known_at']} was known: "
            f"{set_back['reason']}. The known state is used, and nothing can be changed",
            "start the etcd that has it, or write the lost entries: lightrail-admin coordinator put-back",
        )
    full = coordinator.get("full")
    if full:
        whose = ", ".join(coordinator.get("full_for", ())) or "the gateway"
        yield Finding(
            "error",
            f"{full}; found by {whose}. The known state is used; names, policies, users and moves wait",
            "see LightRailCoordinatorFull in docs/operate/alerts.md for the commands of etcdctl",
        )


def _about_python(unoptimised: list[str]) -> Iterable[Finding]:
    """One finding for all processes whose Python was built without optimisations."""
    if unoptimised:
        yield Finding(
            "warning",
            f"the Python of {', '.join(unoptimised)} was built without optimisations, and needs up to half "
            "as much CPU again",
            "run the broker with a Python of the distribution, or one that was built with "
            "--enable-optimizations: docs/operate/running.md",
        )


def _about_modules(processes: list[dict[str, Any]]) -> Iterable[Finding]:
    """One finding for all processes that interpret what a message passes, where others have machine code."""
    names = [f"{each['role']}-{_number(each)}" for each in processes if each.get("compiled") is False]
    if names and any(each.get("compiled") for each in processes):
        yield Finding(
            "warning",
            f"what a message passes is interpreted in {', '.join(names)}, for up to twice the CPU",
            "in a checkout run `make compiled`, elsewhere install an image or a wheel with machine code: "
            "docs/operate/running.md",
        )


def _about_store(shard: dict[str, Any]) -> Iterable[Finding]:
    """Problems of a shard's disk."""
    if shard.get("store_full"):
        yield Finding(
            "error",
            f"shard {shard['id']} refuses messages: its disk has no room",
            "free space on the disk of the data directory, or let consumers settle messages; "
            "then messages are accepted again",
        )
    elif shard.get("store_failures"):
        yield Finding(
            "error",
            f"shard {shard['id']} could not write {shard['store_failures']} times",
            "free space on the disk of the data directory, or search the log for its errors",
        )


def _about_transactions(shard: dict[str, Any]) -> Iterable[Finding]:
    """Transactions that have waited for a long time for the decision of another shard."""
    seconds = shard.get("transaction_prepared_seconds") or 0
    if seconds >= UNDECIDED_S:
        yield Finding(
            "warning",
            f"{shard['transactions_prepared']} transactions wait at shard {shard['id']} for the decision of "
            f"another shard, the oldest for {seconds} s: their messages and deliveries wait, too",
            "start the shard that decides: lightrail-admin transactions list names it; if it is lost: "
            "lightrail-admin transactions decide",
        )


def _kept(shard: dict[str, Any]) -> Iterable[Finding]:
    """Queues that a shard stores and does not serve."""
    for row in shard.get("kept", []):
        name, messages = row["queue"], f"{row['messages']:,} messages"
        if row["role"] != "queue":
            what = f"shard {shard['id']} keeps {messages} of {name}, which has role {row['role']}"
            do = (
                f"to have them served: lightrail-admin names set {name} role=queue; "
                "to delete them, delete it after that"
            )
        elif row["shard"] != shard["id"]:
            where = "nowhere" if row["shard"] is None else f"at shard {row['shard']}"
            what = f"shard {shard['id']} keeps {messages} of {name}, which is {where} now without them"
            do = "they are not delivered: see docs/operate/cluster.md, Messages that are kept"
        else:
            continue
        yield Finding("warning", what, do)
    more = shard.get("kept_count", 0) - len(shard.get("kept", []))
    if more > 0:
        yield Finding("warning", f"shard {shard['id']} keeps {more} further queues", "its log names some")


def _about(queue: dict[str, Any]) -> Iterable[Finding]:
    name, ready = queue["name"], int(queue["ready"])
    messages = ready + sum(int(queue.get(key, 0)) for key in ("delayed", "deferred", "in_flight"))
    if is_dead_letter(name):
        if messages:
            source = owner(name)
            yield Finding(
                "warning",
                f"{messages:,} dead letters of {source}",
                f"see why: lightrail-admin dlq list {source}; then dlq redrive {source}, or purge {name}",
            )
        return
    if ready >= BACKLOG and not queue["consumers"]:
        yield Finding("warning", f"{name} has {ready:,} messages and no consumer", "start its consumers")
    for limit, now in (("max_length", messages), ("max_bytes", int(queue["bytes"]))):
        most = queue.get(limit)
        if most and now >= FULL * most:
            yield Finding(
                "warning",
                f"{name} is full by {now / most:.0%} ({limit} is {most:,})",
                f"add consumers, or raise it: lightrail-admin names set {name} {limit}={2 * most}",
            )


def _connections(client: Client, parsed: argparse.Namespace) -> int:
    rows = list(pages(client, "/!connections", "connections", user=parsed.user))
    return listed(
        parsed, rows, ("id", "user", "peer", "container", "sessions", "links", "transport", "tls", "since")
    )


def _connection(client: Client, parsed: argparse.Namespace) -> int:
    connection = client.get(path_of("!connections", parsed.id))
    if printed_json(parsed, connection):
        return 0
    sessions = connection.pop("session_list", connection.pop("sessions", []))
    pairs(connection)
    links = [link for each in sessions if isinstance(each, dict) for link in each.get("links", [])]
    if links:
        print()
        table(links, ("name", "role", "address", "credit", "unsettled", "state"))
    return 0


def _close(client: Client, parsed: argparse.Namespace) -> int:
    for id in parsed.id:
        client.request("DELETE", path_of("!connections", id))
        print(f"connection {id} is closed")
    return 0
