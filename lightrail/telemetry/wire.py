"""Metrics of the sockets between processes; what is counted is in lightrail/wire/sockets/counts.py."""

from typing import Any, Final

from lightrail.telemetry.metrics import AnyFamily, counters, gauges

WIRE_FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    gauges(
        "lightrail_wire_connections",
        "Connections to processes of the cluster that are open, by sockets: `loop` on the event loop, "
        "between processes of one machine, `zeromq` by ZeroMQ, only those that this process has made.",
        "sockets",
        lambda counts: counts.by_kind("connections"),
    ),
    counters(
        "lightrail_wire_messages_sent",
        "Messages to processes of the cluster, each with the frames of a turn, by sockets.",
        "sockets",
        lambda counts: counts.by_kind("sent"),
    ),
    counters(
        "lightrail_wire_messages_received",
        "Messages of processes of the cluster, each with the frames of a turn, by sockets.",
        "sockets",
        lambda counts: counts.by_kind("received"),
    ),
    counters(
        "lightrail_wire_refused",
        "Connections that showed no key, or another one, came from a process of another user, or did not "
        "speak the protocol, by sockets.",
        "sockets",
        lambda counts: counts.by_kind("refused"),
    ),
)
