"""Entries of RabbitMQ's definitions, checked as they are read, and how messages show them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

OPTIONAL_TEXTS: Final = ("vhost", "routing_key")


class DefinitionsError(ValueError):
    """A file that has another form; the message has what was expected and what was found."""


class NotMapped(NamedTuple):
    """What of RabbitMQ's definitions is not in the document, or not in the same way."""

    what: str
    why: str
    do: str


def entries(definitions: Mapping[str, Any], part: str, *texts: str) -> list[dict[str, Any]]:
    """The entries of a part, objects that have these texts. Raises DefinitionsError."""
    found = definitions.get(part, [])
    if not isinstance(found, list):
        raise DefinitionsError(f"{part} is {_found(found)}; expected a list of objects")
    return list(_checked(found, part, texts))


def _checked(found: list[Any], part: str, texts: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for index, each in enumerate(found):
        where = f"{part}[{index}]"
        if not isinstance(each, dict):
            raise DefinitionsError(f"{where} is {_found(each)}; expected an object")
        for key in texts:
            if not isinstance(each.get(key), str):
                raise DefinitionsError(f"{where}.{key} is {_found(each.get(key))}; expected a text")
        for key in OPTIONAL_TEXTS:
            if not isinstance(each.get(key, ""), str):
                raise DefinitionsError(f"{where}.{key} is {_found(each[key])}; expected a text")
        if part == "policies":
            object_of(each, "definition", where)
            each.setdefault("definition", {})
        yield each


def object_of(entry: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """An object in an entry, empty if it is not there. RabbitMQ may write an empty one as a list."""
    found = entry.get(key) or {}
    if not isinstance(found, dict):
        raise DefinitionsError(f"{where}: {key} is {_found(found)}; expected an object")
    return found


def host_of(entry: Mapping[str, Any]) -> str:
    """The virtual host of an entry; an export of one virtual host leaves it out."""
    return str(entry.get("vhost", "/"))


def described(kind: str, vhost: str, name: str) -> str:
    return f"{kind} {shown(name)}" + ("" if vhost == "/" else f" of virtual host {shown(vhost)}")


def _found(value: Any) -> str:
    return ascii(json.dumps(value)[:80])


def shown(text: str) -> str:
    """A name of the file for people, without control characters."""
    short = text if len(text) <= 80 else text[:80] + "..."
    return short if short.isprintable() and short else ascii(short)
