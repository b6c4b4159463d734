"""Description of shards, moves of queues and transactions between them, and the coordinator."""

from typing import Final

from lightrail.gateway.openapi.operation import (
    ANY,
    FLAG,
    TEXT,
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

_MOVES: Final[Object] = {"type": "array", "items": ref("Move")}

PATHS: Final[Paths] = {
    "/!shards": {
        "get": Operation(
            "listShards",
            "every shard of the cluster, running or not",
            {200: ("shards", content(list_of("shards", ref("Shard"))))},
        ),
    },
    "/!shards/{shard}": {
        "get": Operation(
            "readShard", "a shard with the names of its queues", {200: ("the shard", content(ref("Shard")))}
        ),
        "put": Operation(
            "changeShard",
            "drain a shard, or activate it again; with an empty disk: give up the former disk",
            {200: ("the shard", content(ref("Shard")))},
            (),
            content(object_of({"state": {"enum": ["active", "draining"]}, "disk": {"enum": [""]}})),
        ),
        "delete": Operation(
            "removeShard",
            "forget a shard that has no queues and was stopped",
            {204: ("removed", None)},
            (query("lose_queues", FLAG, "true: give up the messages of its queues"),),
        ),
    },
    "/!plan": {
        "get": Operation(
            "plan",
            "moves that would balance the load of the shards",
            {200: ("the plan", content(ref("Plan")))},
            (
                query(
                    "sample",
                    {"type": "number", "minimum": 0, "maximum": limits.PLAN_SAMPLE_S_MAX},
                    "seconds over which messages are counted; 1 by default",
                ),
                query(
                    "max_moves",
                    {"type": "integer", "minimum": 0, "maximum": limits.PLAN_MOVES_MAX},
                    "largest number of moves in this plan",
                ),
            ),
        ),
    },
    "/!moves": {
        "get": Operation(
            "listMoves",
            "moves under way, and those that ended in the last minutes",
            {200: ("moves", content(object_of({"moves": _MOVES, "ended": _MOVES}, "moves", "ended")))},
        ),
        "post": Operation(
            "move",
            "begin the moves of a plan; shards carry them out",
            {202: ("moves that began", content(ANY))},
            (
                query(
                    "throttle",
                    {"type": "integer", "minimum": 0, "maximum": limits.MOVE_THROTTLE_MAX},
                    "bytes per second of each copy; 0 for no limit",
                ),
                query("skip", FLAG, "true: leave out queues that were deleted or moved since"),
            ),
            content(ref("Plan")),
        ),
        "delete": Operation(
            "cancelMoves",
            "cancel moves that have not frozen their queue",
            {200: ("moves that were cancelled, or are too late", content(ANY))},
            (query("queue", TEXT, "only the move of this queue"),),
        ),
    },
    "/!transactions": {
        "get": Operation(
            "listTransactions",
            "prepared transactions that wait for the decision of another shard",
            {
                200: (
                    "a row per transaction and shard, the oldest of each shard first",
                    content(
                        object_of(
                            {
                                "transactions": {"type": "array", "items": ref("PreparedTransaction")},
                                "count": WHOLE,
                                "silent": {"type": "array", "items": WHOLE},
                            },
                            "transactions",
                            "count",
                            "silent",
                        )
                    ),
                )
            },
        ),
    },
    "/!transactions/{transaction}": {
        "post": Operation(
            "decideTransaction",
            "decide a transaction of a shard that is lost for good; that shard may have decided otherwise",
            {200: ("the shards that have applied the decision", content(ANY))},
            (),
            content(object_of({"decision": {"enum": ["commit", "abort"]}}, "decision")),
        ),
    },
    "/!coordinator": {
        "get": Operation(
            "showCoordinator",
            "whether the coordinator was set back, as by a restored snapshot",
            {200: ("null, or how the coordinator differs from this gateway's copy", content(ANY))},
        ),
    },
    "/!coordinator/put-back": {
        "post": Operation(
            "putBack",
            "write keys again that a coordinator lost when it was set back; nothing is deleted",
            {200: ("keys that were written, that were kept, and that exist again", content(ANY))},
        ),
    },
    "/!verify": {
        "get": Operation(
            "verify",
            "whether every queue is served once, where it is placed",
            {200: ("problems that were found", content(ANY))},
        ),
    },
}

SCHEMAS: Final[Object] = {
    "Shard": object_of(
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
    "PreparedTransaction": object_of(
        {
            "id": TEXT,
            "shard": WHOLE,
            "decides": WHOLE,
            "age_ms": WHOLE,
            "queues": {"type": "array", "items": TEXT},
            "queue_count": WHOLE,
            "messages": WHOLE,
            "deliveries": WHOLE,
        },
        "id",
        "shard",
        "decides",
        "age_ms",
        "queues",
        "messages",
        "deliveries",
    ),
    "Move": object_of(
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
    "Plan": object_of(
        {
            "format": {"const": 1},
            "kind": {"const": "lightrail-plan"},
            "cluster": TEXT,
            "placement_revision": {"type": ["integer", "null"]},
            "made_at_ms": WHOLE,
            "moves": {
                "type": "array",
                "maxItems": limits.PLAN_MOVES_MAX,
                "items": object_of(
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
}
