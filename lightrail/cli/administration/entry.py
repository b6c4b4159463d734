"""Entry of these commands: their common options, and what becomes of their errors."""

import argparse
import os
import sys
from typing import Final

from lightrail.cli.administration import coordination, definitions, messages, names, readers, rebalance, state
from lightrail.cli.administration.client import URL_DEFAULT, Client, Failed, Unreachable, authorization
from lightrail.cli.administration.commands import Refused, Subparsers, Usage
from lightrail.model.names import InvalidName
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


def register(parser: argparse.ArgumentParser, things: Subparsers, journals: Subparsers) -> None:
    """Adds the commands and the options by which they find the gateway; `journals` are those of `journal`."""
    gateway = parser.add_argument_group("the gateway, for commands that talk to a running broker")
    environ = os.environ
    gateway.add_argument(
        "--url",
        metavar="URL",
        default=environ.get(VARIABLE_PREFIX + "URL", URL_DEFAULT),
        help=f"its HTTP address (default {URL_DEFAULT}, or LIGHTRAIL_URL)",
    )
    gateway.add_argument(
        "--user",
        metavar="NAME",
        default=environ.get(VARIABLE_PREFIX + "USER"),
        help="who you are (or LIGHTRAIL_USER)",
    )
    gateway.add_argument(
        "--password-file",
        metavar="FILE",
        dest="user_password_file",
        default=environ.get(VARIABLE_PREFIX + "PASSWORD_FILE"),
        help="its first line is your password; asked for on a terminal (or LIGHTRAIL_PASSWORD_FILE)",
    )
    gateway.add_argument(
        "--token-file",
        metavar="FILE",
        default=environ.get(VARIABLE_PREFIX + "TOKEN_FILE"),
        help="a bearer token instead (or LIGHTRAIL_TOKEN_FILE)",
    )
    gateway.add_argument(
        "--ca",
        metavar="FILE",
        help="certificates to check the gateway's against, PEM (default: the system's)",
    )
    names.register(things)
    messages.register(things)
    definitions.register(things)
    state.register(things)
    rebalance.register(things)
    readers.register(things, journals)
    coordination.register(things)


def run(parsed: argparse.Namespace) -> int:
    """Runs the chosen command; the exit status."""
    client = None
    try:
        known = authorization(parsed.user, parsed.user_password_file, parsed.token_file)
        client = Client(parsed.url, known, parsed.ca)
        return int(parsed.run(client, parsed))
    except Usage as error:
        print(f"lightrail-admin: {error}", file=sys.stderr)
        return 2
    except Unreachable as error:
        print(f"lightrail-admin: {error}", file=sys.stderr)
        return 3
    except (Failed, Refused, InvalidName) as error:
        print(f"lightrail-admin: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, EOFError):
        print("lightrail-admin: interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read our output has had enough; Python would complain about it at exit once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        if client is not None:
            client.close()
