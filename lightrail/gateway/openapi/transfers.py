"""Description of transfers."""

from typing import Final

from lightrail.gateway.forwarding.transfer import Mode, State
from lightrail.gateway.openapi.operation import (
    TEXT,
    WHOLE,
    Object,
    Operation,
    Paths,
    content,
    list_of,
    object_of,
    ref,
)

PATHS: Final[Paths] = {
    "/!transfers": {
        "get": Operation(
            "listTransfers",
            "the caller's transfers",
            {200: ("transfers", content(list_of("transfers", ref("Transfer"))))},
        ),
        "post": Operation(
            "transfer",
            "move, copy or redrive messages",
            {202: ("the transfer has begun", content(ref("Transfer")))},
            (),
            content(ref("NewTransfer")),
        ),
    },
    "/!transfers/{id}": {
        "get": Operation(
            "readTransfer", "a transfer and its progress", {200: ("the transfer", content(ref("Transfer")))}
        ),
        "delete": Operation(
            "cancelTransfer",
            "end a transfer after its messages in flight are stored",
            {200: ("the transfer", content(ref("Transfer")))},
        ),
    },
}

SCHEMAS: Final[Object] = {
    "NewTransfer": object_of(
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
    "Transfer": object_of(
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
}
