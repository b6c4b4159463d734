"""The OpenAPI 3.1 description of the gateway, made from the table of policy fields and the one below."""

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Final, NamedTuple

from aiohttp import web

from lightrail.gateway.asked import AMQP, ATOM, BATCH, JSON, POLICY, Asked
from lightrail.gateway.couriers.transfer import Mode, State
from lightrail.gateway.errors import PROBLEM
from lightrail.gateway.outgoing import BROKER_PROPERTIES
from lightrail.model import limits
from lightrail.model.policy import Field, Role, fields_of
from lightrail.namespace.records import Right

Object = dict[str, Any]


async def read(_: Asked) -> web.Response:
    """GET /!openapi.json."""
    return web.Response(text=text(), content_type=JSON)


@lru_cache(maxsize=1)
def text() -> str:
    return json.dumps(description())


# --- what a description is made of --------------------------------------------------------------------


def _ref(name: str) -> Object:
    return {"$ref": f"#/components/schemas/{name}"}


def _content(schema: Object, *types: str) -> Object:
    return {each: {"schema": schema} for each in types or (JSON,)}


def _query(name: str, schema: Object, doc: str) -> Object:
    return {"name": name, "in": "query", "schema": schema, "description": doc}


def _header(name: str, doc: str) -> Object:
    return {"name": name, "in": "header", "schema": {"type": "string"}, "description": doc}


def _required(name: str, schema: Object, doc: str) -> Object:
    return {"name": name, "in": "header", "required": True, "schema": schema, "description": doc}


def _in_path(name: str, doc: str, schema: Object | None = None) -> Object:
    made = {"name": name, "in": "path", "required": True, "description": doc}
    return made | {"schema": schema or {"type": "string", "minLength": 1, "maxLength": 100}}


def _of(properties: Object, *required: str) -> Object:
    return {"type": "object", "properties": properties, "required": list(required)}


def _list(key: str, row: Object, *, paged: bool = False) -> Object:
    following: Object = {"next": {"type": ["string", "integer", "null"]}} if paged else {}
    return _of({key: {"type": "array", "items": row}, **following}, key)


TEXT: Final[Object] = {"type": "string"}
WHOLE: Final[Object] = {"type": "integer", "minimum": 0}
FLAG: Final[Object] = {"type": "boolean"}
ANY: Final[Object] = {"type": "object"}
TIME: Final[Object] = {"type": "string", "format": "date-time"}
SEQUENCE: Final[Object] = {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1}

NAME: Final = _in_path(
    "name",
    "a name such as myapp/orders; its slashes stay as they are, everything else is percent-encoded once",
)
SEQUENCE_IN_PATH: Final = _in_path("sequence", "sequence of the message in its queue", SEQUENCE)
LOCK: Final = _in_path("lock", "the LockToken that came with the message")
CONNECTION: Final = _in_path("connection", "id of a connection: frontend-N.BOOT.NUMBER")
SHARD: Final = _in_path("shard", "number of a shard", WHOLE)
JOURNAL: Final = _in_path(
    "journal", "id of a journal, as /!journals lists it", {"type": "string", "pattern": "^[0-9a-f]{1,64}$"}
)
SEGMENT: Final = _in_path(
    "segment", "number of a segment", {"type": "integer", "minimum": 0, "maximum": 10**12 - 1}
)
READER: Final = _in_path("reader", "name of a reader; its slashes are percent-encoded")
ID: Final = _in_path("id", "of the subscription or transfer")
USER: Final = _in_path("user", "name of a user")
IF_MATCH: Final = _header("If-Match", "the ETag that was read; 412 when it is another one by now")
AFTER: Final = _query("after", TEXT, "begin behind this one: `next` of the page before")
LIMIT: Final = _query(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": limits.PAGE_MAX},
    "most in this page, 100 by default",
)
PREFIX: Final = _query("prefix", TEXT, "only names at and below it")
TIMEOUT: Final = _query(
    "timeout",
    {"type": "number", "minimum": 0, "maximum": limits.RECEIVE_WAIT_MS_MAX / 1000},
    "seconds to wait for a message; 0 by default",
)


