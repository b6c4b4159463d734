"""Filters of the templates: figures, sizes, times, JSON and links in readable form."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

UNKNOWN: Final = "?"
"""A figure of a shard that does not answer."""


def number(value: float | None) -> str:
    """With separators: 12,345."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def size(value: float | None) -> str:
    """Bytes with a unit: 1.5 MB."""
    if value is None:
        return UNKNOWN
    for unit, step in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= step:
            return f"{value / step:.1f} {unit}"
    return f"{int(value)} B"


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def url(path: str, **query: Any) -> str:
    """A path with its query."""
    return f"{path}?{urlencode({key: value for key, value in query.items() if value != ''})}"


def time_of(value_ms: int | None) -> str:
    """Milliseconds since 1970 as a time in UTC."""
    if not value_ms:
        return "-"
    return datetime.fromtimestamp(value_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def shortened(text: str, length: int) -> str:
    """A long name without its beginning, since its end is more specific."""
    return text if len(text) <= length else "…" + text[-length + 1 :]


FILTERS: Final[Mapping[str, Callable[..., str]]] = {
    "number": number,
    "bytes": size,
    "json": as_json,
    "url": url,
    "time": time_of,
    "shortened": shortened,
}
"""Filters by their names in templates."""
