"""Subscriptions of routers, as the description has them."""

from typing import Final

from lightrail.gateway.openapi.operation import (
    IF_MATCH,
    TEXT,
    Object,
    Operation,
    Paths,
    content,
    list_of,
    object_of,
    ref,
)

_SUBSCRIPTION: Final[Object] = {
    "target": {"type": "string", "minLength": 1},
    "filter": {"type": ["object", "null"]},
    "action": {"type": ["object", "null"]},
    "expires_at": {"type": ["string", "null"]},
}

PATHS: Final[Paths] = {
    "/{name}/!subscriptions": {
        "get": Operation(
            "listSubscriptions",
            "of a router",
            {200: ("subscriptions", content(list_of("subscriptions", ref("Subscription"))))},
        ),
        "post": Operation(
            "subscribe",
            "messages of a router go to a queue, a router or a URL",
            {201: ("made; a push's secret is shown once", content(ref("Subscription")))},
            body=content(ref("NewSubscription")),
        ),
    },
    "/{name}/!subscriptions/{id}": {
        "get": Operation("getSubscription", "one of them", {200: ("it", content(ref("Subscription")))}),
        "put": Operation(
            "changeSubscription",
            "another filter, action, target or end",
            {200: ("it", content(ref("Subscription")))},
            (IF_MATCH,),
            content(ref("NewSubscription")),
        ),
        "delete": Operation("unsubscribe", "end it", {204: ("gone", None)}),
    },
}

SCHEMAS: Final[Object] = {
    "NewSubscription": object_of(_SUBSCRIPTION, "target") | {"additionalProperties": False},
    "Subscription": object_of(
        {"id": TEXT, "router": TEXT, **_SUBSCRIPTION, "secret": TEXT}, "id", "router", "target"
    ),
}
