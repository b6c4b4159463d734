"""The command `lightrail bus`: runs services, and manages their dead letters and outboxes.

It needs only the client, so an installation without the broker's packages has it.
"""

import argparse
import asyncio
import importlib
import json
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from lightrail.bus import Bus
from lightrail.bus.asyncapi import describe
from lightrail.bus.dead_letters import DeadLetter, DeadLetters
from lightrail.bus.errors import BusError
from lightrail.cli import processes
from lightrail.client import ClientError
from lightrail.client.options import Address
from lightrail.console.terminal import printable, show_json, table
from lightrail.transport import TransportError
from lightrail.transport.outbox_file import OutboxFile
from lightrail.transport.store_forward import BYTES_MAX, MESSAGES_MAX

EXAMPLES: Final = """examples:
  lightrail bus run shop.billing:bus --workers 4
  lightrail bus run shop.billing:bus --reload
  lightrail bus docs shop.billing:bus > billing.json
  lightrail bus errors list
  lightrail bus errors list subscriptions/billing/shop.order-placed
  lightrail bus errors show subscriptions/billing/shop.order-placed 4f1c
  lightrail bus errors retry subscriptions/billing/shop.order-placed --all
  lightrail bus outbox /var/lib/shop/outbox.db --json
"""
URL: Final = "amqp://localhost"
URL_VARIABLE: Final = "LIGHTRAIL_BUS_URL"
"""LIGHTRAIL_URL is the address of a gateway, for lightrail-admin and lightrail-spark."""
FAILED: Final = 1
WRONG_USE: Final = 2


def main(argv: Sequence[str]) -> int:
    """Runs a subcommand; returns the exit status."""
    parsed = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = parsed.run
    try:
        return run(parsed)
    except (BusError, ClientError, TransportError) as error:
        print(f"lightrail bus {parsed.command}: {error}", file=sys.stderr)
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightrail bus",
        description="Services on the bus: run them, and manage their dead letters and outboxes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a service until it is stopped by SIGINT or SIGTERM")
    run.add_argument("bus", metavar="MODULE:BUS", help="the Bus, as shop.billing:bus")
    run.add_argument("--workers", metavar="N", type=_positive, default=1, help="processes (default 1)")
    run.add_argument(
        "--reload", action="store_true", help="restart the processes whenever a Python file changes here"
    )
    run.add_argument(
        "--health",
        metavar="HOST:PORT",
        type=_address,
        help="serve /healthz and /readyz there, and /metrics with prometheus-client installed",
    )
    run.set_defaults(run=_run)

    docs = commands.add_parser("docs", help="print a description of a service, in AsyncAPI 3.0")
    docs.add_argument("bus", metavar="MODULE:BUS", help="the Bus, as shop.billing:bus")
    docs.add_argument("--title", help="of the service (default: the name of the bus)")
    docs.add_argument("--release", help="version of the service (default: LightRail's)")
    docs.set_defaults(run=_docs)

    _add_errors(commands)

    outbox = commands.add_parser("outbox", help="messages in an outbox on this disk")
    outbox.add_argument("file", metavar="FILE", type=Path, help="of a store-forward transport")
    outbox.add_argument(
        "--retry", metavar="SEQUENCE", type=int, nargs="+", help="forward refused messages again"
    )
    outbox.add_argument("--discard", metavar="SEQUENCE", type=int, nargs="+", help="delete refused messages")
    outbox.add_argument("--json", action="store_true", help="one JSON object")
    outbox.set_defaults(run=_outbox)
    return parser


def _add_errors(commands: Any) -> None:
    """`commands` is what add_subparsers returns; argparse has no public type for it."""
    errors = commands.add_parser("errors", help="dead letters: list, show, retry, discard")
    actions = errors.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, help in (
        ("list", "queues with dead letters, or those of one queue"),
        ("show", "one dead letter, with its body and the details of its failure"),
        ("retry", "send dead letters to their queue again"),
        ("discard", "delete dead letters"),
    ):
        action = actions.add_parser(name, help=help)
        action.add_argument(
            "queue", metavar="QUEUE", nargs="?" if name == "list" else None, help="the original queue"
        )
        if name == "show":
            action.add_argument("id", metavar="ID", help="of the message, or its beginning")
        elif name != "list":
            action.add_argument("id", metavar="ID", nargs="*", help="of messages, or their beginnings")
            action.add_argument("--all", action="store_true", help="all dead letters of the queue")
        action.add_argument(
            "--url",
            type=_url,
            default=os.environ.get(URL_VARIABLE, URL),
            help=f"of the broker (default {URL}, or the variable {URL_VARIABLE})",
        )
        action.add_argument("--json", action="store_true", help="one JSON object per line")
        action.set_defaults(run=_errors)


def _url(text: str) -> str:
    try:
        Address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; it is not the gateway of lightrail-admin") from None
    return text


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, as 127.0.0.1:8081, found {text!r}")
    return host.strip("[]"), int(port)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, found {number}")
    return number


# --- run -------------------------------------------------------------------------------------------------


