"""Writes the dashboards of deploy/grafana/dashboards; a test checks that they are current.

python scripts/dashboards.py
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards"
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
HERE: Final = 'namespace=~"$namespace", job=~"$job"'
"""Selects the processes of what is chosen above a dashboard."""
SHARD: Final = f'{HERE}, role="shard", id=~"$shard"'
COLUMNS: Final = 24
TIMESERIES_HEIGHT: Final = 8
STAT_HEIGHT: Final = 4
ROW_HEIGHT: Final = 1
Panel = dict[str, Any]
Query = tuple[str, str]
"""(expression, legend)"""


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """A choice among the values of a label, of which all are chosen at first."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 3,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _targets(queries: tuple[Query, ...], *, instant: bool = False) -> list[dict[str, Any]]:
    return [
        {
            "datasource": SOURCE,
            "expr": expression,
            "legendFormat": legend,
            "refId": chr(ord("A") + place),
            "instant": instant,
            "range": not instant,
        }
        for place, (expression, legend) in enumerate(queries)
    ]


def chart(
    title: str, unit: str, *queries: Query, help: str = "", width: int = 8, stack: bool = False
) -> Panel:
    """Lines over time."""
    return {
        "type": "timeseries",
        "title": title,
        "description": help,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": TIMESERIES_HEIGHT},
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "min": 0,
                "custom": {
                    "drawStyle": "line",
                    "lineWidth": 1,
                    "fillOpacity": 10,
                    "showPoints": "never",
                    "stacking": {"mode": "normal" if stack else "none", "group": "A"},
                },
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": _targets(queries),
    }


def stat(
    title: str, unit: str, query: str, *, help: str = "", bad: float | None = None, low: bool = False
) -> Panel:
    """One number; it is red from `bad` on, or below it where `low` numbers are bad."""
    steps: list[dict[str, Any]] = [{"color": "red" if low else "green", "value": None}]
    if bad is not None:
        steps.append({"color": "green" if low else "red", "value": bad})
    return {
        "type": "stat",
        "title": title,
        "description": help,
        "datasource": SOURCE,
        "gridPos": {"w": 4, "h": STAT_HEIGHT},
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "thresholds": {"mode": "absolute", "steps": steps if bad is not None else steps[:1]},
                **({} if bad is not None else {"color": {"mode": "fixed", "fixedColor": "blue"}}),
            },
            "overrides": [],
        },
        "options": {
            "colorMode": "value",
            "graphMode": "area",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        },
        "targets": _targets(((query, ""),)),
    }


def table(title: str, query: str, *, help: str = "", width: int = 12) -> Panel:
    """The labels and values of now."""
    return {
        "type": "table",
        "title": title,
        "description": help,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": TIMESERIES_HEIGHT},
        "fieldConfig": {"defaults": {}, "overrides": []},
        "options": {"showHeader": True},
        "transformations": [{"id": "organize", "options": {"excludeByName": {"Time": True}}}],
        "targets": [each | {"format": "table"} for each in _targets(((query, ""),), instant=True)],
    }


def row(title: str) -> Panel:
    return {
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": {"w": COLUMNS, "h": ROW_HEIGHT},
        "panels": [],
    }


