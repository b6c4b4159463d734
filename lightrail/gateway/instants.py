"""Instants: times of HTTP bodies and headers, RFC 3339 in UTC with milliseconds."""

from datetime import UTC, datetime


def rfc3339(at_ms: int) -> str:
    """Milliseconds since 1970 as `2030-01-31T12:00:00.000Z`."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def milliseconds(text: str) -> int:
    """The reverse; a time without an offset is in UTC. Raises ValueError."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)
