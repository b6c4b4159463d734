"""Description of permissions, tokens, connections, status and definitions."""

from typing import Final

from lightrail.gateway.openapi.operation import (
    AFTER,
    ANY,
    FLAG,
    LIMIT,
    PREFIX,
    REMOVED,
    TEXT,
    TIME,
    WHOLE,
    Object,
    Operation,
    Operations,
    array_of,
    content,
    list_of,
    nullable,
    object_of,
    ok,
    query,
    ref,
)
from lightrail.gateway.resources import connections, definitions, permissions, queues, status
from lightrail.gateway.resources.permissions import make
from lightrail.model import limits
from lightrail.namespace.records import Right

_LINK: Final[Object] = {
    "name": TEXT,
    "role": {"enum": ["sender", "receiver"]},
    "address": nullable("string"),
    "state": TEXT,
    "credit": WHOLE,
    "unsettled": WHOLE,
    "delivered": WHOLE,
    "received": WHOLE,
    "waiting": WHOLE,
}
_SESSION: Final[Object] = {"channel": WHOLE, "links": array_of(object_of(_LINK, ("name", "role", "state")))}
_CONNECTION: Final[Object] = {
    "id": TEXT,
    "user": TEXT,
    "peer": TEXT,
    "container": nullable("string"),
    "hostname": nullable("string"),
    "since": TIME,
    "since_ms": WHOLE,
    "tls": FLAG,
    "transport": {"enum": ["tcp", "websocket"]},
    "forwarded": FLAG,
    "state": TEXT,
    "sessions": WHOLE,
    "session_list": array_of(object_of(_SESSION, ("channel", "links"))),
    "links": WHOLE,
    "links_left_out": WHOLE,
}
_RIGHTS: Final[Object] = array_of({"enum": [str(each) for each in Right]})
_SCOPE: Final[Object] = object_of({"prefix": TEXT, "rights": _RIGHTS}, ("rights",))
_PERMISSION: Final[Object] = object_of(
    {"user": TEXT, "prefix": TEXT, "rights": array_of(TEXT)}, ("user", "rights")
)

# fmt: off
OPERATIONS: Final[Operations] = {
    "POST /!tokens": Operation(make, "makeToken", "a bearer token for a user who sends the password",
        {201: ("the token", content(ref("Token")))}, body=content(ref("TokenRequest"))),
    "GET /!status": Operation(status.read, "status", "processes, shards, sums", ok("status", ANY)),
    "GET /!queues": Operation(queues.list_all, "listQueues", "figures of queues",
        ok("a page", list_of("queues", ANY, paged=True)), (PREFIX, AFTER, LIMIT)),
    "GET /!routers": Operation(status.routers, "listRouters", "routers and their subscriptions",
        ok("routers", list_of("routers", ANY)), (PREFIX,)),
    "GET /!permissions": Operation(permissions.list_all, "listPermissions", "rights of users",
        ok("permissions", list_of("permissions", ref("Permission"))),
        (query("user", TEXT, "only permissions of this user"),)),
    "PUT /!permissions/{user}": Operation(permissions.put, "permit",
        "set the rights of a user at and below a prefix", ok("the permission", ref("Permission")), (PREFIX,),
        content(object_of({"rights": _RIGHTS}, ("rights",)))),
    "DELETE /!permissions/{user}": Operation(permissions.clear, "clearPermission", "remove a permission",
        REMOVED, (PREFIX,)),
    "GET /!connections": Operation(connections.list_all, "listConnections",
        "AMQP connections of all frontends; for callers that may manage all names",
        ok("a page", list_of("connections", ref("Connection"), paged=True)),
        (
            query("user", TEXT, "only connections of this user"),
            query("container", TEXT, "only connections with this container-id"),
            LIMIT,
            AFTER,
        )),
    "GET /!connections/{connection}": Operation(connections.show, "showConnection",
        "a connection with its sessions and links", ok("the connection", ref("Connection"))),
    "DELETE /!connections/{connection}": Operation(connections.close, "closeConnection",
        "close a connection with amqp:connection:forced", {204: ("the connection is being closed", None)},
        (query("text", TEXT, "reason that the client receives"),)),
    "GET /!definitions": Operation(definitions.export, "export", "every name, subscription and right",
        ok("the definitions", ref("Definitions")), (PREFIX,)),
    "POST /!definitions": Operation(definitions.take_in, "import", "import definitions", ok("a report", ANY),
        (
            query("dry_run", FLAG, "true: only report what would be done"),
            query("replace", FLAG, "true: change existing entries that differ"),
        ), content(ref("Definitions"))),
}
# fmt: on

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
        {"token": TEXT, "type": {"const": "Bearer"}, "expires_at": TIME}, ("token", "expires_at")
    ),
    "Permission": _PERMISSION,
    "Connection": object_of(_CONNECTION, ("id", "user", "peer", "since", "state", "session_list")),
    "Definitions": object_of(
        {
            "format": {"const": 1},
            "names": {"type": "object", "additionalProperties": ref("Policy")},
            "subscriptions": array_of(ref("Subscription")),
            "permissions": array_of(ref("Permission")),
        }
    ),
}
