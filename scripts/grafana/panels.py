"""Panels of a dashboard, and how they are laid out."""

from typing import Any, Final

SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
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
            "refId": chr(ord("A") + index),
            "instant": instant,
            "range": not instant,
        }
        for index, (expression, legend) in enumerate(queries)
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
