"""The dashboard of shards and their journals."""

from typing import Any

from scripts.grafana.panels import chart, dashboard, row, stat
from scripts.grafana.queries import OF, SHARD, SHARDS, per_shard, quantiles, rate, total


def shard() -> dict[str, Any]:
    return dashboard(
        "lightrail-shard",
        "LightRail: shard and journal",
        "Messages that shards store, the speed of their disks, and their memory.",
        [
            stat("Ready", "none", f"sum(lightrail_ready{{{SHARD}}})", bad=1, low=True),
            stat("Queues", "short", total("lightrail_queues", where=SHARD)),
            stat("Bytes of messages", "bytes", total("lightrail_queue_bytes", where=SHARD)),
            stat(
                "Least free space on a disk",
                "percentunit",
                f"min(lightrail_disk_free_bytes{{{SHARD}}} / lightrail_disk_size_bytes{{{SHARD}}})",
                bad=0.1,
                low=True,
            ),
            stat(
                "Highest memory use",
                "percentunit",
                f"max(lightrail_memory_bytes{{{SHARD}}} / lightrail_memory_mark_bytes{{{SHARD}}})",
                help="Share of the mark beyond which messages are spilled to disk.",
                bad=1,
            ),
            stat(
                "Store failures in an hour",
                "none",
                f"sum(increase(lightrail_store_failures_total{{{SHARD}}}[1h]))",
                bad=1,
            ),
            row("Work"),
            chart("Messages stored", "cps", per_shard("lightrail_queue_messages_enqueued_total")),
            chart("Messages delivered", "cps", per_shard("lightrail_queue_messages_delivered_total")),
            chart(
                "Wait in queues until the first delivery",
                "s",
                *quantiles("lightrail_queue_wait_seconds", "id", OF, SHARD),
                help="A sample: one slice in eight is measured.",
            ),
            chart(
                "CPU",
                "percentunit",
                (rate("process_cpu_seconds_total", "id", SHARD), OF),
                help="Share of one core.",
            ),
            chart(
                "Delay of event loops", "s", *quantiles("lightrail_event_loop_lag_seconds", "id", OF, SHARD)
            ),
            chart(
                "Connected frontends and gateways",
                "short",
                (total("lightrail_frontends_connected", "id", SHARD), OF),
            ),
            row("Journal"),
            chart("Commits", "cps", per_shard("lightrail_journal_syncs_total")),
            chart("Time of a commit", "s", *quantiles("lightrail_journal_sync_seconds", "id", OF, SHARD)),
            chart(
                "Messages per commit",
                "short",
                (
                    rate("lightrail_journal_messages_per_sync_sum", "id", SHARD)
                    + " / "
                    + rate("lightrail_journal_messages_per_sync_count", "id", SHARD),
                    OF,
                ),
            ),
            chart(
                "Bytes of the store",
                "bytes",
                (total("lightrail_store_bytes", "id, kind", SHARD), OF + " {{kind}}"),
                help="total: on disk; live: of messages that are in a queue.",
            ),
            chart(
                "Free space on the disk",
                "bytes",
                (total("lightrail_disk_free_bytes", "id", SHARD), OF + " free"),
                (total("lightrail_disk_size_bytes", "id", SHARD), OF + " size"),
            ),
            chart("Store failures", "cps", per_shard("lightrail_store_failures_total")),
            row("Archive"),
            chart(
                "Bytes of the archive",
                "bytes",
                (total("lightrail_archive_bytes", "id", SHARD), OF),
                help="Including segments that the journal still has.",
            ),
            chart(
                "Segments that wait for the archive",
                "short",
                (total("lightrail_archive_waiting", "id", SHARD), OF),
            ),
            chart(
                "Readers behind the archive",
                "s",
                (total("lightrail_reader_behind_seconds", "id, reader", SHARD), OF + " {{reader}}"),
                help="Age of the oldest segment that a reader has not read.",
            ),
            row("Memory"),
            chart(
                "Messages in memory",
                "bytes",
                (total("lightrail_memory_bytes", "id", SHARD), OF),
                (total("lightrail_memory_mark_bytes", "id", SHARD), OF + " mark"),
            ),
            chart(
                "Spilled to disk and read back",
                "Bps",
                (rate("lightrail_evicted_bytes_total", "id", SHARD), OF + " dropped from memory"),
                (rate("lightrail_fetched_bytes_total", "id", SHARD), OF + " read back"),
            ),
            chart(
                "Memory of the process", "bytes", (total("process_resident_memory_bytes", "id", SHARD), OF)
            ),
            chart(
                "Garbage collections",
                "cps",
                (
                    rate("python_gc_collections_total", "id, generation", SHARD),
                    OF + " generation {{generation}}",
                ),
            ),
            chart("Evictions", "cps", per_shard("lightrail_evictions_total")),
            chart(
                "Batches received twice",
                "cps",
                per_shard("lightrail_batches_duplicate_total"),
                help="A frontend sent them again because it had no answer; they are stored once.",
            ),
        ],
        SHARDS,
    )
