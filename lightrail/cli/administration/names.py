"""The commands `names`, `queues`, `routers` and `subscriptions`."""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from lightrail.cli.administration.client import Client, CommandError, UsageError, path_of
from lightrail.cli.administration.commands import Subparsers, add, group, listed, printed_json
from lightrail.console.terminal import counted, pairs, show_json, table
from lightrail.model.names import dead_letter_name, subscription_name
from lightrail.model.policy import BY_NAME

QUEUE_COLUMNS = ("name", "ready", "delayed", "deferred", "in_flight", "bytes", "consumers", "shard")
PAGE = 1_000


def register(things: Subparsers) -> None:
    """Adds these commands."""
    names = group(things, "names", "names, their roles and policies")
    command = add(names, "list", _list, "list names with a role, below a prefix or all")
    command.add_argument("prefix", metavar="PREFIX", nargs="?", default="")
    command = add(names, "show", _show, "a name's policy, with every default")
    command.add_argument("name", metavar="NAME")
    command = add(names, "set", _set, "give a name a role, or change its policy")
    command.add_argument("name", metavar="NAME")
    command.add_argument(
        "fields",
        metavar="FIELD=VALUE",
        nargs="*",
        help="such as role=queue lock_duration=30; empty for the default; fields not named stay",
    )
    command.add_argument("--file", metavar="FILE", help="the whole policy as JSON, - for standard input")
    command = add(names, "delete", _delete, "delete a name with all its messages")
    command.add_argument("name", metavar="NAME")
    command.add_argument("--if-empty", action="store_true", help="refuse while the queue has messages")
    command.add_argument("--yes", action="store_true", help="no prompt, whatever is deleted with it")
    command = add(things, "queues", _queues, "queues and their figures")
    command.add_argument("prefix", metavar="PREFIX", nargs="?", default="")
    command = add(things, "routers", _routers, "routers and their subscriptions")
    command.add_argument("prefix", metavar="PREFIX", nargs="?", default="")
    subscriptions = group(things, "subscriptions", "subscriptions of routers")
    command = add(subscriptions, "list", _subscriptions, "subscriptions of a router")
    command.add_argument("router", metavar="ROUTER")
    command = add(
        subscriptions, "add", _subscribe, "send the messages of a router to a queue, a router or a URL"
    )
    command.add_argument("router", metavar="ROUTER")
    command.add_argument("target", metavar="TARGET", help="a name, or http://... or https://...")
    choice = command.add_mutually_exclusive_group()
    choice.add_argument("--filter", metavar="JSON", help='such as {"properties": {"subject": "paid"}}')
    choice.add_argument(
        "--subject", metavar="PATTERN", help="words between dots, * for one, # for any number"
    )
    choice.add_argument(
        "--sql", metavar="EXPRESSION", help="over headers, properties and application properties"
    )
    command.add_argument(
        "--action", metavar="JSON", help='such as {"set": {"application-properties.seen": true}}'
    )
    command.add_argument("--expires-at", metavar="TIME", help="such as 2030-01-31T12:00:00Z")
    command.add_argument("--id", metavar="ID", help="id of the subscription (default: generated)")
    command = add(subscriptions, "remove", _unsubscribe, "end a subscription")
    command.add_argument("router", metavar="ROUTER")
    command.add_argument("id", metavar="ID")
    command.add_argument("--yes", action="store_true", help="without a prompt, whatever is deleted with it")


def pages(client: Client, path: str, key: str, **query: Any) -> Iterator[dict[str, Any]]:
    """Every row of a paged list."""
    after = None
    while True:
        page = client.get(path, after=after, limit=PAGE, **query)
        yield from page[key]
        after = page.get("next")
        if not after:
            return


def _list(client: Client, parsed: argparse.Namespace) -> int:
    path = path_of(parsed.prefix) + "/" if parsed.prefix else "/"
    rows = list(pages(client, path, "names", deep="true"))
    return listed(parsed, rows, ("name", "role"))


def _show(client: Client, parsed: argparse.Namespace) -> int:
    policy = client.get(path_of(parsed.name, "!policy"), effective="true")
    if not printed_json(parsed, policy):
        pairs(policy)
    return 0


def _set(client: Client, parsed: argparse.Namespace) -> int:
    path = path_of(parsed.name, "!policy")
    current = client.request("GET", path, missing_ok=True)
    known = current.status == 200
    policy: dict[str, Any] = {}
    if parsed.file:
        if parsed.fields:
            raise UsageError("either --file or FIELD=VALUE, not both")
        policy = read_json(parsed.file)
    else:
        policy = current.json() if known else {}
        for text in parsed.fields:
            name, equals, value = text.partition("=")
            if not equals:
                raise UsageError(f"{text!a} is no FIELD=VALUE, such as lock_duration=30")
            policy[name] = field_value(name, value)
            if policy[name] is None:
                del policy[name]
        if not policy:
            raise UsageError("expected at least role=queue, router, metadata, connection-point or none")
    if known:
        client.request("PUT", path, json_body=policy, headers={"If-Match": current.headers.get("etag", "*")})
    else:
        client.request("POST", path_of(parsed.name), json_body=policy)
    if parsed.json:
        show_json(client.get(path))
    else:
        print(f"{parsed.name} {'has a new policy' if known else 'has role ' + str(policy.get('role'))}")
    return 0


