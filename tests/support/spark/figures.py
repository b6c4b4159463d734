"""Figures of a report as a test makes them up, with names that would be markup if they were not escaped."""

from datetime import UTC, datetime, timedelta
from typing import Any

from lightrail.spark.analysis.figures import Figures
from lightrail.spark.analysis.tables import SUMMED

EVIL = "</title><script>alert(1)</script>\"'&\x1b[31m"
FIRST = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


def shown(queues: int = 4, points: int = 30) -> Figures:
    """Some queues, of which the first has a name that nobody should give, and others that are summed."""
    times = [FIRST + timedelta(minutes=i) for i in range(points)]
    wave = [abs(i % 20 - 10) * 30 for i in range(points)]
    names: list[str | None] = [EVIL, *(f"team/orders-{i}" for i in range(1, min(queues, 5))), None]
    sums: dict[str, Any] = dict.fromkeys(SUMMED, 1000)
    rows = [
        sums
        | {
            "queue": EVIL if i == 0 else f"team/orders-{i}",
            "p50_ms": 12,
            "p99_ms": 4_000,
            "depth_first": 5,
            "depth_max": 900,
            "depth_last": 7,
            "depth_known": i % 2 == 0,
            "producers": 2,
            "consumers": 3,
        }
        for i in range(queues)
    ]
    shard: dict[str, int | None] = {"messages_moved_in": 0, "bytes_moved_in": None}
    shard |= dict.fromkeys(("messages_in", "bytes_in", "messages_out", "bytes_out", "delivered"), 5_000)
    return Figures(
        first=times[0],
        last=times[-1],
        times=times,
        totals=sums
        | {"queues": queues + 90, "p50_ms": 11, "p99_ms": None, "depth_last": 40, "depth_known": False},
        queues=rows,
        other_queues=sums | {"queues": 90, "depth_last": 33},
        shards=[shard | {"shard": 0}, shard | {"shard": 1}],
        other_shards=None,
        reasons=[{"reason": EVIL, "messages": 40}, {"reason": "expired", "messages": 7}],
        other_reasons={"messages": 3},
        enqueued=wave,
        ended=wave[::-1],
        redelivered=[each // 7 for each in wave],
        p50_ms=[None if i % 9 == 0 else each for i, each in enumerate(wave)],
        p99_ms=[each * 3 for each in wave],
        depth=wave,
        enqueued_by_queue=dict.fromkeys(names, wave),
        depth_by_queue=dict.fromkeys(names, wave),
        messages_by_shard={0: wave, 1: wave[::-1]},
    )
