"""RabbitMQ's definitions.json as a document for the import, and the list of what is not in it.

The file is that of `rabbitmqctl export_definitions` and of the management plugin (`/api/definitions`). Queues
are queues, exchanges are routers and bindings are subscriptions, as for Kombu (ADR 31), but the names are not
changed: NAME in the virtual host `/`, VHOST/NAME in another. Names that can't be used are listed. Patterns of
permissions become prefixes.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from lightrail.cli.administration.rabbitmq.queues import (
    MatchingPolicies,
    NotMapped,
    Setting,
    described,
    entries,
    host_of,
    object_of,
    queue_policy,
    settings_of,
    shown,
)
from lightrail.filters.errors import FilterError
from lightrail.filters.filter import compile_filter
from lightrail.filters.patterns import compile_pattern, split_words
from lightrail.model import names as rules
from lightrail.model.names import InvalidNameError

VERSIONS: Final = ("rabbit_version", "rabbitmq_version")
PARTS: Final = ("queues", "exchanges", "bindings")
TYPES: Final = ("direct", "fanout", "topic", "headers")
BUILT_IN: Final = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}
"""Exchanges that each virtual host has, and that an export leaves out."""
LEAVE: Final = "nothing, unless clients rely on it"
OTHERS: Final = ("parameters", "topic_permissions", "global_parameters")
OF_THE_CLUSTER: Final = ("cluster_name", "cluster_tags", "internal_cluster_id")
"""Global parameters that name the cluster."""
RIGHTS: Final = {"configure": "manage", "write": "send", "read": "listen"}
EVERYTHING: Final = re.compile(r"\^?\.\*\$?")
NOTHING: Final = re.compile(r"(\^\$)?")
BELOW: Final = re.compile(r"\^([\w-]+(?:/[\w-]+)*)/(?:\.\*\$?)?")
"""A pattern of all names below a prefix, as `^shop/.*`."""


def binding_filter(type: str, key: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """The filter of a subscription for a binding, None for every message.

    Raises ValueError where no filter is the same.
    """
    if type == "headers":
        return _headers_filter(arguments)
    if type == "fanout" or (type == "topic" and key == "#"):
        return None
    words = key.split(".")
    if type == "topic" and ("*" in words or "#" in words):
        if "/" in key:
            raise ValueError("'/' separates words of a subject here, and does not in a routing key")
        return {"subject": key}
    equal: dict[str, Any] = {"properties": {"subject": key}}
    # RabbitMQ reads a message without a subject as one with an empty routing key.
    return equal if key else {"any": [equal, {"properties": {"subject": None}}]}


def _headers_filter(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    match = arguments.get("x-match", "all")
    if match not in ("all", "any", "all-with-x", "any-with-x"):
        raise ValueError(f"x-match is {match!a}; expected all, any, all-with-x or any-with-x")
    parts: list[dict[str, Any]] = []
    for key, value in arguments.items():
        if key == "x-match" or (key.startswith("x-") and not match.endswith("-with-x")):
            continue
        if isinstance(value, (dict, list)):
            raise ValueError(f"header {shown(key)} is a table or list; expected a text, number or boolean")
        equal: dict[str, Any] = {"properties": {f"application-properties.{key}": value}}
        # A header without a value is one that only has to be there.
        parts.append({"not": equal} if value is None else equal)
    if len(parts) < 2:
        if not parts and match.startswith("any"):
            raise ValueError("it names no header, any of which would have to match: it matches no message")
        return parts[0] if parts else None
    return {match[:3]: parts}


def fits(found: Mapping[str, Any] | None, key: str) -> bool:
    """Whether a filter of `binding_filter` matches a routing key."""
    if found is None:
        return True
    if "subject" in found:
        return compile_pattern(found["subject"])(split_words(key))
    first = found["any"][0] if "any" in found else found
    return bool(first["properties"]["subject"] == key)


def is_rabbitmq(value: Any) -> bool:
    """Whether a JSON document has the shape of RabbitMQ's definitions."""
    if not isinstance(value, dict) or "names" in value:
        return False
    return any(key in value for key in VERSIONS) or all(key in value for key in PARTS)


