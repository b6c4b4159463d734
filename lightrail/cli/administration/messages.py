"""The commands `send`, `receive`, `peek`, `purge`, `move` and `dlq`: messages of a name."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from lightrail.cli.administration.client import (
    AnswerError,
    Client,
    CommandError,
    Response,
    UsageError,
    path_of,
)
from lightrail.cli.administration.commands import Subparsers, add, group, listed, printed_json
from lightrail.cli.administration.names import confirmed, json_argument, pages
from lightrail.console.terminal import Progress, show_json, table
from lightrail.model.names import DEAD_LETTER_SEGMENT, dead_letter_name, is_dead_letter

NOTHING: Final = 4
"""Exit status of a receive without a message."""
POLL_S: Final = 0.2
PROPERTY: Final = "lightrail-property-"
PEEK_COLUMNS: Final = ("sequence", "state", "delivery_count", "enqueued_at", "size", "subject", "body")


def register(things: Subparsers) -> None:
    """Adds these commands."""
    command = add(things, "send", _send, "send a message: its body from the command line or standard input")
    command.add_argument("name", metavar="NAME")
    command.add_argument("body", metavar="BODY", nargs="?", help="text; left out, standard input is sent")
    command.add_argument(
        "--property",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an application property; numbers, true, false and null as in JSON",
    )
    command.add_argument("--subject", metavar="TEXT")
    command.add_argument("--message-id", metavar="ID")
    command.add_argument("--group-id", metavar="ID")
    command.add_argument("--content-type", metavar="TYPE", default="text/plain")
    command.add_argument("--ttl", metavar="SECONDS", type=float)
    command.add_argument("--priority", metavar="0..9", type=int)
    command.add_argument(
        "--delay", metavar="SECONDS", type=float, help="for queues with the policy field delay"
    )
    command.add_argument("--transient", action="store_true", help="do not wait for the disk")
    command.add_argument("--count", metavar="N", type=int, default=1, help="number of copies (default 1)")
    command = add(things, "receive", _receive, f"receive messages; exit status {NOTHING} when there is none")
    command.add_argument("name", metavar="NAME")
    command.add_argument("--timeout", metavar="SECONDS", type=float, default=0, help="wait for a message")
    command.add_argument("--count", metavar="N", type=int, default=1, help="largest number (default 1)")
    command = add(things, "peek", _peek, "show messages without consuming them")
    command.add_argument("name", metavar="NAME")
    command.add_argument("--count", metavar="N", type=int, default=10)
    command.add_argument("--from", metavar="SEQUENCE", type=int, default=0, dest="first")
    command = add(things, "purge", _purge, "delete all messages but unsettled deliveries")
    command.add_argument("name", metavar="NAME")
    command.add_argument("--yes", action="store_true", help="without asking")
    command = add(things, "move", _move, "move or copy messages to another name, by the gateway")
    command.add_argument("source", metavar="FROM")
    command.add_argument("target", metavar="TO")
    command.add_argument("--copy", action="store_true", help="copy them instead of moving them")
    command.add_argument("--count", metavar="N", type=int, help="largest number (default: all present now)")
    command.add_argument(
        "--filter", metavar="JSON", help="only messages that match, see `subscriptions add --help`"
    )
    dlq = group(things, "dlq", "dead letters")
    command = add(dlq, "list", _dead_letters, "dead-letter queues with messages, or the messages of one")
    command.add_argument("name", metavar="NAME", nargs="?")
    command.add_argument("--count", metavar="N", type=int, default=100)
    command = add(dlq, "redrive", _redrive, "send dead letters to the queues that they come from")
    command.add_argument("name", metavar="NAME", help="the queue, or its dead-letter queue")
    command.add_argument("--to", metavar="NAME", help="send them to this name instead")
    command.add_argument("--count", metavar="N", type=int)
    command.add_argument("--filter", metavar="JSON")


# --- send and receive ------------------------------------------------------------------------------------


def _send(client: Client, parsed: argparse.Namespace) -> int:
    body = sys.stdin.buffer.read() if parsed.body is None else parsed.body.encode()
    properties = {
        "Subject": parsed.subject,
        "MessageId": parsed.message_id,
        "GroupId": parsed.group_id,
        "TimeToLive": parsed.ttl,
        "Priority": parsed.priority,
        "DeliveryDelay": parsed.delay,
        "Durable": False if parsed.transient else None,
    }
    headers = {
        "Content-Type": parsed.content_type,
        "BrokerProperties": json.dumps(
            {key: value for key, value in properties.items() if value is not None}
        ),
    }
    for text in parsed.property:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"--property {text!a}: expected NAME=VALUE")
        headers["LightRail-Property-" + key] = json.dumps(_value(value))
    progress = Progress()
    sent = []
    try:
        for number in range(parsed.count):
            response = client.request("POST", path_of(parsed.name), body=body, headers=headers)
            sent.append(response.headers.get("location"))
            progress.update(*_so_far("sent", number + 1, parsed.count))
    finally:
        progress.finish()
    if not printed_json(parsed, {"sent": len(sent), "locations": sent}):
        print(f"{len(sent):,} {'message' if len(sent) == 1 else 'messages'} stored at {parsed.name}")
    return 0


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, (dict, list)) else value


def _receive(client: Client, parsed: argparse.Namespace) -> int:
    got = 0
    while got < parsed.count:
        query = {"timeout": parsed.timeout}
        response = client.request("DELETE", path_of(parsed.name, "!head"), query=query)
        if response.status == 204:
            break
        got += 1
        if parsed.json:
            print(json.dumps(message_of(response), ensure_ascii=False), flush=True)
        else:
            sys.stdout.buffer.write(response.body + (b"" if response.body.endswith(b"\n") else b"\n"))
            sys.stdout.buffer.flush()
    return 0 if got else NOTHING


def message_of(response: Response) -> dict[str, Any]:
    """A message of the gateway's headers and body."""
    properties: dict[str, Any] = {}
    for name, value in response.headers.items():
        if name.startswith(PROPERTY):
            properties[name.removeprefix(PROPERTY)] = json.loads(value)
    try:
        text = {"body": response.body.decode()}
    except UnicodeDecodeError:
        text = {"body_hex": response.body.hex()}
    broker = json.loads(response.headers.get("brokerproperties", "{}"))
    return {
        "broker_properties": broker,
        "properties": properties,
        "content_type": response.headers.get("content-type"),
        **text,
    }


