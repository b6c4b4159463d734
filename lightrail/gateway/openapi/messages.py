"""Description of messages: stored in batches, received, settled, browsed, and transferred to other queues."""

from typing import Final

from lightrail.gateway.forwarding.transfer import Mode, State
from lightrail.gateway.messages.outgoing import BROKER_PROPERTIES
from lightrail.gateway.openapi.operation import (
    ANY,
    FLAG,
    REMOVED,
    SEQUENCE,
    TEXT,
    TIME,
    TIMEOUT,
    WHOLE,
    Object,
    Operation,
    Operations,
    content,
    list_of,
    nullable,
    object_of,
    ok,
    query,
    ref,
    required_header,
    up_to,
)
from lightrail.gateway.resources import batches, head, messages, queues, transfers
from lightrail.model import limits

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

# fmt: off
OPERATIONS: Final[Operations] = {
    "POST /{name}/!batch": Operation(batches.store, "storeBatch",
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
        ), {"application/octet-stream": {"schema": _BATCH}}),
    "DELETE /{name}/!head": Operation(head.receive, "receive", "receive the next message",
        {200: ("the message", _MESSAGE), 204: ("no message", None)}, (TIMEOUT,)),
    "POST /{name}/!head": Operation(head.lock, "lock",
        "lock the next message; Location is the URL of the lock",
        {201: ("the message, locked", _MESSAGE), 204: ("no message", None)}, (TIMEOUT,)),
    "GET /{name}/!messages": Operation(messages.browse, "browse", "browse messages",
        ok("messages", list_of("messages", ANY, paged=True)),
        (
            query("from", SEQUENCE, "first sequence"),
            query(
                "count",
                {"type": "integer", "minimum": 1, "maximum": limits.PAGE_MAX},
                "largest number of messages; 10 by default",
            ),
        )),
    "DELETE /{name}/!messages": Operation(messages.purge, "purge",
        "remove all messages that are not in flight", ok("done", object_of({"purged": WHOLE}, ("purged",)))),
    "GET /{name}/!messages/{sequence}": Operation(messages.look, "look", "browse one message",
        ok("the message", ANY)),
    "DELETE /{name}/!messages/{sequence}": Operation(messages.cancel, "cancel", "cancel a scheduled message",
        REMOVED),
    "DELETE /{name}/!messages/{sequence}/{lock}": Operation(messages.complete, "complete", "accept a message",
        ok("accepted", ANY)),
    "PUT /{name}/!messages/{sequence}/{lock}": Operation(messages.settle, "settle",
        "settle a message: accept, release, or make it a dead letter", ok("settled", ANY),
        body=content(ref("Outcome")), body_required=False),
    "POST /{name}/!messages/{sequence}/{lock}": Operation(messages.renew, "renew", "renew the lock",
        ok("locked", object_of({"locked_until": TIME}))),
    "GET /{name}/!figures": Operation(queues.figures, "figures", "figures of a queue", ok("figures", ANY)),
    "GET /!transfers": Operation(transfers.list_all, "listTransfers", "the caller's transfers",
        ok("transfers", list_of("transfers", ref("Transfer")))),
    "POST /!transfers": Operation(transfers.begin, "transfer", "move, copy or redrive messages",
        {202: ("the transfer has begun", content(ref("Transfer")))}, (), content(ref("NewTransfer"))),
    "GET /!transfers/{id}": Operation(transfers.read, "readTransfer", "a transfer and its progress",
        ok("the transfer", ref("Transfer"))),
    "DELETE /!transfers/{id}": Operation(transfers.cancel, "cancelTransfer",
        "end a transfer after its messages in flight are stored", ok("the transfer", ref("Transfer"))),
}
# fmt: on

SCHEMAS: Final[Object] = {
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
            "state": {"enum": [str(state) for state in State]},
            "moved": WHOLE,
            "total": nullable("integer"),
            "failed": WHOLE,
            "error": nullable("string"),
        },
        ("id", "from", "mode", "state", "moved"),
    ),
}
