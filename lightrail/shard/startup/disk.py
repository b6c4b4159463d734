"""Watches whether the disk answers and has room, and logs each change."""

import logging
from typing import Final

DISK_SILENCE_MS: Final[int] = 5_000
"""Time of a commit after which the disk counts as hanging, and the shard is silent until it answers."""
DISK_ROOM_MS: Final[int] = 10_000
"""Time for which messages must find room until a full disk counts as having room again."""

log = logging.getLogger("lightrail.shard.startup.disk")


class DiskWatch:
    """Watches the commits of one shard. Times are seconds of a monotonic clock."""

    __slots__ = ("_begun_s", "_full", "_is_reported", "_room_s")

    def __init__(self) -> None:
        self._begun_s: float | None = None
        """When the commit that is under way began."""
        self._is_reported = False
        """Whether it was logged that the disk does not answer."""
        self._full = ""
        self._room_s: float | None = None
        """Time at which a full disk had room again."""

    def commit_begun(self, now_s: float) -> None:
        """Notes the begin of a commit."""
        self._begun_s = now_s

    def commit_ended(self, now_s: float) -> None:
        """Notes the end of the commit, successful or not."""
        if self._is_reported:
            self._is_reported = False
            log.warning("the disk answers again; a commit took %.1f s", self.age_s(now_s))
        self._begun_s = None

    def age_s(self, now_s: float) -> float:
        """Seconds that the commit under way has taken so far; 0 if there is none."""
        return 0.0 if self._begun_s is None else max(0.0, now_s - self._begun_s)

    def is_silent(self, now_s: float) -> bool:
        """Whether the disk has not answered for too long to serve senders."""
        return self._begun_s is not None and self.age_s(now_s) * 1000 > DISK_SILENCE_MS

    @property
    def is_full(self) -> bool:
        """Whether the disk has no room for messages."""
        return bool(self._full)

    def look(self, full: str, now_s: float) -> None:
        """Called once per heartbeat; `full` is why there is no room for messages, empty if there is."""
        if self.is_silent(now_s) and not self._is_reported:
            self._is_reported = True
            log.error(
                "%s: the shard sends nothing to frontends until it does, so that senders get their messages "
                "back after shard_wait; check the disk, its controller or the network behind it",
                self.silence(now_s),
            )
        if full:
            if not self._full:
                log.error("no room for messages: %s", full)
            self._full, self._room_s = full, None
        elif self._full:
            # A nearly full disk alternates between room and no room: report this once.
            if self._room_s is None:
                self._room_s = now_s
            if (now_s - self._room_s) * 1000 >= DISK_ROOM_MS:
                log.warning("there is room for messages again")
                self._full, self._room_s = "", None

    def silence(self, now_s: float) -> str | None:
        """Why the shard does not serve, or None."""
        if not self.is_silent(now_s):
            return None
        return f"the disk has not answered for {self.age_s(now_s):.0f} s"

    def notice(self) -> str | None:
        """A warning for operators of a shard that serves, or None."""
        return f"refuses messages: {self._full}" if self._full else None
