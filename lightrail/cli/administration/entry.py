"""Entry of these commands: their common options, and the exit status of each error."""

import argparse
import os
import sys
from typing import Final

from lightrail.cli.administration import (
    decisions,
    definitions,
    messages,
    names,
    readers,
    rebalance,
    shards,
    state,
)
from lightrail.cli.administration.client import (
    URL_DEFAULT,
    AnswerError,
    Client,
    CommandError,
    UnreachableError,
    UsageError,
    authorization,
)
from lightrail.cli.administration.commands import Subparsers
from lightrail.model.names import InvalidNameError
from lightrail.model.settings import VARIABLE_PREFIX

EXAMPLES: Final = """
  lightrail-admin status
  lightrail-admin names set myapp/orders role=queue lock_duration=30 max_delivery_count=5
  lightrail-admin --url https://broker:8443 --user alice --password-file pw queues myapp
  lightrail-admin send myapp/orders 'hello' --property colour=red
  lightrail-admin receive myapp/orders --timeout 10
  lightrail-admin subscriptions add myapp/events myapp/audit --subject 'orders.#'
  lightrail-admin dlq redrive myapp/orders
  lightrail-admin export definitions.json
  lightrail-admin import definitions.json --dry-run
  lightrail-admin doctor
  lightrail-admin rebalance --dry-run
  lightrail-admin shard list
  lightrail-admin journal list
  lightrail-admin reader list
"""


OPTIONS: Final = {
    "--url": "url",
    "--user": "user",
    "--password-file": "user_password_file",
    "--token-file": "token_file",
    "--ca": "ca",
}
"""Options of the gateway, and their argparse attributes."""


def register(parser: argparse.ArgumentParser, things: Subparsers, journals: Subparsers) -> None:
    """Adds the commands and the options of the gateway; `journals` are the subcommands of `journal`."""
    gateway = parser.add_argument_group("the gateway, for commands that use a running broker")
    gateway.add_argument(
        "--url", metavar="URL", help=f"its HTTP address (default {URL_DEFAULT}, or LIGHTRAIL_URL)"
    )
    gateway.add_argument("--user", metavar="NAME", help="user to log in as (or LIGHTRAIL_USER)")
    gateway.add_argument(
        "--password-file",
        metavar="FILE",
        dest="user_password_file",
        help="file whose first line is the password; without it a prompt (or LIGHTRAIL_PASSWORD_FILE)",
    )
    gateway.add_argument(
        "--token-file", metavar="FILE", help="a bearer token instead (or LIGHTRAIL_TOKEN_FILE)"
    )
    gateway.add_argument(
        "--ca", metavar="FILE", help="certificates that verify the gateway's, PEM (default: the system's)"
    )
    names.register(things)
    messages.register(things)
    definitions.register(things)
    state.register(things)
    rebalance.register(things)
    shards.register(things)
    readers.register(things, journals)
    decisions.register(things)


def given(parsed: argparse.Namespace) -> list[str]:
    """The options of the gateway that the command line has; only commands that use a gateway accept them."""
    return [flag for flag, dest in OPTIONS.items() if getattr(parsed, dest) is not None]


def run(parsed: argparse.Namespace) -> int:
    """Runs the chosen command; the exit status."""
    client = None

    def option(dest: str, variable: str) -> str | None:
        typed: str | None = getattr(parsed, dest)
        return typed if typed is not None else os.environ.get(VARIABLE_PREFIX + variable)

    try:
        known = authorization(
            option("user", "USER"),
            option("user_password_file", "PASSWORD_FILE"),
            option("token_file", "TOKEN_FILE"),
        )
        client = Client(option("url", "URL") or URL_DEFAULT, known, parsed.ca)
        return int(parsed.run(client, parsed))
    except (UsageError, UnreachableError, AnswerError, CommandError, InvalidNameError) as error:
        print(f"lightrail-admin: {error}", file=sys.stderr)
        return {UsageError: 2, UnreachableError: 3}.get(type(error), 1)
    except (KeyboardInterrupt, EOFError):
        print("lightrail-admin: interrupted", file=sys.stderr)
        return 1
    finally:
        if client is not None:
            client.close()
