"""The command ``lightrail``: serve a whole broker, run one process of it, or measure any broker.

Modules of the broker are imported late: without the extra `broker` this command reports what is missing.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from lightrail import native
from lightrail.cli import extra
from lightrail.console.pipe import piped
from lightrail.model.setting_values import SettingsError, format_duration, format_size
from lightrail.model.settings import VARIABLE_PREFIX, Settings, descriptions, names

EXAMPLES: Final = """examples:
  lightrail serve
  lightrail serve --data /var/lib/lightrail --frontends 2 --shards 2
  lightrail serve --amqp 127.0.0.1:0 --http 127.0.0.1:0 --json
  lightrail serve --amqp 0.0.0.0:5672 --amqps 0.0.0.0:5671 --tls-certificate server.pem --tls-key server.key
  LIGHTRAIL_MEMORY_MARK=256MB lightrail serve --config lightrail.toml
  lightrail emulator --config Config.json
  lightrail shard --etcd 10.0.0.1:2379 --wire 0.0.0.0:5680 --wire-key wire.key --data /var/lib/lightrail
  lightrail bench --help
  lightrail trace
  lightrail bus run shop.billing:bus --workers 4
"""
SOURCES: Final = (
    'Every setting is also a key of the TOML file given by --config (memory_mark = "64MB") and a variable '
    "(LIGHTRAIL_MEMORY_MARK=64MB). Flags win over variables, variables over the file."
)
TOOLS: Final = {
    "bench": "lightrail.bench.__main__",
    "bus": "lightrail.cli.bus",
    "trace": "lightrail.cli.trace.main",
}
"""Commands with flags of their own. They load the client, which no server process should load; `bus` needs
no packages of the broker."""
NUMBER_MAX: Final = 9_999
"""Highest number of a frontend, shard or gateway."""
ROLES: Final = {
    "frontend": "one process that serves AMQP clients",
    "shard": "one process that owns queues",
    "gateway": "one process that serves HTTP",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None and arguments[:1] in (["frontend"], ["shard"]):
        # This process passes messages; before it imports what does.
        native.install()
    return piped(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    if (tool := TOOLS.get(arguments[0]) if arguments else None) is not None:
        if arguments[0] != "bus" and (refused := extra.refuse(f"lightrail {arguments[0]}")) is not None:
            return refused
        status: int = importlib.import_module(tool).main(arguments[1:])
        return status
    parsed = _parser().parse_args(arguments)
    if (refused := extra.refuse(f"lightrail {parsed.command}")) is not None:
        return refused
    if parsed.command == "wire-key":
        return _wire_key(parsed.file)
    try:
        if parsed.command == "emulator":
            from lightrail.cli import emulator

            return emulator.run(parsed)
        settings = _settings(parsed)
        if parsed.command == "serve":
            from lightrail.cli import serve

            return serve.serve(settings, as_json=parsed.json)
        number = _number(parsed.id, settings)
        from lightrail.cli import alone

        return alone.run(parsed.command, number, settings)
    except SettingsError as error:
        print(f"lightrail {parsed.command}: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightrail",
        description="LightRail, a fast and durable AMQP 1.0 broker of several processes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lightrail {version('lightrail')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser(
        "serve",
        help="run a whole broker on this machine",
        description="Run a broker.",
        epilog=SOURCES,
        allow_abbrev=False,
    )
    add_settings(command)
    command.add_argument("--json", action="store_true", help="when ready, print one line of JSON, not help")
    command = commands.add_parser(
        "emulator",
        help="run a broker in the place of the emulator of Azure Service Bus",
        description="Run a broker with the ports of the emulator of Azure Service Bus (5672 and 5300), and "
        "with the entities of its Config.json. Other options are those of `lightrail serve`.",
        epilog=SOURCES.replace("--config", "--settings"),
        allow_abbrev=False,
    )
    command.add_argument("--config", metavar="FILE", help="Config.json of the emulator, with comments")
    add_settings(command, "--settings")
    command.add_argument("--json", action="store_true", help="when ready, print one line of JSON, not help")
    for role, help in ROLES.items():
        command = commands.add_parser(
            role, help=help, description=f"Run {help}.", epilog=SOURCES, allow_abbrev=False
        )
        command.add_argument(
            "--id",
            metavar="N|auto",
            default=os.environ.get(VARIABLE_PREFIX + "ID"),
            help="its number, from 0; auto, the default with --etcd: a shard has the number of its directory "
            "below --data, other processes get the smallest free number",
        )
        add_settings(command)
    command = commands.add_parser(
        "wire-key",
        help="make a key for the wire between machines",
        description="Make the key that all processes of an installation share: --wire-key.",
    )
    command.add_argument("file", metavar="FILE", help="a new file; only its owner may read it")
    commands.add_parser("bench", help="send and receive at full speed, against any AMQP 1.0 broker")
    commands.add_parser("trace", help="print the files and functions that one message passes")
    commands.add_parser("bus", help="run services on the bus; manage their dead letters and outboxes")
    return parser


def _number(text: str | None, settings: Settings) -> int | None:
    """The number of a process; None if the process chooses it. Raises SettingsError."""
    if text is None:
        return None if settings.etcd else 0
    if text == "auto":
        if not settings.etcd:
            raise SettingsError("--id is 'auto', which needs --etcd; expected a whole number from 0")
        return None
    if not text.isascii() or not text.isdigit() or int(text) > NUMBER_MAX:
        raise SettingsError(f"--id is {text!r}; expected auto, or a whole number from 0 to {NUMBER_MAX}")
    return int(text)


def _wire_key(path: str) -> int:
    from lightrail.wire.sockets import keys
    from lightrail.wire.sockets.keys import WireKeyError

    try:
        keys.write(path)
    except WireKeyError as error:
        print(f"lightrail wire-key: {error}", file=sys.stderr)
        return 1
    print(
        f"{path} holds a new key: copy it to all processes of the installation (--wire-key) and nowhere else"
    )
    return 0


def add_settings(parser: argparse.ArgumentParser, file: str = "--config") -> None:
    """A flag for every setting, and one for a file of settings."""
    parser.add_argument(file, metavar="FILE", default=None, help="TOML file with settings")
    for name, metavar, help, default in descriptions():
        switch = isinstance(default, bool)  # --allow-anonymous alone means true
        parser.add_argument(
            "--" + name.replace("_", "-"),
            dest=name,
            metavar=metavar,
            default=argparse.SUPPRESS,
            help=_help(name, metavar, help, default).replace("%", "%%"),
            nargs="?" if switch else None,
            const="true" if switch else None,
        )


def _help(name: str, metavar: str, help: str, default: Any) -> str:
    """The help of a setting, with its default in the form of the flag."""
    match default:
        case None | False | ():
            return help
        case int() if name in ("frontends", "shards"):
            return help
        case True:
            shown = "true"
        case int() if metavar == "TIME":
            shown = format_duration(default)
        case int() if metavar == "SIZE":
            shown = format_size(default)
        case tuple() if name == "sasl_mechanisms":
            shown = ",".join(default)
        case _:
            shown = str(default)
    return f"{help} (default {shown})"


def _settings(parsed: argparse.Namespace) -> Settings:
    given: Mapping[str, Any] = vars(parsed)
    return Settings.load(
        flags={name: given[name] for name in names() if name in given},
        environ=os.environ,
        config=parsed.config or os.environ.get(VARIABLE_PREFIX + "CONFIG"),
    )


if __name__ == "__main__":
    sys.exit(main())
