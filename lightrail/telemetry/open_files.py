"""Open files: warns when the file descriptors of this process are nearly used up.

The kernel gives a new file the lowest free number, so the number of a connection shows how many descriptors
are in use at least. At the limit libuv accepts a client and closes it at once, without an error that could be
logged: the warning has to be logged before.
"""

import logging
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

FILES_LEFT: Final = 64
"""Free descriptors below which there is a warning."""
PAUSE_S: Final = 60.0
"""Pause between two lines of the log."""
REMEDY: Final = "raise the limit of open files: `ulimit -n`, `LimitNOFILE=` of systemd, `ulimits` of Docker"


def soft_limit() -> int:
    """The largest number of files that this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@dataclass(slots=True, eq=False, repr=False)
class OpenFiles:
    """Warnings of one process.

    Args:
        time: a clock in seconds.
        limit: the number of files that the process may have open; RLIM_INFINITY for any number.
    """

    _log: logging.Logger
    _time: Callable[[], float]
    _limit: Callable[[], int] = soft_limit
    _logged_s: float | None = None

    def accepted(self, connection: Any) -> None:
        """Warns if a socket has one of the last numbers; None is a connection without a socket."""
        if connection is None:
            return
        used, limit = connection.fileno() + 1, self._limit()
        if limit != resource.RLIM_INFINITY and limit - used < FILES_LEFT:
            self._warn(
                f"{used} of {limit} file descriptors are in use; without a free one clients are refused"
            )

    def lacking(self, error: OSError) -> None:
        """Warns of a connection that could not be accepted for lack of a descriptor or of memory.

        Errors are EMFILE, ENFILE, ENOBUFS and ENOMEM.
        """
        self._warn(f"a connection can't be accepted now: {error.strerror}")

    def _warn(self, what: str) -> None:
        now_s = self._time()
        if self._logged_s is None or now_s - self._logged_s >= PAUSE_S:
            self._logged_s = now_s
            self._log.warning("%s; %s", what, REMEDY)
