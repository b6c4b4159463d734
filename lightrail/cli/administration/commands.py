"""Commands of a gateway: their registration with common options, and their output as JSON or as a table."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from lightrail.cli.administration.client import Client
from lightrail.console.terminal import show_json, table

Subparsers = Any
"""The result of add_subparsers, whose type argparse does not publish."""
Run = Callable[[Client, argparse.Namespace], int]


def group(things: Subparsers, name: str, help: str) -> Subparsers:
    """Adds a command that has subcommands."""
    return things.add_parser(name, help=help).add_subparsers(dest="action", required=True, metavar="ACTION")


def add(
    where: Subparsers, name: str, run: Run, help: str, epilog: str | None = None
) -> argparse.ArgumentParser:
    """Adds a command; `run(client, parsed)` returns the exit status."""
    command: argparse.ArgumentParser = where.add_parser(
        name, help=help, description=help, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")
    command.set_defaults(run=run)
    return command


def printed_json(parsed: argparse.Namespace, value: Any) -> bool:
    """Prints a value as JSON where --json is given; returns whether it is."""
    if parsed.json:
        show_json(value)
    return bool(parsed.json)


def listed(parsed: argparse.Namespace, rows: list[Any], columns: Sequence[str]) -> int:
    """Prints rows, as JSON or as a table; returns the exit status."""
    if not printed_json(parsed, rows):
        table(rows, columns)
    return 0
