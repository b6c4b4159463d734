"""Requests of applications: names with their policies and subscriptions, messages, transfers of messages."""

from typing import Final

from lightrail.gateway.bodies import AMQP, ATOM, BATCH, JSON, POLICY
from lightrail.gateway.forwarding.transfer import Mode, TransferState
from lightrail.gateway.messages.outgoing import BROKER_PROPERTIES
from lightrail.gateway.openapi.operation import (
    AFTER,
    ANY,
    FLAG,
    IF_MATCH,
    LIMIT,
    REMOVED,
    SEQUENCE,
    TEXT,
    TIME,
    TIMEOUT,
    WHOLE,
    Object,
    Operation,
    Operations,
    array_of,
    content,
    header,
    list_of,
    nullable,
    object_of,
    ok,
    query,
    ref,
    required_header,
    up_to,
)
from lightrail.gateway.resources import batches, head, messages, names, queues, subscriptions, tail, transfers
from lightrail.model import limits
from lightrail.model.policy import Role, fields_of
from lightrail.model.policy_field import Field


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
        case "seconds" | "number":
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


_ROLES: Final = [role for role in Role if role is not Role.NONE]
_BODY_KINDS: Final = query("body", {"enum": ["data", "text"]}, "text: the body becomes an amqp-value string")
_BROKER: Final = header(
    "BrokerProperties", "JSON object with " + ", ".join(BROKER_PROPERTIES) + "; times in seconds or RFC 3339"
)

_SUBSCRIPTION: Final[Object] = {
    "target": {"type": "string", "minLength": 1},
    "filter": nullable("object"),
    "action": nullable("object"),
    "rules": {"type": ["object", "null"], "additionalProperties": {"type": "object"}},
    "expires_at": nullable("string"),
    "drop_failed": nullable("boolean"),
}

_BATCH: Final[Object] = {
    "type": "string",
    "format": "binary",
    "description": "u32 count, u32 ends[count] from the first byte of the first message on, the encoded AMQP "
    "messages; little-endian",
}
_MESSAGE: Final[Object] = {"*/*": {"schema": {}}}
_PROPERTIES: Final[Object] = {
    "type": "object",
    "properties": {key: {} for key in BROKER_PROPERTIES},
    "additionalProperties": False,
}

