"""Description of the subscriptions of routers."""

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
    "rules": {"type": ["object", "null"], "additionalProperties": {"type": "object"}},
    "expires_at": {"type": ["string", "null"]},
}

PATHS: Final[Paths] = {
    "/{name}/!subscriptions": {
        "get": Operation(
            "listSubscriptions",
            "subscriptions of a router",
            {200: ("subscriptions", content(list_of("subscriptions", ref("Subscription"))))},
        ),
        "post": Operation(
            "subscribe",
            "send messages of a router to a queue, a router or a URL",
            {201: ("created; a push's secret is shown once", content(ref("Subscription")))},
            body=content(ref("NewSubscription")),
        ),
    },
    "/{name}/!subscriptions/{id}": {
        "get": Operation(
            "getSubscription", "a subscription", {200: ("the subscription", content(ref("Subscription")))}
        ),
        "put": Operation(
            "changeSubscription",
            "change filter, action, target or expiry",
            {200: ("the subscription", content(ref("Subscription")))},
            (IF_MATCH,),
            content(ref("ChangedSubscription")),
        ),
        "delete": Operation("unsubscribe", "end a subscription", {204: ("removed", None)}),
    },
}

SCHEMAS: Final[Object] = {
    "NewSubscription": object_of({**_SUBSCRIPTION, "id": {"type": ["string", "null"]}}, "target")
    | {"additionalProperties": False},
    "ChangedSubscription": object_of(_SUBSCRIPTION, "target") | {"additionalProperties": False},
    "Subscription": object_of(
        {"id": TEXT, "router": TEXT, **_SUBSCRIPTION, "secret": TEXT}, "id", "router", "target"
    ),
}
