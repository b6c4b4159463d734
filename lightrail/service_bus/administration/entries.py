"""Atom entries of Azure Service Bus: descriptions of entities in the form of its clients.

Some of these clients compare prefixes and not namespaces, so that prefixes and the places where namespaces
are declared are part of the form: no prefix for Atom and for descriptions, `i` for types, `d2p1` for counts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as Xml

from aiohttp import web

from lightrail.gateway.bodies import parsed, rfc3339
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.resources.atom import NAMESPACE, add, element, text_of

DESCRIPTION: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
_TYPE: Final = f"{{{INSTANCE}}}type"


@dataclass(slots=True, eq=False, repr=False)
class Entry:
    """One entity: its URL, the times at which it was created and changed, and its description."""

    url: str
    title: str
    created_at_ms: int
    changed_at_ms: int
    description: Xml.Element

    def element(self) -> Xml.Element:
        made = element("entry", xmlns=NAMESPACE)
        add(made, "id", self.url)
        add(made, "title", self.title, type="text")
        add(made, "published", rfc3339(self.created_at_ms))
        add(made, "updated", rfc3339(self.changed_at_ms))
        add(made, "link", rel="self", href=self.url)
        add(made, "content", type="application/xml").append(self.description)
        return made


def described(kind: str, properties: Mapping[str, str | Xml.Element]) -> Xml.Element:
    """A description such as QueueDescription with its properties in this order."""
    made = Xml.Element(kind, {"xmlns": DESCRIPTION, "xmlns:i": INSTANCE})
    for name, value in properties.items():
        made.append(element(name, value) if isinstance(value, str) else value)
    return made


def counts(values: Mapping[str, int]) -> Xml.Element:
    """The element CountDetails."""
    made = Xml.Element("CountDetails", {"xmlns:d2p1": COUNTS})
    for name, value in values.items():
        add(made, f"d2p1:{name}", str(value))
    return made


def feed(url: str, title: str, entries: Iterable[Entry], changed_at_ms: int, following: str | None) -> str:
    """A page of a list; `following` is the URL of the next page."""
    made = element("feed", xmlns=NAMESPACE)
    add(made, "id", url)
    add(made, "title", title, type="text")
    add(made, "updated", rfc3339(changed_at_ms))
    add(made, "link", rel="self", href=url)
    if following is not None:
        add(made, "link", rel="next", href=following)
    made.extend(each.element() for each in entries)
    return text_of(made)


def error(status: int, detail: str) -> str:
    """The body of an error."""
    made = element("Error")
    add(made, "Code", str(status))
    add(made, "Detail", detail)
    return text_of(made)


def answer(text: str, kind: str, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A response with an entry, a feed or an empty body of that kind; it may have keys."""
    always = {
        "Content-Type": f"application/atom+xml;type={kind};charset=utf-8",
        "Cache-Control": "no-store",
    }
    return web.Response(status=status, body=text.encode(), headers=always | dict(headers or {}))


# --- reading ----------------------------------------------------------------------------------------------


def description_in(body: bytes, kinds: Iterable[str]) -> tuple[str, dict[str, Xml.Element]]:
    """The kind of the description in an entry, and its properties. Raises ProblemError."""
    expected = f"expected an Atom entry whose content is one of {', '.join(kinds)}"
    root = parsed(body, expected)
    content = next((each for each in root if local(each) == "content"), None)
    if local(root) != "entry" or content is None or len(content) != 1 or local(content[0]) not in kinds:
        found = local(root) if content is None or not len(content) else local(content[0])
        raise ProblemError(400, f"{expected}; found {found[:80]!a}")
    return local(content[0]), children(content[0])


def children(parent: Xml.Element) -> dict[str, Xml.Element]:
    """The children of an element by their names. Raises ProblemError for a duplicate."""
    found: dict[str, Xml.Element] = {}
    for each in parent:
        name = local(each)
        if name in found:
            raise ProblemError(400, f"{name[:80]!a} is twice in {local(parent)[:80]!a}")
        found[name] = each
    return found


def local(found: Xml.Element) -> str:
    """The name of an element without its namespace."""
    return str(found.tag).rpartition("}")[2]


def type_of(found: Xml.Element) -> str:
    """The type that an element has by i:type, without a prefix; empty without one."""
    return found.get(_TYPE, "").rpartition(":")[2]


def plain_text(found: Xml.Element) -> str:
    """The text of an element without children. Raises ProblemError."""
    if len(found):
        raise ProblemError(400, f"{local(found)[:80]!a} contains elements; expected text")
    return (found.text or "").strip()
