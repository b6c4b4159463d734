"""The commands `coordinator …`: restore the entries of an etcd that was set back to an older snapshot."""

import argparse

from lightrail.cli.administration.client import Client
from lightrail.cli.administration.commands import Subparsers, add, group
from lightrail.console.results import pairs, show_json
from lightrail.console.text import printable

PUT_BACK = """
For an etcd that was restored from an older snapshot while the cluster ran. The gateway writes the entries
that it has and this etcd lacks: names, policies, users, rights, subscriptions, readers, shards and
placements. After that all processes continue with this etcd. Nothing is deleted: entries that had been
deleted after the snapshot exist again, and are listed.
"""
SHOWN = 20
"""Number of keys of each kind that are printed; --json prints all."""


def register(things: Subparsers) -> None:
    """Adds these commands."""
    coordinator = group(things, "coordinator", "etcd, after it was set back to an older snapshot")
    add(coordinator, "show", _show, "show whether etcd was set back; exit status 1 if it was")
    add(
        coordinator,
        "put-back",
        _put_back,
        "write the lost entries again, and continue with this etcd",
        PUT_BACK,
    )


def _show(client: Client, parsed: argparse.Namespace) -> int:
    found = client.get("/!coordinator")["set_back"]
    if parsed.json:
        show_json(found)
    elif found is None:
        print("etcd has all revisions that this gateway knows")
    else:
        pairs({key: found[key] for key in ("known_at", "revision", "reason")})
    return 0 if found is None else 1


def _put_back(client: Client, parsed: argparse.Namespace) -> int:
    done = client.request("POST", "/!coordinator/put-back", json_body={}).json()
    if parsed.json:
        show_json(done)
        return 0
    for key, what in (
        ("written", "entries were written again"),
        ("kept", "entries were changed since, and stay as they are"),
        ("again", "entries had been deleted, or were created since: check whether they are wanted"),
    ):
        print(f"{len(done[key]):,} {what}")
        for each in done[key][:SHOWN]:
            print(f"    {printable(each)}")
        if len(done[key]) > SHOWN:
            print(f"    and {len(done[key]) - SHOWN:,} more")
    return 0
