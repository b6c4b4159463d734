"""The commands `export` and `import`: every name, subscription and right as one JSON document."""

import argparse
import json
import os
import sys

from lightrail.cli.administration.client import Client
from lightrail.cli.administration.commands import CommandError, Subparsers, add
from lightrail.cli.administration.names import read_json
from lightrail.console.results import show_json


def register(things: Subparsers) -> None:
    """Adds these commands."""
    command = add(
        things, "export", _export, "write all definitions: names, subscriptions, rights; no secrets"
    )
    command.add_argument("file", metavar="FILE", nargs="?", default="-", help="default: standard output")
    command.add_argument("--prefix", metavar="PREFIX", help="only names at and below it")
    command = add(things, "import", _import, "import definitions; existing ones that differ are refused")
    command.add_argument("file", metavar="FILE", help="- for standard input")
    command.add_argument("--dry-run", action="store_true", help="only show the changes")
    command.add_argument("--replace", action="store_true", help="change existing definitions that differ")


def _export(client: Client, parsed: argparse.Namespace) -> int:
    definitions = client.get("/!definitions", prefix=parsed.prefix)
    text = json.dumps(definitions, indent=2, ensure_ascii=False) + "\n"
    if parsed.file == "-":
        sys.stdout.write(text)
        return 0
    part = f"{parsed.file}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, parsed.file)
    except OSError as error:
        raise CommandError(f"{parsed.file} can't be written: {error.strerror}") from None
    print(
        f"{len(definitions['names']):,} names, {len(definitions['subscriptions']):,} subscriptions and "
        f"{len(definitions['permissions']):,} rights written to {parsed.file}",
        file=sys.stderr,
    )
    return 0


def _import(client: Client, parsed: argparse.Namespace) -> int:
    query = {
        "dry_run": "true" if parsed.dry_run else None,
        "replace": "true" if parsed.replace else None,
    }
    report = client.request("POST", "/!definitions", query=query, json_body=read_json(parsed.file)).json()
    if parsed.json:
        show_json(report)
    else:
        would = "would be " if parsed.dry_run else ""
        for what in ("created", "changed"):
            for name in report[what]:
                print(f"{would}{what}: {name}")
        for refused in report["refused"]:
            print(f"refused: {refused['what']}: {refused['why']}", file=sys.stderr)
        print(
            f"{len(report['created']):,} {would}created, {len(report['changed']):,} {would}changed, "
            f"{report['unchanged']:,} as they were, {len(report['refused']):,} refused"
        )
    return 1 if report["refused"] else 0