def load_bus(name: str) -> Bus:
    """The bus that MODULE:BUS names. Raises BusError if there is none."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise BusError(f"expected MODULE:BUS, as shop.billing:bus, found {name!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise BusError(f"expected a module {module_name} here or on PYTHONPATH: {error}") from error
    found = getattr(module, attribute, None)
    if not isinstance(found, Bus):
        raise BusError(f"expected a Bus as {attribute} in {module_name}, found {type(found).__name__}")
    return found


def _run(parsed: argparse.Namespace) -> int:
    if parsed.workers > 1 and parsed.health is not None:
        print(
            "lightrail bus run: expected one worker with --health: each needs its own port", file=sys.stderr
        )
        return WRONG_USE
    if parsed.workers > 1 or parsed.reload:
        command = [sys.executable, "-m", "lightrail.cli.main", "bus", "run", parsed.bus]
        if parsed.health is not None:
            command += ["--health", "{}:{}".format(*parsed.health)]
        return processes.supervise(command, parsed.workers, Path.cwd() if parsed.reload else None)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    bus = load_bus(parsed.bus)
    metrics: Callable[[], bytes] | None = None
    if parsed.health is not None and find_spec("prometheus_client") is not None:
        from lightrail.bus.metrics import Metrics

        metrics = Metrics(bus).text
    asyncio.run(bus.run(health=parsed.health, metrics=metrics))
    return 0


def _docs(parsed: argparse.Namespace) -> int:
    show_json(describe(load_bus(parsed.bus), title=parsed.title, release=parsed.release))
    return 0


# --- errors ----------------------------------------------------------------------------------------------


def _errors(parsed: argparse.Namespace) -> int:
    actions: dict[str, Callable[[DeadLetters, argparse.Namespace], Coroutine[Any, Any, int]]] = {
        "list": _list,
        "show": _show,
        "retry": _settle,
        "discard": _settle,
    }
    if parsed.action in ("retry", "discard") and bool(parsed.id) == parsed.all:
        print(f"lightrail bus errors {parsed.action}: expected ids of messages, or --all", file=sys.stderr)
        return WRONG_USE

    async def run() -> int:
        async with DeadLetters(parsed.url) as letters:
            return await actions[parsed.action](letters, parsed)

    return asyncio.run(run())


async def _list(letters: DeadLetters, parsed: argparse.Namespace) -> int:
    if parsed.queue is None:
        counts = await letters.queues()
        if parsed.json:
            for queue, count in counts:
                print(json.dumps({"queue": queue, "dead_letters": count}))
        else:
            rows = [{"queue": queue, "dead letters": count} for queue, count in counts]
            table(rows, ["queue", "dead letters"])
        return 0
    found = await letters.of(parsed.queue)
    if parsed.json:
        for letter in found:
            print(json.dumps(_as_json(letter)))
    else:
        table([_as_json(letter) for letter in found], ["id", "type", "reason", "description"])
    return 0


async def _show(letters: DeadLetters, parsed: argparse.Namespace) -> int:
    found = [letter for letter in await letters.of(parsed.queue) if letter.id.startswith(parsed.id)]
    if len(found) != 1:
        print(
            f"lightrail bus errors show: expected one dead letter of {parsed.queue} whose id begins with "
            f"{parsed.id}, found {len(found)}",
            file=sys.stderr,
        )
        return FAILED
    [letter] = found
    if parsed.json:
        print(json.dumps(_as_json(letter) | {"body": letter.text}))
        return 0
    for name, value in _as_json(letter).items():
        print(f"{name}: {printable(str(value))}")
    print()
    print(letter.text)
    return 0


async def _settle(letters: DeadLetters, parsed: argparse.Namespace) -> int:
    wanted = None if parsed.all else parsed.id
    count = await (letters.retry if parsed.action == "retry" else letters.discard)(parsed.queue, wanted)
    verb = "sent again" if parsed.action == "retry" else "deleted"
    if parsed.json:
        print(json.dumps({"queue": parsed.queue, parsed.action: count}))
    else:
        print(f"{count} dead letters of {parsed.queue} were {verb}")
    return 0 if count or parsed.all else FAILED


def _as_json(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "type": letter.type,
        "reason": letter.reason,
        "description": letter.description,
        "headers": dict(letter.headers),
        "notes": {key: value for key, value in letter.notes.items() if isinstance(value, str | int | float)},
    }


# --- outbox ----------------------------------------------------------------------------------------------


def _outbox(parsed: argparse.Namespace) -> int:
    if not parsed.file.exists():
        print(f"lightrail bus outbox: expected an outbox at {parsed.file}, found none", file=sys.stderr)
        return FAILED
    file = OutboxFile(parsed.file, MESSAGES_MAX, BYTES_MAX)
    try:
        retried = file.retry(parsed.retry or [])
        discarded = file.discard(parsed.discard or [])
        depth = file.depth()
        refused = file.refused()
    finally:
        file.close()
    if parsed.json:
        print(
            json.dumps(
                {
                    "messages": depth.messages,
                    "bytes": depth.size,
                    "oldest_s": round(depth.oldest_s, 3),
                    "retried": retried,
                    "discarded": discarded,
                    "refused": [
                        {"sequence": each.sequence, "id": each.envelope.id, "reason": each.reason}
                        for each in refused
                    ],
                }
            )
        )
        return 0
    print(f"{depth.messages} messages of {depth.size} bytes wait, the oldest for {depth.oldest_s:.0f} s")
    if retried or discarded:
        print(f"{retried} refused messages are forwarded again, {discarded} were deleted")
    if refused:
        rows = [
            {"refused": each.sequence, "subject": each.envelope.subject or "", "reason": each.reason}
            for each in refused
        ]
        table(rows, ["refused", "subject", "reason"])
    return 0
