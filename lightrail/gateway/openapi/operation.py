"""Operation: the description of one request, and its building blocks."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from lightrail.gateway.media_types import JSON
from lightrail.model import limits

Object = dict[str, Any]


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


def in_path(name: str, doc: str, schema: Object | None = None) -> Object:
    made = {"name": name, "in": "path", "required": True, "description": doc}
    return made | {"schema": schema or {"type": "string", "minLength": 1, "maxLength": 100}}


def object_of(properties: Object, *required: str) -> Object:
    return {"type": "object", "properties": properties, "required": list(required)}


def list_of(key: str, row: Object, *, paged: bool = False) -> Object:
    following: Object = {"next": {"type": ["string", "integer", "null"]}} if paged else {}
    return object_of({key: {"type": "array", "items": row}, **following}, key)


TEXT: Final[Object] = {"type": "string"}
WHOLE: Final[Object] = {"type": "integer", "minimum": 0}
FLAG: Final[Object] = {"type": "boolean"}
ANY: Final[Object] = {"type": "object"}
TIME: Final[Object] = {"type": "string", "format": "date-time"}
SEQUENCE: Final[Object] = {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1}

NAME: Final = in_path(
    "name",
    "a name such as myapp/orders; its slashes stay as they are, everything else is percent-encoded once",
)
SEQUENCE_IN_PATH: Final = in_path("sequence", "sequence of the message in its queue", SEQUENCE)
LOCK: Final = in_path("lock", "the LockToken of the delivery")
CONNECTION: Final = in_path("connection", "id of a connection: frontend-N.BOOT.NUMBER")
SHARD: Final = in_path("shard", "number of a shard", WHOLE)
JOURNAL: Final = in_path(
    "journal", "id of a journal, as /!journals lists it", {"type": "string", "pattern": "^[0-9a-f]{1,64}$"}
)
SEGMENT: Final = in_path(
    "segment", "number of a segment", {"type": "integer", "minimum": 0, "maximum": 10**12 - 1}
)
READER: Final = in_path("reader", "name of a reader; its slashes are percent-encoded")
ID: Final = in_path("id", "id of the subscription or transfer")
TRANSACTION: Final = in_path("transaction", "id of a prepared transaction, as /!transactions lists it")
USER: Final = in_path("user", "name of a user")
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
    {"type": "number", "minimum": 0, "maximum": limits.RECEIVE_WAIT_MS_MAX / 1000},
    "seconds to wait for a message; 0 by default",
)


class Operation(NamedTuple):
    """One request of the description."""

    id: str
    summary: str
    answers: Mapping[int, tuple[str, Object | None]]
    """Meaning and content (by media type) of each status."""
    parameters: tuple[Object, ...] = ()
    body: Object | None = None
    body_required: bool = True


Paths = Mapping[str, Mapping[str, Operation]]
"""Operations by path and method."""

IN_PATH: Final = {
    "name": NAME,
    "sequence": SEQUENCE_IN_PATH,
    "lock": LOCK,
    "id": ID,
    "user": USER,
    "connection": CONNECTION,
    "shard": SHARD,
    "transaction": TRANSACTION,
    "journal": JOURNAL,
    "segment": SEGMENT,
    "reader": READER,
}
