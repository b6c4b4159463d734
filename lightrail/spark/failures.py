"""Converts failures in Spark's workers, which Spark reports as text, back to errors of commands."""

import re
from typing import Final

from lightrail.spark.command import CommandError, UnreachableError

_KINDS: Final[dict[str, type[CommandError] | type[UnreachableError]]] = {
    "SourceError": UnreachableError,
    "NoArchiveError": UnreachableError,
    "StoreError": UnreachableError,
    "DataLossError": CommandError,
    "DamageError": CommandError,
    "SinkError": CommandError,
    "OptionError": CommandError,
}
"""Exceptions whose messages are meant for users, by name."""

_CITED: Final = re.compile(rf"(?:^|[\s.])({'|'.join(_KINDS)}): (.*\S)")
_SLOW_START: Final = "Python worker failed to connect back"
_NO_STORE: Final = "No FileSystem for scheme"


def user_error(error: Exception) -> CommandError | UnreachableError | None:
    """The original error; None if it is not meant for users."""
    if isinstance(error, CommandError | UnreachableError):
        return error
    kind = _KINDS.get(type(error).__name__)
    if kind is not None:
        return kind(str(error))
    for line in reversed(str(error).splitlines()):
        found = _CITED.search(line)
        if found:
            return _KINDS[found[1]](found[2])
    if _SLOW_START in str(error):
        return CommandError(
            "a Python process took more than 10 s to start, and Spark waits no longer: the machine is slow, "
            "or has too much other work. Repeat the command"
        )
    if _NO_STORE in str(error):
        return CommandError(
            "Spark has no file system for a URI, such as that of --checkpoint: name a folder of the driver, "
            "or leave it out (capture then continues at the end of the table), or give Spark the jars for it"
        )
    return _first_line(error) if type(error).__module__.startswith("pyspark.") else None


def is_slow_start(error: Exception) -> bool:
    """Whether a Python process that plans a query's micro-batches took more than the 10 s to start that Spark
    allows it (PythonWorkerFactory.createSimpleWorker), as after the start of a slow machine."""
    return _SLOW_START in str(error)


def named(error: Exception) -> CommandError | UnreachableError:
    """Like `user_error`, but with the first line of the text for other errors; Spark's log has the rest."""
    return user_error(error) or _first_line(error)


def _first_line(error: Exception) -> CommandError:
    lines = str(error).strip().splitlines()
    return CommandError(lines[0][:2000] if lines else type(error).__name__)
