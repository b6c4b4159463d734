"""The rights of users from their permissions in RabbitMQ, where patterns of names are prefixes."""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from lightrail.cli.administration.rabbitmq.queues import NotMapped, entries, host_of, shown
from lightrail.model import names as rules

RIGHTS: Final = {"configure": "manage", "write": "send", "read": "listen"}
EVERYTHING: Final = re.compile(r"\^?\.\*\$?")
NOTHING: Final = re.compile(r"(\^\$)?")
BELOW: Final = re.compile(r"\^([\w-]+(?:/[\w-]+)*)/(?:\.\*\$?)?")
"""A pattern of all names below a prefix, as `^shop/.*`."""


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
