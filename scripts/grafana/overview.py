"""The overview dashboard, to look at first."""

from typing import Any

from scripts.grafana.panels import chart, dashboard, row, stat, table
from scripts.grafana.queries import HERE, PROCESS, PROCESSES, quantile, rate, ready, total


def overview() -> dict[str, Any]:
    return dashboard(
        "lightrail-overview",
        "LightRail: overview",
        "Traffic of clients, and the processes of the broker.",
        [
            stat("Shards ready", "none", ready("shard"), bad=1, low=True),
            stat("Frontends ready", "none", ready("frontend"), bad=1, low=True),
            stat("Gateways ready", "none", ready("gateway"), bad=1, low=True),
            stat("Connections", "none", total("lightrail_connections")),
            stat(
                "Messages waiting", "short", total("lightrail_queue_messages", where=f'{HERE}, state="ready"')
            ),
            stat(
                "Messages without a consumer",
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
                "Messages not accepted",
                "cps",
                (rate("lightrail_messages_not_accepted_total", "outcome"), "{{outcome}}"),
                (rate("lightrail_messages_unroutable_total"), "unroutable"),
                help="By outcome; and messages to routers without a matching subscription.",
            ),
            chart(
                "Outcomes of deliveries",
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
                "Connections opened and failed",
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
                "Bytes without an answer",
                "bytes",
                (total("lightrail_unanswered_bytes"), "AMQP, not answered by a shard"),
                (total("lightrail_http_body_bytes"), "HTTP, without an answer"),
            ),
            row("Processes"),
            chart(
                "CPU",
                "percentunit",
                (rate("process_cpu_seconds_total", "role, id", PROCESSES), PROCESS),
                help="Share of one core.",
            ),
            chart(
                "Memory", "bytes", (total("process_resident_memory_bytes", "role, id", PROCESSES), PROCESS)
            ),
            chart(
                "Delay of event loops, p99",
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
                "Coordinator reachable",
                "short",
                (f"min by (role, id) (lightrail_coordinator_up{{{HERE}}})", PROCESS),
                help="1 if the last request to the coordinator succeeded.",
            ),
            table("Versions", f"count by (version, python, role) (lightrail_build_info{{{HERE}}})"),
            table(
                "Certificates: days left",
                f"(lightrail_tls_certificate_expiry_seconds{{{HERE}}} - time()) / 86400",
                help="Only of processes that serve TLS.",
            ),
        ],
    )
