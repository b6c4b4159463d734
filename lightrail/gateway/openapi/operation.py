"""Operation: the handler and the description of one request, and the building blocks of descriptions."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web

from lightrail.gateway.bodies import JSON
from lightrail.gateway.request import Request
from lightrail.model import limits

Object = dict[str, Any]
Handler = Callable[[Request], Awaitable[web.StreamResponse]]


def ref(name: str) -> Object:
    return {"$ref": f"#/components/schemas/{name}"}


def content(schema: Object, *types: str) -> Object:
    return {each: {"schema": schema} for each in types or (JSON,)}


def query(name: str, schema: Object, doc: str) -> Object:
    return {"name": name, "in": "query", "schema": schema, "description": doc}


def header(name: str, doc: str) -> Object:
    return {"name": name, "in": "header", "schema": {"type": "string"}, "description": doc}


def required_header(name: str, schema: Object, doc: str) -> Object:
    return {"name": name, "in": "header", "required": True, "schema": schema, "description": doc}


def object_of(properties: Object, required: Iterable[str] = ()) -> Object:
    return {"type": "object", "properties": properties, "required": list(required)}


def array_of(items: Object) -> Object:
    return {"type": "array", "items": items}


def up_to(maximum: float, kind: str = "integer") -> Object:
    return {"type": kind, "minimum": 0, "maximum": maximum}


def nullable(kind: str) -> Object:
    return {"type": [kind, "null"]}


def list_of(key: str, row: Object, *, paged: bool = False) -> Object:
    following: Object = {"next": {"type": ["string", "integer", "null"]}} if paged else {}
    return object_of({key: array_of(row), **following}, (key,))


TEXT: Final[Object] = {"type": "string"}
WHOLE: Final[Object] = {"type": "integer", "minimum": 0}
FLAG: Final[Object] = {"type": "boolean"}
ANY: Final[Object] = {"type": "object"}
TIME: Final[Object] = {"type": "string", "format": "date-time"}
JOURNAL_ID: Final[Object] = {"type": "string", "pattern": "^[0-9a-f]{1,64}$"}
SEQUENCE: Final[Object] = up_to((1 << 63) - 1)

IF_MATCH: Final = header("If-Match", "the ETag that was read; 412 if it has changed")
AFTER: Final = query("after", TEXT, "begin after this item: `next` of the page before")
LIMIT: Final = query(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": limits.PAGE_MAX},
    "largest number of items in this page, 100 by default",
)
PREFIX: Final = query("prefix", TEXT, "only names at and below it")
TIMEOUT: Final = query(
    "timeout",
    up_to(limits.RECEIVE_WAIT_MS_MAX / 1000, "number"),
    "seconds to wait for a message; 0 by default",
)


Answers = Mapping[int, tuple[str, Object | None]]
"""Meaning and content (by media type) of each status."""
REMOVED: Final[Answers] = {204: ("removed", None)}


def ok(doc: str, schema: Object) -> Answers:
    """200 with JSON is the only answer that is not an error."""
    return {200: (doc, content(schema))}


class Operation(NamedTuple):
    """One request."""

    handler: Handler | None
    """None for health checks, which have routes of their own."""
    id: str
    summary: str
    answers: Answers
    parameters: tuple[Object, ...] = ()
    body: Object | None = None
    body_required: bool = True


Operations = Mapping[str, Operation]
"""By method and path, such as `GET /!shards`."""


def _in_path(name: str, doc: str, schema: Object | None = None) -> Object:
    made = {"name": name, "in": "path", "required": True, "description": doc}
    return made | {"schema": schema or {"type": "string", "minLength": 1, "maxLength": 100}}


IN_PATH: Final = {
    each["name"]: each
    for each in (
        _in_path(
            "name",
            "a name such as myapp/orders; its slashes stay as they are, everything else is percent-encoded "
            "once",
        ),
        _in_path("sequence", "sequence of the message in its queue", SEQUENCE),
        _in_path("lock", "the LockToken of the delivery"),
        _in_path("connection", "id of a connection: frontend-N.BOOT.NUMBER"),
        _in_path("shard", "number of a shard", WHOLE),
        _in_path("member", "id of a member of a shard with replicas"),
        _in_path("journal", "id of a journal, as /!journals lists it", JOURNAL_ID),
        _in_path("segment", "number of a segment", up_to(10**12 - 1)),
        _in_path("reader", "name of a reader; its slashes are percent-encoded"),
        _in_path("id", "id of the subscription or transfer"),
        _in_path("transaction", "id of a prepared transaction, as /!transactions lists it"),
        _in_path("user", "name of a user"),
    )
}
"""Parameters of paths, by name."""