# --- peeking ---------------------------------------------------------------------------------------------


def _peek(client: Client, parsed: argparse.Namespace) -> int:
    query = {"from": parsed.first, "count": parsed.count}
    rows = client.request("GET", path_of(parsed.name, "!messages"), query=query).json()
    rows = rows["messages"] if isinstance(rows, dict) else rows
    if not printed_json(parsed, rows):
        table([_row(row) for row in rows], PEEK_COLUMNS)
    return 0


def _row(message: dict[str, Any]) -> dict[str, Any]:
    body = message.get("body") or {}
    shown = body.get("text", body.get("value", body.get("base64")))
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    row = dict(message)
    row["subject"] = (message.get("properties") or {}).get("subject")
    row["body"] = text if len(text) <= 60 else text[:59] + "…"
    return row


def _dead_letters(client: Client, parsed: argparse.Namespace) -> int:
    if parsed.name:
        query = {"from": 0, "count": parsed.count}
        name = dead_letter_name(parsed.name)
        rows = client.request("GET", path_of(name, "!messages"), query=query).json()
        rows = rows["messages"] if isinstance(rows, dict) else rows
        if printed_json(parsed, rows):
            return 0
        for row in rows:
            notes = row.get("message_annotations") or {}
            for key in ("reason", "source", "time", "description"):
                row[key] = notes.get("x-opt-dead-letter-" + key)
        table(rows, ("sequence", "state", "reason", "source", "time", "description", "size"))
        return 0
    rows = [row for row in pages(client, "/!queues", "queues") if is_dead_letter(row["name"])]
    rows = [row for row in rows if any(row.get(state) for state in ("ready", "delayed", "in_flight"))]
    return listed(parsed, rows, ("name", "ready", "delayed", "in_flight", "bytes"))


# --- moving ----------------------------------------------------------------------------------------------


def _purge(client: Client, parsed: argparse.Namespace) -> int:
    if not parsed.yes and not confirmed(f"Remove every message of {parsed.name} that is not in flight?"):
        raise CommandError("nothing was removed; --yes purges without a prompt")
    answer = client.request("DELETE", path_of(parsed.name, "!messages")).json()
    if not printed_json(parsed, answer):
        print(f"{answer['purged']:,} messages removed from {parsed.name}")
    return 0


def _move(client: Client, parsed: argparse.Namespace) -> int:
    body = {
        "from": parsed.source,
        "to": parsed.target,
        "mode": "copy" if parsed.copy else "move",
        "count": parsed.count,
        "filter": json_argument(parsed.filter, "--filter"),
    }
    return transfer(client, body, parsed.json)


def _redrive(client: Client, parsed: argparse.Namespace) -> int:
    name = parsed.name if parsed.name.endswith(DEAD_LETTER_SEGMENT) else dead_letter_name(parsed.name)
    body = {
        "from": name,
        "to": parsed.to,
        "mode": "redrive",
        "count": parsed.count,
        "filter": json_argument(parsed.filter, "--filter"),
    }
    return transfer(client, body, parsed.json)


def transfer(
    client: Client, body: dict[str, Any], as_json: bool, pause: Callable[[float], None] = time.sleep
) -> int:
    """Moves messages through the gateway, and shows the progress. Ctrl-C cancels the rest."""
    started = client.request("POST", "/!transfers", json_body=body)
    state = started.json()
    path = started.headers.get("location", f"/!transfers/{state['id']}")
    what = "moved" if body["mode"] != "copy" else "copied"
    progress = Progress()
    try:
        while state["state"] == "running":
            progress.update(*_so_far(what, state["moved"], state.get("total")))
            pause(POLL_S)
            state = client.get(path)
    except KeyboardInterrupt:
        client.request("DELETE", path)
        state = client.get(path)
    finally:
        progress.finish()
    if as_json:
        show_json(state)
    else:
        target = state.get("to") or "the queues that they come from"
        print(f"{state['moved']:,} messages from {state['from']} to {target}: {state['state']}")
    if state["state"] == "failed":
        raise AnswerError(500, str(state.get("error") or "the transfer failed"))
    return 0 if state["state"] == "done" else 1


def _so_far(what: str, done: int, total: int | None) -> tuple[str, float]:
    """The text of the progress, and the part of the whole."""
    if not total:
        return f"{what}: {done:,}", 0.0
    return f"{what}: {done:,} of {total:,}", min(done / total, 1.0)
