"""Durations of ISO 8601, in the form of the administration clients of Azure Service Bus."""

import re
from collections.abc import Callable
from typing import Final

FOREVER: Final = "P10675199DT2H48M5.4775807S"
"""The longest duration of .NET, which stands for no limit."""
_FOREVER_S: Final = 10_675_199 * 86_400
_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d{1,9})D)?(?:T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?"
    r"(?:(?P<seconds>\d{1,9}(?:\.\d{1,9})?)S)?)?\Z",
    re.ASCII,
)


def seconds_of(text: str) -> float | None:
    """Seconds of a duration such as PT1M30S; None for a duration that stands for no limit.

    Raises ValueError with the expected form: also for years and months, whose length varies.
    """
    found = _DURATION.match(text)
    if found is None or text.endswith(("P", "T")):
        raise ValueError("a duration of days, hours, minutes and seconds such as P1DT12H or PT1M30S")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    total = days * 86_400 + hours * 3_600 + minutes * 60 + seconds
    return None if total >= _FOREVER_S else total


def between(least_s: float, most_s: float) -> Callable[[str], float]:
    """Reads a duration within the bounds of Service Bus."""

    def read(text: str) -> float:
        seconds = seconds_of(text)
        if seconds is None or not least_s <= seconds <= most_s:
            least = f"from {duration_of(least_s)} " if least_s else ""
            raise ValueError(f"a duration {least}up to {duration_of(most_s)}")
        return seconds

    return read


def duration_of(seconds: float | None) -> str:
    """The reverse, to the millisecond; None for no limit."""
    if seconds is None:
        return FOREVER
    whole_ms = round(seconds * 1000)
    days, rest = divmod(whole_ms, 86_400_000)
    hours, rest = divmod(rest, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    clock = "".join(f"{value}{unit}" for value, unit in ((hours, "H"), (minutes, "M")) if value)
    if rest:
        clock += f"{text}S"
    if not days and not clock:
        return "PT0S"
    return "P" + (f"{days}D" if days else "") + (f"T{clock}" if clock else "")
