"""Description of transfers."""

from typing import Final

from lightrail.gateway.forwarding.transfer import Mode, State
from lightrail.gateway.openapi.operation import (
    TEXT,
    WHOLE,
    Object,
    Operation,
    Operations,
    content,
    list_of,
    nullable,
    object_of,
    ok,
    ref,
)
from lightrail.gateway.resources import transfers

TRANSFERS: Final[Operations] = {
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
    "NewTransfer": object_of(
        {
            "from": TEXT,
            "to": nullable("string"),
            "mode": {"enum": [str(mode) for mode in Mode], "default": "move"},
            "count": {"type": ["integer", "null"], "minimum": 1},
            "filter": nullable("object"),
        },
        "from",
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
        "id",
        "from",
        "mode",
        "state",
        "moved",
    ),
}
