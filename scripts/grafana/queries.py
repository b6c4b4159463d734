"""Queries of the panels, in the language of Prometheus."""

from typing import Final

from scripts.grafana.panels import Query, variable

HERE: Final = 'namespace=~"$namespace", job=~"$job"'
"""Selects the processes of what is chosen above a dashboard."""
SHARD: Final = f'{HERE}, role="shard", id=~"$shard"'
PROCESSES: Final = f'{HERE}, role=~"shard|frontend|gateway"'
PROCESS: Final = "{{role}}-{{id}}"
OF: Final = "shard-{{id}}"
SHARDS: Final = variable(
    "shard", "Shard", 'label_values(lightrail_queues{namespace=~"$namespace", job=~"$job"}, id)'
)


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


def per_shard(metric: str) -> Query:
    return rate(metric, "id", SHARD), OF