def dashboard(
    uid: str, title: str, about: str, panels: list[Panel], *variables: dict[str, Any]
) -> dict[str, Any]:
    """A dashboard whose panels flow from left to right."""
    x = y = height = 0
    placed = []
    for number, panel in enumerate(panels, 1):
        size = panel["gridPos"]
        if x + size["w"] > COLUMNS or panel["type"] == "row":
            x, y, height = 0, y + height, 0
        placed.append(panel | {"id": number, "gridPos": {"x": x, "y": y, **size}})
        x, height = x + size["w"], max(height, size["h"])
    return {
        "uid": uid,
        "title": title,
        "description": about,
        "tags": ["lightrail"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "graphTooltip": 1,
        "annotations": {"list": []},
        "links": [
            {
                "type": "dashboards",
                "title": "LightRail",
                "tags": ["lightrail"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Source",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                },
                variable("namespace", "Namespace", "label_values(lightrail_build_info, namespace)"),
                variable("job", "Job", 'label_values(lightrail_build_info{namespace=~"$namespace"}, job)'),
                *variables,
            ]
        },
        "panels": placed,
    }


def rate(metric: str, by: str = "", where: str = HERE) -> str:
    """Per second, summed."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{where}}}[$__rate_interval]))"


def total(metric: str, by: str = "", where: str = HERE) -> str:
    return f"sum{f' by ({by})' if by else ''} ({metric}{{{where}}})"


def quantile(part: float, metric: str, by: str, where: str = HERE) -> str:
    """Of a histogram."""
    return (
        f"histogram_quantile({part}, sum by ({by}, le) (rate({metric}_bucket{{{where}}}[$__rate_interval])))"
    )


def quantiles(metric: str, by: str, legend: str, where: str = HERE) -> tuple[Query, Query]:
    return (
        (quantile(0.5, metric, by, where), f"{legend} median"),
        (quantile(0.99, metric, by, where), f"{legend} p99"),
    )


def ready(role: str) -> str:
    return f'sum(lightrail_ready{{{HERE}, role="{role}"}})'


PROCESSES: Final = f'{HERE}, role=~"shard|frontend|gateway"'
PROCESS: Final = "{{role}}-{{id}}"


def overview() -> dict[str, Any]:
    return dashboard(
        "lightrail-overview",
        "LightRail: overview",
        "The broker as its clients see it, and its processes.",
        [
            stat("Shards ready", "none", ready("shard"), bad=1, low=True),
            stat("Frontends ready", "none", ready("frontend"), bad=1, low=True),
            stat("Gateways ready", "none", ready("gateway"), bad=1, low=True),
            stat("Connections", "none", total("lightrail_connections")),
            stat(
                "Messages waiting", "short", total("lightrail_queue_messages", where=f'{HERE}, state="ready"')
            ),
            stat(
                "Without a consumer",
                "short",
                total("lightrail_queue_messages_unattended"),
                help="Messages that are ready in queues without a consumer; dead letters are not counted.",
                bad=1000,
            ),
            row("Messages"),
            chart(
                "Messages of AMQP clients",
                "cps",
                (rate("lightrail_messages_received_total"), "received"),
                (rate("lightrail_messages_delivered_total"), "delivered"),
                (rate("lightrail_messages_routed_total"), "made by routers"),
            ),
            chart(
                "Messages of HTTP clients",
                "cps",
                (rate("lightrail_http_messages_sent_total"), "sent"),
                (rate("lightrail_http_messages_handed_out_total", "how"), "{{how}}"),
            ),
            chart(
                "Bytes of AMQP frames",
                "Bps",
                (rate("lightrail_frame_bytes_total", "direction"), "{{direction}}"),
            ),
            chart(
                "What senders get back",
                "cps",
                (rate("lightrail_messages_not_accepted_total", "outcome"), "{{outcome}}"),
                (rate("lightrail_messages_unroutable_total"), "unroutable"),
                help="Messages that were not accepted, by outcome, and those to routers that nobody gets.",
            ),
            chart(
                "What receivers answer",
                "cps",
                (rate("lightrail_messages_settled_total", "outcome"), "{{outcome}}"),
            ),
            chart(
                "Messages in queues",
                "short",
                (total("lightrail_queue_messages", "state"), "{{state}}"),
                stack=True,
            ),
            row("Clients"),
            chart(
                "Connections by frontend",
                "short",
                (total("lightrail_connections", "id"), "frontend-{{id}}"),
                stack=True,
            ),
            chart(
                "Sessions and links",
                "short",
                (total("lightrail_sessions"), "sessions"),
                (total("lightrail_links"), "links"),
            ),
            chart(
                "Connections that come and fail",
                "cps",
                (rate("lightrail_connections_opened_total"), "opened"),
                (rate("lightrail_connections_failed_total"), "failed"),
                (rate("lightrail_connections_refused_total"), "turned away"),
                (rate("lightrail_authentications_failed_total"), "log-in failed"),
            ),
            chart("HTTP answers", "reqps", (rate("lightrail_http_requests_total", "status"), "{{status}}")),
            chart(
                "Waiting",
                "short",
                (total("lightrail_http_receivers_waiting"), "HTTP requests that wait for a message"),
                (rate("lightrail_write_stalls_total"), "stalls of readers per second"),
            ),
            chart(
                "Bytes under way",
                "bytes",
                (total("lightrail_unanswered_bytes"), "AMQP, not answered by a shard"),
                (total("lightrail_http_body_bytes"), "HTTP, without an answer"),
            ),
            row("Processes"),
            chart(
                "CPU",
                "percentunit",
                (rate("process_cpu_seconds_total", "role, id", PROCESSES), PROCESS),
                help="Of one core.",
            ),
            chart(
                "Memory", "bytes", (total("process_resident_memory_bytes", "role, id", PROCESSES), PROCESS)
            ),
            chart(
                "How late event loops are, p99",
                "s",
                (quantile(0.99, "lightrail_event_loop_lag_seconds", "role, id"), PROCESS),
            ),
            chart("Open files", "short", (total("process_open_fds", "role, id", PROCESSES), PROCESS)),
            chart(
                "Starts in 15 minutes",
                "short",
                (f"changes(process_start_time_seconds{{{PROCESSES}}}[15m])", PROCESS),
            ),
            chart(
                "Contact with the coordinator",
                "short",
                (f"min by (role, id) (lightrail_coordinator_up{{{HERE}}})", PROCESS),
                help="1 where the last one worked.",
            ),
            table("Versions", f"count by (version, python, role) (lightrail_build_info{{{HERE}}})"),
            table(
                "Certificates: days left",
                f"(lightrail_tls_certificate_expiry_seconds{{{HERE}}} - time()) / 86400",
                help="Only where TLS is served.",
            ),
        ],
    )


SHARDS: Final = variable(
    "shard", "Shard", 'label_values(lightrail_queues{namespace=~"$namespace", job=~"$job"}, id)'
)
OF: Final = "shard-{{id}}"


def per_shard(metric: str) -> Query:
    return rate(metric, "id", SHARD), OF


def shard() -> dict[str, Any]:
    return dashboard(
        "lightrail-shard",
        "LightRail: shard and journal",
        "What shards store, how fast their disks are, and what they hold in memory.",
        [
            stat("Ready", "none", f"sum(lightrail_ready{{{SHARD}}})", bad=1, low=True),
            stat("Queues", "short", total("lightrail_queues", where=SHARD)),
            stat("Bytes of messages", "bytes", total("lightrail_queue_bytes", where=SHARD)),
            stat(
                "Least room on a disk",
                "percentunit",
                f"min(lightrail_disk_free_bytes{{{SHARD}}} / lightrail_disk_size_bytes{{{SHARD}}})",
                bad=0.1,
                low=True,
            ),
            stat(
                "Fullest memory",
                "percentunit",
                f"max(lightrail_memory_bytes{{{SHARD}}} / lightrail_memory_mark_bytes{{{SHARD}}})",
                help="Of the mark past which messages flow to disk.",
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
            chart("Messages handed out", "cps", per_shard("lightrail_queue_messages_delivered_total")),
            chart(
                "Wait in queues until the first delivery",
                "s",
                *quantiles("lightrail_queue_wait_seconds", "id", OF, SHARD),
                help="A sample: one slice of eight is looked at.",
            ),
            chart(
                "CPU",
                "percentunit",
                (rate("process_cpu_seconds_total", "id", SHARD), OF),
                help="Of one core.",
            ),
            chart("How late loops are", "s", *quantiles("lightrail_event_loop_lag_seconds", "id", OF, SHARD)),
            chart(
                "Frontends and gateways that are heard",
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
                help="total: on the disk; live: of messages that are still in a queue.",
            ),
            chart(
                "Room on the disk",
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
                help="Also of segments that the journal still has.",
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
                "Flow to disk and back",
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
                "Batches that came twice",
                "cps",
                per_shard("lightrail_batches_duplicate_total"),
                help="Sent again by a frontend because it had got no answer; they are stored once.",
            ),
        ],
        SHARDS,
    )


def queues() -> dict[str, Any]:
    chosen = f'{HERE}, queue=~"$queue"'
    return dashboard(
        "lightrail-queues",
        "LightRail: queues",
        "All queues together; single ones where /metrics/detailed is scraped (docs/operate/metrics.md).",
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
                "Without a consumer",
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
                "Messages that went otherwise",
                "cps",
                (rate("lightrail_queue_messages_expired_total", where=SHARD), "expired"),
                (rate("lightrail_queue_messages_purged_total", where=SHARD), "purged"),
                (rate("lightrail_queue_messages_duplicates_total", where=SHARD), "duplicates"),
                (rate("lightrail_queue_messages_discarded_total", where=SHARD), "discarded by a full queue"),
                (rate("lightrail_queue_messages_refused_total", where=SHARD), "refused by a full queue"),
            ),
            chart(
                "Couriers",
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
                "Consumers, the most",
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


def placement() -> dict[str, Any]:
    shown = f"max by (shard) (lightrail_placement_queues{{{HERE}}})"
    return dashboard(
        "lightrail-placement",
        "LightRail: placement and moves",
        "Where queues are, how evenly, which of them move, and the coordinator that knows all this.",
        [
            stat(
                "Shards registered",
                "none",
                f'max(lightrail_placement_members{{{HERE}, of="shard"}})',
            ),
            stat("Shards draining", "none", f'max(lightrail_placement_shards{{{HERE}, state="draining"}})'),
            stat("Moves asked for", "none", f"sum(max by (phase) (lightrail_placement_moves{{{HERE}}}))"),
            stat("Sealed queues", "none", total("lightrail_shard_queues_sealed"), bad=1),
            stat(
                "Moves failed in an hour",
                "none",
                f"sum(increase(lightrail_shard_moves_failed_total{{{HERE}}}[1h]))",
                bad=1,
            ),
            stat(
                "Largest load by the mean",
                "percentunit",
                f"max({rate('lightrail_queue_messages_enqueued_total', 'id', f'{HERE}')})"
                f" / avg({rate('lightrail_queue_messages_enqueued_total', 'id', f'{HERE}')})",
                help="100 % is even.",
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
                "Moves asked for",
                "short",
                (f"max by (phase) (lightrail_placement_moves{{{HERE}}})", "{{phase}}"),
                stack=True,
            ),
            chart(
                "Moves that ended",
                "cps",
                (rate("lightrail_shard_moves_completed_total", "id, direction"), OF + " {{direction}}"),
                (rate("lightrail_shard_moves_failed_total", "id"), OF + " failed"),
            ),
            chart("Bytes copied", "Bps", (rate("lightrail_shard_move_bytes_total", "id"), OF)),
            chart(
                "Pause of a queue",
                "s",
                *quantiles("lightrail_shard_move_pause_seconds", "id", OF),
                help="From the seal at the source to the first service at the destination.",
            ),
            chart(
                "Queues under way",
                "short",
                (total("lightrail_shard_queues_copying", "id"), OF + " copying"),
                (total("lightrail_shard_queues_sealed", "id"), OF + " sealed"),
            ),
            chart(
                "Batches said again",
                "cps",
                (rate("lightrail_batches_repeated_total", "id"), "frontend-{{id}}"),
                help="To a shard that came back, or that a queue moved to.",
            ),
            row("Coordinator"),
            chart(
                "Contact",
                "short",
                (f"min by (role, id) (lightrail_coordinator_up{{{HERE}}})", PROCESS),
                help="1 where the last one worked.",
            ),
            chart(
                "Since it was last heard",
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
                "Failures and watches begun anew",
                "cps",
                (rate("lightrail_coordinator_failures_total", "role, id"), PROCESS + " failures"),
                (rate("lightrail_coordinator_watch_restarts_total", "role, id"), PROCESS + " watch"),
            ),
        ],
    )


DASHBOARDS: Final = {"overview": overview, "shard": shard, "queues": queues, "placement": placement}


def texts() -> dict[Path, str]:
    """What each file should hold."""
    return {
        DIRECTORY / f"{name}.json": json.dumps(make(), indent=2) + "\n" for name, make in DASHBOARDS.items()
    }


if __name__ == "__main__":
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for path, text in texts().items():
        path.write_text(text)
    sys.exit(0)
