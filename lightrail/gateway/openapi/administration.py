"""Description of permissions, tokens, connections, status and definitions."""

from typing import Final

from lightrail.gateway.openapi.operation import (
    AFTER,
    ANY,
    FLAG,
    LIMIT,
    PREFIX,
    TEXT,
    TIME,
    WHOLE,
    Object,
    Operation,
    Paths,
    content,
    list_of,
    object_of,
    query,
    ref,
)
from lightrail.model import limits
from lightrail.namespace.records import Right

_LINK: Final[Object] = {
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
_SESSION: Final[Object] = {
    "channel": WHOLE,
    "links": {"type": "array", "items": object_of(_LINK, "name", "role", "state")},
}
_CONNECTION: Final[Object] = {
    "id": TEXT,
    "user": TEXT,
    "peer": TEXT,
    "container": {"type": ["string", "null"]},
    "hostname": {"type": ["string", "null"]},
    "since": TIME,
    "since_ms": WHOLE,
    "tls": FLAG,
    "transport": {"enum": ["tcp", "websocket"]},
    "forwarded": FLAG,
    "state": TEXT,
    "sessions": WHOLE,
    "session_list": {"type": "array", "items": object_of(_SESSION, "channel", "links")},
    "links": WHOLE,
    "links_left_out": WHOLE,
}
_SCOPE: Final[Object] = object_of(
    {"prefix": TEXT, "rights": {"type": "array", "items": {"enum": [str(each) for each in Right]}}},
    "rights",
)
_PERMISSION: Final[Object] = object_of(
    {"user": TEXT, "prefix": TEXT, "rights": {"type": "array", "items": TEXT}}, "user", "rights"
)

PATHS: Final[Paths] = {
    "/!tokens": {
        "post": Operation(
            "makeToken",
            "a bearer token for a user who sends the password",
            {201: ("the token", content(ref("Token")))},
            body=content(ref("TokenRequest")),
        )
    },
    "/!status": {"get": Operation("status", "processes, shards, sums", {200: ("status", content(ANY))})},
    "/!queues": {
        "get": Operation(
            "listQueues",
            "figures of queues",
            {200: ("a page", content(list_of("queues", ANY, paged=True)))},
            (PREFIX, AFTER, LIMIT),
        )
    },
    "/!routers": {
        "get": Operation(
            "listRouters",
            "routers and their subscriptions",
            {200: ("routers", content(list_of("routers", ANY)))},
            (PREFIX,),
        )
    },
    "/!permissions": {
        "get": Operation(
            "listPermissions",
            "rights of users",
            {200: ("permissions", content(list_of("permissions", ref("Permission"))))},
            (query("user", TEXT, "only permissions of this user"),),
        )
    },
    "/!permissions/{user}": {
        "put": Operation(
            "permit",
            "set the rights of a user at and below a prefix",
            {200: ("the permission", content(ref("Permission")))},
            (PREFIX,),
            content(
                object_of(
                    {"rights": {"type": "array", "items": {"enum": [str(each) for each in Right]}}}, "rights"
                )
            ),
        ),
        "delete": Operation("clearPermission", "remove a permission", {204: ("removed", None)}, (PREFIX,)),
    },
    "/!connections": {
        "get": Operation(
            "listConnections",
            "AMQP connections of all frontends; for callers that may manage all names",
            {200: ("a page", content(list_of("connections", ref("Connection"), paged=True)))},
            (
                query("user", TEXT, "only connections of this user"),
                query("container", TEXT, "only connections with this container-id"),
                LIMIT,
                AFTER,
            ),
        )
    },
    "/!connections/{connection}": {
        "get": Operation(
            "showConnection",
            "a connection with its sessions and links",
            {200: ("the connection", content(ref("Connection")))},
        ),
        "delete": Operation(
            "closeConnection",
            "close a connection with amqp:connection:forced",
            {204: ("the connection is being closed", None)},
            (query("text", TEXT, "reason that the client receives"),),
        ),
    },
    "/!definitions": {
        "get": Operation(
            "export",
            "every name, subscription and right",
            {200: ("the definitions", content(ref("Definitions")))},
            (PREFIX,),
        ),
        "post": Operation(
            "import",
            "import definitions",
            {200: ("a report", content(ANY))},
            (
                query("dry_run", FLAG, "true: only report what would be done"),
                query("replace", FLAG, "true: change existing entries that differ"),
            ),
            content(ref("Definitions")),
        ),
    },
}

SCHEMAS: Final[Object] = {
    "TokenRequest": {
        "type": "object",
        "properties": {
            "scope": {"type": ["array", "null"], "items": _SCOPE},
            "ttl": {"type": "number", "minimum": 1, "maximum": limits.TOKEN_SECONDS_MAX},
        },
        "additionalProperties": False,
    },
    "Token": object_of(
        {"token": TEXT, "type": {"const": "Bearer"}, "expires_at": TIME}, "token", "expires_at"
    ),
    "Permission": _PERMISSION,
    "Connection": object_of(_CONNECTION, "id", "user", "peer", "since", "state", "session_list"),
    "Definitions": object_of(
        {
            "format": {"const": 1},
            "names": {"type": "object", "additionalProperties": ref("Policy")},
            "subscriptions": {"type": "array", "items": ref("Subscription")},
            "permissions": {"type": "array", "items": ref("Permission")},
        }
    ),
}