OPERATIONS: Final[Operations] = {
    "GET /{name}": Operation(
        names.summary,
        "getName",
        "the role of a name, with links to its parts",
        {200: ("the name", content(ref("Name"))), 303: ("a metadata name: see Location", None)},
    ),
    "POST /{name}": Operation(
        tail.post,
        "post",
        "give the name a role (a policy as JSON or in an Atom entry), or send a message to it (any other "
        "type, or with BrokerProperties). Once the name is a queue or router, JSON is a message, unless it "
        "is an object with a role",
        {
            201: (
                "created; Location is the URL of the policy, or of a message (without a body)",
                content(ANY) | content(TEXT, ATOM, "text/plain"),
            ),
            207: ("a batch of which not every message was stored", content(ANY)),
            303: ("a metadata name: see Location", None),
        },
        (_BROKER, _BODY_KINDS),
        content(ref("Policy"), JSON, POLICY)
        | {ATOM: {"schema": TEXT}}
        | {BATCH: {"schema": array_of(ref("BatchMessage")) | {"maxItems": 1000}}}
        | {
            "text/plain": {"schema": TEXT},
            AMQP: {"schema": TEXT},
            "application/octet-stream": {"schema": TEXT},
        },
    ),
    "GET /{name}/": Operation(
        names.below,
        "listNames",
        "names below",
        {200: ("a page", content(list_of("names", ANY, paged=True)) | {ATOM: {"schema": TEXT}})},
        (AFTER, LIMIT, query("deep", FLAG, "true: not only the next segment")),
    ),
    "GET /{name}/!policy": Operation(
        names.read,
        "getPolicy",
        "a name's policy",
        {200: ("the policy as it was set", content(ref("Policy"))), 304: ("unchanged", None)},
        (query("effective", FLAG, "true: with every default"),),
    ),
    "PUT /{name}/!policy": Operation(
        names.change,
        "changePolicy",
        "change or renew a policy; the role stays",
        ok("the policy", ref("Policy")),
        (IF_MATCH,),
        content(ref("Policy")),
    ),
    "DELETE /{name}/!policy": Operation(
        names.drop, "dropPolicy", "remove the role, with all messages", REMOVED, (IF_MATCH,)
    ),
    "GET /{name}/!subscriptions": Operation(
        subscriptions.list_all,
        "listSubscriptions",
        "subscriptions of a router",
        ok("subscriptions", list_of("subscriptions", ref("Subscription"))),
    ),
    "POST /{name}/!subscriptions": Operation(
        subscriptions.subscribe,
        "subscribe",
        "send messages of a router to a queue, a router or a URL",
        {201: ("created; a push's secret is shown once", content(ref("Subscription")))},
        body=content(ref("NewSubscription")),
    ),
    "GET /{name}/!subscriptions/{id}": Operation(
        subscriptions.read, "getSubscription", "a subscription", ok("the subscription", ref("Subscription"))
    ),
    "PUT /{name}/!subscriptions/{id}": Operation(
        subscriptions.replace,
        "changeSubscription",
        "change filter, action, target or expiry",
        ok("the subscription", ref("Subscription")),
        (IF_MATCH,),
        content(ref("ChangedSubscription")),
    ),
    "DELETE /{name}/!subscriptions/{id}": Operation(
        subscriptions.unsubscribe, "unsubscribe", "end a subscription", REMOVED
    ),
    "POST /{name}/!batch": Operation(
        batches.store,
        "storeBatch",
        "store a numbered batch of messages once, however often it is sent",
        ok("every message is stored, by this request or an earlier one", ref("Batch")),
        (
            required_header(
                "LightRail-Producer",
                {"type": "string", "minLength": 1, "maxLength": limits.HTTP_PRODUCER_BYTES},
                "name of the producer, chosen by the user; its batches are sent one after the other",
            ),
            required_header(
                "LightRail-Batch",
                up_to(limits.HTTP_BATCH_NUMBER_MAX),
                "number of the batch, above those of the producer's earlier batches; others are stored",
            ),
        ),
        {"application/octet-stream": {"schema": _BATCH}},
    ),
    "DELETE /{name}/!head": Operation(
        head.receive,
        "receive",
        "receive the next message",
        {200: ("the message", _MESSAGE), 204: ("no message", None)},
        (TIMEOUT,),
    ),
    "POST /{name}/!head": Operation(
        head.lock,
        "lock",
        "lock the next message; Location is the URL of the lock",
        {201: ("the message, locked", _MESSAGE), 204: ("no message", None)},
        (TIMEOUT,),
    ),
    "GET /{name}/!messages": Operation(
        messages.browse,
        "browse",
        "browse messages",
        ok("messages", list_of("messages", ANY, paged=True)),
        (
            query("from", SEQUENCE, "first sequence"),
            query(
                "count",
                {"type": "integer", "minimum": 1, "maximum": limits.PAGE_MAX},
                "largest number of messages; 10 by default",
            ),
        ),
    ),
    "DELETE /{name}/!messages": Operation(
        messages.purge,
        "purge",
        "remove all messages that are not in flight",
        ok("done", object_of({"purged": WHOLE}, ("purged",))),
    ),
    "GET /{name}/!messages/{sequence}": Operation(
        messages.browse_one, "look", "browse one message", ok("the message", ANY)
    ),
    "DELETE /{name}/!messages/{sequence}": Operation(
        messages.cancel, "cancel", "cancel a scheduled message", REMOVED
    ),
    "DELETE /{name}/!messages/{sequence}/{lock}": Operation(
        messages.complete, "complete", "accept a message", ok("accepted", ANY)
    ),
    "PUT /{name}/!messages/{sequence}/{lock}": Operation(
        messages.settle,
        "settle",
        "settle a message: accept, release, or make it a dead letter",
        ok("settled", ANY),
        body=content(ref("Outcome")),
        body_required=False,
    ),
    "POST /{name}/!messages/{sequence}/{lock}": Operation(
        messages.renew, "renew", "renew the lock", ok("locked", object_of({"locked_until": TIME}))
    ),
    "GET /{name}/!figures": Operation(queues.figures, "figures", "figures of a queue", ok("figures", ANY)),
    "GET /!transfers": Operation(
        transfers.list_all,
        "listTransfers",
        "the caller's transfers",
        ok("transfers", list_of("transfers", ref("Transfer"))),
    ),
    "POST /!transfers": Operation(
        transfers.begin,
        "transfer",
        "move, copy or redrive messages",
        {202: ("the transfer has begun", content(ref("Transfer")))},
        (),
        content(ref("NewTransfer")),
    ),
    "GET /!transfers/{id}": Operation(
        transfers.read, "readTransfer", "a transfer and its progress", ok("the transfer", ref("Transfer"))
    ),
    "DELETE /!transfers/{id}": Operation(
        transfers.cancel,
        "cancelTransfer",
        "end a transfer after its messages in flight are stored",
        ok("the transfer", ref("Transfer")),
    ),
}

SCHEMAS: Final[Object] = {
    "Policy": {"oneOf": [ref(_schema_name(role)) for role in Role]},
    **{_schema_name(role): _policy(role) for role in (*_ROLES, Role.NONE)},
    "Name": object_of(
        {"name": TEXT, "role": {"enum": [str(role) for role in Role]}, "policy": ANY, "links": ANY}, ("name",)
    ),
    "NewSubscription": object_of({**_SUBSCRIPTION, "id": nullable("string")}, ("target",))
    | {"additionalProperties": False},
    "ChangedSubscription": object_of(_SUBSCRIPTION, ("target",)) | {"additionalProperties": False},
    "Subscription": object_of(
        {"id": TEXT, "router": TEXT, **_SUBSCRIPTION, "secret": TEXT}, ("id", "router", "target")
    ),
    "Batch": object_of({"stored": WHOLE, "duplicate": FLAG}, ("stored", "duplicate")),
    "BatchMessage": {
        "type": "object",
        "properties": {"Body": {}, "BrokerProperties": _PROPERTIES, "UserProperties": {"type": "object"}},
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
            "annotations": nullable("object"),
        },
        "additionalProperties": False,
    },
    "NewTransfer": object_of(
        {
            "from": TEXT,
            "to": nullable("string"),
            "mode": {"enum": [str(mode) for mode in Mode], "default": "move"},
            "count": {"type": ["integer", "null"], "minimum": 1},
            "filter": nullable("object"),
        },
        ("from",),
    )
    | {"additionalProperties": False},
    "Transfer": object_of(
        {
            "id": TEXT,
            "from": TEXT,
            "to": nullable("string"),
            "mode": {"enum": [str(mode) for mode in Mode]},
            "state": {"enum": [str(state) for state in TransferState]},
            "moved": WHOLE,
            "total": nullable("integer"),
            "failed": WHOLE,
            "error": nullable("string"),
        },
        ("id", "from", "mode", "state", "moved"),
    ),
}
