"""Counts of forwarding, and the metric families that show them."""

from dataclasses import dataclass, field
from typing import Any, Final

from lightrail.telemetry.metrics import AnyFamily, counter, counters, gauge

MODES: Final = ("move", "copy", "redrive")
ENDS: Final = ("done", "failed", "cancelled")


@dataclass(slots=True, eq=False, repr=False)
class ForwardingCounts:
    """Messages that one gateway forwarded since it started."""

    transfers_started: int = 0
    transfers_refused: int = 0
    transfers_ended: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDS, 0))
    transferred: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MODES, 0))
    forwarders: int = 0
    forwarded: int = 0
    forwards_refused: int = 0
    forwarding_queues: int = 0
    messages_forwarded: int = 0
    messages_not_forwarded: int = 0
    schedulers: int = 0
    scheduled_routed: int = 0
    scheduled_refused: int = 0
    pushers: int = 0
    pushes_under_way: int = 0
    pushes_accepted: int = 0
    pushes_failed: int = 0
    pushes_dead_lettered: int = 0
    subscriptions_gone: int = 0


FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    counter("lightrail_transfers_started", "Transfers that began."),
    counters(
        "lightrail_transfers_ended", "Transfers that ended, by final state.", "state", "transfers_ended"
    ),
    counters(
        "lightrail_transfer_messages", "Messages that transfers sent to their target.", "mode", "transferred"
    ),
    counter(
        "lightrail_transfer_messages_refused",
        "Messages of transfers that their target refused.",
        "transfers_refused",
    ),
    gauge("lightrail_forwarders", "Queues whose dead letters are forwarded to another name."),
    counter(
        "lightrail_dead_letters_forwarded", "Dead letters that were forwarded to another name.", "forwarded"
    ),
    counter(
        "lightrail_dead_letters_refused",
        "Attempts to forward a dead letter that the target refused.",
        "forwards_refused",
    ),
    gauge("lightrail_forwarding_queues", "Queues whose messages are forwarded to another name."),
    counter("lightrail_messages_forwarded", "Messages of such queues that were passed on from there."),
    counter(
        "lightrail_messages_not_forwarded", "Messages of such queues that became dead letters in their place."
    ),
    gauge("lightrail_schedulers", "Routers whose scheduled messages are routed when due."),
    counter("lightrail_scheduled_routed", "Scheduled messages that were routed when due."),
    counter(
        "lightrail_scheduled_refused",
        "Attempts to route a scheduled message that a queue or the router refused.",
    ),
    gauge("lightrail_pushers", "Subscriptions that are pushed to a URL."),
    gauge("lightrail_pushes_under_way", "Push requests that wait for their answer."),
    counter("lightrail_pushes_accepted", "Pushes that were answered with a status of 2xx."),
    counter("lightrail_pushes_failed", "Pushes without a status of 2xx; most are retried."),
    counter(
        "lightrail_pushes_dead_lettered",
        "Messages that became dead letters after the last attempt to push them.",
    ),
    counter(
        "lightrail_push_subscriptions_gone",
        "Subscriptions that ended because their URL answered 410.",
        "subscriptions_gone",
    ),
)