class Operation(NamedTuple):
    """One request of the description."""

    id: str
    summary: str
    answers: Mapping[int, tuple[str, Object | None]]
    """By status: what it means, and the content by media type."""
    parameters: tuple[Object, ...] = ()
    body: Object | None = None
    body_required: bool = True


MESSAGE: Final[Object] = {"*/*": {"schema": {}}}
_BODY_KINDS: Final = _query("body", {"enum": ["data", "text"]}, "text: the body becomes an amqp-value string")
_BROKER: Final = _header(
    "BrokerProperties", "JSON object with " + ", ".join(BROKER_PROPERTIES) + "; times in seconds or RFC 3339"
)

_BATCH: Final[Object] = {
    "type": "string",
    "format": "binary",
    "description": "u32 count, u32 ends[count] from the first byte of the first message on, the encoded AMQP "
    "messages; little-endian",
}
_MOVES: Final[Object] = {"type": "array", "items": _ref("Move")}
PATHS: Final[Mapping[str, Mapping[str, Operation]]] = {
    "/{name}": {
        "get": Operation(
            "getName",
            "what a name is, with links to its parts",
            {200: ("the name", _content(_ref("Name"))), 303: ("a metadata name: see Location", None)},
        ),
        "post": Operation(
            "post",
            "give the name a role (a policy as JSON or in an Atom entry), or send a message to it (any "
            "other type, or with BrokerProperties)",
            {
                201: (
                    "done; Location is the policy's, or the message's",
                    _content(ANY) | _content(TEXT, ATOM),
                ),
                207: ("a batch of which not every message was stored", _content(ANY)),
                303: ("a metadata name: see Location", None),
            },
            (_BROKER, _BODY_KINDS),
            _content(_ref("Policy"), JSON, POLICY)
            | {ATOM: {"schema": TEXT}}
            | {BATCH: {"schema": {"type": "array", "items": _ref("BatchMessage"), "maxItems": 1000}}}
            | {
                "text/plain": {"schema": TEXT},
                AMQP: {"schema": TEXT},
                "application/octet-stream": {"schema": TEXT},
            },
        ),
    },
    "/{name}/": {
        "get": Operation(
            "listNames",
            "names below",
            {200: ("a page", _content(_list("names", ANY, paged=True)) | {ATOM: {"schema": TEXT}})},
            (AFTER, LIMIT, _query("deep", FLAG, "true: not only the next segment")),
        )
    },
    "/{name}/!policy": {
        "get": Operation(
            "getPolicy",
            "a name's policy",
            {200: ("the policy as it was given", _content(_ref("Policy"))), 304: ("as you know it", None)},
            (_query("effective", FLAG, "true: with every default"),),
        ),
        "put": Operation(
            "changePolicy",
            "change or renew it; the role stays",
            {200: ("the policy", _content(_ref("Policy")))},
            (IF_MATCH,),
            _content(_ref("Policy")),
        ),
        "delete": Operation(
            "dropPolicy", "take the role away, with what is in it", {204: ("gone", None)}, (IF_MATCH,)
        ),
    },
    "/{name}/!batch": {
        "post": Operation(
            "storeBatch",
            "store a numbered batch of messages once, however often it is sent",
            {200: ("every message is stored, by this request or an earlier one", _content(_ref("Batch")))},
            (
                _required(
                    "LightRail-Producer",
                    {"type": "string", "minLength": 1, "maxLength": limits.HTTP_PRODUCER_BYTES},
                    "name of the producer, of its user's choice; its batches come one after the other",
                ),
                _required(
                    "LightRail-Batch",
                    {"type": "integer", "minimum": 0, "maximum": limits.HTTP_BATCH_NUMBER_MAX},
                    "number of the batch; the producer's numbers rise, and one below its last is stored",
                ),
            ),
            {"application/octet-stream": {"schema": _BATCH}},
        )
    },
    "/{name}/!head": {
        "delete": Operation(
            "receive",
            "take the next message",
            {200: ("the message", MESSAGE), 204: ("there is none", None)},
            (TIMEOUT,),
        ),
        "post": Operation(
            "lock",
            "lock the next message; Location is the lock's",
            {201: ("the message, locked", MESSAGE), 204: ("there is none", None)},
            (TIMEOUT,),
        ),
    },
    "/{name}/!messages": {
        "get": Operation(
            "browse",
            "look at messages",
            {200: ("messages", _content(_list("messages", ANY, paged=True)))},
            (
                _query("from", SEQUENCE, "first sequence"),
                _query(
                    "count",
                    {"type": "integer", "minimum": 1, "maximum": limits.PAGE_MAX},
                    "most; 10 by default",
                ),
            ),
        ),
        "delete": Operation(
            "purge",
            "remove what no consumer holds",
            {200: ("done", _content(_of({"purged": WHOLE}, "purged")))},
        ),
    },
    "/{name}/!messages/{sequence}": {
        "get": Operation("look", "look at one message", {200: ("the message", _content(ANY))}),
        "delete": Operation("cancel", "cancel a scheduled message", {204: ("gone", None)}),
    },
    "/{name}/!messages/{sequence}/{lock}": {
        "delete": Operation("complete", "done with it", {200: ("gone", _content(ANY))}),
        "put": Operation(
            "settle",
            "give it back, or make it a dead letter",
            {200: ("done", _content(ANY))},
            body=_content(_ref("Outcome")),
            body_required=False,
        ),
        "post": Operation("renew", "lock it anew", {200: ("locked", _content(_of({"locked_until": TIME})))}),
    },
    "/{name}/!figures": {
        "get": Operation("figures", "how much is in a queue", {200: ("figures", _content(ANY))})
    },
    "/{name}/!subscriptions": {
        "get": Operation(
            "listSubscriptions",
            "of a router",
            {200: ("subscriptions", _content(_list("subscriptions", _ref("Subscription"))))},
        ),
        "post": Operation(
            "subscribe",
            "messages of a router go to a queue, a router or a URL",
            {201: ("made; a push's secret is shown once", _content(_ref("Subscription")))},
            body=_content(_ref("NewSubscription")),
        ),
    },
    "/{name}/!subscriptions/{id}": {
        "get": Operation("getSubscription", "one of them", {200: ("it", _content(_ref("Subscription")))}),
        "put": Operation(
            "changeSubscription",
            "another filter, action, target or end",
            {200: ("it", _content(_ref("Subscription")))},
            (IF_MATCH,),
            _content(_ref("NewSubscription")),
        ),
        "delete": Operation("unsubscribe", "end it", {204: ("gone", None)}),
    },
    "/!tokens": {
        "post": Operation(
            "makeToken",
            "a bearer token for the user who shows its password",
            {201: ("the token", _content(_ref("Token")))},
            body=_content(_ref("TokenRequest")),
        )
    },
    "/!status": {"get": Operation("status", "processes, shards, sums", {200: ("status", _content(ANY))})},
    "/!queues": {
        "get": Operation(
            "listQueues",
            "figures of queues",
            {200: ("a page", _content(_list("queues", ANY, paged=True)))},
            (PREFIX, AFTER, LIMIT),
        )
    },
    "/!routers": {
        "get": Operation(
            "listRouters",
            "routers and their subscriptions",
            {200: ("them", _content(_list("routers", ANY)))},
            (PREFIX,),
        )
    },
    "/!permissions": {
        "get": Operation(
            "listPermissions",
            "who may do what",
            {200: ("them", _content(_list("permissions", _ref("Permission"))))},
            (_query("user", TEXT, "only of this user"),),
        )
    },
    "/!permissions/{user}": {
        "put": Operation(
            "permit",
            "set what a user may do at and below a prefix",
            {200: ("it", _content(_ref("Permission")))},
            (PREFIX,),
            _content(
                _of({"rights": {"type": "array", "items": {"enum": [str(each) for each in Right]}}}, "rights")
            ),
        ),
        "delete": Operation("clearPermission", "take it away", {204: ("gone", None)}, (PREFIX,)),
    },
    "/!connections": {
        "get": Operation(
            "listConnections",
            "AMQP connections of all frontends; for who may manage all names",
            {200: ("a page", _content(_list("connections", _ref("Connection"), paged=True)))},
            (
                _query("user", TEXT, "only of this user"),
                _query("container", TEXT, "only with this container-id"),
                LIMIT,
                AFTER,
            ),
        )
    },
    "/!connections/{connection}": {
        "get": Operation(
            "showConnection",
            "one with its sessions and links",
            {200: ("it", _content(_ref("Connection")))},
        ),
        "delete": Operation(
            "closeConnection",
            "close it with amqp:connection:forced",
            {204: ("it is being closed", None)},
            (_query("text", TEXT, "what its client is told"),),
        ),
    },
    "/!definitions": {
        "get": Operation(
            "export",
            "every name, subscription and right",
            {200: ("them", _content(_ref("Definitions")))},
            (PREFIX,),
        ),
        "post": Operation(
            "import",
            "take definitions in",
            {200: ("what was done", _content(ANY))},
            (
                _query("dry_run", FLAG, "true: only say what would be done"),
                _query("replace", FLAG, "true: change what is there and differs"),
            ),
            _content(_ref("Definitions")),
        ),
    },
    "/!transfers": {
        "get": Operation(
            "listTransfers",
            "the caller's transfers",
            {200: ("they", _content(_list("transfers", _ref("Transfer"))))},
        ),
        "post": Operation(
            "transfer",
            "move, copy or redrive messages",
            {202: ("it has begun", _content(_ref("Transfer")))},
            (),
            _content(_ref("NewTransfer")),
        ),
    },
    "/!transfers/{id}": {
        "get": Operation("readTransfer", "how far a transfer is", {200: ("it", _content(_ref("Transfer")))}),
        "delete": Operation(
            "cancelTransfer",
            "end a transfer; what is on its way arrives",
            {200: ("it", _content(_ref("Transfer")))},
        ),
    },
    "/!shards": {
        "get": Operation(
            "listShards",
            "every shard that is known, alive or not",
            {200: ("them", _content(_list("shards", _ref("Shard"))))},
        ),
    },
    "/!shards/{shard}": {
        "get": Operation(
            "readShard", "one of them, with the names of its queues", {200: ("it", _content(_ref("Shard")))}
        ),
        "put": Operation(
            "changeShard",
            "let a shard drain, or take queues again; with an empty disk: give up the one that it had",
            {200: ("it", _content(_ref("Shard")))},
            (),
            _content(_of({"state": {"enum": ["active", "draining"]}, "disk": {"enum": [""]}})),
        ),
        "delete": Operation(
            "removeShard",
            "forget a shard that has no queues and was stopped",
            {204: ("done", None)},
            (_query("lose_queues", FLAG, "true: give its queues up, with their messages"),),
        ),
    },
    "/!plan": {
        "get": Operation(
            "plan",
            "moves that would even out the load of the shards",
            {200: ("the plan", _content(_ref("Plan")))},
            (
                _query(
                    "sample",
                    {"type": "number", "minimum": 0, "maximum": limits.PLAN_SAMPLE_S_MAX},
                    "seconds over which messages are counted; 1 by default",
                ),
                _query(
                    "max_moves",
                    {"type": "integer", "minimum": 0, "maximum": limits.PLAN_MOVES_MAX},
                    "most in this plan",
                ),
            ),
        ),
    },
    "/!moves": {
        "get": Operation(
            "listMoves",
            "moves under way, and those that ended in the last minutes",
            {200: ("them", _content(_of({"moves": _MOVES, "ended": _MOVES}, "moves", "ended")))},
        ),
        "post": Operation(
            "move",
            "carry out a plan; shards do it by themselves from here on",
            {202: ("what began", _content(ANY))},
            (
                _query(
                    "throttle",
                    {"type": "integer", "minimum": 0, "maximum": limits.MOVE_THROTTLE_MAX},
                    "bytes per second of each copy; 0 for as fast as it goes",
                ),
                _query("skip", FLAG, "true: leave out queues that are gone or elsewhere by now"),
            ),
            _content(_ref("Plan")),
        ),
        "delete": Operation(
            "cancelMoves",
            "call off moves that have not frozen their queue",
            {200: ("which", _content(ANY))},
            (_query("queue", TEXT, "only this one"),),
        ),
    },
    "/!verify": {
        "get": Operation(
            "verify",
            "whether every queue is where the placement says, once",
            {200: ("what was found", _content(ANY))},
        ),
    },
    "/!journals": {
        "get": Operation(
            "listJournals",
            "journals of all shards and their segments, as far as they are committed",
            {200: ("them", _content(_list("journals", _ref("Journal"))))},
            (
                _query("journal", {"type": "string", "pattern": "^[0-9a-f]{1,64}$"}, "only this one"),
                _query("from", SEQUENCE, "only segments that go beyond this lsn"),
            ),
        ),
    },
    "/!journals/{journal}/{segment}": {
        "get": Operation(
            "readJournal",
            "bytes of a segment as they are on disk (docs/formats/journal.md)",
            {
                200: ("them", {"application/octet-stream": {"schema": {}}}),
                304: ("as you know them", None),
            },
            (
                _query("from", SEQUENCE, "offset of the first byte; 0 by default"),
                _query(
                    "to",
                    SEQUENCE,
                    "offset behind the last byte, by default the end of what is committed; 416 beyond it",
                ),
            ),
        ),
    },
    "/!journals/{journal}/{segment}/index": {
        "get": Operation(
            "readIndex",
            "where the records of a segment are, roughly (docs/formats/archive.md)",
            {200: ("it", _content(_ref("SegmentIndex"))), 304: ("as you know it", None)},
        ),
    },
    "/!readers": {
        "get": Operation(
            "listReaders",
            "readers of journals, and how far each is behind",
            {200: ("them", _content(_list("readers", _ref("Reader"))))},
        ),
    },
    "/!readers/{reader}": {
        "get": Operation(
            "readReader", "one of them, with how far it is", {200: ("it", _content(_ref("Reader")))}
        ),
        "put": Operation(
            "changeReader",
            "make a reader, move its positions forward, change its bounds; what is not said stays",
            {200: ("it", _content(_ref("Reader"))), 201: ("a new one", _content(_ref("Reader")))},
            (_query("reset", FLAG, "true: positions may go back"), IF_MATCH),
            _content(_ref("ReaderChange")),
        ),
        "delete": Operation("removeReader", "nothing is held back for it any more", {204: ("gone", None)}),
    },
    "/!openapi.json": {"get": Operation("openapi", "this description", {200: ("it", _content(ANY))})},
    "/healthz": {
        "get": Operation("alive", "the gateway lives", {200: ("alive", _content(TEXT, "text/plain"))})
    },
    "/readyz": {
        "get": Operation(
            "ready",
            "everything serves",
            {
                200: ("ready", _content(TEXT, "text/plain")),
                503: ("what does not", _content(TEXT, "text/plain")),
            },
        )
    },
}
IN_PATH: Final = {
    "name": NAME,
    "sequence": SEQUENCE_IN_PATH,
    "lock": LOCK,
    "id": ID,
    "user": USER,
    "connection": CONNECTION,
    "shard": SHARD,
    "journal": JOURNAL,
    "segment": SEGMENT,
    "reader": READER,
}


