"""The command ``lightrail-admin``.

Commands for users, keys and rights change the data directory or etcd, and the repair of a journal changes its
directory, without a gateway. All other commands use the gateway of a running broker (cli/administration/).
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from lightrail.amqp.sasl import ROUNDS, ROUNDS_MAX, ROUNDS_MIN
from lightrail.cli import extra
from lightrail.cli.administration import entry
from lightrail.cli.administration.commands import Subparsers, group
from lightrail.console.pipe import piped
from lightrail.model.settings import COORDINATOR_SETTINGS, VARIABLE_PREFIX, descriptions

EXAMPLES: Final = f"""examples, by the files of a data directory, or by etcd:
  lightrail-admin user add alice                       prompts for the password
  lightrail-admin user add alice < password.txt        reads its first line
  lightrail-admin --data /var/lib/lightrail user password alice --password-file /run/secrets/alice
  lightrail-admin user add bob --rights send,listen --prefix myapp
  lightrail-admin user list --json
  lightrail-admin user remove alice
  lightrail-admin key make shop --rights send,listen   for connection strings of Azure Service Bus
  lightrail-admin permission set bob myapp/orders listen
  lightrail-admin permission set carol / all           everything: all rights on all names
  lightrail-admin permission list bob
  lightrail-admin permission clear bob myapp/orders
  lightrail-admin --etcd 10.0.0.1:2379 user add alice  in a cluster: before any process serves beyond loopback
  lightrail-admin journal repair ./data/shard-0        sets damaged records aside; stop the broker first

A running broker applies changes of users to new connections, and changes of rights at once: links that lost
their right are detached.

examples, by the gateway of a running broker:
{entry.EXAMPLES}
Exit status: 0 done, 1 refused or failed, 2 wrong use, 3 no gateway answers, 4 no message arrived.
"""


OF_COORDINATOR: Final = "for user, key, permission, shard accept-disk"


def _rounds(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not ROUNDS_MIN <= int(text[:12]) <= ROUNDS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text[:20]!a} rounds; expected a whole number from {ROUNDS_MIN} to {ROUNDS_MAX}"
        )
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 done, 1 refused, 2 wrong use; more in cli/administration."""
    return piped(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    parsed = _parser().parse_args(argv)
    if hasattr(parsed, "run"):
        return entry.run(parsed)
    what = " ".join(filter(None, (parsed.thing, getattr(parsed, "action", None))))
    if flags := entry.given(parsed):
        print(
            f"lightrail-admin: `{what}` uses no gateway, so {', '.join(flags)} is not allowed: it "
            "works on a data directory (--data, on the broker's machine) or on etcd (--etcd)",
            file=sys.stderr,
        )
        return 2
    if (refused := extra.refuse(f"lightrail-admin {what}")) is not None:
        return refused
    # Imported late: commands that use the gateway don't wait for modules that read and write files.
    status: int = importlib.import_module("lightrail.cli.files").run(parsed)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightrail-admin",
        description="Administer a LightRail broker.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        default=os.environ.get(VARIABLE_PREFIX + "DATA", "./data"),
        help="data directory of the broker (default ./data, or LIGHTRAIL_DATA)",
    )
    for name, metavar, help, _ in descriptions():
        if name in COORDINATOR_SETTINGS:
            flag = "--" + name.replace("_", "-")
            variable = VARIABLE_PREFIX + name.upper()
            parser.add_argument(flag, metavar=metavar, help=f"{help} (or {variable}); {OF_COORDINATOR}")
    things = parser.add_subparsers(dest="thing", required=True, metavar="THING")
    _add_users(things)
    _add_permissions(things)
    _add_keys(things)
    journals = group(things, "journal", "inspect and repair shard journals")
    mending = journals.add_parser(
        "repair", help="set damaged records aside, so that the shard can start again"
    )
    mending.add_argument("directory", metavar="DIR", help="directory of the journal, such as data/shard-0")
    entry.register(parser, things, journals)
    return parser


