"""Atom: policies as entries and lists of names as feeds (RFC 4287), for clients that accept them."""

import json
from collections.abc import Iterable
from typing import Any, Final
from xml.etree import ElementTree as Xml

from lightrail.gateway.bodies import parsed, rfc3339
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.paths import path_of
from lightrail.namespace.records import Name

NAMESPACE: Final = "http://www.w3.org/2005/Atom"


def entry(record: Name) -> str:
    """A name and its policy."""
    made = _entry(record)
    made.set("xmlns", NAMESPACE)
    return text_of(made)


def feed(prefix: str, records: Iterable[Name], following: str | None) -> str:
    """A page of names; `following` is the path of the next page."""
    root = element("feed", xmlns=NAMESPACE)
    add(root, "id", f"lightrail:{path_of(prefix)}/")
    add(root, "title", prefix or "/")
    listed = list(records)
    add(root, "updated", rfc3339(max((each.changed_at_ms for each in listed), default=0)))
    add(root, "author").append(element("name", "LightRail"))
    add(root, "link", rel="self", href=f"{path_of(prefix)}/")
    if following is not None:
        add(root, "link", rel="next", href=following)
    root.extend(_entry(each) for each in listed)
    return text_of(root)


def policy_of(text: bytes) -> Any:
    """The policy in the content of an entry, as decoded JSON. Raises ProblemError."""
    expected = 'expected an Atom entry with <content type="application/json"> that holds a policy'
    root = parsed(text, expected)
    content = root.find(f"{{{NAMESPACE}}}content") if root.tag == f"{{{NAMESPACE}}}entry" else None
    if content is None or content.get("type") != "application/json" or not content.text:
        raise ProblemError(422, expected)
    try:
        return json.loads(content.text)
    except (ValueError, RecursionError) as error:
        raise ProblemError(400, f"the content of the entry is no JSON: {error}") from None


def _entry(record: Name) -> Xml.Element:
    made = element("entry")
    path = path_of(record.name)
    add(made, "id", f"lightrail:{path}")
    add(made, "title", record.name)
    add(made, "updated", rfc3339(record.changed_at_ms))
    add(made, "published", rfc3339(record.created_at_ms))
    add(made, "category", term=str(record.role))
    add(made, "link", rel="alternate", href=path)
    add(made, "link", rel="edit", href=f"{path}/!policy")
    add(made, "content", json.dumps(record.policy.to_json()), type="application/json")
    return made


def element(tag: str, text: str | None = None, **attributes: str) -> Xml.Element:
    """An element with exactly this tag and these attributes."""
    # register_namespace() would set the prefix for the whole process.
    made = Xml.Element(tag, attributes)
    made.text = text
    return made


def add(parent: Xml.Element, tag: str, text: str | None = None, **attributes: str) -> Xml.Element:
    made = element(tag, text, **attributes)
    parent.append(made)
    return made


def text_of(root: Xml.Element) -> str:
    return '<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(root, encoding="unicode")