def field_value(name: str, text: str) -> Any:
    """The JSON value of a typed text, by the field's kind; None for an empty text."""
    if text == "" or text == "null":
        return None
    field = BY_NAME.get(name)
    if field is not None and field.kind in ("choice", "name", "time", "text", "key"):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_json(path: str) -> Any:
    """A JSON document from a file or standard input. Raises UsageError."""
    try:
        if path == "-":
            return json.load(sys.stdin)
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} can't be read as JSON: {error}") from None


def json_argument(text: str | None, what: str) -> Any:
    """A JSON argument, or None. Raises UsageError."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{what} is no JSON: {error}") from None


def _delete(client: Client, parsed: argparse.Namespace) -> int:
    path = path_of(parsed.name, "!policy")
    headers = {}
    if parsed.if_empty:
        headers["If-Match"] = client.request("GET", path).headers.get("etag", "*")
        held, dead = _held(client, parsed.name), _held(client, dead_letter_name(parsed.name))
        if held or dead:
            letters = f" and {counted(dead, 'dead letter')}" if dead else ""
            holds = counted(held, "message") + letters
            raise CommandError(f"{parsed.name} holds {holds}; with --yes they are deleted, too")
    if not parsed.yes and not parsed.if_empty:
        goes = _goes_with(client, parsed.name)
        if goes and not confirmed(f"{parsed.name} has {goes}, which are deleted with it. Delete it?"):
            raise CommandError(
                f"{parsed.name} has {goes}, which would be deleted with it; nothing was deleted, see --yes"
            )
    client.request("DELETE", path, headers=headers)
    print(f"{parsed.name} no longer has a role")
    return 0


def _goes_with(client: Client, name: str) -> str:
    """A description of what is deleted with a name; empty if nothing else is."""
    policy = client.get(path_of(name, "!policy"))
    goes = []
    if policy.get("role") == "queue":
        held, dead = _held(client, name), _held(client, dead_letter_name(name))
        goes += [counted(held, "message")] if held else []
        goes += [counted(dead, "dead letter")] if dead else []
    if policy.get("role") == "router":
        fed = len(client.get(path_of(name, "!subscriptions"))["subscriptions"])
        goes += [counted(fed, "subscription")] if fed else []
    feeding = sum(
        each["target"] == name
        for router in client.get("/!routers")["routers"]
        for each in router["subscriptions"]
    )
    goes += [counted(feeding, "subscription") + " to it"] if feeding else []
    return ", ".join(goes)


def _held(client: Client, queue: str) -> int:
    """All messages of a queue: ready, delayed, deferred and unsettled."""
    answer = client.request("GET", path_of(queue, "!figures"), missing_ok=True)
    figures = answer.json() if answer.status == 200 else {}
    return sum(int(figures.get(key, 0)) for key in ("ready", "delayed", "deferred", "in_flight", "parked"))


def confirmed(question: str) -> bool:
    """Whether the user confirms at a terminal; scripts use --yes instead."""
    if not sys.stdin.isatty():
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _queues(client: Client, parsed: argparse.Namespace) -> int:
    rows = list(pages(client, "/!queues", "queues", prefix=parsed.prefix or None))
    return listed(parsed, rows, QUEUE_COLUMNS)


def _routers(client: Client, parsed: argparse.Namespace) -> int:
    rows = client.get("/!routers", prefix=parsed.prefix or None)["routers"]
    if printed_json(parsed, rows):
        return 0
    for row in rows:
        row["subscribers"] = ", ".join(each["target"] for each in row["subscriptions"])
    table(rows, ("name", "distribution", "subscribers"))
    return 0


def _subscriptions(client: Client, parsed: argparse.Namespace) -> int:
    rows = client.get(path_of(parsed.router, "!subscriptions"))["subscriptions"]
    return listed(parsed, rows, ("id", "target", "filter", "action", "rules", "expires_at"))


def _subscribe(client: Client, parsed: argparse.Namespace) -> int:
    filter = json_argument(parsed.filter, "--filter")
    if parsed.subject is not None:
        filter = {"subject": parsed.subject}
    elif parsed.sql is not None:
        filter = {"sql": parsed.sql}
    body = {
        "target": parsed.target,
        "filter": filter,
        "action": json_argument(parsed.action, "--action"),
        "expires_at": parsed.expires_at,
        "id": parsed.id,
    }
    made = client.request(
        "POST",
        path_of(parsed.router, "!subscriptions"),
        json_body={key: value for key, value in body.items() if value is not None},
    ).json()
    if not printed_json(parsed, made):
        print(f"{parsed.router} feeds {made['target']}: subscription {made['id']}")
        if made.get("secret"):
            print(f"pushes are signed with this secret, which is not shown again: {made['secret']}")
    return 0


def _unsubscribe(client: Client, parsed: argparse.Namespace) -> int:
    path = path_of(parsed.router, "!subscriptions", parsed.id)
    if not parsed.yes and "://" in client.get(path)["target"]:
        # Messages for a URL wait in a queue of the subscription.
        held = _held(client, subscription_name(parsed.router, parsed.id))
        what = f"subscription {parsed.id} has {counted(held, 'message')} for its URL"
        if held and not confirmed(f"{what}, which are deleted with it. End it?"):
            raise CommandError(f"{what}, which would be deleted with it; nothing was removed, see --yes")
    client.request("DELETE", path)
    print(f"subscription {parsed.id} of {parsed.router} has ended")
    return 0