def _add_users(things: Subparsers) -> None:
    user = things.add_parser("user", help="who may connect")
    actions = user.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, help in (("add", "define a user"), ("password", "change the password of a user")):
        # Without abbreviations, which would read --password SECRET as --password-file SECRET.
        command = actions.add_parser(action, help=help, allow_abbrev=False)
        command.add_argument("name", metavar="NAME")
        command.add_argument(
            "--password-file", metavar="FILE", help="read the first line of FILE, instead of asking or stdin"
        )
        command.add_argument(
            "--rounds",
            type=_rounds,
            metavar="N",
            help="of PBKDF2, which each SCRAM client computes when it connects (default: "
            f"{ROUNDS['sha256']:,} for SHA-256, {ROUNDS['sha512']:,} for SHA-512)",
        )
        if action == "add":
            rights = command.add_mutually_exclusive_group()
            rights.add_argument(
                "--rights", metavar="RIGHTS", default="all", help="manage, send, listen (default: all three)"
            )
            rights.add_argument("--no-rights", action="store_true", help="none yet; see `permission set`")
            command.add_argument(
                "--prefix",
                metavar="P",
                default="/",
                help="grant them at and below this name (default: everything)",
            )
    actions.add_parser("remove", help="remove a user").add_argument("name", metavar="NAME")
    actions.add_parser("list", help="list users").add_argument("--json", action="store_true")


def _add_keys(things: Subparsers) -> None:
    key = things.add_parser("key", help="shared access keys, for clients of Azure Service Bus")
    actions = key.add_subparsers(dest="action", required=True, metavar="ACTION")
    command = actions.add_parser("make", help="make a key of a user, and the user if it does not exist")
    command.add_argument("name", metavar="NAME", help="name of the user, which is SharedAccessKeyName")
    command.add_argument(
        "--rights", metavar="RIGHTS", help="of a new user: manage, send, listen (default: all three)"
    )
    command.add_argument(
        "--prefix", metavar="P", help="grant them at and below this name (default: everything)"
    )
    command.add_argument("--json", action="store_true")
    command = actions.add_parser("show", help="print the keys of a user")
    command.add_argument("name", metavar="NAME")
    command.add_argument("--json", action="store_true")
    command = actions.add_parser("list", help="list users with keys, and the ids of the keys")
    command.add_argument("--json", action="store_true")
    command = actions.add_parser("delete", help="delete a key: new connections can't use it")
    command.add_argument("name", metavar="NAME")
    command.add_argument("id", metavar="ID", help="as `key list` shows it")
    command = actions.add_parser("rules", help="list the authorization rules of queues and topics")
    command.add_argument("name", metavar="NAME", nargs="?", help="at and below this name alone")
    command.add_argument("--json", action="store_true")
    command = actions.add_parser("delete-rule", help="delete an authorization rule: its open links end")
    command.add_argument("name", metavar="NAME", help="name of the queue or topic")
    command.add_argument("rule", metavar="RULE", help="as `key rules` shows it")


def _add_permissions(things: Subparsers) -> None:
    permission = things.add_parser("permission", help="what users may do with names")
    actions = permission.add_subparsers(dest="action", required=True, metavar="ACTION")
    command = actions.add_parser("set", help="set the rights of a user at and below a name")
    command.add_argument("name", metavar="USER")
    command.add_argument("prefix", metavar="PREFIX", help="a name such as myapp/orders; / is everything")
    command.add_argument("rights", metavar="RIGHTS", help="manage, send, listen by commas, or all")
    command = actions.add_parser("clear", help="revoke rights")
    command.add_argument("name", metavar="USER")
    command.add_argument(
        "prefix", metavar="PREFIX", nargs="?", help="prefix of one `set`; default: all of them"
    )
    command = actions.add_parser("list", help="list rights")
    command.add_argument("name", metavar="USER", nargs="?", help="only permissions of this user")
    command.add_argument("--json", action="store_true")


if __name__ == "__main__":
    sys.exit(main())
