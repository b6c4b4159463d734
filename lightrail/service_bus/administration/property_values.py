"""Values of properties: durations of ISO 8601, sizes, counts, names and statuses, as clients write them.

The functions that read a text raise ValueError with the expected form.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from lightrail.model.names import InvalidNameError, queue_name
from lightrail.model.policy_fields import BYTES_MAX


class Server(NamedTuple):
    """Values of the server, beside the policy, that properties are computed from."""

    host: str
    """Host of URLs in the answer, with its port."""
    max_delivery_count: int
    """Value for queues whose policy has none."""
    max_message_bytes: int


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


KIB: Final = 1024
MIB: Final = 1 << 20
UNLIMITED_MB: Final = BYTES_MAX // MIB
"""MaxSizeInMegabytes of a queue without max_bytes."""
UNLIMITED_COUNT: Final = (1 << 31) - 1
"""MaxDeliveryCount of a queue that makes no dead letters after failed deliveries."""
STATUSES: Final[Mapping[str, str]] = {
    "active": "Active",
    "disabled": "Disabled",
    "send_disabled": "SendDisabled",
    "receive_disabled": "ReceiveDisabled",
}
"""By the status of a policy."""


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError("true or false")
    return text.lower() in ("true", "1")


def whole(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= 10
    if not is_number or not 0 < int(text) <= UNLIMITED_COUNT:
        raise ValueError(f"a whole number from 1 to {UNLIMITED_COUNT}")
    return int(text)


def size_of(text: str) -> int | None:
    number = whole(text)
    return None if number == UNLIMITED_MB else number * MIB


def count_of(text: str) -> int:
    number = whole(text)
    return 0 if number == UNLIMITED_COUNT else number


def name_of(text: str) -> str | None:
    """The name in a URL such as sb://HOST/NAME, or the name itself."""
    if not text:
        return None
    path = urlsplit(text).path if "://" in text else text
    try:
        return queue_name(f"/{path.strip('/')}")
    except InvalidNameError as error:
        raise ValueError(f"the name of a queue or topic, or its URL: {error}") from None


def status_of(text: str) -> str:
    found = next((status for status, shown in STATUSES.items() if shown == text), None)
    if found is None:
        raise ValueError(f"one of {', '.join(STATUSES.values())}")
    return found