def description() -> Object:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "LightRail gateway",
            "version": version("lightrail"),
            "description": "Names, policies and messages of a LightRail broker; see docs/operate/http.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"basic": []}, {"bearer": []}, {}],
        "paths": {
            path: {method: _operation(path, operation) for method, operation in methods.items()}
            for path, methods in PATHS.items()
        },
        "components": {
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
            "schemas": _schemas(),
        },
    }


def _operation(path: str, operation: Operation) -> Object:
    parameters = [IN_PATH[part[1:-1]] for part in path.split("/") if part.startswith("{")]
    made: Object = {
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": [*parameters, *operation.parameters],
        "responses": {
            str(status): {"description": doc} | ({"content": content} if content else {})
            for status, (doc, content) in operation.answers.items()
        }
        | {"default": {"description": "refused, and why", "content": _content(_ref("Problem"), PROBLEM)}},
    }
    if operation.body is not None:
        made["requestBody"] = {"content": operation.body, "required": operation.body_required}
    return made


def _schemas() -> Object:
    roles = [role for role in Role if role is not Role.NONE]
    batch = {
        "type": "object",
        "properties": {key: {} for key in BROKER_PROPERTIES},
        "additionalProperties": False,
    }
    link: Object = {
        "name": TEXT,
        "role": {"enum": ["sender", "receiver"]},
        "address": {"type": ["string", "null"]},
        "state": TEXT,
        "credit": WHOLE,
        "unsettled": WHOLE,
        "delivered": WHOLE,
        "received": WHOLE,
        "waiting": WHOLE,
    }
    session = {"channel": WHOLE, "links": {"type": "array", "items": _of(link, "name", "role", "state")}}
    connection: Object = {
        "id": TEXT,
        "user": TEXT,
        "peer": TEXT,
        "container": {"type": ["string", "null"]},
        "hostname": {"type": ["string", "null"]},
        "since": TIME,
        "since_ms": WHOLE,
        "tls": FLAG,
        "state": TEXT,
        "sessions": WHOLE,
        "session_list": {"type": "array", "items": _of(session, "channel", "links")},
        "links": WHOLE,
        "links_left_out": WHOLE,
    }
    subscription: Object = {
        "target": {"type": "string", "minLength": 1},
        "filter": {"type": ["object", "null"]},
        "action": {"type": ["object", "null"]},
        "expires_at": {"type": ["string", "null"]},
    }
    scope = _of(
        {"prefix": TEXT, "rights": {"type": "array", "items": {"enum": [str(each) for each in Right]}}},
        "rights",
    )
    permission = _of(
        {"user": TEXT, "prefix": TEXT, "rights": {"type": "array", "items": TEXT}}, "user", "rights"
    )
    return {
        **_schemas_of_journals(),
        "Policy": {"oneOf": [_ref(_schema_name(role)) for role in Role]},
        **{_schema_name(role): _policy(role) for role in (*roles, Role.NONE)},
        "Name": _of(
            {"name": TEXT, "role": {"enum": [str(role) for role in Role]}, "policy": ANY, "links": ANY},
            "name",
        ),
        "Batch": _of({"stored": WHOLE, "duplicate": FLAG}, "stored", "duplicate"),
        "BatchMessage": {
            "type": "object",
            "properties": {"Body": {}, "BrokerProperties": batch, "UserProperties": {"type": "object"}},
            "additionalProperties": False,
        },
        "Outcome": {
            "type": "object",
            "properties": {
                "outcome": {"enum": ["accepted", "released", "modified", "rejected"], "default": "released"},
                "delivery_failed": FLAG,
                "undeliverable_here": FLAG,
                "condition": {"type": "string", "maxLength": 256},
                "description": {"type": "string", "maxLength": 1024},
                "annotations": {"type": ["object", "null"]},
            },
            "additionalProperties": False,
        },
        "NewSubscription": _of(subscription, "target") | {"additionalProperties": False},
        "Subscription": _of(
            {"id": TEXT, "router": TEXT, **subscription, "secret": TEXT}, "id", "router", "target"
        ),
        "NewTransfer": _of(
            {
                "from": TEXT,
                "to": {"type": ["string", "null"]},
                "mode": {"enum": [str(mode) for mode in Mode], "default": "move"},
                "count": {"type": ["integer", "null"], "minimum": 1},
                "filter": {"type": ["object", "null"]},
            },
            "from",
        )
        | {"additionalProperties": False},
        "Transfer": _of(
            {
                "id": TEXT,
                "from": TEXT,
                "to": {"type": ["string", "null"]},
                "mode": {"enum": [str(mode) for mode in Mode]},
                "state": {"enum": [str(state) for state in State]},
                "moved": WHOLE,
                "total": {"type": ["integer", "null"]},
                "failed": WHOLE,
                "error": {"type": ["string", "null"]},
            },
            "id",
            "from",
            "mode",
            "state",
            "moved",
        ),
        "Shard": _of(
            {
                "id": WHOLE,
                "state": {"enum": ["active", "draining"]},
                "registered": FLAG,
                "serving": FLAG,
                "queues": WHOLE,
                "queue_names": {"type": "array", "items": TEXT},
                "moving_in": WHOLE,
                "moving_out": WHOLE,
                "disk": TEXT,
                "address": TEXT,
                "host": TEXT,
                "zone": TEXT,
                "version": TEXT,
                "started_ms": {"type": ["integer", "null"]},
            },
            "id",
            "state",
            "serving",
            "queues",
        ),
        "Move": _of(
            {
                "queue": TEXT,
                "from": WHOLE,
                "to": WHOLE,
                "phase": TEXT,
                "messages": WHOLE,
                "messages_total": {"type": ["integer", "null"]},
                "bytes": WHOLE,
                "pause_ms": {"type": ["number", "null"]},
                "error": {"type": ["string", "null"]},
            },
            "queue",
            "from",
            "to",
        ),
        "Plan": _of(
            {
                "format": {"const": 1},
                "kind": {"const": "lightrail-plan"},
                "cluster": TEXT,
                "placement_revision": {"type": ["integer", "null"]},
                "made_at_ms": WHOLE,
                "moves": {
                    "type": "array",
                    "maxItems": limits.PLAN_MOVES_MAX,
                    "items": _of(
                        {
                            "queue": TEXT,
                            "from": WHOLE,
                            "to": WHOLE,
                            "load": {"type": "number"},
                            "bytes": WHOLE,
                        },
                        "queue",
                        "to",
                    ),
                },
                "shards": {"type": "array", "items": ANY},
                "silent": {"type": "array", "items": WHOLE},
            },
            "moves",
        ),
        "TokenRequest": {
            "type": "object",
            "properties": {
                "scope": {"type": ["array", "null"], "items": scope},
                "ttl": {"type": "number", "minimum": 1, "maximum": limits.TOKEN_SECONDS_MAX},
            },
            "additionalProperties": False,
        },
        "Token": _of({"token": TEXT, "type": {"const": "Bearer"}, "expires_at": TIME}, "token", "expires_at"),
        "Permission": permission,
        "Connection": _of(connection, "id", "user", "peer", "since", "state", "session_list"),
        "Definitions": _of(
            {
                "format": {"const": 1},
                "names": {"type": "object", "additionalProperties": _ref("Policy")},
                "subscriptions": {"type": "array", "items": _ref("Subscription")},
                "permissions": {"type": "array", "items": _ref("Permission")},
            }
        ),
        "Problem": _of(
            {
                "title": TEXT,
                "status": {"type": "integer"},
                "detail": TEXT,
                "field": TEXT,
                "found": {},
                "allowed": {},
                "condition": TEXT,
            },
            "title",
            "status",
            "detail",
        ),
    }


