"""The dashboard of placement and moves."""

from typing import Any

from scripts.grafana.panels import chart, dashboard, row, stat
from scripts.grafana.queries import HERE, OF, PROCESS, quantile, quantiles, rate, total


def placement() -> dict[str, Any]:
    shown = f"max by (shard) (lightrail_placement_queues{{{HERE}}})"
    return dashboard(
        "lightrail-placement",
        "LightRail: placement and moves",
        "Placement of queues and its balance, moves of queues, and the coordinator.",
        [
            stat(
                "Shards registered",
                "none",
                f'max(lightrail_placement_members{{{HERE}, of="shard"}})',
            ),
            stat("Shards draining", "none", f'max(lightrail_placement_shards{{{HERE}, state="draining"}})'),
            stat("Moves requested", "none", f"sum(max by (phase) (lightrail_placement_moves{{{HERE}}}))"),
            stat("Frozen queues", "none", total("lightrail_shard_queues_frozen"), bad=1),
            stat(
                "Moves failed in an hour",
                "none",
                f"sum(increase(lightrail_shard_moves_failed_total{{{HERE}}}[1h]))",
                bad=1,
            ),
            stat(
                "Largest load relative to the mean",
                "percentunit",
                f"max({rate('lightrail_queue_messages_enqueued_total', 'id', f'{HERE}')})"
                f" / avg({rate('lightrail_queue_messages_enqueued_total', 'id', f'{HERE}')})",
                help="100 % is an even load.",
                bad=1.5,
            ),
            row("Placement"),
            chart("Queues placed", "short", (shown, "shard-{{shard}}"), stack=True),
            chart(
                "Messages stored",
                "cps",
                (rate("lightrail_queue_messages_enqueued_total", "id", HERE), OF),
                stack=True,
            ),
            chart("Bytes of messages", "bytes", (total("lightrail_queue_bytes", "id", HERE), OF), stack=True),
            chart(
                "Registered",
                "short",
                (f"max by (of) (lightrail_placement_members{{{HERE}}})", "{{of}}s"),
                (f"max by (state) (lightrail_placement_shards{{{HERE}}})", "shards known, {{state}}"),
            ),
            chart(
                "CPU of shards",
                "percentunit",
                (rate("process_cpu_seconds_total", "id", f'{HERE}, role="shard"'), OF),
            ),
            row("Moves"),
            chart(
                "Moves requested",
                "short",
                (f"max by (phase) (lightrail_placement_moves{{{HERE}}})", "{{phase}}"),
                stack=True,
            ),
            chart(
                "Moves ended",
                "cps",
                (rate("lightrail_shard_moves_completed_total", "id, direction"), OF + " {{direction}}"),
                (rate("lightrail_shard_moves_failed_total", "id"), OF + " failed"),
            ),
            chart("Bytes copied", "Bps", (rate("lightrail_shard_move_bytes_total", "id"), OF)),
            chart(
                "Pause of a queue",
                "s",
                *quantiles("lightrail_shard_move_pause_seconds", "id", OF),
                help="From the freeze at the source to the first service at the destination.",
            ),
            chart(
                "Queues that move",
                "short",
                (total("lightrail_shard_queues_copying", "id"), OF + " copying"),
                (total("lightrail_shard_queues_frozen", "id"), OF + " frozen"),
            ),
            chart(
                "Batches sent again",
                "cps",
                (rate("lightrail_batches_repeated_total", "id"), "frontend-{{id}}"),
                help="To a shard that was restarted, or that a queue has moved to.",
            ),
            row("Coordinator"),
            chart(
                "Contact",
                "short",
                (f"min by (role, id) (lightrail_coordinator_up{{{HERE}}})", PROCESS),
                help="1 if the last request to the coordinator succeeded.",
            ),
            chart(
                "Time since the last contact",
                "s",
                (f"max by (role, id) (lightrail_coordinator_contact_age_seconds{{{HERE}}})", PROCESS),
            ),
            chart(
                "Time of a write, p99",
                "s",
                (quantile(0.99, "lightrail_coordinator_write_seconds", "role"), "{{role}}s"),
            ),
            chart("Writes", "cps", (rate("lightrail_coordinator_write_seconds_count", "role"), "{{role}}s")),
            chart(
                "Failures and restarted watches",
                "cps",
                (rate("lightrail_coordinator_failures_total", "role, id"), PROCESS + " failures"),
                (rate("lightrail_coordinator_watch_restarts_total", "role, id"), PROCESS + " watch"),
            ),
        ],
    )
