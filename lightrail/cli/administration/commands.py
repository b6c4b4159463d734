"""Registration of commands, with their common options."""

import argparse
from collections.abc import Callable
from typing import Any

from lightrail.cli.administration.client import Client

Subparsers = Any
"""The result of add_subparsers, whose type argparse does not publish."""
Run = Callable[[Client, argparse.Namespace], int]


class UsageError(Exception):
    """The command line is wrong; the message has what was expected."""


class CommandError(Exception):
    """The command failed, or needs a confirmation; the message has the next step."""


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
