"""Writes docs/operate/metrics.md from the families themselves; a test checks that the page is current."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from lightrail.cluster.counts import COORDINATOR_FAMILIES
from lightrail.cluster.placement_metrics import PLACEMENT_FAMILIES
from lightrail.gateway.forwarding.counts import FAMILIES as FORWARDING_FAMILIES
from lightrail.gateway.metrics import CONNECTION_FAMILIES
from lightrail.gateway.metrics import FAMILIES as HTTP_FAMILIES
from lightrail.gateway.processes.members import FAMILIES as MEMBER_FAMILIES
from lightrail.gateway.processes.members import PRESENCE_FAMILIES
from lightrail.telemetry.archive import ARCHIVE_FAMILIES
from lightrail.telemetry.frontend import FRONTEND_FAMILIES
from lightrail.telemetry.metrics import AnyFamily, HistogramFamily
from lightrail.telemetry.queues import DETAILED_FAMILIES
from lightrail.telemetry.replicas import REPLICA_FAMILIES
from lightrail.telemetry.running import RUNNING_FAMILIES
from lightrail.telemetry.shard import SHARD_FAMILIES
from lightrail.telemetry.wire import WIRE_FAMILIES

PAGE: Final = Path(__file__).parents[1] / "docs" / "operate" / "metrics.md"
HEAD: Final = """# Metrics

Every process has `/metrics` in the text format of Prometheus, beside `/healthz` and `/readyz`. All series
carry `role` (`shard`, `follower`, `frontend`, `gateway`) and `id`, so `{role="shard",id="0"}` is one process
wherever it was scraped.

- **One machine** (`lightrail serve`): scrape the gateway, `http://HOST:8080/metrics`; it asks the other
  processes and answers for all. Don't scrape these as well, or sums count twice.
- **A cluster**: scrape every process at its own `--metrics` address. A gateway then answers for itself.

```yaml
scrape_configs:
  - job_name: lightrail            # alerts look for "lightrail" in the name of the job
    static_configs:
      - targets: ["127.0.0.1:8080"]
rule_files: [lightrail.rules.yml]  # of deploy/prometheus; docs/operate/alerts.md explains each alert
```

Series per queue are on `/metrics/detailed` alone, because there may be a hundred thousand of them. Select
queues with `/metrics/detailed?queue=PREFIX`, at a gateway. Once there are users, the page needs the right to
manage everything, because it names queues; a shard's own page then answers 403 to all but gateways.

```yaml
  - job_name: lightrail-detailed
    metrics_path: /metrics/detailed
    params: {queue: ["myapp/orders"]}
    basic_auth: {username: prometheus, password_file: prometheus.password}
    scrape_interval: 30s
    static_configs:
      - targets: ["127.0.0.1:8080"]
```

A scrape costs a shard about 4 us per queue, 500 queues at a time, so that its work continues in between. The
dashboards of `deploy/grafana/dashboards` show these metrics: import the files, or let Grafana read the
directory.
"""
SECTIONS: Final[tuple[tuple[str, str, Iterable[AnyFamily[Any]]], ...]] = (
    ("Every process", "", (*RUNNING_FAMILIES, *COORDINATOR_FAMILIES, *WIRE_FAMILIES)),
    ("Shards", "", (*SHARD_FAMILIES, *ARCHIVE_FAMILIES)),
    (
        "Shards with replicas",
        "Of each member: its series have the role `shard` while it owns the shard, and otherwise the role "
        "`follower` and an id with its host, such as `0/host-b` ([replicas.md](replicas.md)).",
        REPLICA_FAMILIES,
    ),
    ("Frontends", "", FRONTEND_FAMILIES),
    (
        "Gateways",
        "",
        (*HTTP_FAMILIES, *CONNECTION_FAMILIES, *FORWARDING_FAMILIES, *PLACEMENT_FAMILIES, *PRESENCE_FAMILIES),
    ),
    (
        "The gateway of one machine",
        "What the supervisor reports of the processes of `lightrail serve`.",
        MEMBER_FAMILIES,
    ),
    ("Single queues", "On `/metrics/detailed` alone.", DETAILED_FAMILIES),
)
TAIL: Final = """
## From the client library

`process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_virtual_memory_bytes`,
`process_start_time_seconds`, `process_open_fds`, `process_max_fds` (Linux), and
`python_gc_collections_total`, `python_gc_objects_collected_total`, `python_gc_objects_uncollectable_total` by
`generation`: in every process.
"""


def _name(family: AnyFamily[Any]) -> str:
    return f"{family.name}_total" if getattr(family, "kind", "") == "counter" else family.name


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, about, families in SECTIONS:
        parts.append(f"\n## {title}\n\n" + (f"{about}\n\n" if about else ""))
        parts.append("| metric | type | labels | |\n|---|---|---|---|\n")
        for family in families:
            kind = "histogram" if isinstance(family, HistogramFamily) else family.kind
            labels = () if isinstance(family, HistogramFamily) else family.labels
            shown = ", ".join(f"`{label}`" for label in labels)
            parts.append(f"| `{_name(family)}` | {kind} | {shown} | {family.help} |\n")
    return "".join((*parts, TAIL))


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.exit(0)