def convert(definitions: Mapping[str, Any]) -> tuple[dict[str, Any], list[NotMapped]]:
    """The document for the import, and what is not in it. Raises DefinitionsError."""
    conversion = _Conversion(definitions)
    conversion.queues()
    conversion.exchanges()
    conversion.bindings()
    conversion.dead_letters()
    conversion.users()
    conversion.others()
    # A policy whose fields have no counterpart is listed once, not for each of its queues.
    return conversion.document, list(dict.fromkeys(conversion.missing))


class _Conversion:
    """One conversion: the document, and what is missing in it, as they grow."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self.missing: list[NotMapped] = []
        self._all = definitions
        self._queues = entries(definitions, "queues", "name")
        self._exchanges = entries(definitions, "exchanges", "name", "type")
        self._bindings = entries(definitions, "bindings", "source", "destination", "destination_type")
        policies = entries(definitions, "policies", "name", "pattern")
        self._policies = MatchingPolicies(policies, self.missing)
        text = str(next((definitions[key] for key in VERSIONS if key in definitions), ""))
        self._version = tuple(int(each) for each in re.findall(r"\d+", text)[:2])
        self._names: dict[str, dict[str, Any]] = {}
        self._subscriptions: dict[str, dict[str, Any]] = {}
        self._permissions: list[dict[str, Any]] = []
        self._places: dict[tuple[str, str, str], str] = {}
        """Names of the document by kind (`queue` or `exchange`), virtual host and name there."""
        self._types: dict[str, str] = {}
        """Types of the exchanges by the names of their routers."""
        self._settings: dict[tuple[str, str], dict[str, Setting]] = {}
        """Settings of queues by virtual host and name there."""

    @property
    def document(self) -> dict[str, Any]:
        return {
            "format": 1,
            "names": self._names,
            "subscriptions": list(self._subscriptions.values()),
            "permissions": self._permissions,
        }

    def _miss(self, what: str, why: str, do: str) -> None:
        self.missing.append(NotMapped(what, why, do))

    def _place(self, kind: str, vhost: str, name: str) -> str | None:
        """The name for a queue or an exchange; None, and an entry in the list, where it can't be used."""
        place = name if vhost == "/" else f"{vhost}/{name}"
        try:
            rules.check(place)
            rules.check_spelling(place)
            if rules.is_system(place):
                raise InvalidNameError("names with a segment that begins with $ are the broker's own")
            if place in self._names:
                raise InvalidNameError(f"the file has a {self._names[place]['role']} of this name already")
        except InvalidNameError as error:
            self._miss(described(kind, vhost, name), str(error), "rename it in the file and at its clients")
            return None
        self._places[kind, vhost, name] = place
        return place

    def queues(self) -> None:
        replicated = []
        for queue in self._queues:
            vhost, name = host_of(queue), queue["name"]
            what = described("queue", vhost, name)
            arguments = object_of(queue, "arguments", what)
            type = str(arguments.get("x-queue-type", queue.get("type", "classic")))
            if type not in ("classic", "quorum"):
                do = "use a queue whose policy has capture, and read its messages again from the archive"
                self._miss(what, f"its type is {shown(type)}; expected classic or quorum", do)
                continue
            place = self._place("queue", vhost, name)
            if place is None:
                continue
            policy = self._policies.settings(vhost, name, ("all", "queues", f"{type}_queues"))
            settings = self._settings[vhost, name] = settings_of(arguments, policy)
            is_quorum = type == "quorum"
            self._names[place] = queue_policy(what, queue, settings, is_quorum, self._version, self.missing)
            if is_quorum:
                replicated.append(shown(place))
        if replicated:
            what = f"replicas of {len(replicated):,} quorum queues: {', '.join(replicated)}"
            do = "give shards replicas, and let policies demand some: docs/operate/replicas.md"
            self._miss(what, "a queue has the replicas of its shard, and demands none by itself", do)

    def exchanges(self) -> None:
        found = {(host_of(each), each["name"]): each for each in self._exchanges if each["name"]}
        for each in self._bindings:
            ends = [each["source"]]
            if each["destination_type"] == "exchange":
                ends.append(each["destination"])
            for name in ends:
                if name in BUILT_IN:
                    found.setdefault((host_of(each), name), {"type": BUILT_IN[name]})
        for (vhost, name), each in found.items():
            self._exchange(vhost, name, each)

    def _exchange(self, vhost: str, name: str, exchange: Mapping[str, Any]) -> None:
        what, type = described("exchange", vhost, name), exchange["type"]
        if type not in TYPES:
            do = "see the policies of routers (distribution) and queues (delay, groups)"
            self._miss(what, f"its type is {shown(type)}; expected {', '.join(TYPES)}", do)
            return
        place = self._place("exchange", vhost, name)
        if place is None:
            return
        durable = exchange.get("durable", True)
        # As for Kombu: what a durable direct exchange accepts is in a queue; others may have no receiver.
        unroutable = "reject" if type == "direct" and durable else "drop"
        self._names[place] = {"role": "router", "unroutable": unroutable}
        self._types[place] = type
        policy = self._policies.settings(vhost, name, ("all", "exchanges"))
        for key, setting in settings_of(object_of(exchange, "arguments", what), policy).items():
            if key in ("alternate-exchange", "x-alternate-exchange"):
                why = f"a message without a matching subscription is not sent on ({unroutable})"
                do = "subscribe a queue with a filter for the others"
                self._miss(f"{what}: alternate-exchange", why, do)
            elif not setting.policy:  # A policy of all kinds may have settings of queues.
                self._miss(f"{what}: {shown(key)}", "no counterpart in the policy of a router", LEAVE)
        for flag, why in (
            ("auto_delete", "a router without subscriptions stays"),
            ("internal", "who has the right to send may send to the router"),
        ):
            if exchange.get(flag):
                self._miss(f"{what}: {flag}", why, LEAVE)
        if not durable:
            self._miss(f"{what}: not durable", "a router outlives a restart", LEAVE)

    def bindings(self) -> None:
        for each in self._bindings:
            vhost, source = host_of(each), each["source"]
            kind, target_name, key = (
                each["destination_type"],
                each["destination"],
                each.get("routing_key", ""),
            )
            if not source:
                continue  # Every queue is bound to the default exchange, which is the queue's own address.
            what = f"{described('binding of exchange', vhost, source)} to {kind} {shown(target_name)}"
            what += f" by {shown(key)}" if key else ""
            router = self._places.get(("exchange", vhost, source))
            target = self._places.get((kind, vhost, target_name))
            if router is None or target is None:
                absent = f"exchange {shown(source)}" if router is None else f"{kind} {shown(target_name)}"
                self._miss(what, f"{absent} is not mapped, or not in the file", "subscribe another name")
                continue
            try:
                found = binding_filter(self._types[router], key, object_of(each, "arguments", what))
                compile_filter(found)
            except (ValueError, FilterError) as error:
                self._miss(what, str(error), "subscribe it with another filter, see filters.md")
                continue
            id = hashlib.sha256(json.dumps([target, found], sort_keys=True).encode()).hexdigest()[:32]
            entry = {"router": router, "id": id, "target": target, "filter": found}
            self._subscriptions[f"{router} {id}"] = {k: v for k, v in entry.items() if v is not None}

    def dead_letters(self) -> None:
        for (vhost, queue), settings in self._settings.items():
            exchange = settings.get("x-dead-letter-exchange")
            if exchange is None:
                continue
            place = self._places["queue", vhost, queue]
            key = settings.get("x-dead-letter-routing-key")
            try:
                target = self._dead_letter(vhost, queue, str(exchange.value), key and str(key.value))
                self._check_no_cycle(place, target)
                self._names[place]["dead_letter"] = target
            except ValueError as error:
                do = f"set dead_letter to a name; until then dead letters are in {shown(place)}/$dlq"
                self._miss(f"{described('queue', vhost, queue)}: x-dead-letter-exchange", str(error), do)

    def _dead_letter(self, vhost: str, queue: str, exchange: str, key: str | None) -> str:
        """The name that gets dead letters. Raises ValueError with the reason where there is none.

        Dead letters keep their subject; a routing key of their own is followed to its queue.
        """
        place = self._places["queue", vhost, queue]
        is_bound = any(each["target"] == place for each in self._subscriptions.values())
        if key is None and not is_bound:
            key = queue  # The default exchange alone fills it: its name is the routing key.
        if not exchange:
            if key is None:
                raise ValueError("each dead letter would go to the queue of its own routing key")
            if (found := self._places.get(("queue", vhost, key))) is None:
                raise ValueError(f"queue {shown(key)} is not mapped, or not in the file")
            return found
        router = self._places.get(("exchange", vhost, exchange))
        if router is None:
            raise ValueError(f"exchange {shown(exchange)} is not mapped, or not in the file")
        if key is None or self._types[router] in ("fanout", "headers"):
            return router
        targets: set[str] = {
            each["target"]
            for each in self._subscriptions.values()
            if each["router"] == router and fits(each.get("filter"), key)
        }
        if len(targets) != 1 or targets & self._types.keys():
            why = f"routing key {shown(key)} leads from exchange {shown(exchange)} to no single queue"
            raise ValueError(f"{why}, and dead letters keep their own")
        return targets.pop()

    def _check_no_cycle(self, place: str, target: str) -> None:
        """Raises ValueError where dead letters would return to their queue, which the import refuses."""
        at: str | None = target
        while at is not None:
            if at == place:
                raise ValueError(f"dead letters would return through {shown(target)} in a cycle")
            at = self._names[at].get("dead_letter")

    def users(self) -> None:
        self.missing += users_not_mapped(self._all)
        hosts = {place: vhost for (_, vhost, _), place in self._places.items()}
        self._permissions += permissions(self._all, hosts, self.missing)

    def others(self) -> None:
        for part in OTHERS:
            for each in entries(self._all, part):
                name = str(each.get("name") or each.get("user") or "")
                if name not in OF_THE_CLUSTER:
                    kind = str(each.get("component") or part)
                    self._miss(f"{shown(kind)} {shown(name)}", "no counterpart", LEAVE)


