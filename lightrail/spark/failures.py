"""What failed in Spark's workers: Spark tells it as text, and here it is an error of a command again."""

import re
from typing import Final

from lightrail.spark.command import Failed, Unreachable

_KINDS: Final[dict[str, type[Failed] | type[Unreachable]]] = {
    "PlaceError": Unreachable,
    "NoArchive": Unreachable,
    "DataLoss": Failed,
    "Damage": Failed,
    "SinkError": Failed,
}
"""By the names of exceptions that say what was expected, what came, and what to do."""

_SAID: Final = re.compile(rf"(?:^|[\s.])({'|'.join(_KINDS)}): (.*\S)")


def told(error: Exception) -> Failed | Unreachable | None:
    """The error in its own words and of its kind; None where it is not meant for people."""
    if isinstance(error, Failed | Unreachable):
        return error
    kind = _KINDS.get(type(error).__name__)
    if kind is not None:
        return kind(str(error))
    for line in reversed(str(error).splitlines()):
        found = _SAID.search(line)
        if found:
            return _KINDS[found[1]](found[2])
    return None


def named(error: Exception) -> Failed | Unreachable:
    """The same, or else the first line of what Spark says: its log has the rest."""
    lines = str(error).strip().splitlines()
    return told(error) or Failed(lines[0][:2000] if lines else type(error).__name__)
