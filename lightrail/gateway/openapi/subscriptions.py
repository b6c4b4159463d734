"""Description of the subscriptions of routers."""

from typing import Final

from lightrail.gateway.openapi.operation import (
    IF_MATCH,
    REMOVED,
    TEXT,
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
from lightrail.gateway.resources import subscriptions

_SUBSCRIPTION: Final[Object] = {
    "target": {"type": "string", "minLength": 1},
    "filter": nullable("object"),
    "action": nullable("object"),
    "rules": {"type": ["object", "null"], "additionalProperties": {"type": "object"}},
    "expires_at": nullable("string"),
}

SUBSCRIPTIONS: Final[Operations] = {
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
}

SCHEMAS: Final[Object] = {
    "NewSubscription": object_of({**_SUBSCRIPTION, "id": nullable("string")}, "target")
    | {"additionalProperties": False},
    "ChangedSubscription": object_of(_SUBSCRIPTION, "target") | {"additionalProperties": False},
    "Subscription": object_of(
        {"id": TEXT, "router": TEXT, **_SUBSCRIPTION, "secret": TEXT}, "id", "router", "target"
    ),
}
