"""The dashboard of queues."""

from typing import Any

from scripts.grafana.panels import chart, dashboard, row, stat, variable
from scripts.grafana.queries import HERE, OF, SHARD, SHARDS, rate, total


def queues() -> dict[str, Any]:
    chosen = f'{HERE}, queue=~"$queue"'
    return dashboard(
        "lightrail-queues",
        "LightRail: queues",
        "All queues together, and single ones if /metrics/detailed is scraped (docs/operate/metrics.md).",
        [
            stat("Queues", "short", total("lightrail_queues", where=SHARD)),
            stat("Consumers", "short", total("lightrail_queue_consumers", where=SHARD)),
            stat("Ready", "short", total("lightrail_queue_messages", where=f'{SHARD}, state="ready"')),
            stat(
                "In flight", "short", total("lightrail_queue_messages", where=f'{SHARD}, state="in_flight"')
            ),
            stat("Queues without a consumer", "short", total("lightrail_queues_unattended", where=SHARD)),
            stat(
                "Dead letters in an hour",
                "short",
                f"sum(increase(lightrail_queue_messages_dead_lettered_total{{{SHARD}}}[1h]))",
                bad=1,
            ),
            row("All queues"),
            chart(
                "In and out",
                "cps",
                (rate("lightrail_queue_messages_enqueued_total", where=SHARD), "stored"),
                (rate("lightrail_queue_messages_delivered_total", where=SHARD), "handed out"),
                (rate("lightrail_queue_messages_accepted_total", where=SHARD), "accepted"),
            ),
            chart(
                "Messages by state",
                "short",
                (total("lightrail_queue_messages", "state", SHARD), "{{state}}"),
                (total("lightrail_queue_messages_locked", where=SHARD), "of these under a timed lock"),
            ),
            chart(
                "Messages without a consumer",
                "short",
                (total("lightrail_queue_messages_unattended", where=SHARD), "messages"),
                (total("lightrail_queues_unattended", where=SHARD), "queues"),
            ),
            chart(
                "Deliveries that did not end in accepted",
                "cps",
                (rate("lightrail_queue_messages_rejected_total", where=SHARD), "rejected"),
                (rate("lightrail_queue_messages_released_total", where=SHARD), "released"),
                (rate("lightrail_queue_messages_modified_total", where=SHARD), "modified"),
                (rate("lightrail_queue_messages_redelivered_total", where=SHARD), "handed out again"),
                (rate("lightrail_queue_messages_locks_expired_total", where=SHARD), "lock ran out"),
            ),
            chart(
                "Dead letters",
                "cps",
                (rate("lightrail_queue_messages_dead_lettered_total", "reason", SHARD), "{{reason}}"),
            ),
            chart(
                "Messages expired, purged, dropped or refused",
                "cps",
                (rate("lightrail_queue_messages_expired_total", where=SHARD), "expired"),
                (rate("lightrail_queue_messages_purged_total", where=SHARD), "purged"),
                (rate("lightrail_queue_messages_duplicates_total", where=SHARD), "duplicates"),
                (rate("lightrail_queue_messages_discarded_total", where=SHARD), "discarded by a full queue"),
                (rate("lightrail_queue_messages_refused_total", where=SHARD), "refused by a full queue"),
            ),
            chart(
                "Forwarding",
                "cps",
                (rate("lightrail_transfer_messages_total", "mode"), "transfers: {{mode}}"),
                (rate("lightrail_dead_letters_forwarded_total"), "dead letters forwarded"),
                (rate("lightrail_pushes_accepted_total"), "pushes accepted"),
                (rate("lightrail_pushes_failed_total"), "pushes failed"),
            ),
            chart(
                "Bytes of messages", "bytes", (total("lightrail_queue_bytes", "id", SHARD), OF), stack=True
            ),
            chart("Queues by shard", "short", (total("lightrail_queues", "id", SHARD), OF), stack=True),
            row("Single queues"),
            chart(
                "Ready, the largest ten",
                "short",
                (
                    f'topk(10, sum by (queue) (lightrail_detailed_messages{{{chosen}, state="ready"}}))',
                    "{{queue}}",
                ),
                width=12,
            ),
            chart(
                "Stored, the busiest ten",
                "cps",
                (
                    f"topk(10, {rate('lightrail_detailed_messages_enqueued_total', 'queue', chosen)})",
                    "{{queue}}",
                ),
                width=12,
            ),
            chart(
                "Accepted, the busiest ten",
                "cps",
                (
                    f"topk(10, {rate('lightrail_detailed_messages_accepted_total', 'queue', chosen)})",
                    "{{queue}}",
                ),
            ),
            chart(
                "Consumers, the ten with the most",
                "short",
                (f"topk(10, {total('lightrail_detailed_consumers', 'queue', chosen)})", "{{queue}}"),
            ),
            chart(
                "Bytes, the largest ten",
                "bytes",
                (f"topk(10, {total('lightrail_detailed_bytes', 'queue', chosen)})", "{{queue}}"),
            ),
        ],
        SHARDS,
        variable(
            "queue",
            "Queue",
            'label_values(lightrail_detailed_messages{namespace=~"$namespace", job=~"$job"}, queue)',
        ),
    )
