"""The commands `export` and `import`: every name, subscription and right as one JSON document."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

from lightrail.cli.administration import rabbitmq
from lightrail.cli.administration.client import AnswerError, Client, CommandError, UnreachableError
from lightrail.cli.administration.commands import Subparsers, add, printed_json
from lightrail.cli.administration.names import read_json
from lightrail.console.terminal import Progress, say

PIECE: Final = 250
"""Definitions of one request of an import: well below ANSWER_TIME_MAX_S, however slow the coordinator is."""
LISTS: Final = ("subscriptions", "permissions")


def register(things: Subparsers) -> None:
    """Adds these commands."""
    command = add(
        things, "export", _export, "write all definitions: names, subscriptions, rights; no secrets"
    )
    command.add_argument("file", metavar="FILE", nargs="?", default="-", help="default: standard output")
    command.add_argument("--prefix", metavar="PREFIX", help="only names at and below it")
    command = add(things, "import", _import, "import definitions; existing ones that differ are refused")
    command.add_argument(
        "file", metavar="FILE", help="of export, or RabbitMQ's definitions.json; - for standard input"
    )
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
    definitions, missing = read_json(parsed.file), None
    if rabbitmq.is_rabbitmq(definitions):
        try:
            definitions, missing = rabbitmq.convert(definitions)
        except rabbitmq.DefinitionsError as error:
            raise CommandError(f"{parsed.file} can't be read as RabbitMQ's definitions: {error}") from None
    report: dict[str, Any] = {
        "created": [],
        "changed": [],
        "unchanged": 0,
        "refused": [],
        "dry_run": parsed.dry_run,
    }
    if missing is not None:
        report["not_mapped"] = [each._asdict() for each in missing]
        if not parsed.json:
            # Before the import, which may end early.
            for each in missing:
                say(f"not mapped: {each.what}: {each.why}; {each.do}")
    pieces = [definitions] if parsed.dry_run else list(pieces_of(definitions))
    _send(client, parsed, pieces, report)
    if not printed_json(parsed, report):
        would = "would be " if parsed.dry_run else ""
        for what in ("created", "changed"):
            for name in report[what]:
                print(f"{would}{what}: {name}")
        for refused in report["refused"]:
            print(f"refused: {refused['what']}: {refused['why']}", file=sys.stderr)
        print(_sums(report, would) + (f", {len(missing):,} not mapped" if missing is not None else ""))
    return 1 if report["refused"] else 0


def pieces_of(definitions: Any) -> Iterator[Any]:
    """Definitions as documents of at most PIECE entries: names before what refers to them.

    A document of another form is one piece, which the gateway refuses with the reason.
    """
    names: Any = definitions
    lists: tuple[Any, ...] = ()
    if isinstance(definitions, dict):
        names = definitions.get("names", {})
        lists = tuple(definitions.get(key, []) for key in LISTS)
    if not isinstance(names, dict) or not all(isinstance(each, list) for each in lists):
        yield definitions
        return
    others = {key: value for key, value in definitions.items() if key not in ("names", *LISTS)}
    entries = list(names.items())
    yield from ({**others, "names": dict(part)} for part in _parts(entries) or [[]])
    for key, values in zip(LISTS, lists, strict=True):
        yield from ({**others, key: part} for part in _parts(values))


def _parts(entries: list[Any]) -> list[list[Any]]:
    return [entries[at : at + PIECE] for at in range(0, len(entries), PIECE)]


def _send(client: Client, parsed: argparse.Namespace, pieces: list[Any], report: dict[str, Any]) -> None:
    """Imports one piece after the other into the report. An error, or an interruption, says what was done."""
    query = {"dry_run": "true" if parsed.dry_run else None, "replace": "true" if parsed.replace else None}
    progress, done, total = Progress(), 0, sum(map(_size, pieces))
    try:
        for piece in pieces:
            answer = client.request("POST", "/!definitions", query=query, json_body=piece).json()
            for key in ("created", "changed", "unchanged", "refused"):
                report[key] += answer[key]
            done += _size(piece)
            progress.update(f"{done:,} of {total:,} definitions", done / max(total, 1))
    except (AnswerError, UnreachableError, KeyboardInterrupt) as error:
        progress.finish()
        if len(pieces) > 1:
            say(
                f"lightrail-admin: the import ended after {done:,} of {total:,} definitions "
                f"({_sums(report, '')}); of the next {PIECE} some may have been imported. Repeat the command "
                "to go on: what is there already stays as it is"
            )
            for refused in report["refused"]:
                say(f"refused: {refused['what']}: {refused['why']}")
        raise error
    finally:
        progress.finish()


def _size(piece: Any) -> int:
    """Number of entries of a document."""
    if not isinstance(piece, dict):
        return 0
    return sum(len(value) for key in ("names", *LISTS) if isinstance(value := piece.get(key), (dict, list)))


def _sums(report: dict[str, Any], would: str) -> str:
    return (
        f"{len(report['created']):,} {would}created, {len(report['changed']):,} {would}changed, "
        f"{report['unchanged']:,} as they were, {len(report['refused']):,} refused"
    )
