"""Requests of operators: rights, connections, definitions, shards, moves of queues."""

from typing import Final

from lightrail.cluster.replica_sets import MEMBERS_MAX
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
    up_to,
)
from lightrail.gateway.resources import (
    connections,
    definitions,
    moves,
    permissions,
    queues,
    replicas,
    shards,
    status,
    transactions,
    verification,
)
from lightrail.model import limits
from lightrail.namespace.records import Right

_LINK: Final[Object] = {
    "name": TEXT,
    "role": {"enum": ["sender", "receiver"]},
    "address": nullable("string"),
    "state": TEXT,
    **dict.fromkeys(("credit", "unsettled", "delivered", "received", "waiting"), WHOLE),
}
_SESSION: Final[Object] = {"channel": WHOLE, "links": array_of(object_of(_LINK, ("name", "role", "state")))}
_CONNECTION: Final[Object] = {
    **dict.fromkeys(("id", "user", "peer"), TEXT),
    **dict.fromkeys(("container", "hostname"), nullable("string")),
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

_MOVES: Final[Object] = array_of(ref("Move"))
_REPLICAS: Final[Object] = object_of({"replicas": ref("Replicas")}, ("replicas",))
_MEMBERS: Final[Object] = {"type": "integer", "minimum": 1, "maximum": MEMBERS_MAX}


OPERATIONS: Final[Operations] = {
    "POST /!tokens": Operation(
        permissions.make,
        "makeToken",
        "a bearer token for a user who sends the password",
        {201: ("the token", content(ref("Token")))},
        body=content(ref("TokenRequest")),
    ),
    "GET /!status": Operation(status.read, "status", "processes, shards, sums", ok("status", ANY)),
    "GET /!queues": Operation(
        queues.list_all,
        "listQueues",
        "figures of queues",
        ok("a page", list_of("queues", ANY, paged=True)),
        (PREFIX, AFTER, LIMIT),
    ),
    "GET /!routers": Operation(
        status.routers,
        "listRouters",
        "routers and their subscriptions",
        ok("routers", list_of("routers", ANY)),
        (PREFIX,),
    ),
    "GET /!permissions": Operation(
        permissions.list_all,
        "listPermissions",
        "rights of users",
        ok("permissions", list_of("permissions", ref("Permission"))),
        (query("user", TEXT, "only permissions of this user"),),
    ),
    "PUT /!permissions/{user}": Operation(
        permissions.put,
        "permit",
        "set the rights of a user at and below a prefix",
        ok("the permission", ref("Permission")),
        (PREFIX,),
        content(object_of({"rights": _RIGHTS}, ("rights",))),
    ),
    "DELETE /!permissions/{user}": Operation(
        permissions.clear, "clearPermission", "remove a permission", REMOVED, (PREFIX,)
    ),
    "GET /!connections": Operation(
        connections.list_all,
        "listConnections",
        "AMQP connections of all frontends; for callers that may manage all names",
        ok("a page", list_of("connections", ref("Connection"), paged=True)),
        (
            query("user", TEXT, "only connections of this user"),
            query("container", TEXT, "only connections with this container-id"),
            LIMIT,
            AFTER,
        ),
    ),
    "GET /!connections/{connection}": Operation(
        connections.show,
        "showConnection",
        "a connection with its sessions and links",
        ok("the connection", ref("Connection")),
    ),
    "DELETE /!connections/{connection}": Operation(
        connections.close,
        "closeConnection",
        "close a connection with amqp:connection:forced",
        {204: ("the connection is being closed", None)},
        (query("text", TEXT, "reason that the client receives"),),
    ),
    "GET /!definitions": Operation(
        definitions.export,
        "export",
        "every name, subscription and right",
        ok("the definitions", ref("Definitions")),
        (PREFIX,),
    ),
    "POST /!definitions": Operation(
        definitions.take_in,
        "import",
        "import definitions",
        ok("a report", ANY),
        (
            query("dry_run", FLAG, "true: only report what would be done"),
            query("replace", FLAG, "true: change existing entries that differ"),
        ),
        content(ref("Definitions")),
    ),
    "GET /!shards": Operation(
        shards.list_all,
        "listShards",
        "every shard of the cluster, running or not",
        ok("shards", list_of("shards", ref("Shard"))),
    ),
    "GET /!shards/{shard}": Operation(
        shards.show, "readShard", "a shard with the names of its queues", ok("the shard", ref("Shard"))
    ),
    "PUT /!shards/{shard}": Operation(
        shards.change,
        "changeShard",
        "drain a shard, or activate it again; with an empty disk: give up the former disk",
        ok("the shard", ref("Shard")),
        (),
        content(object_of({"state": {"enum": ["active", "draining"]}, "disk": {"enum": [""]}})),
    ),
    "GET /!shards/{shard}/replicas": Operation(
        replicas.show,
        "readReplicas",
        "the members of a shard; null without replicas",
        ok("its replicas", _REPLICAS),
    ),
    "PUT /!shards/{shard}/replicas": Operation(
        replicas.change,
        "changeReplicas",
        "how many members a shard is to have, how many it needs, and which of them is to own it",
        ok("its replicas", _REPLICAS),
        (),
        content(object_of({"replicas": _MEMBERS, "min_in_sync": _MEMBERS, "owner": TEXT})),
    ),
    "DELETE /!shards/{shard}/replicas/{member}": Operation(
        replicas.remove_member,
        "removeMember",
        "remove a member that is out of sync and was stopped",
        ok("its replicas", _REPLICAS),
    ),
    "DELETE /!shards/{shard}": Operation(
        shards.remove,
        "removeShard",
        "forget a shard that has no queues and was stopped",
        REMOVED,
        (query("lose_queues", FLAG, "true: give up the messages of its queues"),),
    ),
    "GET /!plan": Operation(
        moves.propose,
        "plan",
        "moves that would balance the load of the shards",
        ok("the plan", ref("Plan")),
        (
            query(
                "sample",
                up_to(limits.PLAN_SAMPLE_S_MAX, "number"),
                "seconds over which messages are counted; 1 by default",
            ),
            query("max_moves", up_to(limits.PLAN_MOVES_MAX), "largest number of moves in this plan"),
        ),
    ),
    "GET /!moves": Operation(
        moves.list_all,
        "listMoves",
        "moves under way, and those that ended in the last minutes",
        ok("moves", object_of({"moves": _MOVES, "ended": _MOVES}, ("moves", "ended"))),
    ),
    "POST /!moves": Operation(
        moves.begin,
        "move",
        "begin the moves of a plan; shards carry them out",
        {202: ("moves that began", content(ANY))},
        (
            query(
                "throttle", up_to(limits.MOVE_THROTTLE_MAX), "bytes per second of each copy; 0 for no limit"
            ),
            query("skip", FLAG, "true: leave out queues that were deleted or moved since"),
        ),
        content(ref("Plan")),
    ),
    "DELETE /!moves": Operation(
        moves.cancel,
        "cancelMoves",
        "cancel moves that have not frozen their queue",
        ok("moves that were cancelled, or are too late", ANY),
        (query("queue", TEXT, "only the move of this queue"),),
    ),
    "GET /!transactions": Operation(
        transactions.list_all,
        "listTransactions",
        "prepared transactions that wait for the decision of another shard",
        ok(
            "a row per transaction and shard, the oldest of each shard first",
            object_of(
                {
                    "transactions": array_of(ref("PreparedTransaction")),
                    "count": WHOLE,
                    "silent": array_of(WHOLE),
                },
                ("transactions", "count", "silent"),
            ),
        ),
    ),
    "POST /!transactions/{transaction}": Operation(
        transactions.decide,
        "decideTransaction",
        "decide a transaction of a shard that is lost for good; that shard may have decided otherwise",
        ok("the shards that have applied the decision", ANY),
        (),
        content(object_of({"decision": {"enum": ["commit", "abort"]}}, ("decision",))),
    ),
    "GET /!coordinator": Operation(
        verification.show,
        "showCoordinator",
        "whether the coordinator was set back, as by a restored snapshot",
        ok("null, or how the coordinator differs from this gateway's copy", ANY),
    ),
    "POST /!coordinator/put-back": Operation(
        verification.put_back,
        "putBack",
        "write keys again that a coordinator lost when it was set back; nothing is deleted",
        ok("keys that were written, that were kept, and that exist again", ANY),
    ),
    "GET /!verify": Operation(
        verification.verify,
        "verify",
        "whether every queue is served once, where it is placed",
        ok("problems that were found", ANY),
    ),
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
    "Shard": object_of(
        {
            "id": WHOLE,
            "state": {"enum": ["active", "draining"]},
            "registered": FLAG,
            "serving": FLAG,
            "queues": WHOLE,
            "queue_names": array_of(TEXT),
            "queue_replicas": {"type": "object", "additionalProperties": WHOLE},
            **dict.fromkeys(("moving_in", "moving_out"), WHOLE),
            **dict.fromkeys(("disk", "address", "host", "zone", "version"), TEXT),
            "started_ms": nullable("integer"),
            "replicas": ref("Replicas"),
        },
        ("id", "state", "serving", "queues"),
    ),
    "Replicas": {
        "type": ["object", "null"],
        "properties": {
            **dict.fromkeys(("epoch", "replicas", "min_in_sync", "in_sync"), WHOLE),
            "owner": TEXT,
            "required": nullable("number"),
            "members": array_of(
                object_of(
                    {**dict.fromkeys(("member", "host", "machine", "file_system", "storage"), TEXT)}
                    | dict.fromkeys(("owns", "in_sync", "running"), FLAG)
                    | dict.fromkeys(replicas.FIGURES, nullable("number")),
                    ("member", "host", "owns", "in_sync", "running"),
                )
            ),
            "waiting": array_of(object_of(dict.fromkeys(("member", "host", "reason"), TEXT))),
        },
    },
    "PreparedTransaction": object_of(
        {
            "id": TEXT,
            **dict.fromkeys(("shard", "decides", "age_ms"), WHOLE),
            "queues": array_of(TEXT),
            **dict.fromkeys(("queue_count", "messages", "deliveries"), WHOLE),
        },
        ("id", "shard", "decides", "age_ms", "queues", "messages", "deliveries"),
    ),
    "Move": object_of(
        {
            "queue": TEXT,
            "from": WHOLE,
            "to": WHOLE,
            "phase": TEXT,
            "messages": WHOLE,
            "messages_total": nullable("integer"),
            "bytes": WHOLE,
            "pause_ms": nullable("number"),
            "error": nullable("string"),
        },
        ("queue", "from", "to"),
    ),
    "Plan": object_of(
        {
            "format": {"const": 1},
            "kind": {"const": "lightrail-plan"},
            "cluster": TEXT,
            "placement_revision": nullable("integer"),
            "made_at_ms": WHOLE,
            "moves": {
                "type": "array",
                "maxItems": limits.PLAN_MOVES_MAX,
                "items": object_of(
                    {"queue": TEXT, "from": WHOLE, "to": WHOLE, "load": {"type": "number"}, "bytes": WHOLE},
                    ("queue", "to"),
                ),
            },
            "shards": array_of(ANY),
            "silent": array_of(WHOLE),
        },
        ("moves",),
    ),
}
