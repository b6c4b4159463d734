"""Counts of forwarding, and the metric families that show them."""

from typing import Any, Final

from lightrail.telemetry.metrics import AnyFamily, Family, counter, gauge

MODES: Final = ("move", "copy", "redrive")
ENDS: Final = ("done", "failed", "cancelled")


class ForwardingCounts:
    """Messages that one gateway forwarded since it started."""

    __slots__ = (
        "forwarded",
        "forwarders",
        "forwards_refused",
        "pushers",
        "pushes_accepted",
        "pushes_dead_lettered",
        "pushes_failed",
        "pushes_under_way",
        "scheduled_refused",
        "scheduled_routed",
        "schedulers",
        "subscriptions_gone",
        "transferred",
        "transfers_ended",
        "transfers_refused",
        "transfers_started",
    )

    def __init__(self) -> None:
        self.transfers_started = 0
        self.transfers_refused = 0
        self.transfers_ended = dict.fromkeys(ENDS, 0)
        self.transferred = dict.fromkeys(MODES, 0)
        self.forwarders = 0
        self.forwarded = 0
        self.forwards_refused = 0
        self.schedulers = 0
        self.scheduled_routed = 0
        self.scheduled_refused = 0
        self.pushers = 0
        self.pushes_under_way = 0
        self.pushes_accepted = 0
        self.pushes_failed = 0
        self.pushes_dead_lettered = 0
        self.subscriptions_gone = 0


FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    counter("lightrail_transfers_started", "Transfers that began.", "transfers_started"),
    Family(
        "counter",
        "lightrail_transfers_ended",
        "Transfers that ended, by final state.",
        ("state",),
        lambda counts: [((state,), count) for state, count in counts.transfers_ended.items()],
    ),
    Family(
        "counter",
        "lightrail_transfer_messages",
        "Messages that transfers sent to their target.",
        ("mode",),
        lambda counts: [((mode,), count) for mode, count in counts.transferred.items()],
    ),
    counter(
        "lightrail_transfer_messages_refused",
        "Messages of transfers that their target refused.",
        "transfers_refused",
    ),
    gauge("lightrail_forwarders", "Queues whose dead letters are forwarded to another name.", "forwarders"),
    counter(
        "lightrail_dead_letters_forwarded", "Dead letters that were forwarded to another name.", "forwarded"
    ),
    counter(
        "lightrail_dead_letters_refused",
        "Attempts to forward a dead letter that the target refused.",
        "forwards_refused",
    ),
    gauge("lightrail_schedulers", "Routers whose scheduled messages are routed when due.", "schedulers"),
    counter(
        "lightrail_scheduled_routed", "Scheduled messages that were routed when due.", "scheduled_routed"
    ),
    counter(
        "lightrail_scheduled_refused",
        "Attempts to route a scheduled message that a queue or the router refused.",
        "scheduled_refused",
    ),
    gauge("lightrail_pushers", "Subscriptions that are pushed to a URL.", "pushers"),
    gauge("lightrail_pushes_under_way", "Push requests that wait for their answer.", "pushes_under_way"),
    counter(
        "lightrail_pushes_accepted", "Pushes that were answered with a status of 2xx.", "pushes_accepted"
    ),
    counter("lightrail_pushes_failed", "Pushes without a status of 2xx; most are retried.", "pushes_failed"),
    counter(
        "lightrail_pushes_dead_lettered",
        "Messages that became dead letters after the last attempt to push them.",
        "pushes_dead_lettered",
    ),
    counter(
        "lightrail_push_subscriptions_gone",
        "Subscriptions that ended because their URL answered 410.",
        "subscriptions_gone",
    ),
)
