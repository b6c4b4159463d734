"""Sizes and times as people write them: ``64MB``, ``1GiB``, ``60s``, ``500ms``."""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Final

SIZES: Final = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "kib": 2**10,
    "m": 10**6,
    "mb": 10**6,
    "mib": 2**20,
    "g": 10**9,
    "gb": 10**9,
    "gib": 2**30,
    "t": 10**12,
    "tb": 10**12,
    "tib": 2**40,
}
"""Bytes per unit: decimal as in the SI, binary with an i (as in RabbitMQ)."""
DURATIONS_MS: Final = {"ms": 1, "": 1_000, "s": 1_000, "m": 60_000, "h": 3_600_000}
"""Milliseconds per unit; a bare number is seconds."""
_NUMBER: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([a-z]*)", re.ASCII | re.IGNORECASE)


def size(low: int, high: int) -> Callable[[str], int]:
    """A parser of sizes, in bytes, from ``low`` to ``high``; its ValueError says what is allowed."""
    return _parser(SIZES, low, high, "a size from {} to {}, such as 64MB or 1GiB", format_size)


def duration_ms(low: int, high: int) -> Callable[[str], int]:
    """A parser of durations, in milliseconds, from ``low`` to ``high``; it raises ValueError likewise."""
    return _parser(DURATIONS_MS, low, high, "a time from {} to {}, such as 500ms or 60s", format_duration)


def format_size(size_bytes: int) -> str:
    """The shortest exact spelling: 1073741824 is ``1GiB``, 64000000 is ``64MB``."""
    for unit in ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "kB"):
        if size_bytes and size_bytes % SIZES[unit.lower()] == 0:
            return f"{size_bytes // SIZES[unit.lower()]}{unit}"
    return f"{size_bytes}B"


def format_duration(duration: int) -> str:
    """The shortest exact spelling of milliseconds: 60000 is ``1m``."""
    for unit in ("h", "m", "s"):
        if duration and duration % DURATIONS_MS[unit] == 0:
            return f"{duration // DURATIONS_MS[unit]}{unit}"
    return f"{duration}ms"


def _parser(
    table: dict[str, int], low: int, high: int, allowed: str, spell: Callable[[int], str]
) -> Callable[[str], int]:
    message = allowed.format(spell(low), spell(high))

    def parse(text: str) -> int:
        match = _NUMBER.fullmatch(text.strip())
        factor = table.get(match[2].lower()) if match else None
        if match is None or factor is None:
            raise ValueError(message)
        value = int(Decimal(match[1]) * factor)
        if not low <= value <= high:
            raise ValueError(message)
        return value

    return parse