def _schemas_of_journals() -> Object:
    segment: Object = {
        "segment": WHOLE,
        "first_lsn": WHOLE,
        "next_lsn": WHOLE,
        "end": WHOLE,
        "messages": WHOLE,
        "last_ms": WHOLE,
        "sealed": FLAG,
    }
    journal: Object = {"journal": TEXT, "shard": WHOLE, "cluster": TEXT, "away": FLAG}
    position: Object = {"type": ["integer", "null"], "minimum": 0, "maximum": (1 << 63) - 1}
    behind: Object = {"lsns": WHOLE, "messages": WHOLE, "bytes": WHOLE}
    bounds: Object = {
        "hold_hours": {"type": ["number", "null"], "minimum": 0, "maximum": limits.READER_HOLD_HOURS_MAX},
        "hold_bytes": {"type": ["integer", "null"], "minimum": 0, "maximum": limits.READER_HOLD_BYTES_MAX},
    }
    row: Object = {
        "journal": TEXT,
        "shard": WHOLE,
        "position": position,
        "away": FLAG,
        **behind,
        "missed": WHOLE,
        "oldest_ms": {"type": ["integer", "null"]},
    }
    return {
        "Journal": _of(
            journal | {"segments": {"type": "array", "items": _of(segment, *segment)}},
            "journal",
            "shard",
            "cluster",
            "segments",
        ),
        "SegmentIndex": _of(
            {
                "format": {"const": 1},
                **segment,
                "blocks": {"type": "array", "items": {"type": "array", "items": WHOLE}},
                "queues": {"type": "array", "items": WHOLE},
            },
            "format",
            *segment,
            "blocks",
        ),
        "Reader": _of(
            {
                "name": TEXT,
                "positions": {"type": "object", "additionalProperties": WHOLE},
                "hold_hours": {"type": "number"},
                "hold_bytes": WHOLE,
                "moved_ms": {"type": ["integer", "null"]},
                "behind": _of(behind, *behind),
                "journals": {"type": "array", "items": _of(row, "journal", "shard", "position")},
                "gone": {"type": "array", "items": TEXT},
            },
            "name",
            "positions",
            "hold_hours",
            "hold_bytes",
        ),
        "ReaderChange": {
            "type": "object",
            "properties": {
                "positions": {
                    "type": "object",
                    "additionalProperties": position,
                    "propertyNames": {"pattern": "^[0-9a-f]{1,64}$"},
                    "maxProperties": limits.READER_POSITIONS_MAX,
                },
                **bounds,
            },
            "additionalProperties": False,
        },
    }


def _schema_name(role: Role) -> str:
    return "".join(word.capitalize() for word in role.value.split("-")) + "Policy"


def _policy(role: Role) -> Object:
    fields = {field.name: _field(field) for field in fields_of(role)}
    required = ["role", "reference"] if role is Role.METADATA else ["role"]
    return {
        "type": "object",
        "properties": {"role": {"const": str(role)}, **fields},
        "required": required,
        "additionalProperties": False,
    }


def _field(field: Field) -> Object:
    made: Object
    match field.kind:
        case "seconds":
            made = {"type": "number", "minimum": field.low, "maximum": field.high}
        case "bytes" | "count":
            made = {"type": "integer", "minimum": int(field.low), "maximum": int(field.high)}
        case "boolean":
            made = {"type": "boolean"}
        case "choice":
            made = {"type": "string", "enum": list(field.choices)}
        case "time":
            made = {"type": "string", "format": "date-time"}
        case "object":
            made = {"type": "object"}
        case _:
            made = {"type": "string"}
            if field.kind == "text":
                made["maxLength"] = int(field.high)
    if field.default is None:
        made["type"] = [made["type"], "null"]
    return made | {"description": field.doc, "default": field.default}