def users_not_mapped(definitions: Mapping[str, Any]) -> Iterator[NotMapped]:
    """Every user, with the command that defines it."""
    for user in entries(definitions, "users", "name"):
        yield NotMapped(
            f"user {shown(user['name'])}",
            "its password is a hash of RabbitMQ, which can't be converted",
            f"lightrail-admin user add {shlex.quote(shown(user['name']))} --no-rights, and a password",
        )


def permissions(
    definitions: Mapping[str, Any], names: Mapping[str, str], missing: list[NotMapped]
) -> Iterator[dict[str, Any]]:
    """Permissions of the document.

    Args:
        names: of the document, with the virtual host of each.
    """
    tags = {each["name"]: str(each.get("tags")) for each in entries(definitions, "users", "name")}
    hosts = {each["name"] for each in entries(definitions, "vhosts", "name")} | set(names.values())
    for each in entries(definitions, "permissions", "user", *RIGHTS):
        vhost, user = host_of(each), each["user"]
        granted: dict[str, list[str]] = {}
        for kind, right in RIGHTS.items():
            try:
                prefix = _prefix(vhost, each[kind], names, hosts)
                if prefix == "" and right == "manage" and "administrator" not in tags.get(user, ""):
                    raise ValueError("who may manage all names may also change rights, shards and queues")
            except ValueError as error:
                what = (
                    f"permission of user {shown(user)} in virtual host {shown(vhost)}: {kind} {each[kind]!a}"
                )
                do = f"nearest: lightrail-admin permission set {shlex.quote(shown(user))} PREFIX {right}"
                missing.append(NotMapped(what, str(error), do))
                continue
            if prefix is not None:
                granted.setdefault(prefix, []).append(right)
        for prefix, rights in granted.items():
            yield {"user": user, "prefix": prefix, "rights": rights}


def _prefix(vhost: str, pattern: str, names: Mapping[str, str], hosts: Collection[str]) -> str | None:
    """The prefix whose names are those that a pattern matches, None for no name.

    Raises ValueError where there is none, or where it would include others.
    """
    if NOTHING.fullmatch(pattern):
        return None
    below = BELOW.fullmatch(pattern)
    if below is None and not EVERYTHING.fullmatch(pattern):
        raise ValueError("rights are granted at and below a name, and not by a pattern")
    prefix = "/".join(each for each in ("" if vhost == "/" else vhost, below[1] if below else "") if each)
    if prefix:
        rules.check(prefix)
    elif set(hosts) - {"/"}:
        raise ValueError("a right at all names would include the other virtual hosts")
    for name, host in names.items():
        is_at = name == prefix
        if (is_at and below) or (host != vhost and (is_at or name.startswith(f"{prefix}/"))):
            raise ValueError(f"a right at {prefix} would include {shown(name)}, which the pattern does not")
    return prefix
