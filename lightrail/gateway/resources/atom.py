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
    return _text(made)


def feed(prefix: str, records: Iterable[Name], following: str | None) -> str:
    """A page of names; `following` is the path of the next page."""
    root = _element("feed", xmlns=NAMESPACE)
    _add(root, "id", f"lightrail:{path_of(prefix)}/")
    _add(root, "title", prefix or "/")
    listed = list(records)
    _add(root, "updated", rfc3339(max((each.changed_at_ms for each in listed), default=0)))
    _add(root, "author").append(_element("name", "LightRail"))
    _add(root, "link", rel="self", href=f"{path_of(prefix)}/")
    if following is not None:
        _add(root, "link", rel="next", href=following)
    root.extend(_entry(each) for each in listed)
    return _text(root)


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
    made = _element("entry")
    path = path_of(record.name)
    _add(made, "id", f"lightrail:{path}")
    _add(made, "title", record.name)
    _add(made, "updated", rfc3339(record.changed_at_ms))
    _add(made, "published", rfc3339(record.created_at_ms))
    _add(made, "category", term=str(record.role))
    _add(made, "link", rel="alternate", href=path)
    _add(made, "link", rel="edit", href=f"{path}/!policy")
    _add(made, "content", json.dumps(record.policy.to_json()), type="application/json")
    return made


def _element(tag: str, text: str | None = None, **attributes: str) -> Xml.Element:
    # register_namespace() would set the prefix for the whole process.
    made = Xml.Element(tag, attributes)
    made.text = text
    return made


def _add(parent: Xml.Element, tag: str, text: str | None = None, **attributes: str) -> Xml.Element:
    made = _element(tag, text, **attributes)
    parent.append(made)
    return made


def _text(root: Xml.Element) -> str:
    return '<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(root, encoding="unicode")
