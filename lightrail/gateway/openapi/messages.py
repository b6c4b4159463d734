"""Description of messages: stored in batches, received, settled, browsed."""

from typing import Final

from lightrail.gateway.links.outgoing import BROKER_PROPERTIES
from lightrail.gateway.openapi.operation import (
    ANY,
    FLAG,
    SEQUENCE,
    TIME,
    TIMEOUT,
    WHOLE,
    Object,
    Operation,
    Paths,
    content,
    list_of,
    object_of,
    query,
    ref,
    required_header,
)
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

PATHS: Final[Paths] = {
    "/{name}/!batch": {
        "post": Operation(
            "storeBatch",
            "store a numbered batch of messages once, however often it is sent",
            {200: ("every message is stored, by this request or an earlier one", content(ref("Batch")))},
            (
                required_header(
                    "LightRail-Producer",
                    {"type": "string", "minLength": 1, "maxLength": limits.HTTP_PRODUCER_BYTES},
                    "name of the producer, chosen by the user; its batches are sent one after the other",
                ),
                required_header(
                    "LightRail-Batch",
                    {"type": "integer", "minimum": 0, "maximum": limits.HTTP_BATCH_NUMBER_MAX},
                    "number of the batch, above those of the producer's earlier batches; others are stored",
                ),
            ),
            {"application/octet-stream": {"schema": _BATCH}},
        )
    },
    "/{name}/!head": {
        "delete": Operation(
            "receive",
            "receive the next message",
            {200: ("the message", _MESSAGE), 204: ("no message", None)},
            (TIMEOUT,),
        ),
        "post": Operation(
            "lock",
            "lock the next message; Location is the URL of the lock",
            {201: ("the message, locked", _MESSAGE), 204: ("no message", None)},
            (TIMEOUT,),
        ),
    },
    "/{name}/!messages": {
        "get": Operation(
            "browse",
            "browse messages",
            {200: ("messages", content(list_of("messages", ANY, paged=True)))},
            (
                query("from", SEQUENCE, "first sequence"),
                query(
                    "count",
                    {"type": "integer", "minimum": 1, "maximum": limits.PAGE_MAX},
                    "largest number of messages; 10 by default",
                ),
            ),
        ),
        "delete": Operation(
            "purge",
            "remove all messages that are not in flight",
            {200: ("done", content(object_of({"purged": WHOLE}, "purged")))},
        ),
    },
    "/{name}/!messages/{sequence}": {
        "get": Operation("look", "browse one message", {200: ("the message", content(ANY))}),
        "delete": Operation("cancel", "cancel a scheduled message", {204: ("removed", None)}),
    },
    "/{name}/!messages/{sequence}/{lock}": {
        "delete": Operation("complete", "accept a message", {200: ("accepted", content(ANY))}),
        "put": Operation(
            "settle",
            "settle a message: accept, release, or make it a dead letter",
            {200: ("settled", content(ANY))},
            body=content(ref("Outcome")),
            body_required=False,
        ),
        "post": Operation(
            "renew", "renew the lock", {200: ("locked", content(object_of({"locked_until": TIME})))}
        ),
    },
    "/{name}/!figures": {"get": Operation("figures", "figures of a queue", {200: ("figures", content(ANY))})},
}

SCHEMAS: Final[Object] = {
    "Batch": object_of({"stored": WHOLE, "duplicate": FLAG}, "stored", "duplicate"),
    "BatchMessage": {
        "type": "object",
        "properties": {
            "Body": {},
            "BrokerProperties": _PROPERTIES,
            "UserProperties": {"type": "object"},
        },
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
}
