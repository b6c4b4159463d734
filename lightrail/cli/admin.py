"""The command ``lightrail-admin``.

Users and the repair of a journal work on the files of a data directory, here; everything else talks to a
running broker through its gateway (cli/administration/).
"""

import argparse
import asyncio
import getpass
import json
import os
import sys
from collections.abc import Sequence
from typing import Final

from lightrail.cli.administration import entry
from lightrail.cluster.coordinator import Coordinator, CoordinatorError
from lightrail.cluster.sqlite import FILE_NAME, SqliteCoordinator
from lightrail.cluster.users import PASSWORD_BYTES_MAX, UserRecord, UserRefused, user_name
from lightrail.model.settings import VARIABLE_PREFIX
from lightrail.shard.journal.repair import repair
from lightrail.shard.journal.store import StoreError
from lightrail.telemetry.directories import DirectoryRefused, make_data_directory

EXAMPLES: Final = f"""examples, by the files of a data directory:
  lightrail-admin user add alice                       asks for the password
  lightrail-admin user add alice < password.txt        reads its first line
  lightrail-admin --data /var/lib/lightrail user password alice --password-file /run/secrets/alice
  lightrail-admin user list --json
  lightrail-admin user remove alice
  lightrail-admin journal repair ./data/shard-0        sets aside what can't be read; stop the broker first

A broker that runs sees changes of users with the next connection.

examples, by the gateway of a running broker:
{entry.EXAMPLES}
Exit status: 0 done, 1 refused or failed, 2 wrong use, 3 nobody answers, 4 no message came.
"""


class Refused(Exception):
    """What the command was asked can't be done; the message says why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 done, 1 refused, 2 wrong use; more in cli/administration."""
    parsed = _parser().parse_args(argv)
    if hasattr(parsed, "run"):
        return entry.run(parsed)
    try:
        if parsed.thing == "journal":
            return _repair(parsed.directory)
        return asyncio.run(_user(parsed))
    except (CoordinatorError, StoreError, UserRefused, DirectoryRefused, Refused) as error:
        print(f"lightrail-admin: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, EOFError):
        print("lightrail-admin: nothing was changed", file=sys.stderr)
        return 1


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
    things = parser.add_subparsers(dest="thing", required=True, metavar="THING")
    user = things.add_parser("user", help="who may connect")
    actions = user.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, help in (("add", "define a user"), ("password", "give a user another password")):
        # Without abbreviations: --password SECRET would be taken for --password-file SECRET.
        command = actions.add_parser(action, help=help, allow_abbrev=False)
        command.add_argument("name", metavar="NAME")
        command.add_argument(
            "--password-file", metavar="FILE", help="read the first line of FILE, instead of asking or stdin"
        )
    actions.add_parser("remove", help="remove a user").add_argument("name", metavar="NAME")
    actions.add_parser("list", help="list users").add_argument("--json", action="store_true")
    journal = things.add_parser("journal", help="files of a shard")
    mending = journal.add_subparsers(dest="action", required=True, metavar="ACTION").add_parser(
        "repair", help="set aside what is damaged, so that the shard starts again"
    )
    mending.add_argument("directory", metavar="DIR", help="directory of the journal, such as data/shard-0")
    entry.register(parser, things)
    return parser


async def _user(parsed: argparse.Namespace) -> int:
    if parsed.action != "list":
        parsed.name = user_name(parsed.name)
    path = os.path.join(parsed.data, FILE_NAME)
    if parsed.action == "add":
        make_data_directory(parsed.data)
    elif not os.path.exists(path):  # noqa: ASYNC240 - nothing else runs on this loop
        raise Refused(f"{path} is not there: no broker has used --data {parsed.data}, and no user is defined")
    coordinator = await SqliteCoordinator.open(path)
    try:
        return await _act(coordinator, parsed)
    finally:
        await coordinator.close()


async def _act(coordinator: Coordinator, parsed: argparse.Namespace) -> int:
    match parsed.action:
        case "add":
            await coordinator.add_user(UserRecord.make(parsed.name, _password(parsed)))
            print(f"user {parsed.name} is defined")
        case "password":
            await coordinator.replace_user(UserRecord.make(parsed.name, _password(parsed)))
            print(f"user {parsed.name} has another password")
        case "remove":
            await coordinator.remove_user(parsed.name)
            print(f"user {parsed.name} is removed")
            if not await coordinator.has_users():
                print(
                    "no user is left: a broker lets everybody on loopback in, nobody from outside",
                    file=sys.stderr,
                )
        case "list":
            users = await coordinator.users()
            lines = [json.dumps({"users": users})] if parsed.json else users
            sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def _password(parsed: argparse.Namespace) -> str:
    """From the file, a terminal (asked twice), or the first line of stdin; never from the command line."""
    if parsed.password_file:
        try:
            with open(parsed.password_file, encoding="utf-8") as file:
                return _first_line(file.readline(PASSWORD_BYTES_MAX + 2))
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(f"the password file {parsed.password_file} can't be read: {error}") from None
    if not sys.stdin.isatty():
        return _first_line(sys.stdin.readline(PASSWORD_BYTES_MAX + 2))
    password = getpass.getpass(f"Password of {parsed.name}: ")
    if getpass.getpass("Again: ") != password:
        raise Refused("the two passwords differ; nothing was changed")
    return password


def _first_line(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _repair(directory: str) -> int:
    print(repair(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
